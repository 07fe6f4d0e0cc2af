"""Which charts a run has, and their specs for the steps that are looked at: in report.html and on the board alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whet.pages.chart_specs import NUM_TONES, ChartSeries, chart, fits_unit, line, reaches, spans_chart
from whet.pages.render import Figure
from whet.record.evaluations import Evaluations, measured_by
from whet.record.log import EvalRecord
from whet.record.run import RunRecord
from whet.record.run_kinds import RL, RUN_KINDS, StepMetric
from whet.record.text import label, number, ordered, percent, words
from whet.types import StepReport

MOST_STRETCHES = 16_384
MOST_COLUMNS = 400  # names that are kept; a run that invents a name per step must not fill the memory
DIGITS = 6
Floats = np.ndarray
TALL, LOW = 300, 200  # pixels of a chart that takes the width of the page, and of one that does not
HIDDEN = ("completion_length",)
ENDS = ("min", "q1", "median", "q3", "max", "mean", "flat")  # of a recorded distribution
PHASE_TONES = {
    "rollout": 0,
    "reward": 1,
    "reward_behind": 1,
    "train": 2,
    "save": 3,
    "evaluate": 4,
    "reference": 5,
    "start_up": 6,
    "teacher": 7,
}
# (key, title, unit, (name of the line, name in `StepReport.machine`)) of the charts of the machine
MACHINE = (
    ("memory", "Memory", "GiB", (("this process", "memory"), ("GPU", "gpu_memory"))),
    ("cores", "Busy cores", "mean of the step", (("cores", "cores"),)),
    ("gpu_use", "GPU use", "share of the time", (("GPU use", "gpu_use"),)),
)
STEP_METRICS: dict[str, StepMetric] = {
    metric.name: metric for kind in RUN_KINDS.values() for metric in (*kind.main, *kind.line, *kind.figures)
}


@dataclass
class Column:
    """The extremes, sums and counts of a column by stretch."""

    low: Floats
    high: Floats
    total: Floats
    count: Floats


@dataclass
class SeriesPoints:
    """What is drawn: means, and where several rows share a point, their extremes."""

    x: list[float] = field(default_factory=list)
    y: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    is_merged: bool = False  # some point stands for several rows


class Envelopes:
    """Columns of a long log in bounded memory: per stretch of rows the lowest, the highest and the mean value.

    A stretch is one row at first. When there are too many, neighbours are merged and every stretch is twice as wide, so
    no extreme is ever lost. Rows are added in order; the first `size` entries of the arrays are in use.
    """

    def __init__(self, most: int = MOST_STRETCHES) -> None:
        self._most = most  # even
        self.width = 1  # rows of a stretch
        self.num_rows = 0
        self.num_left_out = 0  # names beyond MOST_COLUMNS
        self._steps, self._places = np.zeros(0), np.zeros(0, np.int64)  # of each stretch's first row
        self._columns: dict[str, Column] = {}

    @property
    def size(self) -> int:
        """The number of stretches so far."""
        return -(-self.num_rows // self.width)

    @property
    def names(self) -> list[str]:
        """The columns, in the order they first appear."""
        return list(self._columns)

    def add(self, steps: Sequence[float], places: Sequence[int], rows: Sequence[Mapping[str, float]]) -> None:
        """Rows with their steps and the places of their lines."""
        for start in range(0, len(rows), 1024):
            end = start + 1024
            self._add(np.asarray(steps[start:end], float), np.asarray(places[start:end], np.int64), rows[start:end])

    def _add(self, steps: Floats, places: Floats, rows: Sequence[Mapping[str, float]]) -> None:
        while -(-(self.num_rows + len(rows)) // self.width) > self._most:
            self._merge_neighbours()
        stretches = (self.num_rows + np.arange(len(rows))) // self.width
        first, cuts = stretches[0], np.flatnonzero(np.diff(stretches, prepend=stretches[0] - 1))
        self._reserve(int(stretches[-1]) + 1)
        begins = (self.num_rows + np.arange(len(rows))) % self.width == 0
        self._steps[stretches[begins]], self._places[stretches[begins]] = steps[begins], places[begins]
        used = slice(int(first), int(stretches[-1]) + 1)
        for name in dict.fromkeys(name for row in rows for name in row):
            column = self._column(name)
            if column is None:
                continue
            values = np.array([row.get(name, np.nan) for row in rows], float)
            values[~np.isfinite(values)] = np.nan
            column.low[used] = np.fmin(column.low[used], np.fmin.reduceat(values, cuts))
            column.high[used] = np.fmax(column.high[used], np.fmax.reduceat(values, cuts))
            column.total[used] += np.add.reduceat(np.nan_to_num(values), cuts)
            column.count[used] += np.add.reduceat(np.isfinite(values).astype(np.int64), cuts)
        self.num_rows += len(rows)

    def _column(self, name: str) -> Column | None:
        if name not in self._columns:
            if len(self._columns) >= MOST_COLUMNS:
                self.num_left_out += 1
                return None
            length = len(self._steps)
            empty = np.full(length, np.nan, np.float32)
            self._columns[name] = Column(empty, empty.copy(), np.zeros(length), np.zeros(length, np.int32))
        return self._columns[name]

    def _reserve(self, length: int) -> None:
        have = len(self._steps)
        if have >= length:
            return
        more = max(length, 2 * have, 256) - have
        self._steps, self._places = (
            np.append(self._steps, np.zeros(more)),
            np.append(self._places, np.zeros(more, np.int64)),
        )
        for column in self._columns.values():
            column.low = np.append(column.low, np.full(more, np.nan, np.float32))
            column.high = np.append(column.high, np.full(more, np.nan, np.float32))
            column.total = np.append(column.total, np.zeros(more))
            column.count = np.append(column.count, np.zeros(more, np.int32))

    def _merge_neighbours(self) -> None:
        size = self.size
        self.width *= 2
        half = -(-size // 2)
        self._steps[:half], self._places[:half] = self._steps[:size:2].copy(), self._places[:size:2].copy()
        for column in self._columns.values():
            for name, join, rest in (
                ("low", np.fmin, np.nan),
                ("high", np.fmax, np.nan),
                ("total", np.add, 0),
                ("count", np.add, 0),
            ):
                values = getattr(column, name)
                left, right = values[:size:2].copy(), values[1:size:2].copy()
                left[: len(right)] = join(left[: len(right)], right)
                values[:half], values[half:size] = left, rest

    def points(self, name: str, start: float | None, end: float | None, most: int) -> SeriesPoints:
        """A column between two steps, with at most `most` points."""
        column = self._columns.get(name)
        first, last = self._range(start, end)
        if column is None or first >= last:
            return SeriesPoints()
        group = max(1, -(-(last - first) // most))
        cuts = np.arange(first, last, group)
        edge = slice(0, last)
        count = np.add.reduceat(column.count[edge], cuts)
        total = np.add.reduceat(column.total[edge], cuts)
        low, high = np.fmin.reduceat(column.low[edge], cuts), np.fmax.reduceat(column.high[edge], cuts)
        there = count > 0
        mean = total[there] / count[there]
        return SeriesPoints(
            self._steps[cuts][there].tolist(),
            _rounded(mean),
            _rounded(low[there]),
            _rounded(high[there]),
            bool((count > 1).any()),
        )

    def place_of(self, step: float) -> int:
        """The byte offset from which to read the log to find a step."""
        size = self.size
        index = int(np.searchsorted(self._steps[:size], step, "right")) - 1
        return int(self._places[max(index, 0)]) if size else 0

    def rows_between(self, start: float | None, end: float | None) -> int:
        """About how many rows have a step between these."""
        first, last = self._range(start, end)
        return int(min((last - first) * self.width, self.num_rows))

    def last_values(self, name: str, count: int) -> list[float]:
        """The means of the last stretches that have any value."""
        column, size = self._columns.get(name), self.size
        if column is None:
            return []
        there = np.flatnonzero(column.count[:size])[-count:]
        return [float(value) for value in column.total[there] / column.count[there]]

    def _range(self, start: float | None, end: float | None) -> tuple[int, int]:
        steps = self._steps[: self.size]
        # one stretch more on either side: a line must reach the edges of the chart
        first = 0 if start is None else max(0, int(np.searchsorted(steps, start, "right")) - 2)
        last = len(steps) if end is None else min(len(steps), int(np.searchsorted(steps, end, "right")) + 1)
        return first, last


def _rounded(values: Floats) -> list[float | None]:
    """Values rounded to what a screen can show; None where there is no value."""
    size = np.abs(values, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        power = np.where(size > 0, np.clip(np.floor(np.log10(size)), -290, 290), 0.0)
    unit = 10.0 ** (power - DIGITS + 1)
    short = np.round(values / unit) * unit
    # a unit such as 1e-6 is not exact in binary: the last digits are cut once more
    there = np.isfinite(short)
    return [float(f"{value:.7g}") if ok else None for value, ok in zip(short.tolist(), there.tolist(), strict=True)]


@dataclass(frozen=True)
class PlannedLine:
    """A line before its values are looked up."""

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

    @property
    def columns(self) -> list[str]:
        """The columns that the chart is drawn from."""
        return [name for line in self.lines for name in (line.column, line.low, line.high) if name]


@dataclass(frozen=True)
class RunCharts:
    """Every chart of a run, by the section of the page that shows it."""

    curves: list[PlannedChart] = field(default_factory=list)
    parts: list[PlannedChart] = field(default_factory=list)
    times: list[PlannedChart] = field(default_factory=list)
    others: list[PlannedChart] = field(default_factory=list)

    def by_key(self) -> dict[str, PlannedChart]:
        """All charts by their key."""
        return {plan.key: plan for plan in (*self.curves, *self.parts, *self.times, *self.others)}


def step_columns(step: StepReport) -> dict[str, float]:
    """A step as columns: what its kind of run shows, its metrics, and reward/PART, spread/PART/END, machine/NAME and
    seconds/PHASE."""
    row = dict(step.metrics)
    for name, metric in STEP_METRICS.items():
        value = metric.measure(step)
        if value is not None:
            row[name] = value
    for part, value in step.reward.items():
        row["reward" if part == "total" else f"reward/{part}"] = value
    for part, ends in step.spread.items():
        row |= {f"spread/{part}/{end}": ends[end] for end in ENDS if end in ends}
    row |= {f"machine/{name}": value for name, value in step.machine.items()}
    return row | {f"seconds/{phase}": took for phase, took in step.seconds.items()}


def columns_of(steps: Sequence[StepReport]) -> Envelopes:
    """The columns of steps that are all there."""
    envelopes = Envelopes()
    envelopes.add([float(step.step) for step in steps], [0] * len(steps), [step_columns(step) for step in steps])
    return envelopes


def planned_charts(record: RunRecord, names: Sequence[str]) -> RunCharts:
    """The charts of a run whose steps have columns of these names."""
    kind, parts = record.kind, _part_charts(names)
    curves = [
        PlannedChart(metric.name, metric.title, metric.unit, (PlannedLine(metric.title.lower(), metric.name),))
        for metric in kind.figures
        if metric.name in names
    ]
    known = {metric.name for metric in (*kind.main, *kind.figures)} | set(HIDDEN)
    known |= {column for plan in parts for column in plan.columns}
    known |= {f"reward/{plan.key.removeprefix('spread/')}" for plan in parts}
    others = sorted(
        name for name in names if name not in known and not name.startswith(("spread/", "seconds/", "machine/"))
    )
    return RunCharts(
        [main_chart(record), *curves],
        parts,
        [*_time_charts(record, names), *_machine_charts(names)],
        [PlannedChart(name, words(name), "", (PlannedLine(words(name), name),)) for name in others],
    )


def main_chart(record: RunRecord) -> PlannedChart:
    """The large one: what is trained, and what is measured of it on held-out data."""
    kind, gain = record.kind, record.gain()
    prefix = "" if kind.name == RL else "training "
    lines = tuple(
        PlannedLine(f"{prefix}{metric.title.lower()}", metric.name, tone=tone)
        for tone, metric in enumerate(kind.main, 1)
    )
    held_out = gain[0] if gain is not None and record.evals else ""
    names = [*([f"held-out {words(held_out)}"] if held_out else ()), *(line.name for line in lines)]
    title = " and ".join(names[:2])
    return PlannedChart("main", f"{title[:1].upper()}{title[1:]}", "", lines, is_wide=True, evals=held_out)


def _part_charts(names: Sequence[str]) -> list[PlannedChart]:
    """For each part of the reward its range, middle half, mean and median where they were recorded, else its mean."""
    spread = list(dict.fromkeys(name.split("/")[1] for name in names if name.startswith("spread/")))
    spread = [part for part in spread if part != "total" or len(spread) != 2]
    charts = []
    for tone, part in enumerate(spread):
        at = f"spread/{part}/"
        lines = (
            PlannedLine("mean in its range", f"{at}mean", f"{at}min", f"{at}max", tone),
            PlannedLine("median in its middle half", f"{at}median", f"{at}q1", f"{at}q3", tone, dashed=True),
        )
        title = "Reward" if part == "total" else f"Reward: {part}"
        charts.append(PlannedChart(f"spread/{part}", title, "distribution in a step", lines))
    means = [name for name in names if name.startswith("reward/") and name.removeprefix("reward/") not in spread]
    if not spread and len(means) == 1:
        return []  # the one part is the reward, which is drawn already
    return charts + [
        PlannedChart(name, f"Reward: {name.removeprefix('reward/')}", "mean of the step", (PlannedLine(name, name),))
        for name in means
    ]


def _time_charts(record: RunRecord, names: Sequence[str]) -> list[PlannedChart]:
    """Charts of where the time of each step went, with the phases stacked."""
    phases = [name.removeprefix("seconds/") for name in names if name.startswith("seconds/")]
    spent = {phase: record.totals.seconds.get(phase, 0.0) for phase in phases}
    listed = [phase for phase, _ in ordered(spent)]
    listed += [phase for phase in phases if phase not in listed]
    lines = tuple(PlannedLine(label(phase), f"seconds/{phase}", tone=PHASE_TONES.get(phase, 7)) for phase in listed)
    if not lines:
        return []
    return [PlannedChart("time", "Time of a step", "seconds, by phase", lines, is_wide=True, is_stacked=True)]


def _machine_charts(names: Sequence[str]) -> list[PlannedChart]:
    """What each step took of the machine."""
    charts = []
    for key, title, unit, lines in MACHINE:
        known = [(name, f"machine/{column}") for name, column in lines if f"machine/{column}" in names]
        planned = tuple(PlannedLine(name, column, tone=tone) for tone, (name, column) in enumerate(known))
        charts += [PlannedChart(f"machine/{key}", title, unit, planned)] if planned else []
    return charts


def typical_step(steps: Sequence[StepReport]) -> list[Figure]:
    """When each phase of a step ran, and what went on beside it: of the step that took the median time."""
    timed = sorted((step for step in steps if step.timeline), key=lambda step: sum(step.seconds.values()))
    if not timed:
        return []
    step = timed[(len(timed) - 1) // 2]
    rows: dict[str, list[tuple[float, float]]] = {}
    for phase, start, end in step.timeline:
        rows.setdefault(phase, []).append((start, end))
    listed = sorted(rows, key=lambda phase: rows[phase][0])
    spec = spans_chart(((label(phase), PHASE_TONES.get(phase, 7), rows[phase]) for phase in listed), "s")
    unit = f"seconds of step {step.step}, the median; what runs at the same time stands below each other"
    return [Figure("A typical step", unit, spec, is_wide=True)]


def drawn_charts(
    plans: Iterable[PlannedChart], points: Mapping[str, SeriesPoints], evals: Sequence[EvalRecord] = ()
) -> list[Figure]:
    """Charts with their values; one without any is left out."""
    figures = [_drawn(plan, points, evals) for plan in plans]
    return [figure for figure in figures if figure is not None]


def _drawn(plan: PlannedChart, points: Mapping[str, SeriesPoints], evals: Sequence[EvalRecord]) -> Figure | None:
    lines = _stacked(plan, points) if plan.is_stacked else _lines(plan, points)
    if plan.evals:
        lines = [*held_out_lines(evals, plan.evals), *lines]
    values = [value for line in lines for value in line["y"] if value is not None]
    if not values:
        return None
    is_single = not plan.is_wide and len(plan.lines) == 1
    log = is_single and reaches(values)
    spec = chart(
        lines,
        unit=plan.is_wide and not plan.is_stacked and fits_unit(values),
        log=log,
        smooth=not plan.is_stacked and "spread/" not in plan.key and plan.lines[0].column != "learning_rate",
        height=TALL if plan.is_wide else LOW,
    )
    if plan.is_stacked:
        spec["y"]["min"] = 0
    shown = [value for value in points[plan.lines[0].column].y if value is not None]
    intervals = "95% intervals" if any(line.get("marked") and line.get("low") for line in lines) else ""
    units = (plan.unit, "log scale" if log else "", intervals)
    return Figure(
        plan.title,
        ", ".join(unit for unit in units if unit),
        spec,
        last=number(shown[-1]) if shown and not plan.is_wide else "",
        note=_note(plan, points) if shown and not plan.is_wide else "",
        key=plan.key,
        is_wide=plan.is_wide,
    )


def _note(plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> str:
    first = plan.lines[0]
    if first.low:
        ends = [number(points[column].y[-1]) for column in (first.low, first.high) if points[column].y]
        flat = points.get(f"{plan.key}/flat", SeriesPoints()).y
        agree = f"; {percent(flat[-1])} of groups flat" if flat else ""
        return f"last step: min {ends[0]}, max {ends[1]}{agree}" if len(ends) == 2 else ""
    drawn = points[first.column]
    low = min((value, x) for value, x in zip(drawn.low, drawn.x, strict=True) if value is not None)
    high = max((value, -x) for value, x in zip(drawn.high, drawn.x, strict=True) if value is not None)
    return f"min {number(low[0])} at step {low[1]:.0f} · max {number(high[0])} at step {-high[1]:.0f}"


def _lines(plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> list[ChartSeries]:
    lines: list[ChartSeries] = []
    for planned in plan.lines:
        drawn = points[planned.column]
        if not drawn.x:
            continue
        series: ChartSeries = {"name": planned.name, "tone": planned.tone % NUM_TONES, "x": drawn.x, "y": drawn.y}
        if planned.dashed:
            series["dashed"] = True
        low, high = points.get(planned.low), points.get(planned.high)
        if low is not None and high is not None and len(low.x) == len(high.x) == len(drawn.x):
            series |= {"low": low.y, "high": high.y}
        elif drawn.is_merged and not planned.low:
            series |= {"low": drawn.low, "high": drawn.high}
        lines.append(series)
    return lines


def _stacked(plan: PlannedChart, points: Mapping[str, SeriesPoints]) -> list[ChartSeries]:
    """Each line stacked on those before it; `own` is its value by itself."""
    steps = sorted({x for planned in plan.lines for x in points[planned.column].x})
    below = [0.0] * len(steps)
    stacked: list[ChartSeries] = []
    for planned in plan.lines:
        drawn = points[planned.column]
        own = dict(zip(drawn.x, drawn.y, strict=True))
        values = [own.get(x) or 0.0 for x in steps]
        above = [one + more for one, more in zip(below, values, strict=True)]
        edges = {"low": below, "high": above, "own": values}
        stacked.append({"name": planned.name, "tone": planned.tone, "x": steps, "y": above, **edges})
        below = above
    return stacked


def held_out_lines(evals: Sequence[EvalRecord], metric: str) -> list[ChartSeries]:
    """A line per eval set: the metric at the steps at which it was measured."""
    lines: list[ChartSeries] = []
    for name in dict.fromkeys(evaluation.name for evaluation in evals):
        evaluations = measured_by([evaluation for evaluation in evals if evaluation.name == name], metric)
        label = words(metric) if name == "eval" else f"{name} {words(metric)}"
        if evaluations.measured:
            lines.append(evaluation_line(f"held-out {label}", evaluations, 2 * len(lines)))
    return lines


def evaluation_line(
    name: str, evaluations: Evaluations, tone: int, x_of_step: Callable[[float], float] = float
) -> ChartSeries:
    """Evaluations with their 95% intervals where they are known, and the best of several marked.

    `x_of_step` gives the horizontal position of a step.
    """
    measured, estimates = evaluations.measured, [point.estimate for point in evaluations.measured]
    look: dict[str, Any] = {"marked": True}
    if any(estimate is not None for estimate in estimates):
        look["low"] = [None if estimate is None else estimate.low for estimate in estimates]
        look["high"] = [None if estimate is None else estimate.high for estimate in estimates]
    if evaluations.best is not None and len(measured) > 1:
        look["best"] = [x_of_step(evaluations.best.step), evaluations.best.value]
    return line(name, [(x_of_step(point.step), point.value) for point in measured], tone, **look)
