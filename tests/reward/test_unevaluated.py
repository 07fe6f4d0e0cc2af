"""Answers that leave the work to the reader, and right ones that must not suffer from it."""

from __future__ import annotations

from tests.support.for_every import for_every
from whet.reward.answer import exact_answer
from whet.reward.mathematics.math_answer import math_answer
from whet.types import Prompt


def score(question: str, gold: str, completion: str) -> float | None:
    return math_answer(Prompt("p", (), text=question, answer=gold), completion)


@for_every(
    [
        ("What is $\\sqrt{144}$?", "12", r"\boxed{\sqrt{144}}"),
        ("Evaluate $\\log_2 64$.", "6", r"\boxed{\log_{2}64}"),
        ("Compute $\\dbinom{15}{7}$.", "6435", r"\boxed{\binom{15}{7}}"),
        ("Find $\\int_0^1 x^2dx$.", r"\frac13", r"\boxed{\int_0^1 x^2 \, dx}"),
        ("Compute $(2^3)(5^5)$ in your head.", r"25,\!000", r"\boxed{(2^3)(5^5)}"),
        ("Simplify $\\frac{16}{20}$.", r"\frac{4}{5}", r"\boxed{\frac{16}{20}}"),
        ("Rationalize $\\frac{5}{\\sqrt{3}}$.", r"\frac{5\sqrt{3}}{3}", r"\boxed{\dfrac{5}{\sqrt{3}}}"),
        ("Compute $\\cos 60^\\circ$.", r"\frac{1}{2}", r"\boxed{\cos 60^{\circ}}"),
        ("Compute $|3 - 8|$.", "5", r"\boxed{|3-8|}"),
        ("Simplify $(4a^2)^3$.", "64a^6", r"\boxed{(4a^2)^3}"),
        ("What is 14 \u00d7 6 \u2212 17?", "67", r"\boxed{14 \times 6 - 17}"),
        ("Ann has 14 boxes of 6 and loses 17. How many are left?", "67", r"\boxed{14*6-17}"),
        ("Ann has 14 boxes of 6 and loses 17. How many are left?", "67", r"\boxed{n = 14 \cdot 6 - 17}"),
        ("How many?", "67", r"\boxed{\frac{2(84 - 17)}{2}}"),
        ("How many?", "67", r"\boxed{14*6-17+x-x}"),
        ("How many?", "3/2", r"\boxed{2 \cdot \frac34}"),
        ("If $g(-15)=0$ and $g(0)=3$, what is it?", "0", r"\boxed{g(0)}"),
    ]
)
def test_a_formula_that_is_not_worked_out_is_no_answer(question: str, gold: str, completion: str) -> None:
    assert score(question, gold, completion) == 0.0


@for_every(
    [
        ("Which is prime, 9 or 11?", "11", r"\boxed{11}"),
        ("Is it true? Answer yes or no.", r"\text{yes}", r"\boxed{\text{yes}}"),
        ("Which one: (A) $\\sqrt{2}$, (B) $\\sqrt{3}$?", r"\text{(B)}", r"\boxed{B}"),
        ("Which one is larger, $\\sqrt{2}$ or $\\sqrt{3}$?", r"\sqrt{3}", r"\boxed{\sqrt 3}"),
        ("Which one is larger, $\\frac{\\sqrt{3}}{2}$ or 0?", r"\sqrt{3}/2", r"\boxed{\frac{\sqrt{3}}{2}}"),
        ("A coin shows heads with probability $\\frac15$. What of tails?", "0.2", r"\boxed{\frac15}"),
        ("Let $x = -1$. What is $x^3$?", "-1", r"\boxed{x = -1}"),
        ("What is 14*6-17?", "67", r"\boxed{14*6-17 = 67}"),
        ("What is 14*6-17?", "67", r"We have 14*6-17, so \boxed{67}"),
        ("Write it as a product.", r"2 \cdot 3", r"\boxed{3 \cdot 2}"),
        ("How many?", "500", r"\boxed{5 \times 10^2}"),
        ("How many?", "1024", r"\boxed{2^{10}}"),
        ("How many?", "25000", r"\boxed{2^3 \cdot 5^5}"),
        ("How long?", "5/2", r"\boxed{2\frac{1}{2}\text{ hours}}"),
        ("How long?", "3/2", r"\boxed{\sqrt{2\frac{1}{4}}}"),
        ("Simplify $3^{25} / 3^{23}$.", "9", r"\boxed{3^2}"),
        ("Find the area.", r"6\sqrt{2}", r"\boxed{2 \cdot 3\sqrt{2}}"),
    ]
)
def test_right_answers_that_stand_in_the_question_are_paid(question: str, gold: str, completion: str) -> None:
    assert score(question, gold, completion) == 1.0


@for_every(
    [
        ("7", r"\boxed{7} Actually the answer is 8.", 0.0),
        ("8", r"\boxed{7} Actually the answer is 8.", 0.0),
        ("7", r"\boxed{7} Actually the answer is 8 apples.", 0.0),
        (r"1,\! 200", r"\boxed{1200} The answer is 1,\! 200.", 1.0),  # that space does not end the sentence
        (r"1,\! 200", r"\boxed{1200} The answer is 1,\! 300.", 0.0),
        ("7", "<answer>7</answer> No: the answer is 8", 0.0),
        ("7", r"\boxed{5 \boxed{7}}", 0.0),
        ("5", r"\boxed{5 \boxed{7}}", 0.0),
        ("x + 1", r"\boxed{x + 1} Actually the answer is x + 2.", 0.0),
        (r"\frac{1}{3}", r"\boxed{\frac{1}{3}} Actually the answer is \frac{1}{4}.", 0.0),
        ("x + 1", r"\boxed{x + 1} So the answer is 1 + x.", 1.0),
        ("x + 1", r"\boxed{x + 1} So the answer is (B) x + 1.", 1.0),
        ("5", r"\boxed{5} So the answer is (A) 5.", 1.0),
        ("5", r"\boxed{5} So the answer is B.", 1.0),
        ("7", r"\boxed{7} So the answer is 7.0.", 1.0),
        ("50", r"\boxed{50} So the answer is 50%.", 1.0),
        ("7", r"The answer is not 8. \boxed{7}", 1.0),
        ("7", r"\boxed{7} This answer is 3/4 of the whole.", 1.0),
        ("7", r"\boxed{x = \boxed{7}}", 1.0),
        (r"\{2, 3\}", r"\boxed{x_1 = 2, \boxed{x_2 = 3}}", 1.0),
    ]
)
def test_what_is_said_after_the_box_must_not_contradict_it(gold: str, completion: str, expected: float) -> None:
    assert score("What is it?", gold, completion) == expected


def test_an_exact_answer_is_contradicted_by_another_number_behind_it() -> None:
    prompt = Prompt("p", (), text="What is it?", answer="7")
    assert exact_answer(prompt, r"\boxed{7} Actually the answer is 8.") == 0.0
    assert exact_answer(prompt, r"\boxed{7} Actually the answer is \frac{1}{2}.") == 0.0
    assert exact_answer(prompt, r"\boxed{7} So the answer is 7.") == 1.0
    assert exact_answer(prompt, r"\boxed{7} So the answer is (B) 7.") == 1.0
    assert exact_answer(prompt, r"\boxed{7} The answer is 7 apples.") == 1.0
