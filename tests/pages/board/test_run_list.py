"""The list of runs: which of thousands are read first, and what is asked for in which order."""

from dataclasses import replace

from tests.support.made_runs import MadeRun
from whet.pages.board import glance as glance_module
from whet.pages.board import runs_page
from whet.pages.board.board_app import Board, BoardRequest
from whet.pages.board.files import folder_id, found_folders
from whet.pages.board.glance import RunGlances
from whet.pages.board.runs_page import ListQuery, grouped, list_query, ordered_runs


def glances(tmp_path, count=4):
    for number in range(count):
        MadeRun(tmp_path / f"run-{number}", seed=number, started=1.79e9 + number).step(2 + number)
    runs, left = Board(tmp_path).runs()
    assert left == 0 and [run.name for run in runs] == [f"run-{number}" for number in reversed(range(count))]
    return runs


class Routes(dict):
    """The handlers of a family of pages by their path."""

    def get(self, path, handler):
        self[path] = handler


def shown(board, **query):
    routes = Routes()
    runs_page.add_routes(routes, board)
    return routes["/"](BoardRequest("GET", "/", {}, query)).body


def test_the_last_written_run_is_read_first_and_the_others_when_there_is_time(tmp_path, monkeypatch):
    for number in range(5):
        made = MadeRun(tmp_path / f"run-{number}").step(2)
    made = MadeRun(tmp_path / "a-first-by-name").step(3)
    runs = list(found_folders(tmp_path).values())
    read: list[str] = []
    read_one = glance_module.run_glance
    monkeypatch.setattr(glance_module, "run_glance", lambda run: read.append(run.name) or read_one(run))
    known = RunGlances()
    known.update(runs)
    assert known.read(0.0) == 5 and read == ["a-first-by-name"] and len(known.known()) == 1
    made.step(1)  # it changed: before any run that nobody knows yet
    known.update(runs)
    assert known.read(0.0) == 5 and read == ["a-first-by-name"] * 2 and known.known()[0].step == 4
    assert known.read() == 0 and len(known.known()) == 6
    known.update(runs)
    known.read()
    assert len(read) == 7, "what has not changed is not read again"
    known.update(runs[1:])
    assert len(known.known()) == 5


def test_a_finished_run_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    MadeRun(tmp_path / "run").step(2).finish()
    (run,) = found_folders(tmp_path).values()
    read: list[str] = []
    read_one = glance_module.run_glance
    monkeypatch.setattr(glance_module, "run_glance", lambda run: read.append(run.name) or read_one(run))
    known = RunGlances()
    known.update([run])
    assert known.read() == 0 and known.one(run).status == "finished" and read == ["run"]


def test_a_row_says_when_its_run_began_where_that_is_known(tmp_path):
    (run,) = glances(tmp_path, 1)
    known, unknown = runs_page.row(run), runs_page.row(replace(run, started=0.0))
    assert (known["started"], known["started_at"]) == ("2026-09-21 14:13", "1790000000")
    assert (unknown["started"], unknown["started_at"]) == ("", "")


def test_a_page_does_not_wait_for_thousands_of_runs(tmp_path, monkeypatch):
    for number in range(6):
        MadeRun(tmp_path / f"run-{number}").step(2)
    monkeypatch.setattr(runs_page, "LIST_SECONDS", 0.0)
    board = Board(tmp_path)
    first = shown(board)
    assert first.count("<tr data-run=") == 1 and "5 more are being read" in first
    while board._read_on(0.01):
        pass
    assert shown(board).count("<tr data-run=") == 6 and "being read" not in shown(board)


def test_runs_are_ordered_and_grouped_as_the_address_says(tmp_path):
    runs = glances(tmp_path)
    values = {"run-0": 0.5, "run-1": None, "run-2": 0.9, "run-3": 0.1}
    models = {"run-0": "b", "run-1": "a", "run-2": "a", "run-3": "b"}
    runs = [replace(run, held_out=values[run.name], model=models[run.name]) for run in runs]

    def names(**query):
        return [run.name[-1] for run in ordered_runs(runs, ListQuery(**query))]

    wrong = {
        case: (names(**query), expected)
        for case, query, expected in (
            ("newest first", {}, "3210"),
            ("best first, without a value last", {"sort": "-eval"}, "2031"),
            ("worst first, without a value last", {"sort": "eval"}, "3021"),
            ("by name", {"sort": "name"}, "0123"),
            ("groups in the order of their first run", {"sort": "-eval", "group": "model"}, "2103"),
            ("by model, newest first", {"group": "model"}, "3021"),
            ("all words", {"search": "RUN-2 grpo"}, "2"),
            ("a status", {"status": "finished"}, ""),
        )
        if names(**query) != list(expected)
    }
    assert not wrong
    groups = grouped(ordered_runs(runs, ListQuery(sort="-eval", group="model")), runs_page.GROUPS["model"])
    assert [(group["name"], len(group["rows"])) for group in groups] == [("a", 2), ("b", 2)]


def test_an_address_says_what_is_shown_and_heads_turn_the_order():
    query = list_query(BoardRequest("GET", "/", {}, {"sort": "-eval", "columns": "seed,eval,nonsense", "group": "x"}))
    assert (query.sort, query.columns, query.group) == ("-eval", ("eval", "seed"), "folder")
    heads = {head["name"]: head for head in query.head()}
    assert list(heads) == ["name", "eval", "seed"] and heads["eval"]["order"] == "descending"
    assert "sort=eval&" in heads["eval"]["address"] and "sort=name" in heads["name"]["address"]
    assert list_query(BoardRequest("GET", "/", {}, {"sort": "__class__", "page": "7"})) == ListQuery(
        columns=runs_page.shown_at_first(), page=7
    )
    assert ListQuery(columns=runs_page.shown_at_first()).address() == "/"


def test_a_long_list_has_pages_and_an_odd_time_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_page, "PER_PAGE", 2)
    glances(tmp_path)
    MadeRun(tmp_path / "odd", started=1e300).step(2)
    board = Board(tmp_path)
    pages = [shown(board, page=str(number)) for number in (1, 2, 3, 4)]
    listed = [[name for name in ("run-0", "run-1", "run-2", "run-3", "odd") if f">{name}<" in page] for page in pages]
    assert listed == [["run-2", "run-3"], ["run-0", "run-1"], ["odd"], ["odd"]]
    assert 'href="/?page=2"' in pages[0] and folder_id("run", "odd") in pages[2]


def test_a_run_that_failed_or_was_killed_is_not_listed_without_a_problem(tmp_path):
    MadeRun(tmp_path / "failed", status="failed", error="unexpected boom").step(2)
    MadeRun(tmp_path / "killed", status="running").step(2)
    MadeRun(tmp_path / "done").step(2).finish()
    problems = {run.name: run.problems for run in Board(tmp_path).runs()[0]}
    assert problems == {"failed": ("failed",), "killed": ("killed",), "done": ()}
