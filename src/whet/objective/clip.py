"""How far off-policy may it learn? Clip rules: the factor in front of grad logp.

A rule is `(ratio, advantage, action, logp) -> weight`, all [N, T], without gradient; at ratio 1 it gives weight 1.
Few rules look at logp, the policy's current log-probability: old = logp - log ratio. `surrogate` is the value of the
paper's own expression: reported, never differentiated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.objective.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


class Clip(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]
    uses_ratio: ClassVar[bool]

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor: ...

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


class OnPolicy(Component):
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name: ClassVar[str] = "on_policy"
    uses_ratio: ClassVar[bool] = False

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.ones_like(ratio)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return advantage

    def words(self) -> str:
        return "weigh every token with 1: one update per batch, on the policy that wrote it"

    def symbols(self) -> str:
        return "A log pi"


@dataclass(frozen=True)
class PPOClip(Component):
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

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        too_high = (advantage > 0) & (ratio > 1 + self.high)
        too_low = (advantage < 0) & (ratio < 1 - self.low)
        return ratio.masked_fill(too_high | too_low, 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.minimum(ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage)

    def words(self) -> str:
        return (
            f"stop learning from a token once its ratio left [{1 - self.low:g}, {1 + self.high:g}] the way A pushes it"
        )

    def symbols(self) -> str:
        return f"min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A)"


@dataclass(frozen=True)
class DualClip(Component):
    """ppo_clip, and no gradient either where A < 0 and r > ceiling. Ye 2020 (1912.09729), eq. 5.

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

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        weight = PPOClip(self.low, self.high)(ratio, advantage, action, logp)
        return weight.masked_fill((advantage < 0) & (ratio > self.ceiling), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        single = PPOClip(self.low, self.high).surrogate(ratio, advantage, action, logp)
        return torch.where(advantage < 0, torch.maximum(single, self.ceiling * advantage), single)

    def words(self) -> str:
        return f"{PPOClip(self.low, self.high).words()}, or above {self.ceiling:g} where A < 0"

    def symbols(self) -> str:
        return f"max(min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A), {self.ceiling:g} A if A < 0)"


@dataclass(frozen=True)
class Cap(Component):
    """weight = min(r, ceiling). MiniMax-M1 2025 (2506.13585), eq. 4 and 5, upper bound only.

    Every token keeps learning, so there is no trust region: drift is slowed by nothing but the cap.
    """

    ceiling: float = 5.0
    name: ClassVar[str] = "cap"
    uses_ratio: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ceiling < 1:
            raise ValueError(f"clip.ceiling is {self.ceiling}: it would scale every token down; give 1 or more")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling) * advantage

    def words(self) -> str:
        return f"weigh a token with its ratio, at most {self.ceiling:g}; none is ever dropped"

    def symbols(self) -> str:
        return f"sg[min(r, {self.ceiling:g})] A log pi"


class Unclipped(Component):
    """weight = r. The importance-sampled policy gradient itself; something else has to bound the move."""

    name: ClassVar[str] = "unclipped"
    uses_ratio: ClassVar[bool] = True

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio * advantage

    def words(self) -> str:
        return "weigh a token with its ratio, whatever it is"

    def symbols(self) -> str:
        return "r A"


class Tapered(Component):
    """weight = 1 where A >= 0, min(r, 1) where A < 0. Le Roux 2025 (2503.14286), eq. 8.

    Good completions are imitated whatever their ratio; a bad one is let go as the policy leaves it, so that nothing is
    pushed down without end.
    """

    name: ClassVar[str] = "tapered"
    uses_ratio: ClassVar[bool] = True

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.where(advantage < 0, ratio.clamp(max=1.0), 1.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return self(ratio, advantage, action, logp) * advantage

    def words(self) -> str:
        return "imitate what was better; let go of what was worse as its probability falls"

    def symbols(self) -> str:
        return "sg[1 if A >= 0 else min(r, 1)] A log pi"
