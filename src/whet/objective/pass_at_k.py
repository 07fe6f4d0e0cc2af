"""Baselines for the chance that one of k completions is right. Three estimators with three meanings, each under its
name; and one of exponentially tilted rewards, for when only the best counts.

n scored completions of a group, c of them right. Right means: the reward's first part is 1 (or the reward itself, where
the batch has no parts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, sqrt

from whet.objective.advantage import GroupBaseline, Memory, on_actions
from whet.objective.component import number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import episode_index, episode_mean, episode_weight, group_index, group_moments, sums_by
from whet.types import TokenBatch, WhetError


def right_completions(batch: TokenBatch) -> Tensor:
    """float [N]: 1 right, 0 wrong, NaN unscorable. The branches of an episode must agree: it is one attempt."""
    score = batch.reward if batch.parts is None else batch.parts[:, 0].to(batch.reward.dtype)
    score = torch.where(batch.reward.isnan(), float("nan"), score)
    scored = score[~score.isnan()]
    if not ((scored == 0) | (scored == 1)).all():
        raise WhetError("pass@k is defined for completions that are right or wrong; use a first reward of 0 or 1")
    if ((episode_mean(score, batch) - score).abs() > 0.01).any():  # an unscorable branch is compared with nothing
        raise WhetError("pass@k counts whole episodes; give the branches of an episode the same first reward")
    return score


@dataclass(frozen=True)
class _RightAmongK(GroupBaseline):
    """Looks at how many completions of a group are right, k at a time."""

    k: float = 4
    sees_reward = False

    def __post_init__(self) -> None:
        if self.k < 1 or self.k != int(self.k):
            raise ValueError(f"k is {self.k:g}; give a whole number from 1")

    @property
    def smallest_group(self) -> int:
        return max(2, int(self.k))

    def members(self, outcomes: Sequence[float]) -> list[float]:
        """The advantage of each scored completion of one group, from its 0s and 1s."""
        raise NotImplementedError

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return _among_episodes(right_completions(batch), batch, self.members, self.smallest_group)


def _among_episodes(
    values: Tensor, batch: TokenBatch, members: Callable[[Sequence[float]], list[float]], least: int
) -> Tensor:
    """The advantages that `members` finds from the value of each scored episode of a group; 0 in groups of fewer."""
    episodes, known = episode_index(batch)[0].tolist(), values.tolist()
    groups: dict[int, dict[int, float]] = {}
    for group, episode, value in zip(batch.group.tolist(), episodes, known, strict=True):
        if value == value:  # not NaN
            groups.setdefault(group, {}).setdefault(episode, value)
    worth: dict[int, float] = {}
    for group in groups.values():
        if len(group) >= least:
            worth.update(zip(group, members([*group.values()]), strict=True))
    advantage = [worth.get(episode, 0.0) * (value == value) for episode, value in zip(episodes, known, strict=True)]
    return on_actions(values.new_tensor(advantage), batch)


class PassAtK(_RightAmongK):
    """rho = 1 - C(n-c,k)/C(n,k), sd = sqrt(rho (1 - rho)). Chen 2025 (2508.10751), the analytic form.

    Right: (1 - rho) / sd. Wrong: (1 - rho - C(n-c-1,k-1)/C(n-1,k-1)) / sd. All 0 where sd = 0; they sum to 0.
    """

    name = "pass_at_k"
    in_words = "compare the chance that one of {0.k:g} completions is right with and without this one"
    in_symbols = "(pass@{0.k:g} given this completion - pass@{0.k:g}) / sd"

    def members(self, outcomes: Sequence[float]) -> list[float]:
        n, k = len(outcomes), int(self.k)
        wrong = n - int(sum(outcomes))
        failure = comb(wrong, k) / comb(n, k)
        spread = sqrt(failure * (1 - failure))
        if spread == 0:
            return [0.0] * n
        beside = comb(wrong - 1, k - 1) / comb(n - 1, k - 1) if wrong else 0.0
        return [(failure if right else failure - beside) / spread for right in outcomes]


class PassAtKMarginal(_RightAmongK):
    """s = C(n-c,k-1)/C(n-1,k-1) for a right completion, 0 for a wrong one; A = s - mean of the others.

    What a right completion adds to the chance of k - 1 others: after Walder 2025 (2505.15201), as a code base has it.
    Biased for k > 1: the scores of the others depend on this completion.
    """

    name = "pass_at_k_marginal"
    in_words = "credit a right completion with what it adds to {0.k:g} - 1 others, less the mean of the others"
    in_symbols = "s - mean_{{g, not i}}(s), s = what the completion adds to pass@{0.k:g}"

    def members(self, outcomes: Sequence[float]) -> list[float]:
        n, k = len(outcomes), int(self.k)
        wrong = n - int(sum(outcomes))
        added = [comb(wrong, k - 1) / comb(n - 1, k - 1) if right else 0.0 for right in outcomes]
        total = sum(added)
        return [own - (total - own) / (n - 1) for own in added]


class BestMinusSecond(GroupBaseline):
    """Only the best completion of a group learns, with R_best - R_second. Tang 2025 (2503.19595).

    Two right completions leave no gradient at all.
    """

    name = "best_minus_second"
    in_words = "only the best completion of a group learns, by how much it beats the second"
    in_symbols = "[best of the group] (R - R_second)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        scored = torch.where(batch.reward.isnan(), float("nan"), episode_mean(batch.reward, batch))
        return _among_episodes(scored, batch, _lead, 2)


def _lead(rewards: Sequence[float]) -> list[float]:
    best = max(range(len(rewards)), key=rewards.__getitem__)
    second = max(reward for index, reward in enumerate(rewards) if index != best)
    return [rewards[best] - second if index == best else 0.0 for index in range(len(rewards))]


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
    name = "entropic_group"
    in_words = "weigh each completion by exp(beta R) against the others of its group: the best count most"
    in_symbols = "e^(beta R) / mean_{{g, not i}}(e^(beta R)) - 1, KL(softmax(beta R), uniform) = {0.nats:.3g}"

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
