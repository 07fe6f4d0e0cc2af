"""How far off-policy may it learn? Clip rules: the factor in front of grad logp.

A rule is `(ratio, advantage, action) -> weight`, all [N, T], without gradient; at ratio 1 it gives weight 1.
`surrogate` is the value of the paper's own expression: reported, never differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Clip(Protocol):
    name: ClassVar[str]
    uses_ratio: ClassVar[bool]

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor: ...

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


@dataclass(frozen=True)
class OnPolicy:
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name: ClassVar[str] = "on_policy"
    uses_ratio: ClassVar[bool] = False

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return torch.ones_like(ratio)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return advantage

    def words(self) -> str:
        return "weigh every token with 1: one update a batch, on the policy that wrote it"

    def symbols(self) -> str:
        return "A log pi"


@dataclass(frozen=True)
class PPOClip:
    """weight = r [not (A > 0 and r > 1 + high)] [not (A < 0 and r < 1 - low)]. Schulman 2017 (1707.06347), eq. 7.

    Strict inequalities: exactly on the edge the token still learns. The clip stops only moves away from 1.
    """

    low: float = 0.2
    high: float = 0.2
    name: ClassVar[str] = "ppo_clip"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.low >= 0 and self.high >= 0):
            raise ValueError(f"clip.low = {self.low}, clip.high = {self.high}; give half-widths of 0 or more")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        too_high = (advantage > 0) & (ratio > 1 + self.high)
        too_low = (advantage < 0) & (ratio < 1 - self.low)
        return ratio.masked_fill(too_high | too_low, 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return torch.minimum(ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage)

    def words(self) -> str:
        return (
            f"stop learning from a token once its ratio left [{1 - self.low:g}, {1 + self.high:g}] the way A pushes it"
        )

    def symbols(self) -> str:
        return f"min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A)"


@dataclass(frozen=True)
class DualClip:
    """PPO's clip, and no gradient either where A < 0 and r > ceiling. Ye 2020 (1912.09729), eq. 5.

    It zeroes those tokens, it does not cap them: a bad token that became likely is no longer pushed down.
    """

    low: float = 0.2
    high: float = 0.2
    ceiling: float = 3.0
    name: ClassVar[str] = "dual_clip"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        PPOClip(self.low, self.high)
        if self.ceiling <= 1 + self.high:
            raise ValueError(f"clip.ceiling is {self.ceiling}; give more than 1 + high = {1 + self.high:g}")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        weight = PPOClip(self.low, self.high)(ratio, advantage, action)
        return weight.masked_fill((advantage < 0) & (ratio > self.ceiling), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        single = PPOClip(self.low, self.high).surrogate(ratio, advantage, action)
        return torch.where(advantage < 0, torch.maximum(single, self.ceiling * advantage), single)

    def words(self) -> str:
        return f"{PPOClip(self.low, self.high).words()}, or above {self.ceiling:g} where A < 0"

    def symbols(self) -> str:
        return f"max(min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A), {self.ceiling:g} A if A < 0)"


@dataclass(frozen=True)
class Cap:
    """weight = min(r, ceiling). MiniMax-M1 2025 (2506.13585), eq. 4 and 5, upper bound only.

    Every token keeps learning, so there is no trust region: drift is slowed by nothing but the cap.
    """

    ceiling: float = 5.0
    name: ClassVar[str] = "cap"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ceiling < 1:
            raise ValueError(f"clip.ceiling is {self.ceiling}: it would scale every token down; give 1 or more")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling) * advantage

    def words(self) -> str:
        return f"weigh a token with its ratio, at most {self.ceiling:g}; none is ever dropped"

    def symbols(self) -> str:
        return f"sg[min(r, {self.ceiling:g})] A log pi"


@dataclass(frozen=True)
class SoftGate:
    """weight = 4 p (1 - p) r, p = sigmoid(tau (r - 1)), tau by the sign of A. Gao 2025 (2511.20347).

    The derivative of (4 / tau) sigmoid(tau (r - 1)) A; it never reaches zero: drift is slowed, not stopped.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05
    name: ClassVar[str] = "soft_gate"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tau_positive <= 0 or self.tau_negative <= 0:
            raise ValueError(f"clip.tau is {self.tau_positive} / {self.tau_negative}; give numbers above 0")

    def _gate(self, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        tau = torch.full_like(ratio, self.tau_negative).masked_fill(advantage > 0, self.tau_positive)
        return torch.sigmoid(tau * (ratio - 1)), tau

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        share, _ = self._gate(ratio, advantage)
        return 4 * share * (1 - share) * ratio

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        share, tau = self._gate(ratio, advantage)
        return 4 / tau * share * advantage

    def words(self) -> str:
        return "fade a token out smoothly as its ratio leaves 1"

    def symbols(self) -> str:
        return f"4/tau sigmoid(tau (r - 1)) A, tau = {self.tau_positive:g} if A > 0 else {self.tau_negative:g}"


@dataclass(frozen=True)
class GeometricMean:
    """weight = exp(1/n SUM_t c_t) [t not clipped], c = log r clipped one-sidedly. Zhao 2025 (2507.20673), eq. 4.

    c_t = min(log r, width) where A > 0, max(log r, -width) where A < 0. Clipped in log space: 0.4 is e^0.4 = 1.49.
    """

    width: float = 0.4
    name: ClassVar[str] = "geometric_mean"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise ValueError(f"clip.width is {self.width}; give a log-ratio above 0")

    def _clipped(self, ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        log_ratio = ratio.log()
        over = ((advantage > 0) & (log_ratio > self.width)) | ((advantage < 0) & (log_ratio < -self.width))
        return torch.where(over, torch.sign(advantage) * self.width, log_ratio), over

    def _mean(self, clipped: Tensor, action: Tensor) -> Tensor:
        length = action.sum(-1, keepdim=True).clamp(min=1)
        return (clipped.masked_fill(~action, 0.0).sum(-1, keepdim=True) / length).exp().expand_as(clipped)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        clipped, over = self._clipped(ratio, advantage)
        return self._mean(clipped, action).masked_fill(over, 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        clipped, _ = self._clipped(ratio, advantage)
        return self._mean(clipped, action) * advantage

    def words(self) -> str:
        return f"weigh a reply with the geometric mean of its ratios, log-ratios beyond {self.width:g} held"

    def symbols(self) -> str:
        return f"A prod_t clip(r, e^-{self.width:g}, e^{self.width:g})^(1/n_i)"
