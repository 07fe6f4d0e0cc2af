"""Random faults: each number is one fault, what does not hold is noticed; under `slow` every kind of them strikes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.trust.chaos import (
    FAULTS,
    NUM_FAULTS,
    REFUSED_SAVE,
    ROOT,
    RUNS,
    Fault,
    Result,
    numbered_fault,
    read_lines,
    rows,
)
from whet.model.snapshot import SaveFailed
from whet.record.sections import ReportSection
from whet.training.distributed.ranks import ALONE
from whet.training.saving import Saver

WORKING = Result((0,), "finished\n", ({},), "", True, (), 1.0)


def drawn(number: int = 1) -> Iterator[Fault]:
    return map(numbered_fault, range(number, NUM_FAULTS + 1))


def outcomes(faults: list[Fault], tmp_path: Path) -> list[dict]:
    """What came of them, in a process of their own: it has a disk that nobody else sees."""
    file = tmp_path / "lines.jsonl"
    words = [word for fault in faults for word in ("--fault", str(fault.number))]
    command = [sys.executable, "-m", "benchmarks.trust.chaos", "--lines", str(file), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    if "CannotMount" in done.stderr:
        pytest.skip("this machine gives nobody a disk of his own")
    assert done.returncode == 0, done.stderr
    return read_lines(file)


def test_a_number_is_one_fault_and_all_kinds_are_drawn():
    assert list(drawn()) == list(drawn())
    assert {fault.run for fault in drawn()} == set(RUNS)
    assert {fault.kind for fault in drawn()} == set(FAULTS)
    engines = [fault for fault in drawn() if fault.kind == "a lost engine" and fault.run == "Ray"]
    assert len(engines) >= 3


def test_what_does_not_hold_is_noticed():
    def wrong(codes: tuple[int | None, ...], output: str = "", left: tuple[str, ...] = ()) -> str:
        return Result(codes, output, ({},), "", True, left, 1.0).wrong

    assert not WORKING.wrong
    assert not wrong((1,), "step 1\nwhet: the disk is full\n")
    assert not wrong((-9,), "step 1\n")
    assert "does not end" in wrong((0, None))
    assert "traceback" in wrong((0,), "Traceback (most recent call last):\n")
    assert "without a line of its own" in wrong((1,), "oh no\n")
    assert "left behind: sandbox" in wrong((0,), left=("sandbox",))


def test_a_killed_tracker_of_joblib_may_forget_and_nobody_else_may():
    said = "Traceback (most recent call last):\n  File \"x.py\", line 1\n    del it\nKeyError: '/loky-20873-tvaqybbx'\n"
    assert not replace(WORKING, output=said + "finished\n", victims="7 resource tracker").wrong
    assert "traceback" in replace(WORKING, output=said, victims="7 trainer").wrong
    assert "traceback" in replace(WORKING, output=said.replace("/loky", "/mp"), victims="7 resource tracker").wrong


def test_what_is_taken_for_a_statement_is_what_whet_says(tmp_path):
    saver = Saver(tmp_path, ReportSection(), ALONE, 0, print, print)
    assert REFUSED_SAVE.search(saver._failure(SaveFailed(tmp_path, "OSError: [Errno 5] Input/output error")))


def test_the_tally_counts_what_struck_and_what_held():
    kinds = list(FAULTS)[:2]
    lines = [
        {"kind": kinds[0], "run": "SFT", "struck": True, "came": "went on"},
        {"kind": kinds[0], "run": "SFT", "struck": True, "came": "wrong"},
        {"kind": kinds[0], "run": "DPO", "struck": False, "came": "went on"},
        {"kind": kinds[1], "run": "DPO", "struck": True, "came": "refused"},
    ]
    tally = {row["what"]: (row["held"], row["tried"]) for row in rows(lines)}
    assert tally[kinds[0]] == (1, 2) and tally[kinds[1]] == (1, 1)
    assert tally["in runs of SFT"] == (1, 2) and tally["all"] == (2, 3)


@pytest.mark.slow
def test_every_kind_of_fault_and_of_run_holds(tmp_path):
    """Each kind of fault twice, each kind of run (but Ray, which a cluster's tests lose engines of) at least once."""
    usual = [fault for fault in drawn() if fault.run != "Ray"]
    chosen = [fault for kind in FAULTS for fault in [fault for fault in usual if fault.kind == kind][:2]]
    chosen += [next(fault for fault in usual if fault.run == run) for run in RUNS if run != "Ray"]
    lines = outcomes(chosen, tmp_path)
    assert len(lines) == len(chosen)
    assert not [line for line in lines if line["wrong"]]
