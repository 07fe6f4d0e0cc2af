"""benchmarks/doctor: rules keep their meaning on runs of the corpus, and what is counted is counted right."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# one fault of each kind of trouble, whose rule must find it in every run of the half that rules are tuned on
SURE = (
    *("rate too high", "reward always 0", "reward per prompt", "sampler differs", "weights do not arrive"),
    *("failing reward", "failing environment", "slow reward", "chosen is padded", "routers differ", "rate too low"),
)
SLOW = ("learned by heart", "updates do harm", "frozen weights", "noisy labels")  # of the drawn ones


@pytest.fixture(scope="module")
def measure() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "doctor"))
        yield importlib.import_module("measure")


@pytest.fixture(scope="module")
def runs(measure: ModuleType) -> list[dict[str, Any]]:
    return list(measure.read_runs(measure.HERE / "corpus-tune.jsonl.xz"))


@pytest.fixture(scope="module")
def slow(measure: ModuleType) -> dict[str, list[dict[str, Any]]]:
    """Steps are drawn of those runs only whose steps a test looks at."""
    slow_runs = importlib.import_module("slow_runs")
    makers = slow_runs.STREAMS.items()
    streams = {name: (kind, make if kind in SLOW else lambda *_: []) for name, (kind, make) in makers}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow_runs, "STREAMS", streams)
        return {half: list(measure.slow_runs(half)) for half in measure.HALVES}


def test_a_planted_fault_is_named(
    measure: ModuleType, runs: list[dict[str, Any]], slow: dict[str, list[dict[str, Any]]]
) -> None:
    unnamed = {}
    for kind in (*SURE, *SLOW):
        run = measure.replayed(next(run for run in (slow["tune"] if kind in SLOW else runs) if run["kind"] == kind))
        if run.heard(measure.KINDS[kind].names) is None:
            unnamed[run.name] = dict(run.spoke)
    assert not unnamed


def test_most_healthy_runs_are_left_in_peace(measure: ModuleType, runs: list[dict[str, Any]]) -> None:
    healthy = [measure.replayed(run) for run in [run for run in runs if run["kind"] == "healthy"][::5]]
    assert len(healthy) >= 12
    alarmed = {run.name: sorted(run.spoke) for run in healthy if run.spoke}
    assert len(alarmed) <= len(healthy) // 10, alarmed


def test_archived_runs_are_judged_by_their_own_evaluations(slow: dict[str, list[dict[str, Any]]]) -> None:
    slow_runs = importlib.import_module("slow_runs")

    def judged(*values: float) -> str:
        lines = [{"step": step, "eval": "eval", "result": {"accuracy": value}} for step, value in enumerate(values)]
        return slow_runs.judged({"lines": lines}, 100)

    assert [judged(0.3, 0.5, 0.6), judged(0.3, 0.3)] == ["healthy"] * 2
    assert judged(0.3, 0.8, 0.5) == "updates do harm"
    assert [judged(0.3, 0.8, 0.5, 0.8), judged(0.5, 0.45), judged(0.5)] == [""] * 3  # unsteady, lower, unknown
    real = [run for run in slow["tune"] if run["model"] == "0.5B"]
    assert len(real) == 21 and {run["kind"] for run in real} == {"healthy"}
    names = [{run["name"] for run in half} for half in slow.values()]
    assert names[0] and names[1] and names[0].isdisjoint(names[1])


def test_a_run_that_a_claim_made_faulty_on_purpose_is_not_healthy(slow: dict[str, list[dict[str, Any]]]) -> None:
    slow_runs, arms = importlib.import_module("slow_runs"), importlib.import_module("claim_runs").ARMS
    assert set(slow_runs.PLANTED) <= set(arms)
    kinds = {run["name"]: run["kind"] for run in slow["tune"]}
    assert kinds["claims-rm_tied-s0"] == "proxy reward"  # what is paid rises, what is right falls
    assert kinds["claims-fast-s2"] == "rate too high"  # the fault has taken all away that there was
    assert kinds["claims-cold-s0"] == "healthy"  # it learned all the same
    record = {"name": "grpo-s0", "tags": {"arm": "grpo"}, "lines": []}
    assert slow_runs.planted(record) == ""


def test_no_run_is_in_both_halves_and_every_kind_is_in_each(
    measure: ModuleType, runs: list[dict[str, Any]], slow: dict[str, list[dict[str, Any]]]
) -> None:
    halves = [runs, list(measure.read_runs(measure.HERE / "corpus-sealed.jsonl.xz"))]
    names = [{run["name"] for run in half} for half in halves]
    assert not names[0] & names[1]
    assert sum(map(len, names)) == sum(map(len, halves))
    kinds = [{run["kind"] for run in half} for half in halves]
    drawn = [{run["kind"] for run in half} for half in slow.values()]
    outside = set(
        importlib.import_module("outside").FAULTS
    )  # two runs of each: both may be in one half, or neither took hold
    never_held = {"pairs of other prompts", "judge turns lenient"}
    assert set.union(*kinds, *drawn) == {"healthy", *measure.KINDS} - never_held
    assert (kinds[0] | drawn[0]) - outside == (kinds[1] | drawn[1]) - outside
    held = importlib.import_module("kinds").took_hold
    assert all(held(run) for half in halves for run in half)


def test_every_rule_of_a_fault_exists(measure: ModuleType) -> None:
    named = {rule for kind in measure.KINDS.values() for rule in kind.names | kind.follows}
    assert not named - set(measure.RULES)


def test_alarms_before_the_fault_and_of_other_rules_are_wrong(measure: ModuleType) -> None:
    def spoken(kind: str, spoke: dict[str, list[int]]) -> Any:
        cause = next(iter(spoke))
        return measure.ReplayedRun(
            "a run", kind, "whetstone", 20, 40, True, "corpus", spoke, cause, "", frozenset(), False
        )

    found = spoken("slow reward", {"throughput loss": [24, 25]})
    assert (found.heard(["throughput loss"]), found.wrong()) == (24, [])
    early = spoken("slow reward", {"throughput loss": [5, 24]})
    assert (early.heard(["throughput loss"]), early.wrong()) == (24, ["throughput loss"])
    other = spoken("slow reward", {"KL runaway": [30]})
    assert (other.heard(["throughput loss"]), other.wrong()) == (None, ["KL runaway"])
    healthy = spoken("healthy", {"KL runaway": [30, 31]})
    counted = measure.summary([found, early, other, healthy])
    assert counted["faulty"]["found"]["count"] == 2 and counted["faulty"]["wrong"]["count"] == 2
    assert counted["healthy"]["alarmed"]["count"] == 1
    assert counted["healthy"]["per 1,000 steps"] == 50.0
    assert counted["faults"]["slow reward"]["delay"] == 4.0
    assert counted["rules"]["KL runaway"]["other faults"]["count"] == 1
    assert [run.verdict() for run in (found, other, healthy)] == ["named", "wrong", "alarmed"]


def test_a_run_that_its_fault_did_not_change_is_dropped(measure: ModuleType, runs: list[dict[str, Any]]) -> None:
    kinds = importlib.import_module("kinds")
    healthy = next(run for run in runs if run["kind"] == "healthy" and run["method"] == "grpo")
    told = {name for name, kind in kinds.KINDS.items() if kind.held is not kinds.always and kind.criterion != "always"}
    of_rl = sorted(told - {"loss rises"})
    assert kinds.took_hold(healthy)
    assert not [name for name in of_rl if kinds.took_hold({**healthy, "kind": name})]


def test_the_numbers_given_to_rivals_are_those_of_the_run(measure: ModuleType, runs: list[dict[str, Any]]) -> None:
    rivals = importlib.import_module("rivals")
    run = next(run for run in runs if run["kind"] == "rate too high" and run["method"] == "grpo")
    rows = rivals.trl_rows(json.loads(json.dumps(run)))
    line = next(line for line in run["lines"] if "eval" not in line)
    assert rows[0]["reward"] == line["reward"]["total"] and rows[0]["kl"] == line["metrics"]["kl"]
    assert rows[0]["completions/mean_length"] == line["counts"]["tokens"] / line["counts"]["samples"]
    assert rows[0]["frac_reward_zero_std"] == line["metrics"]["uniform_groups"]
