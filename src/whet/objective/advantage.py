"""Better than what? Baselines: the first half of a method.

A baseline gives `centred(batch, memory) -> [N, T]`, each action's reward less what it is compared with. The ones here
compare whole completions: `(batch, memory) -> [N]` is what each reward is compared with, and all tokens of a
completion share the difference. They see all scored samples of the step, before any filter.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import (
    STD_FLOOR,
    episode_mean,
    episode_weight,
    group_index,
    group_moments,
    sums_by,
)
from whet.types import TokenBatch, WhetError

Memory = Mapping[str, float]  # what a method remembers from step to step; saved with every checkpoint


class Baseline(Component):
    """What the loop asks of a baseline: A before it is scaled, what to remember, and a critic's target."""

    per_token: ClassVar[bool] = False  # True: it credits tokens one by one, from `batch.token_reward` and the reward
    sees_reward: ClassVar[bool] = True  # False: it looks at parts, outcomes or steps, not at the (shaped) reward

    @property
    def smallest_group(self) -> int:
        """The fewest completions a group needs for this baseline to say anything."""
        return 1

    @abstractmethod
    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        """A before scaling [N, T], 0 off the actions; `memory` holds earlier batches, not this one."""

    def target(self, batch: TokenBatch) -> Tensor | None:
        """What the critic should have said [N, T]; None without a critic."""
        return None

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        """The memory after this batch, called after `centred`; the mapping passed in is left unchanged."""
        return memory

    def symbols(self) -> str:
        """The difference as an expression, such as `R - mean_g(R)`."""
        return super().symbols()


class CompletionBaseline(Baseline):
    """One number a completion: A is the same for all its tokens."""

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        raise NotImplementedError

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return on_actions(batch.reward - self(batch, memory), batch)


class GroupBaseline(CompletionBaseline):
    """Compares with other completions to the same prompt."""

    @property
    def smallest_group(self) -> int:
        return 2


def function_baseline(function: Callable[[Tensor], Any]) -> type[GroupBaseline]:
    """A plain function as a component. It is called with the scored rewards of each group, [G], and returns what they
    are compared with: one number, or one for each of them."""
    summary = (inspect.getdoc(function) or "").partition("\n")[0].rstrip(".")

    class FunctionBaseline(GroupBaseline):
        name: ClassVar[str] = function.__name__

        def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
            baseline, is_scored = batch.reward.clone(), ~batch.reward.isnan()
            for group in batch.group[is_scored].unique():
                members = is_scored & (batch.group == group)
                rewards = batch.reward[members]
                returned = function(rewards)
                compared = torch.as_tensor(returned, dtype=rewards.dtype, device=rewards.device)
                if compared.shape not in ((), rewards.shape):
                    raise WhetError(
                        f"the baseline {self.name!r} returned {tuple(compared.shape)} for the rewards of a group, "
                        f"{tuple(rewards.shape)}; return one number, or one for each reward"
                    )
                baseline[members] = compared
            return baseline

        def words(self) -> str:
            return summary or f"compare each completion with what {self.name} makes of its group"

        def symbols(self) -> str:
            return f"R - {self.name}_g(R)"

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(FunctionBaseline, name, getattr(function, name))
    return FunctionBaseline


def on_actions(values: Tensor, batch: TokenBatch) -> Tensor:
    """One number per completion [N] on each of its action tokens [N, T]; 0 elsewhere."""
    return torch.where(batch.action, values[:, None], 0.0)


class GroupMean(GroupBaseline):
    """b_i = mean_{j in group(i)} R_j. Shao 2024 (2402.03300), section 4.1.1.

    The mean contains the sample itself, which shrinks the expected gradient by (G - 1) / G.
    """

    name = "group_mean"
    in_words = "compare each completion with the mean of its group"
    in_symbols = "R - mean_g(R)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        moments = group_moments(batch.reward, batch.group, episode_weight(batch))
        # the mean of equal rewards is that reward; the rounded sum would leave noise that a scale could blow up
        return torch.where(moments.constant, batch.reward, moments.mean)


@dataclass(frozen=True)
class ShiftedMean(GroupBaseline):
    """b_i = mean_{j in group(i)} R_j + shift. Arnal 2025 (2506.20520): with a shift below 0 what is better than the
    group is learned with more force than what is worse, which holds without any ratio.

    A group of equal rewards has A = -shift: what it does anyway becomes likelier.
    """

    shift: float = -0.1
    name = "shifted_mean"

    def __post_init__(self) -> None:
        if self.shift == 0:
            raise ValueError("shift is 0; give another number, or objective.baseline=group_mean")

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return GroupMean()(batch, memory) + self.shift

    def words(self) -> str:
        side = "below" if self.shift < 0 else "above"
        return f"compare each completion with {abs(self.shift):g} {side} the mean of its group"

    def symbols(self) -> str:
        return f"R - mean_g(R) {'+' if self.shift < 0 else '-'} {abs(self.shift):g}"


@dataclass(frozen=True)
class BatchRunningMean(CompletionBaseline):
    """b = bias-corrected moving average of past mean rewards. Williams 1992, section 7 (reinforcement comparison).

    Updated after use, so that no sample is part of its own baseline; 0 before the first step.
    """

    decay: float = number(0.9, least=0, below=1)
    name = "running_mean"
    in_words = "compare each completion with a running mean of past rewards"
    in_symbols = "R - ema_{0.decay:g}(R)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        mass = memory.get("running_mass", 0.0)
        mean = memory.get("running_sum", 0.0) / mass if mass else 0.0
        return torch.full_like(batch.reward, mean)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        mean = mean_reward(batch)
        if mean is None:
            return memory
        decay = self.decay
        return {
            **memory,
            "running_sum": decay * memory.get("running_sum", 0.0) + (1 - decay) * mean,
            "running_mass": decay * memory.get("running_mass", 0.0) + (1 - decay),
        }


def mean_reward(batch: TokenBatch) -> float | None:
    """The mean reward of the scored rows, each weighted by its share of its episode; None without any."""
    scored = ~batch.reward.isnan()
    if not scored.any():
        return None
    weight = episode_weight(batch)
    reward = batch.reward[scored].double()
    return float(reward.mean() if weight is None else (reward * weight[scored]).sum() / weight.sum())


def num_episodes(batch: TokenBatch) -> float:
    """The number of episodes with a scored row; branches of an episode count once."""
    weight = episode_weight(batch)
    return float((~batch.reward.isnan()).sum() if weight is None else weight.sum())


@dataclass(frozen=True)
class RunningRoleMean(CompletionBaseline):
    """b_role <- decay^n b_role + (1 - decay^n) mean R over the n episodes of the role in the step, after use; 0 at
    first. Liu 2025 (2506.24119).

    In self-play the roles of a game are worth differently, and a baseline shared by them teaches whoever is favoured
    nothing but that. The authors update it episode by episode; here no order of samples matters, and a step moves it as
    far as its n updates would.
    """

    decay: float = number(0.95, least=0, below=1)
    name = "running_role_mean"
    needs = frozenset({"role"})
    in_words = "compare each completion with a running mean of what its role earned before"
    in_symbols = "R - ema_{0.decay:g}(R of this role)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return batch.reward.new_tensor([memory.get(key, 0.0) for key in self._keys(batch)])

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        keys = self._keys(batch)
        fresh: dict[str, float] = {}
        for key in sorted(set(keys)):
            rows = batch.select([row for row, own in enumerate(keys) if own == key])
            mean = mean_reward(rows)
            if mean is not None:
                share = self.decay ** num_episodes(rows)
                fresh[key] = share * memory.get(key, 0.0) + (1 - share) * mean
        return {**memory, **fresh}

    def _keys(self, batch: TokenBatch) -> list[str]:
        role = given(batch.role, "running_role_mean needs the role of each row")
        return [f"role/{number}" for number in role.tolist()]


class LeaveOneOut(GroupBaseline):
    """b_i = mean of the other rewards of i's group. Kool 2019; Ahmadian 2024 (2402.14740), eq. 6.

    Unbiased: the sample is not in its own baseline. R - b = G/(G-1) (R - mean). The branches of an episode are compared
    with the other episodes.
    """

    name = "leave_one_out"
    in_words = "compare each completion with the mean of the others in its group"
    in_symbols = "R - mean_{{g, not i}}(R)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        moments = group_moments(batch.reward, batch.group, episode_weight(batch))
        own = episode_mean(batch.reward, batch)
        others = (moments.count * moments.mean - own) / (moments.count - 1).clamp(min=1)
        return torch.where(moments.constant, batch.reward, others)


@dataclass(frozen=True)
class MixedMean(GroupBaseline):
    """b_i = (1 - share) leave_one_out_i + share * running mean over all prompts. No canonical paper; whet's numbers.

    A group that failed as a whole is pushed down by share * running mean: keep the share small and watch the entropy.
    Before the first step there is no running mean, and the group stands alone.
    """

    share: float = number(0.2, above=0, most=1)
    decay: float = number(0.9, least=0, below=1)
    name = "mixed_mean"
    in_words = "compare each completion with the others in its group and, {0.share:g} of it, with past steps"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        group = LeaveOneOut()(batch, memory)
        if not memory.get("running_mass", 0.0):
            return group
        return (1 - self.share) * group + self.share * BatchRunningMean(self.decay)(batch, memory)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        return BatchRunningMean(self.decay).remembered(batch, memory)

    def symbols(self) -> str:
        return f"R - {1 - self.share:g} mean_{{g, not i}}(R) - {self.share:g} ema_{self.decay:g}(R)"


class LengthWeightedMean(GroupBaseline):
    """b_g = SUM_j n_j R_j / SUM_j n_j. Hao 2025 (2505.23585): variance-optimal if grad-norm^2 grows with length.

    The advantages of a group no longer sum to 0.
    """

    name = "length_weighted_mean"
    in_words = "compare each completion with the mean of its group, weighted by length"
    in_symbols = "R - SUM_g(n R) / SUM_g(n)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        index, count = group_index(batch.group)
        scored = ~batch.reward.isnan()
        length = torch.where(scored, batch.lengths.to(batch.reward.dtype), 0.0)
        weight = episode_weight(batch)
        if weight is not None:
            length = length * weight.to(length.dtype)
        earned = sums_by(index, count, length * torch.where(scored, batch.reward, 0.0))
        moments = group_moments(batch.reward, batch.group, weight)
        total = sums_by(index, count, length)
        mean = (earned / torch.where(total > 0, total, 1.0))[index]
        return torch.where(moments.constant, batch.reward, mean)


class Greedy(CompletionBaseline):
    """b_i = R(greedy completion to the same prompt). Li 2023 (2310.10505), eq. 6.

    Unbiased: the greedy completion does not depend on the sample. One extra completion per prompt, of the same policy
    version and length budget. No KL is taken off the greedy reward. An unscorable greedy completion leaves its prompt
    out.
    """

    name = "greedy"
    needs = frozenset({"greedy_reward"})
    in_words = "compare each completion with the greedy completion to the same prompt"
    in_symbols = "R - R(greedy)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        greedy = given(batch.greedy_reward, "the greedy baseline needs greedy_reward")
        return torch.where(greedy.isnan(), batch.reward, greedy)


class DrawnMean(GroupBaseline):
    """b = mean of every reward drawn for the prompt, trained on or not. RLHFlow 2025 (2510.04996).

    A group drawn until it holds both outcomes has a biased mean of its own; the pool of all draws is the honest one.
    """

    name = "drawn_mean"
    needs = frozenset({"drawn"})
    in_words = "compare each completion with the mean of all completions drawn for its prompt"
    in_symbols = "R - mean_drawn(R)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        drawn = given(batch.drawn, "drawn_mean needs the moments of all rewards drawn")
        return torch.where(drawn[:, 0] > 1, drawn[:, 1], batch.reward)


@dataclass(frozen=True)
class PromptTracker(CompletionBaseline):
    """b = a / (a + b) of a Beta tracker a prompt keeps from visit to visit. Xu 2025 (2509.13232), single-stream.

    After use: a <- keep a + SUM R, b <- keep b + SUM (1 - R). Rewards must be in [0, 1]; works with one completion a
    prompt. The paper lets `keep` fall with the policy's KL since the last visit; here it is one number. The roles of a
    prompt have trackers of their own.
    """

    keep: float = number(0.9, above=0, most=1)
    name = "prompt_tracker"
    needs = frozenset({"prompt"})
    in_words = "compare each completion with what its prompt earned on earlier visits"
    in_symbols = "R - tracked(R of this prompt)"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        known = [self._counts(key, memory) for key in self._keys(batch)]
        return batch.reward.new_tensor([won / (won + lost) for won, lost in known])

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        known = batch.reward[~batch.reward.isnan()]
        if ((known < 0) | (known > 1)).any():
            raise WhetError("objective.baseline=prompt_tracker counts successes: give a reward within 0 to 1")
        fresh: dict[str, tuple[float, float]] = {}
        weight = episode_weight(batch)
        weights = [1.0] * len(batch.reward) if weight is None else weight.tolist()
        for key, reward, counts in zip(self._keys(batch), batch.reward.tolist(), weights, strict=True):
            if reward == reward:  # NaN is unscorable
                won, lost = fresh.get(key) or tuple(self.keep * count for count in self._counts(key, memory))
                fresh[key] = (won + counts * reward, lost + counts * (1 - reward))
        noted = {
            f"{key}/{side}": number for key, pair in fresh.items() for side, number in zip("wl", pair, strict=True)
        }
        return {**memory, **noted}

    def _keys(self, batch: TokenBatch) -> list[str]:
        if batch.prompt is None:
            raise ValueError("prompt_tracker needs the prompt's number and the batch has none")
        keys = [f"prompt/{number}" for number in batch.prompt.tolist()]
        if batch.role is None:
            return keys
        return [f"{key}/role/{role}" for key, role in zip(keys, batch.role.tolist(), strict=True)]

    def _counts(self, key: str, memory: Memory) -> tuple[float, float]:
        return memory.get(f"{key}/w", 0.5), memory.get(f"{key}/l", 0.5)


@dataclass(frozen=True)
class PromptValue(CompletionBaseline):
    """b = beta log mean_j exp(R_j / beta), R_j of completions that the reference wrote. Brantley 2025 (2505.20686).

    V*(x), what the best policy is worth that pays beta times its KL to the reference: the reference's mean reward for a
    large beta, its best for a small one. Known before the run, so one completion a prompt is enough.
    """

    beta: float = number(0.5, above=0)
    name = "prompt_value"
    needs = frozenset({"reference_rewards"})
    in_words = "compare each completion with the best that can be had near the reference, from its own rewards"
    in_symbols = "R - V,  V = {0.beta:g} log mean_ref exp(R/{0.beta:g})"

    def __call__(self, batch: TokenBatch, memory: Memory) -> Tensor:
        if batch.reference_rewards is None:
            raise ValueError("prompt_value needs reference_rewards and the batch has none")
        rewards = batch.reference_rewards.to(batch.reward.dtype)
        known = ~rewards.isnan()
        best = torch.where(known, rewards, -torch.inf).amax(-1)
        raised = torch.where(known, ((rewards - best[:, None]) / self.beta).exp(), 0.0)
        return best + self.beta * (raised.sum(-1) / known.sum(-1)).log()


class PartwiseGroup(GroupBaseline):
    """A = SUM_k w_k (r_k - mean_g r_k) / (std_g r_k + 1e-6), part by part. Liu 2026 (2601.05242).

    A part with a small spread counts as much as one with a large; a nearly constant one is amplified. Needs two parts.
    """

    name = "partwise_group"
    sees_reward = False
    needs = frozenset({"parts"})
    in_words = "compare each part of the reward with its own mean and spread in the group, then add the parts"
    in_symbols = "SUM_k w_k (R_k - mean_g(R_k)) / std_g(R_k)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        if batch.parts is None or batch.part_weight is None:
            raise ValueError("partwise_group needs the reward's parts and the batch has none")
        total = torch.zeros_like(batch.reward)
        for values, weight in zip(batch.parts.T, batch.part_weight.T, strict=True):
            part = torch.where(batch.reward.isnan(), float("nan"), values.to(batch.reward.dtype))
            moments = group_moments(part, batch.group, episode_weight(batch))
            centre = torch.where(moments.constant, part, moments.mean)
            total = total + weight * (part - centre) / (moments.std + 1e-6)
        return on_actions(total, batch)


class GroupLabels(GroupBaseline):
    """A = G / (1 + n_good) where R is above the group's mean, -G / (1 + n_bad) elsewhere; 0 where the group agrees.

    2602.05630 (2026): how good does not count, and each side's pull shrinks with its number.
    """

    name = "group_labels"
    in_words = "label each completion of a group as good or bad by the group's mean"
    in_symbols = "G/(1 + n_good) if R > mean_g(R) else -G/(1 + n_bad)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        index, count = group_index(batch.group)
        weight = episode_weight(batch)
        moments = group_moments(batch.reward, batch.group, weight)
        good = batch.reward > moments.mean
        counts = (~batch.reward.isnan()).to(moments.count.dtype) if weight is None else weight.to(moments.count.dtype)
        right, wrong = (sums_by(index, count, counts * side)[index] for side in (good, ~good))
        label = torch.where(good, 1 / (1 + right), -1 / (1 + wrong)) * moments.count
        return on_actions(torch.where(moments.constant | batch.reward.isnan(), 0.0, label), batch)


class RevisitedGroup(GroupBaseline):
    """A = the smaller in size of (1 - 1/i) z + z_all / i and z / i + (1 - 1/i) z_all, at the i-th visit of the prompt.

    Yang 2025 (2509.02333), eq. 9 to 11. z standardises a reward by its group, z_all by all groups of the prompt so far,
    this one included; each visit counts the same. A group that agrees still learns from what the prompt earned before.
    The roles of a prompt are remembered apart.
    """

    name = "revisited_group"
    needs = frozenset({"prompt"})
    in_words = "compare each completion with its group and with all that its prompt earned before, in their spreads"
    in_symbols = "smooth((R - mean_g(R)) / std_g(R), (R - mean_seen(R)) / std_seen(R))"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        moments = group_moments(batch.reward, batch.group, episode_weight(batch))
        own = torch.where(moments.constant, 0.0, batch.reward - moments.mean) / (moments.std + STD_FLOOR)
        pairs = zip(_visit_keys(batch), moments.mean.tolist(), moments.std.tolist(), strict=True)
        past = [_visited(memory, key, mean, std) for key, mean, std in pairs]
        visits, mean, std = (batch.reward.new_tensor(numbers) for numbers in zip(*past, strict=True))
        # a spread within float noise is none
        every = torch.where(std > STD_FLOOR, (batch.reward - mean) / (std + STD_FLOOR), 0.0)
        every = torch.where(visits == 1, own, every)
        one, two = ((1 - 1 / visits) * a + b / visits for a, b in ((own, every), (every, own)))
        return on_actions(torch.where(one.abs() < two.abs(), one, two), batch)

    def remembered(self, batch: TokenBatch, memory: Memory) -> Memory:
        moments = group_moments(batch.reward, batch.group, episode_weight(batch))
        rows = zip(_visit_keys(batch), batch.group.tolist(), range(len(batch.group)), strict=True)
        groups = {(key, group): row for key, group, row in rows if moments.count[row] > 0}
        fresh = dict(memory)
        for (key, _), row in sorted(groups.items()):
            visited = _visited(fresh, key, float(moments.mean[row]), float(moments.std[row]))
            fresh |= {f"{key}/{part}": number for part, number in zip(("visits", "mean", "std"), visited, strict=True)}
        return fresh


def _visit_keys(batch: TokenBatch) -> list[str]:
    if batch.prompt is None:
        raise ValueError("revisited_group needs the prompt's number and the batch has none")
    roles = [0] * len(batch.group) if batch.role is None else batch.role.tolist()
    return [f"visited/{number}/role/{role}" for number, role in zip(batch.prompt.tolist(), roles, strict=True)]


def _visited(memory: Memory, key: str, mean: float, std: float) -> tuple[float, float, float]:
    """Visits, mean and std of all rewards of a prompt, with those of a new group in it."""
    before = memory.get(f"{key}/visits", 0.0)
    if not before:
        return 1.0, mean, std
    visits, past = before + 1, memory[f"{key}/mean"]
    between = before / visits * (mean - past) ** 2
    variance = (before * memory[f"{key}/std"] ** 2 + std**2 + between) / visits
    return visits, (before * past + mean) / visits, variance**0.5
