"""Credit for the steps and turns of a completion: process rewards inside a group, and states that completions share.

`step_reward` holds the score of a step, or the reward of a turn, on its last token; `segment` numbers the turns of a
trajectory (of a single completion: its sentences) and `anchor` is equal where segments of one group start from the same
state, which an environment may name. Trajectories of a group have different numbers of turns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from whet.objective.advantage import GroupMean, Memory, on_actions
from whet.objective.component import given, number
from whet.objective.credit import TokenCredit, discounted_sum, paid
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import (
    STD_FLOOR,
    GroupMoments,
    episode_index,
    episode_weight,
    group_index,
    group_moments,
    sums_by,
)
from whet.types import TokenBatch


class _Steps(TokenCredit):
    """Scores of steps, standardised over all steps of the group."""

    sees_reward = False
    needs = frozenset({"step_reward"})

    @property
    def smallest_group(self) -> int:
        return 2

    def step_scores(self, batch: TokenBatch) -> Tensor:
        """[N, T], NaN where no step ends on an action or the completion is unscorable."""
        reward = given(batch.step_reward, "this baseline needs step_reward")
        counted = batch.action & ~batch.reward.isnan()[:, None]
        return torch.where(counted, reward.to(batch.reward.dtype), float("nan"))

    def standardised(self, scores: Tensor, batch: TokenBatch) -> Tensor:
        """(r - mean) / std over all steps of the group; 0 where no step ends."""
        index, _ = group_index(batch.group)
        ends = ~scores.isnan()
        weight = _on_tokens(episode_weight(batch), ends)
        moments = group_moments(scores[ends], index[:, None].expand_as(scores)[ends], weight)
        centred = torch.where(moments.constant, 0.0, scores[ends] - moments.mean) / (moments.std + STD_FLOOR)
        return torch.zeros_like(scores).masked_scatter(ends, centred)


def _on_tokens(weight: Tensor | None, chosen: Tensor) -> Tensor | None:
    return None if weight is None else weight[:, None].expand_as(chosen)[chosen]


class StepSum(_Steps):
    """A_t = SUM over steps ending at or after t of (r - mean) / std, pooled over the group's steps.

    Shao 2024 (2402.03300), section 4.1.3. |A| grows with the steps that remain.
    """

    name = "step_sum"
    in_words = "credit each token with the standardised scores of the steps from it on"
    in_symbols = "SUM_{{steps ending at or after t}} (r - mean_g(r)) / std_g(r)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return discounted_sum(self.standardised(self.step_scores(batch), batch), 1.0, batch.action)


class StepMean(_Steps):
    """As step_sum, but the mean over those steps: |A| does not grow with the steps that remain. whet's variant."""

    name = "step_mean"
    in_words = "credit each token with the mean standardised score of the steps from it on"
    in_symbols = "mean_{{steps ending at or after t}} (r - mean_g(r)) / std_g(r)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        scores = self.step_scores(batch)
        total = discounted_sum(self.standardised(scores, batch), 1.0, batch.action)
        count = discounted_sum((~scores.isnan()).to(total.dtype), 1.0, batch.action)
        return total / count.clamp(min=1)


class StepDelta(_Steps):
    """Each step earns p_j - p_(j-1) (p_0 = 0), standardised in the group; its tokens share it. whet's variant."""

    name = "step_delta"
    in_words = "credit the tokens of a step with how much it changed the score, standardised in the group"
    in_symbols = "(p_j - p_(j-1)) standardised in the group"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        scores = self.step_scores(batch)
        ends = ~scores.isnan()
        before = torch.zeros_like(scores[:, 0])
        changes = scores.clone()
        for t in range(scores.shape[1]):
            changes[:, t] = scores[:, t] - before
            before = torch.where(ends[:, t], scores[:, t], before)
        credit = self.standardised(changes, batch)
        shifted = torch.zeros_like(credit)
        carried = torch.zeros_like(credit[:, 0])
        for t in range(credit.shape[1] - 1, -1, -1):
            carried = torch.where(ends[:, t], credit[:, t], carried)
            shifted[:, t] = carried
        return torch.where(batch.action, shifted, 0.0)


def _turn_rewards(batch: TokenBatch) -> tuple[Tensor, Tensor]:
    """[N, J]: what each turn earned; and [N], the number of the last turn, -1 without any."""
    segment, earned = given(batch.segment, "this baseline needs segment"), paid(batch)
    inside = torch.where(batch.action, segment, 0)
    rows = torch.zeros(len(earned), int(inside.max()) + 1, dtype=earned.dtype, device=earned.device)
    rows = rows.scatter_add(1, inside, torch.where(batch.action, earned, 0.0))
    return rows, torch.where(batch.action, segment, -1).amax(-1)


def _returns(rewards: Tensor, gamma: float) -> Tensor:
    """[N, J]: SUM_{k >= j} gamma^(k-j) of the turns."""
    returns = rewards.clone()
    for j in range(rewards.shape[1] - 2, -1, -1):
        returns[:, j] = returns[:, j] + gamma * returns[:, j + 1]
    return returns


def _on_turns(values: Tensor, batch: TokenBatch) -> Tensor:
    """A number per turn [N, J] on each of its actions: [N, T]."""
    assert batch.segment is not None
    inside = torch.where(batch.action, batch.segment, 0)
    return torch.where(batch.action, values.gather(1, inside), 0.0)


def _segment_return(batch: TokenBatch, gamma: float) -> Tensor:
    """[N, T]: what was earned from the token's segment on, discounted by segments: the same for all its tokens."""
    return _on_turns(_returns(_turn_rewards(batch)[0], gamma), batch)


def _turn_moments(values: Tensor, batch: TokenBatch, weight: Tensor | None) -> GroupMoments:
    """The moments of each column within each group, NaN entries left out; every field is [N, J]."""
    column = torch.arange(values.shape[1], device=values.device)
    key = group_index(batch.group)[0][:, None] * values.shape[1] + column
    counts = None if weight is None else weight[:, None].expand_as(values).flatten()
    moments = group_moments(values.flatten(), key.flatten(), counts)
    return GroupMoments(*(getattr(moments, name).view_as(values) for name in ("count", "mean", "std", "constant")))


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
    moments = group_moments(values[first], index, _on_tokens(episode_weight(batch), first))
    means = torch.zeros(len(unique), dtype=values.dtype, device=values.device).index_copy(0, index, moments.mean)
    lonely = torch.ones(len(unique), dtype=torch.bool, device=values.device).index_copy(0, index, moments.constant)
    position = torch.searchsorted(unique, key[counted]).clamp(max=len(unique) - 1)
    centred = torch.where(lonely[position], 0.0, values[counted] - means[position])
    return torch.zeros_like(values).masked_scatter(counted, centred)


class _TurnCredit(TokenCredit):
    """Turns of the trajectories of a group are compared; gamma discounts by turns."""

    gamma: float
    needs = frozenset({"segment"})

    @property
    def smallest_group(self) -> int:
        return 2


@dataclass(frozen=True)
class TurnReturn(_TurnCredit):
    """A_j = G_j - mean of the other trajectories' G_j, G_j = SUM_{k >= j} gamma^(k-j) r_k. Unbiased, gamma 1.

    A trajectory that ended before turn j stands in with the return of its last turn. So every trajectory has a say in
    every turn's baseline, nothing in the baseline depends on when the trajectory at hand stops, and where only the
    end is rewarded this is leave_one_out, whatever the numbers of turns. See docs/bias.md.
    """

    gamma: float = number(1.0, least=0, most=1)
    name = "turn_return"
    in_words = (
        "compare what each turn earned from it on with the other trajectories from that turn on, or from their last"
    )
    in_symbols = "G_j - mean_{{g, not i}}(G_j), G_j = SUM_{{k >= j}} {0.gamma:g}^(k-j) r_k"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        rewards, last = _turn_rewards(batch)
        returns = _returns(rewards, self.gamma)
        column = torch.arange(returns.shape[1], device=returns.device)
        reached = torch.minimum(column[None], last.clamp(min=0)[:, None])
        counted = (~batch.reward.isnan() & (last >= 0))[:, None]
        standing = torch.where(counted, returns.gather(1, reached), float("nan"))
        weight = episode_weight(batch, counted[:, 0])
        moments = _turn_moments(standing, batch, weight)
        own = torch.where(counted, standing, 0.0)
        if weight is not None:
            index, count = episode_index(batch)
            own = torch.stack([sums_by(index, count, turn * weight)[index] for turn in own.T], dim=1)
        others = (moments.count * moments.mean - own) / (moments.count - 1).clamp(min=1)
        return _on_turns(torch.where(moments.constant | ~counted, 0.0, returns - others), batch)


@dataclass(frozen=True)
class TurnIndexRewards(_TurnCredit):
    """A_j = SUM_{k >= j} gamma^(k-j) (r_k - mean of r_k over the trajectories that reached turn k). BIASED.

    Normalising by turn index, as after Wei 2025 (2505.11821) and in verl#7244. A trajectory subtracts as many means as
    it has turns, and the policy decides how many: each further turn costs what such a turn earns on average, whatever
    it earns at the end. Here to be compared with turn_return, which is unbiased. See docs/bias.md.
    """

    gamma: float = number(1.0, least=0, most=1)
    name = "turn_index_rewards"
    in_words = (
        "compare each turn's reward with the same turn of the others, then add up the turns from it on (biased: "
        "every further turn costs what such turns earn on average)"
    )
    in_symbols = "SUM_{{k >= j}} {0.gamma:g}^(k-j) (r_k - mean_g(r_k of turn k))"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        rewards, last = _turn_rewards(batch)
        column = torch.arange(rewards.shape[1], device=rewards.device)
        there = (column[None] <= last[:, None]) & ~batch.reward.isnan()[:, None]
        moments = _turn_moments(torch.where(there, rewards, float("nan")), batch, episode_weight(batch))
        centred = torch.where(moments.constant | ~there, 0.0, rewards - moments.mean)
        return _on_turns(_returns(centred, self.gamma), batch)


@dataclass(frozen=True)
class AnchoredSteps(_TurnCredit):
    """A = (R - mean_g R) + weight * (step return - mean over steps that start from the same state).

    Feng 2025 (2505.10978): states that several trajectories of a group pass through are compared step by step. A state
    seen once adds nothing. gamma discounts by steps. An environment may name its states; else a state is the text
    before the step.
    """

    weight: float = 1.0
    gamma: float = number(0.95, least=0, most=1)
    name = "anchored_steps"
    needs = frozenset({"segment", "anchor"})
    in_words = "compare each completion with its group, and each step with steps from the same state"
    in_symbols = "R - mean_g(R) + {0.weight:g} (return_j - mean over the same state)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        anchor = given(batch.anchor, "anchored_steps needs anchor")
        total = torch.where(batch.reward.isnan(), batch.reward, paid(batch).sum(-1))
        whole = total - GroupMean()(replace(batch, reward=total), memory)
        # states are compared inside a group: two prompts may number theirs alike
        _, state = torch.unique(anchor, return_inverse=True)
        key = group_index(batch.group)[0][:, None] * (int(state.max()) + 1) + state
        steps = _centred_by(_segment_return(batch, self.gamma), key, batch)
        return on_actions(whole, batch) + self.weight * steps
