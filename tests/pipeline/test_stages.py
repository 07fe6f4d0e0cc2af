"""Stages are done once, in order, and go on after a break."""

import json
from pathlib import Path

import pytest

from whet.pipeline import FinishedStage, Interrupted, Stage, run_stages
from whet.types import WhetError


class Recorder:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        self.lines.append(f"{number}/{total} {stage.name}")

    def stage_finished(self, number: int, total: int, stage: Stage, done: FinishedStage, is_old: bool) -> None:
        self.lines.append(f"{stage.name} {'old' if is_old else 'new'} {dict(done.result)}")


def stages(calls: list[str], broken: bool = False, factor: int = 10) -> list[Stage]:
    def first(folder: Path, done) -> dict[str, int]:
        calls.append("first")
        (folder / "three").write_text("3")
        return {"found": 3}

    def second(folder: Path, done) -> dict[str, int]:
        calls.append("second")
        if broken:
            raise Interrupted
        return {"found": factor * int((done["first"].folder / "three").read_text()) + done["first"].result["found"]}

    return [Stage("first", "three", first), Stage("second", "thirty-three", second, {"factor": factor})]


def test_each_stage_sees_the_ones_before_it(tmp_path):
    recorder = Recorder()
    done = run_stages(stages([]), tmp_path, recorder)
    assert done["second"].result == {"found": 33}
    assert recorder.lines == ["1/2 first", "first new {'found': 3}", "2/2 second", "second new {'found': 33}"]
    assert done["second"].folder == tmp_path / "02-second"


def test_a_broken_run_goes_on_and_does_nothing_twice(tmp_path):
    calls: list[str] = []
    with pytest.raises(Interrupted):
        run_stages(stages(calls, broken=True), tmp_path, Recorder())
    done = run_stages(stages(calls), tmp_path, Recorder())
    assert calls == ["first", "second", "second"]
    assert run_stages(stages(calls), tmp_path, Recorder()) == done
    assert len(calls) == 3


def test_a_stage_finished_with_other_settings_is_refused(tmp_path):
    run_stages(stages([]), tmp_path, Recorder())
    with pytest.raises(WhetError, match="other settings"):
        run_stages(stages([], factor=2), tmp_path, Recorder())


def test_a_damaged_result_says_what_to_do(tmp_path):
    run_stages(stages([]), tmp_path, Recorder())
    (tmp_path / "01-first" / "stage.json").write_text(json.dumps({"name": "first"})[:-3])
    with pytest.raises(WhetError, match="remove"):
        run_stages(stages([]), tmp_path, Recorder())
