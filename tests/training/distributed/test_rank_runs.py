"""A run on two ranks reports what a run of one process does, within float noise: rollouts, scores, updates, evals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.distributed_runs import RUNS, alone
from tests.support.rank_processes import run_ranks

NOISE = 2e-3  # of a number, beside 1e-3: rounding grows in the second step
LAID_OUT = {"computed_tokens", "flat_tokens"}  # where a rank has rows of one prefix beside each other
COPY_ONLY = {"replayed_tokens", "replay_gap", "replay_limit"}  # of an engine on a copy of the policy, which is watched
QUICK = ("grpo", "dpo online")


def compared(names: list[str], size: int, folder: Path) -> None:
    file = folder / "reports.json"
    run_ranks(size, "distributed_runs.py", str(file), *names)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = alone(names)
    finally:
        torch.set_num_threads(before)
    for name, lines in json.loads(file.read_text(encoding="utf-8")).items():
        for step, (found, wanted) in enumerate(zip(lines, expected[name], strict=True)):
            assert found["texts"] == wanted["texts"], (name, step)
            _assert_close(found["metrics"], wanted["metrics"], (name, step))
    assert "grpo" not in expected or expected["grpo"][0]["metrics"]["traced weight"] > 0


def _assert_close(found: dict[str, Any], wanted: dict[str, Any], where: tuple[str, int]) -> None:
    assert found.keys() - COPY_ONLY - LAID_OUT == wanted.keys() - LAID_OUT, where
    for metrics in (found, wanted):
        assert len(LAID_OUT & metrics.keys()) in (0, 2), where
        assert metrics.get("computed_tokens", 0) <= metrics.get("flat_tokens", 0), where
    for key, value in ((key, value) for key, value in wanted.items() if key not in LAID_OUT):
        same = math.isclose(found[key], value, rel_tol=NOISE, abs_tol=NOISE * 0.1)
        assert same or (math.isnan(value) and math.isnan(found[key])), (*where, key, found[key], value)


def test_two_ranks_report_what_one_process_does(tmp_path: Path) -> None:
    """Rollouts of the policy and pairs of its own completions; the other kinds under `slow`."""
    compared(list(QUICK), 2, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_every_kind_reports_what_one_process_does(size: int, tmp_path: Path) -> None:
    compared(list(RUNS), size, tmp_path)
