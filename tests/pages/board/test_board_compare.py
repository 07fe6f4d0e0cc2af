"""Runs side by side on the board: by steps, tokens or time, each run by what it spent itself."""

import pytest

from tests.support.made_runs import MadeRun
from whet.pages.board.compare_page import ComparedRun, compared_axis, compared_chart
from whet.pages.board.reader import RunReader


def compared(folder, steps, rate):
    reader = RunReader(MadeRun(folder, rate=rate).step(steps).folder)
    view = reader.view()
    return ComparedRun(folder.name, folder.name, reader, view, {"optimizer.learning_rate": rate})


def test_runs_are_drawn_by_what_each_of_them_spent(tmp_path):
    runs = [compared(tmp_path / "short", 20, 1e-4), compared(tmp_path / "long", 40, 2e-4)]
    # a made step generates 400 tokens and its number, and takes 2.7 s; an evaluation takes 0.5 s
    spent = [400 * step + step * (step + 1) / 2 for step in range(1, 41)]
    tokens, time = compared_axis(runs, "tokens"), compared_axis(runs, "time")
    first, second = compared_chart(runs, "reward", tokens).spec["series"]
    assert first["x"] == spent[:20] and second["x"] == spent
    seconds = compared_chart(runs, "reward", time)
    assert seconds.spec["x"] == {"label": "seconds", "log": False, "steps": False}
    assert seconds.spec["series"][0]["x"][:2] == pytest.approx([0.5 + 2.7, 0.5 + 5.4], abs=0.01)
    assert compared_chart(runs, "reward", compared_axis(runs, "nonsense")).spec["series"][0]["x"] == list(range(1, 21))
    zoomed = compared_chart(runs, "reward", tokens, spent[9], spent[14]).spec["series"]
    assert all(spent[6] <= line["x"][0] <= spent[9] and spent[14] <= line["x"][-1] <= spent[17] for line in zoomed)
    evals = compared_chart(runs, "evals", tokens).spec["series"]
    assert evals[1]["best"] == [spent[-1], 1.0] and evals[1]["x"] == [0, *spent[9::10]]


def test_long_runs_are_timed_in_minutes_and_hours(tmp_path):
    runs = [compared(tmp_path / "run", 120, 1e-4)]
    assert compared_axis(runs, "time").label == "minutes"
    assert compared_chart(runs, "reward", compared_axis(runs, "time")).spec["series"][0]["x"][-1] == pytest.approx(
        (120 * 2.7 + 12 * 0.5) / 60, abs=0.02
    )
