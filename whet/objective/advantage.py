"""Better than what? Baselines and scales: the first half of a method.

A baseline is `(batch, memory) -> [N]`, what each reward is compared with; a scale is `(centred, batch) -> [N]`.
Both see all scored samples of the step, before any filter. A NaN reward is unscorable: no statistic contains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from whet.types import TokenBatch, WhetError

Memory = Mapping[str, float]  # what a row remembers from step to step; saved with every checkpoint

STD_FLOOR = 1e-6
SPREAD_FLOOR = 1e-6  # a group whose max - min is below this share of max(1, |mean|) is constant


class Baseline(Protocol):
    name: ClassVar[str]
    smallest_group: ClassVar[int]

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor: ...

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


class Scale(Protocol):
    name: ClassVar[str]

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self, centred: str) -> str: ...


@dataclass(frozen=True)
class GroupMoments:
    """Per sample, the statistics of its group over the scored samples: all [N]."""

    count: Tensor
    mean: Tensor
    std: Tensor  # Bessel's; 0 for a constant group and for fewer than two samples
    constant: Tensor  # bool


def group_moments(reward: Tensor, group: Tensor) -> GroupMoments:
    """count, mean and std of each sample's group. A spread within float noise is exactly 0."""
    _, index = torch.unique(group, return_inverse=True)
    num_groups = int(index.max()) + 1 if index.numel() else 0
    scored = ~reward.isnan()
    value = torch.where(scored, reward, 0.0)

    def group_sum(values: Tensor) -> Tensor:
        return torch.zeros(num_groups, dtype=reward.dtype, device=reward.device).index_add(0, index, values)

    def group_extreme(fill: float, kind: str) -> Tensor:
        start = torch.full((num_groups,), fill, dtype=reward.dtype, device=reward.device)
        return start.scatter_reduce(0, index, torch.where(scored, reward, fill), kind)

    count = group_sum(scored.to(reward.dtype))
    mean = group_sum(value) / count.clamp(min=1)
    deviation = torch.where(scored, reward - mean[index], 0.0)
    variance = group_sum(deviation**2) / (count - 1).clamp(min=1)
    spread = group_extreme(float("-inf"), "amax") - group_extreme(float("inf"), "amin")
    constant = ~(spread > SPREAD_FLOOR * mean.abs().clamp(min=1))
    std = torch.where(constant, 0.0, variance.sqrt())
    return GroupMoments(count[index], mean[index], std[index], constant[index])


@dataclass(frozen=True)
class GroupMean:
    """b_i = mean_{j in group(i)} R_j. Shao 2024 (2402.03300), section 4.1.1.

    The mean contains the sample itself, which shrinks the expected gradient by (G - 1) / G.
    """

    name: ClassVar[str] = "group_mean"
    smallest_group: ClassVar[int] = 2

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        moments = group_moments(batch.reward, batch.group)
        # the mean of equal rewards is that reward; the rounded sum would leave noise that a scale could blow up
        return torch.where(moments.constant, batch.reward, moments.mean)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        return memory

    def words(self) -> str:
        return "compare each reply with the mean of its group"

    def symbols(self) -> str:
        return "mean_g(R)"


@dataclass(frozen=True)
class RunningMean:
    """b = bias-corrected moving average of past mean rewards. Williams 1992, section 7 (reinforcement comparison).

    Updated after use, so that no sample is part of its own baseline; 0 before the first step.
    """

    decay: float = 0.9
    name: ClassVar[str] = "running_mean"
    smallest_group: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"baseline.decay is {self.decay}; give a share in [0, 1)")

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        mass = memory.get("running_mass", 0.0)
        mean = memory.get("running_sum", 0.0) / mass if mass else 0.0
        return torch.full_like(batch.reward, mean)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        scored = batch.reward[~batch.reward.isnan()].double()
        if not scored.numel():
            return memory
        kept = self.decay
        return {
            **memory,
            "running_sum": kept * memory.get("running_sum", 0.0) + (1 - kept) * float(scored.mean()),
            "running_mass": kept * memory.get("running_mass", 0.0) + (1 - kept),
        }

    def words(self) -> str:
        return "compare each reply with a running mean of past rewards"

    def symbols(self) -> str:
        return f"ema_{self.decay:g}(R)"


@dataclass(frozen=True)
class NoScale:
    """A = R - b."""

    name: ClassVar[str] = "none"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return centred

    def words(self) -> str:
        return "keep the difference as it is"

    def symbols(self, centred: str) -> str:
        return centred


@dataclass(frozen=True)
class GroupStd:
    """A = (R - b) / (std_g(R) + 1e-6), Bessel's std. Shao 2024 (2402.03300), section 4.1.1 (ddof, floor unstated)."""

    name: ClassVar[str] = "group_std"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        return centred / (group_moments(batch.reward, batch.group).std + STD_FLOOR)

    def words(self) -> str:
        return "divide the difference by the spread of the group"

    def symbols(self, centred: str) -> str:
        return f"({centred}) / (std_g(R) + {STD_FLOOR:g})"


@dataclass(frozen=True)
class LeaveOneOut:
    """b_i = mean of the other rewards of i's group. Kool 2019; Ahmadian 2024 (2402.14740), eq. 6.

    Unbiased: the sample is not in its own baseline. R - b = G/(G-1) (R - mean).
    """

    name: ClassVar[str] = "leave_one_out"
    smallest_group: ClassVar[int] = 2

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        moments = group_moments(batch.reward, batch.group)
        others = (moments.count * moments.mean - batch.reward) / (moments.count - 1).clamp(min=1)
        return torch.where(moments.constant, batch.reward, others)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        return memory

    def words(self) -> str:
        return "compare each reply with the mean of the others in its group"

    def symbols(self) -> str:
        return "mean_{g, not i}(R)"


@dataclass(frozen=True)
class LengthWeightedMean:
    """b_g = SUM_j n_j R_j / SUM_j n_j. Hao 2025 (2505.23585): variance-optimal if grad-norm^2 grows with length.

    The advantages of a group no longer sum to 0.
    """

    name: ClassVar[str] = "length_weighted_mean"
    smallest_group: ClassVar[int] = 2

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        _, index = torch.unique(batch.group, return_inverse=True)
        scored = ~batch.reward.isnan()
        length = torch.where(scored, batch.lengths.to(batch.reward.dtype), 0.0)
        sums = torch.zeros(2, int(index.max()) + 1, dtype=batch.reward.dtype, device=batch.reward.device)
        sums = sums.index_add(1, index, torch.stack([length * torch.where(scored, batch.reward, 0.0), length]))
        moments = group_moments(batch.reward, batch.group)
        return torch.where(moments.constant, batch.reward, (sums[0] / sums[1].clamp(min=1))[index])

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        return memory

    def words(self) -> str:
        return "compare each reply with the mean of its group, weighted by length"

    def symbols(self) -> str:
        return "SUM_g(n R) / SUM_g(n)"


@dataclass(frozen=True)
class GroupMeanScale:
    """A = (R - b) / mean_g(R); 0 for a group without success. arXiv 2602.02710 (2026). Rewards must be 0 or 1."""

    name: ClassVar[str] = "group_mean"

    def __call__(self, centred: Tensor, batch: TokenBatch) -> Tensor:
        scored = batch.reward[~batch.reward.isnan()]
        if not ((scored == 0) | (scored == 1)).all():
            raise WhetError("objective.scale=group_mean is defined for rewards of 0 or 1 only; use an accuracy reward")
        mean = group_moments(batch.reward, batch.group).mean
        return torch.where(mean > 0, centred / mean.clamp(min=1e-12), 0.0)

    def words(self) -> str:
        return "divide the difference by the share of right replies: rare successes count most"

    def symbols(self, centred: str) -> str:
        return f"({centred}) / mean_g(R)"
