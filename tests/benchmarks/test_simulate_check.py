"""The simulator's check: what it takes from a file, and what it predicts from it."""

import pytest


@pytest.fixture
def check(monkeypatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import simulate_check

    return simulate_check


def lag(step_s, trainer_idle_s, engine_idle_s):
    return {
        "step_s": step_s, "trainer_idle_s": trainer_idle_s, "engine_idle_s": engine_idle_s,
        "tokens_per_s": 1000 / step_s, "versions_behind": 1.0,
    }  # fmt: skip


def test_the_waiting_run_is_predicted_from_one_that_is_ahead(check):
    """1 s of training beside 0.4 s of writing: together a step takes 1 s, in turns about 1.4 s."""
    found = check.check_asynchrony({"lag_0": lag(1.4, 0.4, 1.0), "lag_1": lag(1.0, 0.0, 0.6)}, 4, 4)
    assert found["calibrated_on"] == 1 and found["train_s"] == 1.0 and found["write_s"] == pytest.approx(0.4)
    assert found["lag_1"]["ratio"] == pytest.approx(1.0, abs=0.02)
    assert found["lag_0"]["simulated_s"] == pytest.approx(1.4, rel=0.1)


def test_a_step_of_the_demo_is_predicted_from_its_engines(check):
    engines = {f"engine {number}": {"tokens": 1000, "seconds": 4.0} for number in range(2)}
    step = {"steps": 5, "seconds": 3.0, "rollout_s": 1.0, "samples": 32, "groups": 8, "tokens": 500}
    found = check.check_demo({"processes": {**engines, "reward worker 0": {"samples": 3}}, "step": step})
    assert found["engines"] == 2 and found["train_s"] == 2.0
    assert found["rollout_simulated_s"] == pytest.approx(250 * 0.004, rel=0.15)  # 250 tokens each, one after another
    with pytest.raises(SystemExit, match=r"write it anew with benchmarks/cluster_run\.py"):
        check.check_demo({"processes": engines})
