"""Stages one after another, each in its own folder; what is finished is never done again.

A stage is finished when its folder holds `stage.json`, which is written last and atomically. A stage that was
interrupted is started again in the same folder: work that takes long continues from what it left there.

What a stage returns is JSON, made by `stage_result`: `summary` is one line for the user, `metrics` are measurements on
held-out data, `counts` say what was counted and dropped, `stop_reason` is why the stages after it are not worth doing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from whet.types import WhetError

RESULT = "stage.json"
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
class Stage:
    """`work(folder, done)` gets its own folder and the finished stages by name, and returns its result as JSON."""

    name: str  # round1-pairs
    about: str  # one line for the user
    work: Work
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: a finished stage with others is refused
    measures: tuple[str, int] | None = None  # whose metrics it measures, after which round


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


class StageObserver(Protocol):
    def stage_started(self, number: int, total: int, stage: Stage) -> None: ...

    def stage_finished(self, number: int, total: int, stage: Stage, done: FinishedStage, is_old: bool) -> None: ...


def stage_folder(folder: Path, number: int, stage: Stage) -> Path:
    return folder / f"{number:02d}-{stage.name}"


def run_stages(stages: Sequence[Stage], folder: Path, observer: StageObserver) -> dict[str, FinishedStage]:
    """Run the stages in order; what each came to, by name. A stage with a `stop_reason` is the last one."""
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise ValueError(f"two stages share a name: {names}")
    finished: dict[str, FinishedStage] = {}
    for number, stage in enumerate(stages, 1):
        place = stage_folder(folder, number, stage)
        done = _read_finished(place, stage)
        is_old = done is not None
        if done is None:
            observer.stage_started(number, len(stages), stage)
            place.mkdir(parents=True, exist_ok=True)
            start = time.monotonic()
            result = stage.work(place, dict(finished))
            done = FinishedStage(place, dict(result), time.monotonic() - start)
            saved = {"name": stage.name, "settings": stage.settings, "result": done.result, "seconds": done.seconds}
            write_atomically(place / RESULT, json.dumps(saved, indent=2) + "\n")
        finished[stage.name] = done
        observer.stage_finished(number, len(stages), stage, done, is_old)
        if done.result.get("stop_reason"):
            break
    return finished


def _read_finished(place: Path, stage: Stage) -> FinishedStage | None:
    try:
        saved = json.loads((place / RESULT).read_text(encoding="utf-8"))
        name, settings, done = saved["name"], saved["settings"], FinishedStage(place, saved["result"], saved["seconds"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise WhetError(f"{place / RESULT} is damaged ({error}); remove {place} to run that stage again") from error
    # through JSON and back: a tuple and a list are the same setting
    if name != stage.name or settings != json.loads(json.dumps(stage.settings)):
        raise WhetError(f"{place} was finished with other settings; give the same settings again, or another --folder")
    return done


def write_atomically(path: Path, text: str) -> Path:
    """Write a file so that it is either there in full or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


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
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    # not splitlines(): a completion may hold any of the line ends that Unicode knows
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
