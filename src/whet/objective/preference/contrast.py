"""How are two completions set against each other? Contrasts: `(chosen, rejected) -> [B]`, from scores to one
difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component, ComponentProtocol, number

if TYPE_CHECKING:
    from torch import Tensor


class PairContrast(ComponentProtocol, Protocol):
    """The difference of the two scores of a pair, [B]."""

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor: ...

    def at(self, progress: float) -> PairContrast:
        """The contrast when this share of the run, in [0, 1], is done."""
        ...

    def symbols(self) -> str:
        """In terms of s_w and s_l."""
        ...


class ScoreDifference(Component):
    """m = s_w - s_l."""

    name: ClassVar[str] = "difference"
    in_symbols: ClassVar[str] = "s_w - s_l"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected

    def at(self, progress: float) -> ScoreDifference:
        return self


@dataclass(frozen=True)
class Shifted(Component):
    """m = s_w - f s_l, f from `factor` at the start linearly to `final` at the end. Yang 2025 (2502.07599).

    With s = log pi / ref the factor applies to the reference too.
    """

    factor: float = number(0.95, above=0, most=1)
    final: float = number(0.95, above=0, most=1)
    name: ClassVar[str] = "shifted"
    in_symbols: ClassVar[str] = "s_w - {0.factor:g} s_l"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - self.factor * rejected

    def at(self, progress: float) -> Shifted:
        return replace(self, factor=self.factor + (self.final - self.factor) * min(max(progress, 0.0), 1.0))

    def words(self) -> str:
        moving = f", moving to {self.final:g} by the end" if self.final != self.factor else ""
        return f"the rejected completion counts {self.factor:g}{moving}: less reason to push both down"


@dataclass(frozen=True)
class Protected(Component):
    """m = s_w - s_l - penalty max(0, -s_w). Pal 2024 (2402.13228)."""

    penalty: float = number(50.0, above=0, instead="objective.contrast=difference")
    name: ClassVar[str] = "protected"
    in_words: ClassVar[str] = (
        "a chosen completion that is worth less than nothing costs {0.penalty:g} times what it lacks"
    )
    in_symbols: ClassVar[str] = "s_w - s_l - {0.penalty:g} max(0, -s_w)"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected - self.penalty * (-chosen).clamp(min=0)

    def at(self, progress: float) -> Protected:
        return self
