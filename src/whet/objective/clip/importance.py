"""Clip rules without a band: the importance ratio as it is, capped, one-sided, or not used at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.clip.rule import ClipRule
from whet.objective.component import number
from whet.objective.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


class OnPolicy(ClipRule):
    """weight = 1. Williams 1992, eq. 4. Right only while the policy that learns is the one that sampled."""

    name: ClassVar[str] = "on_policy"
    uses_ratio: ClassVar[bool] = False
    in_words: ClassVar[str] = "weigh every token with 1: one update per batch, on the policy that wrote it"
    in_symbols: ClassVar[str] = "A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.ones_like(ratio)


class Unclipped(ClipRule):
    """weight = r. The importance-sampled policy gradient itself; something else has to bound the move."""

    name: ClassVar[str] = "unclipped"
    in_words: ClassVar[str] = "weigh a token with its ratio, whatever it is"
    in_symbols: ClassVar[str] = "r A"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio


@dataclass(frozen=True)
class Cap(ClipRule):
    """weight = min(r, ceiling). MiniMax-M1 2025 (2506.13585), eq. 4 and 5, upper bound only.

    Every token keeps learning, so there is no trust region: drift is slowed by nothing but the cap.
    """

    ceiling: float = number(5.0, least=1)
    name: ClassVar[str] = "cap"
    in_words: ClassVar[str] = "weigh a token with its ratio, at most {0.ceiling:g}; none is ever dropped"
    in_symbols: ClassVar[str] = "sg[min(r, {0.ceiling:g})] A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return ratio.clamp(max=self.ceiling)


class Tapered(ClipRule):
    """weight = 1 where A >= 0, min(r, 1) where A < 0. Le Roux 2025 (2503.14286), eq. 8.

    Good completions are imitated whatever their ratio; a bad one is let go as the policy leaves it, so that nothing is
    pushed down without end.
    """

    name: ClassVar[str] = "tapered"
    in_words: ClassVar[str] = "imitate what was better; let go of what was worse as its probability falls"
    in_symbols: ClassVar[str] = "sg[1 if A >= 0 else min(r, 1)] A log pi"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        return torch.where(advantage < 0, ratio.clamp(max=1.0), 1.0)
