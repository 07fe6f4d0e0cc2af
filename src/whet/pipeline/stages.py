"""Stages one after another, each in its own folder; what is finished is never done again.

A stage is finished when its folder holds `stage.json`, which is written last and whole. A stage that was broken off is
started again in the same folder: work that takes long goes on from what it left there.

What a stage finds is JSON that `found` makes: `said` is one line for the user, `marks` are measurements on held-out
data, `counts` are what was counted and dropped, `over` is why the stages after it are not worth doing.
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
class Done:
    """A finished stage."""

    folder: Path
    result: Mapping[str, Any]  # JSON
    seconds: float = 0.0


Work = Callable[[Path, Mapping[str, Done]], Mapping[str, Any]]


@dataclass(frozen=True)
class Stage:
    """`work(folder, done)` gets its own folder and the finished stages by name, and returns what it found as JSON."""

    name: str  # round1-pairs
    about: str  # one line for the user
    work: Work
    settings: Mapping[str, Any] = field(default_factory=dict)  # JSON: a finished stage with others is refused
    measures: tuple[str, int] | None = None  # whose marks it finds, after which round


def found(
    said: str,
    marks: Mapping[str, float] | None = None,
    counts: Mapping[str, int] | None = None,
    over: str = "",
    **more: Any,
) -> dict[str, Any]:
    """What a stage returns. A mark that could not be taken is left out: JSON has no NaN."""
    taken = {name: float(value) for name, value in (marks or {}).items() if math.isfinite(value)}
    return {"said": said, "marks": taken, "counts": dict(counts or {}), **({"over": over} if over else {}), **more}


class Watcher(Protocol):
    def begun(self, number: int, total: int, stage: Stage) -> None: ...

    def done(self, number: int, total: int, stage: Stage, done: Done, is_old: bool) -> None: ...


def stage_folder(folder: Path, number: int, stage: Stage) -> Path:
    return folder / f"{number:02d}-{stage.name}"


def run_stages(stages: Sequence[Stage], folder: Path, watcher: Watcher) -> dict[str, Done]:
    """Work off the stages in order and return what each came to, by name. One whose result says `over` is the last."""
    names = [stage.name for stage in stages]
    if len(set(names)) < len(names):
        raise ValueError(f"two stages share a name: {names}")
    finished: dict[str, Done] = {}
    for number, stage in enumerate(stages, 1):
        place = stage_folder(folder, number, stage)
        before = _finished(place, stage)
        if before is not None:
            finished[stage.name] = before
            watcher.done(number, len(stages), stage, before, True)
            if before.result.get("over"):
                break
            continue
        watcher.begun(number, len(stages), stage)
        place.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        result = stage.work(place, dict(finished))
        done = Done(place, dict(result), time.monotonic() - start)
        saved = {"name": stage.name, "settings": stage.settings, "result": done.result, "seconds": done.seconds}
        written_whole(place / RESULT, json.dumps(saved, indent=2) + "\n")
        finished[stage.name] = done
        watcher.done(number, len(stages), stage, done, False)
        if done.result.get("over"):
            break
    return finished


def _finished(place: Path, stage: Stage) -> Done | None:
    try:
        saved = json.loads((place / RESULT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WhetError(f"{place / RESULT} is damaged ({error}); remove {place} to do that stage again") from error
    # through JSON and back: a tuple and a list are the same setting
    differing = saved["settings"] != json.loads(json.dumps(stage.settings))
    if saved["name"] != stage.name or differing:
        raise WhetError(f"{place} was finished with other settings; give the same settings again, or another --folder")
    return Done(place, saved["result"], saved["seconds"])


def written_whole(path: Path, text: str) -> Path:
    """Write a file so that it is either there in full or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path


def written_in_chunks(
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
            written_whole(file, json_lines(rows_of(number, chunk)))
    written_whole(path, "".join(file.read_text(encoding="utf-8") for file in files))
    shutil.rmtree(parts)
    return path


def json_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    # not splitlines(): a completion may hold any of the line ends that Unicode knows
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
