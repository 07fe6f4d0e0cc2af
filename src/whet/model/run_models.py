"""Where the models of a run lie: checkpoints to go on from, the best by evaluation, the final one. Needs no torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from whet.types import WhetError

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
NAME = re.compile(r"step-(\d{6,})")
BEST, FINAL = MODELS = ("best", "final")  # folders of a run with a plain model: the best by evaluation, and the last
ABOUT = "saved.json"  # in them: the step, and what was measured there


def checkpoint_name(step: int) -> str:
    """The folder's name, such as step-000040."""
    return f"step-{step:06d}"


def checkpoint_step(path: Path) -> int:
    """The step in a checkpoint folder's name."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise WhetError(f"{path}: not a checkpoint; expected a folder named like {checkpoint_name(40)}")
    return int(match[1])


def complete_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; nothing that was only half written."""
    if not folder.is_dir():
        return []
    checkpoints = [path for path in folder.iterdir() if NAME.fullmatch(path.name) and (path / MANIFEST).is_file()]
    return sorted(checkpoints, key=checkpoint_step)


def about_model(path: Path) -> dict[str, Any] | None:
    """What is said of the plain model in a folder (`step`, `evaluation`, ...); None where there is no whole one."""
    if not (path / MANIFEST).is_file():
        return None
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        return about if isinstance(about["step"], int) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def run_of(model: Path) -> Path:
    """The run folder of a checkpoint or of a run's best or final model."""
    return model.parent if model.name in MODELS else model.parent.parent


def run_model(path: Path) -> Path | None:
    """The model that a run folder stands for: its final one, or a checkpoint that is newer; None for other folders.

    A folder of checkpoints stands for the newest.
    """
    checkpoints = complete_checkpoints(path / CHECKPOINTS) or complete_checkpoints(path)
    final = about_model(path / FINAL)
    if final is not None and (not checkpoints or final["step"] >= checkpoint_step(checkpoints[-1])):
        return path / FINAL
    return checkpoints[-1] if checkpoints else None
