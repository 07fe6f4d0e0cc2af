"""What is a completion worth? Scores: `(completions) -> [B, S]`, differentiable in logp.

d = log pi - log pi_ref of the whole completion, q = log pi a token, n its number of tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.objective.lazy_torch import functional, torch
from whet.objective.preference.batch import PairCompletions

if TYPE_CHECKING:
    from torch import Tensor

# float32 ends near exp(88) and metrics square a margin; beyond this a completion keeps its score and moves no further
LARGEST_EXPONENT = 40.0


class CompletionScore(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, completions: PairCompletions) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str:
        """The score of a completion y, as it stands in a formula."""
        ...


class LogRatio(Component):
    """s = d. Rafailov 2023 (2305.18290), equation 5 without beta."""

    name: ClassVar[str] = "log_ratio"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp"})

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.log_ratio

    def words(self) -> str:
        return "a completion is worth how much likelier it is than under the reference; a larger beta ties it tighter"

    def symbols(self) -> str:
        return "log pi(y)/ref(y)"


class MeanLogRatio(Component):
    """s = d / n. Lambert 2024 (2411.15124)."""

    name: ClassVar[str] = "mean_log_ratio"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp"})

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.log_ratio / completions.lengths

    def words(self) -> str:
        return "a completion is worth how much likelier a token of it is than under the reference"

    def symbols(self) -> str:
        return "1/n log pi(y)/ref(y)"


class LogLikelihood(Component):
    """s = log pi(y): a uniform reference. Xu 2024 (2401.08417)."""

    name: ClassVar[str] = "logp"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.logp

    def words(self) -> str:
        return "a completion is worth its log-probability; long ones are worth less"

    def symbols(self) -> str:
        return "log pi(y)"


class MeanLogLikelihood(Component):
    """s = q = log pi(y) / n. Meng 2024 (2405.14734), equation 4 without beta."""

    name: ClassVar[str] = "mean_logp"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.mean_logp

    def words(self) -> str:
        return "a completion is worth the mean log-probability of its tokens; nothing ties it to a reference"

    def symbols(self) -> str:
        return "1/n log pi(y)"


class LogOdds(Component):
    """s = log p/(1-p), p = exp(q) the geometric mean of the tokens' probabilities. Hong 2024 (2403.07691)."""

    name: ClassVar[str] = "log_odds"

    def __call__(self, completions: PairCompletions) -> Tensor:
        # a completion the policy is sure of has infinite odds: the smallest step below probability 1 stands for it
        mean = completions.mean_logp.clamp(max=-torch.finfo(completions.logp.dtype).eps)
        return mean - torch.log(-torch.expm1(mean))

    def words(self) -> str:
        return "a completion is worth the log-odds of its mean token probability"

    def symbols(self) -> str:
        return "log p/(1-p), p = pi(y)^(1/n)"


@dataclass(frozen=True)
class PowerReward(Component):
    """s = (1 - p^-alpha) / alpha, p = exp(q); alpha -> 0 gives q. Gupta 2025 (2501.03884)."""

    alpha: float = 0.25
    name: ClassVar[str] = "power_reward"

    def __call__(self, completions: PairCompletions) -> Tensor:
        if self.alpha == 0:
            return completions.mean_logp
        return -torch.expm1((-self.alpha * completions.mean_logp).clamp(max=LARGEST_EXPONENT)) / self.alpha

    def words(self) -> str:
        return (
            f"a completion is worth a bent mean log-probability (alpha {self.alpha:g}): unlikely ones are pushed harder"
        )

    def symbols(self) -> str:
        return f"(1 - p^-{self.alpha:g})/{self.alpha:g}, p = pi(y)^(1/n)" if self.alpha else "1/n log pi(y)"


class WeighedEntropy(Component):
    """s = (log pi(y) + 1) / n: what is stationary for E[r] + beta H_w, the entropy with weights w = 1/n.

    The reward inside Rashidinejad 2024 (2412.09544); its drifting labels and its constants are not built.
    """

    name: ClassVar[str] = "weighed_entropy"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return (completions.logp + 1) / completions.lengths

    def words(self) -> str:
        return "a completion is worth its mean log-probability plus 1/n"

    def symbols(self) -> str:
        return "1/n (log pi(y) + 1)"


class ForwardKL(Component):
    """s = f'(pi/ref) = 1 - exp(-d), f(t) = -log t. Wang 2023 (2309.16240)."""

    name: ClassVar[str] = "forward_kl"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp"})

    def __call__(self, completions: PairCompletions) -> Tensor:
        return -torch.expm1((-completions.log_ratio).clamp(max=LARGEST_EXPONENT))

    def words(self) -> str:
        return "tied to the reference by the forward KL: covers all it could say"

    def symbols(self) -> str:
        return "1 - ref(y)/pi(y)"


class JensenShannon(Component):
    """s = f'(pi/ref) = log 2 + log sigmoid(d). Wang 2023 (2309.16240). Bounded above by log 2."""

    name: ClassVar[str] = "jensen_shannon"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp"})

    def __call__(self, completions: PairCompletions) -> Tensor:
        return math.log(2) + functional.logsigmoid(completions.log_ratio)

    def words(self) -> str:
        return "tied to the reference by the Jensen-Shannon divergence: the worth of a completion is bounded above"

    def symbols(self) -> str:
        return "log 2 + log sigma(log pi(y)/ref(y))"


@dataclass(frozen=True)
class AlphaDivergence(Component):
    """s = f'(pi/ref) = (exp((alpha - 1) d) - 1) / (alpha - 1); alpha = 1 is d, 0 the forward KL's.

    Wang 2023 (2309.16240), whose own letter is 1 - alpha.
    """

    alpha: float = 0.5
    name: ClassVar[str] = "alpha_divergence"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp"})

    def __call__(self, completions: PairCompletions) -> Tensor:
        power = self.alpha - 1
        if power == 0:
            return completions.log_ratio
        return torch.expm1((power * completions.log_ratio).clamp(max=LARGEST_EXPONENT)) / power

    def words(self) -> str:
        return f"tied to the reference by the alpha divergence ({self.alpha:g})"

    def symbols(self) -> str:
        return f"((pi(y)/ref(y))^{self.alpha - 1:g} - 1)/{self.alpha - 1:g}" if self.alpha != 1 else "log pi(y)/ref(y)"


@dataclass(frozen=True)
class SharedLength(Component):
    """s = SUM_t w_t (logp_t - ref_logp_t), w = 1 up to the shorter completion's length and `tail` after it.

    Liu 2024 (2409.06411). The tail is discounted under the policy and under the reference alike.
    """

    tail: float = 0.5
    name: ClassVar[str] = "shared_length"
    needs: ClassVar[frozenset[str]] = frozenset({"ref_logp", "token_logp", "pairs"})

    def __post_init__(self) -> None:
        if not 0 <= self.tail <= 1:
            raise ValueError(f"score.tail is {self.tail:g}; give a share in [0, 1]")

    def __call__(self, completions: PairCompletions) -> Tensor:
        action, reference = completions.batch.action, completions.batch.ref_logp
        if completions.token_logp is None or action is None or reference is None or reference.dim() != 3:
            raise ValueError("shared_length needs logp and ref_logp of each token, [B, S, T], and the batch's action")
        shorter = completions.batch.lengths.amin(-1)[:, None, None]
        weight = torch.where(action.cumsum(-1) <= shorter, 1.0, self.tail).to(completions.logp.dtype)
        return completions.weighed(completions.token_logp, weight) - completions.weighed(reference, weight)

    def words(self) -> str:
        return f"tokens past the length of the shorter completion count {self.tail:g}"

    def symbols(self) -> str:
        return f"SUM_t w_t log pi/ref, w = 1 up to min(n_w, n_l), {self.tail:g} after"
