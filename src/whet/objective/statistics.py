"""Means and spreads over groups, completions and tokens. A NaN reward is unscorable: no statistic contains it.

Branches of one episode count as one: each by its share of the draws on its way (`whet.objective.tree`), or, where
nothing is known of the tree, by 1 / the number of the scored branches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.objective.lazy_torch import Tensor, torch
from whet.objective.tree import path_weight, tree_paths
from whet.types import TokenBatch

STD_FLOOR = 1e-6
SPREAD_FLOOR = 1e-6  # a group whose max - min is below this share of max(1, |mean|) is constant


@dataclass(frozen=True)
class GroupMoments:
    """Per sample, the statistics of its group over the scored samples: all [N]."""

    count: Tensor
    mean: Tensor
    std: Tensor  # Bessel's; 0 for a constant group and for fewer than two samples
    constant: Tensor  # bool


def group_moments(reward: Tensor, group: Tensor, weight: Tensor | None = None) -> GroupMoments:
    """count, mean and std of each sample's group. A spread within float noise is exactly 0.

    `weight` [N] is what each sample counts (`episode_weight`); a group that counts 1 or less compares with nobody.
    """
    _, index = torch.unique(group, return_inverse=True)
    num_groups = int(index.max()) + 1 if index.numel() else 0
    scored = ~reward.isnan()
    counts = scored.to(reward.dtype)
    if weight is not None:
        counts = counts * weight.to(reward.dtype)
    value = torch.where(scored, reward, 0.0)

    def group_sum(values: Tensor) -> Tensor:
        return torch.zeros(num_groups, dtype=reward.dtype, device=reward.device).index_add(0, index, values)

    def group_extreme(fill: float, kind: str) -> Tensor:
        start = torch.full((num_groups,), fill, dtype=reward.dtype, device=reward.device)
        return start.scatter_reduce(0, index, torch.where(scored, reward, fill), kind)

    count = group_sum(counts)
    # a weight below 1 may be all that a group has: it is divided by as it is
    least = torch.where(count > 0, count, 1.0)
    mean = group_sum(counts * value) / least
    deviation = torch.where(scored, reward - mean[index], 0.0)
    variance = group_sum(counts * deviation**2) / (count - 1).clamp(min=1)
    spread = group_extreme(float("-inf"), "amax") - group_extreme(float("inf"), "amin")
    constant = ~(spread > SPREAD_FLOOR * mean.abs().clamp(min=1)) | (count < 1 + SPREAD_FLOOR)
    std = torch.where(constant, 0.0, variance.sqrt())
    return GroupMoments(count[index], mean[index], std[index], constant[index])


def compared_apart(batch: TokenBatch) -> TokenBatch:
    """The batch with a group for each role: rewards of different roles are never compared with each other."""
    if batch.role is None:
        return batch
    return replace(batch, group=pair_index(batch.group, batch.role)[0])


def pair_index(one: Tensor, other: Tensor) -> tuple[Tensor, int]:
    """A number from 0 for each pair of whole numbers [N], in their order, and how many there are."""
    (_, first), (known, second) = (torch.unique(values, return_inverse=True) for values in (one, other))
    unique, index = torch.unique(first * len(known) + second, return_inverse=True)
    return index, len(unique)


def episode_index(batch: TokenBatch) -> tuple[Tensor, int]:
    """Each row's episode in its group as a number from 0, and how many there are; a row of its own without episodes."""
    if batch.episode is None:
        return torch.arange(len(batch.group), device=batch.group.device), len(batch.group)
    return pair_index(batch.group, batch.episode)


def episode_weight(batch: TokenBatch, counted: Tensor | None = None) -> Tensor | None:
    """[N]: a row's share of its episode, 0 where not counted; None where every row is its own.

    Counted are the scored rows, unless told otherwise: branches of an episode share its weight in every statistic, by
    the draws on their way, or alike where `batch.node` does not tell them.
    """
    if batch.episode is None:
        return None
    counts = ~batch.reward.isnan() if counted is None else counted
    index, count = episode_index(batch)
    if batch.node is not None:
        return path_weight(tree_paths(batch.action, batch.node, index, count), counts)
    weight = counts.double()
    return weight / sums_by(index, count, weight).clamp(min=1)[index]


def episode_mean(values: Tensor, batch: TokenBatch) -> Tensor:
    """[N]: the mean of a value over the scored branches of the row's episode, by their weights; without, the value."""
    weight = episode_weight(batch)
    if weight is None:
        return values
    index, count = episode_index(batch)
    weighed = torch.where(weight > 0, values, 0.0) * weight.to(values.dtype)
    return sums_by(index, count, weighed)[index]


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Each sample's group as a number from 0, and how many groups there are."""
    _, index = torch.unique(group, return_inverse=True)
    return index, int(index.max()) + 1 if index.numel() else 0


def sums_by(index: Tensor, count: int, values: Tensor) -> Tensor:
    """SUM of the values of each index: [count]."""
    return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, index, values)


def spread(values: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and Bessel's std of a flat tensor; the std is exactly 0 within float noise and for fewer than two.

    `weight` is what each value counts; None: 1.
    """
    if values.numel() < 2:
        return values.mean() if values.numel() else values.new_zeros(()), values.new_zeros(())
    if weight is None:
        mean, std = values.mean(), values.std()
    else:
        weight = weight.to(values.dtype)
        total = weight.sum()
        mean = (weight * values).sum() / torch.where(total > 0, total, 1.0)
        std = ((weight * (values - mean) ** 2).sum() / (total - 1).clamp(min=1)).sqrt()
    constant = values.max() - values.min() <= SPREAD_FLOOR * mean.abs().clamp(min=1)
    return mean, torch.where(constant, 0.0, std)
