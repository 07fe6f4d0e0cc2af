"""recipes/run_stages.py: what does not fit is left out, what is asked to stop saves, what was killed goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest

import whet

Recipe = Callable[[str], ModuleType]


@dataclass
class Nap:
    """A stage that takes as long as its process, which whet is not."""

    name: str
    ended: list[str] = field(default_factory=list)

    def is_finished(self) -> bool:
        return self.name in self.ended

    def is_running(self) -> bool:
        return False

    def command(self) -> list[str]:
        return ["nap", self.name]

    def close(self, output: str) -> None:
        self.ended.append(self.name)

    def progress(self) -> str:
        return "asleep"


def sleeping(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = subprocess.Popen
    code = f"import time; time.sleep({seconds})"
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: real([sys.executable, "-c", code], **options))


def test_all_stages_run_and_several_at_once(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping(monkeypatch, 1.0)
    stages, counted, begun = [Nap(str(number)) for number in range(3)], [], []
    sleeper, begun_by_then = subprocess.Popen, []

    def close(nap: Nap, output: str) -> None:
        begun_by_then.append(len(begun))
        nap.ended.append(nap.name)

    monkeypatch.setattr(subprocess, "Popen", lambda *words, **options: begun.append(1) or sleeper(*words, **options))
    monkeypatch.setattr(Nap, "close", close)
    outcomes = recipe("run_stages").run_stages(stages, tmp_path, jobs=3, after_each=lambda: counted.append(1))
    assert outcomes == dict.fromkeys("012", "finished")
    assert begun_by_then[0] == 3  # all of them ran before the first ended
    assert len(counted) == 3


def test_what_does_not_fit_is_left_out(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeping(monkeypatch, 1.0)
    deadline = time.monotonic() + 2.2
    outcomes = recipe("run_stages").run_stages([Nap("first"), Nap("second"), Nap("third")], tmp_path, deadline=deadline)
    assert outcomes["first"] == "finished"
    assert outcomes["third"] == "left out"


def test_at_the_deadline_what_runs_is_asked_to_stop(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping(monkeypatch, 60)
    began = time.monotonic()
    outcomes = recipe("run_stages").run_stages([Nap("long"), Nap("next")], tmp_path, deadline=began + 0.5)
    assert outcomes == {"long": "interrupted", "next": "left out"}
    assert time.monotonic() - began < 20


def test_metrics_are_found_among_warnings(recipe: Recipe, tmp_path: Path) -> None:
    stage = recipe("run_stages").Evaluation("before", tmp_path / "before.json", ())
    stage.close('Warning: {odd}\n{\n "accuracy": 0.5\n}\nand another one\n')
    assert stage.is_finished()
    assert "0.5" in (tmp_path / "before.json").read_text()


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_bytes(recipe: Recipe, tmp_path: Path) -> None:
    module = recipe("run_stages")
    words = ("grpo", "--seed", "3", "--set", "eval.prompts=0", "--set", "report.save_every=2")

    def training(name: str) -> object:
        return module.Training(name, tmp_path / name, 8, words)

    code = f"""
from pathlib import Path
from run_stages import Training, run_stages
run_stages([Training("killed", Path({str(tmp_path / "killed")!r}), 8, {words!r})], Path({str(tmp_path)!r}))
"""
    recipes = Path(module.__file__).parent
    recipe_process = subprocess.Popen([sys.executable, "-c", code], cwd=recipes, start_new_session=True)
    while len(module.step_lines(tmp_path / "killed")) < 3:
        time.sleep(0.05)
        assert recipe_process.poll() is None
    recipe_process.kill()  # the recipe alone: its training goes on without it
    recipe_process.wait()
    log = (tmp_path / "killed.log").read_text()
    assert "whet  GRPO" in log
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and str(tmp_path / "killed") in _command_line(folder):
            os.kill(int(folder.name), signal.SIGKILL)
    time.sleep(0.5)
    assert module.run_stages([training("killed")], tmp_path)["killed"] == "finished"
    assert module.run_stages([training("whole")], tmp_path)["whole"] == "finished"
    killed, whole = (whet.load(tmp_path / name).model / "model.safetensors" for name in ("killed", "whole"))
    assert killed.read_bytes() == whole.read_bytes()


def _command_line(folder: Path) -> str:
    try:
        return (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
