"""What every component of a method has: a name, what it needs annotated, and itself in words."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from whet.types import WhetError, did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class NumberRange:
    """The range in which a number of a component must lie; infinite ends are open."""

    low: float
    high: float
    has_low: bool  # the end itself is allowed
    has_high: bool
    instead: str  # the component to choose where the number would have no effect

    def __contains__(self, value: float) -> bool:
        above = value >= self.low if self.has_low else value > self.low
        return above and (value <= self.high if self.has_high else value < self.high)

    def __str__(self) -> str:
        ends = f"{'[' if self.has_low else '('}{self.low:g}, {self.high:g}{']' if self.has_high else ')'}"
        half_open = f"{self.low:g} or more" if self.has_low else f"a number above {self.low:g}"
        text = f"a share in {ends}" if self.high < math.inf else half_open
        return f"{text}, or {self.instead}" if self.instead else text


def number(
    default: Any = MISSING,
    *,
    above: float | None = None,
    least: float = -math.inf,
    below: float | None = None,
    most: float = math.inf,
    instead: str = "",
) -> Any:
    """A number of a component with the range that it must lie in, also where a subclass gives another default."""
    low, high = least if above is None else above, most if below is None else below
    limits = NumberRange(low, high, above is None, below is None, instead)
    return field(default=default, metadata={"range": limits})


def _ranges(kind: type) -> dict[str, NumberRange]:
    declared = [vars(base).get("__dataclass_fields__", {}) for base in reversed(kind.__mro__)]
    return {name: known.metadata["range"] for group in declared for name, known in group.items() if known.metadata}


def given(value: T | None, needed: str) -> T:
    """What a batch holds; where it holds none, an error that begins with who needs what."""
    if value is None:
        raise ValueError(f"{needed} and the batch has none")
    return value


@dataclass(frozen=True)
class Component(ABC):
    """One choice on one axis of a method. Its fields are its numbers; a class that adds some is a frozen dataclass.

    The class of an axis adds what its question asks, with the usual answer where there is one.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # fields of TokenBatch or Extras beyond rewards
    in_words: ClassVar[str] = ""  # the component in a sentence; `{0.beta:g}` stands for one of its numbers
    in_symbols: ClassVar[str] = ""  # and in the objective's formula; {1}, {2} stand for what `symbols` is called with

    def __post_init__(self) -> None:
        for name, limits in _ranges(type(self)).items():
            if getattr(self, name) not in limits:
                raise ValueError(f"{name} is {getattr(self, name):g}; give {limits}")

    def words(self) -> str:
        """The component in a sentence; empty where there is nothing to say."""
        return self.in_words.format(self)

    def symbols(self, *inner: Any, **named: Any) -> str:
        """The component in the objective's formula, around the expressions that its axis gives it."""
        return self.in_symbols.format(self, *inner, **named)


def with_number(axis: str, component: Any, name: str, value: Any) -> Any:
    """The component of an axis with one of its numbers set; a mistake is told in the words of the config."""
    settable = [field.name for field in fields(component)]
    if name not in settable:
        known, close = ", ".join(settable) or "nothing", did_you_mean(name, settable)
        raise WhetError(f"objective.{axis}.{name}: {component.name} has no such number{close}; it has {known}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WhetError(f"objective.{axis}.{name} is {value!r}; give a number")
    return replace(component, **{name: float(value)})


def departures(original: Any, objective: Any, axes: Iterable[str]) -> dict[str, str]:
    """The departures of a method from another: `{"clip.high": "0.2 -> 0.28"}`; empty where they are the same."""
    changes: dict[str, str] = {}
    for axis in axes:
        before, after = getattr(original, axis), getattr(objective, axis)
        if type(before) is not type(after):
            changes[axis] = f"{before.name} -> {after.name}"
            continue
        for known in fields(after):
            old, new = getattr(before, known.name), getattr(after, known.name)
            if old != new:
                changes[f"{axis}.{known.name}"] = f"{old:g} -> {new:g}"
    return changes
