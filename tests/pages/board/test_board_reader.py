"""A run folder is read right while it grows, is cut back, damaged, of another version, or gone."""

import json
import os
import random
import shutil

import numpy as np
import pytest

from tests.pages.board.test_run_list import Routes
from tests.support.made_runs import MadeRun
from whet.pages.board import reader as reader_module
from whet.pages.board import run_page
from whet.pages.board.board_app import Board, BoardRequest
from whet.pages.board.files import folder_id
from whet.pages.board.reader import RunReader, is_newer
from whet.pages.run_charts import Envelopes, drawn_charts, planned_charts


def whole(reader):
    while not reader.catch_up(1):
        pass
    return reader


def test_no_extreme_is_lost_however_often_stretches_are_merged():
    draw = random.Random(0)
    values = [draw.gauss(0, 1) for _ in range(5000)]
    values[1234], values[4321] = 99.0, -99.0
    found = Envelopes(most=64)
    for start in range(0, 5000, 37):  # in uneven portions
        rows = [{"a": value, **({"late": 1.0} if start > 2500 else {})} for value in values[start : start + 37]]
        steps = list(range(start + 1, start + 1 + len(rows)))
        found.add(steps, [10 * step for step in steps], rows)
    assert found.width == 128 and found.num_rows == 5000 and found.size <= 64
    points = found.points("a", None, None, 20)
    assert len(points.x) <= 20 and points.is_merged
    assert max(points.high) == 99.0 and min(points.low) == -99.0
    whole_mean = found.points("a", None, None, 1)
    assert whole_mean.y == [pytest.approx(np.mean(values), abs=1e-5)]
    assert found.points("late", None, None, 50).x[0] > 2300 and found.points("none", None, None, 5).x == []
    zoomed = found.points("a", 1200, 1300, 20)
    assert 99.0 in zoomed.high and min(zoomed.x) <= 1200 and max(zoomed.x) <= 1300 + 2 * found.width
    assert found.place_of(1234) <= 12340 < found.place_of(1234 + 200) + 1


def test_gaps_and_what_is_not_finite_are_no_values():
    found = Envelopes()
    found.add([1, 2, 3], [0, 1, 2], [{"a": float("nan")}, {"a": 2.0}, {"b": 1.0}])
    points = found.points("a", None, None, 10)
    assert (points.x, points.y, points.is_merged) == ([2.0], [2.0], False)


def test_what_is_appended_bit_by_bit_is_what_is_read_at_once(tmp_path):
    run = MadeRun(tmp_path / "run")
    slowly = RunReader(run.folder)
    for _ in range(8):
        run.step(5, health=("a rule of before: it is 3: too far; raise it.",))
        whole(slowly)
    once = whole(RunReader(run.folder))
    first, second = slowly.view(), once.view()
    assert first.record == second.record and first.spans == second.spans
    assert first.record.totals.num_steps == 40 and len(first.record.evals) == 5
    names = slowly.names()
    assert names == once.names() and "spread/exact_answer/q3" in names and "seconds/train" in names
    assert slowly.points(names) == once.points(names)
    (span,) = [span for span in first.spans if span.finding.is_problem]
    assert (span.first, span.last, span.num_steps, span.holds) == (1, 40, 40, True)


def test_a_run_that_was_cut_back_and_went_on_is_read_anew(tmp_path):
    run = MadeRun(tmp_path / "run").step(30)
    reader = whole(RunReader(run.folder))
    log = run.folder / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    os.truncate(log, sum(map(len, lines[:11])))
    with log.open("ab") as file:
        for line in lines[11:16]:
            file.write(line.replace(b'"odd": ', b'"new": '))
    whole(reader)
    view = reader.view()
    assert view.record.num_steps == 14 and "new" in reader.names()


def test_a_long_log_is_shown_at_a_first_look_and_then_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(reader_module, "SMALL", 1000)
    monkeypatch.setattr(reader_module, "SPACED", 30)
    monkeypatch.setattr(reader_module, "LAST", 20)
    run = MadeRun(tmp_path / "run", total=400).step(400, health=("KL runaway: it is 3: too far; raise it.",))
    reader = RunReader(run.folder)
    view = reader.view()
    assert not view.is_complete and view.record.num_steps == 400 and len(view.record.steps) < 200
    (quick,) = drawn_charts(
        [planned_charts(view.record, reader.names()).by_key()["entropy"]], reader.points(["entropy"])
    )
    assert quick.spec["series"][0]["x"][0] == 1 and quick.spec["series"][0]["x"][-1] >= 398
    board, routes = Board(tmp_path), Routes()
    run_page.add_routes(routes, board)
    request = BoardRequest("GET", "/", {"run": folder_id("run", "run")}, {})
    sums = ("tokens generated", "<td>whole run</td>", "<title>rollout ")
    first_look = routes["/run/{run}"](request).body
    assert not any(text in first_look for text in sums), "sums over a part of the log are left out"
    whole(board.reader(request.path["run"]))
    page = routes["/run/{run}"](request).body
    assert all(text in page for text in sums)
    whole(reader)
    view = reader.view()
    assert view.is_complete and view.record.totals.num_steps == 400


def test_a_zoom_beyond_the_stretches_reads_the_log_itself(tmp_path, monkeypatch):
    run = MadeRun(tmp_path / "run", total=400).step(400)
    reader = RunReader(run.folder)
    reader._whole.envelopes = Envelopes(most=16)
    whole(reader)
    coarse = reader.points(["odd"])["odd"]
    assert coarse.is_merged and len(coarse.x) <= 16
    exact = reader.points(["odd"], 101, 110)["odd"]
    assert not exact.is_merged and [y for x, y in zip(exact.x, exact.y, strict=True) if 101 <= x <= 110] == list(
        range(101, 111)
    )


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'{"step": "3"}',
        b'{"step": -1}',
        b'{"step": true}',
        b"[" * 100_000,
        b'{"step": 1e999}',
        b"\xff\xfe",
    ],
)
def test_damaged_lines_are_counted_and_said(tmp_path, line):
    run = MadeRun(tmp_path / "run").step(3)
    with (run.folder / "metrics.jsonl").open("ab") as log:
        log.write(line + b"\n")
    run.step(2)
    view = whole(RunReader(run.folder)).view()
    assert view.record.num_steps == 5
    (remark,) = view.remarks
    assert remark.startswith("1 line of metrics.jsonl could not be read")


@pytest.mark.parametrize(
    "fields",
    [
        {"metrics": 3, "reward": None, "counts": "x", "seconds": [], "health": {}, "spread": [1]},
        {"metrics": {"a": "x", "b": 10**400, "c": None, "d": True}, "reward": {"total": [1]}},
        {"spread": {"total": 7}, "health": [1, None], "counts": {"tokens": 1e400}},
        {},
    ],
)
def test_steps_with_fields_of_other_types_are_read_for_what_is_there(tmp_path, fields):
    run = MadeRun(tmp_path / "run").step(2)
    with (run.folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 3, **fields}) + "\n")
    reader = whole(RunReader(run.folder))
    view = reader.view()
    assert view.record.num_steps == 3 and view.remarks == ()
    plans = planned_charts(view.record, reader.names()).by_key().values()
    drawn_charts(plans, reader.points(reader.names()), view.record.evals)


def test_summaries_that_are_missing_torn_or_of_a_newer_version_are_said(tmp_path):
    run = MadeRun(tmp_path / "run", whet="99.1", newer={"x": 1}, facts="odd", seconds={"train": "x"}).step(2)
    reader = RunReader(run.folder)
    (remark,) = reader.view().remarks
    assert remark.startswith("whet 99.1 wrote this run and this board is whet")
    (run.folder / "run.json").write_text('{"status": "runn')
    view = reader.view()
    assert view.status == "damaged" and "not JSON" in view.remarks[0] and view.record.num_steps == 2
    (run.folder / "run.json").write_text("[]")
    assert "does not hold an object" in reader.view().remarks[0]
    (run.folder / "run.json").unlink()
    assert "There is no run.json" in reader.view().remarks[0]
    shutil.rmtree(run.folder)
    assert reader.catch_up(1) and reader.view().record.steps == ()


def test_versions_are_compared_by_their_numbers():
    assert is_newer("0.10.0", "0.9.3") and is_newer("1", "0.9") and is_newer("0.2.1.dev3", "0.2.0")
    assert not is_newer("0.2.0", "0.2.0") and not is_newer("", "0.2.0") and not is_newer("x", "0.2.0")
