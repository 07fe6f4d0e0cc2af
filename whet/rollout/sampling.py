"""Drawing one token a row: pure functions on logits.

Sampling inverts the cumulative distribution at a uniform number that belongs to the request and the position, so a
reply does not depend on its neighbours in the batch. That is also the fastest way to sample on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from whet.types import Sampling

_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Draw:
    """What was drawn for each row of the batch."""

    token: Tensor  # int64 [B]
    logp: Tensor  # float32 [B], of the distribution drawn from; for greedy, of the model's own at temperature 1
    kept: Tensor | None  # bool [B, V], the tokens that could be drawn; None: all


def uniforms(seeds: list[int], count: int) -> Tensor:
    """float32 [B, count] in [0, 1): the random stream of each seed, by the splitmix64 generator (Steele 2014)."""
    with np.errstate(over="ignore"):
        state = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)[:, None]
        state = _mixed(state)  # neighbouring seeds must not give shifted copies of one stream
        state = state + np.arange(1, count + 1, dtype=np.uint64)[None] * np.uint64(0x9E3779B97F4A7C15)
        bits = _mixed(state) >> np.uint64(40)
    return torch.from_numpy(bits.astype(np.float32) * np.float32(2.0**-24))


def _mixed(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9) & _MASK
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB) & _MASK
    return state ^ (state >> np.uint64(31))


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Draw:
    """One token for each row of `logits` [B, V]; `uniform` [B] picks it."""
    logits = logits.float()
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return Draw(token, _at(logits, token) - logits.logsumexp(-1), None)
    logits = logits / sampling.temperature
    kept = kept_tokens(logits, sampling) if sampling.truncates else None
    if kept is not None:
        logits = logits.masked_fill(~kept, float("-inf"))
    norm = logits.logsumexp(-1, keepdim=True)
    cumulative = (logits - norm).exp().cumsum(-1)
    token = torch.searchsorted(cumulative, (uniform[:, None] * cumulative[:, -1:]), right=True)[:, 0]
    token = token.clamp(max=logits.shape[-1] - 1)
    # rounding at the very end of the cumulative sum may land on a token that cannot be drawn
    token = torch.where(_at(logits, token).isinf(), logits.argmax(-1), token)
    return Draw(token, _at(logits, token) - norm[:, 0], kept)


def kept_tokens(logits: Tensor, sampling: Sampling) -> Tensor:
    """bool [B, V]: what top-k, then top-p, then min-p leave, each acting on what the one before left."""
    kept = torch.ones_like(logits, dtype=torch.bool)
    if 0 < sampling.top_k < logits.shape[-1]:
        kept &= logits >= logits.topk(sampling.top_k).values[:, -1:]
    if sampling.top_p < 1:
        probability = logits.masked_fill(~kept, float("-inf")).softmax(-1)
        ordered, order = probability.sort(descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # a token stays while the mass in front of it is below top_p
        kept &= torch.zeros_like(kept).scatter(-1, order, before < sampling.top_p)
    if sampling.min_p > 0:
        probability = logits.masked_fill(~kept, float("-inf")).softmax(-1)
        kept &= probability >= sampling.min_p * probability.max(-1, keepdim=True).values
    return kept


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index[:, None])[:, 0]
