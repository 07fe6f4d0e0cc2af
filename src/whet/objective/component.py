"""What every component of a method has: a name, what it needs annotated, and itself in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol

from whet.types import WhetError, did_you_mean


class ComponentProtocol(Protocol):
    """What every axis asks of its components; the Protocol of an axis adds what its question needs."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def words(self) -> str:
        """The component in a sentence; empty where there is nothing to say."""
        ...


@dataclass(frozen=True)
class Component:
    """One choice on one axis of a method. Its fields are its numbers; a class that adds some is a frozen dataclass."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # fields of TokenBatch or Extras beyond rewards
    in_words: ClassVar[str] = ""  # the component in a sentence; `{0.beta:g}` stands for one of its numbers
    in_symbols: ClassVar[str] = ""  # and in the objective's formula; {1}, {2} stand for what `symbols` is called with

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
    """Where a method departs from another: `{"clip.high": "0.2 -> 0.28"}`; empty where they are the same."""
    changes: dict[str, str] = {}
    for axis in axes:
        before, after = getattr(original, axis), getattr(objective, axis)
        if type(before) is not type(after):
            changes[axis] = f"{before.name} -> {after.name}"
            continue
        for field in fields(after):
            old, new = getattr(before, field.name), getattr(after, field.name)
            if old != new:
                changes[f"{axis}.{field.name}"] = f"{old:g} -> {new:g}"
    return changes
