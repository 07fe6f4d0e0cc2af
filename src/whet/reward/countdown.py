"""The reward for Countdown: reach a target with the given numbers and + - * / ( )."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from whet.reward.answer import final_answer
from whet.types import Prompt, WhetError

LONGEST = 500  # characters of an expression worth reading
CHARACTERS = re.compile(r"[0-9+\-*/() ]+")
OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def countdown(prompt: Prompt, completion: str) -> float:
    """1 when the final answer is an expression that uses the numbers as asked and equals `prompt.answer`.

    `meta["numbers"]` may each be used once, and all must be unless `meta["use_all"]` is false. An equation
    ("3 * 8 = 24") is not an expression.
    """
    numbers = Counter(_numbers(prompt))
    target = _integer(prompt.answer)
    if target is None:
        raise WhetError(
            f"reward 'countdown' needs a whole number as the answer of prompt {prompt.id!r}, "
            f"not {prompt.answer!r}; fix the row"
        )
    tree = _expression(final_answer(completion) or "")
    if tree is None:
        return 0.0
    used = Counter(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    fits = used == numbers if prompt.meta.get("use_all", True) else used <= numbers
    try:
        return float(fits and _value(tree) == target)
    except ZeroDivisionError:
        return 0.0


def _numbers(prompt: Prompt) -> list[int]:
    listed = prompt.meta.get("numbers")
    numbers = [_integer(number) for number in listed] if isinstance(listed, list | tuple) else []
    if not numbers or None in numbers:
        raise WhetError(
            f"reward 'countdown' needs a list of whole numbers in the column `numbers` of prompt {prompt.id!r}, "
            f"not {listed!r}; fix the row"
        )
    return [number for number in numbers if number is not None]


def _integer(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str) else operator.index(value)
    except (TypeError, ValueError):
        return None


def _expression(text: str) -> ast.expr | None:
    """The parsed expression, or None for anything but whole numbers, + - * / and parentheses."""
    if len(text) > LONGEST or not CHARACTERS.fullmatch(text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return tree if _is_plain(tree) else None


def _is_plain(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return type(node.op) in OPERATORS and _is_plain(node.left) and _is_plain(node.right)
    return isinstance(node, ast.Constant) and type(node.value) is int


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return Fraction(node.value)
