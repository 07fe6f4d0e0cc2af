"""The spread of each part of a reward by step, as figures for a run's page. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from whet.report.svg import Series, axes, step_scale, strips, tick_text, value_scale
from whet.report.text import number, percent


def spread_figures(spreads: Sequence[tuple[int, Mapping[str, Mapping[str, float]]]]) -> str:
    """For each part a figure of its spread by step: all of it, its middle half, its mean. `spreads` has
    (step, part -> distribution) as recorded; nothing where nothing was."""
    names = dict.fromkeys(name for _, spread in spreads for name in spread)
    figures = []
    for place, name in enumerate(names):
        points = [(float(step), spread[name]) for step, spread in spreads if _is_whole(spread.get(name))]
        if points:
            figures.append(_spread_figure(name, points, f"s{place % 8}"))
    return "".join(figures)


def _is_whole(marks: Mapping[str, float] | None) -> bool:
    wanted = ("min", "q1", "median", "q3", "max", "mean")
    return marks is not None and all(name in marks and math.isfinite(marks[name]) for name in wanted)


def _spread_figure(name: str, points: Sequence[tuple[float, Mapping[str, float]]], tone: str) -> str:
    width, height = 340, 168
    values = [marks[end] for _, marks in points for end in ("min", "max")]
    vertical = value_scale(values, (height - 22, 8), min(values) >= 0 and 0.5 < max(values) <= 1)
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    left = 10 + 6.4 * max(map(len, texts))
    horizontal = step_scale(points[0][0], points[-1][0], (left, width - 8))
    drawn = [axes(vertical, horizontal, texts, (width, height))]
    for low, high in (("min", "max"), ("q1", "q3")):  # one over the other: the middle half is darker
        corners = [f"{horizontal(step):.1f} {vertical(marks[high]):.1f}" for step, marks in points]
        corners += [f"{horizontal(step):.1f} {vertical(marks[low]):.1f}" for step, marks in points[::-1]]
        drawn.append(f'<path class="band {tone}" d="M{"L".join(corners)}Z"/>')
    mean = "L".join(f"{horizontal(step):.1f} {vertical(marks['mean']):.1f}" for step, marks in points)
    drawn.append(f'<path class="line {tone}" d="M{mean}"/>')
    series = [
        Series(mark, tuple((step, marks[mark]) for step, marks in points)) for mark in ("min", "median", "mean", "max")
    ]
    drawn.append(strips(series, horizontal, height - 22))
    flat = points[-1][1].get("flat")
    tail = f"; {percent(flat)} of groups flat" if flat is not None else ""
    return (
        f'<figure><figcaption><b>Spread: {escape(name)}</b><span class="soft">range, middle half, mean</span>'
        f'<span class="last">{number(points[-1][1]["mean"])}</span></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Spread of {escape(name, quote=True)} by step">'
        f'{"".join(drawn)}</svg><p class="range">last step: min {number(points[-1][1]["min"])}, '
        f"max {number(points[-1][1]['max'])}{tail}</p></figure>"
    )
