"""Credit for the steps and turns of a completion: process rewards inside a group, and states that completions share.

`step_reward` holds a step's score on its last token, `segment` numbers the sentences or turns of a completion and
`anchor` is equal where segments of one group start from the same state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from whet.objective.advantage import GroupMean, Memory, on_actions
from whet.objective.credit import TokenCredit, discounted_sum, paid
from whet.objective.statistics import STD_FLOOR, group_index, group_moments
from whet.types import TokenBatch


class _Steps(TokenCredit):
    sees_reward: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"step_reward"})

    @property
    def smallest_group(self) -> int:
        return 2

    def step_scores(self, batch: TokenBatch) -> Tensor:
        """[N, T], NaN where no step ends on an action or the completion is unscorable."""
        if batch.step_reward is None:
            raise ValueError("this baseline needs step_reward and the batch has none")
        counted = batch.action & ~batch.reward.isnan()[:, None]
        return torch.where(counted, batch.step_reward.to(batch.reward.dtype), float("nan"))

    def standardised(self, scores: Tensor, batch: TokenBatch) -> Tensor:
        """(r - mean) / std over all steps of the group; 0 where no step ends."""
        index, _ = group_index(batch.group)
        ends = ~scores.isnan()
        moments = group_moments(scores[ends], index[:, None].expand_as(scores)[ends])
        centred = torch.where(moments.constant, 0.0, scores[ends] - moments.mean) / (moments.std + STD_FLOOR)
        return torch.zeros_like(scores).masked_scatter(ends, centred)


@dataclass(frozen=True)
class StepSum(_Steps):
    """A_t = SUM over steps ending at or after t of (r - mean) / std, pooled over the group's steps.

    Shao 2024 (2402.03300), section 4.1.3. |A| grows with the steps that remain.
    """

    name: ClassVar[str] = "step_sum"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return discounted_sum(self.standardised(self.step_scores(batch), batch), 1.0, batch.action)

    def words(self) -> str:
        return "credit each token with the standardised scores of the steps from it on"

    def symbols(self) -> str:
        return "SUM_{steps ending at or after t} (r - mean_g(r)) / std_g(r)"


@dataclass(frozen=True)
class StepMean(_Steps):
    """As step_sum, but the mean over those steps: |A| does not grow with the steps that remain. whet's variant."""

    name: ClassVar[str] = "step_mean"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        scores = self.step_scores(batch)
        total = discounted_sum(self.standardised(scores, batch), 1.0, batch.action)
        count = discounted_sum((~scores.isnan()).to(total.dtype), 1.0, batch.action)
        return total / count.clamp(min=1)

    def words(self) -> str:
        return "credit each token with the mean standardised score of the steps from it on"

    def symbols(self) -> str:
        return "mean_{steps ending at or after t} (r - mean_g(r)) / std_g(r)"


@dataclass(frozen=True)
class StepDelta(_Steps):
    """Each step earns p_j - p_(j-1) (p_0 = 0), standardised in the group; its tokens share it. whet's variant."""

    name: ClassVar[str] = "step_delta"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        scores = self.step_scores(batch)
        ends = ~scores.isnan()
        before = torch.zeros_like(scores[:, 0])
        changes = scores.clone()
        for t in range(scores.shape[1]):
            changes[:, t] = scores[:, t] - before
            before = torch.where(ends[:, t], scores[:, t], before)
        each = self.standardised(changes, batch)
        shifted = torch.zeros_like(each)
        carried = torch.zeros_like(each[:, 0])
        for t in range(each.shape[1] - 1, -1, -1):
            carried = torch.where(ends[:, t], each[:, t], carried)
            shifted[:, t] = carried
        return torch.where(batch.action, shifted, 0.0)

    def words(self) -> str:
        return "credit the tokens of a step with how much it changed the score, standardised in the group"

    def symbols(self) -> str:
        return "(p_j - p_(j-1)) standardised in the group"


def _segment_return(batch: TokenBatch, gamma: float) -> Tensor:
    """[N, T]: what was earned from the token's segment on, discounted by segments: the same for all its tokens."""
    if batch.segment is None:
        raise ValueError("this baseline needs segment and the batch has none")
    earned = paid(batch)
    size = int(batch.segment.max()) + 1
    rows = torch.zeros(len(earned), size, dtype=earned.dtype, device=earned.device)
    inside = batch.segment.clamp(min=0)
    rows = rows.scatter_add(1, inside, torch.where(batch.action, earned, 0.0))
    for j in range(size - 2, -1, -1):
        rows[:, j] = rows[:, j] + gamma * rows[:, j + 1]
    return torch.where(batch.action, rows.gather(1, inside), 0.0)


def _centred_by(values: Tensor, key: Tensor, batch: TokenBatch) -> Tensor:
    """values less their mean over the segments of equal key, each segment counted once; 0 for a key seen once."""
    counted = batch.action & ~batch.reward.isnan()[:, None]
    segment = batch.segment
    assert segment is not None
    # the first action of a segment stands for it
    seen = torch.zeros_like(segment[:, 0]) - 1
    first = torch.zeros_like(counted)
    for t in range(segment.shape[1]):
        first[:, t] = counted[:, t] & (segment[:, t] != seen)
        seen = torch.where(first[:, t], segment[:, t], seen)
    unique, index = torch.unique(key[first], return_inverse=True)
    if not unique.numel():
        return torch.zeros_like(values)
    moments = group_moments(values[first], index)
    means = torch.zeros(len(unique), dtype=values.dtype, device=values.device).index_copy(0, index, moments.mean)
    lonely = torch.ones(len(unique), dtype=torch.bool, device=values.device).index_copy(0, index, moments.constant)
    place = torch.searchsorted(unique, key[counted]).clamp(max=len(unique) - 1)
    centred = torch.where(lonely[place], 0.0, values[counted] - means[place])
    return torch.zeros_like(values).masked_scatter(counted, centred)


@dataclass(frozen=True)
class TurnReturn(TokenCredit):
    """A_j = SUM_{k >= j} gamma^(k-j) r_k - mean over the group's turns of the same number. Singletons get 0."""

    gamma: float = 1.0
    name: ClassVar[str] = "turn_return"
    needs: ClassVar[frozenset[str]] = frozenset({"segment"})

    @property
    def smallest_group(self) -> int:
        return 2

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        returns = _segment_return(batch, self.gamma)
        assert batch.segment is not None
        index, _ = group_index(batch.group)
        key = index[:, None] * (int(batch.segment.max()) + 2) + batch.segment.clamp(min=-1) + 1
        return _centred_by(returns, key, batch)

    def words(self) -> str:
        return "compare what each turn earned from it on with the same turn of the other completions"

    def symbols(self) -> str:
        return f"SUM_{{k >= j}} {self.gamma:g}^(k-j) r_k - mean over turn j of the group"


@dataclass(frozen=True)
class AnchoredSteps(TokenCredit):
    """A = (R - mean_g R) + weight * (step return - mean over steps that start from the same state).

    Feng 2025 (2505.10978): states that several completions of a group pass through are compared step by step. A state
    seen once adds nothing. gamma discounts by steps.
    """

    weight: float = 1.0
    gamma: float = 0.95
    name: ClassVar[str] = "anchored_steps"
    needs: ClassVar[frozenset[str]] = frozenset({"segment", "anchor"})

    @property
    def smallest_group(self) -> int:
        return 2

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        if batch.anchor is None:
            raise ValueError("anchored_steps needs anchor and the batch has none")
        total = torch.where(batch.reward.isnan(), batch.reward, paid(batch).sum(-1))
        whole = total - GroupMean()(replace(batch, reward=total), memory)
        # states are compared inside a group: two prompts may number theirs alike
        _, state = torch.unique(batch.anchor, return_inverse=True)
        key = group_index(batch.group)[0][:, None] * (int(state.max()) + 1) + state
        steps = _centred_by(_segment_return(batch, self.gamma), key, batch)
        return on_actions(whole, batch) + self.weight * steps

    def words(self) -> str:
        return "compare each completion with its group, and each step with steps from the same state"

    def symbols(self) -> str:
        return f"R - mean_g(R) + {self.weight:g} (return_j - mean over the same state)"
