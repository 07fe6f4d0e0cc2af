"""The claims of docs/self-improvement.md, measured again: minutes on two cores."""

import pytest

from whet.tools.pipelines.runner import run_pipeline

pytestmark = pytest.mark.slow


def accuracy(run, stage):
    return run.stages[stage].result["metrics"]["accuracy"]


def test_own_scores_teach_the_task(tmp_path):
    run = run_pipeline("self_rewarding", {"rounds": 2, "folder": str(tmp_path / "run")})
    assert run.stages["judge0"].result["metrics"]["judge_accuracy"] > 0.95
    assert accuracy(run, "eval0") < 0.2 and accuracy(run, "round2-eval") > 0.9


def test_revisions_teach_the_task_and_the_preferences_of_a_small_model_add_nothing(tmp_path):
    run = run_pipeline("constitutional", {"folder": str(tmp_path / "run")})
    marks = run.stages["revisions"].result["metrics"]
    assert marks["right_before"] < 0.6 and marks["right_after"] > 0.8
    assert accuracy(run, "eval0") < 0.2 and accuracy(run, "eval1") > 0.9
    assert run.stages["pairs"].result["metrics"]["flip_rate"] > 0.5
