"""Every method improves the built-in model on the built-in task, with one budget for all."""

from functools import cache
from statistics import fmean

import pytest
from every_method import settings

import whet
from whet.objective import PRESETS
from whet.record.log import read_metrics

REWARD_MARGIN = 0.2  # of the last three steps over the first three, drawn completions
ACCURACY_MARGIN = 0.5  # greedy completions to held-out questions
# with one update per batch every ratio is 1, and these are the same run as the method they are listed under
# (docs/method-runs.md); tests/properties shows that every clip rule gives weight 1 there
SAME_RUN = {"gspo": ("gspo_token", "gmpo", "sapo", "grpo_segment"), "dr_grpo": ("dppo_tv", "dppo_kl")}
# methods of episodes need an environment: tests/training/test_episode_rows.py; a reference's rewards are no part of the
# task: tests/cli/test_data_commands.py
SINGLE = [
    name
    for name, preset in PRESETS.items()
    if not preset.episodes and "reference_rewards" not in preset.objective.needs()
]
TRAINED = [name for name in SINGLE if name not in {each for same in SAME_RUN.values() for each in same}]


def test_half_the_steps_at_twice_the_rate_improve_it_too(tmp_path):
    """For every commit; the budget that all methods have is slow."""
    quick = {**settings("grpo"), "steps": 9, "optimizer": {"learning_rate": 8e-4}}
    quick["batch"] = {**quick["batch"], "prompts_per_step": 8}
    quick["eval"] = {"prompts": 24, "every": 0}
    run = whet.train("grpo", config=quick, folder=str(tmp_path / "run"), console=False)
    rewards = [line["reward"]["total"] for line in read_metrics(run.folder) if "eval" not in line]
    assert fmean(rewards[-3:]) > rewards[0] + REWARD_MARGIN, rewards
    assert run.after["accuracy"] > run.before["accuracy"] + ACCURACY_MARGIN, (run.before, run.after)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_the_method_improves_the_toy_task(name, tmp_path):
    run = whet.train(name, config=settings(name), folder=str(tmp_path / "run"), console=False)
    rewards = [line["reward"]["total"] for line in read_metrics(run.folder) if "eval" not in line]
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + REWARD_MARGIN, rewards
    assert run.after["accuracy"] > run.before["accuracy"] + ACCURACY_MARGIN, (run.before, run.after)


@pytest.fixture(scope="module")
def gradient_norms(tmp_path_factory):
    """Of a method's first two steps; each method is run once."""

    @cache
    def norms(name):
        short = {**settings(name), "steps": 2, "eval": {"prompts": 0}}
        short["batch"] = {**short["batch"], "prompts_per_step": 4, "group_size": 4}
        run = whet.train(name, config=short, folder=str(tmp_path_factory.mktemp(name) / "run"), console=False)
        found = [line["metrics"]["gradient_norm"] for line in read_metrics(run.folder) if "eval" not in line]
        assert len(found) == 2 and len(set(found)) == 2
        return found

    return norms


SHOWN = {"gspo_token"}  # the others are slow: tests/properties shows the same of every clip rule


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHOWN else pytest.param(name, marks=pytest.mark.slow)
        for same in SAME_RUN.values()
        for name in same
    ],
)
def test_the_method_is_the_same_run_as_the_one_that_is_trained(name, gradient_norms):
    trained = next(key for key, same in SAME_RUN.items() if name in same)
    assert gradient_norms(name) == pytest.approx(gradient_norms(trained), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m2po", "bapo", "rewards_as_labels"])
def test_a_step_is_surveyed_as_a_whole_however_its_passes_are_cut(name, tmp_path):
    """Two updates per batch, so that the second is surveyed under a policy that has moved."""
    found = []
    for tokens in (200, 100_000):
        changes = {"steps": 2, "eval": {"prompts": 0}}
        values = {**settings(name, updates=2), **changes}
        values["batch"] = {**values["batch"], "micro_batch_tokens": tokens}
        run = whet.train(name, config=values, folder=str(tmp_path / str(tokens)), console=False)
        found.append([line["metrics"]["gradient_norm"] for line in read_metrics(run.folder) if "eval" not in line])
    assert found[0] == pytest.approx(found[1], rel=1e-3)
