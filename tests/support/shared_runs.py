"""Finished runs that many tests read and none changes: made once per session, whichever worker needs one first."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import common_folder


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of this session; other workers wait while the first one makes it."""
    folder = common_folder(temporary) / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    done = folder.with_suffix(".done")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def read_builtin_models_once() -> None:
    """Runs get copies of a built-in model that was read once: reading its files is a tenth of a short run."""
    load = sys.modules.get("whet.model.load")
    if load is None:  # no test of this session loads a model
        return
    read, originals = load.read_pair, {}

    def read_pair(source: str, dtype: Any, **options: Any) -> Any:
        if options or Path(source).parent != load.BUILTIN:
            return read(source, dtype, **options)
        if (source, dtype) not in originals:
            originals[source, dtype] = read(source, dtype)
        return deepcopy(originals[source, dtype])

    load.read_pair = read_pair


def train_imitator(folder: Path) -> None:
    """SFT on the built-in task, until the model answers otherwise than the built-in one."""
    import whet

    settings = {"data": {"count": 256}, "eval": {"prompts": 0}, "model": {"threads": 1}, "batch": {"rows_per_step": 32}}
    whet.train("sft", steps=8, folder=str(folder), config=settings, console=False)
