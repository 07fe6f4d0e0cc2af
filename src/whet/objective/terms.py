"""Terms beside the policy's: the entropy bonus, the critic's error, imitation of right completions, of what an
environment wrote or of demonstrations, top-k smoothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from whet.objective.advantage import Memory
from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor, torch
from whet.types import Extras, TokenBatch, Totals


class Entropy(Component):
    """The coefficient of the policy's entropy in J, and how it moves from step to step."""

    def coefficient(self, memory: Memory) -> float:
        """What H is multiplied by in this step; 0 for no entropy term."""
        return 0.0

    def adjusted(self, memory: Memory, metrics: Mapping[str, float]) -> Memory:
        """The memory after a step, given that step's metrics."""
        return memory

    def symbols(self) -> str:
        """The term with its sign, such as ` + 0.01 H`; empty for none."""
        return super().symbols()


class NoBonus(Entropy):
    """J has no entropy term."""

    name = "none"
    in_symbols = ""


@dataclass(frozen=True)
class Bonus(Entropy):
    """J += weight * H(pi) at each action, with the policy's shares. Schulman 2017 (1707.06347), eq. 9."""

    weight: float = number(0.01, above=0, instead="objective.entropy=none")
    name = "bonus"
    needs = frozenset({"entropy_gradient"})
    in_words = "reward the policy's entropy with {0.weight:g}"
    in_symbols = " + {0.weight:g} H"

    def coefficient(self, memory: Memory) -> float:
        return self.weight


@dataclass(frozen=True)
class BonusToTarget(Entropy):
    """J += c H while H <= target; after a step c moves by `step`, up if H <= target, else down, within [0, most].

    The controller of Skywork-OR1 (2505.22312) as whet reads it; its constants depend on the model.
    """

    target: float = number(0.2, above=0)
    step: float = number(0.005, above=0)
    most: float = number(0.1, above=0)
    name = "bonus_to_target"
    needs = frozenset({"entropy_gradient"})
    in_words = "hold the policy's entropy at {0.target:g} nats or more by a bonus that is turned up as needed"
    in_symbols = " + c H"

    def coefficient(self, memory: Memory) -> float:
        return memory.get("entropy_weight", 0.0) if memory.get("entropy_low", 0.0) else 0.0

    def adjusted(self, memory: Memory, metrics: Mapping[str, float]) -> Memory:
        low = metrics["entropy"] <= self.target
        now = memory.get("entropy_weight", 0.0) + (self.step if low else -self.step)
        return {**memory, "entropy_weight": min(max(now, 0.0), self.most), "entropy_low": float(low)}


class Value(Component):
    """The critic's loss at each action: `coefficient` times the error. For `warmup` steps only the critic learns."""

    coefficient: float = 0.0
    warmup: float = 0.0

    def error(self, value: Tensor, batch: TokenBatch) -> Tensor:
        """[N, T], for each action."""
        return torch.zeros_like(value)


class NoCritic(Value):
    """Train no critic."""

    name = "none"


@dataclass(frozen=True)
class SquaredError(Value):
    """coefficient * (V - target)^2 / 2, the mean over the step's actions. Schulman 2017 (1707.06347), eq. 9.

    For the first `warmup` steps only the critic learns.
    """

    coefficient: float = number(0.1, above=0)
    warmup: float = number(0.0, least=0)
    name = "squared_error"
    needs = frozenset({"value"})

    def error(self, value: Tensor, batch: TokenBatch) -> Tensor:
        if batch.target is None:
            raise ValueError("the critic's error needs a target: call Objective.advantage with a baseline of a critic")
        return 0.5 * (value - batch.target.to(value.dtype)) ** 2

    def words(self) -> str:
        first = f"; alone for the first {self.warmup:g} steps" if self.warmup else ""
        return f"train the critic on its squared error, times {self.coefficient:g}{first}"


@dataclass(frozen=True)
class ClippedError(SquaredError):
    """max((V - T)^2, (clip(V, V_old - width, V_old + width) - T)^2) / 2. Folklore: not in a paper."""

    width: float = number(0.2, above=0)
    name = "clipped_error"

    def error(self, value: Tensor, batch: TokenBatch) -> Tensor:
        if batch.value is None or batch.target is None:
            raise ValueError("the clipped error needs the critic's value before the update and its target")
        before, target = batch.value.to(value.dtype), batch.target.to(value.dtype)
        held = torch.clamp(value, before - self.width, before + self.width)
        return 0.5 * torch.maximum((value - target) ** 2, (held - target) ** 2)

    def words(self) -> str:
        return super().words() + f", held within {self.width:g} of what it said before"


class Imitate(Component):
    """How much the loss imitates tokens, in addition to the policy's own term."""

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor | None:
        """What is added to share * weight * A in front of logp: [N, T], 0 where it is not asked; None for nothing."""
        return None

    @property
    def rest(self) -> float:
        """What all other terms of the policy's loss are multiplied by."""
        return 1.0

    def doubt(self, logp: Tensor) -> Tensor | None:
        """A factor for each token by the policy's own log-probability of it, without gradient: [N, T]; None for 1."""
        return None

    def tuned(self, memory: Memory) -> Imitate:
        """The component with the numbers of this step."""
        return self

    def adjusted(self, memory: Memory) -> Memory:
        """What to remember after a step."""
        return memory

    def symbols(self) -> str:
        """The term with its sign, outside the sum over tokens; empty for none."""
        return super().symbols()


class NoImitation(Imitate):
    """Imitate nothing."""

    name = "none"
    in_symbols = ""


@dataclass(frozen=True)
class ImitateRight(Imitate):
    """J += weight / M_right SUM_{right completions} SUM_t log pi, M_right their tokens in the whole step.

    Yue 2025 (2504.05118), the positive-example loss. Right means that the reward's first part is 1.
    """

    weight: float = number(0.1, above=0, instead="objective.imitate=none")
    name = "right_completions"
    needs = frozenset({"parts"})
    in_words = "imitate right completions with {0.weight:g}"
    in_symbols = " + {0.weight:g}/M_right SUM_right log pi"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor | None:
        correct = given(batch.correct, "imitation of right completions needs the reward's parts")
        return (batch.action & correct[:, None]).double() * (self.weight / max(totals.correct_tokens, 1))


@dataclass(frozen=True)
class ImitateObserved(Imitate):
    """J += weight / M_observed SUM log pi over what environments wrote, M_observed their tokens in the whole step.

    arXiv 2605.24517: tool output that the policy reads anyway teaches it what its calls do. The gradient looks at
    no reward. Tokens of an unscorable sample are left out: its environment failed.
    """

    weight: float = number(0.05, above=0, instead="objective.imitate=none")
    name = "observed"
    needs = frozenset({"observed"})
    in_words = "imitate what the environment wrote with {0.weight:g}"
    in_symbols = " + {0.weight:g}/M_observed SUM_observed log pi"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor | None:
        observed = given(batch.observed, "imitation of what an environment wrote needs `observed`")
        per_token = self.weight / max(totals.observed_tokens, 1)
        return (observed & ~batch.reward.isnan()[:, None]).double() * per_token


@dataclass(frozen=True)
class ImitateDemonstrations(Imitate):
    """J = (1 - mu) J_rest + mu / M_shown SUM log pi over demonstrations, M_shown their tokens in the whole step.

    Zhang 2025 (2508.11408). mu is `weight`: reached after `warmup` steps in a straight line, and left for
    `last` over `decay` further ones along a cosine; with decay 0 it stays.
    """

    weight: float = number(0.1, above=0, below=1, instead="objective.imitate=none")
    last: float = number(0.05, above=0, below=1, instead="objective.imitate=none")
    warmup: float = number(0, least=0)
    decay: float = number(0, least=0)
    name = "demonstrations"
    needs = frozenset({"demonstrated"})
    in_symbols = " + {0.weight:g}/M_shown SUM_shown log pi"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor | None:
        demonstrated = given(batch.demonstrated, "imitation of demonstrations needs `demonstrated`")
        return demonstrated.double() * (self.weight / max(totals.demonstrated_tokens, 1))

    @property
    def rest(self) -> float:
        """The share of the loss that is left for the policy's own completions."""
        return 1.0 - self.weight

    def tuned(self, memory: Memory) -> Imitate:
        return replace(self, weight=self._mu(memory.get("imitated_steps", 0.0) + 1), warmup=0, decay=0)

    def adjusted(self, memory: Memory) -> Memory:
        if not (self.warmup or self.decay):
            return memory
        return {**memory, "imitated_steps": memory.get("imitated_steps", 0.0) + 1}

    def _mu(self, step: float) -> float:
        """The weight mu of a step, counted from 1."""
        if step <= self.warmup:
            return self.weight * step / self.warmup
        if not self.decay:
            return self.weight
        done = min((step - self.warmup) / self.decay, 1.0)
        return self.last + (self.weight - self.last) * 0.5 * (1 + math.cos(math.pi * done))

    def words(self) -> str:
        first = f", reached in {self.warmup:g} steps" if self.warmup else ""
        then = f", then {self.last:g} after {self.decay:g} more" if self.decay else ""
        return f"give {self.weight:g} of the loss to demonstrations{first}{then}"


class ImitateUnsure(ImitateDemonstrations):
    """The same with p (1 - p) in front of each token, p = pi(token) now and without gradient: phi of 2508.11408.

    What the policy says anyway teaches nothing, what it would never say would tear it away: both weigh next to nothing.
    """

    name = "unsure_demonstrations"
    in_symbols = " + {0.weight:g}/M_shown SUM_shown p (1 - p) log pi"

    def doubt(self, logp: Tensor) -> Tensor | None:
        p = logp.detach().exp()
        return p * (1 - p)

    def words(self) -> str:
        return super().words() + ", the more the less sure the policy is of a token"


class Smooth(Component):
    """How tokens that were not sampled learn from one that was."""

    @property
    def num_top(self) -> int:
        """How many of the likeliest tokens are smoothed over; 0 for none."""
        return 0

    def pushed(self, advantage: Tensor, batch: TokenBatch, extras: Extras) -> Tensor:
        """The advantage as the loss uses it."""
        return advantage

    def spread(self, batch: TokenBatch, extras: Extras) -> Tensor | None:
        """The share of a token's pull that goes to the likeliest tokens instead: [N, T]; None for none."""
        return None


class NoSmoothing(Smooth):
    """Only the sampled token learns."""

    name = "none"


@dataclass(frozen=True)
class TopK(Smooth):
    """At forking tokens a right completion teaches the `top` likeliest tokens too. Peng 2025 (2510.14807).

    Forking: entropy above the completion's `quantile`. Right completions (first reward part 1): the sampled token gets
    (1 - share) of its pull, each of the top tokens share / top. Wrong ones (A < 0) whose sampled token was the
    likeliest: A *= push. Not an entropy bonus: the pull is spread, its sum stays.
    """

    share: float = number(0.01, above=0, below=1)
    top: float = number(3, least=1)
    quantile: float = number(0.8, least=0, below=1)
    push: float = number(1.1, above=0)
    name = "top_k"
    needs = frozenset({"top_logp", "parts"})
    in_words = "where the policy was unsure, right completions lift its {0.top:g} likeliest tokens too"

    @property
    def num_top(self) -> int:
        return int(self.top)

    def forking(self, batch: TokenBatch, extras: Extras) -> Tensor:
        """Whether the entropy exceeds the completion's own `quantile`: bool [N, T], actions only."""
        if extras.entropy is None:
            raise ValueError("top_k needs the entropy of the forward pass and got none")
        entropy = extras.entropy.detach().masked_fill(~batch.action, float("nan"))
        threshold = entropy.nanquantile(self.quantile, dim=-1, keepdim=True)
        return batch.action & (entropy > threshold)

    def pushed(self, advantage: Tensor, batch: TokenBatch, extras: Extras) -> Tensor:
        if extras.chose_top is None:
            raise ValueError("top_k needs to know where the sampled token was the likeliest")
        harder = self.forking(batch, extras) & extras.chose_top & (advantage < 0)
        return torch.where(harder, self.push * advantage, advantage)

    def spread(self, batch: TokenBatch, extras: Extras) -> Tensor | None:
        right = self.forking(batch, extras) & given(batch.correct, "top_k needs the reward's parts")[:, None]
        return right.double() * self.share
