"""Line charts as SVG text. Pure; colours come from the page's style sheet through class names.

`s0`, `s1`, ... colour a series, `tick`, `grid`, `strip`, `raw`, `band`, `dot` its parts. Hovering a strip of the
chart shows the values there, through `<title>`, so nothing needs a script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

from whet.report.text import number

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
class Scale:
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


def line_chart(series: Sequence[Series], label: str, size: tuple[int, int] = (340, 168), unit: bool = False) -> str:
    """All series on one pair of axes; `unit` fixes the vertical axis to 0..1. Empty without a point."""
    drawn = [line for line in series if line.points]
    if not drawn:
        return ""
    width, height = size
    steps = [step for line in drawn for step, _ in line.points]
    values = [value for line in drawn for _, value in line.points]
    vertical = value_scale(values, (height - 22, 8), unit)
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    left = 10 + 6.4 * max(len(text) for text in texts)
    horizontal = step_scale(min(steps), max(steps), (left, width - 8))
    parts = [axes(vertical, horizontal, texts, size)]
    for place, line in enumerate(drawn):
        parts.append(_line(line, f"s{place}", vertical, horizontal))
    parts.append(strips(drawn, horizontal, height - 22))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def value_scale(values: Sequence[float], pixels: tuple[float, float], unit: bool = False) -> Scale:
    """Zero is shown when it is near; four or five ticks; logarithmic over two decades or more of positives."""
    low, high = min(values), max(values)
    if unit:
        return Scale(0.0, 1.0, *pixels, ticks=(0.0, 0.25, 0.5, 0.75, 1.0))
    if low > 0 and high / low >= 200:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = max(1, math.ceil((last - first) / 4))
        last = first + decades * math.ceil((last - first) / decades)
        ticks = tuple(10.0**power for power in range(first, last + 1, decades))
        return Scale(10.0**first, 10.0**last, *pixels, ticks=ticks, log=True)
    if low >= 0 and low < 0.5 * high:
        low = 0.0
    if high - low <= 1e-9 * max(abs(high), abs(low)) or high == low:
        room = 0.5 * abs(high) or 1.0
        low, high = low - room, high + room
    stride = tick_stride((high - low) / 4)
    first, last = math.floor(low / stride + 1e-9), math.ceil(high / stride - 1e-9)
    ticks = tuple(place * stride for place in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], *pixels, ticks=ticks)


def step_scale(first: float, last: float, pixels: tuple[float, float]) -> Scale:
    """Whole steps only."""
    if last == first:
        return Scale(first - 1, last + 1, *pixels, ticks=(first,))
    stride = max(1.0, tick_stride((last - first) / max(5.0, (pixels[1] - pixels[0]) / 80)))
    stride = stride if stride == int(stride) else math.ceil(stride)
    start = math.ceil(first / stride)
    ticks = tuple(place * stride for place in range(start, math.floor(last / stride) + 1))
    return Scale(first, last, *pixels, ticks=ticks)


def tick_stride(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def tick_text(tick: float, scale: Scale) -> str:
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


def axes(vertical: Scale, horizontal: Scale, texts: Sequence[str], size: tuple[int, int]) -> str:
    width, height = size
    parts = []
    for tick, text in zip(vertical.ticks, texts, strict=True):
        y = vertical(tick)
        parts.append(f'<path class="grid" d="M{horizontal.start:.1f} {y:.1f}H{width - 8}"/>')
        parts.append(f'<text class="tick end" x="{horizontal.start - 5:.1f}" y="{y + 3.5:.1f}">{text}</text>')
    for tick in horizontal.ticks:
        x = horizontal(tick)
        anchor = "end" if x > width - 20 else "middle"
        parts.append(f'<text class="tick {anchor}" x="{x:.1f}" y="{height - 6}">{tick:.0f}</text>')
    return "".join(parts)


def _line(line: Series, tone: str, vertical: Scale, horizontal: Scale) -> str:
    cells = thinned(line.points)
    xs = [horizontal(step) for step, *_ in cells]
    means = [mean for _, mean, _, _ in cells]
    parts = []
    if len(line.points) > len(cells):
        upper = [f"{x:.1f} {vertical(high):.1f}" for x, (*_, high) in zip(xs, cells, strict=True)]
        lower = [f"{x:.1f} {vertical(low):.1f}" for x, (_, _, low, _) in zip(xs, cells, strict=True)]
        parts.append(f'<path class="band {tone}" d="M{"L".join(upper + lower[::-1])}Z"/>')
    if not line.marked and len(means) >= 30:
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


def _path(xs: Sequence[float], values: Sequence[float], vertical: Scale) -> str:
    return "M" + "L".join(f"{x:.1f} {vertical(value):.1f}" for x, value in zip(xs, values, strict=True))


def strips(series: Sequence[Series], horizontal: Scale, bottom: float) -> str:
    """One invisible column a step, or a stretch of steps, that tells its values when pointed at."""
    told: dict[float, list[str]] = {}
    for line in series:
        for step, mean, _, _ in thinned(line.points):
            told.setdefault(step, []).append(f"{line.name} {number(mean)}")
    steps = sorted(told)
    xs = [horizontal(step) for step in steps]
    edges = [horizontal.start, *((a + b) / 2 for a, b in pairwise(xs)), horizontal.stop]
    return "".join(
        f'<rect class="strip" x="{left:.1f}" y="8" width="{max(right - left, 0.5):.1f}" height="{bottom - 8:.0f}">'
        f"<title>step {step:.0f}: {escape(', '.join(told[step]))}</title></rect>"
        for step, left, right in zip(steps, edges, edges[1:], strict=False)
    )
