"""Decoding through a model's own forward and transformers' own cache: slower, and right for every model.

For models whose attention whet does not know how to run on its own buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whet.model.causal_lm import CausalLM
from whet.rollout.sampling import Draw, draw, uniforms
from whet.rollout.scheduler import Completions, StopRule, shares, supports
from whet.types import Request, Sampling, StopReason


@torch.no_grad()
def write_any(
    split: CausalLM, requests: Sequence[Request], sampling: Sampling, ending: StopRule, rows: int
) -> Completions:
    """The completions to all requests, `rows` at a time."""
    parts = [
        _write_batch(split, requests[start : start + rows], sampling, ending) for start in range(0, len(requests), rows)
    ]
    return Completions(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.logp for part in parts]),
        [count for part in parts for count in part.count],
        [stop for part in parts for stop in part.stop],
        [support for part in parts for support in part.support],
    )


def _write_batch(split: CausalLM, requests: Sequence[Request], sampling: Sampling, ending: StopRule) -> Completions:
    device = split.device
    prompts = shares(requests)
    width = max(len(tokens) for tokens, _ in prompts)
    cache, logits = prefill(split, [tokens for tokens, _ in prompts])
    spread = torch.tensor([place for place, (_, numbers) in enumerate(prompts) for _ in numbers], device=device)
    cache.batch_select_indices(spread)
    logits = logits[spread]

    budget = sampling.max_new_tokens
    random = uniforms([request.seed for request in requests], budget).to(device)
    lengths = torch.tensor([len(request.tokens) for request in requests], device=device)
    mask = None
    if int(lengths.min()) < width:
        mask = torch.ones(len(requests), width + budget, dtype=torch.long, device=device)
        mask[:, :width] = torch.arange(width, device=device)[None] >= width - lengths[:, None]
    completions = Completions(
        torch.zeros(len(requests), budget, dtype=torch.long),
        torch.zeros(len(requests), budget),
        [0] * len(requests),
        [StopReason.LENGTH] * len(requests),
        [[] for _ in requests],
    )
    alive = torch.arange(len(requests), device=device)  # the request of each row still in the batch
    for position in range(budget):
        drawn = draw(logits, random[alive, position], sampling)
        finished = _note(completions, alive.tolist(), position, drawn, (sampling, ending))
        if position + 1 == budget:
            break
        token = drawn.token
        if any(finished):
            staying = torch.tensor([n for n, done in enumerate(finished) if not done], dtype=torch.long, device=device)
            if not len(staying):
                break
            cache.batch_select_indices(staying)
            alive, token = alive[staying], token[staying]
        hidden = split.hidden(
            token[:, None],
            None if mask is None else mask[alive, : width + position + 1],
            (lengths[alive] + position)[:, None],
            cache,
        )
        logits = split.logits(hidden[:, -1])
    return completions


def prefill(split: CausalLM, prompts: Sequence[tuple[int, ...]]) -> tuple[Any, Tensor]:
    """Each prompt once, padded on the left: the cache and the logits [P, V] of the first completion token."""
    from transformers import DynamicCache

    device = split.device
    width = max(map(len, prompts))
    tokens = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    column = torch.arange(width)[None]
    mask = None
    if int(lengths.min()) < width:
        mask = (column >= width - lengths[:, None]).long().to(device)
    positions = (column - (width - lengths[:, None])).clamp(min=0)
    cache = DynamicCache(config=split.model.config)  # type: ignore[arg-type]
    hidden = split.hidden(tokens.to(device), mask, positions.to(device), cache)
    return cache, split.logits(hidden[:, -1])


def _note(
    completions: Completions, rows: Sequence[int], position: int, drawn: Draw, how: tuple[Sampling, StopRule]
) -> list[bool]:
    """Note the drawn tokens; which rows of the batch are finished."""
    sampling, ending = how
    token = drawn.token.cpu()
    completions.tokens[rows, position] = token
    completions.logp[rows, position] = drawn.logp.cpu()
    ended: list[bool] = torch.isin(token, ending.tokens).tolist()
    if drawn.kept is not None:
        for row, ids in zip(rows, supports(drawn.kept, sampling), strict=True):
            completions.support[row].append(ids)
    for number, row in enumerate(rows):
        completions.count[row] = position + 1
        if ended[number]:
            completions.stop[row] = StopReason.END
        elif sampling.stop and ending.said(completions.tokens[row, : position + 1].tolist(), sampling.stop):
            completions.stop[row] = StopReason.TEXT
            ended[number] = True
    return ended
