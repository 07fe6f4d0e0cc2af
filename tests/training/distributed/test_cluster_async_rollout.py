"""Completions that engines of a cluster write while the trainer trains."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest

import whet
from tests.training.distributed.test_cluster_faults import KillOnce, workers_of
from tests.training.distributed.test_ray_cluster import marked  # noqa: F401  (no process is left)

pytestmark = pytest.mark.cluster

RUN = {
    "steps": 5,
    "seed": 5,
    "batch": {"prompts_per_step": 4, "group_size": 4},
    "data": "task:arithmetic",
    "objective": {"mismatch": "truncate"},
    "eval": {"prompts": 8, "every": 2},
    "report": {"samples_per_step": 64},
}


def trained(folder, scale, **more):
    return whet.train(method="grpo", folder=str(folder), console=False, scale=scale, **RUN, **more)


def prompts_of(run):
    lines = [json.loads(line) for line in (run.folder / "samples.jsonl").read_text().splitlines()]
    return Counter(each["prompt_id"] for each in lines)


def metrics_of(run):
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def found_in(lines, name):
    found = [each[name] for each in lines if name in each] or [
        each["metrics"][name] for each in lines if name in each.get("metrics", {})
    ]
    assert found, (name, sorted(lines[0]))
    return found


def check(run, together):
    """As many completions to each prompt as where each step waits; none too old; written by the policy it says."""
    assert prompts_of(run) == together
    lines = metrics_of(run)
    behind = found_in(lines, "versions_behind_max")
    assert len(behind) == RUN["steps"] and max(behind) <= 2 and max(behind) > 0
    replayed = found_in(lines, "replay_gap")
    assert all(gap <= limit for gap, limit in zip(replayed, found_in(lines, "replay_limit"), strict=True))


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """How many completions each prompt gets where strict order is kept and each step waits for its own."""
    found = prompts_of(trained(tmp_path_factory.mktemp("waits") / "run", {}))
    assert set(found.values()) == {4} and len(found) == 20
    return found


def test_two_engines_write_ahead_each_prompt_once(tmp_path, together):
    run = trained(tmp_path / "run", {"engines": 2, "max_staleness": 2, "window": 0.0})
    check(run, together)
    rows = json.loads((run.folder / "run.json").read_text())["processes"]
    assert all(each["requests"] > 0 and each["restarts"] == 0 for each in rows)


def test_an_engine_that_is_killed_while_it_writes_ahead_costs_no_prompt(tmp_path, together, caplog):
    def kill():
        (victim, *_) = workers_of(f"WHET_TEST={os.getpid()}", "_WorkerHost")
        os.kill(victim, signal.SIGKILL)
        return victim

    killer = KillOnce(kill)
    scale = {"engines": 2, "max_staleness": 2, "window": 0.0}
    run = trained(tmp_path / "run", scale, callbacks=[killer])
    assert killer.done and "its process ended" in caplog.text
    check(run, together)


def test_adapters_reach_engines_that_write_ahead(tmp_path):
    scale = {"engines": 2, "max_staleness": 1}
    run = trained(tmp_path / "run", scale, config={"model": {"lora": {"rank": 4}}})
    assert max(found_in(metrics_of(run), "versions_behind_max")) <= 1
    gaps, limits = (found_in(metrics_of(run), name) for name in ("replay_gap", "replay_limit"))
    assert gaps and all(gap <= limit for gap, limit in zip(gaps, limits, strict=True))
