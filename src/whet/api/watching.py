"""Following a run by its files, from another process: what is there to see now, and whether more will come."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from whet.api.run import Run
from whet.record.log import METRICS, SUMMARY
from whet.record.run import read_run
from whet.record.run_folder import CONFIG, is_locked
from whet.record.watch import WatchFrame
from whet.types import WhetError

PIPELINE, PIPELINE_SUMMARY = "pipeline.toml", "pipeline.json"


def watched_run(folder: Path) -> WatchFrame:
    """The run in a folder, or the newest of a pipeline; an error in one line where there is none to see."""
    if (folder / PIPELINE).is_file():
        return _stage(folder)
    if not folder.is_dir():
        raise WhetError(f"{folder}: there is no such folder; `whet runs` lists yours")
    if not (folder / CONFIG).is_file():
        raise WhetError(f"{folder}: not a run folder (no {CONFIG}); `whet runs` lists yours")
    return _frame(folder, "")


def _frame(folder: Path, above: str) -> WatchFrame:
    try:
        if (folder / SUMMARY).is_file():
            record, status = read_run(folder), Run(folder).status
        else:  # the model and the data are being loaded
            record, status = read_run(folder, {}), "running" if is_locked(folder) else "interrupted"
    except (KeyError, TypeError, AttributeError) as error:  # complete lines with other fields than ours
        raise WhetError(
            f"{folder}: its files are not as this version writes them ({type(error).__name__}: {error}); "
            "watch it with the version that trains it"
        ) from None
    except OSError as error:
        raise WhetError(f"{folder}: cannot be read ({error.strerror})") from None
    return WatchFrame(record, status, _age(folder / METRICS), above)


def _age(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def _stage(folder: Path) -> WatchFrame:
    """The newest run below a pipeline's folder, and which stage that is."""
    runs = sorted((file.parent for file in folder.rglob(CONFIG)), key=_changed)
    stages = _stages(folder)
    done = sum(stage.get("seconds") is not None for stage in stages)
    name = str((_summary(folder)).get("name") or folder.name)
    if not runs:
        raise WhetError(f"{folder}: no stage of the pipeline {name} trains yet ({done} of {len(stages)} done)")
    where = runs[-1].relative_to(folder).parts[0]
    standing = str(_summary(folder).get("status") or "running")
    status = "interrupted" if standing == "running" and not is_locked(folder) else standing
    of = f", {done} of {len(stages)} stages done" if stages else ""
    frame = _frame(runs[-1], f"pipeline {name}  {status}{of}  stage {where}")
    # between two stages nothing trains, and the pipeline still runs
    return WatchFrame(frame.run, status, frame.since, frame.above)


def _changed(folder: Path) -> float:
    for name in (METRICS, CONFIG):
        try:
            return (folder / name).stat().st_mtime
        except OSError:
            continue
    return 0.0


def _summary(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / PIPELINE_SUMMARY).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _stages(folder: Path) -> list[dict[str, Any]]:
    stages = _summary(folder).get("stages")
    return [stage for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
