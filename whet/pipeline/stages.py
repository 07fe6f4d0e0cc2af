"""Stages one after another, each in its own folder; what is finished is never done again.

A stage is finished when its folder holds `stage.json`, which is written last and whole. A stage that was broken off is
started again in the same folder: work that takes long goes on from what it left there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from whet.types import WhetError

RESULT = "stage.json"


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


class Watcher(Protocol):
    def begun(self, number: int, total: int, stage: Stage) -> None: ...

    def done(self, number: int, total: int, stage: Stage, done: Done, is_old: bool) -> None: ...


def stage_folder(folder: Path, number: int, stage: Stage) -> Path:
    return folder / f"{number:02d}-{stage.name}"


def run_stages(stages: Sequence[Stage], folder: Path, watcher: Watcher) -> dict[str, Done]:
    """Work off the stages in order and return what each came to, by name."""
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
