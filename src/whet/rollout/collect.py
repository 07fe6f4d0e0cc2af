"""Prompts in, complete scored groups out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from whet.protocols import Engine
from whet.types import Group, Prompt, Request, Sample, Sampling

Score = Callable[[Sequence[Prompt], Sequence[Sample]], list[Sample]]


class Worth(Protocol):
    """Is a group worth training on? A row's `keep` is one."""

    refills: ClassVar[bool]
    grows: ClassVar[bool]

    @property
    def most_rounds(self) -> int: ...

    def __call__(self, outcomes: Sequence[float], staleness: int) -> bool: ...


@dataclass(frozen=True)
class RolloutSpec:
    """How many completions to draw, and which groups to be content with."""

    num_prompts: int
    group_size: int
    sampling: Sampling
    greedy: bool  # one deterministic completion more for each prompt
    worth: Worth


@dataclass(frozen=True)
class RolloutBatch:
    """`groups` of (row of the prompt, group); what it took to get them."""

    groups: tuple[tuple[int, Group], ...]
    outcomes: tuple[tuple[int, float], ...]  # (row, mean outcome) of every prompt asked, kept or not
    num_samples: int  # written, kept or not
    rounds: int


def request_seed(*parts: int | str) -> int:
    """A 64-bit seed that belongs to these numbers alone: no state to save, nothing to replay."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def draw_completions(
    engine: Engine, prompt_tokens: Sequence[tuple[int, ...]], group_size: int, sampling: Sampling, seed: tuple[int, ...]
) -> list[list[Sample]]:
    """`group_size` completions to each prompt, prompt by prompt."""
    requests = [
        Request(tokens, request_seed(*seed, row, number))
        for row, tokens in enumerate(prompt_tokens)
        for number in range(group_size)
    ]
    written = engine.generate(requests, sampling)
    return [written[start : start + group_size] for start in range(0, len(written), group_size)]


def score_groups(prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]], score: Score) -> list[Group]:
    """One group a prompt, every sample judged."""
    flat_prompts = [prompt for prompt, samples in zip(prompts, written, strict=True) for _ in samples]
    judged = iter(score(flat_prompts, [sample for samples in written for sample in samples]))
    return [
        Group(prompt, tuple(next(judged) for _ in samples)) for prompt, samples in zip(prompts, written, strict=True)
    ]


def outcomes_of(samples: Sequence[Sample]) -> list[float]:
    """The first reward part of each scored sample."""
    return [sample.outcome for sample in samples if sample.outcome is not None]


Ask = Callable[[Sequence[int], int, Sampling, tuple[int, ...]], list[Group]]
"""(rows of the prompts, completions to each, how, seed) -> scored groups."""


def harvest(ask: Ask, take: Callable[[int], list[int]], wish: RolloutSpec, seed: tuple[int, ...]) -> RolloutBatch:
    """Draw until enough groups are worth training on, or the rounds are spent; `take` gives rows of new prompts."""
    kept: list[tuple[int, Group]] = []
    asked: list[tuple[int, float]] = []
    num_samples, rounds = 0, 0
    while len(kept) < wish.num_prompts and rounds < (wish.worth.most_rounds if wish.worth.refills else 1):
        rows = take(wish.num_prompts - len(kept))
        groups = ask(rows, wish.group_size, wish.sampling, (*seed, rounds) if rounds else seed)
        num_samples += sum(len(group.samples) for group in groups)
        if wish.worth.grows:
            groups, more = _grown(ask, rows, groups, wish, seed)
            num_samples += more
        rounds += 1
        for row, group in zip(rows, groups, strict=True):
            outcomes = group.drawn or outcomes_of(group.samples)
            if outcomes:
                asked.append((row, sum(outcomes) / len(outcomes)))
            if not wish.worth.refills or wish.worth(outcomes, 0):
                kept.append((row, group))
    if wish.greedy:
        rows = [row for row, _ in kept]
        alone = ask(rows, 1, replace(wish.sampling, temperature=0.0), (*seed, -1))
        num_samples += len(alone)
        kept = [(row, replace(group, greedy=one.samples[0])) for (row, group), one in zip(kept, alone, strict=True)]
    return RolloutBatch(tuple(kept), tuple(asked), num_samples, rounds)


def _grown(
    ask: Ask, rows: Sequence[int], groups: list[Group], wish: RolloutSpec, seed: tuple[int, ...]
) -> tuple[list[Group], int]:
    """More completions to the prompts whose outcomes all agree; then a balanced group of the usual size."""
    pools = [list(group.samples) for group in groups]
    more = 0
    for number in range(1, wish.worth.most_rounds):
        lonely = [place for place, pool in enumerate(pools) if not wish.worth(outcomes_of(pool), 0)]
        if not lonely:
            break
        extra = ask([rows[place] for place in lonely], wish.group_size, wish.sampling, (*seed, number))
        for place, group in zip(lonely, extra, strict=True):
            pools[place] += group.samples
            more += len(group.samples)
    return [
        replace(
            group,
            samples=tuple(balanced(pool, wish.group_size)),
            drawn=tuple(sample.reward for sample in pool if sample.reward is not None),
        )
        for group, pool in zip(groups, pools, strict=True)
    ], more


def balanced(pool: Sequence[Sample], size: int) -> list[Sample]:
    """`size` samples, half of them above the pool's mean outcome where there are enough, the first drawn first."""
    known = outcomes_of(pool)
    mean = sum(known) / len(known) if known else 0.0
    above = [sample for sample in pool if sample.outcome is not None and sample.outcome > mean]
    others = [sample for sample in pool if sample.outcome is None or sample.outcome <= mean]
    count = min(len(above), max(size // 2, size - len(others)))
    return above[:count] + others[: size - count]
