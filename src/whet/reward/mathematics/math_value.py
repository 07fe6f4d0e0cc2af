"""What an answer of mathematics says: quantities, lists, tuples, sets, relations, matrices, names.

Sets of real numbers: intervals, inequalities, and what unions, intersections and complements make of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.evaluate import context, exact_value, value_at
from whet.reward.mathematics.formula import Formula, symbols_of
from whet.reward.mathematics.tokens import Unreadable
from whet.reward.mathematics.units import COUNTS


class MathValue:
    """What an answer says."""


@dataclass(frozen=True)
class Quantity(MathValue):
    """A number or formula as a text says it, with or without a unit."""

    formula: Formula  # as written: 40 for "40%", 5 for "5 dozen"
    percent: bool = False
    unit: str = ""  # in lower case
    counted: str = ""  # the word that multiplies the value: dozen, tenth
    step: Fraction = Fraction(0)  # one unit of the last digit of a long decimal, 0 for other numbers

    @property
    def value(self) -> Fraction | None:
        """The formula's value where it is a rational number; percent sign and words are not applied."""
        return exact_value(self.formula)

    @property
    def is_number(self) -> bool:
        """True where nothing is left to be worked out."""
        return bool(self.formula[0] == "number")

    def scaled(self, factor: Fraction) -> Quantity:
        """The same with a multiple of the number."""
        if factor == 1:
            return self
        value = exact_value(self.formula)
        formula = ("product", ("number", factor), self.formula) if value is None else ("number", value * factor)
        return replace(self, formula=formula, step=self.step * factor)

    def counted_out(self) -> Quantity:
        """60 for 5 dozen."""
        return replace(self.scaled(COUNTS[self.counted]), counted="") if self.counted else self


@dataclass(frozen=True)
class Based(MathValue):
    """Digits in another base than ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Name(MathValue):
    """Words, such as a day of the week."""

    words: str


@dataclass(frozen=True)
class Members(MathValue):
    r"""Several values. `kind` is "list" (no brackets, or plain braces: a list or a set, as the other side has it),
    "set" (\{...\}), "ratio" (7:4), "clock" (7:40 p.m.), "matrix", "row", or the two brackets of a tuple or interval:
    "()", "[)"."""

    kind: str
    members: tuple[MathValue, ...]

    @property
    def is_unordered(self) -> bool:
        """True for a list or a set: the order of its members means nothing."""
        return self.kind in ("list", "set")


@dataclass(frozen=True)
class Relation(MathValue):
    """a < b <= c: the sides and the signs between them."""

    sides: tuple[MathValue, ...]
    signs: tuple[str, ...]
    named: str = ""  # what the left side names, where an equation only says what something is


@dataclass(frozen=True)
class Region(MathValue):
    """A set of real numbers: its ends in ascending order, and which of the 2n + 1 parts of the line belong to it.

    The parts are what lies below the first end, that end itself, what lies between it and the next, and so on.
    """

    ends: tuple[MathValue, ...]
    inside: tuple[bool, ...]
    is_relation: bool = False  # written as inequalities, without set brackets
    variable: str = ""

    def complement(self) -> Region:
        """All other real numbers."""
        return replace(self, inside=tuple(not part for part in self.inside))

    def of_absolute(self) -> Region:
        """The numbers whose absolute value lies in the region."""
        positive = joined((self, half(number(0), r"\ge")), "and")
        return joined((positive, positive.of_linear(Fraction(-1), Fraction(0))), "or")

    def of_linear(self, slope: Fraction, start: Fraction) -> Region:
        """The numbers x for which slope * x + start lies in the region."""
        ends = [
            Quantity(("quotient", ("sum", formula_of(end), ("number", -start)), ("number", slope))) for end in self.ends
        ]
        turn = 1 if slope > 0 else -1
        return replace(self, ends=tuple(ends[::turn]), inside=self.inside[::turn])


def number(value: int | Fraction) -> Quantity:
    """A plain number without a unit."""
    return Quantity(("number", Fraction(value)))


def formula_of(value: MathValue) -> Formula:
    """A value as one formula, where it is one."""
    if isinstance(value, Quantity):
        return value.scaled(Fraction(1, 100)).formula if value.percent else value.formula
    if isinstance(value, Relation) and value.named:
        return formula_of(value.sides[1])
    raise Unreadable("a structure where a number or formula is expected")


def is_constant(value: MathValue) -> bool:
    """True for a number, and for a formula without symbols."""
    return isinstance(value, Quantity) and not symbols_of(value.formula)


def infinite(value: MathValue) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    formula = value.formula if isinstance(value, Quantity) else ()
    infinity = ("constant", "infinity")
    return (formula == infinity) - (formula == ("negative", infinity))


EVERYTHING = Region((), (True,))
# which parts of the line stand in this relation to an end: below it, the end itself, above it
PARTS = {
    **{"<": (True, False, False), r"\le": (True, True, False), "=": (False, True, False)},
    **{">": (False, False, True), r"\ge": (False, True, True), r"\ne": (True, False, True)},
}
SAME_PLACE = 1e-40


def half(end: MathValue, sign: str) -> Region:
    """What stands in this relation to the end."""
    far = infinite(end)
    if far:
        if PARTS[sign][1]:
            raise Unreadable("a set that holds infinity")
        return Region((), (PARTS[sign][0 if far > 0 else 2],))
    return Region((end,), PARTS[sign])


def region_of(value: MathValue) -> Region:
    """A value as a set of real numbers."""
    if isinstance(value, Region):
        return value
    if isinstance(value, Members) and len(value.members) == 2 and value.kind[:1] in ("(", "["):
        low, high = value.members
        closed = value.kind[0] == "[", value.kind[1] == "]"
        if all(map(is_constant, value.members)) or any(map(infinite, value.members)):
            return joined((half(low, r"\ge" if closed[0] else ">"), half(high, r"\le" if closed[1] else "<")), "and")
        return Region((low, high), (False, closed[0], True, closed[1], False))  # the order of symbols is as written
    if isinstance(value, Members) and value.kind == "set":
        return joined([half(member, "=") for member in value.members], "or")
    raise Unreadable("a union of what are no sets of numbers")


def joined(regions: Sequence[Region], how: str) -> Region:
    """The union of all ("or"), or their intersection ("and")."""
    combine: Callable[[Any, Any], Any] = operator.or_ if how == "or" else operator.and_
    whole = EVERYTHING if how == "and" else EVERYTHING.complement()
    return functools.reduce(lambda first, second: _combined(first, second, combine), regions, whole)


def _combined(first: Region, second: Region, combine: Callable[[Any, Any], Any]) -> Region:
    ends = _merged(first.ends, second.ends) if first.ends and second.ends else (first.ends or second.ends)
    parts = list(map(combine, _spread(first, ends), _spread(second, ends)))
    # ends at which nothing changes are left out
    changes = [at for at in range(len(ends)) if not parts[2 * at] == parts[2 * at + 1] == parts[2 * at + 2]]
    inside = (parts[0], *(part for at in changes for part in parts[2 * at + 1 : 2 * at + 3]))
    return replace(
        first, ends=tuple(ends[at] for at in changes), inside=inside, variable=first.variable or second.variable
    )


def _merged(first: Sequence[MathValue], second: Sequence[MathValue]) -> tuple[MathValue, ...]:
    ends: list[MathValue] = []
    for end in sorted((*first, *second), key=_position):
        if not ends or not _is_same_place(ends[-1], end):
            ends.append(end)
    return tuple(ends)


def _spread(region: Region, ends: Sequence[MathValue]) -> list[bool]:
    """Which parts of the line cut at these ends belong to the region; its own ends are among them."""
    if region.ends == tuple(ends):
        return list(region.inside)
    inside, part = [region.inside[0]], 0
    for end in ends:
        at_own = part < len(region.ends) and _is_same_place(region.ends[part], end)
        part += at_own
        inside += [region.inside[2 * part - at_own], region.inside[2 * part]]
    return inside


def _position(end: MathValue) -> Any:
    """The position of an end on the line of real numbers."""
    formula = formula_of(end)
    if symbols_of(formula):
        raise Unreadable("a set whose ends have symbols")
    position = value_at(formula, {})
    if context().im(position):
        raise Unreadable("a set whose ends are no real numbers")
    return context().re(position)


def _is_same_place(first: MathValue, second: MathValue) -> bool:
    positions = _position(first), _position(second)
    return bool(abs(positions[0] - positions[1]) <= max(map(abs, positions)) * SAME_PLACE)
