"""The calculator: exact, and bounded whatever it is asked."""

from __future__ import annotations

import re
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.for_every import for_every
from whet.envs.tools.calculator import calculator
from whet.envs.tools.tool import ToolFailed


@for_every(
    [
        ("2 + 3 * 4", "14"),
        ("(12 + 3.5) * 4", "62"),
        ("0.1 + 0.2", "0.3"),
        ("1 / 8", "0.125"),
        ("1 / 3", "0.333333333333333"),
        ("-2 / 3", "-0.666666666666667"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("7.5 % 2", "1.5"),
        ("2 ** 100", str(2**100)),
        ("2 ** -2", "0.25"),
        ("2^10", "1024"),
        ("9 ** 0.5", "3"),
        ("8 ** (1/3)", "2"),
        ("9 ** (65/2)", str(3**65)),
        ("2 ** 0.5", "1.414213562373095"),
        ("1,234,567 * 2", "2469134"),
        ("$12.50 \u00d7 4", "50"),
        ("6 \u00f7 4 =", "1.5"),
        ("1e3 + 1", "1001"),
        ("1_000 * 2", "2000"),
        ("-(-3)", "3"),
        ("12345678901234567890 * 98765432109876543210", str(12345678901234567890 * 98765432109876543210)),
        ("1 / 10 ** 30", "1e-30"),
        ("0 ** 0", "1"),
    ]
)
def test_results(expression, result):
    assert calculator(expression) == result


@for_every(
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("2 ** 5000", "too large"),
        ("1e100000000", "too large"),
        ("1e-999999999", "too large"),
        ("(-8) ** 0.5", "not real"),
        ("", "empty"),
        ("2 +", "cannot read"),
        ("two plus two", "cannot read"),
        ("x + 1", "cannot work out 'x'"),
        ("__import__('os').system('ls')", "cannot work out"),
        ("[1, 2]", "cannot work out"),
        ("1 < 2", "cannot work out"),
        ("'a' * 9", "cannot work out"),
        ("1j", "cannot work out"),
        ("True + 1", "cannot work out"),
        ("(" * 400 + "1" + ")" * 400, "cannot read"),
        ("-" * 900 + "1", "inside each other"),
        ("1" * 1001, "at most 1000"),
        ("1\n+ 2", "cannot read"),
    ]
)
def test_everything_else_is_a_failure_in_one_line(expression, problem):
    started = time.monotonic()
    with pytest.raises(ToolFailed, match=problem) as met:
        calculator(expression)
    assert time.monotonic() - started < 10
    assert "\n" not in str(met.value)


NUMBERS = st.integers(-99, 99).map(lambda n: f"({n})") | st.decimals(-99, 99, places=2).map(lambda d: f"({d})")
EXPRESSIONS = st.recursive(
    NUMBERS, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})")
)


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS)
def test_it_agrees_with_fractions(expression):

    exact = re.sub(r"\(-?[\d.]+\)", lambda match: f"Fraction('{match[0][1:-1]}')", expression)
    try:
        expected = eval(exact, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(ToolFailed, match="division by zero"):
            calculator(expression)
        return
    try:
        found = Fraction(calculator(expression))
    except ToolFailed as failed:
        assert "large" in str(failed)
        return
    assert abs(found - expected) <= abs(expected) * Fraction(1, 10**13) + Fraction(1, 10**15)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="0123456789.+-*/()%^e ,x='\"[]{}\\\n\0", max_size=40))
def test_no_text_does_anything_but_fail(text):
    try:
        assert isinstance(calculator(text), str)
    except ToolFailed as failed:
        assert "\n" not in str(failed)
