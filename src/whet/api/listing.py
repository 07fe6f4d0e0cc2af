"""The runs below a folder, one line each: what `whet runs` prints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from whet.api.run import Run
from whet.record.run_folder import CONFIG
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.record.run import RunRecord

HEADS = ("run", "method", "model", "step", "status", "metric", "age")
DEEPEST = 32  # folders below the one to look in
HIDDEN = ("checkpoints", "start", "evals", "wandb", "tensorboard", "mlflow-artifacts")  # inside a run, without runs


@dataclass(frozen=True)
class ListedRun:
    """One line of the list."""

    folder: str
    method: str = ""
    model: str = ""
    step: int = 0
    total_steps: int = 0
    status: str = "damaged"
    metric: str = ""  # the headline metric; empty where nothing was measured
    before: float | None = None
    after: float | None = None
    best: str = ""  # the best evaluation, where it is not the last
    started: float = 0.0  # seconds since 1970; 0: unknown


def listed_runs(folder: str | Path) -> list[ListedRun]:
    """Every run below the folder, the newest first; a folder that cannot be read is listed as damaged."""
    runs = [_listed(run_folder) for run_folder in _run_folders(Path(folder))]
    return sorted(runs, key=lambda run: (-run.started, run.folder))


def _run_folders(folder: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(folder):
        deep = len(Path(directory).parts) - len(folder.parts) >= DEEPEST  # os.walk recurses
        names[:] = [] if deep else sorted(name for name in names if name not in HIDDEN and not name.startswith("."))
        if CONFIG in files:
            yield Path(directory)


def _listed(folder: Path) -> ListedRun:
    from whet.record.evaluations import best_remark
    from whet.record.run import read_run

    run = Run(folder)
    try:
        model = str(run.config.get("model", {}).get("name", ""))
        record = read_run(folder)
        name, before, after = record.gain() or _trained(record)
        started = float(run.summary.get("started") or 0)
        return ListedRun(
            folder=str(folder),
            method=run.method,
            model=model,
            step=run.steps,
            total_steps=run.total_steps,
            status=run.status,
            metric=name,
            before=before,
            after=after,
            best=best_remark({"evaluations": record.evaluations().values()}),
            started=started,
        )
    except (WhetError, KeyError, TypeError, AttributeError):  # damaged, or of another version
        return ListedRun(str(folder))


def _trained(record: RunRecord) -> tuple[str, float | None, float | None]:
    """What was trained in the first and the last step of a run that is not evaluated; an empty name before any."""
    if not record.steps:
        return "", None, None
    main = record.kind.main[0]
    first, last = (main.measure(step) for step in (record.steps[0], record.steps[-1]))
    return f"training {main.label}", first, last


def listing_text(runs: Sequence[ListedRun], now: float | None = None) -> str:
    """The list as a table."""
    from whet.record.text import aligned, metric_text

    lines = [HEADS]
    for run in runs:
        gain = f"{run.metric} {metric_text(run.metric, run.before)} -> {metric_text(run.metric, run.after)}"
        gain += f", {run.best}" if run.best else ""
        model = run.model if len(run.model) <= 28 else f"...{run.model[-25:]}"
        steps = f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)
        age = _age((time.time() if now is None else now) - run.started) if run.started else "-"
        lines.append((run.folder, run.method, model, steps, run.status, gain if run.metric else "-", age))
    return "\n".join(aligned(lines, left=len(HEADS)))


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
