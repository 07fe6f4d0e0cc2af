"""The folder of a run on the board: its error and logs, its models and what each is good for, tags and a note."""

import json
import os

import pytest

from tests.pages.board.test_run_list import Routes, shown
from tests.support.made_runs import MadeRun
from whet.pages.board import folder_page, glance
from whet.pages.board.access import Refusal
from whet.pages.board.board_app import Board, BoardRequest
from whet.pages.board.files import folder_id
from whet.pages.board.folder_page import logs, models
from whet.pages.board.reader import RunReader
from whet.record.notes import NOTES, RunNotes, checked_notes, notes_from, write_notes
from whet.types import WhetError


class WritingRoutes(Routes):
    def post(self, path, handler):
        self[f"POST {path}"] = handler


def routes(board):
    found = WritingRoutes()
    folder_page.add_routes(found, board)
    return found


def saved(folder, **about):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    if about:
        (folder / "saved.json").write_text(json.dumps(about))


def test_models_say_what_they_are_good_for(tmp_path):
    run = MadeRun(tmp_path / "run").step(30)
    evaluations = RunReader(run.folder).view().record.evaluations()
    saved(run.folder / "checkpoints" / "step-000010")
    saved(run.folder / "checkpoints" / "step-000030")
    (run.folder / "checkpoints" / "step-000040").mkdir()  # half written
    os.symlink(run.folder / "checkpoints" / "step-000010", run.folder / "checkpoints" / "step-000050")
    saved(run.folder / "best", step=20)
    listed = models(run.folder, evaluations, "interrupted")
    assert [(model["name"], model["step"], model["resumes"]) for model in listed] == [
        ("best", 20, False),
        ("checkpoints/step-000030", 30, True),
        ("checkpoints/step-000010", 10, False),
    ]
    assert "best by evaluation" in listed[0]["use"] and listed[0]["evaluation"] == "accuracy 50.0%"
    assert "resume begins with it" in listed[1]["use"] and "resume" not in listed[2]["use"]
    assert listed[2]["size"] == "1.00 kB" and "resume" not in models(run.folder, evaluations, "finished")[1]["use"]


def test_the_error_comes_first_and_of_a_long_log_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_page, "MOST_TAIL", 100)
    run = MadeRun(tmp_path / "run", status="failed", error="unexpected boom at a.py:3").step(1)
    (run.folder / "error.log").write_text("RuntimeError: <b>boom</b>\n")
    (run.folder / "a.log").write_text("".join(f"line {number:03d}\n" for number in range(50)))
    os.symlink("/etc/hostname", run.folder / "b.log")
    first, second = logs(run.folder)
    assert (first["name"], second["name"]) == ("error.log", "a.log")
    assert second["text"].startswith("line 039\n") and second["text"].endswith("line 049\n")
    assert "the last 100 bytes of 450 bytes" in second["about"]
    page = routes(Board(tmp_path))["/run/{run}/files"](BoardRequest("GET", "/", {"run": folder_id("run", "run")})).body
    assert "It failed: unexpected boom at a.py:3" in page and "&lt;b&gt;boom" in page and "<b>boom" not in page


def test_the_sample_that_was_being_scored_is_shown_without_the_room_its_file_keeps(tmp_path):
    run = MadeRun(tmp_path / "run").step(1)
    (run.folder / "scoring.txt").write_bytes(b"reward 'mine' was judging prompt 'p7'" + b"\0" * 100)
    assert [log["text"] for log in logs(run.folder)] == ["reward 'mine' was judging prompt 'p7'"]


def test_tags_and_a_note_are_kept_in_the_folder_and_found_in_the_list(tmp_path):
    for name in ("one", "two"):
        MadeRun(tmp_path / name).step(1)
    board = Board(tmp_path)
    board.watcher.notice()
    body = json.dumps({"tags": [" base  line ", "base line", "paper"], "note": "as good as <i>any</i>"}).encode()
    answer = routes(board)["POST /api/run/{run}/notes"](
        BoardRequest("POST", "/", {"run": folder_id("run", "two")}, {}, body)
    )
    assert json.loads(answer.body) == {"tags": ["base line", "paper"], "note": "as good as <i>any</i>"}
    board.watcher.notice()
    (change,) = board.watcher.since(0)
    assert change.values["id"] == folder_id("run", "two") and change.values["tags"] == ("base line", "paper")
    board.look()
    listed = shown(board, search="paper")
    assert listed.count("<tr data-run=") == 1 and ">base line<" in listed and "as good as &lt;i&gt;" in listed
    assert "<h2>base line, paper</h2>" in shown(board, group="tags")
    assert json.loads((tmp_path / "two" / NOTES).read_text())["tags"] == ["base line", "paper"]
    with pytest.raises(Refusal, match="not a JSON object"):
        routes(board)["POST /api/run/{run}/notes"](BoardRequest("POST", "/", {"run": folder_id("run", "two")}))


def test_notes_that_are_none_are_refused_or_left_out_and_a_link_is_replaced(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    os.symlink(outside, folder / NOTES)
    write_notes(folder, RunNotes(("a",), "b"))
    assert outside.read_text() == "mine" and notes_from((folder / NOTES).read_bytes()) == RunNotes(("a",), "b")
    assert [path.name for path in folder.iterdir()] == [NOTES]
    bad = ({"tags": "a"}, {"tags": [1]}, {"tags": ["a,b"]}, {"tags": ["x" * 41]}, {"note": 3}, {"note": "x" * 10_001})
    for values in (*bad, {"tags": [str(number) for number in range(21)]}):
        with pytest.raises(WhetError):
            checked_notes(values)
        assert notes_from(json.dumps(values).encode()) == RunNotes()
    assert notes_from(b"[1]") == notes_from(None) == notes_from(b"{torn") == RunNotes()


def test_a_run_that_goes_on_shows_its_last_evaluation_in_the_list(tmp_path):
    run = MadeRun(tmp_path / "run").step(25)
    (listed,), _ = Board(tmp_path).runs()
    assert listed.outcome == "accuracy 10.0% → 50.0%" and listed.held_out == 0.5
    run.step(5)
    (listed,), _ = Board(tmp_path).runs()
    assert listed.held_out == 0.75 and glance.run_glance(next(iter(Board(tmp_path).found().values()))).held_out == 0.75
