"""Weights & Biases: offline unless asked. `wandb sync RUN/wandb/offline-run-*` sends a run later."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from whet.record.trackers.tracker import COLUMNS, TrackedRun, TrackedStep, histogram, sample_cells
from whet.types import WhetError

MODES = ("", "offline", "online")


class WandbTracker:
    """Completions go into one table that grows by the rows of each step, so that earlier steps stay visible.

    Offline, each session of a run writes a folder of its own, and the newest holds the run from its first step: a
    resumed run sends its log again and deletes the older folders, unless they were synced. Online, W&B keeps the first
    values of a step; those that a resumed run makes again are the same.
    """

    name: ClassVar[str] = "wandb"
    packages: ClassVar[tuple[str, ...]] = ("wandb",)
    extra: ClassVar[str] = "track"

    def __init__(self, *, project: str = "whet", entity: str = "", mode: str = "") -> None:
        """`mode`: offline or online; empty: as WANDB_MODE says, else offline. `entity`: user or team."""
        if mode not in MODES:
            raise WhetError(f"mode of the tracker 'wandb' is {mode!r}; give offline or online")
        self._project, self._entity = project, entity
        self._mode = mode or os.environ.get("WANDB_MODE") or "offline"
        self._run: Any = None
        self._table: Any = None
        self._place = "RUN/wandb"

    @property
    def place(self) -> str:
        return self._place

    def open(self, run: TrackedRun, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        import wandb

        identity = str(saved.get("id") or secrets.token_hex(4))
        folder = run.folder.resolve()
        older = sorted((folder / "wandb").glob(f"offline-run-*-{identity}"))
        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            dir=str(folder),
            id=identity,
            name=run.name,
            notes=run.title,
            config={**run.settings, "facts": dict(run.facts)},
            mode=self._mode,  # type: ignore[arg-type]
            resume="allow" if self._mode == "online" else None,
            settings=wandb.Settings(console="off", silent=True, init_timeout=60),
        )
        self._table = wandb.Table(columns=list(COLUMNS), log_mode="INCREMENTAL")
        had = 0
        if self._mode == "online":
            # every line has its step, and W&B refuses those that are not newer than its last
            had = run.lines if int(self._run.step) > run.last_step else int(saved.get("lines") or 0)
            self._place = str(self._run.url or "online")
        else:
            self._place = f"wandb sync {Path(self._run.dir).parent}"
            for old_folder in older:
                if not list(old_folder.glob("*.synced")):
                    shutil.rmtree(old_folder, ignore_errors=True)
        return {"id": identity, "project": self._project}, min(had, run.lines)

    def step(self, step: TrackedStep) -> None:
        import wandb

        count = int(step.scalars.get("samples", 1))
        values: dict[str, Any] = dict(step.scalars)
        for name, quantiles in step.spread.items():
            counts, edges = histogram(quantiles, count)
            values[f"spread/{name}"] = wandb.Histogram(np_histogram=(np.array(counts), np.array(edges)))
        if step.samples:
            for sample in step.samples:
                self._table.add_data(*sample_cells(sample))
            values["completions"] = self._table
        self._run.log(values, step=step.step)
        for finding in step.findings:
            title, _, text = finding.partition(": ")
            self._run.summary[f"health/{title}"] = f"step {step.step}: {text}"
            if self._mode == "online":
                self._run.alert(title=title, text=f"step {step.step}: {text}", level="WARN")

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log(dict(scalars), step=step)  # joins the step's own line

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=0 if status == "finished" else 1)
