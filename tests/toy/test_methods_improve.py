"""Every method improves the built-in model on the built-in task, with one budget for all."""

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
# with one update per batch every ratio is 1, and these are the same run as the method they are listed under
# (docs/method-runs.md); tests/properties shows that every clip rule gives weight 1 there
SAME_RUN = {"gspo": ("gspo_token", "gmpo", "sapo", "grpo_segment"), "dr_grpo": ("dppo_tv", "dppo_kl")}
# methods of episodes need an environment: tests/train/test_episode_rows.py
SINGLE = [name for name in PRESETS if not PRESETS[name].episodes]
TRAINED = [name for name in SINGLE if name not in {each for same in SAME_RUN.values() for each in same}]


ALWAYS = {"grpo", "dr_grpo", "dapo", "gspo", "rloo", "remax", "ppo", "reinforce"}  # one of each kind; the others slow


def marked(name):
    return name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [marked(name) for name in TRAINED])
def test_the_method_improves_the_toy_task(name, tmp_path):
    run = whet.train(name, config=settings(name), folder=str(tmp_path / "run"), console=False)
    rewards = [line["reward"]["total"] for line in read_metrics(run.folder) if "eval" not in line]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + REWARD_MARGIN, rewards
    assert run.after["accuracy"] > run.before["accuracy"] + ACCURACY_MARGIN, (run.before, run.after)


@pytest.mark.parametrize("name", [each for same in SAME_RUN.values() for each in same])
def test_the_method_is_the_same_run_as_the_one_that_is_trained(name, tmp_path):
    trained = next(key for key, same in SAME_RUN.items() if name in same)
    norms = []
    for each in (name, trained):
        short = {**settings(each), "steps": 2, "eval": {"prompts": 0}}
        run = whet.train(each, config=short, folder=str(tmp_path / each), console=False)
        norms.append([line["metrics"]["gradient_norm"] for line in read_metrics(run.folder) if "eval" not in line])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
