"""What an answer of mathematics says: quantities, lists, tuples, sets, relations, matrices, names.

Sets of real numbers: intervals, inequalities, and what unions, intersections and complements make of them.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
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
class Name(MathValue):
    """Words, such as a day of the week."""

    words: str


@dataclass(frozen=True)
class Members(MathValue):
    r"""Several values. `kind` is "list" (no brackets, or plain braces: a list or a set, as the other side has it),
    "set" (\{...\}), "ratio" (7:4), "clock" (7:40 p.m.), "matrix", "row", "base 5" (12_5), or the two brackets of a
    tuple or interval: "()", "[)"."""

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

    @functools.cached_property
    def places(self) -> list[Any]:
        """The positions of the ends."""
        return list(map(position, self.ends))

    def holds(self, place: Any) -> bool:
        """True where the number at this `position` belongs to the set."""
        below = bisect.bisect_left(self.places, place)
        return self.inside[2 * below + (self.places[below : below + 1] == [place])]


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
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    **{"<": operator.lt, r"\le": operator.le, "=": operator.eq},
    **{">": operator.gt, r"\ge": operator.ge, r"\ne": operator.ne},
}
TURNED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
ZERO, ONE = Fraction(0), Fraction(1)
SAME_PLACE = 45  # digits


def position(end: MathValue) -> Any:
    """The place of an end on the line of real numbers."""
    formula = formula_of(end)
    if symbols_of(formula):
        raise Unreadable("a set whose ends have symbols")
    place = value_at(formula, {})
    if context().im(place):
        raise Unreadable("a set whose ends are no real numbers")
    return +context(SAME_PLACE).re(place)


def region_where(holds: Callable[[Any], bool], ends: Iterable[MathValue]) -> Region:
    """The set of the numbers whose positions hold; at no place but these ends may it begin or end."""
    place_of = {position(end): end for end in ends}
    places = sorted(place for place in place_of if abs(place) < math.inf)
    probes = [places[0] - 1 - abs(places[0]) if places else 0]
    for place, following in itertools.zip_longest(places, places[1:]):
        probes += [place, place + 1 + abs(place) if following is None else (place + following) / 2]
    inside = [bool(holds(probe)) for probe in probes]
    changes = [at for at in range(len(places)) if len(set(inside[2 * at : 2 * at + 3])) > 1]
    return Region(
        tuple(place_of[places[at]] for at in changes),
        (inside[0], *(part for at in changes for part in inside[2 * at + 1 : 2 * at + 3])),
    )


def joined(regions: Sequence[Region], how: Callable[[Iterable[bool]], bool]) -> Region:
    """The union (`any`) or the intersection (`all`)."""
    return region_where(
        lambda place: how(region.holds(place) for region in regions), (end for region in regions for end in region.ends)
    )


def half(end: MathValue, sign: str, slope: Fraction = ONE, start: Fraction = ZERO) -> Region:
    """The numbers x for which slope * x + start stands in this relation to the end."""
    if infinite(end) and sign in (r"\le", r"\ge", "="):
        raise Unreadable("a set that holds infinity")
    if slope != 1 or start:
        end = Quantity(("quotient", ("sum", formula_of(end), ("number", -start)), ("number", slope)))
    holds, bound = HOLDS[sign if slope > 0 else TURNED[sign]], position(end)
    return region_where(lambda place: holds(place, bound), [end])


def region_of(value: MathValue) -> Region:
    """A value as a set of real numbers."""
    if isinstance(value, Region):
        return value
    if isinstance(value, Members) and len(value.members) == 2 and value.kind[:1] in ("(", "["):
        low, high = value.members
        closed = value.kind[0] == "[", value.kind[1] == "]"
        if any(is_closed and infinite(end) for is_closed, end in zip(closed, value.members, strict=True)):
            raise Unreadable("a set that holds infinity")
        if all(map(is_constant, value.members)):
            first, last = map(position, value.members)
            above, below = HOLDS[r"\ge" if closed[0] else ">"], HOLDS[r"\le" if closed[1] else "<"]
            return region_where(lambda place: above(place, first) and below(place, last), value.members)
        # the order of symbols is as written
        inside = (False, closed[0], True, closed[1], False)[2 * abs(infinite(low)) : 5 - 2 * abs(infinite(high))]
        return Region(tuple(end for end in value.members if not infinite(end)), inside)
    if isinstance(value, Members) and value.kind == "set":
        return joined([half(member, "=") for member in value.members], any)
    raise Unreadable("a union of what are no sets of numbers")
