"""Answers of several members, in any order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.for_every import for_every
from whet.reward.mathematics.set_answer import members, set_answer
from whet.types import Prompt, WhetError


def prompt(answer: Any) -> Prompt:
    return Prompt("p", (), text="q", answer=answer)


@for_every(
    [
        (["a", "b"], "<answer>b, a</answer>", 1.0, 1.0),
        (["a", "b"], "<answer>B; A.</answer>", 1.0, 1.0),
        ("1, 2 and 3", r"\boxed{\{3,2,1\}}", 1.0, 1.0),
        ("1, 2 and 3", r"\boxed{1,2}", 0.0, 0.8),
        ("1, 2 and 3", r"\boxed{1,2,9,8}", 0.0, 4 / 7),
        ("1, 2", "The answer is 2 and 1.", 1.0, 1.0),
        (["red", "blue"], "Here they are:\n- blue\n- red", 1.0, 1.0),
        ([0.5, 2], "<answer>[1/2, 2.0]</answer>", 1.0, 1.0),
        (["New York, NY", "LA"], '<answer>["LA", "New York, NY"]</answer>', 1.0, 1.0),
        ([], "The answer is none", 1.0, 1.0),
        ([], "Answer: 3", 0.0, 0.0),
        (["a"], "", 0.0, 0.0),
        (["a"], "<answer></answer>", 0.0, 0.0),
        (["a"], "<think>a</think>", 0.0, 0.0),
        (["a"], "<answer>" + "a, " * 9000 + "</answer>", 0.0, 0.0),
        (["1,234"], "<answer>1234</answer>", 1.0, 1.0),
        (["5"], "<answer>5 dozen</answer>", 0.0, 0.0),
        (["60"], "<answer>5 dozen</answer>", 1.0, 1.0),
    ]
)
def test_exact_and_partial_credit(gold: Any, completion: str, exact: float, f1: float) -> None:
    assert set_answer(prompt(gold), completion) == exact
    assert set_answer(prompt(gold), completion, credit="f1") == pytest.approx(f1)


def test_separators_forms_and_members() -> None:
    assert set_answer(prompt(["a, b", "c"]), "<answer>c | a, b</answer>", separators="|") == 1.0
    assert set_answer(prompt(["The Rhine"]), "<answer>rhine</answer>", form="words") == 1.0
    assert set_answer(prompt(["The Rhine"]), "<answer>rhine</answer>") == 0.0
    assert members("1. one\n2. two") == ["one", "two"]
    assert members("(x, y)") == ["x", "y"]
    assert members("\\emptyset") == []


def test_unusable_gold() -> None:
    assert set_answer(prompt(" , ;"), "<answer>a</answer>") is None
    with pytest.raises(WhetError, match=r"'set_answer'.*prompt 'p' has none"):
        set_answer(prompt(None), "<answer>a</answer>")
