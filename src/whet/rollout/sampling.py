"""Drawing one token per row: pure functions on logits.

Sampling inverts the cumulative distribution at a uniform number that belongs to the request and the position, so a
completion does not depend on its neighbours in the batch. That is also the fastest way to sample on a CPU. Nothing here
waits for the device or has a shape that depends on data, truncation apart from its caller's look at what was kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whet.types import Sampling

BLOCKS = (256, 128, 64)  # of the vocabulary; the first that divides it
SMALLEST_IN_BLOCKS = 4096  # of a vocabulary; below, one running sum is quicker
LARGEST_UNIFORM = 1 - 2.0**-23  # times any float32 it is less than that float32, rounding or not
_MASK = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Draw:
    """What was drawn for each row of the batch."""

    token: Tensor  # int64 [B]
    logp: Tensor  # float32 [B], of the distribution drawn from; for greedy, of the model's own at temperature 1
    kept: Tensor | None  # bool [B, V], the tokens that could be drawn; None: all, or nobody asked


def uniforms(seeds: list[int], count: int, skipped: list[int] | None = None) -> Tensor:
    """float32 [B, count] in [0, 1): the random stream of each seed, by the splitmix64 generator (Steele 2014).

    `skipped` numbers of each stream were used before.
    """
    with np.errstate(over="ignore"):
        state = np.array([seed & 0xFFFFFFFFFFFFFFFF for seed in seeds], dtype=np.uint64)[:, None]
        state = _mixed(state)  # neighbouring seeds must not give shifted copies of one stream
        position = np.arange(1, count + 1, dtype=np.uint64)[None]
        if skipped is not None:
            position = position + np.array(skipped, dtype=np.uint64)[:, None]
        state = state + position * np.uint64(0x9E3779B97F4A7C15)
        bits = _mixed(state) >> np.uint64(40)
    return torch.from_numpy(bits.astype(np.float32) * np.float32(2.0**-24))


def _mixed(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9) & _MASK
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB) & _MASK
    return state ^ (state >> np.uint64(31))


def draw(
    logits: Tensor, uniform: Tensor, sampling: Sampling, spend: bool = False, allowed: Tensor | None = None
) -> Draw:
    """One token for each row of `logits` [B, V]; `uniform` [B] picks it. With `spend`, `logits` is written over.

    `allowed`, bool [B, V]: tokens that may be drawn; probabilities are those among them.
    """
    logits = logits.float()
    if allowed is not None:
        logits = logits.masked_fill(~allowed, float("-inf"))
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return Draw(token, _at(logits, token) - logits.logsumexp(-1), None)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    support = allowed
    if sampling.truncates:
        support = kept_tokens(logits, sampling)
        support = support if allowed is None else support & allowed
        logits = logits.masked_fill(~support, float("-inf"))
    # a second buffer of this size would cost more than the softmax: the system hands out fresh pages for it
    probability = torch.softmax(logits, -1, out=logits) if spend else logits.softmax(-1)
    token = _inverse(probability, uniform)
    return Draw(token, _at(probability, token).log(), support if sampling.keeps_support else None)


def _inverse(probability: Tensor, uniform: Tensor) -> Tensor:
    """The token of each row at which the cumulative probability passes `uniform`: [B], never one of probability 0.

    First the block, by the sums of all blocks, then the place in it: a running sum over the whole vocabulary would
    cost as much as the softmax.
    """
    size = probability.shape[1]
    if size < SMALLEST_IN_BLOCKS:
        cumulative = probability.cumsum(-1)
        below = uniform.clamp(max=LARGEST_UNIFORM)[:, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, below, right=True)[:, 0].clamp_(max=size - 1)
        return token if probability.is_cpu else _possible(token, probability)
    block = next((width for width in BLOCKS if size % width == 0), BLOCKS[0])
    tail = size % block  # the last block may be shorter: padding would copy everything
    sums = probability[:, : size - tail].unflatten(1, (-1, block)).sum(-1)
    if tail:
        sums = torch.cat([sums, probability[:, size - tail :].sum(-1, keepdim=True)], 1)
    total = sums.cumsum(-1)
    # strictly below the whole, rounding or not: then the sum grows in the block that is found
    below = uniform.clamp(max=LARGEST_UNIFORM)[:, None] * total[:, -1:]
    number = torch.searchsorted(total, below, right=True).clamp(max=total.shape[1] - 1)
    before = F.pad(total, (1, 0)).gather(1, number)
    column = number * block + torch.arange(block, device=probability.device)
    chosen = probability.gather(1, column.clamp(max=size - 1))
    chosen = chosen.masked_fill(column >= size, 0) if tail else chosen
    running = chosen.cumsum(-1)
    offset = torch.searchsorted(running, torch.minimum(below - before, _just_below(running[:, -1:])), right=True)[:, 0]
    # the clamp only matters where weights have diverged: nothing is above a probability that is not a number
    return number[:, 0] * block + _possible(offset.clamp(max=block - 1), chosen)


def _possible(place: Tensor, probability: Tensor) -> Tensor:
    # a sum that is taken in parallel may grow by rounding alone; a block begins with a token, whatever fills its end
    return torch.where(_at(probability, place) > 0, place, probability.argmax(-1))


def _just_below(values: Tensor) -> Tensor:
    return torch.nextafter(values, torch.zeros_like(values))


def kept_tokens(logits: Tensor, sampling: Sampling) -> Tensor:
    """bool [B, V]: what top-k, then top-p, then min-p leave, each acting on what the one before left.

    Tokens of equal probability stay or go together, so what is kept is all that reaches a threshold.
    """
    mask = torch.ones_like(logits, dtype=torch.bool)
    if 0 < sampling.top_k < logits.shape[-1]:
        mask &= logits >= logits.topk(sampling.top_k).values[:, -1:]
    if sampling.top_p < 1:
        probability = logits.masked_fill(~mask, float("-inf")).softmax(-1)
        ordered = probability.sort(descending=True).values
        before = ordered.cumsum(-1) - ordered  # a token stays while the mass in front of it is below top_p
        mask &= probability >= ordered.masked_fill(before >= sampling.top_p, 1).amin(-1, keepdim=True)
    if sampling.min_p > 0:
        probability = logits.masked_fill(~mask, float("-inf")).softmax(-1)
        mask &= probability >= sampling.min_p * probability.max(-1, keepdim=True).values
    return mask


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(-1, index[:, None])[:, 0]
