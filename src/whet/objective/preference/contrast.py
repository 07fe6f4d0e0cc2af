"""How are two completions set against each other? Contrasts: `(chosen, rejected) -> [B]`, from scores to one
difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component

if TYPE_CHECKING:
    from torch import Tensor


class PairContrast(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor: ...

    def at(self, progress: float) -> PairContrast:
        """The contrast when this share of the run, in [0, 1], is done."""
        ...

    def words(self) -> str: ...

    def symbols(self) -> str:
        """In terms of s_w and s_l."""
        ...


class ScoreDifference(Component):
    """m = s_w - s_l."""

    name: ClassVar[str] = "difference"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected

    def at(self, progress: float) -> ScoreDifference:
        return self

    def symbols(self) -> str:
        return "s_w - s_l"


@dataclass(frozen=True)
class Shifted(Component):
    """m = s_w - f s_l, f from `factor` at the start linearly to `final` at the end. Yang 2025 (2502.07599).

    With s = log pi / ref the factor applies to the reference too.
    """

    factor: float = 0.95
    final: float = 0.95
    name: ClassVar[str] = "shifted"

    def __post_init__(self) -> None:
        for name in ("factor", "final"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"contrast.{name} is {getattr(self, name):g}; give a factor in (0, 1]")

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - self.factor * rejected

    def at(self, progress: float) -> Shifted:
        return replace(self, factor=self.factor + (self.final - self.factor) * min(max(progress, 0.0), 1.0))

    def words(self) -> str:
        moving = f", moving to {self.final:g} by the end" if self.final != self.factor else ""
        return f"the rejected completion counts {self.factor:g}{moving}: less reason to push both down"

    def symbols(self) -> str:
        return f"s_w - {self.factor:g} s_l"


@dataclass(frozen=True)
class Protected(Component):
    """m = s_w - s_l - penalty max(0, -s_w). Pal 2024 (2402.13228)."""

    penalty: float = 50.0
    name: ClassVar[str] = "protected"

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise ValueError(f"contrast.penalty is {self.penalty:g}; give a number above 0, or contrast=difference")

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected - self.penalty * (-chosen).clamp(min=0)

    def at(self, progress: float) -> Protected:
        return self

    def words(self) -> str:
        return f"a chosen completion that is worth less than nothing costs {self.penalty:g} times what it lacks"

    def symbols(self) -> str:
        return f"s_w - s_l - {self.penalty:g} max(0, -s_w)"
