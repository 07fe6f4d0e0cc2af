"""The lab as a file: what docs/lab.html holds is what the package computes today."""

import json
import math
import random
from pathlib import Path

import pytest

from whet.pages.lab import __main__ as command
from whet.pages.lab.page import experiment_named, experiments, static_page, unpacked, written_tables
from whet.pages.render import ASSETS, TEMPLATES

PAGE = Path(__file__).parents[3] / "docs" / "lab.html"


@pytest.fixture(scope="module")
def written():
    return written_tables(PAGE.read_text(encoding="utf-8"))


def test_the_page_describes_todays_experiments(written):
    fresh = "docs/lab.html is stale: python -m whet.pages.lab"
    described = [{name: value for name, value in each.items() if name != "tables"} for each in written["experiments"]]
    assert described == json.loads(json.dumps([each.record() for each in experiments()])), fresh
    for each, experiment in zip(written["experiments"], experiments(), strict=True):
        assert len(each["tables"]) == sum(1 for _ in experiment.grid()), fresh
    assert PAGE.stat().st_size < 1_500_000


def test_the_page_around_the_tables_is_fresh(written):
    """What the lab has of its own; the charts and the style that all pages share may be of another day."""
    stale = "docs/lab.html is stale: python -m whet.pages.lab --keep-tables"
    held = PAGE.read_text(encoding="utf-8")
    assert stage(static_page(written)) == stage(held), stale
    for own in (ASSETS / "lab.js", TEMPLATES / "lab.css"):
        assert own.read_text(encoding="utf-8") in held, stale


def test_the_command_writes_the_file_that_it_is_told(monkeypatch, tmp_path, capsys):
    calls = []
    monkeypatch.setattr(command, "rewrite_static_page", lambda path: calls.append(path) or "rewritten")
    monkeypatch.setattr(command, "write_static_page", lambda path, report: calls.append(path) or "written")
    for words in (["--keep-tables", str(tmp_path)], [str(tmp_path)], ["--keep-tables"]):
        monkeypatch.setattr("sys.argv", ["lab", *words])
        command.main()
    assert calls == [tmp_path, tmp_path, PAGE]
    assert capsys.readouterr().out == "rewritten\nwritten\nrewritten\n"


def stage(page):
    found = page.partition('<div class="lab" id="lab"')[2].partition("</main>")[0]
    assert found
    return found


@pytest.mark.parametrize("name", ["groups", "kl", "gae", "preference"])
def test_tables_of_the_page_are_what_the_package_computes(written, name):
    same_tables(written, name, count=3)


@pytest.mark.parametrize(("name", "count"), [("clip", 1), ("rare", 1), ("noise", 1), ("bias", 1), ("bandit", 1)])
def test_slower_tables_of_the_page_are_what_the_package_computes(written, name, count):
    same_tables(written, name, count)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "clip", "rare", "noise", "bias", "kl", "gae", "preference", "bandit"])
def test_many_tables_of_the_page_are_what_the_package_computes(written, name):
    same_tables(written, name, 40)


def same_tables(written, name, count):
    """Some tables drawn anew in each test run, so that in time all are looked at."""
    experiment = experiment_named(name)
    (kept,) = [each for each in written["experiments"] if each["name"] == name]
    for place, settings in random.sample(list(enumerate(experiment.grid())), count):
        stored = unpacked(written, kept["tables"][place])
        fresh = experiment.table(settings).record()
        where = f"docs/lab.html is stale at {name} {settings}: python -m whet.pages.lab"
        assert [each["title"] for each in stored["charts"]] == [each["title"] for each in fresh["charts"]], where
        assert stored["refused"] == fresh["refused"], where
        for old, new in zip(stored["charts"], fresh["charts"], strict=True):
            for before, now in zip(old["spec"]["series"], new["spec"]["series"], strict=True):
                assert before["name"] == now["name"], where
                for column in ("x", "y", "low", "high"):
                    assert close(before.get(column), now.get(column)), f"{where}: {now['name']}"


def close(before, now):
    if before is None or now is None:
        return before is now
    known = [abs(each) for each in now if each is not None]
    room = 1e-6 * max(known, default=0)
    pairs = zip(before, now, strict=True)
    return all(
        one is other if one is None or other is None else math.isclose(one, other, rel_tol=2e-3, abs_tol=room)
        for one, other in pairs
    )


def test_a_changed_table_would_be_noticed():
    assert close([1.0, None, 3.0], [1.0, None, 3.001]) and not close([1.0, None], [1.01, None])
    assert not close([1.0, None], [1.0, 2.0]) and not close(None, [1.0])
