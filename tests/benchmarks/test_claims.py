"""The rule that judges the documents' claims, its effects, and that the page's results follow from the runs."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture()
def claims(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("claims")


@pytest.fixture()
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("claim_rules")


def record(
    values: Mapping[str, list[float]], held_out: list[float] | None = None, **counts: list[int]
) -> dict[str, Any]:
    """A run whose metrics, counts and evaluations are these, step by step."""
    size = len(next(iter(values.values())))
    lines: list[dict[str, Any]] = []
    for step in range(size):
        lines.append(
            {
                "step": step + 1,
                "counts": {"samples": 4, "tokens": 40, "truncated": 0}
                | {name: column[step] for name, column in counts.items()},
                "reward": {"total": 0.5, "exact_answer": values.get("right", [0.5] * size)[step]},
                "metrics": {name: column[step] for name, column in values.items()},
                "seconds": {"rollout": 3.0, "train": 1.0},
            }
        )
    results = [{"step": 5 * n, "eval": "eval", "result": {"accuracy": value}} for n, value in enumerate(held_out or [])]
    return {"lines": [*results[:1], *lines, *results[1:]]}


def test_the_verdict_is_the_side_of_the_interval(rules: ModuleType) -> None:
    cases = (
        ([0.9, 1.0, 1.1], 1, "reproduced"),
        ([0.9, 1.0, 1.1], -1, "refuted"),
        ([-0.9, -1.0, -1.1], -1, "reproduced"),
        ([-0.9, -1.0, -1.1], 1, "refuted"),
        ([1.0, -0.9, 1.1], 1, "not at this scale"),
        ([-0.1, -0.1, -0.1], 1, "refuted"),  # no spread at all: the interval is the number
        ([0.0, 0.0, 0.0], 1, "not at this scale"),
        ([5.0, 5.0], 1, "runs are missing"),
        ([], 1, "runs are missing"),
    )
    assert {str(case[:2]): rules.verdict(case[0], case[1]) for case in cases} == {
        str(case[:2]): case[2] for case in cases
    }


def test_the_interval_is_that_of_students_t(rules: ModuleType) -> None:
    mean, low, high = rules.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3 and [high - mean, mean - low] == pytest.approx([2.776445 * 0.5**0.5] * 2, rel=1e-5)


def test_measures_read_the_steps_they_name(rules: ModuleType) -> None:
    rising = [float(step) for step in range(1, 21)]
    run = record({"entropy": rising, "right": rising}, [0.1, 0.5, 0.9], tokens=[8 * step for step in range(1, 21)])
    for window, mean in (
        (rules.START, 3.0),
        (rules.END, 18.0),
        (rules.LATE, 15.5),
        (rules.ALL, 10.5),
        (slice(5, 7), 6.5),
    ):
        assert rules.mean_of(run, "entropy", window) == pytest.approx(mean), window
    assert rules.mean_of(run, "tokens") == pytest.approx(2 * 10.5)
    assert rules.mean_of(run, "reward.exact_answer") == pytest.approx(10.5)
    assert rules.mean_of(run, "rollout_share") == pytest.approx(0.75)
    assert rules.mean_of(run, "spent") == 1 and rules.mean_of(run, "absent") is None
    assert rules.mean_of(record({"a": [1.0]}, samples_spent=[6]), "spent") == 1.5
    assert rules.last_held_out(run) == 0.9 and rules.first_held_out(run) == 0.1
    assert rules.whole_curve(run) == pytest.approx(0.7) and rules.last_held_out(run, "other") is None


def test_effects_compare_runs_of_one_seed(rules: ModuleType) -> None:
    runs = {"a": record({"x": [1.0, 3.0]}, [0.1, 0.4]), "b": record({"x": [5.0, 5.0]}, [0.1, 0.9])}
    assert rules.apart("a", "b", rules.metric("x"))(runs) == -3
    assert rules.apart("a", "b", rules.metric("y"))(runs) is None
    assert rules.learned("a")(runs) == pytest.approx(0.3)
    assert rules.above("b", rules.metric("x"), 4.0)(runs) == 1
    assert rules.best_of(("a", "b"), "a", rules.ending("accuracy"))(runs) == pytest.approx(-0.5)
    long = {"a": record({"x": [1.0] * 5 + [4.0] * 5})}
    assert rules.moved("a", "x")(long) == 3


def test_a_claim_is_judged_by_the_seeds_that_have_all_of_its_runs(rules: ModuleType) -> None:
    claim = rules.RunClaim("c", "text", "A", ("a", "b"), "x", rules.apart("a", "b", rules.metric("x")))
    seeds = {seed: {"a": record({"x": [2.0 + seed / 10]}), "b": record({"x": [1.0]})} for seed in range(4)}
    del seeds[3]["b"]
    row = rules.judged(claim, seeds)
    assert row["effects"] == {"0": 1.0, "1": pytest.approx(1.1), "2": pytest.approx(1.2)}
    assert row["verdict"] == "reproduced" and row["low"] < row["mean"] < row["high"]
    assert row["mean"] == pytest.approx(1.1)
    del seeds[2]["a"]
    assert rules.judged(claim, seeds)["verdict"] == "runs are missing"
    dead = {seed: {"a": {"lines": []}, "b": {"lines": []}} for seed in range(3)}
    assert rules.judged(claim, dead)["effects"] == {}


def test_every_claim_of_training_has_its_runs_and_every_run_a_claim(claims: ModuleType) -> None:
    used = {arm for claim in claims.CLAIMS for arm in claim.arms}
    assert used == set(claims.ARMS)
    every = [*claims.CLAIMS, *claims.ARITHMETIC, *claims.UNTESTED_CLAIMS]
    names = [claim.name for claim in every]
    assert len(set(names)) == len(names) >= 40
    ordered = claims.in_order(list(claims.ARMS), 2)
    assert len(ordered) == len(set(ordered)) == 2 * len(used) and ordered[:2] == [("grpo", 0), ("grpo", 1)]


def test_claims_of_training_follow_the_runs(claims: ModuleType) -> None:
    """Each effect changes its sign when the runs of its two sides change places; none is blind to its runs."""

    def run(level: float) -> dict[str, Any]:
        names = {name for claim in claims.CLAIMS for name in METRICS}
        columns = {name: [level * (1 + 0.1 * step) for step in range(12)] for name in names}
        counts = {"tokens": [round(40 * level * step) for step in range(1, 13)], "truncated": [round(level)] * 12}
        made = record(columns, None, **counts, samples_spent=[round(4 + level)] * 12)
        for line in made["lines"]:
            line["reward"] = dict.fromkeys(PARTS, level * line["step"])
            line["seconds"] = {"rollout": level, "train": 1.0}
        evaluations = [(0, 1.0), (12, level)]
        result = {"chosen_logp": -1.0, "completion_tokens": 4.0, "margin": 1.0, "rejected_logp": -2.0}
        made["lines"] += [
            {
                "step": step,
                "eval": "eval",
                "result": {name: value * (scale + 1) for name, value in result.items()} | {"accuracy": scale},
            }
            for step, scale in evaluations
        ]
        return made

    blind = []
    for claim in claims.CLAIMS:
        first, *others = claim.arms
        low = claim.effect({arm: run(1.0) for arm in claim.arms})
        high = claim.effect({first: run(3.0), **{arm: run(2.0) for arm in others}})
        other = claim.effect({first: run(2.0), **{arm: run(3.0) for arm in others}})
        if low is None or high is None or high == other:
            blind.append(claim.name)
        elif others and claim.name not in UNEVEN and low != pytest.approx(0, abs=1e-9):
            blind.append(f"{claim.name}: two equal runs differ by {low}")
        elif others and claim.name not in UNEVEN and (high > 0) == (other > 0):
            blind.append(f"{claim.name}: does not see which run is which")
    assert not blind


METRICS = (
    *("entropy", "uniform_groups", "reward_length_correlation", "wrong_tokens", "right_tokens", "reweighted"),
    *("dead_experts", "kl_old", "repetition", "kl_completion", "gradient_norm", "critic_explains"),
)
PARTS = ("total", "exact_answer", "learned", "think_format", "working_steps")
UNEVEN = ("gspo_clips_more",)  # ten times one side against the other


def test_commands_are_what_the_runs_are_made_of(claims: ModuleType) -> None:
    arm = ("grpo", {"objective": {"clip": {"high": 0.28}, "kl": "none"}, "steps": 9, "data": {"difficulty": [1, 2]}})
    said = (
        "whet train grpo --set objective.clip.high=0.28 --set objective.kl=none --steps 9 --set data.difficulty=[1,2]"
    )
    assert claims.command_of(arm) == said
    parted = ("grpo", {"reward": {"parts": [{"reward": "exact_answer", "weight": 0.5}]}})
    assert claims.command_of(parted) == "whet train grpo --set 'reward.parts=[{reward=\"exact_answer\",weight=0.5}]'"
    assert "RUNS" not in " ".join(claims.command_of(arm) for arm in {**claims.MODELS, **claims.ARMS}.values())


def test_the_results_follow_from_the_archived_runs(claims: ModuleType) -> None:
    from benchmarks.results_file import shortened

    results = json.loads((ROOT / "results" / "claims.json").read_text(encoding="utf-8"))["values"]
    again = json.loads(json.dumps(shortened(claims.ledger(list(claims.read_archive(claims.ARCHIVE))))))
    stale = [name for name, row in again["claims"].items() if row != results["claims"].get(name)]
    assert not stale, "run python benchmarks/claims.py --archive --results"
    assert again == results and results["seeds"] >= 3
