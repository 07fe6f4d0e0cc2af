"""Every row improves the built-in model on the built-in task, with one budget for all."""

import sys
from pathlib import Path
from statistics import fmean

import pytest

import whet
from whet.objective import PRESETS
from whet.report.record import read_metrics

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from every_method import settings

REWARD_MARGIN = 0.2  # of the last three steps over the first three, drawn completions
ACCURACY_MARGIN = 0.5  # greedy completions to held-out questions


@pytest.mark.parametrize("name", PRESETS)
def test_the_row_improves_the_toy_task(name, tmp_path):
    run = whet.train(name, config=settings(name), folder=str(tmp_path / "run"), console=False)
    rewards = [line["reward"]["total"] for line in read_metrics(run.folder) if "eval" not in line]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + REWARD_MARGIN, rewards
    assert run.after["accuracy"] > run.before["accuracy"] + ACCURACY_MARGIN, (run.before, run.after)
