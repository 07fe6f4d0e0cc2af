"""What an answer of mathematics says: numbers, formulas, lists, tuples, intervals, sets, relations, matrices.

Sets of real numbers: intervals, inequalities, and what unions, intersections and complements make of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.formula import Formula, Unreadable, context, exact_value, substituted, symbols_of, value_at
from whet.reward.mathematics.quantity import Quantity


class MathValue:
    """What an answer says."""


@dataclass(frozen=True)
class Number(MathValue):
    """A plain number with or without a unit."""

    quantity: Quantity


@dataclass(frozen=True)
class Expression(MathValue):
    """A formula with or without a unit."""

    formula: Formula
    unit: str = ""


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
class Clock(MathValue):
    """A time of day, or a ratio that looks like one."""

    hour: int
    minute: int
    second: int
    half: str  # a, p, or "" where it is not said


@dataclass(frozen=True)
class Members(MathValue):
    r"""Several values. `kind` is "list" (no brackets, or plain braces: a list or a set, as the other side has it),
    "set" (\{...\}), "ratio" (7:4), "matrix", "row", or the two brackets of a tuple or interval: "()", "[)"."""

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


def number(value: int | Fraction) -> Number:
    """A plain number without a unit."""
    return Number(Quantity(Fraction(value), False, ""))


def formula_of(value: MathValue) -> Formula:
    """A value as one formula, where it is one."""
    if isinstance(value, Number):
        return ("number", value.quantity.value / (100 if value.quantity.percent else 1))
    if isinstance(value, Expression):
        return value.formula
    if isinstance(value, Relation) and value.named:
        return formula_of(value.sides[1])
    raise Unreadable("a structure where a number or formula is expected")


def is_constant(value: MathValue) -> bool:
    """True for a number, and for a formula without symbols."""
    return isinstance(value, Number) or (isinstance(value, Expression) and not symbols_of(value.formula))


def infinite(value: MathValue) -> int:
    """1 for infinity, -1 for minus infinity, else 0."""
    formula = value.formula if isinstance(value, Expression) else ()
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
        if all(is_constant(end) for end in value.members) or any(map(infinite, value.members)):
            return joined(half(low, r"\ge" if closed[0] else ">"), half(high, r"\le" if closed[1] else "<"), "and")
        return Region((low, high), (False, closed[0], True, closed[1], False))  # the order of symbols is as written
    if isinstance(value, Members) and value.kind == "set":
        return joined_all([half(member, "=") for member in value.members], "or")
    raise Unreadable("a union of what are no sets of numbers")


def joined_all(regions: Sequence[Region], how: str) -> Region:
    """The union of all ("or"), or their intersection ("and")."""
    whole = EVERYTHING if how == "and" else complement(EVERYTHING)
    for region in regions:
        whole = joined(whole, region, how)
    return whole


def joined(first: Region, second: Region, how: str) -> Region:
    """The union of two regions ("or"), or their intersection ("and")."""
    combine: Callable[[Any, Any], Any] = operator.or_ if how == "or" else operator.and_
    ends = _merged(first.ends, second.ends) if first.ends and second.ends else (first.ends or second.ends)
    parts = zip(_spread(first, ends), _spread(second, ends), strict=True)
    variable = first.variable or second.variable
    return _plain(replace(first, ends=ends, inside=tuple(combine(*pair) for pair in parts), variable=variable))


def complement(region: Region) -> Region:
    """All other real numbers."""
    return replace(region, inside=tuple(not part for part in region.inside))


def of_absolute(region: Region) -> Region:
    """The numbers whose absolute value lies in the region."""
    positive = joined(region, half(number(0), r"\ge"), "and")
    return joined(positive, of_linear(positive, Fraction(-1), Fraction(0)), "or")


def of_linear(region: Region, slope: Fraction, start: Fraction) -> Region:
    """The numbers x for which slope * x + start lies in the region."""
    ends = [
        Expression(("quotient", ("sum", formula_of(end), ("number", -start)), ("number", slope))) for end in region.ends
    ]
    turn = 1 if slope > 0 else -1
    return replace(region, ends=tuple(ends[::turn]), inside=region.inside[::turn])


def line_of(formula: Formula, symbol: str) -> tuple[Fraction, Fraction] | None:
    """(a, b) of a formula that is a x + b; None for any other."""
    values = [exact_value(substituted(formula, symbol, Fraction(at))) for at in (0, 1, 5)]
    zero, one, five = values
    if zero is None or one is None or five is None or one == zero or five != zero + 5 * (one - zero):
        return None
    return one - zero, zero


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


def _plain(region: Region) -> Region:
    """The region without ends at which nothing changes."""
    ends, inside = [], [region.inside[0]]
    for number_of_end, end in enumerate(region.ends):
        below, at, above = region.inside[2 * number_of_end : 2 * number_of_end + 3]
        if not below == at == above:
            ends.append(end)
            inside += [at, above]
    return replace(region, ends=tuple(ends), inside=tuple(inside))


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
