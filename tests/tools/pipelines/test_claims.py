"""The claims of docs/pipelines.md, measured again: minutes on two cores."""

import pytest

from whet.tools.pipelines.runner import run_pipeline

pytestmark = pytest.mark.slow


def accuracy(run, stage):
    return run.stages[stage].result["metrics"]["accuracy"]


@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_of_own_pairs_teach_the_task(tmp_path, seed):
    run = run_pipeline("iterative_dpo", {"seed": seed, "folder": str(tmp_path / "run")})
    assert accuracy(run, "eval0") < 0.2
    assert accuracy(run, "round2-eval") > 0.9


@pytest.mark.parametrize("seed", [0, 1])
def test_self_play_teaches_the_task_and_imitation_is_as_good(tmp_path, seed):
    run = run_pipeline("spin", {"seed": seed, "rounds": 1, "folder": str(tmp_path / "run")})
    assert accuracy(run, "eval0") < 0.2
    assert accuracy(run, "round1-eval") > 0.9 and accuracy(run, "round1-imitate-eval") > 0.9
    assert run.stages["round1-pairs"].result["counts"]["identical"] > 100


def test_a_judge_teaches_a_reward_model_and_that_a_policy(tmp_path):
    run = run_pipeline("rlaif", {"folder": str(tmp_path / "run")})
    assert run.stages["judge-eval"].result["metrics"]["judge_accuracy"] > 0.7
    labelled = run.stages["pairs"].result["metrics"]
    assert labelled["truth_accuracy"] > 0.85 and labelled["flip_rate"] > 0.1  # of 185 winners, and of 326 pairs
    assert run.stages["reward-model"].result["metrics"]["accuracy"] > 0.85
    assert accuracy(run, "eval0") < 0.2 and accuracy(run, "eval1") > 0.6
