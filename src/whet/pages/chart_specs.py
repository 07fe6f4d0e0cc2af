"""Charts as plain values that `assets/charts.js` draws, on the board and in self-contained pages. Pure.

A spec says what is drawn, not how: axes, and series with an optional band. The same figure is drawn in SVG by
`charts` for readers without scripts and for print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from whet.pages.charts import NUM_TONES, BandSeries, Point, Series, thinned

MOST_CELLS = 600  # stretches of steps that a chart of a page tells apart
DIGITS = 5
ChartSpec = dict[str, Any]


def line_spec(
    series: Sequence[Series], *, unit: bool = False, log: bool = False, x: str = "step", first_tone: int = 0
) -> ChartSpec:
    """Lines on one pair of axes; of a long one each cell's mean, with a band from its lowest to its highest value."""
    lines = []
    for place, line in enumerate(series):
        cells = thinned(line.points, MOST_CELLS)
        drawn: dict[str, Any] = {
            "name": line.name,
            "tone": (first_tone + place) % NUM_TONES,
            "x": [_short(step) for step, *_ in cells],
            "y": [_short(mean) for _, mean, _, _ in cells],
        }
        if line.marked:
            drawn["marked"] = True
        if len(cells) < len(line.points):
            drawn["low"] = [_short(low) for _, _, low, _ in cells]
            drawn["high"] = [_short(high) for *_, high in cells]
        lines.append(drawn)
    return chart_spec(lines, unit=unit, log=log, x=x)


def band_spec(series: Sequence[BandSeries], *, unit: bool = False, x: str = "step") -> ChartSpec:
    """Lines with the ranges around them, one shape for all seeds of a method."""
    lines = []
    for line in series:
        lines.append(
            {
                "name": line.name,
                "tone": int(line.tone.split()[0].removeprefix("s")),
                "dashed": "dashed" in line.tone,
                "x": [_short(step) for step in line.steps],
                "y": [_short(value) for value in line.means],
                "low": [_short(value) for value in line.lows],
                "high": [_short(value) for value in line.highs],
            }
        )
    return chart_spec(lines, unit=unit, x=x, smooth=False)


def spread_spec(points: Sequence[tuple[float, Mapping[str, float]]], tone: int) -> ChartSpec:
    """A distribution by step: the mean in its whole range, the median in its middle half."""
    lines = []
    for name, low, high in (("mean", "min", "max"), ("median", "q1", "q3")):
        edges = {end: _by_cell(points, end) for end in (name, low, high)}
        lines.append(
            {
                "name": name,
                "tone": tone % NUM_TONES,
                "dashed": name == "median",
                "x": [_short(step) for step, _ in edges[name]],
                "y": [_short(value) for _, value in edges[name]],
                "low": [_short(value) for _, value in edges[low]],
                "high": [_short(value) for _, value in edges[high]],
            }
        )
    return chart_spec(lines, smooth=False)


def chart_spec(
    lines: Sequence[Mapping[str, Any]],
    *,
    unit: bool = False,
    log: bool = False,
    x: str = "step",
    smooth: bool = True,
) -> ChartSpec:
    """`unit` fixes the vertical axis to 0..1."""
    up: dict[str, Any] = {"label": "", "log": log}
    return {
        "x": {"label": x, "log": False, "steps": True},
        "y": {**up, "min": 0, "max": 1} if unit else up,
        "series": [dict(line) for line in lines],
        "smooth": smooth,
    }


def _by_cell(points: Sequence[tuple[float, Mapping[str, float]]], name: str) -> list[Point]:
    return [(step, mean) for step, mean, _, _ in thinned([(step, each[name]) for step, each in points], MOST_CELLS)]


def _short(value: float) -> float | None:
    """Rounded to what a screen can show; JSON has no NaN."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
