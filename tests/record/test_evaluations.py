"""Evaluations of a run: intervals, best and last, what counts as a new best and as a fall, and how often by chance."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from whet.record.evaluations import Evaluations, Measurement, best_remark, evaluations_of, with_size
from whet.record.log import EvalRecord, RunRecorder, eval_records, read_metrics
from whet.record.metrics.intervals import mcnemar_p, share_interval


def shares(*values: float, size: int = 200) -> Evaluations:
    return Evaluations(tuple(Measurement(10 * place, "accuracy", value, size) for place, value in enumerate(values)))


def scored(*rows: list[float], metric: str = "accuracy") -> Evaluations:
    return Evaluations(
        tuple(Measurement(10 * place, metric, fmean(row), len(row), tuple(row)) for place, row in enumerate(rows))
    )


def test_best_and_last_are_said_with_their_intervals() -> None:
    low, high = share_interval(0.345, 200)
    said = shares(0.28, 0.345, 0.2, 0.2)
    assert said.best.step == 10 and (said.best.estimate.low, said.best.estimate.high) == (low, high)
    assert said.text == (
        f"accuracy best at step 10: 34.5% ({100 * low:.1f}-{100 * high:.1f}) of 200 eval rows; the last, step 30: "
        "20.0% (15.0-26.1), significantly below it"
    )
    assert shares(0.1, 0.2).text == "accuracy is best at the last step, 10: 20.0% (15.0-26.1) of 200 eval rows"
    start = shares(0.4, 0.35, 0.3)
    assert "best before the first step: 40.0%" in start.text
    assert "best/" not in start.text  # where a save was refused, it holds another one
    assert shares(0.4).text == "" == Evaluations().text and Evaluations().values() == {}
    assert best_remark({"evaluations": said.values()}) == "best 34.5% at step 10"
    assert best_remark({"evaluations": shares(0.1, 0.2).values()}) == "" == best_remark({})
    assert best_remark({"evaluations": 3}) == ""
    assert shares(0.3, 0.3, size=0).best.estimate is None and "30.0% of" not in shares(0.3, 0.2, size=0).text


def test_of_equal_ones_the_first_is_best_and_a_loss_is_best_low() -> None:
    assert shares(0.1, 0.3, 0.3).best.step == 10
    losses = Evaluations(tuple(Measurement(step, "loss", value) for step, value in enumerate((2.0, 1.0, 1.5))))
    assert losses.best.step == 1 and losses.fell_from is None and losses.since_new_best == 1


def test_the_metric_is_one_that_all_evaluations_have() -> None:
    results = ({"reward": 0.875}, {"accuracy": 1.0, "reward": 1.0})
    evals = [EvalRecord(10 * number, "eval", result, 1.0, 8) for number, result in enumerate(results)]
    found = evaluations_of(evals, ("accuracy", "reward"))
    assert [(one.metric, one.value) for one in found.measured] == [("reward", 0.875), ("reward", 1.0)]
    assert evaluations_of(evals[1:], ("accuracy", "reward")).best.metric == "accuracy"


def test_a_look_is_compared_prompt_by_prompt_where_the_log_has_the_scores() -> None:
    """The same two shares: by chance where other prompts are right each time, and beyond it where the same ones are."""
    before = [1.0] * 80 + [0.0] * 120
    fewer = [1.0] * 68 + [0.0] * 132  # twelve lost, none gained
    others = [0.0] * 42 + [1.0] * 68 + [0.0] * 90  # 42 lost, 30 gained
    assert scored(before).best.better_p(scored(fewer).best) == mcnemar_p(0, 12) / 2
    assert scored(before, fewer, fewer).fell_from.step == 0
    assert scored(before, others, others).fell_from is None is shares(0.4, 0.34, 0.34).fell_from
    gained = scored(fewer).best.better_p(scored(before).best)
    assert gained == pytest.approx(1 - mcnemar_p(0, 12) / 2)
    unscored = [math.nan, *fewer[1:]]
    assert scored(before).best.better_p(Measurement(1, "accuracy", 0.34, 200, tuple(unscored))) < 0.01
    rewards = [0.5 + 0.01 * (place % 7) for place in range(50)]
    lower = [value - 0.1 - 0.01 * (place % 3) for place, value in enumerate(rewards)]
    assert scored(rewards, lower, lower, metric="reward").fell_from is not None
    assert scored(rewards, lower, metric="reward").best.text == "0.529 (0.524 to 0.535)"


def test_a_new_best_is_one_beyond_noise_and_slow_gains_add_up() -> None:
    counts = [shares(*(0.3, 0.31, 0.3, 0.32, 0.3)[: looks + 1]).since_new_best for looks in range(5)]
    assert counts == [0, 1, 2, 3, 4]
    slow = (0.3, 0.33, 0.36, 0.39, 0.42)
    assert [shares(*slow[: looks + 1]).since_new_best for looks in range(5)] == [0, 1, 2, 0, 1]
    assert shares(0.3, 0.5, 0.3, 0.3).since_new_best == 2 and Evaluations().since_new_best == 0


def test_one_low_look_must_be_very_low_and_the_luck_of_many_looks_is_paid_for() -> None:
    assert shares(0.345, 0.24).fell_from is None is shares(0.345, 0.2, 0.3).fell_from
    assert shares(0.345, 0.2).fell_from.step == shares(0.345, 0.2, 0.2).fell_from.step == 0
    assert shares(0.345, 0.3, 0.21, 0.21).fell_from is not None is shares(0.345, 0.3, 0.24, 0.21).fell_from
    assert shares(*[0.3] * 20, 0.345, 0.225, 0.225).fell_from is None  # the largest of 21 is partly luck


@pytest.mark.parametrize("paired", [True, False])
def test_runs_that_do_not_change_are_rarely_said_to_fall(paired: bool) -> None:
    """Of 100 runs with 40 looks each at most 1; a run whose accuracy halves is found in most."""
    random.seed(7)
    prompts, runs, looks = 150, 100, 40
    alarms = finds = 0
    for _ in range(runs):
        chances = [random.betavariate(0.4, 0.8) for _ in range(prompts)]
        rows = [[float(random.random() < chance) for chance in chances] for _ in range(looks)]
        worse = [[float(random.random() < 0.5 * chance) for chance in chances] for _ in range(2)]
        of = scored if paired else (lambda *rows: shares(*map(fmean, rows), size=prompts))
        measured = of(*rows).measured
        alarms += any(Evaluations(measured[:known]).fell_from is not None for known in range(2, looks + 1))
        finds += of(*rows[:5], *worse).fell_from is not None
    assert alarms <= runs // 100 and finds >= 0.5 * runs, (alarms, finds)


def test_the_log_keeps_what_each_prompt_scored(tmp_path) -> None:
    record = RunRecorder(tmp_path)
    record.started({})
    record.evaluated(0, "eval", {"accuracy": 2 / 3}, 0.5, 4, {"accuracy": (1.0, 0.0, math.nan, 1.0)})
    record.evaluated(5, "eval", {"accuracy": 0.5}, 0.5)
    record.close()
    assert read_metrics(tmp_path)[0]["scores"] == {"accuracy": [1, 0, None, 1]}
    first, second = eval_records(read_metrics(tmp_path))
    assert first.size == 4 and first.scores["accuracy"][:2] == [1, 0] and math.isnan(first.scores["accuracy"][2])
    assert (second.size, second.scores) == (0, {})
    measured = evaluations_of(with_size([first, second], 7), ("accuracy",)).measured
    assert [measurement.size for measurement in measured] == [4, 7]
    other = EvalRecord(6, "other", {"accuracy": 1.0}, 1.0)
    assert len(evaluations_of([first, second, other], ("accuracy",)).measured) == 2


def test_the_gain_is_from_the_first_to_the_last_evaluation():
    assert [shares(0.2, 0.9, 0.8).gain, shares(0.8, 0.1, 0.2).gain, shares(0.5, 0.9, 0.52).gain] == [1, -1, 0]
    assert shares(0.5).gain == Evaluations().gain == 0
