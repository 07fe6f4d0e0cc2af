"""trackio read back from its own database."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.packages import needs
from tests.support.tracked_runs import Followed
from whet.record.trackers.tracker import TrackedStep
from whet.record.trackers.trackio_tracker import TrackioTracker

pytestmark = needs("trackio")
PROJECT = {"trackio": {"project": "whet-test"}}


@pytest.fixture(autouse=True)
def own_database(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """trackio reads TRACKIO_DIR once, where it is imported."""
    from trackio import sqlite_storage

    for module in [each for name, each in sys.modules.items() if name.startswith("trackio") and each is not None]:
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path_factory.getbasetemp() / "trackio")
    assert str(sqlite_storage.SQLiteStorage.get_project_db_path("x")).startswith(str(tmp_path_factory.getbasetemp()))


def logs(name: str) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs("whet-test", name)


def traces(name: str) -> list[dict[str, Any]]:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_traces("whet-test", name, sort="step_asc")


def name_of(folder: Path) -> str:
    import json

    return str(json.loads((folder / "trackers.json").read_text())["trackio"]["name"])


def rewards(name: str) -> list[tuple[int, float]]:
    return sorted((each["step"], round(each["reward"], 4)) for each in logs(name) if "reward" in each)


def test_every_step_is_there_with_traces_alerts_and_config(tmp_path: Path) -> None:
    import trackio

    trackers = Followed(tmp_path, ["trackio"], PROJECT).session(1, 3)
    assert not trackers.failures
    name = name_of(tmp_path)
    assert rewards(name) == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [each["eval/accuracy"] for each in logs(name) if "eval/accuracy" in each] == [0.25]
    run = next(each for each in trackio.Api().runs("whet-test") if each.name == name)
    assert run.config["optimizer.learning_rate"] == 1e-4 and run.config["title"] == "GRPO tiny"
    alerts = run.alerts()
    assert [(each["title"], each["step"], each["level"]) for each in alerts] == [("entropy collapse", 2, "warn")]
    found = traces(name)
    assert [each["step"] for each in found] == [1, 1, 2, 2, 3, 3]
    played = next(each for each in found if len(each["messages"]) > 2)
    assert [each["role"] for each in played["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert played["metadata"]["reward"] == 1.0 and played["metadata"]["reward/exact"] == 1.0


def test_a_resumed_run_goes_on_and_steps_that_were_cut_off_are_not_twice(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["trackio"], PROJECT)
    run.session(1, 2)
    first = name_of(tmp_path)
    run.session(3, 4, ends=False)
    run.session(4, 5, reward=0.9)
    assert name_of(tmp_path) == first
    assert rewards(first) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9), (5, 0.9)]
    assert [each["step"] for each in traces(first)] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Followed(tmp_path, ["trackio"], PROJECT).session(1, 2)
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_a_database_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """trackio itself only warns."""
    (tmp_path / "file").write_text("")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tests.support.tracked_runs import Followed\n"
        "from pathlib import Path\n"
        "print(Followed(Path(sys.argv[2]), ['trackio']).session(1, 2).failures)"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", program, str(Path(__file__).parents[3]), str(tmp_path / "run")]
    (tmp_path / "run").mkdir()
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "file" / "below")}
    ended = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    assert "off since" in ended.stdout, ended.stdout + ended.stderr


def test_a_spread_counts_the_samples_of_its_step() -> None:
    tracker, logged = TrackioTracker(), []
    tracker._run = SimpleNamespace(log=lambda values, step: logged.append(values["spread/length"]))
    ends = {"min": 1.0, "q1": 2.0, "median": 3.0, "q3": 4.0, "max": 5.0}
    for scalars in ({"samples": 8.0}, {}):
        tracker.step(TrackedStep(1, scalars, {"length": ends}, (), ()))
    assert [each.histogram.sum() for each in logged] == [8.0, 1.0]
