"""Clip rules without a band: the importance ratio as it is, capped, one-sided, or not used at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.clip.rule import ClipRule
from whet.objective.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


class OnPolicy(ClipRule):
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name: ClassVar[str] = "on_policy"
    uses_ratio: ClassVar[bool] = False

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.ones_like(ratio)

    def words(self) -> str:
        return "weigh every token with 1: one update per batch, on the policy that wrote it"

    def symbols(self) -> str:
        return "A log pi"


class Unclipped(ClipRule):
    """weight = r. The importance-sampled policy gradient itself; something else has to bound the move."""

    name: ClassVar[str] = "unclipped"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio

    def words(self) -> str:
        return "weigh a token with its ratio, whatever it is"

    def symbols(self) -> str:
        return "r A"


@dataclass(frozen=True)
class Cap(ClipRule):
    """weight = min(r, ceiling). MiniMax-M1 2025 (2506.13585), eq. 4 and 5, upper bound only.

    Every token keeps learning, so there is no trust region: drift is slowed by nothing but the cap.
    """

    ceiling: float = 5.0
    name: ClassVar[str] = "cap"

    def __post_init__(self) -> None:
        if self.ceiling < 1:
            raise ValueError(f"clip.ceiling is {self.ceiling}: it would scale every token down; give 1 or more")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)

    def words(self) -> str:
        return f"weigh a token with its ratio, at most {self.ceiling:g}; none is ever dropped"

    def symbols(self) -> str:
        return f"sg[min(r, {self.ceiling:g})] A log pi"


class Tapered(ClipRule):
    """weight = 1 where A >= 0, min(r, 1) where A < 0. Le Roux 2025 (2503.14286), eq. 8.

    Good completions are imitated whatever their ratio; a bad one is let go as the policy leaves it, so that nothing is
    pushed down without end.
    """

    name: ClassVar[str] = "tapered"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.where(advantage < 0, ratio.clamp(max=1.0), 1.0)

    def words(self) -> str:
        return "imitate what was better; let go of what was worse as its probability falls"

    def symbols(self) -> str:
        return "sg[1 if A >= 0 else min(r, 1)] A log pi"
