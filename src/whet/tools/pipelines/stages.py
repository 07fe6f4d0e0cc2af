"""Stages one after another, each in its own folder; what is finished is never done again.

A stage is finished when its folder holds `stage.json`, which is written last and atomically. A stage that was
interrupted is started again in the same folder: work that takes long continues from what it left there.

Each stage has a fingerprint: of its own settings, of the files it reads, and of the fingerprints of the stages it
reads. A finished stage whose fingerprint is the same is skipped; any other runs again, and what it left before is moved
into `replaced/`. So a change redoes what depends on it, and nothing else.

What a stage returns is JSON, made by `stage_result`: `summary` is one line for the user, `metrics` are measurements on
held-out data, `counts` say what was counted and dropped, `cost` what was spent, `stop_reason` is why the stages after
it are not worth doing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, TypeVar

from whet.record.run_folder import write_atomically
from whet.record.text import duration
from whet.record.text import number as number_text
from whet.types import Prompt, Sample, StepReport, WhetError

RESULT, STARTED = "stage.json", "started.json"
REPLACED = "replaced"  # folder of what stages left behind that ran again with other inputs
Item = TypeVar("Item")


class Interrupted(Exception):
    """A stage was asked to stop and has saved what it had."""


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage."""

    folder: Path
    result: Mapping[str, Any]  # JSON
    seconds: float = 0.0


Work = Callable[[Path, Mapping[str, FinishedStage]], Mapping[str, Any]]


@dataclass(frozen=True)
class StageCost:
    """What a stage is expected to take. Tokens are at most: completions may end before their budget."""

    updates: int = 0  # of an optimizer
    trained_rows: int = 0
    completions: int = 0  # to sample
    sampled_tokens: int = 0
    seconds: float | None = None  # None: nothing was measured that it could be told by
    note: str = ""  # why a number is not known before


@dataclass(frozen=True)
class StagePlan:
    """What a plan says of a stage before it runs."""

    inputs: Mapping[str, str] = field(default_factory=dict)  # what it reads -> the stage or the source
    writes: str = ""
    cost: StageCost = StageCost()


@dataclass(frozen=True)
class Stage:
    """`work(folder, done)` gets its own folder and the finished stages by name, and returns its result as JSON."""

    name: str  # round1-pairs
    about: str  # one line for the user
    work: Work
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: all that its outcome depends on
    measures: tuple[str, int] | None = None  # whose metrics it measures, after which round
    reads: tuple[str, ...] | None = None  # the stages whose results it uses; None: every earlier one
    inputs: Callable[[], Mapping[str, str]] = dict  # digests of the files and models it reads, by name
    plan: StagePlan = StagePlan()
    against: str = ""  # of an eval: the one it is compared with; empty: the one before, "none": nobody


def stage_result(
    summary: str,
    metrics: Mapping[str, float] | None = None,
    counts: Mapping[str, int] | None = None,
    stop_reason: str = "",
    **more: Any,
) -> dict[str, Any]:
    """What a stage returns. A metric that could not be measured is left out: JSON has no NaN."""
    measured = {name: float(value) for name, value in (metrics or {}).items() if math.isfinite(value)}
    stop = {"stop_reason": stop_reason} if stop_reason else {}
    return {"summary": summary, "metrics": measured, "counts": dict(counts or {}), **stop, **more}


def stage_folder(folder: Path, number: int, stage: Stage) -> Path:
    """Where a stage works: the folder it has, or a new one with its number. A stage before it that was added or dropped
    does not move it."""
    own = re.compile(rf"\d+-{re.escape(stage.name)}")
    existing = sorted(path for path in folder.iterdir() if own.fullmatch(path.name)) if folder.is_dir() else []
    return existing[0] if existing else folder / f"{number:02d}-{stage.name}"


def check_stages(stages: Sequence[Stage]) -> None:
    """Refuse names that two stages share, and a stage that reads what no earlier one is called."""
    known: set[str] = set()
    for stage in stages:
        if stage.name in known:
            raise WhetError(f"two stages are called {stage.name!r}; give each a name of its own")
        missing = next((name for name in stage.reads or () if name not in known), None)
        if missing is not None:
            raise WhetError(f"stage {stage.name!r} reads {missing!r}, and no stage before it is called that")
        known.add(stage.name)


def stage_fingerprints(stages: Sequence[Stage]) -> dict[str, str]:
    """The fingerprint of each stage, by name: equal ones came of equal settings and inputs."""
    fingerprints: dict[str, str] = {}
    for stage in stages:
        fingerprints[stage.name] = _fingerprint(stage, fingerprints)
    return fingerprints


def _fingerprint(stage: Stage, earlier: Mapping[str, str]) -> str:
    read = earlier if stage.reads is None else {name: earlier[name] for name in stage.reads}
    content = {"settings": stage.settings, "inputs": dict(stage.inputs()), "reads": dict(read)}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def unchanged_stages(stages: Sequence[Stage], folder: Path) -> list[str]:
    """Names of the stages that are finished in the folder and would be skipped."""
    prints = stage_fingerprints(stages)
    return [
        stage.name
        for number, stage in enumerate(stages, 1)
        if _read_finished(stage_folder(folder, number, stage), stage, prints[stage.name]) is not None
    ]


def run_stages(stages: Sequence[Stage], folder: Path, observer: ProgressPrinter) -> dict[str, FinishedStage]:
    """Run the stages in order; what each came to, by name. A stage with a `stop_reason` is the last one."""
    check_stages(stages)
    finished: dict[str, FinishedStage] = {}
    prints: dict[str, str] = {}
    for number, stage in enumerate(stages, 1):
        own_folder = stage_folder(folder, number, stage)
        fingerprint = prints[stage.name] = _fingerprint(stage, prints)
        done = _read_finished(own_folder, stage, fingerprint)
        is_old = done is not None
        if done is None:
            replaced = _cleared(own_folder, fingerprint)
            if replaced is not None:
                observer.stage_replaced(stage, replaced)
            observer.stage_started(number, len(stages), stage)
            own_folder.mkdir(parents=True, exist_ok=True)
            write_atomically(own_folder / STARTED, json.dumps({"fingerprint": fingerprint}) + "\n")
            start = time.monotonic()
            result = stage.work(own_folder, dict(finished))
            done = FinishedStage(own_folder, dict(result), time.monotonic() - start)
            saved = {
                "name": stage.name,
                "fingerprint": fingerprint,
                "settings": stage.settings,
                "result": done.result,
                "seconds": done.seconds,
            }
            write_atomically(own_folder / RESULT, json.dumps(saved, indent=2) + "\n")
            (own_folder / STARTED).unlink(missing_ok=True)
        finished[stage.name] = done
        observer.stage_finished(number, len(stages), stage, done, is_old)
        if done.result.get("stop_reason"):
            break
    return finished


def _cleared(own_folder: Path, fingerprint: str) -> Path | None:
    """Move away what was made of other inputs; where it lies now, None where there is nothing to move."""
    if not own_folder.is_dir() or all(path.name == f".{STARTED}" for path in own_folder.iterdir()):
        return None  # at most its mark, half written by a process that was killed
    if not (own_folder / RESULT).exists():
        try:
            started = json.loads((own_folder / STARTED).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            started = {}
        if isinstance(started, dict) and started.get("fingerprint") == fingerprint:
            return None  # interrupted: it goes on
    replaced = own_folder.parent / REPLACED / own_folder.name
    replaced.parent.mkdir(exist_ok=True)
    shutil.rmtree(replaced, ignore_errors=True)
    os.replace(own_folder, replaced)
    return replaced


def _read_finished(own_folder: Path, stage: Stage, fingerprint: str) -> FinishedStage | None:
    """The finished stage, None where it is not finished or was made of other inputs."""
    try:
        saved = json.loads((own_folder / RESULT).read_text(encoding="utf-8"))
        name, done = saved["name"], FinishedStage(own_folder, saved["result"], saved["seconds"])
        made_of = saved.get("fingerprint")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WhetError(
            f"{own_folder / RESULT} is damaged ({error}); remove {own_folder} to run that stage again"
        ) from error
    return done if name == stage.name and made_of == fingerprint else None


def write_in_chunks(
    path: Path, items: Sequence[Item], size: int, rows_of: Callable[[int, Sequence[Item]], Sequence[Mapping[str, Any]]]
) -> Path:
    """JSON lines of `rows_of(number of the chunk, its items)`; what was written before a break is not written again.

    A chunk is always the same items, so that the rows do not depend on where the work was broken off.
    """
    parts = path.with_name(f"{path.stem}-parts")
    if path.exists():
        shutil.rmtree(parts, ignore_errors=True)
        return path
    parts.mkdir(exist_ok=True)
    chunks = [items[start : start + size] for start in range(0, len(items), size)]
    files = [parts / f"{number:05d}.jsonl" for number in range(len(chunks))]
    for number, (chunk, file) in enumerate(zip(chunks, files, strict=True)):
        if not file.exists():
            write_atomically(file, json_lines(rows_of(number, chunk)))
    write_atomically(path, "".join(file.read_text(encoding="utf-8") for file in files))
    shutil.rmtree(parts)
    return path


def json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as JSON Lines text."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write JSON lines, all or nothing."""
    return write_atomically(path, json_lines(rows))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON Lines file."""
    # not splitlines(): a completion may hold any of the line ends that Unicode knows
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def print_line(text: str) -> None:
    """Print at once; what the terminal's encoding does not have is replaced, never an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "\u00b1".encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("\u00b1", "+-")
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


class ProgressLine:
    """A callback that keeps one line of a terminal up to date; elsewhere it is silent."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name, self._stream = name, stream
        self._is_live = stream.isatty()
        self._total, self._steps, self._began = 0, 0, time.monotonic()

    def started(self, summary: Mapping[str, Any]) -> None:
        self._total, self._began = int(summary.get("total_steps") or 0), time.monotonic()
        self._show("starting")

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        self._steps += 1
        left = (time.monotonic() - self._began) / self._steps * (self._total - report.step)
        reward = number_text(report.reward.get("total"))
        self._show(f"step {report.step}/{self._total}  reward {reward}  {duration(left)} left")

    def clear(self) -> None:
        """Erase the line, if the stream is a terminal."""
        if self._is_live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _show(self, text: str) -> None:
        if self._is_live:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[K{f'{self.name}  {text}'[:width]}")
            self._stream.flush()


class ProgressPrinter:
    """Prints what each stage does and what came out, and draws the page again after each."""

    def __init__(self, title: str, draw: Callable[[Mapping[str, FinishedStage]], object]) -> None:
        self._draw = draw
        self.finished: dict[str, FinishedStage] = {}
        self.current = ""
        print_line(f"{title}\n")

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        self.current = stage.name
        print_line(f"[{number}/{total}] {stage.name}: {stage.about}")

    def stage_replaced(self, stage: Stage, moved_to: Path) -> None:
        print_line(f"      {stage.name} was made of other inputs and runs again; what it had left is in {moved_to}")

    def stage_finished(self, number: int, total: int, stage: Stage, done: FinishedStage, is_old: bool) -> None:
        """`is_old`: from an earlier run of the pipeline."""
        self.finished[stage.name] = done
        if is_old:
            print_line(f"[{number}/{total}] {stage.name}: {stage.about}")
        took = "done before" if is_old else duration(done.seconds)
        print_line(f"      {done.result.get('summary', 'done')}  ({took})")
        if done.result.get("stop_reason"):
            print_line(f"      stopping here: {done.result['stop_reason']}")
        if not is_old:
            self._draw(self.finished)
