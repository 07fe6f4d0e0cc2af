"""Long runs: what is kept of them, and that sums count what is not drawn."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.for_every import for_every
from whet.pages.run_report import health_cards, html_report
from whet.record.flat_rows import ThinnedLog
from whet.record.log import RunRecorder, json_object, raw_lines, step_sums
from whet.record.run import MOST_BETWEEN, read_run
from whet.types import StepReport, WhetError


def kept(count: int, first: int = 3, last: int = 4, between: int = 5) -> list[int]:
    log: ThinnedLog[int] = ThinnedLog(first, last, between)
    for number in range(count):
        log.append(number)
    assert log.num_items == count
    return log.items()


def test_everything_is_kept_while_there_is_room() -> None:
    for count in range(13):
        assert kept(count) == list(range(count))
    assert len(kept(13)) < 13


@for_every([13, 20, 50, 1000, 4097])
def test_the_first_the_last_and_evenly_spaced_ones_are_kept(count: int) -> None:
    found = kept(count)
    assert found[:3] == [0, 1, 2] and found[-4:] == list(range(count - 4, count))
    between = found[3:-4]
    assert 2 <= len(between) <= 5
    (distance,) = {b - a for a, b in pairwise(between)}
    assert distance & (distance - 1) == 0 and all(number % distance == 0 for number in between)


def write_run(folder: Path, steps: int) -> None:
    recorder = RunRecorder(folder)
    recorder.started({"title": "long"})
    for number in range(1, steps + 1):
        health = ("a rule of before: it is flat.",) if 100 <= number < 200 or number == 1001 else ()
        metrics = {"loss": 1.0, "health": 2.0, "eval": 0.5}
        counts = {"samples": 2, "tokens": number}
        seconds = {"train": 0.5}
        recorder.stepped(StepReport(number, number, counts, {"total": 0.5}, metrics, health, seconds), [])
    recorder.evaluated(steps, "eval", {"accuracy": 0.5}, 1.0)
    recorder.close()


def test_the_page_of_a_long_run_draws_some_steps_and_counts_all(tmp_path) -> None:
    steps = 2 * MOST_BETWEEN
    write_run(tmp_path, steps)
    run = read_run(tmp_path)
    assert len(run.steps) < MOST_BETWEEN + 250 < steps
    assert (run.num_steps, run.totals.num_steps, len(run.evals)) == (steps, steps, 1)
    assert run.totals.counts == {"samples": 2 * steps, "tokens": steps * (steps + 1) // 2}
    assert run.seconds() == {"train": 0.5 * steps, "evaluate": 1.0}
    (problem,) = [card for card in health_cards(run.finding_spans()) if card["name"] == "a rule of before"]
    assert problem["when"] == "101 of the steps 100 to 1,001, over by the last step"
    page = html_report(tmp_path)
    assert f"{len(run.steps):,} of {steps:,}" in page


def test_sums_of_a_line_are_those_of_the_whole_line(tmp_path) -> None:
    write_run(tmp_path, 150)
    for place, text in raw_lines(tmp_path / "metrics.jsonl"):
        whole = json_object(place, text)
        if "eval" not in whole:
            found = step_sums(place, text)
            assert {name: found[name] for name in ("step", "counts", "health", "seconds")} == {
                name: whole[name] for name in ("step", "counts", "health", "seconds")
            }
            assert "metrics" not in found  # it was not read


@for_every(
    [
        {"counts": {"a": 1, "reward": 2}},
        {"health": ['quotes ", "spread": {" in a text']},
        {"reward": {', "health": ': 1.0}},
        {"spread": {"health": {"min": 0.0}, "seconds": {"max": 1.0}}},
        {"seconds": {}},
    ]
)
def test_odd_lines_are_read_right(changes) -> None:
    line = {"step": 1, "policy_version": 0, "counts": {"n": 1}, "reward": {}, "metrics": {}, "health": [], "spread": {}}
    line = {**line, "seconds": {"train": 1.0}, **changes}
    found = step_sums("log:1", json.dumps(line).encode() + b"\n")
    assert all(found[name] == line[name] for name in ("step", "counts", "health", "seconds"))


def test_a_damaged_line_is_named() -> None:
    with pytest.raises(WhetError, match="log:7 is not a JSON object"):
        step_sums("log:7", b'{"step": 1, "counts": {\n')
