"""Evaluation is the first witness: how often it is wrong on runs in which nothing changes, and what it finds."""

from __future__ import annotations

import random

from tests.record.health.test_rules import history
from whet.record.evaluations import Evaluations, Measurement
from whet.record.health.diagnosis import findings
from whet.record.health.history import WRONG_LOOKS, direction
from whet.record.log import EvalRecord


def evaluations(values: list[float], size: int) -> Evaluations:
    return Evaluations(tuple(Measurement(step, "accuracy", value, size) for step, value in enumerate(values)))


def is_said(values: list[float], size: int) -> tuple[bool, bool]:
    """Whether any look at the growing list says that evaluation fell, or that it rose."""
    looks = [evaluations(values[:count], size) for count in range(2, len(values) + 1)]
    return any(look.fell_from is not None for look in looks), any(look.rose for look in looks)


def test_of_whole_runs_in_which_nothing_changes_at_most_two_in_a_hundred_are_said_to_move() -> None:
    chance, wrong, num_runs = random.Random(0), {}, 200
    for size, truth, looks in ((20, 0.5, 20), (20, 0.1, 20), (200, 0.3, 10), (60, 0.8, 30)):
        runs = [
            is_said([sum(chance.random() < truth for _ in range(size)) / size for _ in range(looks)], size)
            for _ in range(num_runs)
        ]
        wrong[size, truth, looks] = [sum(run[side] for run in runs) / num_runs for side in (0, 1)]
    assert all(fell <= 0.02 and rose <= 0.03 for fell, rose in wrong.values()), wrong  # of 200: 0.03 is chance


def test_what_fell_is_found_wherever_its_best_was() -> None:
    assert evaluations([0.1, 0.9, 0.6], 200).fell_from.value == 0.9
    assert evaluations([0.284, 0.216], 500).fell_from.value == 0.284
    assert evaluations([0.284, 0.27, 0.20, 0.20], 500).fell_from.value == 0.284
    assert evaluations([0.5, 0.4], 20).fell_from is None and evaluations([0.5], 20).fell_from is None
    assert evaluations([0.29, 0.385], 200).rose is False and evaluations([0.29, 0.385], 500).rose
    assert evaluations([0.05, 0.067], 60).rose is False


def test_prompt_by_prompt_a_fall_is_found_that_shares_do_not_show() -> None:
    before = [1.0] * 60 + [0.0] * 140
    after = [1.0] * 45 + [0.0] * 155
    shares = evaluations([0.3, 0.225], 200)
    paired = Evaluations(
        (Measurement(0, "accuracy", 0.3, 200, tuple(before)), Measurement(10, "accuracy", 0.225, 200, tuple(after)))
    )
    assert shares.fell_from is None and paired.fell_from.value == 0.3


def test_pure_noise_rises_in_one_look_of_a_hundred() -> None:
    chance, num = random.Random(1), 600
    looks = [direction([chance.gauss(0.3, 0.05) for _ in range(60)]) for _ in range(num)]
    assert looks.count(1) / num <= 2 * WRONG_LOOKS and looks.count(-1) / num <= 2 * WRONG_LOOKS
    assert direction([0.2 + 0.01 * step + chance.gauss(0, 0.05) for step in range(60)]) == 1
    assert direction([0.2 + 0.05 * min(step, 15) - 0.05 * max(0, step - 25) for step in range(33)]) == -1


def said(num_steps: int, reward: object, evals: list[tuple[int, float]], size: int, **metrics: object) -> set[str]:
    records = [EvalRecord(step, "eval", {"accuracy": value}, 1.0, size) for step, value in evals]
    steps = history(num_steps, reward, **metrics)
    return {finding.name for finding in findings(steps, evals=records) if finding.is_problem}


def test_a_reward_that_rises_does_not_excuse_an_evaluation_that_fell() -> None:
    rising = {"reward": lambda step: 0.3 + 0.01 * step, "entropy": lambda step: 2.0 if step < 10 else 0.1}
    assert said(40, evals=[(0, 0.5), (40, 0.7)], size=200, **rising) == set()
    assert said(40, evals=[(0, 0.5), (30, 0.3)], size=200, **rising) == {"evaluation falls", "entropy collapse"}
