"""`whet runs` and `whet compare RUN RUN`: what is there, and what noise allows to be said about it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from whet.api.listing import listed_runs, listing_text
from whet.cli import app
from whet.record.log import replace_summary
from whet.training.config import resolved
from whet.training.saved_config import write_config


@pytest.fixture
def runs(tmp_path):
    for name, accuracy, status, started in (("one", 0.5, "finished", 100.0), ("two", 0.9, "finished", 200.0)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write_config(folder, resolved("grpo", {"folder": str(folder), "steps": 7 if name == "one" else 9}))
        facts = {"data": "task:arithmetic (200 held out)"}
        marks = {"before": {"accuracy": 0.1}, "after": {"accuracy": accuracy}}
        replace_summary(
            folder, {"status": status, "started": started, "total_steps": 7, "facts": facts, "eval_size": 200, **marks}
        )
    return tmp_path / "runs"


def test_runs_are_listed_newest_first(runs):
    found = listed_runs(runs)
    assert [(run.folder, run.method, run.status) for run in found] == [
        (str(runs / "two"), "grpo", "finished"),
        (str(runs / "one"), "grpo", "finished"),
    ]
    text = listing_text(found, now=3800.0)
    assert "accuracy 10.0% -> 90.0%" in text.splitlines()[1] and text.splitlines()[1].endswith("1 h")
    (runs / "one" / "run.json").write_text("{")
    assert {run.status for run in listed_runs(runs)} == {"finished", "damaged"}
    printed = CliRunner().invoke(app, ["runs", str(runs), "--json"])
    assert [run["after"] for run in json.loads(printed.output)] == [0.9, None]


def test_finished_runs_are_compared(runs):
    printed = CliRunner().invoke(app, ["compare", str(runs / "one"), str(runs / "two")])
    assert printed.exit_code == 0 and "beyond noise" in printed.output and "p < 0.001" in printed.output


@pytest.mark.parametrize(
    "words", [["compare"], ["compare", "a", "b", "--methods", "grpo"], ["compare", "a", "--steps", "3"]]
)
def test_runs_or_methods_but_not_both(words):
    error = CliRunner().invoke(app, words).exception
    assert "give runs to compare" in str(error) or "has no effect" in str(error)


def test_a_run_without_an_evaluation_shows_what_was_trained(runs):
    folder = runs / "one"
    summary = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**summary, "before": {}, "after": {}}))
    line = {"step": 1, "policy_version": 1, "reward": {"total": 0.25}, "metrics": {}, "counts": {}, "seconds": {}}
    steps = [{**line, "health": []}, {**line, "step": 2, "reward": {"total": 0.75}, "health": []}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in steps))
    text = listing_text([run for run in listed_runs(runs) if run.folder == str(folder)])
    assert "training reward 0.250 -> 0.750" in text
