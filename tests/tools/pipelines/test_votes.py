"""Labels by vote, and what can be said of re-checks: both against rows whose truth is known."""

import pytest

from whet.tools.pipelines.library.evaluation import outcomes_by_recheck, recheck_result, rechecks, set_measures
from whet.tools.pipelines.library.sampling import voted_labels


def test_the_majority_becomes_the_label_and_is_checked_where_gold_exists():
    rows = [
        {"id": "1", "prompt": "p", "answer": "7", "completions": ["7", "7", "3"], "scores": [1.0, 1.0, 0.0]},
        {"id": "2", "prompt": "p", "answer": "4", "completions": ["5", "5", "4"], "scores": [0.0, 0.0, 1.0]},
        {"id": "3", "prompt": "p", "answer": None, "completions": ["9", "9", "9"], "scores": [None, None, None]},
        {"id": "4", "prompt": "p", "answer": "1", "completions": ["a", "b", "c"], "scores": [0.0, 0.0, 0.0]},
    ]
    labelled, result = voted_labels(rows)
    assert [(row["id"], row["answer"]) for row in labelled] == [("1", "7"), ("2", "5"), ("3", "9")]
    assert result["metrics"]["majority_right"] == 0.5
    assert result["metrics"]["agreement"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert result["counts"] == {"prompts": 4, "labelled": 3, "labels_checked": 2}
    assert [row["id"] for row in voted_labels(rows, 0.9)[0]] == ["3"]


@pytest.mark.parametrize(
    ("text", "count"),
    [("Wait, let me check that. Hmm.", 3), ("We waited for the waiter.", 0), ("Double-check: 4. That's wrong.", 2)],
)
def test_rechecks_are_phrases_and_not_parts_of_words(text, count):
    assert rechecks(text) == count


def test_rechecks_are_compared_only_where_there_are_enough():
    def line(step, text, right):
        return {"step": step, "completion": text, "tokens": len(text), "parts": {"exact": right}, "reward": right}

    lines = [line(1, "wait, five", 1.0), line(2, "wait", 0.0), line(3, "four", 0.0), line(4, "four", None)]
    assert outcomes_by_recheck(lines) == ([1.0, 0.0, 0.0], [1.0, 0.0], [0.0])
    plain = recheck_result([line(step, "four", 1.0) for step in range(1, 11)])
    assert "none in 10 recorded completions, so nothing can be said" in plain["summary"]
    few = recheck_result([line(1, "wait, five", 1.0), *(line(2, "four", 0.0) for _ in range(30))])
    assert "too few to compare" in few["summary"]
    many = recheck_result(
        [line(step, "wait, five" if step > 30 else "four", float(step > 30)) for step in range(1, 61)]
    )
    assert "right in 100.0% with and 0.0% without one" in many["summary"] and len(many["table"]) == 6
    assert many["metrics"]["last_rechecks"] == 1.0 and many["metrics"]["first_rechecks"] == 0.0


def test_measures_have_intervals_over_prompts():
    def row(at, right, drawn):
        answers = ["7" if each else "3" for each in drawn]
        greedy = {"right": right, "reward": right, "tokens": 5, "finished": True, "rechecks": 0}
        return {"id": str(at), "set": "all", **greedy, "sample_right": drawn, "sample_answers": answers}

    found = set_measures([row(at, float(at < 30), [1.0, 1.0, 1.0, 0.0] if at < 30 else [0.0] * 4) for at in range(40)])
    assert found["accuracy"][0] == 0.75 and 0.59 < found["accuracy"][1] < 0.75 < found["accuracy"][2] < 0.88
    assert found["pass@1"][0] == pytest.approx(0.5625) and found["pass@4"][0] == 0.75 == found["majority@4"][0]
    assert found["completion_tokens"] == (5.0, 5.0, 5.0)
