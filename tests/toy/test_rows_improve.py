"""Every row improves the built-in model on the built-in task, with one set of numbers for all."""

from statistics import fmean

import pytest

import whet
from whet.objective import PRESETS

# One learning rate serves every row: Adam forgets the gradient's scale, and that is all that dividing by the budget
# L instead of the reply's length changes. Plain gradient descent would need a larger one there.
SETTINGS = {
    "steps": 18,
    "optimizer": {"learning_rate": 4e-4},
    "sampling": {"max_new_tokens": 40},
    "batch": {"prompts_per_step": 10, "group_size": 8},
    "report": {"evaluate_prompts": 40, "evaluate_every": 0, "save_every": 100, "samples_per_step": 0},
}
REWARD_MARGIN = 0.2  # of the last three steps over the first three, drawn replies
ACCURACY_MARGIN = 0.5  # greedy replies to held-out questions


@pytest.mark.parametrize("name", PRESETS)
def test_the_row_improves_the_toy_task(name, tmp_path):
    config = {"model": {"device": "cpu", "threads": 1}}
    run = whet.train(name, config=config, folder=str(tmp_path / "run"), watchers=[], **SETTINGS)
    rewards = [line["reward"]["total"] for line in run.metrics() if "eval" not in line]
    assert len(rewards) == SETTINGS["steps"]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + REWARD_MARGIN, rewards
    assert run.after["accuracy"] > run.before["accuracy"] + ACCURACY_MARGIN, (run.before, run.after)
