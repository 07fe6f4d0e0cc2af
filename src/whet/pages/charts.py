"""Every chart of the package as SVG text: scales and axes, lines, bands, columns, points. Pure.

Charts on a page take their colours from its style sheet through class names: `s0`, `s1`, ... colour a series, `tick`,
`grid`, `strip`, `raw`, `band`, `dot` its parts. Hovering a strip of the chart shows the values there, through
`<title>`, so nothing needs a script. `curves_svg` draws a file of its own, with its colours inside, light and dark.
Text from outside is escaped here: a chart is safe to place on a page as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise
from statistics import fmean

from whet.record.text import number, percent, quantity

NUM_TONES = 8  # of a page's style sheet
SMALL, WIDE, NARROW = (340, 168), (1060, 270), (340, 210)
LEAST_SMOOTHED = 30  # points from which a line is smoothed
MOST_POINTS = 160
MOST_DOTS = 40
Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """One line. `marked` series are few measurements, drawn with dots; others are smoothed where they are long."""

    name: str
    points: tuple[Point, ...]  # (step, value), steps ascending, values finite
    marked: bool = False


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
    """A pair of axes and what they turn values into."""

    size: tuple[int, int]
    across: AxisScale
    up: AxisScale
    axes: str

    def at(self, x: float, y: float) -> str:
        return f"{self.across(x):.1f} {self.up(y):.1f}"

    def line(self, points: Sequence[Point], style: str) -> str:
        """One point is a dot."""
        if len(points) == 1:
            return self.dot(points[0], style)
        return f'<path class="line {style}" d="M{"L".join(self.at(x, y) for x, y in points)}"/>'

    def band(self, edges: Sequence[tuple[float, float, float]], style: str) -> str:
        """Between the low and the high of each (x, low, high)."""
        corners = [self.at(x, high) for x, _, high in edges] + [self.at(x, low) for x, low, _ in reversed(edges)]
        return f'<path class="band {style}" d="M{"L".join(corners)}Z"/>'

    def dot(self, point: Point, style: str, radius: float = 2.8, title: str = "", kind: str = "dot") -> str:
        inside = f"<title>{escape(title)}</title>" if title else ""
        x, y = self.across(point[0]), self.up(point[1])
        end = f">{inside}</circle>" if inside else "/>"
        return f'<circle class="{kind} {style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"{end}'

    def svg(self, label: str, parts: Sequence[str]) -> str:
        return svg_text(label, [self.axes, *parts], self.size)


def svg_text(label: str, parts: Sequence[str], size: tuple[int, int]) -> str:
    name = escape(label, quote=True)
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def plot(xs: Sequence[float], ys: Sequence[float], size: tuple[int, int] = SMALL, unit: bool | None = None) -> Plot:
    """Axes that hold all values: whole numbers across, round ones up; `unit` fixes 0..1, None where it suits."""
    width, height = size
    up = value_scale(ys, (height - 22, 8), suits_unit(ys) if unit is None else unit)
    texts = [tick_text(tick, up) for tick in up.ticks]
    across = step_scale(min(xs), max(xs), (10 + 6.4 * max(map(len, texts)), width - 8))
    return Plot(size, across, up, axes(up, across, texts, size))


def suits_unit(values: Sequence[float]) -> bool:
    """True for shares that reach beyond the lower half of 0..1."""
    return min(values) >= 0 and 0.5 < max(values) <= 1


def line_chart(series: Sequence[Series], label: str, size: tuple[int, int] = SMALL, unit: bool = False) -> str:
    """All series on one pair of axes; `unit` fixes the vertical axis to 0..1. Empty without a point."""
    drawn = [line for line in series if line.points]
    if not drawn:
        return ""
    frame = plot(
        [step for line in drawn for step, _ in line.points],
        [value for line in drawn for _, value in line.points],
        size,
        unit,
    )
    parts = [_line(line, f"s{place % NUM_TONES}", frame.up, frame.across) for place, line in enumerate(drawn)]
    return frame.svg(label, [*parts, strips(drawn, frame.across, size[1] - 22)])


@dataclass(frozen=True)
class BandSeries:
    """A line with the range around it by step."""

    name: str
    steps: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    tone: str  # class names of the line


def band_chart(series: Sequence[BandSeries], label: str, size: tuple[int, int]) -> str:
    """Lines with bands from the lowest to the highest. Empty without a series."""
    if not series:
        return ""
    extremes = [value for line in series for value in (*line.lows, *line.highs)]
    frame = plot([step for line in series for step in line.steps], extremes, size)

    def cells(line: BandSeries, values: Sequence[float]) -> list[Point]:
        return [(step, mean) for step, mean, _, _ in thinned(list(zip(line.steps, values, strict=True)))]

    parts = []
    for line in series:
        if len(line.steps) > 1 and line.lows != line.highs:
            lows, highs = cells(line, line.lows), cells(line, line.highs)
            edges = [(x, low, high) for (x, low), (_, high) in zip(lows, highs, strict=True)]
            parts.append(frame.band(edges, line.tone))
    parts += [frame.line(cells(line, line.means), line.tone) for line in series]
    named = [Series(line.name, tuple(zip(line.steps, line.means, strict=True))) for line in series]
    return frame.svg(label, [*parts, strips(named, frame.across, size[1] - 22)])


def spread_chart(points: Sequence[tuple[float, Mapping[str, float]]], label: str, tone: str) -> str:
    """(step, distribution) by step: all of it, its middle half one shade darker, its mean."""
    frame = plot([step for step, _ in points], [values[end] for _, values in points for end in ("min", "max")])
    parts = [
        frame.band([(step, values[low], values[high]) for step, values in points], tone)
        for low, high in (("min", "max"), ("q1", "q3"))
    ]
    parts.append(frame.line([(step, values["mean"]) for step, values in points], tone))
    series = [
        Series(name, tuple((step, values[name]) for step, values in points))
        for name in ("min", "median", "mean", "max")
    ]
    return frame.svg(label, [*parts, strips(series, frame.across, frame.size[1] - 22)])


def column_chart(bins: Sequence[tuple[float, float, int]], label: str, tone: str) -> str:
    """A histogram of (from, to, count); each column shows its count when pointed at."""
    width, height = SMALL
    up = value_scale([0.0, float(max(count for *_, count in bins))], (height - 22, 8))
    texts = [tick_text(tick, up) for tick in up.ticks]
    left = 10 + 6.4 * max(map(len, texts))
    across = AxisScale(0.0, float(len(bins)), left, width - 8, ticks=())
    parts = [axes(up, across, texts, SMALL)]
    total = sum(count for *_, count in bins)
    room = (width - 8 - left) / len(bins)
    column = max(min(room - 2, 80), 1)
    for place, (low, high, count) in enumerate(bins):
        x, y = left + place * room, up(float(count))
        name = number(low) if low == high else f"{number(low)} to {number(high)}"
        parts.append(
            f'<rect class="column {tone}" x="{x + (room - column) / 2:.1f}" y="{y:.1f}" width="{column:.1f}" '
            f'height="{up(0.0) - y:.1f}"><title>{name}: {count} ({percent(count / total)})</title></rect>'
        )
        if len(bins) <= 8 or place % 3 == 0:
            middle, anchor = (x + room / 2, "middle") if low == high else (x, "start")
            parts.append(f'<text class="tick {anchor}" x="{middle:.1f}" y="{height - 6}">{number(low)}</text>')
    return svg_text(label, parts, SMALL)


def scatter_chart(points: Sequence[Point], label: str, tone: str, most: int = 600) -> str:
    """Points, larger where several are at one place; evenly thinned above `most` places."""
    counts = Counter(points)
    # sorted first: every other sample may be of another kind
    drawn = sorted(counts)[:: max(1, math.ceil(len(counts) / most))]
    frame = plot([x for x, _ in points], [y for _, y in points])
    dots = [frame.dot(point, tone, 2 + min(math.log2(counts[point]), 5), kind="point") for point in drawn]
    return frame.svg(label, dots)


def calibration_chart(tenths: Sequence[tuple[float, float, int]]) -> str:
    """(how sure, how often right, rows) of each tenth: on the diagonal a model means what it says.

    Of a choice between two: nobody is less than half sure.
    """
    return reliability_chart([("", tenths)], "Share right by how sure the model is", 0.5, (340, 210))


def reliability_chart(
    series: Sequence[tuple[str, Sequence[tuple[float, float, int]]]],
    label: str,
    least: float = 0.0,
    size: tuple[int, int] = (460, 250),
) -> str:
    """A line per name through (how sure, how often right, rows) of its tenths, and the diagonal.

    `least` is the smallest sureness there can be.
    """
    width, height = size
    steps = tuple(round(least + (1 - least) * step / 5, 2) for step in range(6))
    across = AxisScale(least, 1.0, 44, width - 12, ticks=steps)
    up = AxisScale(0.0, 1.0, height - 24, 8, ticks=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0))
    percents = [f"{100 * tick:.0f}%" for tick in up.ticks]
    frame = Plot(size, across, up, axes(up, across, percents, size, [f"{100 * tick:.0f}%" for tick in across.ticks]))
    parts = [f'<path class="raw s7" d="M{frame.at(least, least)}L{frame.at(1, 1)}"/>']
    for place, (name, tenths) in enumerate(series):
        tone, most = f"s{place % NUM_TONES}", max(rows for *_, rows in tenths)
        if len(tenths) > 1:
            parts.append(frame.line([(sure, right) for sure, right, _ in tenths], tone))
        for sure, right, rows in tenths:
            title = f"{f'{name}: ' if name else ''}{percent(sure)} sure, {percent(right)} right, {rows} rows"
            parts.append(frame.dot((sure, right), tone, 2.5 + 5 * math.sqrt(rows / most), title))
    return frame.svg(label, parts)


def share_bars(shares: Sequence[tuple[str, float]], label: str) -> str:
    """Named shares as bars of 0..1 with chance in the middle."""
    width, height = 340, 40 + 56 * len(shares)
    across = AxisScale(0.0, 1.0, 12, width - 12, ticks=())
    parts = [f'<path class="grid" d="M{across(0.5):.1f} 8V{height - 20}"/>']
    for place, (name, share) in enumerate(shares):
        top = 12 + 56 * place
        parts.append(f'<text class="tick" x="12" y="{top + 10}">{escape(name)}: {percent(share)}</text>')
        parts.append(
            f'<rect class="bar s{place % NUM_TONES}" x="12" y="{top + 16}" '
            f'width="{max(across(share) - 12, 1):.1f}" height="18" rx="3"/>'
        )
    parts.append(f'<text class="tick middle" x="{across(0.5):.1f}" y="{height - 6}">chance</text>')
    return svg_text(label, parts, (width, height))


@dataclass(frozen=True)
class Interval:
    """A value with its interval at a cost, and the words shown when it is pointed at."""

    cost: float
    value: float
    low: float
    high: float
    title: str = ""


def interval_chart(
    rows: Sequence[tuple[str, float, float, float, str]], label: str, is_share: bool, size: tuple[int, int] = (460, 0)
) -> str:
    """(name, value, low, high, words) of each row: a dot with its interval, one below the other."""
    width, height = size[0], size[1] or 40 + 40 * len(rows)
    bounded = [end for _, value, low, high, _ in rows for end in (value, low, high) if math.isfinite(end)]
    across = value_scale(bounded, (12, width - 12), is_share and max(bounded) > 0.5)
    parts = []
    for tick in across.ticks:
        parts.append(f'<path class="grid" d="M{across(tick):.1f} 8V{height - 20}"/>')
        text = f"{100 * tick:.0f}%" if is_share else tick_text(tick, across)
        anchor = "start" if tick == across.ticks[0] else "end" if tick == across.ticks[-1] else "middle"
        parts.append(f'<text class="tick {anchor}" x="{across(tick):.1f}" y="{height - 6}">{text}</text>')
    for place, (name, value, low, high, words) in enumerate(rows):
        y, tone = 36 + 40 * place, f"s{place % NUM_TONES}"
        parts.append(f'<text class="tick" x="12" y="{y - 12}">{escape(name)}: {escape(words)}</text>')
        if math.isfinite(low) and math.isfinite(high):
            left, right = across(low), across(high)
            parts.append(
                f'<path class="reach {tone}" d="M{left:.1f} {y - 4}V{y + 4}M{left:.1f} {y}H{right:.1f}'
                f'M{right:.1f} {y - 4}V{y + 4}"/>'
            )
        parts.append(
            f'<circle class="dot {tone}" cx="{across(value):.1f}" cy="{y}" r="4"><title>{escape(words)}</title>'
            "</circle>"
        )
    return svg_text(label, parts, (width, height))


@dataclass(frozen=True)
class CostSeries:
    """One way of choosing at several costs."""

    points: tuple[Interval, ...]
    tone: int
    quiet: bool = False  # dashed and without a band: what the others are compared with


def cost_chart(
    series: Sequence[CostSeries],
    diamonds: Sequence[tuple[Interval, int]],
    label: str,
    is_share: bool,
    marked: Sequence[float] = (),
) -> str:
    """Values with their intervals against the logarithm of what they cost; diamonds stand alone.

    `marked` are the costs that carry a label, where they are few and known.
    """
    size = (460, 250)
    width, height = size
    points = [point for line in series for point in line.points] + [point for point, _ in diamonds]
    values = [end for point in points for end in (point.low, point.high)]
    up = value_scale(values, (height - 24, 8), is_share and max(values) > 0.5)
    texts = [tick_text(tick, up) for tick in up.ticks]
    costs = [point.cost for point in points]
    across = cost_scale(min(costs), max(costs), (10 + 6.4 * max(map(len, texts)) + 6, width - 14))
    across = replace(across, ticks=tuple(marked)) if marked else across
    frame = Plot(size, across, up, axes(up, across, texts, size, [quantity(tick) for tick in across.ticks]))
    parts = []
    for line in series:
        style = f"s{line.tone}{' quiet' if line.quiet else ''}"
        if not line.quiet:
            parts.append(frame.band([(point.cost, point.low, point.high) for point in line.points], style))
        if len(line.points) > 1:
            parts.append(frame.line([(point.cost, point.value) for point in line.points], style))
        parts += [frame.dot((point.cost, point.value), f"s{line.tone}", 2.6, point.title) for point in line.points]
    for point, tone in diamonds:
        x, y = across(point.cost), up(point.value)
        parts.append(f'<path class="reach s{tone}" d="M{x:.1f} {up(point.low):.1f}V{up(point.high):.1f}"/>')
        parts.append(
            f'<path class="search s{tone}" d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z"><title>{escape(point.title)}'
            "</title></path>"
        )
    return frame.svg(label, parts)


def cost_scale(low: float, high: float, pixels: tuple[float, float]) -> AxisScale:
    """Logarithmic, with a label at 1, 2 and 5 of every power of ten."""
    low, high = max(low, 1e-9), max(high, low * 1.01, 1e-9)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 200 else (1,)
    ticks = tuple(factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high)
    return AxisScale(low, high, *pixels, ticks=ticks, log=True)


def value_scale(values: Sequence[float], pixels: tuple[float, float], unit: bool = False) -> AxisScale:
    """Zero is shown when it is near; four or five ticks; logarithmic over two decades or more of positives."""
    low, high = min(values), max(values)
    if unit:
        return AxisScale(0.0, 1.0, *pixels, ticks=(0.0, 0.25, 0.5, 0.75, 1.0))
    if low > 0 and high / low >= 200:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = max(1, math.ceil((last - first) / 4))
        last = first + decades * math.ceil((last - first) / decades)
        ticks = tuple(10.0**power for power in range(first, last + 1, decades))
        return AxisScale(10.0**first, 10.0**last, *pixels, ticks=ticks, log=True)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(high), abs(low)) or high == low:
        room = 0.5 * abs(high)
        low, high = (low - room, high + room) if room else (0.0, 1.0)
    stride = tick_stride((high - low) / 4)
    first, last = math.floor(low / stride + 1e-9), math.ceil(high / stride - 1e-9)
    ticks = tuple(place * stride for place in range(first, last + 1))
    return AxisScale(ticks[0], ticks[-1], *pixels, ticks=ticks)


def step_scale(first: float, last: float, pixels: tuple[float, float]) -> AxisScale:
    """Whole steps only."""
    if last == first:
        return AxisScale(first - 1, last + 1, *pixels, ticks=(first,))
    stride = max(1.0, tick_stride((last - first) / max(5.0, (pixels[1] - pixels[0]) / 80)))
    stride = stride if stride == int(stride) else math.ceil(stride)
    start = math.ceil(first / stride)
    ticks = tuple(place * stride for place in range(start, math.floor(last / stride) + 1))
    return AxisScale(first, last, *pixels, ticks=ticks)


def tick_stride(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def tick_text(tick: float, scale: AxisScale) -> str:
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
    return f"{tick:g}" if scale.ticks == (0.0, 0.25, 0.5, 0.75, 1.0) else text


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[tuple[float, float, float, float]]:
    """(step, mean, lowest, highest) of at most `most` stretches."""
    cells = min(most, len(points))
    edges = [len(points) * cell // cells for cell in range(cells + 1)] if cells else []
    stretches = [points[start:stop] for start, stop in pairwise(edges)]
    result = []
    for stretch in stretches:
        values = [value for _, value in stretch]
        result.append((fmean(step for step, _ in stretch), fmean(values), min(values), max(values)))
    return result


def smoothed(values: Sequence[float]) -> list[float]:
    """Centred running mean over about a tenth of the course, without the extremes: a spike is not smeared out."""
    most = max(2, min(6, len(values) // 20))
    result = []
    for place in range(len(values)):
        # the window shrinks on both sides at the ends, or the line would not meet where the values begin
        reach = min(most, place, len(values) - 1 - place)
        window = sorted(values[place - reach : place + reach + 1])
        result.append(fmean(window[1:-1] if len(window) >= 5 else window))
    return result


def axes(
    vertical: AxisScale,
    horizontal: AxisScale,
    texts: Sequence[str],
    size: tuple[int, int],
    names: Sequence[str] | None = None,
) -> str:
    """Grid lines with their texts, and the ticks below; `names` replace the whole numbers there."""
    width, height = size
    names = [f"{tick:.0f}" for tick in horizontal.ticks] if names is None else names
    parts = []
    for tick, text in zip(vertical.ticks, texts, strict=True):
        y = vertical(tick)
        parts.append(f'<path class="grid" d="M{horizontal.start:.1f} {y:.1f}H{width - 8}"/>')
        parts.append(f'<text class="tick end" x="{horizontal.start - 5:.1f}" y="{y + 3.5:.1f}">{text}</text>')
    for tick, name in zip(horizontal.ticks, names, strict=True):
        x = horizontal(tick)
        anchor = "end" if x > width - 20 else "middle"
        parts.append(f'<text class="tick {anchor}" x="{x:.1f}" y="{height - 6}">{name}</text>')
    return "".join(parts)


def _line(line: Series, tone: str, vertical: AxisScale, horizontal: AxisScale) -> str:
    cells = thinned(line.points)
    xs = [horizontal(step) for step, *_ in cells]
    means = [mean for _, mean, _, _ in cells]
    parts = []
    if len(line.points) > len(cells):
        upper = [f"{x:.1f} {vertical(high):.1f}" for x, (*_, high) in zip(xs, cells, strict=True)]
        lower = [f"{x:.1f} {vertical(low):.1f}" for x, (_, _, low, _) in zip(xs, cells, strict=True)]
        parts.append(f'<path class="band {tone}" d="M{"L".join(upper + lower[::-1])}Z"/>')
    if not line.marked and len(means) >= LEAST_SMOOTHED:
        parts.append(f'<path class="raw {tone}" d="{_path(xs, means, vertical)}"/>')
        means = smoothed(means)
    if len(means) > 1:
        parts.append(f'<path class="line {tone}" d="{_path(xs, means, vertical)}"/>')
    if len(means) == 1 or (line.marked and len(means) <= MOST_DOTS):
        parts += [
            f'<circle class="dot {tone}" cx="{x:.1f}" cy="{vertical(mean):.1f}" r="2.8"/>'
            for x, mean in zip(xs, means, strict=True)
        ]
    return "".join(parts)


def _path(xs: Sequence[float], values: Sequence[float], vertical: AxisScale) -> str:
    return "M" + "L".join(f"{x:.1f} {vertical(value):.1f}" for x, value in zip(xs, values, strict=True))


def strips(series: Sequence[Series], horizontal: AxisScale, bottom: float) -> str:
    """An invisible column per step, or stretch of steps, that shows its values when pointed at."""
    texts_at: dict[float, list[str]] = {}
    for line in series:
        for step, mean, _, _ in thinned(line.points):
            texts_at.setdefault(step, []).append(f"{line.name} {number(mean)}")
    steps = sorted(texts_at)
    xs = [horizontal(step) for step in steps]
    edges = [horizontal.start, *((a + b) / 2 for a, b in pairwise(xs)), horizontal.stop]
    return "".join(
        f'<rect class="strip" x="{left:.1f}" y="8" width="{max(right - left, 0.5):.1f}" height="{bottom - 8:.0f}">'
        f"<title>step {step:.0f}: {escape(', '.join(texts_at[step]))}</title></rect>"
        for step, left, right in zip(steps, edges, edges[1:], strict=False)
    )


Stretch = tuple[Point, ...]
FILE_TONES = 4  # and one more, the last, for what the others are compared with
QUIET = FILE_TONES
TOP, BOTTOM, LEFT, RIGHT, BETWEEN, LETTER = 30, 44, 46, 18, 40, 6.3

LIGHT = ("#0f766e", "#c2620a", "#4f5bd5", "#b83280", "#8a8f98")
DARK = ("#3fb8a9", "#f0a052", "#8f9bff", "#ee7fb8", "#7d858f")


@dataclass(frozen=True)
class PlottedCurve:
    """One line. Curves of the same name share an entry of the legend."""

    name: str
    stretches: tuple[Stretch, ...]
    tone: int = 0
    dashed: bool = False  # lets a curve below show through where both run together


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Right of `limit` there is nothing to draw: the field is shaded and `limit_text` says why."""

    curves: tuple[PlottedCurve, ...]
    title: str = ""
    limit: float | None = None
    limit_text: str = ""


@dataclass(frozen=True)
class Frame:
    """What the panels of a figure share."""

    title: str
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    subtitle: str = ""
    guide: float | None = None  # a fine vertical line here
    size: tuple[int, int] = (520, 250)  # of one panel, without its labels


def curves_svg(panels: Sequence[Panel], frame: Frame) -> str:
    """The figure as the text of a file: title, legend and the panels side by side."""
    wide, high = frame.size
    width = LEFT + wide * len(panels) + BETWEEN * (len(panels) - 1) + RIGHT
    head = 58 if frame.subtitle else 40
    legend, foot = _legend(panels, head + 6, width - RIGHT)
    top = foot + 16 + TOP
    height = top + high + BOTTOM
    parts = [f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>']
    parts.append(f'<text class="title" x="18" y="30">{escape(frame.title)}</text>')
    if frame.subtitle:
        parts.append(f'<text class="soft" x="18" y="49">{escape(frame.subtitle)}</text>')
    parts.append(legend)
    for place, panel in enumerate(panels):
        start = LEFT + place * (wide + BETWEEN)
        parts.append(_panel(panel, frame, (start, top), first=place == 0))
    label = escape(f"{frame.title}: {frame.y_label} against {frame.x_label}", quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{label}">\n'
        f"<style>{_style()}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _style() -> str:
    def tones(colours: Sequence[str]) -> str:
        return "".join(f".curves .s{place}{{stroke:{colour}}}" for place, colour in enumerate(colours))

    family = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
    return (
        f".curves text{{font:12px {family};fill:#5f6770}}.curves .title{{font-size:15px;font-weight:600;fill:#1d2125}}"
        ".curves .name{fill:#1d2125}.curves .head{font-weight:600;fill:#1d2125}.curves .small{font-size:11px}"
        ".curves .end{text-anchor:end}.curves .middle{text-anchor:middle}"
        ".curves .card{fill:#fff;stroke:#e3e3dd}.curves .grid{stroke:#e9e9e4}.curves .axis{stroke:#b9bdc2}"
        ".curves .shade{fill:#f1f1ed}.curves path{fill:none}"
        ".curves .line{stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}"
        ".curves .dashed{stroke-dasharray:7 6;stroke-linecap:butt}.curves .s4.line{stroke-width:1.6}"
        ".curves .jump{stroke-width:1.2;stroke-dasharray:1.5 3}.curves .guide{stroke:#b9bdc2;stroke-dasharray:2 3}"
        f"{tones(LIGHT)}"
        "@media (prefers-color-scheme:dark){"
        ".curves text{fill:#9aa3ad}.curves .title,.curves .name,.curves .head{fill:#e6e7e8}"
        ".curves .card{fill:#1b1f23;stroke:#2d3338}.curves .grid{stroke:#2a2f35}.curves .axis{stroke:#566069}"
        f".curves .shade{{fill:#22272c}}.curves .guide{{stroke:#566069}}{tones(DARK)}}}"
    )


def _legend(panels: Sequence[Panel], y: int, most: float) -> tuple[str, int]:
    """The names beside their strokes, in as many lines as they need, and where the last line is."""
    names = {curve.name: curve for panel in panels for curve in panel.curves}
    parts, x = [], 18.0
    for name, curve in names.items():
        taken = 28 + LETTER * len(name)
        if x > 18 and x + taken > most:
            x, y = 18.0, y + 19
        dashed = " dashed" if curve.dashed else ""
        parts.append(f'<path class="line s{curve.tone}{dashed}" d="M{x:.1f} {y}h22"/>')
        parts.append(f'<text class="name" x="{x + 28:.1f}" y="{y + 4}">{escape(name)}</text>')
        x += taken + 20
    return "".join(parts), y


def _panel(panel: Panel, frame: Frame, corner: tuple[float, float], first: bool) -> str:
    wide, high = frame.size
    left, top = corner
    x = AxisScale(*frame.x_range, left, left + wide, ticks=ticks(*frame.x_range, max(3, wide // 90)))
    y = AxisScale(*frame.y_range, top + high, top, ticks=ticks(*frame.y_range, max(3, high // 44)))
    parts = []
    if panel.limit is not None and panel.limit < x.high:
        edge = x(panel.limit)
        parts.append(f'<rect class="shade" x="{edge:.1f}" y="{top}" width="{x.stop - edge:.1f}" height="{high}"/>')
        middle = (edge + x.stop) / 2
        if LETTER * len(panel.limit_text) < x.stop - edge:
            parts.append(
                f'<text class="small middle" x="{middle:.1f}" y="{top + 16}">{escape(panel.limit_text)}</text>'
            )
    for tick in y.ticks:
        parts.append(f'<path class="grid" d="M{left} {y(tick):.1f}h{wide}"/>')
        if first:
            parts.append(f'<text class="small end" x="{left - 7}" y="{y(tick) + 4:.1f}">{tick_text(tick, y)}</text>')
    for tick in x.ticks:
        parts.append(f'<path class="axis" d="M{x(tick):.1f} {top + high}v4"/>')
        parts.append(f'<text class="small middle" x="{x(tick):.1f}" y="{top + high + 17}">{tick_text(tick, x)}</text>')
    parts.append(f'<path class="axis" d="M{left} {top + high}h{wide}"/>')
    if frame.guide is not None:
        parts.append(f'<path class="guide" d="M{x(frame.guide):.1f} {top}v{high}"/>')
    parts += [_drawn(curve, x, y) for curve in panel.curves]
    if first:
        parts.append(f'<text x="{left - 28}" y="{top - 12}">{escape(frame.y_label)}</text>')
    if panel.title:
        parts.append(f'<text class="head middle" x="{left + wide / 2:.1f}" y="{top - 12}">{escape(panel.title)}</text>')
    parts.append(f'<text class="end" x="{left + wide}" y="{top + high + 34}">{escape(frame.x_label)}</text>')
    return "".join(parts)


def ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    """Round numbers within [low, high], about `most` of them."""
    stride = tick_stride((high - low) / most)
    first, last = math.ceil(low / stride - 1e-6), math.floor(high / stride + 1e-6)
    return tuple(place * stride for place in range(first, last + 1))


def _drawn(curve: PlottedCurve, x: AxisScale, y: AxisScale) -> str:
    """The stretches of a curve, cut at the frame, and a riser wherever one ends above or below the next."""
    low, high = min(y.low, y.high), max(y.low, y.high)
    pixels = []
    for stretch in curve.stretches:
        inside = [(x(at), y(value)) for at, value in within(stretch, low, high)]
        if inside:
            pixels.append(straightened(inside))
    dashed = " dashed" if curve.dashed else ""
    parts = []
    for before, after in pairwise(pixels):
        (at, start), (next_at, stop) = before[-1], after[0]
        if abs(at - next_at) < 0.5 and abs(start - stop) > 1:
            parts.append(f'<path class="jump s{curve.tone}" d="M{at:.1f} {start:.1f}V{stop:.1f}"/>')
    for points in pixels:
        way = "L".join(f"{at:.1f} {value:.1f}" for at, value in points)
        parts.append(f'<path class="line s{curve.tone}{dashed}" d="M{way}"/>')
    return "".join(parts)


def within(points: Sequence[Point], low: float, high: float) -> list[Point]:
    """The points up to where a curve leaves [low, high], which it meets exactly; what lies outside is left out."""
    kept: list[Point] = []
    for place, (at, value) in enumerate(points):
        if low <= value <= high:
            if place and not low <= points[place - 1][1] <= high:
                kept.append(_crossing(points[place - 1], (at, value), low, high))
            kept.append((at, value))
        elif place and low <= points[place - 1][1] <= high:
            kept.append(_crossing(points[place - 1], (at, value), low, high))
    return kept


def _crossing(one: Point, other: Point, low: float, high: float) -> Point:
    edge = high if max(one[1], other[1]) > high else low
    share = (edge - one[1]) / (other[1] - one[1])
    return one[0] + share * (other[0] - one[0]), edge


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
