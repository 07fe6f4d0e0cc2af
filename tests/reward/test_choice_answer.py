"""Multiple choice: letters in every usual dress, the choice's text, and nothing that hedges."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.choice_answer import choice_answer
from whet.types import Prompt, WhetError

CITIES = ["London", "Paris", "Rome", "Berlin"]


def prompt(answer: Any, question: str = "q", **meta: Any) -> Prompt:
    return Prompt("p", (), text=question, answer=answer, meta=meta)


@for_every(
    [
        "The answer is B.",
        r"\boxed{\text{(B)}}",
        r"\boxed{B. Paris}",
        "<answer>(b)</answer>",
        "<answer>b) Paris</answer>",
        "<answer>Paris</answer>",
        "<answer>paris.</answer>",
        "I choose option B",
        "The answer is option (B)",
        "The answer is: **B**",
        "Answer: option B, Paris",
        "The answer is (B) Paris, the capital.",
        "The correct answer is Paris.",
        "**B**",
        "Because of the Seine.\nB) Paris",
        "<think>A? C?</think>Answer: B",
    ]
)
def test_the_right_choice(completion: str) -> None:
    for gold in ("B", "(b)", "Paris", 1):
        assert choice_answer(prompt(gold, choices=CITIES), completion) == 1.0
    assert choice_answer(prompt("C", choices=CITIES), completion) == 0.0


@for_every(
    [
        "",
        "Answer: B) Rome",
        "<answer>A or B</answer>",
        "<answer>A, B</answer>",
        r"\boxed{A} or \boxed{B}",
        "The answer is a dog",
        "Option A looks good, but option B may be right",
        "<think>Answer: B</think>",
        "Answer: E",
        "B" * 5000,
        "<answer>" + "B " * 3000 + "</answer>",
    ]
)
def test_no_choice_or_several(completion: str) -> None:
    assert choice_answer(prompt("B", choices=CITIES), completion) == 0.0


def test_where_the_choices_stand() -> None:
    listed = "Which?\nA) one\nB) two\nC) three"
    assert choice_answer(prompt("C", listed), "Answer: three") == 1.0
    assert choice_answer(prompt("C", listed), "Answer: two") == 0.0
    arc = {"label": ["1", "2", "3"], "text": ["x1", "y1", "z1"]}
    assert choice_answer(prompt("3", choices=arc), "Answer: C") == 1.0
    assert choice_answer(prompt("3", choices=arc), "Answer: z1") == 1.0
    assert choice_answer(prompt("A", options={"A": "red", "B": "blue"}), "Answer: red", column="options") == 1.0
    assert choice_answer(prompt(1, choices=CITIES), "Answer: A", first=1) == 1.0
    assert choice_answer(prompt("C"), "Answer: C") == 1.0
    assert choice_answer(prompt("C"), "Answer: D") == 0.0


def test_a_gold_answer_that_is_no_choice_is_unscorable() -> None:
    assert choice_answer(prompt("Madrid", choices=CITIES), "Answer: B") is None
    assert choice_answer(prompt("E", choices=CITIES), "Answer: E") is None
    assert choice_answer(prompt(7, choices=CITIES), "Answer: B") is None
    with pytest.raises(WhetError, match="column 'choices' of prompt 'p' is a int"):
        choice_answer(prompt("A", choices=4), "Answer: A")
