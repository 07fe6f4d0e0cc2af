"""Better than what, when only the best counts? A baseline of exponentially tilted rewards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.advantage import GroupBaseline, Memory, on_actions
from whet.objective.component import number
from whet.objective.lazy_torch import torch
from whet.objective.statistics import episode_mean, episode_weight, group_index, group_moments, sums_by
from whet.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor

STEEPEST = 2.0**20  # beta of a group in which no finite one spends its nats: the best alone


@dataclass(frozen=True)
class EntropicGroup(GroupBaseline):
    """A_i = exp(beta R_i) / mean_{j not i} exp(beta R_j) - 1, beta by group: KL(softmax(beta R), uniform) = `nats`.
    Yuksekgonul 2026 (2601.16175), section 3.2.

    The gradient of log E exp(beta R), which tends to the best reward: for finding one good completion, not many. Where
    the best are so many that no beta spends the nats, they alone count. In a group of two one of them is worth any
    number of the other: it has no advantage.
    """

    nats: float = number(math.log(2), above=0)
    name: ClassVar[str] = "entropic_group"
    in_words: ClassVar[str] = (
        "weigh each completion by exp(beta R) against the others of its group: the best count most"
    )
    in_symbols: ClassVar[str] = (
        "e^(beta R) / mean_{{g, not i}}(e^(beta R)) - 1, KL(softmax(beta R), uniform) = {0.nats:.3g}"
    )

    @property
    def smallest_group(self) -> int:
        return 3

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        index, count = group_index(batch.group)
        scored = ~batch.reward.isnan()
        weight = episode_weight(batch)
        counts = scored.double() if weight is None else weight.double()
        reward = torch.where(scored, batch.reward.double(), 0.0)
        least = torch.full((count,), -math.inf, dtype=torch.float64, device=reward.device)
        best = least.scatter_reduce(0, index, torch.where(scored, reward, -math.inf), "amax")
        below = torch.where(scored, reward - best[index], 0.0)  # at most 0: no power overflows
        size = sums_by(index, count, counts).clamp(min=1)

        def spent(beta: Tensor) -> Tensor:
            """KL(softmax(beta R), uniform) of each group."""
            logit = beta[index] * below
            total = sums_by(index, count, counts * logit.exp()).clamp(min=1e-300)
            share = counts * logit.exp() / total[index]
            return sums_by(index, count, share * (logit - total.log()[index])) + size.log()

        beta = _solved(spent, torch.zeros(count, dtype=torch.float64, device=reward.device), self.nats)
        tilted = torch.where(scored, (beta[index] * below).exp(), 0.0)
        moments = group_moments(batch.reward, batch.group, weight)
        others = sums_by(index, count, counts * tilted)[index] - episode_mean(tilted, batch)
        others = others / (size[index] - 1).clamp(min=1)
        enough = scored & ~moments.constant & (size[index] > 2)
        advantage = torch.where(enough, tilted / torch.where(enough, others, 1.0) - 1, 0.0)
        return on_actions(advantage.to(batch.reward.dtype), batch)


def _solved(spent: Callable[[Tensor], Tensor], zero: Tensor, nats: float) -> Tensor:
    """The beta of each group at which `spent` reaches the nats, by halving; STEEPEST where none does."""
    low, high = zero, torch.ones_like(zero)
    while ((spent(high) < nats) & (high < STEEPEST)).any():
        high = torch.where((spent(high) < nats) & (high < STEEPEST), 2 * high, high)
    for _ in range(60):
        middle = (low + high) / 2
        short = spent(middle) < nats
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return high
