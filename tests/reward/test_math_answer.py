"""Quantities, tolerance and loosely marked answers of the math reward."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.mathematics import quantity as quantity_module
from whet.reward.mathematics.math_answer import math_answer, math_answers
from whet.reward.mathematics.quantity import quantity
from whet.reward.mathematics.same_value import Comparison, same
from whet.reward.mathematics.units import measure
from whet.types import Prompt, WhetError


def prompt(answer: Any) -> Prompt:
    return Prompt("p", (), text="q", answer=answer)


@for_every(
    [
        ("15 (apples)", 15, "apples"),
        ("5 km", 5, "km"),
        (r"5\text{ km}", 5, "km"),
        ("1 1/2", Fraction(3, 2), ""),
        (r"1\frac12", Fraction(3, 2), ""),
        ("3 1/2.", Fraction(7, 2), ""),
        (r"\$-\frac12", Fraction(-1, 2), "$"),
        ("zero", 0, ""),
        ("two million and five", 2000005, ""),
        (r"-\frac{3}{4}", Fraction(-3, 4), ""),
        ("$1,234.50", Fraction(2469, 2), "$"),
        (r"\$32,\!348", 32348, "$"),
        ("-$5", -5, "$"),
        ("1e3", 1000, ""),
        ("3 x 10^5", 300000, ""),
        (r"3\times10^{-2}", Fraction(3, 100), ""),
        ("1.5 million", 1500000, ""),
        ("2 1/2 cups", Fraction(5, 2), "cups"),
        (r"90^\circ", 90, "degrees"),
        ("7.", 7, ""),
        ("12 miles per hour", 12, "miles per hour"),
        ("five hundred", 500, ""),
        ("one hundred and five apples", 105, "apples"),
        ("minus twenty-one", -21, ""),
        ("2 thousand", 2000, ""),
        ("$125$ miles", 125, "miles"),
        ("0,111", Fraction(111, 1000), ""),
        ("7 times", 7, "times"),
        ("1 000 000", 1000000, ""),
    ]
)
def test_quantities_people_write(text: str, value: Any, unit: str) -> None:
    found = quantity(text)
    assert found is not None
    assert (found.value, found.unit, found.percent) == (value, unit, False)


@for_every(
    [
        *[
            "",
            "x",
            "5x",
            "5m",
            "5 xy",
            "7 or 8",
            "7 and 8",
            "3 to 4",
            "7 not",
            "2 pi",
            "12:00",
            "5,6",
            "1,22",
            "1/0",
            "--5",
        ],
        *["5 M", "5 docenas", "5 mil", "7 8"],
        *["1,2 1/2", "1 1/2/3", "3 1/2.5", "-$-5", "thousand million", "twenty zero", "one and"],
        *["10 negative", "10 below zero", "5 two", "five two", "5 (x)", "$5 or $7", "10 twenty", "5 loss"],
        *["10^3", "7 minus x", "3 sin x", "1.5 1/2", "1e99999", "7" * 200, "2 + 3", "x = 5", "\uff17"],
    ]
)
def test_what_is_no_quantity(text: str) -> None:
    assert quantity(text) is None


@for_every(
    [
        ("5 km", "5000 m", 0.0, "same"),
        ("5 km", "5 miles", 0.0, "different"),
        ("5 km", "5 kg", 0.0, "different"),
        ("5 km", "5", 0.0, "same"),
        ("10 cents", "$0.10", 0.0, "same"),
        ("60 mph", "60 miles per hour", 0.0, "same"),
        ("1 m^2", "10000 square centimeters", 0.0, "same"),
        ("1 m^2", "10000 centimeters", 0.0, "different"),
        ("9 (apples)", "9 red apples", 0.0, "same"),
        ("50%", "0.5", 0.0, "same"),
        ("50%", "50", 0.0, "same"),
        ("0.5", "50%", 0.0, "same"),
        ("0.5", "51%", 0.0, "different"),
        ("100", "101", 0.01, "same"),
        ("100", "101.1", 0.01, "different"),
        ("0", "0.001", 0.01, "different"),
        ("5 dozen", "60", 0.0, "same"),
        ("5 dozen", "5", 0.0, "different"),
        ("5", "5 dozen", 0.0, "different"),
        ("5 tenths", "0.5", 0.0, "same"),
        ("5", "5 tenths", 0.0, "different"),
        ("3 pairs", "3", 0.0, "different"),
        ("2 score", "2", 0.0, "different"),
        ("5 dozen eggs", "60 eggs", 0.0, "same"),
        ("5 lakh", "500000", 0.0, "same"),
        ("50", "50%", 0.0, "different"),
        ("0.5", "0.5%", 0.0, "different"),
        ("5 cm", "5 m", 0.0, "different"),
        ("1/3", "0.33333333", 0.0, "same"),
        ("1/3", "0.333333", 0.0, "same"),
        ("0.333333", "1/3", 0.0, "same"),
        ("1/3", "0.33", 0.0, "different"),
        ("0.33", "1/3", 0.0, "different"),
        ("2/3", "0.66666666", 0.0, "same"),
        ("1", "0.999999", 0.0, "different"),
        ("1/3", "0.333334", 0.0, "different"),
        ("0.3", "0.30000000000000004", 0.0, "same"),
        ("1234567.89", "1234567.9", 0.0, "different"),
    ]
)
def test_agreement(gold: str, other: str, tolerance: float, expected: str) -> None:
    first, second = quantity(gold), quantity(other)
    assert first is not None and second is not None
    assert same(first, second, Comparison(tolerance)) == (expected == "same")


def test_a_quotient_of_units_is_a_measure_where_both_are() -> None:
    known = [measure(unit) is not None for unit in ("km per hour", "blobs per hour", "km per blob")]
    assert known == [True, False, False]


@for_every(
    [
        ("78.54", "The answer is 78.5", {"tolerance": 0.01}, 1.0),
        ("78.54", "The answer is 78.5", {}, 0.0),
        ("78.54", "The answer is 77.5", {"tolerance": 0.01}, 0.0),
        (r"(\frac{3}{5},\frac{8}{3}]", r"\boxed{(0.6,2.6667]}", {"tolerance": 0.01}, 1.0),
        (r"(\frac{3}{5},\frac{8}{3}]", r"\boxed{(0.6,2.6667)}", {"tolerance": 0.01}, 0.0),
        (r"\{1,2\}", r"\boxed{\{2.001,1\}}", {"tolerance": 0.01}, 1.0),
        (r"\{1,2\}", r"\boxed{\{2.1,1\}}", {"tolerance": 0.01}, 0.0),
        (r"2\pi", r"\boxed{6.28}", {"tolerance": 0.01}, 1.0),
        (r"x \in [-2,7]", r"\boxed{-2 \le x \le 7}", {}, 1.0),
        (r"x \in [-2,7]", r"\boxed{-2 \le x \le 7}", {"relations_as_sets": False}, 0.0),
        ("7", r"\boxed{3} on the way, and \boxed{7}", {"judged": "last"}, 1.0),
        ("3", r"\boxed{3} on the way, and \boxed{7}", {"judged": "last"}, 0.0),
        ("9 (apples)", "#### 9", {}, 1.0),
        ("5 km", r"\boxed{5 miles}", {}, 0.0),
        ("288\\pi", r"\boxed{288pi}", {}, 1.0),
        ("120", "Final Answer: The volume of $ABCD$ is 120. I hope it is correct.", {}, 1.0),
        ("121", "Final Answer: The volume of $ABCD$ is 120. I hope it is correct.", {}, 0.0),
        ("4\\pi", "Final Answer: The area of the disc is $4\\pi$.", {}, 1.0),
        ("4", "Final Answer: The area of the disc is $4\\pi$.", {}, 0.0),
        ("3", "Final answer: Jane started growing Sphere 3 hours ago.", {}, 1.0),
        ("7", "The answer is not 7", {}, 0.0),
        ("7", "The answer is either 5 or 7", {}, 0.0),
        (r"\frac{12}{5,\!525}", r"\boxed{12/5525}", {}, 1.0),
        ("a + b + c", r"\boxed{c+b+a}", {}, 1.0),
        (r"\sin^2 t", r"\boxed{1-\cos^2(t)}", {}, 1.0),
        ("9", r"so it is $\boxed 9$.", {}, 1.0),
        ("2t", "so we get $2t$", {}, 1.0),
        ("2", "so we get $2t$", {}, 0.0),
        ("2t", "so we get $2$", {}, 0.0),
        ("8", r"so it is $\boxed 9$.", {}, 0.0),
        ("2", r"<think>hm</think><tool_call>calc('5**2')</tool_call> The answer is 25", {}, 0.0),
        ("25", r"<think>hm</think><tool_call>calc('5**2')</tool_call> The answer is 25", {}, 1.0),
        ("25", r"<think>hm</think><tool_call>#### 25</tool_call>", {}, 0.0),
    ]
)
def test_settings_and_forms(gold: str, completion: str, settings: dict[str, Any], expected: float) -> None:
    assert math_answer(prompt(gold), completion, **settings) == expected


@for_every(
    [
        ("What percent of them?", "50", "50%", "same"),
        ("How many of them?", "50", "50%", "different"),
        ("How many dozen eggs are left?", "5 dozen", "5", "same"),
        ("How many dozen eggs are left?", "5", "5 dozen", "same"),
        ("He has 5 dozen eggs. How many eggs?", "60", "5 dozen", "same"),
        ("He has 5 dozen eggs. How many eggs?", "5", "5 dozen", "different"),
    ]
)
def test_the_question_says_what_a_bare_number_counts(question: str, gold: str, other: str, expected: str) -> None:
    first, second = quantity(gold), quantity(other)
    assert first is not None and second is not None
    assert same(first, second, Comparison(question=question)) == (expected == "same")


def test_a_gold_answer_that_is_a_list() -> None:
    assert math_answer(prompt(["18"]), r"\boxed{18}") == 1.0
    assert math_answer(prompt([1, 2]), r"\boxed{2, 1}") == 1.0
    assert math_answer(prompt([1, 2]), r"\boxed{[1, 2]}") == 0.0


def test_a_tolerance_that_is_no_share() -> None:
    with pytest.raises(WhetError, match="tolerance of reward 'math_answer' is 5"):
        math_answer(prompt("1"), "#### 1", tolerance=5)


@for_every(
    [
        ("What is 1/3 + 1/6?", "1/2", "What is 1/3 + 1/6?", 0.0),
        ("What is 1/3 + 1/6?", "1/2", r"\boxed{1/3+1/6}", 0.0),
        ("What is 1/3 + 1/6?", "1/2", r"\boxed{\frac12}", 1.0),
        ("Factor $x^2-1$.", "(x-1)(x+1)", r"\boxed{x^2-1}", 0.0),
        ("Factor $x^2-1$.", "(x-1)(x+1)", r"\boxed{(x+1)(x-1)}", 1.0),
        ("What is 3 * 4?", "12", "3 * 4", 0.0),
        ("Compute 5!", "120", r"\boxed{5!}", 0.0),
        ("Write 0.75 as a fraction.", "3/4", "Write 0.75 as a fraction.", 0.0),
        ("Write 0.75 as a fraction.", "3/4", "Write 0.75 as a fraction. It is 3/4.", 1.0),
        ("Which one is larger, 3 or 5?", "5", "5", 1.0),
        ("2", "12", "12", 1.0),  # a short text may stand in anything
        # what was asked for may stand in the question: a number with its sign, a formula to be chosen
        ("Is -2 or 5 - 7 + 1 smaller?", "-2", r"\boxed{-2}", 1.0),
        ("Which is larger for large x, $x^2+1$ or $x$?", "x^2 + 1", r"\boxed{x^{2}+1}", 1.0),
        (r"Light travels $3\times 10^8$ m in a second. How many?", "300000000", r"\boxed{3\times 10^8}", 1.0),
    ]
)
def test_the_task_written_down_again_is_no_answer(question: str, gold: str, completion: str, score: float) -> None:
    assert math_answer(Prompt("p", (), text=question, answer=gold), completion) == score


def test_latex_spaces_at_the_ends_of_an_answer_change_nothing() -> None:
    spaces = [r"\,", r"\;", r"\:", r"\!", r"\ ", r"\>", r"\quad", r"\qquad", "~", r"\,."]
    golds = ["5", r"\frac{1}{2}", "(3, 4)", r"\text{Saturday}", "5 km", "x < 3", "12_5", "3:45", r"50\%"]
    unpaid = {}
    for gold in golds:
        for space in spaces:
            for answer in (gold + space, space.rstrip(".") + gold + space):
                unpaid[gold, answer] = math_answer(prompt(gold), rf"\boxed{{{answer}}}")
    assert {case: score for case, score in unpaid.items() if score != 1.0} == {}
    assert math_answer(prompt("5"), r"\boxed{6\,}") == 0.0


@for_every(
    [
        ("5", r"\boxed{5\,}"),
        (r"\{2, 3\}", r"\boxed{2} and \boxed{3}"),
        (r"\pi r", "\\boxed{\u03c0r}"),
        (r"x \le y", "\\boxed{x\u2264y}"),
        ("1/2", r"\boxed{\;\dfrac12\;}"),
        ("131", "Total: **131**"),
        ("5", r"\boxed{\text{The answer is }5}"),
        ("5", r"\boxed{\text{Answer: 5}}"),
        ("0", r"\boxed{x^2-x^2}"),
        ("1234.5", r"\boxed{1.234,5}"),
        ("1000000", r"\boxed{1.000.000}"),
        ("1000000", r"\boxed{x = 1.000.000}"),
        ("1000", r"\boxed{1'000}"),
        ("1234.5", r"\boxed{1'234.5}"),
        ("100000", r"\boxed{1,00,000}"),
        ("100000.25", r"\boxed{1,00,000.25}"),
        ("12345678.5", r"\boxed{12.345.678,50 \text{ kg}}"),
    ]
)
def test_right_answers_in_other_spellings(gold: str, completion: str) -> None:
    assert math_answer(prompt(gold), completion) == 1.0


@for_every(
    [
        ("1000", r"\boxed{1.000}"),  # a decimal
        ("1234567", r"\boxed{12,34,567}"),  # a list of three
        ("1234.5", r"\boxed{1.234, 5}"),  # a list of two
        ("5", r"\boxed{\text{The answer is not }5}"),
        ("5", r"\boxed{\text{Twice the answer is }5}"),
        ("1", r"\boxed{x - 1}"),
    ]
)
def test_spellings_that_mean_something_else(gold: str, completion: str) -> None:
    assert math_answer(prompt(gold), completion) == 0.0


def test_a_gold_answer_of_any_length_is_read_or_refused_before_it_is_computed() -> None:
    digits = "7" * 100_000
    assert math_answer(prompt(digits), rf"\boxed{{{digits}}}") is None
    assert math_answer(prompt("7"), rf"\boxed{{{digits}}}") == 0.0


def test_a_number_that_a_group_repeats_is_read_once(monkeypatch):
    read = []
    real = quantity_module._value
    monkeypatch.setattr(quantity_module, "_value", lambda match: read.append(match[0]) or real(match))
    asked = Prompt("p", (), text="How many?", answer="90817")
    assert math_answers([asked] * 8, [f"It is {number}: \\boxed{{90818}}" for number in range(8)]) == [0.0] * 8
    assert read.count("90818") == 1
