"""A run folder while it is read: quickly at first, then whole, and then whatever is appended.

The first look reads the first and the last lines and some at evenly spaced places, so a page of a run of any length
appears at once. `catch_up` reads all of it in slices of time, keeps envelopes of every column and the sums of the
counts, and afterwards reads only what is new. Nothing here raises for what a folder holds: a line that cannot be read
is counted, and said on the page.
"""

from __future__ import annotations

import math
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from whet import __version__
from whet.pages.board.files import FileState, GrowingLog, file_state, last_lines, read_small, spaced_lines
from whet.pages.run_charts import Envelopes, SeriesPoints, step_columns
from whet.record.evaluations import with_size
from whet.record.flat_rows import ThinnedLog
from whet.record.health.diagnosis import current_spans
from whet.record.health.finding import FindingSpan, recorded_finding
from whet.record.log import METRICS, SUMMARY, EvalRecord, parsed_summary, recorded_line
from whet.record.run import RunRecord, StepTotals
from whet.record.run_folder import is_locked, status_of
from whet.types import StepReport

CONFIG = "config.toml"
FIRST, LAST, SPACED = 50, 200, 400  # lines of the first look
SMALL = 1 << 20  # bytes of a log that is read whole at once
MOST_BETWEEN = 800  # steps kept whole beside the first and the last ones, for the rules of health
MOST_EVALS = 5000
MOST_SCORES = 400_000  # of prompts in evaluations; later ones are judged by their number alone
MOST_SPANS = 200  # problems by name
EXACT_ROWS = 2000  # rows of a zoomed chart that are read from the log itself


@dataclass
class ReadState:
    """Everything known of a log."""

    envelopes: Envelopes = field(default_factory=Envelopes)
    kept: ThinnedLog[StepReport] = field(default_factory=lambda: ThinnedLog(FIRST, LAST, MOST_BETWEEN))
    totals: StepTotals = field(default_factory=StepTotals)
    evals: list[EvalRecord] = field(default_factory=list)
    spans: dict[str, FindingSpan] = field(default_factory=dict)
    num_scores: int = 0
    num_damaged: int = 0
    first_damaged: int = -1  # byte
    last_step: int = 0


@dataclass(frozen=True)
class RunView:
    """A run as a page shows it."""

    record: RunRecord
    status: str
    is_complete: bool  # all of its log was read
    spans: tuple[FindingSpan, ...]
    remarks: tuple[str, ...]  # what could not be read, and why
    generation: int = 0


class RunReader:
    """Keeps up with one run folder. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.RLock()
        self._log = GrowingLog(folder / METRICS)
        self._whole = ReadState()
        self._quick: ReadState | None = None
        self._quick_size = -1
        self.is_complete = False
        self.since = time.monotonic()  # when it was first asked for
        self.generation = 0  # grows with every change that a page would show
        self._summary: tuple[FileState | None, dict[str, Any], str] | None = None
        self._config: tuple[FileState | None, str] | None = None

    # reading

    def catch_up(self, seconds: float = 0.05) -> bool:
        """Read on for about so many seconds; True when everything has been read."""
        until = time.monotonic() + seconds
        with self._lock:
            while True:
                part = self._log.read(1 << 19)
                if part.is_anew:
                    self._whole = ReadState()
                    self._quick, self.is_complete = None, False
                    self.generation += 1
                if part.num_too_long:
                    self._whole.num_damaged += part.num_too_long
                if part.lines:
                    take_lines(self._whole, part.lines)
                    self.generation += 1
                was_complete, self.is_complete = self.is_complete, part.is_end
                if part.is_end and not was_complete:
                    self._quick = None
                    self.generation += 1
                if part.is_end or time.monotonic() > until:
                    return part.is_end

    @property
    def is_behind(self) -> bool:
        """Whether the log has changed since it was last read."""
        return self._log.is_changed

    def _state(self) -> ReadState:
        """The state after reading the whole log, or a first look at it."""
        size = self._log.size
        if not self.is_complete and size <= SMALL:
            self.catch_up(1.0)
        if self.is_complete:
            return self._whole
        if self._quick is None or size != self._quick_size:
            self._quick, self._quick_size = first_look(self.folder / METRICS), size
        return self._quick

    def summary(self) -> tuple[dict[str, Any], str]:
        """run.json, and what is wrong with it."""
        with self._lock:
            state = file_state(self.folder / SUMMARY)
            if self._summary is None or self._summary[0] != state:
                self._summary = (state, *_read_summary(self.folder / SUMMARY, state))
            return self._summary[1], self._summary[2]

    def config(self) -> str:
        """The text of config.toml."""
        with self._lock:
            state = file_state(self.folder / CONFIG)
            if self._config is None or self._config[0] != state:
                content = read_small(self.folder / CONFIG) if state is not None else b""
                self._config = (state, (content or b"").decode("utf-8", "replace"))
            return self._config[1]

    def settings(self) -> dict[str, Any]:
        """config.toml as nested values; empty where it is not TOML."""
        try:
            return tomllib.loads(self.config())
        except (ValueError, RecursionError):
            return {}

    def status(self) -> str:
        """finished, failed, interrupted, running, or damaged where that cannot be told."""
        summary, problem = self.summary()
        status = summary.get("status")
        if not isinstance(status, str) or not status:
            is_alive = is_locked(self.folder)  # one that starts has no summary yet
            return "running" if is_alive else "damaged" if problem else "interrupted"
        return status_of(self.folder, summary)

    # looking

    def view(self) -> RunView:
        """The run as it is now."""
        with self._lock:
            state, (summary, problem) = self._state(), self.summary()
            steps, status = tuple(state.kept.items()), self.status()
            if status != "interrupted":  # a run that was killed did not write that it was
                summary = {**summary, "status": status}
            record = RunRecord(
                folder=self.folder,
                summary=summary,
                config=self.config(),
                steps=steps,
                evals=tuple(with_size(state.evals, summary.get("eval_size"))),
                totals=state.totals,
            )
            remarks = [problem] if problem and status != "running" else []
            remarks += _remarks(state, summary)
            spans = _spans(state, record)
            return RunView(record, status, self.is_complete, spans, tuple(remarks), self.generation)

    def names(self) -> list[str]:
        """The names of the columns."""
        with self._lock:
            return self._state().envelopes.names

    def points(
        self, names: Sequence[str], start: float | None = None, end: float | None = None, most: int = 600
    ) -> dict[str, SeriesPoints]:
        """Columns between two steps, with at most `most` points each."""
        with self._lock:
            envelopes = self._state().envelopes
            zoomed = start is not None or end is not None
            if self.is_complete and zoomed and envelopes.width > 1:
                rows = envelopes.rows_between(start, end)
                if rows <= EXACT_ROWS:
                    envelopes = self._exact(envelopes, start, end)
            return {name: envelopes.points(name, start, end, most) for name in names}

    def last_values(self, name: str, count: int) -> list[float]:
        """The last `count` values of a column."""
        with self._lock:
            return self._state().envelopes.last_values(name, count)

    def _exact(self, envelopes: Envelopes, start: float | None, end: float | None) -> Envelopes:
        """The rows of a few steps, read from the log again."""
        log, state = GrowingLog(self.folder / METRICS), ReadState()
        log.position = envelopes.place_of(start if start is not None else -math.inf)
        while state.envelopes.num_rows < 2 * EXACT_ROWS:
            part = log.read()
            take_lines(state, part.lines)
            if part.is_end or part.is_anew or (end is not None and state.last_step > end):
                break
        return state.envelopes


def first_look(path: Path) -> ReadState:
    """A log without reading all of it."""
    state = ReadState()
    head = GrowingLog(path).read(1 << 16).lines[:FIRST]
    lines = {**dict(head), **dict(spaced_lines(path, SPACED)), **dict(last_lines(path, LAST))}
    take_lines(state, sorted(lines.items()))
    return state


def take_lines(state: ReadState, lines: Sequence[tuple[int, bytes]]) -> None:
    """Add lines of metrics.jsonl; one that is neither a step nor an evaluation is counted."""
    steps, places, rows = [], [], []
    for offset, text in lines:
        if not text.strip():
            continue
        line = recorded_line(text)
        if isinstance(line, EvalRecord):
            if len(state.evals) < MOST_EVALS:
                state.totals.evaluation_seconds += line.seconds if math.isfinite(line.seconds) else 0.0
                state.num_scores += sum(map(len, line.scores.values()))
                state.evals.append(line if state.num_scores <= MOST_SCORES else replace(line, scores={}))
        elif line is None:
            state.num_damaged += 1
            state.first_damaged = offset if state.first_damaged < 0 else state.first_damaged
        else:
            _count(state, line)
            steps.append(float(line.step))
            places.append(offset)
            rows.append(step_columns(line))
    if rows:
        state.envelopes.add(steps, places, rows)


def _count(state: ReadState, step: StepReport) -> None:
    state.last_step = max(state.last_step, step.step)
    state.totals.add(step.step, step.seconds, step.counts)
    state.kept.append(step)
    for text in step.health:
        finding = recorded_finding(text)
        span = state.spans.get(finding.name)
        if span is not None or len(state.spans) < MOST_SPANS:
            first, count = (span.first, span.num_steps + 1) if span is not None else (step.step, 1)
            state.spans[finding.name] = FindingSpan(finding, first, step.step, count, False)


def _read_summary(path: Path, state: FileState | None) -> tuple[dict[str, Any], str]:
    if state is None:
        return {}, f"There is no {SUMMARY}: the run was killed before it began, or the file was deleted."
    content = read_small(path)
    if content is None:
        return {}, f"{SUMMARY} is too large or cannot be read."
    try:
        return parsed_summary(content), ""
    except ValueError as error:
        return {}, f"{SUMMARY} {error}."


def _remarks(state: ReadState, summary: Mapping[str, Any]) -> list[str]:
    remarks = []
    if state.num_damaged:
        lines = "1 line" if state.num_damaged == 1 else f"{state.num_damaged:,} lines"
        remarks.append(
            f"{lines} of {METRICS} could not be read and {'is' if state.num_damaged == 1 else 'are'} left out, the "
            f"first at byte {max(state.first_damaged, 0):,}."
        )
    if state.envelopes.num_left_out:
        remarks.append("The run measures more quantities than the board keeps: some are not shown.")
    wrote = str(summary.get("whet", ""))[:40]
    if is_newer(wrote, __version__):
        remarks.append(
            f"whet {wrote} wrote this run and this board is whet {__version__}: what is new in it is not shown. "
            "pip install -U whet"
        )
    return remarks


def is_newer(version: str, than: str) -> bool:
    """Whether a version comes after another, by its numbers; False where it has none."""

    def parts(version: str) -> tuple[int, ...]:
        head = version.split("+")[0].split(".")
        return tuple(int(digits[:9]) for digits in head if digits.isascii() and digits.isdigit())

    return parts(version) > parts(than) if parts(version) else False


def _spans(state: ReadState, record: RunRecord) -> tuple[FindingSpan, ...]:
    """Every problem that any step recorded or that still holds, then the notes of the last step."""
    if not record.steps:
        return ()
    try:
        spans = current_spans(state.spans, record.steps, record.dtype, record.settings, record.evals)
    except (ValueError, TypeError, KeyError, ArithmeticError):  # numbers of a log that no run of ours wrote
        spans = tuple(state.spans.values())
    return tuple(sorted(spans, key=lambda span: (not span.finding.is_problem, not span.holds)))
