"""A run in one line of a list, from its summary and a dozen lines of its log."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from whet.pages.board.files import FileState, file_state
from whet.pages.board.folders import FoundFolder
from whet.pages.board.growing_log import last_lines, spaced_lines
from whet.pages.board.reader import CONFIG, RunReader, parsed_line
from whet.record.evaluations import best_remark
from whet.record.health import recorded_finding
from whet.record.log import METRICS, SAMPLES, SUMMARY
from whet.record.run import RunRecord
from whet.record.run_kinds import kind_of
from whet.record.text import metric_text, words
from whet.types import StepReport

SPARK = 24  # points of the small curve
NEAR_THE_END = 12  # lines that are looked through for the last step


@dataclass(frozen=True)
class RunGlance:
    """What a list says of a run."""

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
    problems: tuple[str, ...]  # names, as of the last step
    remark: str
    size: int  # bytes of its logs
    seed: str = ""


def signature(folder: Path) -> tuple[FileState | None, ...]:
    """Changes when anything does that a page shows."""
    return tuple(file_state(folder / name) for name in (SUMMARY, METRICS, SAMPLES, CONFIG))


def run_glance(found: FoundFolder) -> RunGlance:
    """Read what a list says of a run."""
    reader = RunReader(found.path)
    summary, remark = reader.summary()
    settings = reader.settings()
    tail = [parsed_line(text) for _, text in last_lines(found.path / METRICS, NEAR_THE_END)]
    steps = [each for each in tail if isinstance(each, StepReport)]
    spaced = [parsed_line(text) for _, text in spaced_lines(found.path / METRICS, SPARK)]
    drawn = [*(each for each in spaced if isinstance(each, StepReport)), *steps[-1:]]
    main = kind_of(steps).main[0]
    values = [value for each in drawn if (value := main.measure(each)) is not None and math.isfinite(value)]
    last = steps[-1] if steps else None
    model = settings.get("model")
    states = [file_state(found.path / name) for name in (METRICS, SAMPLES)]
    return RunGlance(
        id=found.id,
        name=found.name,
        place=found.place,
        group=found.group,
        status=reader.status(),
        method=str(settings.get("method") or summary.get("method") or "")[:60],
        model=str(model.get("name", "") if isinstance(model, dict) else "")[:200],
        step=last.step if last else 0,
        total_steps=int(summary.get("total_steps") or 0),
        started=float(summary.get("started") or 0),
        outcome=_outcome(RunRecord(found.path, summary, "", tuple(steps), (), (), ())),
        measure=main.label,
        value=metric_text(main.name, values[-1]) if values else "",
        spark=tuple(values),
        problems=tuple(recorded_finding(text).name for text in last.health) if last else (),
        remark=remark,
        size=sum(each.size for each in states if each is not None),
        seed=str(settings.get("seed", "")),
    )


def _outcome(record: RunRecord) -> str:
    gain = record.gain()
    if gain is None:
        return ""
    name, before, after = gain
    best = best_remark(record.summary)
    return f"{words(name)} {metric_text(name, before)} → {metric_text(name, after)}" + (f", {best}" if best else "")
