"""Means and spreads over groups, completions and tokens. A NaN reward is unscorable: no statistic contains it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-6
SPREAD_FLOOR = 1e-6  # a group whose max - min is below this share of max(1, |mean|) is constant


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


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Each sample's group as a number from 0, and how many groups there are."""
    _, index = torch.unique(group, return_inverse=True)
    return index, int(index.max()) + 1 if index.numel() else 0


def sums_by(index: Tensor, count: int, values: Tensor) -> Tensor:
    """SUM of the values of each index: [count]."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, index, values)


def spread(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and Bessel's std of a flat tensor; the std is exactly 0 within float noise and for fewer than two."""
    if values.numel() < 2:
        return values.mean() if values.numel() else values.new_zeros(()), values.new_zeros(())
    mean = values.mean()
    constant = values.max() - values.min() <= SPREAD_FLOOR * mean.abs().clamp(min=1)
    return mean, torch.where(constant, 0.0, values.std())
