"""The value of a formula: a fraction where it is one, else a number of 60 digits.

Sizes that could take long are refused.
"""

from __future__ import annotations

import functools
import math
import operator
import threading
import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from whet.reward.mathematics.formula import Formula, walk
from whet.reward.mathematics.tokens import Unreadable

LARGEST_BITS = 60_000  # of an exact number, and of the exponent of any other
LARGEST_FACTORIAL = 3000
DIGITS = 60  # that constants are computed with

_contexts = threading.local()  # mpmath's own context is one for the whole process, with a precision anyone may change


class TooLarge(Unreadable):
    """A number that is too large to be computed."""


def context(digits: int = DIGITS) -> Any:
    """This thread's mpmath, set to so many digits."""
    if not hasattr(_contexts, "mpmath"):
        import mpmath

        _contexts.mpmath = mpmath.mp.clone()
    if _contexts.mpmath.dps != digits:  # setting it takes long
        _contexts.mpmath.dps = digits
    return _contexts.mpmath


@functools.lru_cache(maxsize=8192)
def exact_value(formula: Formula) -> Fraction | None:
    """The rational number that the formula is, None where it is none or only a computation could tell."""
    if not all(part[0] in RATIONAL for part in walk(formula)):
        return None
    value = _value(formula, {}, DIGITS)
    return value if isinstance(value, Fraction) else None


def line_of(formula: Formula, symbol: str) -> tuple[Fraction, Fraction] | None:
    """(a, b) of a formula that is a x + b; None for any other."""
    places = [Fraction(at) for at in (0, 1, -5, 8)]
    zero, one, *others = (_value(formula, {symbol: at}, DIGITS) for at in places)
    is_exact = all(isinstance(value, Fraction) for value in (zero, one, *others))
    is_line = is_exact and one != zero and others == [zero + at * (one - zero) for at in places[2:]]
    return (one - zero, zero) if is_line else None


def value_at(formula: Formula, point: Mapping[str, Any], digits: int = DIGITS) -> Any:
    """The value as an mpmath number, with the symbols' values given; `Unreadable` where there is none."""
    return context(digits).convert(_value(formula, point, digits))


def _value(formula: Formula, point: Mapping[str, Any], digits: int) -> Any:
    mp = context(digits)
    try:
        value = _computed(formula, point, mp)
    except ZeroDivisionError:
        raise Unreadable("a division by zero") from None
    except (ValueError, OverflowError, TypeError, mp.NoConvergence) as error:
        raise Unreadable(f"a value that cannot be computed ({type(error).__name__})") from None
    if mp.isnan(value):
        raise Unreadable("a value that is no number")
    return value


def _computed(formula: Formula, point: Mapping[str, Any], mp: Any) -> Any:
    """A fraction as long as all parts are fractions and the operation keeps to them, else an mpmath number."""
    kind = formula[0]
    if kind == "number":
        return formula[1]
    if kind == "symbol":
        return point[formula[1]]
    if kind == "constant":
        return {"pi": mp.pi, "e": mp.e, "i": mp.j, "infinity": mp.inf}[formula[1]] * 1
    parts = [_computed(part, point, mp) for part in formula[1:]]
    if kind not in OPERATIONS or not all(isinstance(part, Fraction) for part in parts):
        parts = [mp.convert(part) for part in parts]
    return _bounded(mp, OPERATIONS[kind](mp, *parts) if kind in OPERATIONS else getattr(mp, kind)(*parts))


def _bounded(mp: Any, value: Any) -> Any:
    if isinstance(value, Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    else:
        bits = abs(mp.mag(value)) if value and not mp.isinf(value) else 0
    if bits > LARGEST_BITS:
        raise TooLarge("a number this large")
    return value


def _one_by_one(operation: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda mp, *parts: functools.reduce(lambda one, other: _bounded(mp, operation(one, other)), parts)


def _power(mp: Any, base: Any, exponent: Any) -> Any:
    is_exact = isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1
    if is_exact and base in (1, -1):
        return base ** int(exponent % 2)
    if mp.isinf(base) or mp.isinf(exponent):
        raise Unreadable("a power of infinity")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length()) if is_exact else 1
    size = abs(exponent) * max(bits, abs(mp.log(abs(base), 2))) if base else 0
    if size > LARGEST_BITS:
        raise TooLarge("a power this large")
    return base ** int(exponent) if is_exact else mp.power(base, exponent)


def _root(mp: Any, value: Any, index: Any) -> Any:
    if index == 0:
        raise Unreadable("a root of degree 0")
    odd = mp.isint(index) and int(index) % 2 == 1
    if odd and not mp.im(value) and mp.re(value) < 0:
        return -mp.power(-mp.re(value), 1 / index)
    return mp.sqrt(value) if index == 2 else mp.power(value, 1 / index)


def _counted(mp: Any, *parts: Any, name: str, count: Callable[..., int]) -> Any:
    if any(abs(part) > LARGEST_FACTORIAL for part in parts):
        raise TooLarge("a factorial or binomial of a number this large")
    if all(isinstance(part, Fraction) and part.denominator == 1 and part >= 0 for part in parts):
        return Fraction(count(*map(int, parts)))
    return getattr(mp, name)(*parts)


# all others are mpmath's own functions
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _one_by_one(operator.add),
    "product": _one_by_one(operator.mul),
    "negative": lambda mp, value: -value,
    "quotient": lambda mp, top, bottom: top / bottom,
    "abs": lambda mp, value: abs(value),
    "power": _power,
    "floor": lambda mp, value: Fraction(math.floor(value)) if isinstance(value, Fraction) else mp.floor(value),
    "ceiling": lambda mp, value: Fraction(math.ceil(value)) if isinstance(value, Fraction) else mp.ceil(value),
    "factorial": functools.partial(_counted, name="factorial", count=math.factorial),
    "binomial": functools.partial(_counted, name="binomial", count=math.comb),
    "root": _root,
    "degrees": lambda mp, value: value * mp.pi / 180,
}
# these keep to fractions where they can
RATIONAL = frozenset(("number", *OPERATIONS)) - {"root", "degrees"}


def point_for(symbols: frozenset[str], turn: int, stepped: bool = False) -> dict[str, Any]:
    """A value for each symbol, always the same for the same name and turn; of both signs in odd turns.

    `stepped` is for formulas with floors and ceilings, which small values do not tell apart: whole numbers of all
    sizes, and values between them.
    """
    mp = context()
    values = {}
    for name in symbols:
        seed = zlib.crc32(f"{turn} {name}".encode())
        value = mp.mpf(seed % 1_000_003 + 300_007) / 700_001
        if stepped:
            value = mp.mpf(seed % (7 * 4 ** (turn % 8 + 1))) + 2 + (value / 3 if turn % 3 == 2 else 0)
        is_positive = turn % 2 == 0 or stepped or (turn % 4 == 3 and (seed >> 8) % 2)
        values[name] = value if is_positive else -value
    return values
