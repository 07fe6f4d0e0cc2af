"""What the stages of a pipeline are made of: a training run in a stage's folder, and marks of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet import api
from whet.pipeline import Done, Interrupted
from whet.report.record import read_summary
from whet.run_folder import CONFIG

RUN = "run"  # a training stage's run folder


def trained(folder: Path, method: str, config: Mapping[str, Any], watchers: Any = None) -> Mapping[str, Any]:
    """A run in this very folder, begun or gone on with: its marks before and after, as JSON."""
    run_folder = folder / RUN
    if (run_folder / CONFIG).exists():
        summary = read_summary(run_folder)
        if summary.get("status") == "finished":
            return {"before": summary.get("before") or {}, "after": summary.get("after") or {}}
        run = api.resume(run_folder, watchers=watchers)
    else:
        run = api.train(method, config={**config, "folder": str(run_folder)}, watchers=watchers)
    if run.status == "interrupted":
        raise Interrupted
    return {"before": dict(run.before), "after": dict(run.after)}


def model_of(done: Done) -> str:
    """The model that a training stage left behind."""
    return str(done.folder / RUN)
