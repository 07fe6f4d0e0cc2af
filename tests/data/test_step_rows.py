"""Steps of a task's completions, and labels of several kinds in one row."""

import pytest
import torch

from whet.data.rows import Row
from whet.data.step_rows import common_separator, stepped_from
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import STEP, task_stepped
from whet.types import Sample, StopReason, WhetError


def completion(text):
    none = torch.zeros(0)
    return Sample(none.long(), none.bool(), none, (0, 0), StopReason.END, text)


@pytest.mark.parametrize("name", TASKS)
def test_the_steps_of_a_task_are_whole_completions(name):
    from whet.reward.find import find_reward

    rows = task_stepped(TASKS[name], "train", 60, 0, 3)
    reward = find_reward(TASKS[name].reward)
    scores = reward([row.prompt for row in rows], [completion(STEP.join(row.steps)) for row in rows])
    for number, (row, score) in enumerate(zip(rows, scores, strict=True)):
        assert (row.first_error is None) == (number % 2 == 0)
        # an error before the last step leaves the answer as it is; one in the last step is a wrong answer
        assert score == float(row.first_error != len(row.steps) - 1)
        assert row.steps[0].startswith("<think>") and row.steps[-1].endswith("</answer>")
    assert {row.first_error for row in rows} >= {None, 0, len(rows[0].steps) - 1}


def test_no_result_tells_a_right_step_by_itself():
    rows = task_stepped(TASKS["arithmetic"], "train", 400, 0, 1)
    wrong = {row.steps[row.first_error][-1] for row in rows if row.first_error in (0, 1)}
    assert wrong == set("0123456789")


ROW = {"prompt": "a", "steps": ["b", "c"], "labels": [1, 0], "shares": [0.5, 0.0], "separator": ";"}


def rows(*values):
    return [Row({"id": str(number), **each}, f"x.jsonl:{number}") for number, each in enumerate(values, 1)]


def test_labels_come_from_the_column_that_is_asked_for():
    assert [each.labels for each in stepped_from(rows(ROW, ROW))] == [(1.0, 0.0)] * 2
    assert stepped_from(rows(ROW), labels_in="shares")[0].labels == (0.5, 0.0)
    with pytest.raises(WhetError, match=r"x.jsonl:1: 'truth' is missing; .*; give reward_model.labels=labels"):
        stepped_from(rows(ROW), labels_in="truth")
    with pytest.raises(WhetError, match=r"drop reward_model.labels"):
        stepped_from(rows({"prompt": "a", "steps": ["b"], "first_error": 0}), labels_in="shares")
    with pytest.raises(WhetError, match=r"x.jsonl:1: labels has 1 entries for 2 steps; expected one for each step"):
        stepped_from(rows({**ROW, "shares": [0.5]}), labels_in="shares")


def test_steps_without_labels_are_read_where_none_are_needed():
    bare = {"prompt": "a", "steps": ["b", "c"]}
    assert stepped_from(rows(bare), need_labels=False)[0].labels == (None, None)
    assert stepped_from(rows(ROW, ROW), need_labels=False)[0].labels == (1.0, 0.0)
    with pytest.raises(WhetError, match="'labels' is missing"):
        stepped_from(rows(bare))


def test_the_separator_is_the_rows_own_where_they_agree():
    assert common_separator(stepped_from(rows(ROW, ROW))) == ";"
    assert common_separator(stepped_from(rows(ROW, {**ROW, "separator": "\n"}))) is None
    assert common_separator(stepped_from(rows({**ROW, "separator": None}))) is None
