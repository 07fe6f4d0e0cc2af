"""Clip rules that look at all tokens of an optimizer step at once, or at all completions of a group.

A pass sees only some of them. So the step is surveyed first, under the policy as it is before the update, and the
weights are kept in `step_weight` (`Objective.surveyed`): passes can be cut anywhere. Called like any other rule, each
row is a step of its own: what a lone token would weigh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whet.objective.clip.band import PPOClip
from whet.objective.clip.rule import ClipRule, pushed_out
from whet.objective.component import number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import compared_apart, group_index, sums_by
from whet.types import TokenBatch


class StepClip(ClipRule):
    """A rule whose weights depend on all tokens of the step."""

    whole_groups: ClassVar[bool] = False  # True: it needs all completions of a group, also those of other updates

    def over_step(self, ratio: Tensor, batch: TokenBatch) -> Tensor:
        """The weight of each token [N, T], from all of them."""
        action = batch.action
        counts = action.double() if batch.row_weight is None else action * batch.row_weight[:, None].double()
        advantage = torch.zeros_like(ratio) if batch.advantage is None else batch.advantage.to(ratio.dtype)
        return self.weight(ratio, advantage, action, counts)

    def weight(self, ratio: Tensor, advantage: Tensor, action: Tensor, counts: Tensor) -> Tensor:
        """The weight of each token of one step; `counts` is how much each adds to the statistics of the step."""
        raise NotImplementedError

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        rows = zip(ratio.split(1), advantage.expand_as(ratio).split(1), action.expand_as(ratio).split(1), strict=True)
        return torch.cat([self.weight(*row, row[2].double()) for row in rows])


@dataclass(frozen=True)
class MomentMask(StepClip):
    """weight = r, or 0 for the tokens with the largest (log r)^2: as many until the mean of the others is at most
    `limit`. Zheng 2025 (2510.01161), algorithm 1.

    Only tokens that moved the way A pushes them are in that mean and can be dropped. Equal ones go together.
    """

    limit: float = number(0.04, above=0)
    name = "moment_mask"
    in_words = "leave out the tokens that moved furthest until the rest have a mean squared log r of {0.limit:g}"
    in_symbols = "[kept: mean (log r)^2 <= {0.limit:g}] r A"

    def weight(self, ratio: Tensor, advantage: Tensor, action: Tensor, counts: Tensor) -> Tensor:
        away = action & pushed_out(ratio, advantage, 1, 1)
        moment, order = (ratio[away].double().log() ** 2).sort()
        count = counts[away][order]
        mean = (count * moment).cumsum(0) / count.cumsum(0)
        last = torch.searchsorted(moment, moment, right=True) - 1
        dropped = torch.zeros_like(order, dtype=torch.bool)
        dropped[order] = mean[last] > self.limit
        return ratio.masked_scatter(away, torch.where(dropped, 0.0, ratio[away]))


@dataclass(frozen=True)
class BalancedBand(StepClip):
    """ppo_clip with edges that move by `step`, the lower from `low` to `low_most` and then the upper from `high` to
    `high_most`, until good tokens weigh `target` times as much as bad ones. Xi 2025 (2510.18927).

    What they weigh is SUM |A| r with r held by the band. The edges are ratios. A higher lower edge drops more bad
    tokens, a higher upper edge fewer good ones.
    """

    low: float = 0.6
    low_most: float = 0.9
    high: float = 1.2
    high_most: float = 3.0
    step: float = 0.05
    target: float = 1.0
    name = "balanced_band"
    in_words = "move the clip's band until what was better weighs as much as what was worse"
    in_symbols = (
        "min(r A, clip(r, c_low, c_high) A), c_low in [{0.low:g}, {0.low_most:g}], c_high in [{0.high:g}, "
        "{0.high_most:g}]"
    )

    def __post_init__(self) -> None:
        if not (0 <= self.low < self.low_most <= 1 <= self.high < self.high_most and self.step > 0 < self.target):
            raise ValueError(
                "low or another number is out of order; give 0 <= low < low_most <= 1 <= high < high_most, and a step "
                "and a target above 0, or objective.clip=ppo_clip"
            )

    def edges(self, ratio: Tensor, advantage: Tensor, counts: Tensor) -> tuple[float, float]:
        """The band of a step."""
        ratio, gain = ratio.double(), advantage.double() * counts
        better, worse = gain.clamp(min=0), -gain.clamp(max=0)

        def good(high: float) -> Tensor:
            return (ratio.clamp(max=high) * better).sum()

        def bad(low: float) -> Tensor:
            return self.target * (ratio.clamp(min=low) * worse).sum()

        low, high = self.low, self.high
        gained = good(high)
        while low < self.low_most and bool(gained < bad(low)):
            low = min(low + self.step, self.low_most)
        lost = bad(low)
        if bool(good(self.high_most) < lost):
            return low, self.high_most
        while high < self.high_most and bool(good(high) < lost):
            high = min(high + self.step, self.high_most)
        return low, high

    def weight(self, ratio: Tensor, advantage: Tensor, action: Tensor, counts: Tensor) -> Tensor:
        low, high = self.edges(torch.where(action, ratio, 1.0), torch.where(action, advantage, 0.0), counts)
        return PPOClip(1 - low, high - 1)(ratio, advantage, action, ratio)


@dataclass(frozen=True)
class GroupSoftmax(StepClip):
    """weight = (1 + n) e_i / (1 + SUM_j e_j) over the n good, or bad, completions of the group: e = r^(-1/tau) where
    A > 0, r^(1/tau) where A < 0. 2602.05630 (2026), with the completion's geometric mean as r.

    The slope of log(1 + SUM_j e_j), scaled to 1 at ratio 1: the completions that lag behind learn most.
    """

    tau: float = number(0.5, above=0)
    name = "group_softmax"
    whole_groups = True
    in_words = "weigh a completion by how far it lags behind the others of its group that were right, or wrong, too"
    in_symbols = "sg[(1 + n) e_i / (1 + SUM_j e_j)] A log pi, e = r^(-+1/{0.tau:g})"

    def over_step(self, ratio: Tensor, batch: TokenBatch) -> Tensor:
        action = batch.action
        length = action.sum(-1).clamp(min=1)
        moved = torch.where(action, ratio.double().log(), 0.0).sum(-1) / length
        advantage = torch.zeros_like(moved) if batch.advantage is None else batch.advantage.double()
        side = torch.where(action, advantage, 0.0).sum(-1).sign()
        counted = ((side != 0) & action.any(-1)).double()
        if batch.row_weight is not None:
            counted = counted * batch.row_weight
        index, count = group_index(2 * compared_apart(batch).group + (side > 0))
        pull = (-side * moved / self.tau).exp()
        size, total = (sums_by(index, count, values)[index] for values in (counted, counted * pull))
        weight = (1 + size) * pull / (1 + total)
        return weight[:, None].expand_as(ratio).to(ratio.dtype)

    def weight(self, ratio: Tensor, advantage: Tensor, action: Tensor, counts: Tensor) -> Tensor:
        pull = (-advantage.sign() * ratio.log() / self.tau).exp()
        return 2 * pull / (1 + pull)
