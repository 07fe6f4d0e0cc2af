"""Several `whet` commands one after another or side by side, for recipes: what is finished is kept, what was
interrupted goes on, and what no longer fits into the time is named."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import whet

Outcome = Literal["finished", "failed", "interrupted", "left out"]
SECONDS_TO_SAVE = 45.0  # for a run that is asked to stop: its step and its checkpoint
PAUSE = 0.5


@dataclass(frozen=True)
class Evaluation:
    """`whet eval`, its metrics kept in a file."""

    name: str
    file: Path
    words: tuple[str, ...]

    def is_finished(self) -> bool:
        return self.file.is_file()

    def is_running(self) -> bool:
        return False

    def command(self) -> list[str]:
        return ["eval", *self.words, "--json", "--out", str(self.file.with_suffix(".completions.jsonl"))]

    def close(self, output: str) -> None:
        """Keep what it printed; nothing is there before it is whole."""
        start = re.search(r"^\{", output, re.M)  # warnings of libraries may stand around it
        if start is None:
            raise ValueError("whet eval printed no metrics")
        metrics, _ = json.JSONDecoder().raw_decode(output, start.start())
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")
        part.replace(self.file)

    def progress(self) -> str:
        return "evaluating"


@dataclass(frozen=True)
class Training:
    """`whet train`, or `whet resume` where its folder already holds the beginning."""

    name: str
    folder: Path
    steps: int
    words: tuple[str, ...]

    def is_finished(self) -> bool:
        if not (self.folder / "run.json").is_file():
            return False
        run = whet.load(self.folder)
        return run.status == "finished" and run.total_steps >= self.steps

    def is_running(self) -> bool:
        """In a process that outlived an earlier call of the recipe."""
        return (self.folder / "run.json").is_file() and whet.load(self.folder).status == "running"

    def command(self) -> list[str]:
        if not (self.folder / "config.toml").is_file():
            return ["train", *self.words, "--steps", str(self.steps), "--folder", str(self.folder)]
        planned = int(whet.load(self.folder).config["steps"])
        longer = ["--steps", str(self.steps)] if planned != self.steps else []
        return ["resume", str(self.folder), *longer]

    def close(self, output: str) -> None:
        pass

    def progress(self) -> str:
        lines = step_lines(self.folder)
        return f"step {lines[-1]['step']}/{self.steps}" if lines else "starting"


@dataclass(frozen=True)
class WholePipeline:
    """`whet pipeline`, or `whet resume` where its folder already holds the beginning."""

    name: str
    folder: Path
    last: str  # its last stage
    words: tuple[str, ...]

    def is_finished(self) -> bool:
        return any(self.folder.glob(f"*-{self.last}/stage.json"))

    def is_running(self) -> bool:
        return False

    def command(self) -> list[str]:
        if (self.folder / "pipeline.toml").is_file():
            return ["resume", str(self.folder)]
        return ["pipeline", *self.words, "--folder", str(self.folder)]

    def close(self, output: str) -> None:
        pass

    def progress(self) -> str:
        done = len(list(self.folder.glob("*/stage.json")))
        return f"{done} stages done"


Stage = Evaluation | Training | WholePipeline


@dataclass
class _Running:
    stage: Stage
    process: subprocess.Popen[bytes] | None  # None: it belongs to nobody, and is only waited for
    log: Path
    started: float = field(default_factory=time.monotonic)


def step_lines(folder: Path) -> list[dict[str, Any]]:
    """The steps in a run's metrics.jsonl; a line that is being written is left out."""
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return []
    whole = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n")]
    return [line for line in whole if "eval" not in line]


def eval_lines(folder: Path) -> list[dict[str, Any]]:
    """The evaluations in a run's metrics.jsonl."""
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return []
    whole = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines(True) if line.endswith("\n")]
    return [line for line in whole if "eval" in line]


def run_stages(
    stages: Sequence[Stage],
    logs: Path,
    *,
    jobs: int = 1,
    deadline: float | None = None,
    after_each: Callable[[], None] = lambda: None,
    say_every: float = 20.0,
) -> dict[str, Outcome]:
    """Run all stages, `jobs` at a time, in their order; `deadline` is on the clock of time.monotonic().

    A stage is not begun when the slowest one so far would not have fitted into what is left. At the deadline what runs
    is asked to stop: it saves, and the same command goes on there.
    """
    logs.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    waiting = list(stages)
    running: list[_Running] = []
    slowest, said = 0.0, time.monotonic()
    is_stopping = False
    stopped_at = 0.0
    try:
        while waiting or running:
            while waiting and len(running) < jobs and not is_stopping:
                stage = waiting.pop(0)
                if stage.is_finished():
                    outcomes[stage.name] = "finished"
                    print(f"{stage.name}: already finished", flush=True)
                elif deadline is not None and time.monotonic() + slowest > deadline:
                    outcomes[stage.name] = "left out"
                    print(f"{stage.name}: left out, {deadline - time.monotonic():.0f} s are left", flush=True)
                else:
                    running.append(_begin(stage, logs))
            time.sleep(PAUSE)
            for each in list(running):
                code = _exit_code(each)
                if code is None:
                    continue
                running.remove(each)
                outcomes[each.stage.name] = _end(each, code)
                slowest = max(slowest, time.monotonic() - each.started) if code == 0 else slowest
                after_each()
            now = time.monotonic()
            if deadline is not None and now > deadline and not is_stopping:
                is_stopping, stopped_at = True, now
                outcomes.update((stage.name, "left out") for stage in waiting)
                waiting.clear()
                _stop(running)
            if is_stopping and now - stopped_at > SECONDS_TO_SAVE:
                for each in running:
                    _wait(each, 0)
            if running and now - said > say_every:
                said = now
                print("  ".join(f"{each.stage.name}: {each.stage.progress()}" for each in running), flush=True)
    except BaseException:
        _stop(running)
        for each in running:
            _wait(each)
        raise
    return outcomes


def _begin(stage: Stage, logs: Path) -> _Running:
    log = logs / f"{stage.name.replace(' ', '-')}.log"
    if stage.is_running():
        print(f"{stage.name}: is running in another process; waiting for it", flush=True)
        return _Running(stage, None, log)
    words = stage.command()
    print(f"{stage.name}: whet {' '.join(words)}", flush=True)
    with log.open("ab") as stream:
        stream.truncate(0)
        # a session of its own: Ctrl-C reaches this process alone, which then asks each run to save
        process = subprocess.Popen(
            [sys.executable, "-m", "whet", *words], stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
        )
    return _Running(stage, process, log)


def _exit_code(running: _Running) -> int | None:
    if running.process is not None:
        return running.process.poll()
    return None if running.stage.is_running() else int(not running.stage.is_finished())


def _end(running: _Running, code: int) -> Outcome:
    stage, took = running.stage, time.monotonic() - running.started
    if code == 0:
        stage.close(running.log.read_text(encoding="utf-8", errors="replace") if running.process is not None else "")
        print(f"{stage.name}: finished ({took:.0f} s)", flush=True)
        return "finished"
    if code in (130, -signal.SIGTERM, -signal.SIGKILL):
        print(f"{stage.name}: interrupted at {stage.progress()}; the same command goes on there", flush=True)
        return "interrupted"
    lines = (
        running.log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if running.log.exists() else []
    )
    print(f"{stage.name}: failed ({lines[-1] if lines else f'exit code {code}'}; {running.log})", flush=True)
    return "failed"


def _stop(running: Sequence[_Running]) -> None:
    """Ask for an orderly end."""
    for each in running:
        if each.process is not None and each.process.poll() is None:
            os.kill(each.process.pid, signal.SIGTERM)


def _wait(running: _Running, seconds: float = SECONDS_TO_SAVE) -> None:
    if running.process is None:
        return
    try:
        running.process.wait(seconds)
    except subprocess.TimeoutExpired:
        running.process.kill()
