"""A process reward model of the built-in task: it learns, and what it learnt is a reward for steps."""

import pytest

from whet import api
from whet.data.tasks import TASKS
from whet.data.tasks.contrast import STEP, task_stepped
from whet.reward.learned.process import learned_steps

ROWS = task_stepped(TASKS["arithmetic"], "eval", 40, 1, 3)


def step_scores(judge, row):
    return [score for _, score in judge.steps(row.prompt, STEP.join(row.steps))]


def trained(folder, changes=None, **flags):
    config = {"folder": str(folder), "eval": {"every": 0}, "report": {"save_every": 1000}, **(changes or {})}
    return api.train("prm", config=config, **flags)


def test_a_saved_model_knows_what_ended_a_step(tmp_path):
    few = {"data": {"count": 24}, "batch": {"rows_per_step": 8}, "eval": {"every": 0, "prompts": 8}}
    run = trained(tmp_path / "run", few, steps=2)
    found, told, other = (
        learned_steps(folder=str(run.model), device="cpu", **settings)
        for settings in ({}, {"separator": STEP}, {"separator": "="})
    )
    assert [each.separator for each in (found, told, other)] == [STEP, STEP, "="]
    for row in ROWS[:4]:
        scores = step_scores(found, row)
        assert scores == step_scores(told, row) != step_scores(other, row)
        assert len(scores) == len(row.steps) and len({round(score, 4) for score in scores}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_run_learns_the_built_in_steps(tmp_path, seed):
    run = trained(tmp_path / "run", seed=seed)
    assert run.after["step_area_under_curve"] > 0.9 > 0.65 > run.before["step_area_under_curve"]
    judge = learned_steps(folder=str(run.model), device="cpu")
    wrong = [row for row in ROWS if row.first_error is not None]
    given = [step_scores(judge, row)[: row.first_error + 1] for row in wrong]
    lowest = [scores[-1] == min(scores) for scores in given]
    assert sum(lowest) > 0.8 * len(wrong)
