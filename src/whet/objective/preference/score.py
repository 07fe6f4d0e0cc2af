"""What is a completion worth? Scores: `(completions) -> [B, S]`, differentiable in logp.

d = log pi - log pi_ref of the whole completion, q = log pi a token, n its number of tokens.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, functional, torch
from whet.objective.preference.batch import PairCompletions

# float32 ends near exp(88) and metrics square a margin; beyond this a completion keeps its score and moves no further
LARGEST_EXPONENT = 40.0


class CompletionScore(Component):
    """What a completion is worth, [B, S], from its log-probabilities."""

    @abstractmethod
    def __call__(self, completions: PairCompletions) -> Tensor: ...

    def symbols(self) -> str:
        """The score of a completion y, as it stands in a formula."""
        return super().symbols()


class LogRatio(CompletionScore):
    """s = d. Rafailov 2023 (2305.18290), equation 5 without beta."""

    name = "log_ratio"
    needs = frozenset({"ref_logp"})
    in_words = "a completion is worth how much likelier it is than under the reference; a larger beta ties it tighter"
    in_symbols = "log pi(y)/ref(y)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.log_ratio


class MeanLogRatio(CompletionScore):
    """s = d / n. Lambert 2024 (2411.15124)."""

    name = "mean_log_ratio"
    needs = frozenset({"ref_logp"})
    in_words = "a completion is worth how much likelier a token of it is than under the reference"
    in_symbols = "1/n log pi(y)/ref(y)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.log_ratio / completions.lengths


class LogLikelihood(CompletionScore):
    """s = log pi(y): a uniform reference. Xu 2024 (2401.08417)."""

    name = "logp"
    in_words = "a completion is worth its log-probability; long ones are worth less"
    in_symbols = "log pi(y)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.logp


class MeanLogLikelihood(CompletionScore):
    """s = q = log pi(y) / n. Meng 2024 (2405.14734), equation 4 without beta."""

    name = "mean_logp"
    in_words = "a completion is worth the mean log-probability of its tokens; nothing ties it to a reference"
    in_symbols = "1/n log pi(y)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return completions.mean_logp


class LogOdds(CompletionScore):
    """s = log p/(1-p), p = exp(q) the geometric mean of the tokens' probabilities. Hong 2024 (2403.07691)."""

    name = "log_odds"
    in_words = "a completion is worth the log-odds of its mean token probability"
    in_symbols = "log p/(1-p), p = pi(y)^(1/n)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        # a completion the policy is sure of has infinite odds: the smallest step below probability 1 stands for it
        mean = completions.mean_logp.clamp(max=-torch.finfo(completions.logp.dtype).eps)
        return mean - torch.log(-torch.expm1(mean))


@dataclass(frozen=True)
class PowerReward(CompletionScore):
    """s = (1 - p^-alpha) / alpha, p = exp(q); alpha -> 0 gives q. Gupta 2025 (2501.03884)."""

    alpha: float = 0.25
    name = "power_reward"
    in_words = "a completion is worth a bent mean log-probability (alpha {0.alpha:g}): unlikely ones are pushed harder"

    def __call__(self, completions: PairCompletions) -> Tensor:
        if self.alpha == 0:
            return completions.mean_logp
        return -torch.expm1((-self.alpha * completions.mean_logp).clamp(max=LARGEST_EXPONENT)) / self.alpha

    def symbols(self) -> str:
        return f"(1 - p^-{self.alpha:g})/{self.alpha:g}, p = pi(y)^(1/n)" if self.alpha else "1/n log pi(y)"


class WeighedEntropy(CompletionScore):
    """s = (log pi(y) + 1) / n: what is stationary for E[r] + beta H_w, the entropy with weights w = 1/n.

    The reward inside Rashidinejad 2024 (2412.09544); its drifting labels and its constants are not built.
    """

    name = "weighed_entropy"
    in_words = "a completion is worth its mean log-probability plus 1/n"
    in_symbols = "1/n (log pi(y) + 1)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return (completions.logp + 1) / completions.lengths


class ForwardKL(CompletionScore):
    """s = f'(pi/ref) = 1 - exp(-d), f(t) = -log t. Wang 2023 (2309.16240)."""

    name = "forward_kl"
    needs = frozenset({"ref_logp"})
    in_words = "tied to the reference by the forward KL: covers all it could say"
    in_symbols = "1 - ref(y)/pi(y)"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return -torch.expm1((-completions.log_ratio).clamp(max=LARGEST_EXPONENT))


class JensenShannon(CompletionScore):
    """s = f'(pi/ref) = log 2 + log sigmoid(d). Wang 2023 (2309.16240). Bounded above by log 2."""

    name = "jensen_shannon"
    needs = frozenset({"ref_logp"})
    in_words = "tied to the reference by the Jensen-Shannon divergence: the worth of a completion is bounded above"
    in_symbols = "log 2 + log sigma(log pi(y)/ref(y))"

    def __call__(self, completions: PairCompletions) -> Tensor:
        return math.log(2) + functional.logsigmoid(completions.log_ratio)


@dataclass(frozen=True)
class AlphaDivergence(CompletionScore):
    """s = f'(pi/ref) = (exp((alpha - 1) d) - 1) / (alpha - 1); alpha = 1 is d, 0 the forward KL's.

    Wang 2023 (2309.16240), whose own letter is 1 - alpha.
    """

    alpha: float = 0.5
    name = "alpha_divergence"
    needs = frozenset({"ref_logp"})
    in_words = "tied to the reference by the alpha divergence ({0.alpha:g})"

    def __call__(self, completions: PairCompletions) -> Tensor:
        power = self.alpha - 1
        if power == 0:
            return completions.log_ratio
        return torch.expm1((power * completions.log_ratio).clamp(max=LARGEST_EXPONENT)) / power

    def symbols(self) -> str:
        return f"((pi(y)/ref(y))^{self.alpha - 1:g} - 1)/{self.alpha - 1:g}" if self.alpha != 1 else "log pi(y)/ref(y)"


@dataclass(frozen=True)
class SharedLength(CompletionScore):
    """s = SUM_t w_t (logp_t - ref_logp_t), w = 1 up to the shorter completion's length and `tail` after it.

    Liu 2024 (2409.06411). The tail is discounted under the policy and under the reference alike.
    """

    tail: float = number(0.5, least=0, most=1)
    name = "shared_length"
    needs = frozenset({"ref_logp", "token_logp", "pairs"})
    in_words = "tokens past the length of the shorter completion count {0.tail:g}"
    in_symbols = "SUM_t w_t log pi/ref, w = 1 up to min(n_w, n_l), {0.tail:g} after"

    def __call__(self, completions: PairCompletions) -> Tensor:
        action, reference = completions.batch.action, completions.batch.ref_logp
        if completions.token_logp is None or action is None or reference is None or reference.dim() != 3:
            raise ValueError("shared_length needs logp and ref_logp of each token, [B, S, T], and the batch's action")
        shorter = completions.batch.lengths.amin(-1)[:, None, None]
        weight = torch.where(action.cumsum(-1) <= shorter, 1.0, self.tail).to(completions.logp.dtype)
        return completions.weighed(completions.token_logp, weight) - completions.weighed(reference, weight)
