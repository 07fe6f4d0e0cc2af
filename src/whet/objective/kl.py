"""Tied to the reference how? u = logp - ref_logp, r = exp(logp - old_logp).

A KL term in the loss is a weight too: the derivative of the estimator with respect to logp, detached, with the same
shares as the policy's term. A KL in the reward is a cost of each token, taken off before the baseline.
There is no k1 in the loss: its expected gradient is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.ratio import held_log
from whet.types import TokenBatch


class KL(Component):
    """A tie to the reference, or to the policy that wrote the batch: a weight in the loss, or a cost in the reward."""

    to_old: ClassVar[bool] = False  # True: the term is to the policy before the updates, not to the reference
    to_sampler: ClassVar[bool] = False  # True: u is log(pi / sampler), not to the reference
    immediate: ClassVar[bool] = False  # True: the cost is taken off each token's advantage, not off the reward
    in_reward: ClassVar[bool] = False  # True: the cost is taken off the reward

    def cost(self, batch: TokenBatch) -> Tensor | None:
        """What each token pays at sampling time: [N, T]; None for a term in the loss."""
        return None

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        """What multiplies the gradient of log pi, beta included: [N, T]; `u` is log(pi / the policy tied to)."""
        return torch.zeros_like(u)

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        """The estimate of the divergence itself, without beta, for the metrics: [N, T]."""
        return u

    def symbols(self) -> str:
        """The term with its sign, such as ` - 0.04 u^2/2`; empty for none."""
        return super().symbols()


class NoKL(KL):
    """No penalty for leaving the reference."""

    name = "none"
    in_words = "no tie to a reference"
    in_symbols = ""


@dataclass(frozen=True)
class _Tied(KL):
    """A tie with a coefficient."""

    beta: float = number(above=0, instead="objective.kl=none")
    needs = frozenset({"ref_logp"})

    def log_move(self, u: Tensor, ratio: Tensor) -> Tensor:
        """What the estimate is a function of: u, or log r where the tie is to the policy before the updates."""
        return u


class _OfCompletion(_Tied):
    """The whole completion is one action: its log move is the sum over its tokens, 0 where there is no action."""

    def log_move(self, u: Tensor, ratio: Tensor) -> Tensor:
        move = super().log_move(u, ratio)
        return move.sum(-1, keepdim=True).expand_as(move)


@dataclass(frozen=True)
class K2(_Tied):
    """beta u^2 / 2, kl_weight = beta u. Schulman 2020 note. Its gradient is the per-token gradient of KL(pi, ref)."""

    beta: float = 0.04
    name = "k2"
    in_words = "pull towards the reference with {0.beta:g} times half the squared log-ratio"
    in_symbols = " - {0.beta:g} u^2/2, u = log(pi/ref)"

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.beta * self.log_move(u, ratio)

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        return 0.5 * self.log_move(u, ratio) ** 2


@dataclass(frozen=True)
class K2Completion(_OfCompletion, K2):
    """beta u(completion)^2 / 2, kl_weight = beta SUM_t u_t on each token. Brantley 2025 (2505.20686).

    The whole completion is one action: with a weight of 1 and `sequence_sum` the gradient is that of the regression
    (A - beta u(completion))^2 / (2 beta).
    """

    beta: float = 1e-3
    name = "k2_completion"
    in_words = "pull towards the reference with {0.beta:g} times half each completion's squared log-ratio"
    in_symbols = " - {0.beta:g} u(completion)^2/2, u = log(pi/ref)"


@dataclass(frozen=True)
class K3(_Tied):
    """beta (exp(-u) - 1 + u), kl_weight = beta (1 - exp(-u)). Shao 2024 (2402.03300), eq. 4.

    As a loss it pulls with the gradient of the forward KL: bounded above by 1, below by exp(20), where -u is held.
    """

    beta: float = 0.04
    name = "k3"
    in_words = "pull towards the reference with {0.beta:g} times the k3 estimate of the KL"
    in_symbols = " - {0.beta:g} (exp(-u) - 1 + u), u = log(pi/ref)"

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.beta * -torch.expm1(held_log(-u))

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        return torch.expm1(held_log(-u)) + u


class K3Corrected(K3):
    """beta r (exp(-u) - 1 + u) with r differentiable, kl_weight = beta r u. DeepSeek-V3.2 (2512.02556).

    Unbiased for samples of the old policy; the same gradient as ratio-weighted k2. With r detached it would not be.
    """

    name = "k3_corrected"
    needs = frozenset({"ref_logp", "old_logp"})
    in_words = "pull towards the reference with {0.beta:g} times k3, corrected for the policy's own move"
    in_symbols = " - {0.beta:g} r (exp(-u) - 1 + u), u = log(pi/ref)"

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.beta * ratio * u

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        return ratio * super().value(u, ratio)


@dataclass(frozen=True)
class Absolute(_Tied):
    """beta |u|, kl_weight = beta sign(u). Not a KL: at least as large as one."""

    beta: float = 0.04
    name = "abs"
    in_words = "pull towards the reference with {0.beta:g} times the absolute log-ratio"
    in_symbols = " - {0.beta:g} |u|, u = log(pi/ref)"

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.beta * self.log_move(u, ratio).sign()

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.log_move(u, ratio).abs()


@dataclass(frozen=True)
class Full(_Tied):
    """beta SUM_v pi_v log(pi_v / ref_v), exact at each state, through the logits of both models."""

    beta: float = 0.04
    name = "full"
    needs = frozenset({"ref_logp", "divergence"})
    in_words = "pull towards the reference with {0.beta:g} times the exact KL at each token"
    in_symbols = " - {0.beta:g} SUM_v pi_v log(pi_v/ref_v)"


class _Cost(_Tied):
    """The estimate at sampling time is taken off each token's reward: no weight in the loss."""

    in_reward = True

    def cost(self, batch: TokenBatch) -> Tensor | None:
        sampled = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
        if sampled is None or batch.ref_logp is None:
            raise ValueError(f"{self.name} needs ref_logp and the log-probabilities of the policy that sampled")
        u = (sampled - batch.ref_logp).masked_fill(~batch.action, 0.0)
        return self.beta * self.value(u, torch.ones_like(u)).to(batch.reward.dtype)

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return torch.zeros_like(u)


@dataclass(frozen=True)
class K1Reward(_Cost):
    """r_t -= beta u_t, u at sampling time. Ahmadian 2024 (2402.14740), eq. 3; Ouyang 2022 (2203.02155), eq. 2.

    In the reward k1 does work: summed over the completion, or to go, its expected gradient is that of the completion's
    KL. The baseline and the scale act on it, so this beta cannot be compared with one in the loss.
    """

    beta: float = 0.05
    name = "k1_reward"
    in_words = "take {0.beta:g} times the completion's log-ratio to the reference off its reward"
    in_symbols = ", R -= {0.beta:g} SUM_t log(pi/ref)"


@dataclass(frozen=True)
class K2Reward(_Cost, K2):
    """r_t -= beta u_t^2 / 2, u at sampling time."""

    beta: float = 0.05
    name = "k2_reward"
    in_words = "take {0.beta:g} times half the squared log-ratios to the reference off the reward"
    in_symbols = ", R -= {0.beta:g} SUM_t u^2/2, u = log(pi/ref)"


@dataclass(frozen=True)
class K3Reward(_Cost, K3):
    """r_t -= beta (exp(-u) - 1 + u), u at sampling time: never negative, unlike k1."""

    beta: float = 0.05
    name = "k3_reward"
    in_words = "take {0.beta:g} times the k3 estimate of the KL off the reward"
    in_symbols = ", R -= {0.beta:g} SUM_t (exp(-u) - 1 + u), u = log(pi/ref)"


@dataclass(frozen=True)
class AbsoluteReward(_Cost, Absolute):
    """r_t -= beta |u_t|, u at sampling time."""

    beta: float = 0.05
    name = "abs_reward"
    in_words = "take {0.beta:g} times the absolute log-ratios to the reference off the reward"
    in_symbols = ", R -= {0.beta:g} SUM_t |log(pi/ref)|"


class K1Immediate(K1Reward):
    """A_t -= beta u_t, each token for itself. Li 2023 (2310.10505), the authors' code.

    What a token costs is not summed to go: the gradient is that of a KL at fixed states, not of the completion's.
    """

    name = "k1_immediate"
    immediate = True
    in_reward = False
    in_words = "take {0.beta:g} times each token's log-ratio to the reference off its own advantage"
    in_symbols = ", A_t -= {0.beta:g} log(pi/ref)"


class _ToOld(_Tied):
    """Tied to the policy before the updates: the log move is log r."""

    to_old = True
    needs = frozenset({"old_logp"})

    def log_move(self, u: Tensor, ratio: Tensor) -> Tensor:
        return ratio.log()


@dataclass(frozen=True)
class K3Old(_ToOld):
    """beta ((r - 1) - log r), kl_weight = beta (r - 1): KL(old, pi). Schulman 2017 (1707.06347), eq. 8.

    0 at the first update; it bounds how far a batch moves the policy, not how far it strays from a reference.
    """

    beta: float = 1.0
    name = "k3_old"
    in_words = "hold the policy near the one that wrote the batch, with {0.beta:g} times their KL"
    in_symbols = " - {0.beta:g} (r - 1 - log r)"

    def weight(self, u: Tensor, ratio: Tensor) -> Tensor:
        return self.beta * (ratio - 1)

    def value(self, u: Tensor, ratio: Tensor) -> Tensor:
        return (ratio - 1) - ratio.log()


@dataclass(frozen=True)
class AbsoluteOld(_ToOld, Absolute):
    """beta |log r|, kl_weight = beta sign(log r). Cui 2025 (2505.22617). Exactly 0 at the first update of a batch."""

    beta: float = 1.0
    name = "abs_old"
    in_words = "hold the policy near the one that wrote the batch, with {0.beta:g} times |log r|"
    in_symbols = " - {0.beta:g} |log r|"


@dataclass(frozen=True)
class K2Old(_ToOld, K2):
    """beta (log r)^2 / 2, kl_weight = beta log r, token by token. Exactly 0 at the first update of a batch.

    With a weight of 1 the token's gradient is (A - beta log r): it stops where log r = A / beta.
    """

    beta: float = 0.05
    name = "k2_old"
    in_words = "hold the policy near the one that wrote the batch, with {0.beta:g} times half the squared log r"
    in_symbols = " - {0.beta:g} (log r)^2/2"


@dataclass(frozen=True)
class K2OldCompletion(_OfCompletion, _ToOld, K2):
    """beta (log r(completion))^2 / 2, kl_weight = beta SUM_t log r_t on each token. Kimi 2025 (2501.12599), eq. 3.

    The whole completion is one action: with a weight of 1 its gradient is (A - beta log r(completion)), that of the
    regression (A - beta log r(completion))^2 / (2 beta).
    """

    beta: float = 0.01
    name = "k2_old_completion"
    in_words = "hold each completion's probability near what it was, with {0.beta:g} times half its squared log r"
    in_symbols = " - {0.beta:g} (log r(completion))^2/2"


@dataclass(frozen=True)
class K2Sampler(K2):
    """beta v^2 / 2, kl_weight = beta v, v = log(pi / sampler): staleness and mismatch are both in it.

    Unlike a term to the policy before the updates it acts with one update per batch too.
    """

    beta: float = 2e-3
    name = "k2_sampler"
    to_sampler = True
    needs = frozenset({"behavior_logp"})
    in_words = "hold the policy near the one that sampled, with {0.beta:g} times half the squared log-ratio"
    in_symbols = " - {0.beta:g} v^2/2, v = log(pi/mu)"
