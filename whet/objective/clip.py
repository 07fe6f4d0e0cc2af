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

    def surrogate(self, ratio: Tensor, advantage: Tensor) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


@dataclass(frozen=True)
class OnPolicy:
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name: ClassVar[str] = "on_policy"
    uses_ratio: ClassVar[bool] = False

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return torch.ones_like(ratio)

    def surrogate(self, ratio: Tensor, advantage: Tensor) -> Tensor:
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

    def surrogate(self, ratio: Tensor, advantage: Tensor) -> Tensor:
        return torch.minimum(ratio * advantage, ratio.clamp(1 - self.low, 1 + self.high) * advantage)

    def words(self) -> str:
        return (
            f"stop learning from a token once its ratio left [{1 - self.low:g}, {1 + self.high:g}] the way A pushes it"
        )

    def symbols(self) -> str:
        return f"min(r A, clip(r, {1 - self.low:g}, {1 + self.high:g}) A)"
