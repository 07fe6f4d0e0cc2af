"""What an answer of mathematics says: numbers, formulas, lists, tuples, intervals, sets, relations, matrices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from whet.reward.mathematics.formula import Formula, Unreadable, symbols_of
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
