"""A run in one line of a list, from its summary and a dozen lines of its log; and the lines of all runs.

A folder may hold thousands of runs: the last written are read first, for as long as somebody can wait, and then beside
the pages until all are read. A run is read again only when its files changed, or when it may have been killed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.pages.board.files import FileState, FoundFolder, GrowingLog, file_state, last_lines, read_small, spaced_lines
from whet.pages.board.reader import CONFIG, RunReader
from whet.record.evaluations import best_remark
from whet.record.health.finding import recorded_finding
from whet.record.log import METRICS, SAMPLES, SUMMARY, EvalRecord, recorded_line
from whet.record.notes import NOTES, notes_from
from whet.record.run import RunRecord, ending_of
from whet.record.run_folder import is_locked
from whet.record.run_kinds import kind_of
from whet.record.text import metric_text, words
from whet.types import StepReport

SPARK = 16  # points of the small curve
MOST_BETWEEN_EVALS, NEAR_BYTES = 200, 1 << 17  # lines and bytes at the end that are looked through for an evaluation
NEAR_THE_END = 12  # lines that are looked through for the last step
FILES = (SUMMARY, METRICS, SAMPLES, CONFIG, NOTES)  # what a list is made from


@dataclass(frozen=True)
class RunGlance:
    """What a list shows of a run."""

    id: str
    name: str
    place: str
    group: str
    status: str
    method: str
    model: str
    step: int
    total_steps: int
    started: float  # seconds since 1970; 0: unknown
    outcome: str  # the headline measurement, before and after
    measure: str  # what the curve shows
    value: str  # its last value
    spark: tuple[float, ...]
    problems: tuple[str, ...]  # names, as of the last step; failed or killed first
    remark: str
    size: int  # bytes of its logs
    seed: str = ""
    data: str = ""
    last: float | None = None  # the last value of the curve
    held_out: float | None = None  # the headline measurement, the newest
    seconds: float | None = None  # from its start to its end
    tags: tuple[str, ...] = ()
    note: str = ""


Signature = tuple[FileState | None, ...]


def signature(folder: Path) -> Signature:
    """Changes when anything does that a list shows."""
    base = str(folder)
    return tuple(file_state(f"{base}/{name}") for name in FILES)


class RunGlances:
    """The lines of all runs. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._known: dict[str, tuple[Signature, RunGlance]] = {}
        self._unread: list[FoundFolder] = []  # the next one last

    def update(self, runs: Iterable[FoundFolder]) -> None:
        """Decide which runs to read next: first those known already, then the most recently written."""
        present, ranked = set(), []
        for run in runs:
            present.add(run.id)
            state, known = signature(run.path), self._known.get(run.id)
            if known is None or known[0] != state or (known[1].status == "running" and not is_locked(run.path)):
                written = max((file.changed for file in state if file is not None), default=0)
                ranked.append((known is not None, written, run.place, run))
        ranked.sort(key=lambda entry: entry[:3])
        with self._lock:
            self._unread = [run for *_, run in ranked]
            for gone in self._known.keys() - present:
                del self._known[gone]

    def read(self, seconds: float = math.inf) -> int:
        """Read runs for about so many seconds; returns how many are left."""
        until = time.monotonic() + seconds
        while True:
            with self._reading:  # one at a time: nothing is left where nothing is unread
                with self._lock:
                    if not self._unread:
                        return 0
                    run = self._unread.pop()
                self._read(run)
            if time.monotonic() > until:
                return len(self._unread)

    def one(self, run: FoundFolder) -> RunGlance:
        """A run as it is now."""
        with self._reading:
            return self._read(run)

    def _read(self, run: FoundFolder) -> RunGlance:
        state, known = signature(run.path), self._known.get(run.id)
        if known is not None and known[0] == state and (known[1].status != "running" or is_locked(run.path)):
            return known[1]
        glance = run_glance(run)
        with self._lock:
            self._known[run.id] = (state, glance)
        return glance

    def known(self) -> list[RunGlance]:
        """Every run that was read, the newest first."""
        with self._lock:
            runs = [glance for _, glance in self._known.values()]
        return sorted(runs, key=lambda run: (-run.started, run.place))


def run_glance(folder: FoundFolder) -> RunGlance:
    """Read what a list shows of a run."""
    reader = RunReader(folder.path)
    summary, remark = reader.summary()
    settings, notes = reader.settings(), notes_from(read_small(folder.path / NOTES, 1 << 20))
    last = _last_step(folder.path / METRICS)
    steps = () if last is None else (last,)
    spaced = [recorded_line(text) for _, text in spaced_lines(folder.path / METRICS, SPARK)]
    drawn = [*(line for line in spaced if isinstance(line, StepReport)), *steps]
    main = kind_of(steps).main[0]
    values = [value for step in drawn if (value := main.measure(step)) is not None and math.isfinite(value)]
    evals = () if summary.get("after") else _outer_evals(folder.path / METRICS)  # a run that ended has summed them up
    gain = RunRecord(folder.path, summary, "", steps, evals).gain()
    started, finished = (float(summary.get(name) or 0) for name in ("started", "finished"))
    states = [file_state(folder.path / name) for name in (METRICS, SAMPLES)]
    ending = ending_of(folder.path, summary, last.step if last else 0)
    return RunGlance(
        id=folder.id,
        name=folder.name,
        place=folder.place,
        group=folder.group,
        status=reader.status(),
        method=str(settings.get("method") or summary.get("method") or "")[:60],
        model=_setting(settings, "model", "name"),
        step=last.step if last else 0,
        total_steps=int(summary.get("total_steps") or 0),
        started=started,
        outcome=_outcome(gain, summary),
        measure=main.label,
        value=metric_text(main.name, values[-1]) if values else "",
        spark=tuple(values),
        problems=(
            *filter(None, [ending.problem]),
            *(recorded_finding(text).name for text in (last.health if last else ())),
        ),
        remark=remark,
        size=sum(state.size for state in states if state is not None),
        seed=str(settings.get("seed", ""))[:40],
        data=_setting(settings, "data", "source"),
        last=values[-1] if values else None,
        held_out=None if gain is None else gain[1] if gain[2] is None else gain[2],
        seconds=finished - started if finished >= started > 0 else None,
        tags=notes.tags,
        note=notes.note,
    )


def _last_step(path: Path) -> StepReport | None:
    for _, text in reversed(last_lines(path, NEAR_THE_END)):
        line = recorded_line(text)
        if isinstance(line, StepReport):
            return line
    return None


def _outer_evals(path: Path) -> tuple[EvalRecord, ...]:
    """The evaluation before the first step and the newest one, where they are near the ends of the log."""
    ends = [*GrowingLog(path).read(NEAR_BYTES).lines[:2], *last_lines(path, MOST_BETWEEN_EVALS, NEAR_BYTES)]
    lines = [recorded_line(text) for text in dict(line for line in ends if b'"eval": ' in line[1]).values()]
    evals = [line for line in lines if isinstance(line, EvalRecord)]
    own = [line for line in evals if line.name == evals[0].name]
    return tuple(own[:1] + own[1:][-1:])


def _setting(settings: dict[str, Any], section: str, name: str) -> str:
    values = settings.get(section)
    return str(values.get(name, "") if isinstance(values, dict) else "")[:200]


def _outcome(gain: tuple[str, float | None, float | None] | None, summary: dict[str, Any]) -> str:
    if gain is None:
        return ""
    name, before, after = gain
    best = best_remark(summary)
    return f"{words(name)} {metric_text(name, before)} → {metric_text(name, after)}" + (f", {best}" if best else "")
