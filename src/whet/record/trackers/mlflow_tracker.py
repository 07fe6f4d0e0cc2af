"""MLflow: a database below the run folder unless a server is named. `mlflow ui --backend-store-uri URI` shows it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from whet.record.trackers.tracker import (
    COLUMNS,
    LONGEST_VALUE,
    QUANTILES,
    TrackedRun,
    TrackedStep,
    sample_cells,
    shortened,
)

DATABASE, ARTIFACTS = "mlflow.db", "mlflow-artifacts"
MOST_PARAMS = 100  # in one request
NAME = str.maketrans(dict.fromkeys("@#$%^&*()+=[]{}<>?!,;:'\"\\|~`", "_"))


class MlflowTracker:
    """Completions are artifacts, one file per step; findings are tags.

    MLflow cannot take back a metric: a run that was cut back goes on as a new MLflow run that has every step once, and
    the earlier one is moved to MLflow's deleted runs.
    """

    name: ClassVar[str] = "mlflow"
    packages: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")
    extra: ClassVar[str] = "mlflow"

    def __init__(self, *, project: str = "whet", uri: str = "") -> None:
        """`project`: the experiment's name. `uri`: of the store; empty: as MLFLOW_TRACKING_URI says, else a database
        below the run folder."""
        self._project, self._uri = project, uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        self._client: Any = None
        self._run_id = ""

    @property
    def place(self) -> str:
        return self._uri or f"sqlite:///RUN/{DATABASE}"

    def open(self, run: TrackedRun, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        # a server that is gone must not hold up a step for minutes
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        for noisy in ("alembic", "mlflow"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        folder = run.folder.resolve()
        local = "" if self._uri else (folder / ARTIFACTS).as_uri()
        self._uri = self._uri or f"sqlite:///{folder / DATABASE}"
        self._client = client = MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self._project)
        number = (
            client.create_experiment(self._project, artifact_location=local or None)
            if experiment is None
            else experiment.experiment_id
        )
        had, earlier = int(saved.get("lines") or 0), str(saved.get("id") or "")
        if earlier:
            try:
                if client.get_run(earlier).info.lifecycle_stage != "active":
                    earlier = ""
            except MlflowException:
                earlier = ""
        if earlier and had <= run.lines:
            self._run_id = earlier
            client.update_run(earlier, status="RUNNING")
        else:
            self._run_id, had = self._created(run, number, earlier), 0
        return {"id": self._run_id, "uri": self._uri}, had

    def _created(self, run: TrackedRun, experiment: str, earlier: str) -> str:
        from mlflow.entities import Param

        tags = {"mlflow.note.content": run.title, "whet.folder": str(run.folder)}
        if earlier:
            tags["whet.replaces"] = earlier
        tags |= {f"whet.{name.translate(NAME)}": shortened(value, LONGEST_VALUE) for name, value in run.facts.items()}
        made = self._client.create_run(experiment, run_name=run.name, tags=tags)
        params = [
            Param(name.translate(NAME), shortened(value, LONGEST_VALUE - 50)) for name, value in run.settings.items()
        ]
        for start in range(0, len(params), MOST_PARAMS):
            self._client.log_batch(made.info.run_id, params=params[start : start + MOST_PARAMS])
        if earlier:
            self._client.delete_run(earlier)
        return str(made.info.run_id)

    def step(self, step: TrackedStep) -> None:
        spread = {
            f"spread/{name}/{quantile}": quantiles[quantile]
            for name, quantiles in step.spread.items()
            for quantile in QUANTILES
        }
        self._log({**step.scalars, **spread}, step.step)
        for finding in step.findings:
            title, _, text = finding.partition(": ")
            self._client.set_tag(
                self._run_id, f"health.{title.translate(NAME)}", shortened(f"step {step.step}: {text}", LONGEST_VALUE)
            )
        if step.samples:
            table = {"columns": list(COLUMNS), "data": [sample_cells(sample) for sample in step.samples]}
            self._client.log_dict(self._run_id, table, f"completions/step-{step.step:06d}.json")

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        self._log(scalars, step)

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        for name, value in summary.items():
            self._client.set_tag(self._run_id, f"whet.{name.translate(NAME)}", shortened(value, LONGEST_VALUE))
        ended = {"finished": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
        self._client.set_terminated(self._run_id, status=ended)

    def _log(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name.translate(NAME), value, now, step) for name, value in scalars.items()]
        for start in range(0, len(metrics), 1000):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + 1000])
