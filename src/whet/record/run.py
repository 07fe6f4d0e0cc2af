"""A run folder read back, and what it says in one sentence. Shared by everything that shows finished runs."""

from __future__ import annotations

import contextlib
import math
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whet.record.evaluations import Evaluations, evaluations_of, with_size
from whet.record.flat_rows import ThinnedLog
from whet.record.health.diagnosis import finding_spans, findings
from whet.record.health.finding import FindingSpan, HealthFinding
from whet.record.health.history import known_settings
from whet.record.health.story import RunEnding, Story, story_of
from whet.record.log import (
    METRICS,
    SAMPLES,
    EvalRecord,
    json_object,
    last_lines,
    raw_lines,
    read_lines,
    read_summary,
    recorded,
    step_reports,
    step_sums,
)
from whet.record.run_folder import ERROR_LOG, JOURNAL, status_of
from whet.record.run_kinds import RL, RunKind, kind_of
from whet.record.text import duration, headline, metric_text, words
from whet.types import StepReport

LONGEST_CALL = 2048  # bytes of what is said about a sample that was being scored
MOST_BETWEEN = 1500  # steps of a long run between its first and its last ones


@dataclass
class StepTotals:
    """What all steps of a run add up to."""

    num_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    problems: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)  # of each step that has any
    evaluation_seconds: float = 0.0
    # (step, tokens so far, seconds so far) of steps here and there
    course: ThinnedLog[tuple[int, int, float]] = field(default_factory=ThinnedLog, compare=False)

    def course_values(self) -> dict[str, list[float]] | None:
        """What was spent after each of some steps, for the axes of charts; None before the first step."""
        rows = [(0, 0, 0.0), *self.course.items()]
        if len(rows) < 2:
            return None
        steps, tokens, seconds = zip(*rows, strict=True)
        return {"step": list(steps), "tokens": list(tokens), "seconds": [round(spent, 2) for spent in seconds]}

    def add(self, step: int, seconds: Mapping[str, float | None], counts: Mapping[str, int]) -> None:
        """One more step: add up, and note what has been spent by now."""
        self.num_steps += 1
        for phase, took in seconds.items():
            known = took if took is not None and math.isfinite(took) else 0.0
            self.seconds[phase] = self.seconds.get(phase, 0.0) + known
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        spent = sum(self.seconds.values()) + self.evaluation_seconds
        self.course.append((step, self.counts.get("tokens", 0), spent))


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds. Of the samples only those of the first and the last recorded step.

    Of a very long run `steps` has the first, the last and evenly spaced ones in between; `totals` count all of them.
    """

    folder: Path
    summary: Mapping[str, Any]
    config: str
    steps: tuple[StepReport, ...]
    evals: tuple[EvalRecord, ...]
    first_samples: tuple[Mapping[str, Any], ...] = ()
    last_samples: tuple[Mapping[str, Any], ...] = ()
    totals: StepTotals = field(default_factory=lambda: StepTotals())

    @property
    def status(self) -> str:
        """The status in run.json; a run that claims to be running but whose lock is free was interrupted."""
        return status_of(self.folder, self.summary)

    @property
    def title(self) -> str:
        """The title of the run, or the name of its folder."""
        return str(self.summary.get("title") or self.folder.name or "run")

    @property
    def kind(self) -> RunKind:
        """The kind of run, known by what its steps report."""
        return kind_of(self.steps)

    @property
    def num_steps(self) -> int:
        """The number of the last recorded step."""
        return self.steps[-1].step if self.steps else 0

    @property
    def dtype(self) -> str:
        """The type of its weights."""
        facts = self.summary.get("facts")
        return str(facts.get("dtype", "float32")) if isinstance(facts, Mapping) else "float32"

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that health rules read, by name; empty for a run of an older version."""
        return known_settings(self.summary)

    def config_values(self) -> dict[str, Any]:
        """config.toml as nested values; empty where it is not TOML."""
        try:
            return tomllib.loads(self.config)
        except (ValueError, RecursionError):
            return {}

    def findings(self) -> tuple[HealthFinding, ...]:
        """What health rules find at its last step."""
        return findings(self.steps, self.dtype, self.settings, self.evals)

    def finding_spans(self) -> tuple[FindingSpan, ...]:
        """Every problem of any step with the steps in which it held, then the notes of the last step."""
        return finding_spans(self.steps, self.dtype, self.totals.problems, self.settings, self.evals)

    def story(self, spans: Sequence[FindingSpan] | None = None) -> Story:
        """What it comes to, in one headline with its evidence, cause and remedy."""
        return story_of(self.finding_spans() if spans is None else spans, self.evaluations(), self.ending())

    def ending(self) -> RunEnding:
        """The run's status, its error, and other signs in its folder of how it ended."""
        return ending_of(self.folder, self.summary, self.num_steps)

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, as the run summed them up or, where it never came to that, from its logs."""
        summed = self.summary.get("seconds")
        if summed:
            return {phase: float(took) for phase, took in summed.items() if took}
        phases = dict(self.totals.seconds)
        evaluating = sum(evaluation.seconds for evaluation in self.evals)
        return {**phases, "evaluate": evaluating} if evaluating else phases

    def wall_seconds(self) -> float:
        """Seconds from start to end, or the sum of the phases where the end is not known."""
        started, finished = self.summary.get("started"), self.summary.get("finished")
        if started is not None and finished is not None and finished >= started:
            return float(finished) - float(started)
        return sum(self.seconds().values())

    def tokens(self) -> int:
        """Generated, or trained on where nothing is generated."""
        return int(self.summary.get("tokens") or self.totals.counts.get("tokens", 0))

    def evaluations(self) -> Evaluations:
        """The run's evaluations by their headline metric, with intervals."""
        return evaluations_of(self.evals, self.kind.evals)

    def gain(self) -> tuple[str, float | None, float | None] | None:
        """The headline measurement with its value before and after training; None where nothing was measured."""
        main = self.evals[0].name if self.evals else ""
        same = [evaluation for evaluation in self.evals if evaluation.name == main]
        earlier = same[0].result if same and same[0].step == 0 else {}
        later = same[-1].result if same and same[-1].step > 0 else {}
        before = _measurements(self.summary.get("before") or earlier)
        after = _measurements(self.summary.get("after") or later)
        name = headline(after or before, self.kind.evals)
        return None if name is None else (name, before.get(name), after.get(name))


def _measurements(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def read_run(folder: Path | str, summary: Mapping[str, Any] | None = None) -> RunRecord:
    """`summary` stands for run.json, which a run that ends writes after its report."""
    folder = Path(folder)
    summary = read_summary(folder) if summary is None else summary
    totals, evals = StepTotals(), list[EvalRecord]()
    step_lines: ThinnedLog[tuple[str, bytes]] = ThinnedLog(between=MOST_BETWEEN)
    for position, text in raw_lines(folder / METRICS):
        if b'"eval": ' in text and isinstance(known := recorded(json_object(position, text)), EvalRecord):
            evals.append(known)
            totals.evaluation_seconds += known.seconds if math.isfinite(known.seconds) else 0.0
        else:
            sums = step_sums(position, text)
            totals.add(sums["step"], sums["seconds"], sums["counts"])
            totals.problems += [(sums["step"], tuple(sums["health"]))] if sums["health"] else []
            step_lines.append((position, text))
    config = folder / "config.toml"
    first, last = _samples_at_the_ends(folder / SAMPLES)
    return RunRecord(
        folder=folder,
        summary=summary,
        config=config.read_text(encoding="utf-8", errors="replace") if config.exists() else "",
        steps=tuple(step_reports([json_object(*line) for line in step_lines.items()])),
        evals=tuple(with_size(evals, summary.get("eval_size"))),
        first_samples=first,
        last_samples=last,
        totals=totals,
    )


def ending_of(folder: Path, summary: Mapping[str, Any], step: int) -> RunEnding:
    """How the run in a folder ended, including the sample it was scoring when it was killed."""
    status = status_of(folder, summary)
    was_killed = status == "interrupted" and summary.get("status") in (None, "", "running")
    details = []
    if status in ("failed", "interrupted"):
        with contextlib.suppress(OSError):
            scoring = (folder / JOURNAL).read_bytes()[:LONGEST_CALL].decode("utf-8", "replace").strip("\0 \n")
            details += [f"when it ended, {scoring}"] if scoring else []
        if status == "failed" and (folder / ERROR_LOG).is_file():
            details.append(f"the traceback is in {folder / ERROR_LOG}")
    return RunEnding(status, step, was_killed, str(summary.get("error") or ""), tuple(details))


def verdict(run: RunRecord) -> str:
    """The run in one sentence."""
    length = f"{run.num_steps} step{'s' if run.num_steps != 1 else ''} and {duration(run.wall_seconds())}"
    if not run.steps:
        return {
            "failed": "The run failed before its first step.",
            "interrupted": "The run was interrupted before its first step.",
            "finished": "The run finished without a training step.",
        }.get(run.status, "The run has not made its first step yet.")
    total = int(run.summary.get("total_steps") or run.num_steps)
    reached = f"step {run.num_steps} of {total}, after {duration(run.wall_seconds())}"
    opening = {
        "failed": f"The run failed after {reached}",
        "interrupted": f"The run was interrupted after {reached}",
        "running": f"The run is at {reached}",
    }.get(run.status)
    outcome, remark = _outcome(run)
    if opening:
        return f"{opening}: {outcome}{remark}."
    ended = f"; it ended early: {run.summary['ended']}" if run.summary.get("ended") else ""
    return f"{outcome[0].upper()}{outcome[1:]}{remark}. It took {length}{ended}."


def _outcome(run: RunRecord) -> tuple[str, str]:
    """What changed, and a remark on what was not measured."""
    gain, change = run.gain(), run.evaluations().change
    if len(run.evaluations().measured) > 1:
        return change, ""
    if gain is None:
        goal = run.kind.main[0]
        ends = [metric_text(goal.name, goal.measure(step)) for step in (run.steps[0], run.steps[-1])]
        what = goal.title.lower() if run.kind.name == RL else f"training {goal.title.lower()}"
        return f"{what} went from {ends[0]} to {ends[1]}", " (nothing was evaluated)"
    name, before, after = gain
    label = words(name)
    if after is None:
        return f"{label} was {metric_text(name, before)} before training", " (nothing was evaluated since)"
    if before is None:
        return f"{label} reached {metric_text(name, after)}", " (nothing was evaluated before training)"
    if metric_text(name, before) == metric_text(name, after):
        return f"{label} stayed at {metric_text(name, after)}", ""
    verb = "rose" if after > before else "fell"
    return f"{label} {verb} from {metric_text(name, before)} to {metric_text(name, after)}", ""


def _samples_at_the_ends(
    path: Path,
) -> tuple[tuple[Mapping[str, Any], ...], tuple[Mapping[str, Any], ...]]:
    """The samples of the first and of the last recorded step, without reading what is between."""
    first: list[Mapping[str, Any]] = []
    for line in read_lines(path):
        if first and line["step"] != first[0]["step"]:
            break
        first.append(line)
    return tuple(first), tuple(last_lines(path, lambda line: line["step"]))


def started_on(run: RunRecord) -> str:
    """The day and minute the run began, in universal time; empty where it is not known."""
    began = float(run.summary.get("started") or 0)
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began)) if 0 < began < 4e10 else ""
