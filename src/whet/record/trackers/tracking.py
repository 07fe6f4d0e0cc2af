"""The callback that tells services of a run. A service that fails is left out from then on: training never waits for
it, and the run says so.

What a service needs to go on (its run's id, how much it has) lies in trackers.json of the run folder. A run that is
resumed sends what a service lacks from the run's own logs, so each has every step once, also one that was added late.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.record.log import (
    METRICS,
    SAMPLES,
    EvalRecord,
    eval_line,
    read_lines,
    recorded_samples,
    sample_line,
    step_line,
)
from whet.record.run_folder import write_atomically
from whet.record.trackers.tracker import TrackedRun, Tracker, eval_scalars, flat_settings, summary_texts, tracked_step
from whet.types import Prompt, Sample, StepReport

logger = logging.getLogger(__name__)
TRACKERS = "trackers.json"
CLOSED, LINES = "closed", "lines"
LONGEST_REASON = 200


@dataclass
class _Service:
    """One tracker of the run, and how it stands."""

    name: str
    tracker: Tracker
    saved: dict[str, Any] = field(default_factory=dict)
    lines: int = 0  # that it has
    failure: str = ""
    is_open: bool = False


class Trackers:
    """A callback over all trackers of a run. It runs after the recorder: what is sent is on the disk already."""

    def __init__(
        self, trackers: Mapping[str, Tracker], folder: Path, settings: Mapping[str, Any], samples_per_step: int
    ) -> None:
        """`samples_per_step` is that of the recorder: what services show is what samples.jsonl has."""
        self._services = [_Service(name, tracker) for name, tracker in trackers.items()]
        self._folder, self._settings, self._samples_per_step = folder, dict(flat_settings(settings)), samples_per_step
        self._seen: set[str] = set()  # names of findings
        self._lines = 0
        self._step = 0

    def started(self, summary: Mapping[str, Any]) -> None:
        """Open every service and send what it lacks of the run's log."""
        log = list(read_lines(self._folder / METRICS))
        self._lines, self._step = len(log), max((line["step"] for line in log), default=0)
        facts = {str(name): str(value) for name, value in (summary.get("facts") or {}).items()}
        title = str(summary.get("title") or "run")
        name = self._folder.resolve().name
        run = TrackedRun(name, title, self._folder, self._settings, facts, self._lines, self._step)
        saved = _read_saved(self._folder / TRACKERS)
        for service in self._services:
            with self._guarded(service, "opening it"):
                service.saved, service.lines = service.tracker.open(run, saved.get(service.name) or {})
                service.is_open = True
        self._catch_up(log)
        self._keep()

    def stepped(self, report: StepReport, samples: Sequence[tuple[Prompt, Sample]]) -> None:
        """Send a step, with the samples that samples.jsonl has of it."""
        self._step, self._lines = report.step, self._lines + 1
        chosen = recorded_samples(samples, self._samples_per_step)
        lines = [sample_line(report.step, prompt, sample) for prompt, sample in chosen]
        step = tracked_step(step_line(report), lines, self._seen)
        for service in self._open():
            with self._guarded(service, f"step {report.step}"):
                service.tracker.step(step)
                service.lines = self._lines
        self._keep()

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        """Send the metrics of an evaluation."""
        self._lines += 1
        scalars = eval_scalars(eval_line(EvalRecord(step, name, result, seconds)))
        for service in self._open():
            with self._guarded(service, f"the evaluation at step {step}"):
                service.tracker.evaluation(step, scalars)
                service.lines = self._lines
        self._keep()

    def finished(self, summary: Mapping[str, Any]) -> None:
        """Close the services with the run's own status."""
        self.close(str(summary.get("status") or "finished"), summary)

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        """End what is still open; a run that broke off comes here without `finished`."""
        if not any(service.is_open for service in self._services):
            return
        texts = summary_texts({**summary, "status": status})
        for service in self._open():
            with self._guarded(service, "closing it"):
                service.tracker.close(status, texts)
                service.saved[CLOSED] = True
            service.is_open = False
        self._keep()

    @property
    def fact(self) -> str:
        """A sentence for the run's facts: where each service has the run, and which was left out and why."""
        return "; ".join(
            f"{service.name}: {service.failure}" if service.failure else f"{service.name} ({service.tracker.place})"
            for service in self._services
        )

    @property
    def failures(self) -> dict[str, str]:
        """Services that were left out, and why."""
        return {service.name: service.failure for service in self._services if service.failure}

    def _open(self) -> Iterator[_Service]:
        return (service for service in self._services if service.is_open and not service.failure)

    def _catch_up(self, log: Sequence[Mapping[str, Any]]) -> None:
        """Send what services lack of a run that goes on, one line at a time, whatever was sent before."""
        behind = min((service.lines for service in self._open()), default=len(log))
        steps = {line["step"] for line in log[behind:]}
        samples: dict[int, list[dict[str, Any]]] = {}
        for sample in read_lines(self._folder / SAMPLES) if steps else ():
            if sample["step"] in steps:
                samples.setdefault(sample["step"], []).append(sample)
        for number, line in enumerate(log, start=1):
            step = None if "eval" in line else tracked_step(line, samples.get(line["step"], ()), self._seen)
            for service in self._open():
                if service.lines >= number:
                    continue
                with self._guarded(service, f"step {line['step']}"):
                    if step is None:
                        service.tracker.evaluation(line["step"], eval_scalars(line))
                    else:
                        service.tracker.step(step)
                    service.lines = number

    @contextmanager
    def _guarded(self, service: _Service, during: str) -> Iterator[None]:
        """Whatever a service raises ends that service, with one line of warning."""
        try:
            yield
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
            service.failure = f"off since {during}: {reason}"
            logger.warning(
                "tracker %s failed at %s (%s); training continues. `whet resume` sends it what it missed",
                service.name,
                during,
                reason,
            )

    def _keep(self) -> None:
        """Note how much each service has; a service that was left out keeps what it had, and catches up on a resume."""
        path = self._folder / TRACKERS
        values = _read_saved(path)
        for service in self._services:
            if service.saved:
                values[service.name] = {CLOSED: False, **service.saved, LINES: service.lines}
        with suppress(OSError):
            write_atomically(path, json.dumps(values, indent=1) + "\n")


def _read_saved(path: Path) -> dict[str, Any]:
    """What was kept for each service; nothing where the file is not there or not readable: they begin anew."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
