"""Clip rules without an edge: the ratio as it is or capped, faded out, or averaged over the completion."""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.clip.rule import ClipRule, pushed_out
from whet.objective.component import number
from whet.objective.lazy_torch import Tensor, torch


class OnPolicy(ClipRule):
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name = "on_policy"
    uses_ratio = False
    in_words = "weigh every token with 1: one update per batch, on the policy that wrote it"
    in_symbols = "A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.ones_like(ratio)


class Unclipped(ClipRule):
    """weight = r. The importance-sampled policy gradient itself; something else has to bound the move."""

    name = "unclipped"
    in_words = "weigh a token with its ratio, whatever it is"
    in_symbols = "r A"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio


@dataclass(frozen=True)
class Cap(ClipRule):
    """weight = min(r, ceiling). MiniMax-M1 2025 (2506.13585), eq. 4 and 5, upper bound only.

    Every token keeps learning, so there is no trust region: drift is slowed by nothing but the cap.
    """

    ceiling: float = number(5.0, least=1)
    name = "cap"
    in_words = "weigh a token with its ratio, at most {0.ceiling:g}; none is ever dropped"
    in_symbols = "sg[min(r, {0.ceiling:g})] A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)


class Tapered(ClipRule):
    """weight = 1 where A >= 0, min(r, 1) where A < 0. Le Roux 2025 (2503.14286), eq. 8.

    Good completions are imitated whatever their ratio; a bad one is let go as the policy leaves it, so that nothing is
    pushed down without end.
    """

    name = "tapered"
    in_words = "imitate what was better; let go of what was worse as its probability falls"
    in_symbols = "sg[1 if A >= 0 else min(r, 1)] A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.where(advantage < 0, ratio.clamp(max=1.0), 1.0)


@dataclass(frozen=True)
class SoftGate(ClipRule):
    """weight = 4 p (1 - p) r, p = sigmoid(tau (r - 1)), tau by the sign of A. Gao 2025 (2511.20347).

    The derivative of (4 / tau) sigmoid(tau (r - 1)) A; it never reaches zero: drift is slowed, not stopped.
    """

    tau_positive: float = number(1.0, above=0)
    tau_negative: float = number(1.05, above=0)
    name = "soft_gate"
    in_words = "fade a token out smoothly as its ratio leaves 1"
    in_symbols = "4/tau sigmoid(tau (r - 1)) A, tau = {0.tau_positive:g} if A > 0 else {0.tau_negative:g}"

    def _gate(self, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        tau = torch.full_like(ratio, self.tau_negative).masked_fill(advantage > 0, self.tau_positive)
        return torch.sigmoid(tau * (ratio - 1)), tau

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        share, _ = self._gate(ratio, advantage)
        return 4 * share * (1 - share) * ratio

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        share, tau = self._gate(ratio, advantage)
        return 4 / tau * share * advantage


@dataclass(frozen=True)
class GeometricMean(ClipRule):
    """weight = exp(1/n SUM_t c_t) [t not clipped], c = log r clipped one-sidedly. Zhao 2025 (2507.20673), eq. 4.

    c_t = min(log r, width) where A > 0, max(log r, -width) where A < 0. Clipped in log space: 0.4 is e^0.4 = 1.49.
    """

    width: float = number(0.4, above=0)
    name = "geometric_mean"
    in_words = "weigh a completion with the geometric mean of its ratios, log-ratios beyond {0.width:g} held"
    in_symbols = "A prod_t clip(r, e^-{0.width:g}, e^{0.width:g})^(1/n_i)"

    def _clipped(self, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        log_ratio = ratio.log()
        over = pushed_out(log_ratio, advantage, -self.width, self.width)
        return torch.where(over, torch.sign(advantage) * self.width, log_ratio), over

    def _mean(self, clipped: Tensor, action: Tensor) -> Tensor:
        length = action.sum(-1, keepdim=True).clamp(min=1)
        return (clipped.masked_fill(~action, 0.0).sum(-1, keepdim=True) / length).exp().expand_as(clipped)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        clipped, over = self._clipped(ratio, advantage)
        return self._mean(clipped, action).masked_fill(over, 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        clipped, _ = self._clipped(ratio, advantage)
        return self._mean(clipped, action) * advantage


@dataclass(frozen=True)
class GammaGate(ClipRule):
    """weight = r^k exp(lam (1 - r)), k and lam by the sign of A. arXiv 2602.10693 (2026), on the completion's product
    ratio.

    1 at ratio 1, 0 at 0 and at infinity: completions far from the sampler's policy vanish on both sides.
    """

    k_positive: float = number(2.0, above=0)
    lam_positive: float = number(3.0, above=0)
    k_negative: float = number(3.0, above=0)
    lam_negative: float = number(2.0, above=0)
    name = "gamma_gate"
    in_words = "fade a completion out as its probability leaves the sampler's, on both sides"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        good = advantage >= 0
        k = torch.full_like(ratio, self.k_negative).masked_fill(good, self.k_positive)
        lam = torch.full_like(ratio, self.lam_negative).masked_fill(good, self.lam_positive)
        return (k * ratio.log() + lam * (1 - ratio)).exp()

    def symbols(self) -> str:
        return "sg[r^k exp(lam (1 - r))] A log pi, " + (
            f"k, lam = {self.k_positive:g}, {self.lam_positive:g} if A >= 0 else "
            f"{self.k_negative:g}, {self.lam_negative:g}"
        )
