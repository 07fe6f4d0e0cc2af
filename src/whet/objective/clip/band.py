"""The clip of Schulman 2017 (1707.06347) and its variants: a fixed band of ratios, and what becomes of the rest."""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.clip.rule import ClipRule, pushed_out
from whet.objective.component import number
from whet.objective.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class PPOClip(ClipRule):
    """weight = r [not (A > 0 and r > 1 + high)] [not (A < 0 and r < 1 - low)]. Schulman 2017 (1707.06347), eq. 7.

    Strict inequalities: exactly on the edge the token still learns. The clip stops only moves away from 1.
    """

    low: float = number(0.2, least=0)
    high: float = number(0.2, least=0)
    name = "ppo_clip"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.masked_fill(pushed_out(ratio, advantage, 1 - self.low, 1 + self.high), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.minimum(ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage)

    def words(self) -> str:
        return (
            f"stop learning from a token once its ratio left [{1 - self.low:g}, {1 + self.high:g}] the way A pushes it"
        )

    def symbols(self) -> str:
        return f"min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A)"


@dataclass(frozen=True)
class DualClip(PPOClip):
    """ppo_clip, and no gradient either where A < 0 and r > ceiling. Ye 2020 (1912.09729), eq. 5.

    It zeroes those tokens, it does not cap them: a bad token that became likely is no longer pushed down.
    """

    ceiling: float = 3.0
    name = "dual_clip"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ceiling <= 1 + self.high:
            raise ValueError(f"ceiling is {self.ceiling:g}; give more than 1 + high = {1 + self.high:g}")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        weight = super().__call__(ratio, advantage, action, logp)
        return weight.masked_fill((advantage < 0) & (ratio > self.ceiling), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        single = super().surrogate(ratio, advantage, action, logp)
        return torch.where(advantage < 0, torch.maximum(single, self.ceiling * advantage), single)

    def words(self) -> str:
        return f"{super().words()}, or above {self.ceiling:g} where A < 0"

    def symbols(self) -> str:
        return f"max({super().symbols()}, {self.ceiling:g} A if A < 0)"


@dataclass(frozen=True)
class KeptEdges(ClipRule):
    """weight = r, held at share_low (1 - low) where A < 0 and r < 1 - low, at share_high (1 + high) where A > 0 and
    r > 1 + high. Su 2025 (2509.20712).

    Tokens that a clip would drop go on learning with a bounded weight: those below feed convergence, those above
    exploration, and the two shares set the balance.
    """

    low: float = number(0.2, least=0)
    high: float = number(0.2, least=0)
    share_low: float = number(0.75, least=0)
    share_high: float = number(1.0, least=0)
    name = "kept_edges"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.share_low + self.share_high > 0:
            raise ValueError("share_low and share_high are 0; give one above 0, or objective.clip=ppo_clip")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        above = (advantage > 0) & (ratio > 1 + self.high)
        below = (advantage < 0) & (ratio < 1 - self.low)
        weight = ratio.masked_fill(above, self.share_high * (1 + self.high))
        return weight.masked_fill(below, self.share_low * (1 - self.low))

    def words(self) -> str:
        return (
            f"beyond [{1 - self.low:g}, {1 + self.high:g}] a token keeps learning with {self.share_low:g} of the "
            f"lower and {self.share_high:g} of the upper edge"
        )

    def symbols(self) -> str:
        edges = f"{self.share_low * (1 - self.low):g} below {1 - self.low:g} if A < 0"
        return f"sg[r, {edges}, {self.share_high * (1 + self.high):g} above {1 + self.high:g} if A > 0] A log pi"


@dataclass(frozen=True)
class InverseRatio(ClipRule):
    """weight = min(1/r, ceiling) where A > 0, 0 beyond 1 + high; min(r, ceiling) where A < 0, 0 below 1 - low.
    Wang 2025 (2510.06062).

    A good token that became likely is pushed less and one that fell behind more: the ratio itself does the opposite.
    The ceiling holds the weight and keeps the gradient.
    """

    low: float = number(0.2, least=0)
    high: float = number(0.2, least=0)
    ceiling: float = 3.0
    name = "inverse_ratio"

    def __post_init__(self) -> None:
        DualClip(self.low, self.high, self.ceiling)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        weight = torch.where(advantage > 0, 1 / ratio, ratio).clamp(max=self.ceiling)
        return weight.masked_fill(pushed_out(ratio, advantage, 1 - self.low, 1 + self.high), 0.0)

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
class FutureDrift(DualClip):
    """weight = dual_clip f_t, f_t = clip(exp(SUM_{s >= t} 2^{-(s - t)/half_life} log r_s), 1, 1 + reach), stopped.
    2603.19835 (2026).

    A token counts more where the policy has since moved towards what followed it. Tokens beyond the ceiling are not in
    the sum; f is 1 for a bad token whose ratio is above `safe`. s - t counts trained tokens.
    """

    high: float = 0.28
    ceiling: float = 10.0
    half_life: float = number(32.0, above=0)
    reach: float = number(0.2, above=0)
    safe: float = number(10.0, least=1)
    name = "future_drift"

    def _influence(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        counted = action & (ratio <= self.ceiling)
        ahead = fading_sum(torch.where(counted, ratio, 1.0).log(), action, self.half_life)
        influence = ahead.exp().clamp(1.0, 1 + self.reach).to(ratio.dtype)
        return influence.masked_fill((advantage < 0) & (ratio > self.safe), 1.0)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return super().__call__(ratio, advantage, action, logp) * self._influence(ratio, advantage, action)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return super().surrogate(ratio, advantage, action, logp) * self._influence(ratio, advantage, action)

    def words(self) -> str:
        towards = "where the policy moved towards what followed it"
        return f"{super().words()}; a token counts up to {self.reach:g} more {towards}"

    def symbols(self) -> str:
        return (
            f"f_t {super().symbols()}, f_t = sg[clip(exp(SUM_(s >= t) 2^(-(s-t)/{self.half_life:g}) log r_s), 1, "
            f"{1 + self.reach:g})]"
        )


def fading_sum(values: Tensor, action: Tensor, half_life: float) -> Tensor:
    """SUM_{s >= t} 2^{-(s - t)/half_life} values_s over the actions of a row, in double: [N, T].

    By a product with 2^{position/half_life}, stretch by stretch: no power leaves the range of a double.
    """
    position = action.cumsum(-1).double()
    values = torch.where(action, values.double(), 0.0)
    total = torch.zeros_like(values)
    carried, behind = torch.zeros_like(values[:, :1]), position[:, -1:]
    stretch = max(1, int(500 * half_life))
    for start in reversed(range(0, values.shape[1], stretch)):
        window = slice(start, start + stretch)
        first = position[:, start : start + 1]
        fading = torch.exp2(-(position[:, window] - first) / half_life)
        inside = (fading * values[:, window]).flip(-1).cumsum(-1).flip(-1) / fading
        # what lies behind this stretch was summed from the first position of the next one, `behind`
        rest = carried * torch.exp2(-(behind - position[:, window]) / half_life)
        total[:, window] = inside + rest
        carried, behind = total[:, start : start + 1], first
    return total
