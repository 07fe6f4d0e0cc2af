"""Clip rules that keep something beyond the band, bend the band, or look ahead. Same contract as `clip`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.clip import DualClip, PPOClip
from whet.objective.component import Component
from whet.objective.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KeptEdges(Component):
    """weight = r, held at share_low (1 - low) where A < 0 and r < 1 - low, at share_high (1 + high) where A > 0 and
    r > 1 + high. Su 2025 (2509.20712).

    Tokens that a clip would drop go on learning with a bounded weight: those below feed convergence, those above
    exploration, and the two shares set the balance.
    """

    low: float = 0.2
    high: float = 0.28
    share_low: float = 0.75
    share_high: float = 1.0
    name: ClassVar[str] = "kept_edges"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        PPOClip(self.low, self.high)
        if not (self.share_low >= 0 and self.share_high >= 0 and self.share_low + self.share_high > 0):
            raise ValueError("clip.share_low, share_high must be 0 or more, and not both 0; or give clip=ppo_clip")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        above = (advantage > 0) & (ratio > 1 + self.high)
        below = (advantage < 0) & (ratio < 1 - self.low)
        weight = ratio.masked_fill(above, self.share_high * (1 + self.high))
        return weight.masked_fill(below, self.share_low * (1 - self.low))

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return self(ratio, advantage, action, logp) * advantage

    def words(self) -> str:
        return (
            f"beyond [{1 - self.low:g}, {1 + self.high:g}] a token goes on learning with {self.share_low:g} of the "
            f"lower and {self.share_high:g} of the upper edge"
        )

    def symbols(self) -> str:
        edges = f"{self.share_low * (1 - self.low):g} below {1 - self.low:g} if A < 0"
        return f"sg[r, {edges}, {self.share_high * (1 + self.high):g} above {1 + self.high:g} if A > 0] A log pi"


@dataclass(frozen=True)
class ProbabilityBand(Component):
    """ppo_clip with edges by the token's old probability q: 1/2 (1 + sqrt(max(1 - 4 low / q, 0))) and
    min(1/2 (1 + sqrt(1 + 4 high / q)), ceiling). Yang 2025 (2509.02333), eq. 6. No gradient either where A < 0 and
    r > ceiling.

    The edges solve |r - 1| r q = width: a rare token may move by a large ratio. Below q = 4 low the lower edge is 1/2.
    """

    low: float = 0.2
    high: float = 0.28
    ceiling: float = 10.0
    name: ClassVar[str] = "probability_band"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.low > 0 and self.high > 0 and self.ceiling > 1):
            raise ValueError(
                f"clip.low, high, ceiling are {self.low}, {self.high}, {self.ceiling}; give widths above 0 and a "
                "ceiling above 1"
            )

    def _edges(self, ratio: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
        inverse = (ratio.log() - logp).exp()  # 1 / q
        below = (1 - 4 * self.low * inverse).clamp(min=0).sqrt()
        above = (1 + 4 * self.high * inverse).sqrt()
        return (1 + below) / 2, ((1 + above) / 2).clamp(max=self.ceiling)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        lowest, highest = self._edges(ratio, logp)
        dropped = ((advantage > 0) & (ratio > highest)) | ((advantage < 0) & (ratio < lowest))
        return ratio.masked_fill(dropped | ((advantage < 0) & (ratio > self.ceiling)), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        lowest, highest = self._edges(ratio, logp)
        held = torch.minimum(torch.maximum(ratio, lowest), highest)
        single = torch.minimum(ratio * advantage, held * advantage)
        return torch.where(advantage < 0, torch.maximum(single, self.ceiling * advantage), single)

    def words(self) -> str:
        return "stop learning from a token once its ratio left a band that is wider the rarer the token was"

    def symbols(self) -> str:
        return (
            f"min(r A, clip(r, 1/2 + 1/2 sqrt(1 - {4 * self.low:g}/q), 1/2 + 1/2 sqrt(1 + {4 * self.high:g}/q)) A), "
            "q = pi_old"
        )


@dataclass(frozen=True)
class InverseRatio(Component):
    """weight = min(1/r, ceiling) where A > 0, 0 beyond 1 + high; min(r, ceiling) where A < 0, 0 below 1 - low.
    Wang 2025 (2510.06062).

    A good token that became likely is pushed less and one that fell behind more: the ratio itself does the opposite.
    The ceiling holds the weight and keeps the gradient.
    """

    low: float = 0.2
    high: float = 0.2
    ceiling: float = 3.0
    name: ClassVar[str] = "inverse_ratio"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        DualClip(self.low, self.high, self.ceiling)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        weight = torch.where(advantage > 0, 1 / ratio, ratio).clamp(max=self.ceiling)
        above = (advantage > 0) & (ratio > 1 + self.high)
        below = (advantage < 0) & (ratio < 1 - self.low)
        return weight.masked_fill(above | below, 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return self(ratio, advantage, action, logp) * advantage

    def words(self) -> str:
        return (
            f"weigh what was better with the inverse of its ratio, at most {self.ceiling:g}, and drop what left "
            f"[{1 - self.low:g}, {1 + self.high:g}] the way A pushes it"
        )

    def symbols(self) -> str:
        return (
            f"sg[min(1/r if A > 0 else r, {self.ceiling:g})] [not (A > 0 and r > {1 + self.high:g})] "
            f"[not (A < 0 and r < {1 - self.low:g})] A log pi"
        )


@dataclass(frozen=True)
class FutureDrift(Component):
    """weight = dual_clip f_t, f_t = clip(exp(SUM_{s >= t} 2^{-(s - t)/half_life} log r_s), 1, 1 + reach), stopped.
    2603.19835 (2026).

    A token counts more where the policy has since moved towards what followed it. Tokens beyond the ceiling are not in
    the sum; f is 1 for a bad token whose ratio is above `safe`. s - t counts trained tokens.
    """

    low: float = 0.2
    high: float = 0.28
    ceiling: float = 10.0
    half_life: float = 32.0
    reach: float = 0.2
    safe: float = 10.0
    name: ClassVar[str] = "future_drift"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        DualClip(self.low, self.high, self.ceiling)
        if not (self.half_life > 0 and self.reach > 0 and self.safe >= 1):
            raise ValueError("clip.half_life and reach must be above 0 and clip.safe at least 1")

    def _influence(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        counted = action & (ratio <= self.ceiling)
        ahead = fading_sum(torch.where(counted, ratio, 1.0).log(), action, self.half_life)
        influence = ahead.exp().clamp(1.0, 1 + self.reach).to(ratio.dtype)
        return influence.masked_fill((advantage < 0) & (ratio > self.safe), 1.0)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        weight = DualClip(self.low, self.high, self.ceiling)(ratio, advantage, action, logp)
        return weight * self._influence(ratio, advantage, action)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        single = DualClip(self.low, self.high, self.ceiling).surrogate(ratio, advantage, action, logp)
        return single * self._influence(ratio, advantage, action)

    def words(self) -> str:
        inner = DualClip(self.low, self.high, self.ceiling).words()
        return f"{inner}; a token counts up to {self.reach:g} more where the policy moved towards what followed it"

    def symbols(self) -> str:
        inner = DualClip(self.low, self.high, self.ceiling).symbols()
        return (
            f"f_t {inner}, f_t = sg[clip(exp(SUM_(s >= t) 2^(-(s-t)/{self.half_life:g}) log r_s), 1, "
            f"{1 + self.reach:g})]"
        )


def fading_sum(values: Tensor, action: Tensor, half_life: float) -> Tensor:
    """SUM_{s >= t} 2^{-(s - t)/half_life} values_s over the actions of a row, in double: [N, T].

    By a product with 2^{place/half_life}, stretch by stretch: no power leaves the range of a double.
    """
    place = action.cumsum(-1).double()
    values = torch.where(action, values.double(), 0.0)
    found = torch.zeros_like(values)
    carried, behind = torch.zeros_like(values[:, :1]), place[:, -1:]
    stretch = max(1, int(500 * half_life))
    for start in reversed(range(0, values.shape[1], stretch)):
        window = slice(start, start + stretch)
        first = place[:, start : start + 1]
        fading = torch.exp2(-(place[:, window] - first) / half_life)
        inside = (fading * values[:, window]).flip(-1).cumsum(-1).flip(-1) / fading
        # what lies behind this stretch was summed from the first place of the next one, `behind`
        rest = carried * torch.exp2(-(behind - place[:, window]) / half_life)
        found[:, window] = inside + rest
        carried, behind = found[:, start : start + 1], first
    return found
