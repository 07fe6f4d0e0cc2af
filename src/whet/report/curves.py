"""Named curves against x as an SVG file of its own: a figure for a page, in light and dark.

A curve is drawn in stretches; between two of them it jumps, which shows as a dotted riser. Colours are written in the
file, with a card behind them, so that a figure is legible on any page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from whet.report.svg import Point, Scale, tick_stride, tick_text

Stretch = tuple[Point, ...]
TONES = 4  # and one more, the last, for what the others are compared with
QUIET = TONES
TOP, BOTTOM, LEFT, RIGHT, BETWEEN, LETTER = 30, 44, 46, 18, 40, 6.3

LIGHT = ("#0f766e", "#c2620a", "#4f5bd5", "#b83280", "#8a8f98")
DARK = ("#3fb8a9", "#f0a052", "#8f9bff", "#ee7fb8", "#7d858f")


@dataclass(frozen=True)
class Curve:
    """One line. Curves of the same name share an entry of the legend."""

    name: str
    stretches: tuple[Stretch, ...]
    tone: int = 0
    dashed: bool = False  # lets a curve below show through where both run together


@dataclass(frozen=True)
class Panel:
    """One pair of axes. Right of `limit` there is nothing to draw: the field is shaded and `limit_text` says why."""

    curves: tuple[Curve, ...]
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
    shown = {curve.name: curve for panel in panels for curve in panel.curves}
    parts, x = [], 18.0
    for name, curve in shown.items():
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
    x = Scale(*frame.x_range, left, left + wide, ticks=ticks(*frame.x_range, max(3, wide // 90)))
    y = Scale(*frame.y_range, top + high, top, ticks=ticks(*frame.y_range, max(3, high // 44)))
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


def _drawn(curve: Curve, x: Scale, y: Scale) -> str:
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
    found: list[Point] = []
    for place, (at, value) in enumerate(points):
        if low <= value <= high:
            if place and not low <= points[place - 1][1] <= high:
                found.append(_crossing(points[place - 1], (at, value), low, high))
            found.append((at, value))
        elif place and low <= points[place - 1][1] <= high:
            found.append(_crossing(points[place - 1], (at, value), low, high))
    return found


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
