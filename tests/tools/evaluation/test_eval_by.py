"""`eval.by`: several test sets in one file, each with a metric of its own, in a run and in an evaluation by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whet

SETS = ("easy", "easy", "hard")
QUESTIONS = ("Rotate then reverse 1 2 2 7 1", "Reverse then rotate 4 5 0 5 3", "Rotate then reverse 7 5 8 6 4")


def rows() -> list[dict[str, Any]]:
    return [
        {"prompt": [{"role": "user", "content": text}], "answer": answer, "set": name}
        for text, answer, name in zip(QUESTIONS, ("1 1 7 2 2", "5 0 5 4 3", "never"), SETS, strict=True)
    ]


def by_length(completion: str, **_: Any) -> float:
    return 0.5 if completion.endswith("</answer>") else 0.25


def test_each_set_has_its_own_accuracy() -> None:
    result = whet.evaluate("whetstone", rows(), reward="exact_answer", settings={"eval": {"by": "set"}})
    right = [each["reward"] for each in result.completions]
    assert 0 < result["accuracy"] < 1  # else the sets could not be told apart
    assert result["accuracy_easy"] == pytest.approx(sum(right[:2]) / 2)
    assert result["accuracy_hard"] == right[2] == 0
    assert result["accuracy"] == pytest.approx(sum(right) / 3)
    found = result.summary
    assert found.value.value == pytest.approx(result["accuracy"]) and found.value.low < found.value.value
    assert found.tasks["hard"].value == 0 < found.tasks["hard"].high


def test_a_part_of_a_sorted_file_has_rows_of_every_set() -> None:
    """As the files of MATH are, by subject: its first 200 questions are all of algebra."""
    sorted_rows = [rows()[0]] * 6 + [rows()[2]] * 4
    settings = {"eval": {"by": "set", "prompts": 5}}
    result = whet.evaluate("whetstone", sorted_rows, reward="exact_answer", settings=settings)
    assert [each["answer"] for each in result.completions] == ["1 1 7 2 2"] * 3 + ["never"] * 2
    assert result.facts["questions"] == "5 of 10, evenly spread; eval.prompts=10 asks all"
    whole = whet.evaluate("whetstone", sorted_rows, reward="exact_answer", settings={"eval": {"prompts": 10}})
    assert "questions" not in whole.facts


def test_without_an_accuracy_each_set_has_its_own_reward() -> None:
    result = whet.evaluate("whetstone", rows(), reward=by_length, settings={"eval": {"by": "set"}})
    assert "accuracy" not in result.metrics
    assert {"reward_easy", "reward_hard"} <= result.metrics.keys()
    assert result["reward"] == pytest.approx((2 * result["reward_easy"] + result["reward_hard"]) / 3)


def test_a_run_records_every_set(tmp_path: Path) -> None:
    run = whet.train(
        "grpo",
        data=rows(),
        eval_data=rows(),
        reward="exact_answer",
        steps=1,
        batch={"prompts_per_step": 2, "group_size": 2},
        eval={"by": "set"},
        folder=str(tmp_path / "run"),
        console=False,
    )
    assert {"accuracy", "accuracy_easy", "accuracy_hard"} <= run.before.keys()
    assert run.after.keys() == run.before.keys()


def test_a_row_without_the_column_is_refused() -> None:
    some = rows()
    del some[1]["set"]
    with pytest.raises(whet.WhetError, match=r"eval\.by=set: row .* has no such column"):
        whet.evaluate("whetstone", some, reward="exact_answer", settings={"eval": {"by": "set"}})


def test_no_eval_prompts_is_told_as_that() -> None:
    """A run trained with eval.prompts=0 passes it on to `whet eval`."""
    with pytest.raises(whet.WhetError, match=r"give eval\.prompts="):
        whet.evaluate("whetstone", rows(), reward="exact_answer", settings={"eval": {"prompts": 0}})
