"""Specs of charts as SVG text, where no script runs: pages without them, print, notebooks, pictures of the docs. Pure.

A chart on a page takes its colours from the style sheet through class names: `s0`, `s1`, ... colour a series, `tick`,
`grid`, `strip`, `raw`, `band`, `dot` its parts. Hovering over it shows the values there, through `<title>`.
`figure_file` draws a file of its own, with its colours inside, light and dark. Text from outside is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from typing import Any

from whet.pages.chart_specs import QUIET, ChartSeries, Point, reaches, smoothed
from whet.record.text import number, percent, quantity

SMALL, WIDE, NARROW = (340, 168), (1060, 270), (340, 210)
LEAST_SMOOTHED = 30  # points from which a line is smoothed
MOST_POINTS = 160
MOST_DOTS = 40
LONGEST_NAME = 16  # characters of a name on an axis
UNIT_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class AxisScale:
    """A straight or logarithmic map from values to pixels, with the values that carry a label."""

    low: float
    high: float
    start: float  # pixel of `low`
    stop: float  # pixel of `high`
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        value = math.log10(max(value, self.low)) if self.log else value
        return self.start + (value - low) / (high - low) * (self.stop - self.start)


@dataclass(frozen=True)
class Plot:
    """A pair of axes, and series drawn on them."""

    across: AxisScale
    up: AxisScale

    def at(self, x: float, y: float) -> str:
        """A point in pixels, as paths write it."""
        return f"{self.across(x):.1f} {self.up(y):.1f}"

    def path(self, points: Sequence[Point], style: str) -> str:
        """A line through the points, those left out that a straight line passes anyway."""
        pixels = straightened([(self.across(x), self.up(y)) for x, y in points])
        return f'<path class="{style}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in pixels)}"/>'

    def dot(self, point: Point, style: str, radius: float, title: str) -> str:
        """A circle that shows a title when pointed at."""
        end = f"><title>{escape(title)}</title></circle>" if title else "/>"
        x, y = self.across(point[0]), self.up(point[1])
        return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"{end}'

    def series(self, series: ChartSeries, smooth: bool) -> str:
        """One series: its band, its line with what was measured behind it, its dots."""
        tone = f"s{series['tone']}"
        if series.get("diamond"):
            return self._diamond(series, tone)
        if series.get("bars"):
            return self._bars(series, tone)
        parts = [self._band(series, tone)]
        stretches = [part for part in _stretches(series) if part]
        drawn = [inside for part in stretches if (inside := within(part, self.up.low, self.up.high))]
        points = [point for part in stretches for point in part]
        if smooth and not series.get("marked") and len(stretches) == 1 and len(points) >= LEAST_SMOOTHED:
            parts.append(self.path(points, f"raw {tone}"))
            drawn = [list(zip([x for x, _ in points], smoothed([y for _, y in points]), strict=True))]
        if not series.get("bare"):
            style = "raw" if series.get("faint") else "line"
            parts += [self._riser(before[-1], after[0], tone) for before, after in pairwise(drawn)]
            dashed = " dashed" if series.get("dashed") else ""
            parts += [self.path(part, f"{style} {tone}{dashed}") for part in drawn if len(part) > 1]
        if len(points) == 1 or series.get("bare") or (series.get("marked") and len(points) <= MOST_DOTS):
            style = f"{'point' if series.get('bare') else 'dot'} {tone}"
            sizes = series.get("sizes") or [2.8] * len(points)
            titles = series.get("titles") or [""] * len(points)
            parts += [self.dot(*mark) for mark in zip(points, [style] * len(points), sizes, titles, strict=True)]
        if series.get("best"):
            parts.append(self._ring(series["best"], tone))
        return "".join(parts)

    def _bars(self, series: ChartSeries, tone: str) -> str:
        """Bars from 0 to each value."""
        known = [(x, y) for x, y in zip(series["x"], series["y"], strict=True) if y is not None]
        corners = [
            (self.at(x - 0.3, 0), self.at(x - 0.3, y), self.at(x + 0.3, y), self.at(x + 0.3, 0)) for x, y in known
        ]
        return "".join(f'<path class="band {tone}" d="M{"L".join(bar)}Z"/>' for bar in corners)

    def _ring(self, best: Point, tone: str) -> str:
        """Around the best of the dots."""
        x, y = self.across(best[0]), self.up(best[1])
        title = f"best: {number(best[1])} at step {best[0]:.0f}"
        return (
            f'<path class="line {tone} best" d="M{x - 6:.1f} {y:.1f}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0">'
            f"<title>{title}</title></path>"
        )

    def _band(self, series: ChartSeries, tone: str) -> str:
        edges = zip(series["x"], series.get("low") or (), series.get("high") or (), strict=False)
        inside = [(x, low, high) for x, low, high in edges if low is not None and high is not None]
        if len(inside) < 2 or all(low == high for _, low, high in inside):
            return ""
        corners = [self.at(x, high) for x, _, high in inside] + [self.at(x, low) for x, low, _ in reversed(inside)]
        return f'<path class="band {tone}" d="M{"L".join(corners)}Z"/>'

    def _riser(self, before: Point, after: Point, tone: str) -> str:
        """The vertical line between two stretches of a step line."""
        x, start, stop = self.across(before[0]), self.up(before[1]), self.up(after[1])
        if abs(x - self.across(after[0])) >= 0.5 or abs(start - stop) <= 1:
            return ""
        return f'<path class="jump {tone}" d="M{x:.1f} {start:.1f}V{stop:.1f}"/>'

    def _diamond(self, series: ChartSeries, tone: str) -> str:
        x, y = self.across(series["x"][0]), self.up(series["y"][0])
        low, high = self.up(series["low"][0]), self.up(series["high"][0])
        title = escape((series.get("titles") or [""])[0])
        return (
            f'<path class="reach {tone}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
            f'<path class="search {tone}" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z"><title>{title}</title></path>'
        )


def chart_svg(spec: Mapping[str, Any], label: str, size: tuple[int, int] = SMALL) -> str:
    """A chart for a page; empty where there is nothing to draw."""
    if "columns" in spec:
        return _svg(label, _columns(spec), SMALL)
    if "intervals" in spec:
        height = 40 + 40 * len(spec["intervals"])
        return _svg(label, _intervals(spec, 460, height), (460, height))
    if "spans" in spec:
        height = 30 + 26 * len(spec["spans"])
        return _svg(label, _spans(spec, WIDE[0], height), (WIDE[0], height))
    series = [_thinned(trace) if spec["x"].get("steps") else trace for trace in spec["series"] if _stretches(trace)]
    if not series:
        return ""
    width, height = spec.get("size") or size
    up = _up_scale(spec, series, (height - 22, 8))
    texts = _texts(up, spec["y"])
    across = _across_scale(spec, series, (10 + 6.4 * max(map(len, texts)), width - 8))
    plot = Plot(across, up)
    parts = [_axes(plot, texts, _texts(across, spec["x"]), (width, height))]
    parts += [plot.series(trace, bool(spec.get("smooth"))) for trace in series]
    if spec["x"].get("steps"):
        parts.append(_strips(series, across, height - 22, spec["x"]["label"]))
    return _svg(label, parts, (width, height))


def _svg(label: str, parts: Sequence[str], size: tuple[int, int]) -> str:
    name = escape(label, quote=True)
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _stretches(series: Mapping[str, Any]) -> list[list[Point]]:
    """The points of a series, cut at its gaps."""
    stretches: list[list[Point]] = [[]]
    for x, y in zip(series["x"], series["y"], strict=True):
        if x is not None and y is not None:
            stretches[-1].append((x, y))
        elif stretches[-1]:
            stretches.append([])
    return stretches if stretches[0] else []


def _thinned(series: ChartSeries) -> ChartSeries:
    """A series of at most as many points as a drawing can tell apart, with its range in a band."""
    columns = [series.get(key) or series["y"] for key in ("x", "y", "low", "high")]
    rows = [row for row in zip(*columns, strict=True) if None not in row]
    if len(rows) <= MOST_POINTS or series.get("sizes"):
        return series
    cells = [
        list(zip(*rows[start:stop], strict=True))
        for start, stop in pairwise(len(rows) * cell // MOST_POINTS for cell in range(MOST_POINTS + 1))
    ]
    means = {key: [sum(cell[at]) / len(cell[at]) for cell in cells] for at, key in enumerate(("x", "y"))}
    edges = {"low": [min(low) for *_, low, _ in cells], "high": [max(high) for *_, high in cells]}
    return {**series, **means, **edges}


def _up_scale(spec: Mapping[str, Any], series: Sequence[ChartSeries], pixels: tuple[float, float]) -> AxisScale:
    axis = spec["y"]
    if axis.get("min") is not None and axis.get("max") is not None:
        unit = (axis["min"], axis["max"]) == (0, 1)
        most = max(3, abs(pixels[1] - pixels[0]) // 44)
        marks = axis.get("ticks") or (UNIT_TICKS if unit else ticks(axis["min"], axis["max"], most))
        return AxisScale(axis["min"], axis["max"], *pixels, ticks=tuple(marks))
    values = [v for trace in series for key in ("y", "low", "high") for v in trace.get(key) or () if v is not None]
    if axis.get("log"):
        return log_scale([value for value in values if value > 0], pixels)
    return value_scale(values, pixels)


def _across_scale(spec: Mapping[str, Any], series: Sequence[ChartSeries], pixels: tuple[float, float]) -> AxisScale:
    axis = spec["x"]
    if axis.get("min") is not None and axis.get("max") is not None:
        marks = axis.get("ticks") or ticks(axis["min"], axis["max"], max(3, (pixels[1] - pixels[0]) // 90))
        return AxisScale(axis["min"], axis["max"], *pixels, ticks=tuple(marks))
    values = [x for trace in series for x in trace["x"] if x is not None]
    if axis.get("log"):
        scale = cost_scale(min(values), max(values), (pixels[0] + 6, pixels[1] - 6))
        return replace(scale, ticks=tuple(axis["ticks"])) if axis.get("ticks") else scale
    return step_scale(min(values), max(values), pixels)


def _texts(scale: AxisScale, axis: Mapping[str, Any]) -> list[str]:
    if axis.get("percent"):
        return [f"{100 * tick:.0f}%" for tick in scale.ticks]
    if axis.get("names"):
        return [escape(_short_name(axis["names"], tick)) for tick in scale.ticks]
    if axis.get("steps") or axis.get("whole"):
        return [f"{tick:.0f}" for tick in scale.ticks]
    if scale.log:
        return [quantity(tick) if tick >= 1 else f"{tick:g}" for tick in scale.ticks]
    return [tick_text(tick, scale) for tick in scale.ticks]


def _short_name(names: Sequence[str], tick: float) -> str:
    """The name at a whole number, cut to what fits below a chart."""
    name = names[int(tick)] if 0 <= tick < len(names) and tick == int(tick) else ""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _columns(spec: Mapping[str, Any]) -> list[str]:
    """A histogram; each column shows its count when pointed at."""
    columns = spec["columns"]
    width, height = SMALL
    up = value_scale([0.0, float(max(count for *_, count in columns))], (height - 22, 8))
    texts = _texts(up, {})
    left = 10 + 6.4 * max(map(len, texts))
    parts = [_axes(Plot(AxisScale(0.0, 1.0, left, width - 8, ticks=()), up), texts, (), SMALL)]
    total = sum(count for *_, count in columns)
    room = (width - 8 - left) / len(columns)
    thick = max(min(room - 2, 80), 1)
    for index, (low, high, count) in enumerate(columns):
        x, y = left + index * room, up(float(count))
        name = number(low) if low == high else f"{number(low)} to {number(high)}"
        parts.append(
            f'<rect class="column s{spec["tone"]}" x="{x + (room - thick) / 2:.1f}" y="{y:.1f}" width="{thick:.1f}" '
            f'height="{up(0.0) - y:.1f}"><title>{name}: {count} ({percent(count / total)})</title></rect>'
        )
        if len(columns) <= 8 or index % 3 == 0:
            middle, anchor = (x + room / 2, "middle") if low == high else (x, "start")
            parts.append(f'<text class="tick {anchor}" x="{middle:.1f}" y="{height - 6}">{number(low)}</text>')
    return parts


def _intervals(spec: Mapping[str, Any], width: int, height: int) -> list[str]:
    """A dot with its interval per row, one below the other."""
    rows = spec["intervals"]
    ends = [end for _, *values, _ in rows for end in values if end is not None and math.isfinite(end)]
    is_unit = bool(spec.get("percent")) and max(ends) > 0.5
    across = value_scale(ends, (12, width - 12), is_unit)
    parts = []
    for tick, text in zip(across.ticks, _texts(across, spec), strict=True):
        parts.append(f'<path class="grid" d="M{across(tick):.1f} 8V{height - 20}"/>')
        anchor = "start" if tick == across.ticks[0] else "end" if tick == across.ticks[-1] else "middle"
        parts.append(f'<text class="tick {anchor}" x="{across(tick):.1f}" y="{height - 6}">{text}</text>')
    for index, (name, value, low, high, words) in enumerate(rows):
        y, tone = 36 + 40 * index, f"s{index % QUIET}"
        parts.append(f'<text class="tick" x="12" y="{y - 12}">{escape(name)}: {escape(words)}</text>')
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high):
            left, right = across(low), across(high)
            parts.append(
                f'<path class="reach {tone}" d="M{left:.1f} {y - 4}V{y + 4}M{left:.1f} {y}H{right:.1f}'
                f'M{right:.1f} {y - 4}V{y + 4}"/>'
            )
        parts.append(Plot(across, AxisScale(0, 1, 0, 1, ())).dot((value, y), f"dot {tone}", 4, words))
    return parts


def _spans(spec: Mapping[str, Any], width: int, height: int) -> list[str]:
    """A row of bars per name, one below the other; each says when it was pointed at."""
    rows, unit = spec["spans"], spec["unit"]
    ends = [end for _, _, spans in rows for span in spans for end in span]
    left = 16 + 6.4 * max(len(name) for name, *_ in rows)
    low, high = min(ends), max(ends)
    across = AxisScale(low, high, left, width - 12, ticks=ticks(low, high, 6) if high > low else (low,))
    parts = []
    for tick, text in zip(across.ticks, _texts(across, {}), strict=True):
        parts.append(f'<path class="grid" d="M{across(tick):.1f} 6V{height - 20}"/>')
        parts.append(f'<text class="tick middle" x="{across(tick):.1f}" y="{height - 6}">{text}</text>')
    for index, (name, tone, spans) in enumerate(rows):
        y = 8 + 26 * index
        parts.append(f'<text class="tick" x="8" y="{y + 13}">{escape(name)}</text>')
        for start, end in spans:
            title = f"{name}: {number(start)} to {number(end)} {unit}"
            parts.append(
                f'<rect class="column s{tone}" x="{across(start):.1f}" y="{y}" '
                f'width="{max(across(end) - across(start), 1):.1f}" height="18"><title>{escape(title)}</title></rect>'
            )
    return parts


def cost_scale(low: float, high: float, pixels: tuple[float, float]) -> AxisScale:
    """Logarithmic, with a label at 1, 2 and 5 of every power of ten."""
    low, high = max(low, 1e-9), max(high, low * 1.01, 1e-9)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 200 else (1,)
    marks = tuple(factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high)
    return AxisScale(low, high, *pixels, ticks=marks, log=True)


def log_scale(values: Sequence[float], pixels: tuple[float, float]) -> AxisScale:
    """Whole decades, four or five of them labelled."""
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    decades = max(1, math.ceil((last - first) / 4))
    last = first + decades * max(1, math.ceil((last - first) / decades))
    marks = tuple(10.0**power for power in range(first, last + 1, decades))
    return AxisScale(10.0**first, 10.0**last, *pixels, ticks=marks, log=True)


def value_scale(values: Sequence[float], pixels: tuple[float, float], unit: bool = False) -> AxisScale:
    """Zero is shown when it is near; four or five ticks; logarithmic over two decades or more of positives."""
    low, high = min(values), max(values)
    if unit:
        return AxisScale(0.0, 1.0, *pixels, ticks=UNIT_TICKS)
    if reaches(values):
        return log_scale(values, pixels)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(high), abs(low)) or high == low:
        room = 0.5 * abs(high)
        low, high = (low - room, high + room) if room else (0.0, 1.0)
    stride = tick_stride((high - low) / 4)
    first, last = math.floor(low / stride + 1e-9), math.ceil(high / stride - 1e-9)
    marks = tuple(multiple * stride for multiple in range(first, last + 1))
    return AxisScale(marks[0], marks[-1], *pixels, ticks=marks)


def step_scale(first: float, last: float, pixels: tuple[float, float]) -> AxisScale:
    """A scale of whole steps only."""
    if last == first:
        return AxisScale(first - 1, last + 1, *pixels, ticks=(first,))
    stride = max(1.0, tick_stride((last - first) / max(5.0, (pixels[1] - pixels[0]) / 80)))
    stride = stride if stride == int(stride) else math.ceil(stride)
    start = math.ceil(first / stride)
    marks = tuple(multiple * stride for multiple in range(start, math.floor(last / stride) + 1))
    return AxisScale(first, last, *pixels, ticks=marks)


def ticks(low: float, high: float, most: float) -> tuple[float, ...]:
    """Round numbers within [low, high], about `most` of them."""
    stride = tick_stride((high - low) / most)
    first, last = math.ceil(low / stride - 1e-6), math.floor(high / stride + 1e-6)
    return tuple(multiple * stride for multiple in range(first, last + 1))


def tick_stride(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def tick_text(tick: float, scale: AxisScale) -> str:
    """A label of an axis, with as many digits as tell it from its neighbours."""
    if scale.log:
        return f"{tick:g}"
    stride = abs(scale.ticks[1] - scale.ticks[0]) if len(scale.ticks) > 1 else 1.0
    if max(abs(value) for value in scale.ticks) >= 10000:
        return f"{tick / 1000:g}k"
    if stride < 1e-3:
        largest = max(abs(value) for value in scale.ticks)
        digits = math.floor(math.log10(largest)) - math.floor(math.log10(stride) + 1e-9) + 1
        return f"{tick:.{max(1, digits)}g}" if tick else "0"
    text = f"{tick:.{max(0, math.ceil(-math.log10(stride) - 1e-9))}f}"
    return f"{tick:g}" if scale.ticks == UNIT_TICKS else text


def _axes(plot: Plot, texts: Sequence[str], names: Sequence[str], size: tuple[int, int]) -> str:
    """Grid lines with their texts, and the ticks below."""
    width, height = size
    parts = []
    for tick, text in zip(plot.up.ticks, texts, strict=True):
        y = plot.up(tick)
        parts.append(f'<path class="grid" d="M{plot.across.start:.1f} {y:.1f}H{width - 8}"/>')
        parts.append(f'<text class="tick end" x="{plot.across.start - 5:.1f}" y="{y + 3.5:.1f}">{text}</text>')
    for tick, name in zip(plot.across.ticks, names, strict=False):
        x = plot.across(tick)
        anchor = "end" if x > width - 20 else "middle"
        parts.append(f'<text class="tick {anchor}" x="{x:.1f}" y="{height - 6}">{name}</text>')
    return "".join(parts)


def _strips(series: Sequence[ChartSeries], across: AxisScale, bottom: float, label: str) -> str:
    """An invisible column per step, or stretch of steps, that shows its values when pointed at."""
    texts_at: dict[float, list[str]] = {}
    for trace in series:
        for stretch in _stretches(trace):
            for step, value in stretch:
                texts_at.setdefault(step, []).append(f"{trace['name']} {number(value)}")
    steps = sorted(texts_at)
    xs = [across(step) for step in steps]
    edges = [across.start, *((a + b) / 2 for a, b in pairwise(xs)), across.stop]
    return "".join(
        f'<rect class="strip" x="{left:.1f}" y="8" width="{max(right - left, 0.5):.1f}" height="{bottom - 8:.0f}">'
        f"<title>{escape(label)} {step:.0f}: {escape(', '.join(texts_at[step]))}</title></rect>"
        for step, left, right in zip(steps, edges, edges[1:], strict=False)
    )


def within(points: Sequence[Point], low: float, high: float) -> list[Point]:
    """The points up to where a curve leaves [low, high], which it meets exactly; what lies outside is left out."""
    inside: list[Point] = []
    for index, (x, y) in enumerate(points):
        before = points[index - 1] if index else (x, y)
        if (low <= y <= high) != (low <= before[1] <= high):
            edge = high if max(y, before[1]) > high else low
            share = (edge - before[1]) / (y - before[1])
            inside.append((before[0] + share * (x - before[0]), edge))
        if low <= y <= high:
            inside.append((x, y))
    return inside


def straightened(points: Sequence[Point], off: float = 0.04) -> list[Point]:
    """The points without those that lie within `off` pixels of the straight way between their neighbours."""
    if len(points) < 3:
        return list(points)
    (x0, y0), (x1, y1) = points[0], points[-1]
    length = math.hypot(x1 - x0, y1 - y0) or 1.0
    distance = [abs((x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)) / length for x, y in points]
    far = max(range(len(points)), key=distance.__getitem__)
    if distance[far] <= off:
        return [points[0], points[-1]]
    return straightened(points[: far + 1], off)[:-1] + straightened(points[far:], off)


# the tones of a page's style sheet, for drawings that stand on somebody else's page
LIGHT = ("#0f766e", "#c2620a", "#4f5bd5", "#b83280", "#6b8e23", "#0e7fb8", "#8b6f4e", "#8a8f98")
DARK = ("#3fb8a9", "#f0a052", "#8f9bff", "#ee7fb8", "#a6c662", "#5cbcf0", "#c9a87e", "#7d858f")
TOP, BOTTOM, LEFT, RIGHT, BETWEEN, LETTER = 30, 44, 46, 18, 40, 6.3


def figure_file(
    panels: Sequence[Mapping[str, Any]],
    title: str = "",
    subtitle: str = "",
    size: tuple[int, int] = (520, 250),
    columns: int = 0,
) -> str:
    """Panels as the text of one SVG file: title, legend, and the panels side by side, so many in a row.

    Panels of a row share their vertical axis, and the first of them names it. `title` of a panel stands above it.
    Right of a panel's `limit` there is nothing to draw: the field is shaded, and its `text` says why.
    """
    wide, high = size
    columns = columns or len(panels)
    width = LEFT + wide * columns + BETWEEN * (columns - 1) + RIGHT
    head = (30 if title else 0) + (19 if subtitle else 0)
    legend, foot = _file_legend(panels, head + 15, width - RIGHT)
    rows = math.ceil(len(panels) / columns)
    height = foot + 16 + rows * (TOP + high + BOTTOM)
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>']
    if title:
        parts.append(f'<text class="title" x="18" y="30">{escape(title)}</text>')
    if subtitle:
        parts.append(f'<text class="soft" x="18" y="49">{escape(subtitle)}</text>')
    parts.append(legend)
    for index, panel in enumerate(panels):
        corner = (
            LEFT + index % columns * (wide + BETWEEN),
            foot + 16 + TOP + index // columns * (TOP + high + BOTTOM),
        )
        parts.append(_panel(panel, corner, size, first=index % columns == 0))
    shown, along = (panels[0][axis]["label"] for axis in ("y", "x"))
    label = escape(f"{title}: {shown} against {along}" if shown else title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="whet-figure" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{label}">\n'
        f"<style>{FIGURE_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _figure_style() -> str:
    def rules(selectors: str, rule: str) -> str:
        return ",".join(f".whet-figure {selector}" for selector in selectors.split(",")) + f"{{{rule}}}"

    def tones(colours: Sequence[str]) -> str:
        return "".join(
            rules(f".line.s{tone},.raw.s{tone},.jump.s{tone}", f"stroke:{colour}")
            + rules(f".dot.s{tone},.band.s{tone}", f"fill:{colour}")
            for tone, colour in enumerate(colours)
        )

    family = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
    light = [
        ("text", f"font:12px {family};fill:#5f6770"),
        (".title,.head", "font-weight:600;fill:#1d2125"),
        (".title", "font-size:15px"),
        (".name", "fill:#1d2125"),
        (".small", "font-size:11px"),
        (".end", "text-anchor:end"),
        (".middle", "text-anchor:middle"),
        (".card", "fill:#fff;stroke:#e3e3dd"),
        (".grid", "stroke:#e9e9e4"),
        (".axis,.guide", "stroke:#b9bdc2"),
        (".shade", "fill:#f1f1ed"),
        ("path", "fill:none"),
        (".line", "stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round"),
        (".raw", "opacity:.4"),
        (".band", "opacity:.16"),
        (".dashed", "stroke-dasharray:7 6;stroke-linecap:butt"),
        (f".s{QUIET}.line", "stroke-width:1.6"),
        (".jump", "stroke-width:1.2;stroke-dasharray:1.5 3"),
        (".guide", "stroke-dasharray:2 3"),
    ]
    dark = [
        ("text", "fill:#9aa3ad"),
        (".title,.name,.head", "fill:#e6e7e8"),
        (".card", "fill:#1b1f23;stroke:#2d3338"),
        (".grid", "stroke:#2a2f35"),
        (".axis,.guide", "stroke:#566069"),
        (".shade", "fill:#22272c"),
    ]
    by_night = "".join(rules(*rule) for rule in dark) + tones(DARK)
    return "".join(rules(*rule) for rule in light) + tones(LIGHT) + f"@media (prefers-color-scheme:dark){{{by_night}}}"


FIGURE_STYLE = _figure_style()


def _file_legend(panels: Sequence[Mapping[str, Any]], y: int, most: float) -> tuple[str, int]:
    """The names beside their strokes, in as many lines as they need, and where the last line is."""
    named = {trace["name"]: trace for panel in panels for trace in panel["series"]}
    parts, x = [], 18.0
    for name, series in named.items():
        taken = 28 + LETTER * len(name)
        if x > 18 and x + taken > most:
            x, y = 18.0, y + 19
        dashed = " dashed" if series.get("dashed") else ""
        parts.append(f'<path class="line s{series["tone"]}{dashed}" d="M{x:.1f} {y}h22"/>')
        parts.append(f'<text class="name" x="{x + 28:.1f}" y="{y + 4}">{escape(name)}</text>')
        x += taken + 20
    return "".join(parts), y


def _panel(spec: Mapping[str, Any], corner: tuple[float, float], size: tuple[int, int], first: bool) -> str:
    (left, top), (wide, high) = corner, size
    series = [_thinned(trace) if spec["x"].get("steps") else trace for trace in spec["series"] if _stretches(trace)]
    plot = Plot(_across_scale(spec, series, (left, left + wide)), _up_scale(spec, series, (top + high, top)))
    parts, limit = [], spec.get("limit")
    if limit and limit["x"] < plot.across.high:
        edge = plot.across(limit["x"])
        room = left + wide - edge
        parts.append(f'<rect class="shade" x="{edge:.1f}" y="{top}" width="{room:.1f}" height="{high}"/>')
        if LETTER * len(limit["text"]) < room:
            middle = edge + room / 2
            parts.append(f'<text class="small middle" x="{middle:.1f}" y="{top + 16}">{escape(limit["text"])}</text>')
    for tick, text in zip(plot.up.ticks, _texts(plot.up, spec["y"]), strict=True):
        y = plot.up(tick)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{wide}"/>')
        if first:
            parts.append(f'<text class="small end" x="{left - 7}" y="{y + 4:.1f}">{text}</text>')
    for tick, text in zip(plot.across.ticks, _texts(plot.across, spec["x"]), strict=True):
        x = plot.across(tick)
        parts.append(f'<path class="axis" d="M{x:.1f} {top + high}v4"/>')
        parts.append(f'<text class="small middle" x="{x:.1f}" y="{top + high + 17}">{text}</text>')
    parts.append(f'<path class="axis" d="M{left} {top + high}h{wide}"/>')
    for guide in spec.get("lines") or ():
        parts.append(f'<path class="guide" d="M{plot.across(guide["x"]):.1f} {top}v{high}"/>')
    parts += [plot.series(trace, bool(spec.get("smooth"))) for trace in series]
    if first:
        parts.append(f'<text x="{left - 28}" y="{top - 12}">{escape(spec["y"]["label"])}</text>')
    if spec.get("title"):
        middle = left + wide / 2
        parts.append(f'<text class="head middle" x="{middle:.1f}" y="{top - 12}">{escape(spec["title"])}</text>')
    parts.append(f'<text class="end" x="{left + wide}" y="{top + high + 34}">{escape(spec["x"]["label"])}</text>')
    return "".join(parts)
