"""Models side by side as text, JSON and a page, from attempts written out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from whet.pages.eval_report import EvalReport, ModelEval, eval_page, eval_record, eval_text, model_table, short_names
from whet.record.metrics.eval_summary import Attempt, summarized
from whet.record.metrics.intervals import paired_tests


def attempts(right: int, samples: int = 2, prompts: int = 10):
    return [
        [
            Attempt(
                float(place < right), 10 + place, place % 5 != 0, str(place % 3), 0.5 + place / 30, place == 9,
                budgets={4: (0.0, 4), 16: (float(place < right), 10)},
            )
            for _ in range(samples)
        ]
        for place in range(prompts)
    ]  # fmt: skip


def report(*rights: int, samples: int = 2) -> EvalReport:
    rows = {f"runs/<b>{right}": attempts(right, samples) for right in rights}
    labels = ["safe", "unsafe"] * 5
    evals = tuple(
        ModelEval(name, "task:sums", {"prompts": 10.0, "accuracy": 0.1 * right}, summarized(row, labels, True), 1.0)
        for right, (name, row) in zip(rights, rows.items(), strict=True)
    )
    outcomes = {name: [[each.outcome for each in group] for group in row] for name, row in rows.items()}
    return EvalReport(evals, {"task:sums": paired_tests(outcomes)} if len(rights) > 1 else {})


def test_a_summary_by_hand():
    found = summarized(attempts(4), ["safe", "unsafe"] * 5, refusals=True)
    assert found.measure == "accuracy" and found.value.value == pytest.approx(0.4) and found.samples == 2
    assert found.lengths.mean == 14.5 and found.lengths.median == 14.5 and found.lengths.right == 11.5
    assert found.lengths.wrong == 16.5 and found.lengths.truncated.value == pytest.approx(0.2)
    assert found.tasks["safe"].value == pytest.approx(0.4) and set(found.tasks) == {"safe", "unsafe"}
    assert {name: value.value for name, value in found.refusals.items()} == pytest.approx(
        {"": 0.1, "safe": 0.0, "unsafe": 0.2}
    )
    assert found.answered is not None and found.answered.value == 1 and found.in_format is None
    budgets = {point.budget: (point.value, point.tokens) for point in found.budgets}
    assert budgets == {4: (0.0, 4.0), 16: (pytest.approx(0.4), 10.0)}
    assert [point.n for point in summarized(attempts(4), counts=[2]).pass_at] == [2]


def test_rewards_that_are_no_shares_have_no_accuracy():
    found = summarized([[Attempt(0.5, 3, True)], [Attempt(2.5, 5, True)]])
    assert found.measure == "reward" and found.accuracy is None and found.value.value == 1.5
    assert not found.pass_at and not found.votes and not found.calibration and found.answered is None


def test_one_model_is_a_line_per_metric():
    text = eval_text(report(4))
    assert "accuracy           40.0% (14.7-72.1)" in text and "refused unsafe     20.0%" in text
    assert "cut at 16          40.0%" in text
    assert "10 tokens written" in text.replace("10.0", "10")


def test_errors_of_prompts_and_draws_are_told_apart_where_both_are_known():
    assert "standard error" in eval_text(report(4)) and "standard error" not in eval_text(report(4, samples=1))
    rewards = summarized([[Attempt(0.5, 3, True)], [Attempt(2.5, 5, True)]])
    alone = EvalReport((ModelEval("runs/a", "task:sums", {"prompts": 2.0, "reward": 1.5}, rewards, 1.0),), {})
    assert "1.5" in eval_text(alone) and "standard error" not in eval_text(alone)


def test_how_the_prompts_were_chosen_and_put_is_said_of_several_models_too():
    plain = report(2, 9)
    facts = [{"questions": "5 of 12, evenly spread", "left out": text} for text in ("1 unusable: too long (1)", "")]
    evals = tuple(replace(each, facts=said) for each, said in zip(plain.evals, facts, strict=True))
    text, page = (write(replace(plain, evals=evals)) for write in (eval_text, eval_page))
    assert text.count("questions          5 of 12, evenly spread") == 1
    assert "left out, <b>2     1 unusable: too long (1)" in text and "left out, <b>9" not in text
    assert "questions: 5 of 12, evenly spread" in page


def test_several_models_are_a_table_with_pairs():
    text = eval_text(report(2, 9))
    table = next(block for block in text.split("\n\n") if block.startswith("model"))
    assert [line.split()[0] for line in table.splitlines()] == ["model", "<b>2", "<b>9"]
    assert "<b>9 against <b>2: +70.0 points" in text and "7 prompts better and 0 worse: <b>9 is better" in text
    assert "no difference shown" in eval_text(report(4, 5))


def test_json_has_no_infinity_and_every_number():
    record = eval_record(report(4))
    text = json.dumps(record, allow_nan=False)
    assert record["accuracy"] == pytest.approx(0.4) and '"pairs": {}' in text
    alone = ModelEval("m", "t", {}, summarized([[Attempt(0.5, 3, True)]]), 0.0)
    assert math.isinf(alone.summary.value.high)
    assert eval_record(EvalReport((alone,), {}))["evals"][0]["summary"]["value"]["high"] is None


def test_the_page_has_every_curve_and_escapes_names():
    page = eval_page(report(2, 9), "whet eval <b>")
    assert page.count("<svg class") + page.count("<svg ") >= 6
    for title in ("pass@k", "Majority of n", "Token budget", "Calibration", "Pair by pair"):
        assert title in page, title
    assert "<b>2" not in page and "&lt;b&gt;2" in page
    assert "nan" not in page.lower().replace("tenant", "")
    assert "Majority of n" not in eval_page(report(4, samples=1))


def test_names_are_as_short_as_tells_them_apart():
    assert short_names(["runs/a", "runs/b"]) == ["a", "b"] and short_names(["x/a", "y/a"]) == ["x/a", "y/a"]
    assert short_names(["whetstone"]) == ["whetstone"]


def test_the_first_line_says_which_models_differ_beyond_noise():
    alike, apart = (eval_page(report(*rights)) for rights in ((4, 5), (1, 9)))
    assert "No pair of them differs beyond noise." in alike
    assert "Beyond noise: " in apart and "above" in apart


def test_tasks_of_an_accuracy_are_shares_too():
    head, *rows = model_table(report(4, 5).evals)
    assert [row[head.index("safe")].partition(" ")[0] for row in rows] == ["40.0%", "60.0%"]
