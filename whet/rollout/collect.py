"""Prompts in, complete scored groups out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from whet.protocols import Engine
from whet.types import Group, Prompt, Request, Sample, Sampling

Score = Callable[[Sequence[Prompt], Sequence[Sample]], list[Sample]]


def request_seed(*parts: int | str) -> int:
    """A 64-bit seed that belongs to these numbers alone: no state to save, nothing to replay."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def replies(
    engine: Engine, prompt_tokens: Sequence[tuple[int, ...]], group_size: int, sampling: Sampling, seed: tuple[int, ...]
) -> list[list[Sample]]:
    """`group_size` replies to each prompt, prompt by prompt."""
    requests = [
        Request(tokens, request_seed(*seed, row, number))
        for row, tokens in enumerate(prompt_tokens)
        for number in range(group_size)
    ]
    written = engine.generate(requests, sampling)
    return [written[start : start + group_size] for start in range(0, len(written), group_size)]


def scored_groups(prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]], score: Score) -> list[Group]:
    """One group a prompt, every sample judged."""
    flat_prompts = [prompt for prompt, samples in zip(prompts, written, strict=True) for _ in samples]
    judged = iter(score(flat_prompts, [sample for samples in written for sample in samples]))
    return [
        Group(prompt, tuple(next(judged) for _ in samples)) for prompt, samples in zip(prompts, written, strict=True)
    ]
