"""trackio: a local database and page, no account. `trackio show --project whet` shows every run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from whet.record.trackers.tracker import TrackedRun, TrackedStep, histogram, messages, sample_facts
from whet.types import WhetError


class TrackioTracker:
    """Completions are traces, findings alerts. A run that was cut back is deleted there and sent again.

    trackio itself decides where its data lies (`TRACKIO_DIR`), and whether it goes to a server or a Space
    (`TRACKIO_SERVER_URL`, `TRACKIO_SPACE_ID`): nothing of that is set here.
    """

    name: ClassVar[str] = "trackio"
    packages: ClassVar[tuple[str, ...]] = ("trackio",)
    extra: ClassVar[str] = "track"

    def __init__(self, *, project: str = "whet") -> None:
        """`project`: the project that runs are listed under."""
        self._project, self._last = project, 0
        self._run: Any = None

    @property
    def place(self) -> str:
        return f"trackio show --project {self._project}"

    def open(self, run: TrackedRun, saved: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        import secrets

        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        # names of folders repeat among the runs of a machine
        name = str(saved.get("name") or f"{run.name}-{secrets.token_hex(3)}")
        there = SQLiteStorage.get_latest_run_record_by_name(self._project, name) if saved else None
        had = int(saved.get("lines") or 0) if there else 0
        if there and (had > run.lines or not saved.get("closed")):
            # cut back, or killed with some lines still in trackio's queue: nobody knows which it has
            SQLiteStorage.delete_run(self._project, name, run_id=there["id"])
            had = 0
        with _quiet():
            self._run = trackio.init(
                project=self._project,
                name=name,
                config={**run.settings, "title": run.title, "folder": str(run.folder.resolve())},
                resume="must" if had else "never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        return {"name": name, "project": self._project}, had

    def step(self, step: TrackedStep) -> None:
        import trackio

        count = int(step.scalars.get("samples", 1))
        values: dict[str, Any] = dict(step.scalars)
        for name, quantiles in step.spread.items():
            values[f"spread/{name}"] = trackio.Histogram(np_histogram=histogram(quantiles, count))
        traces = [trackio.Trace(messages(sample), metadata=sample_facts(sample)) for sample in step.samples]
        if traces:
            values["completions"] = traces
        self._log(values, step.step)
        for finding in step.findings:
            title, _, text = finding.partition(": ")
            with _quiet():
                self._run.alert(title=title, text=text, level=trackio.AlertLevel.WARN, step=step.step)

    def evaluation(self, step: int, scalars: Mapping[str, float]) -> None:
        self._log(dict(scalars), step)

    def close(self, status: str, summary: Mapping[str, str]) -> None:
        import trackio
        from trackio import context_vars
        from trackio.sqlite_storage import SQLiteStorage

        lines = "\n".join(f"- {name}: `{value}`" for name, value in summary.items())
        self._log({"summary": trackio.Markdown(lines)}, self._last)
        with _quiet():
            self._run.finish()
        if context_vars.current_run.get() is self._run:
            context_vars.current_run.set(None)  # or it is finished once more, aloud, when the process ends
        run = self._run
        if run._is_local:  # trackio warns of what it cannot write and goes on: look whether it is there
            reached = SQLiteStorage.get_max_step_for_run(self._project, run.name, run_id=run.id)
            if reached is None or reached < self._last:
                raise WhetError(f"trackio has step {reached} of {self._last}; look at the disk of its folder")

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self._run.log(dict(values), step=step)
        self._last = max(self._last, step)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """trackio prints what it does; a run's console has a line for it already."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
