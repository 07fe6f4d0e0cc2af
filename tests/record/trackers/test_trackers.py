"""Trackers as a user meets them: by name in the config, with their mistakes, and with services that fail."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import whet
from tests.support.tracked_runs import HOSTILE, Followed, report, samples
from whet import registry
from whet.record.log import read_summary, sample_line, step_line
from whet.record.trackers import find
from whet.record.trackers.tracker import (
    TrackedRun,
    TrackedStep,
    histogram,
    messages,
    sample_cells,
    shortened,
    tracked_step,
)
from whet.training.rl_trainer import RLTrainer
from whet.types import WhetError


class Notebook:
    """A tracker that keeps what it is told, and fails where it is asked to."""

    name = "notebook"

    def __init__(self, *, fails_at: int = 0, fails_to_open: bool = False) -> None:
        self._fails_at, self._fails_to_open = fails_at, fails_to_open

    place = "a notebook"
    told: list[tuple[Any, ...]] = []  # noqa: RUF012

    def open(self, run: TrackedRun, kept: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        if self._fails_to_open:
            raise OSError(28, "No space left on device")
        self.told.append(("open", run.lines, kept.get("lines")))
        return {"id": "one"}, min(int(kept.get("lines") or 0), run.lines)

    def step(self, step: TrackedStep) -> None:
        if step.step == self._fails_at:
            raise ConnectionError("the service\nis down")
        self.told.append(("step", step.step, tuple(step.findings), len(step.samples)))

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        self.told.append(("eval", step, dict(scalars)))

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        self.told.append(("close", status, summary.get("after/accuracy")))


@pytest.fixture(autouse=True)
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "told", [])
    monkeypatch.setitem(find.TRACKERS, "notebook", Notebook)


def steps(told: list[tuple[Any, ...]]) -> list[int]:
    return [each[1] for each in told if each[0] == "step"]


def test_a_run_is_followed_from_its_start_to_its_end(tmp_path: Path) -> None:
    Followed(tmp_path, ["notebook"]).session(1, 3)
    told = Notebook.told
    assert told[0] == ("open", 0, None) and told[1] == ("eval", 0, {"eval/accuracy": 0.25, "eval/seconds": 0.1})
    assert [each[2:] for each in told if each[0] == "step"] == [
        ((), 2),
        (("entropy collapse: the entropy fell to 0.01 nats",), 2),
        ((), 2),
    ]
    assert told[-1] == ("close", "finished", "0.75")


def test_a_resumed_run_is_told_what_it_lacks_and_nothing_twice(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["notebook"])
    run.session(1, 3)
    run.session(4, 5)
    assert steps(Notebook.told) == [1, 2, 3, 4, 5]
    kept = json.loads((tmp_path / "trackers.json").read_text())["notebook"]
    assert kept == {"closed": True, "id": "one", "lines": 6}


def test_a_service_that_fails_is_left_out_and_catches_up_on_a_resume(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Followed(tmp_path, ["notebook"], {"notebook": {"fails_at": 2}})
    trackers = run.session(1, 4)
    assert steps(Notebook.told) == [1] and Notebook.told[-1][0] == "step"  # nothing more, not even the end
    assert trackers.failures == {"notebook": "off since step 2: ConnectionError: the service is down"}
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 1 and "tracker notebook failed at step 2 (ConnectionError: the service is down)" in said[0]
    run.settings = {}
    run.session(5, 5)
    assert steps(Notebook.told) == [1, 2, 3, 4, 5]


def test_one_service_that_fails_does_not_concern_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(find.TRACKERS, "broken", lambda: Notebook(fails_to_open=True))
    trackers = Followed(tmp_path, ["broken", "notebook"]).session(1, 2)
    assert steps(Notebook.told) == [1, 2] and list(trackers.failures) == ["broken"]
    assert "No space left" in trackers.fact and "notebook (a notebook)" in trackers.fact


def test_mistakes_are_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: str, **settings: Any) -> str:
        with pytest.raises(WhetError) as error:
            given = {"trackers": list(names), "tracker_settings": settings}
            whet.train("grpo", steps=1, folder=str(tmp_path / "run"), report=given, console=False)
        assert not (tmp_path / "run").exists()
        return str(error.value)

    assert "no tracker is called 'tensorbord'" in refused("tensorbord")
    assert "did you mean 'tensorboard'" in refused("tensorbord")
    assert "has no setting 'projekt'" in refused("wandb", wandb={"projekt": "x"})
    assert "project of the tracker 'wandb' is 3; give a text" in refused("wandb", wandb={"project": 3})
    assert "report.tracker_settings.wandb has no effect" in refused("tensorboard", wandb={"project": "x"})
    assert "give offline or online" in refused("wandb", wandb={"mode": "of"})
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else there(name, *more)
    )
    assert "needs wandb, which is not installed; run: pip install 'whet[track]'" in refused("wandb")


def test_a_real_run_has_its_trackers_in_the_config_and_says_which_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    small = {"steps": 2, "batch": {"prompts_per_step": 2, "group_size": 2}, "eval": {"prompts": 4}}
    given = {"trackers": ["notebook"], "tracker_settings": {"notebook": {"fails_at": 2}}, "save_every": 1}
    run = whet.train("grpo", folder=str(tmp_path / "run"), report=given, **small)
    assert steps(Notebook.told) == [1] and run.status == "finished"
    assert "off since step 2: ConnectionError" in read_summary(run.folder)["trackers"]
    assert "off since step 2: ConnectionError" in " ".join(capsys.readouterr().out.split())
    assert "off since step 2: ConnectionError" in run.report.read_text()
    settings = {"report": {"tracker_settings": {"notebook": {"fails_at": 0}}}}
    whet.resume(run, steps=3, settings=settings, console=False)
    assert steps(Notebook.told) == [1, 2, 3] and Notebook.told[-1][:2] == ("close", "finished")


def test_a_run_that_breaks_closes_its_trackers(tmp_path: Path) -> None:
    class Bomb:
        def stepped(self, report: Any, samples: Any) -> None:
            raise RuntimeError("boom")

    small = {"steps": 2, "batch": {"prompts_per_step": 2, "group_size": 2}, "eval": {"prompts": 4}}
    with pytest.raises(RuntimeError):
        whet.train(
            "grpo", folder=str(tmp_path / "run"), report={"trackers": ["notebook"]}, callbacks=[Bomb()], console=False,
            **small,
        )  # fmt: skip
    assert Notebook.told[-1][:2] == ("close", "failed")


def test_a_run_that_breaks_before_its_first_step_leaves_nothing_of_its_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise WhetError("no")

    monkeypatch.setattr(RLTrainer, "step", refuse)
    small = {"steps": 2, "batch": {"prompts_per_step": 2, "group_size": 2}, "eval": {"prompts": 4}}
    given = {"trackers": ["notebook", "tensorboard"]}
    with pytest.raises(WhetError, match="no"):
        whet.train("grpo", folder=str(tmp_path / "run"), report=given, console=False, **small)
    assert Notebook.told[-1][:2] == ("close", "failed")
    left = [each.name for each in (tmp_path / "run").iterdir()] if (tmp_path / "run").exists() else []
    assert left in ([], ["lock"])


def test_a_tracker_of_ones_own_is_registered() -> None:
    with pytest.raises(WhetError, match="has no open and no step"):
        registry.register("tracker", type("Half", (), {}), name="half")


def test_what_is_not_a_number_is_left_out() -> None:
    step = tracked_step(step_line(report(1)), (), set())
    assert "entropy" not in step.scalars and step.scalars["kl"] == 0.01 and "health" not in step.scalars


def test_histograms_keep_every_value() -> None:
    values = {"min": 0.0, "q1": 0.0, "median": 0.0, "q3": 1.0, "max": 1.0}
    assert histogram(values, 8) == ([8.0], [0.0, 1.0])
    spread = {"min": 0.0, "q1": 1.0, "median": 2.0, "q3": 3.0, "max": 4.0}
    assert histogram(spread, 8) == ([2.0] * 4, [0.0, 1.0, 2.0, 3.0, 4.0])
    counts, edges = histogram(dict.fromkeys(values, 0.5), 8)
    assert counts == [8.0] and edges[0] < 0.5 < edges[1]


def test_hostile_and_endless_texts_are_made_storable() -> None:
    prompt, sample = samples(1)[0]
    line = sample_line(1, prompt, sample)
    said = messages(line)[-1]["content"]
    assert "\0" not in said and said.startswith("=cmd") and "<script>" in said  # words stay as they are
    assert shortened("\ud800 x") == "\\ud800 x"
    long = shortened("a" * 50_000 + "end")
    assert len(long) < 21_000 and long.endswith("end") and "30,003 characters left out" in long
    cells = sample_cells(line)
    assert [type(cell) for cell in cells] == [int, str, str, str, str, float, str, str, int]
    assert HOSTILE.startswith(str(cells[4])[:10])
