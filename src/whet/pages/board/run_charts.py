"""Which charts a run has, and their specs for the steps that are looked at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whet.pages.board.envelopes import SeriesPoints
from whet.pages.board.reader import RunReader, RunView
from whet.pages.chart_specs import ChartSpec, chart_spec
from whet.pages.charts import NUM_TONES, value_scale
from whet.pages.run_report import PHASE_TONES
from whet.record.run_kinds import RL
from whet.record.text import label, number, ordered, words

POINTS = 400  # of a chart when a page is opened
MOST_POINTS = 4000
TALL = 300
HIDDEN = ("completion_length", "grad_norm")


@dataclass(frozen=True)
class PlannedLine:
    name: str
    column: str
    low: str = ""  # columns of its band; empty: the extremes of its own values
    high: str = ""
    tone: int = 0
    dashed: bool = False


@dataclass(frozen=True)
class PlannedChart:
    """A chart before its values are looked up."""

    key: str  # the same for as long as the run has it
    title: str
    unit: str = ""
    lines: tuple[PlannedLine, ...] = ()
    is_wide: bool = False
    is_stacked: bool = False
    evals: str = ""  # the metric of held-out evaluations that is drawn too


@dataclass(frozen=True)
class BoardFigure:
    """A chart on a page."""

    key: str
    title: str
    unit: str
    last: str
    note: str
    is_wide: bool
    spec: Mapping[str, Any]


def main_charts(view: RunView) -> list[PlannedChart]:
    """The large one: what is trained, and what is measured of it on held-out data."""
    kind, gain = view.record.kind, view.record.gain()
    lines = tuple(
        PlannedLine(
            f"training {each.title.lower()}" if kind.name != RL else each.title.lower(), each.name, tone=place + 1
        )
        for place, each in enumerate(kind.main)
    )
    held_out = gain[0] if gain is not None and view.record.evals else ""
    names = [f"held-out {words(held_out)}"] if held_out else []
    title = " and ".join([*names, *(line.name for line in lines)][:2])
    title = f"{title[:1].upper()}{title[1:]}"
    return [PlannedChart("main", title, "by step", lines, is_wide=True, evals=held_out)]


def part_charts(view: RunView, names: Sequence[str]) -> list[PlannedChart]:
    """For each part of the reward how it is distributed: its whole range, its middle half, mean and median."""
    parts = list(
        dict.fromkeys(name.split("/")[1] for name in names if name.startswith("spread/") and name.count("/") == 2)
    )
    charts = []
    for place, part in enumerate(part for part in parts if part != "total" or len(parts) > 2 or len(parts) == 1):
        at = f"spread/{part}/"
        lines = (
            PlannedLine("mean in its range", f"{at}mean", f"{at}min", f"{at}max", place),
            PlannedLine("median in its middle half", f"{at}median", f"{at}q1", f"{at}q3", place, dashed=True),
        )
        title = "Reward" if part == "total" else f"Reward: {part}"
        charts.append(PlannedChart(f"spread/{part}", title, "distribution in a step", lines))
    return charts


def kind_charts(view: RunView, names: Sequence[str]) -> list[PlannedChart]:
    """What is looked at first in this kind of run."""
    there = set(names)
    return [
        PlannedChart(each.name, each.title, each.unit, (PlannedLine(each.title.lower(), each.name),))
        for each in view.record.kind.figures
        if each.name in there
    ]


def time_charts(view: RunView, names: Sequence[str]) -> list[PlannedChart]:
    """Where the time of each step went, one phase upon the other."""
    spent = {
        name: view.record.totals.seconds.get(name.removeprefix("seconds/"), 0.0)
        for name in names
        if name.startswith("seconds/")
    }
    phases = [phase for phase, _ in ordered({name.removeprefix("seconds/"): took for name, took in spent.items()})]
    phases += [name.removeprefix("seconds/") for name in spent if name.removeprefix("seconds/") not in phases]
    lines = tuple(PlannedLine(label(phase), f"seconds/{phase}", tone=PHASE_TONES.get(phase, 7)) for phase in phases)
    return (
        [PlannedChart("time", "Time of a step", "seconds, by phase", lines, is_wide=True, is_stacked=True)]
        if lines
        else []
    )


def other_charts(view: RunView, names: Sequence[str]) -> list[PlannedChart]:
    """Whatever else was measured, by name."""
    kind = view.record.kind
    known = {each.name for each in (*kind.main, *kind.figures)} | set(HIDDEN)
    plain = sorted(name for name in names if name not in known and not name.startswith(("spread/", "seconds/")))
    return [PlannedChart(name, words(name), "", (PlannedLine(words(name), name),)) for name in plain]


def all_charts(reader: RunReader, view: RunView) -> dict[str, PlannedChart]:
    names = reader.names()
    found = (*main_charts(view), *part_charts(view, names), *kind_charts(view, names), *time_charts(view, names))
    return {each.key: each for each in (*found, *other_charts(view, names))}


def drawn_charts(
    reader: RunReader,
    view: RunView,
    plans: Sequence[PlannedChart],
    start: float | None = None,
    end: float | None = None,
    most: int = POINTS,
) -> list[BoardFigure]:
    """Charts with their values between two steps; one without any is left out."""
    columns = {
        column for plan in plans for line in plan.lines for column in (line.column, line.low, line.high) if column
    }
    points = reader.points(sorted(columns), start, end, most)
    figures = [_drawn(view, plan, points) for plan in plans]
    return [figure for figure in figures if figure is not None]


def _drawn(view: RunView, plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> BoardFigure | None:
    lines = _stacked(plan, points) if plan.is_stacked else _lines(plan, points)
    if plan.evals:
        lines = [*_held_out(view, plan.evals), *lines]
    values = [value for line in lines for value in line["y"] if value is not None]
    if not values:
        return None
    first, unit = points.get(plan.lines[0].column, SeriesPoints()), plan.unit
    share = plan.is_wide and min(values) >= 0 and 0.1 < max(values) <= 1
    log = not plan.is_wide and not plan.is_stacked and len(plan.lines) == 1 and value_scale(values, (0, 1)).log
    if log:
        unit = f"{unit}, log scale" if unit else "log scale"
    noisy = not plan.is_stacked and "spread/" not in plan.key and plan.lines[0].column != "learning_rate"
    spec: ChartSpec = chart_spec(lines, unit=share, log=log, smooth=noisy)
    spec["height"] = TALL if plan.is_wide else 200
    if plan.is_stacked:
        spec["y"]["min"] = 0
    ended = [value for value in first.y if value is not None]
    return BoardFigure(
        plan.key,
        plan.title,
        unit,
        number(ended[-1]) if ended and not plan.is_wide and not plan.is_stacked else "",
        "",
        plan.is_wide,
        spec,
    )


def _lines(plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> list[dict[str, Any]]:
    lines = []
    for line in plan.lines:
        found = points[line.column]
        if not found.x:
            continue
        drawn: dict[str, Any] = {"name": line.name, "tone": line.tone % NUM_TONES, "x": found.x, "y": found.y}
        if line.dashed:
            drawn["dashed"] = True
        low, high = points.get(line.low), points.get(line.high)
        if low is not None and high is not None and len(low.x) == len(high.x) == len(found.x):
            drawn |= {"low": low.y, "high": high.y}
        elif found.is_merged and not line.low:
            drawn |= {"low": found.low, "high": found.high}
        lines.append(drawn)
    return lines


def _stacked(plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> list[dict[str, Any]]:
    """Each line on top of those before it; `own` is what it is by itself."""
    places = sorted({x for line in plan.lines for x in points[line.column].x})
    below = [0.0] * len(places)
    drawn = []
    for line in plan.lines:
        found = points[line.column]
        own = dict(zip(found.x, found.y, strict=True))
        values = [own.get(x) or 0.0 for x in places]
        above = [one + more for one, more in zip(below, values, strict=True)]
        drawn.append(
            {"name": line.name, "tone": line.tone, "x": places, "y": above, "low": below, "high": above, "own": values}
        )
        below = above
    return drawn


def _held_out(view: RunView, metric: str) -> list[dict[str, Any]]:
    by_name: dict[str, list[tuple[float, float]]] = {}
    for each in view.record.evals:
        value = each.result.get(metric)
        if value is not None and math.isfinite(value):
            name = words(metric) if each.name in ("eval", "held_out") else f"{each.name} {words(metric)}"
            by_name.setdefault(f"held-out {name}", []).append((float(each.step), value))
    return [
        {
            "name": name,
            "tone": place * 2 % NUM_TONES,
            "marked": True,
            "x": [x for x, _ in found],
            "y": [y for _, y in found],
        }
        for place, (name, found) in enumerate(by_name.items())
    ]
