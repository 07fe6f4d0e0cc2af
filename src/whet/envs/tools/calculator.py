"""Exact arithmetic on integers and decimals. Nothing is evaluated: the expression is read as a syntax tree."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction

from whet.data import tool_syntax
from whet.envs.tools.tool import ToolFailed

MOST_BITS = 4096  # of a number on the way, above or below the line
MOST_DIGITS = 15  # after the point of a number that does not end
LONGEST = 1000  # characters
DEEPEST = 100  # operations inside each other
EXPECTED = "expected numbers, + - * / // % ** and parentheses"
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
SIGNS = str.maketrans({"\u00d7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-", "^": "**", "$": " "})


def calculator(expression: str) -> str:
    """Work out an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, such as (12 + 3.5) * 4.
    """
    if len(expression) > LONGEST:
        raise ToolFailed(f"the expression has {len(expression)} characters; at most {LONGEST} are read")
    text = THOUSANDS.sub("", expression.translate(SIGNS)).strip().removesuffix("=").strip()
    if not text:
        raise ToolFailed(f"the expression is empty; {EXPECTED}")
    try:
        tree = tool_syntax.expression(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ToolFailed(f"cannot read {expression!r}; {EXPECTED}") from None
    return written(_value(tree, text, 0))


def _value(node: ast.expr, text: str, depth: int) -> Fraction:
    if depth > DEEPEST:
        raise ToolFailed(f"more than {DEEPEST} operations inside each other; write a shorter expression")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _checked(_number(node, text))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, text, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left, text, depth + 1), _value(node.right, text, depth + 1)
        try:
            return _checked(OPERATIONS[type(node.op)](left, right))
        except ZeroDivisionError:
            raise ToolFailed("division by zero") from None
    raise ToolFailed(f"cannot work out {ast.unparse(node)[:60]!r}; {EXPECTED}")


def _number(node: ast.Constant, text: str) -> Fraction:
    """The exact value of a literal: a decimal is read from its digits, not from the nearest binary number."""
    piece = ast.get_source_segment(text, node) or ""
    if isinstance(node.value, int):
        return Fraction(node.value)
    exponent = Decimal(piece.replace("_", ""))
    if abs(exponent.adjusted()) > MOST_BITS:
        raise ToolFailed("a number is too large or too small")
    return Fraction(exponent)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        root = _exact_root(base, exponent)
        if root is None:
            # the nearest number that floats have
            try:
                approximate = float(base) ** float(exponent)
            except (OverflowError, ZeroDivisionError):
                raise ToolFailed("a number is too large or too small") from None
            if isinstance(approximate, complex):
                raise ToolFailed("the root of a negative number is not real")
            return Fraction(approximate)
        return root
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent.numerator)
    if size > MOST_BITS and abs(base) not in (0, 1):
        raise ToolFailed("a number is too large or too small")
    return Fraction(base**exponent.numerator)


def _exact_root(base: Fraction, exponent: Fraction) -> Fraction | None:
    """base ** (p / q) where it is a fraction; None where it is not."""
    if base < 0 or exponent.denominator > 64:
        return None
    parts = []
    for number in (base.numerator, base.denominator):
        root = round(number ** (1 / exponent.denominator)) if number.bit_length() < 900 else 0
        if root**exponent.denominator != number:
            return None
        parts.append(root)
    return _power(Fraction(*parts), Fraction(exponent.numerator))


def _checked(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise ToolFailed("a number is too large or too small")
    return value


OPERATIONS: Mapping[type, Callable[[Fraction, Fraction], Fraction]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: lambda left, right: Fraction(left // right), ast.Mod: operator.mod, ast.Pow: _power},
}


def written(value: Fraction) -> str:
    """An integer, a decimal that ends, or the first digits of one that does not."""
    if value.denominator == 1:
        return str(value.numerator)
    bare = value.denominator
    for prime in (2, 5):
        while bare % prime == 0:
            bare //= prime
    digits = 0
    if bare == 1:
        while value.denominator and 10**digits % value.denominator:
            digits += 1
    digits = digits if bare == 1 and digits <= MOST_DIGITS else MOST_DIGITS
    scaled = abs(value) * 10**digits
    whole = round(scaled)
    if whole == 0:  # so small that no digit would be left
        return f"{float(value):.15g}"
    before, after = divmod(whole, 10**digits)
    fraction = f"{after:0{digits}d}".rstrip("0")
    return f"{'-' if value < 0 else ''}{before}{'.' + fraction if fraction else ''}"
