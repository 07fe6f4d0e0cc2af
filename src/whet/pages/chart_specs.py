"""Charts as plain values: the one description of a chart, whoever draws it. Pure.

A spec says what is drawn, not how. `assets/charts.js` draws it where scripts run; `chart_svg` draws the same spec as
SVG for readers without scripts, for print, for notebooks and for the pictures of the docs. A spec holds one of

    series      lines, bands and dots on one pair of axes: see `line` and `chart`
    columns     a histogram: [low, high, count] of each column
    intervals   [name, value, low, high, words] of each row, one below the other
    spans       [name, tone, [[start, end], ...]] of each row: who was busy when
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from whet.record.text import percent

NUM_TONES = 8  # colours of a page's style sheet
QUIET = NUM_TONES - 1  # the tone of what the others are compared with
MOST_CELLS = 600  # stretches of steps that a chart of a page tells apart
DIGITS = 5
LOG_RATIO = 200  # of the largest to the smallest value from which an axis is logarithmic
Point = tuple[float, float]
ChartSpec = dict[str, Any]
ChartSeries = dict[str, Any]


def line(name: str, points: Sequence[Point], tone: int = 0, **look: Any) -> ChartSeries:
    """One line; of a long one each cell's mean, with a band from its lowest to its highest value.

    `look`: `marked` draws dots, `dashed` breaks the line, `bare` leaves the line away, `bars` draws each value from 0
    on, `diamond` stands alone with its interval, `low` and `high` are the edges of a band, `best` is the (x, y) of the
    dot that is marked as the best, `titles` and `sizes` belong to the dots, `value` to the legend.
    A value that is not finite is a gap.
    """
    if len(points) > MOST_CELLS and look.get("low") is None:
        cells = thinned(points, MOST_CELLS)
        points = [(x, mean) for x, mean, _, _ in cells]
        look |= {"low": [low for _, _, low, _ in cells], "high": [high for *_, high in cells]}
    columns = {
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "low": look.get("low"),
        "high": look.get("high"),
    }
    short = {key: [_short(value) for value in values] for key, values in columns.items() if values is not None}
    return curve(name, (), tone, **look | short)


def curve(name: str, stretches: Iterable[Sequence[Point]], tone: int = 0, **look: Any) -> ChartSeries:
    """A line as it was computed, every digit and every point of it, with a gap after each stretch but the last."""
    points: list[tuple[float, float | None]] = []
    for stretch in stretches:
        points += [*([(points[-1][0], None)] if points else ()), *stretch]
    columns = {"x": [x for x, _ in points], "y": [y for _, y in points]}
    shown = {key: value for key, value in look.items() if value is not None and value is not False}
    return {"name": name, "tone": tone % NUM_TONES, **columns, **shown}


def chart(
    series: Sequence[Mapping[str, Any]],
    *,
    x: str | Mapping[str, Any] = "step",
    y: str | Mapping[str, Any] = "",
    unit: bool = False,
    log: bool = False,
    smooth: bool = True,
    **more: Any,
) -> ChartSpec:
    """Series on one pair of axes: whole numbers across unless `x` says otherwise; `unit` fixes the other one to 0..1.

    An axis: `label`, `log`, `min` and `max`, `percent`, `steps` (whole numbers only), `ticks` where they are known,
    `names` that stand for the whole numbers from 0 on.
    More: `height`, `named` (a single series is named too), `lines` (fine lines across at an x or a y; legends show the
    values where one `rests`), `limit`.
    """
    across = {"label": x, "log": False, "steps": True} if isinstance(x, str) else dict(x)
    up = {"label": y, "log": log} if isinstance(y, str) else dict(y)
    up |= {"min": 0, "max": 1} if unit else {}
    return {"x": across, "y": up, "series": [dict(trace) for trace in series], "smooth": smooth, **more}


def cost_line(name: str, points: Sequence[tuple[float, Any, str]], tone: int, **look: Any) -> ChartSeries:
    """A line through (cost, value with its low and high, words): a band around it, and dots that say what they are."""
    has_band = not look.get("dashed")
    return line(
        name,
        [(cost, estimate.value) for cost, estimate, _ in points],
        tone,
        low=[estimate.low for _, estimate, _ in points] if has_band else None,
        high=[estimate.high for _, estimate, _ in points] if has_band else None,
        marked=True,
        titles=[words for *_, words in points],
        value="",
        **look,
    )


def cost_chart(series: Sequence[ChartSeries], is_share: bool, marked: bool = False) -> ChartSpec:
    """Values with their intervals against the logarithm of what they cost; `marked`: each cost carries a label."""
    values = [end for trace in series for key in ("y", "low", "high") for end in trace.get(key, ()) if end is not None]
    across: dict[str, Any] = {"label": "cost", "log": True}
    if marked:
        across["ticks"] = sorted({x for trace in series for x in trace["x"]})
    unit = is_share and max(values) > 0.5
    return chart(series, x=across, unit=unit, smooth=False, named=True, size=(460, 250))


def spans_chart(rows: Iterable[tuple[str, int, Sequence[tuple[float, float]]]], unit: str) -> ChartSpec:
    """A timeline of who was busy when: a row per name, with a bar for each (start, end)."""
    return {"spans": [[name, tone, [[start, end] for start, end in spans]] for name, tone, spans in rows], "unit": unit}


def scatter(points: Sequence[Point], tone: int, most: int = 600) -> ChartSpec:
    """Points, larger where several are at one place; evenly thinned above `most` places."""
    counts = Counter(points)
    # sorted first: every other sample may be of another kind
    drawn = sorted(counts)[:: max(1, math.ceil(len(counts) / most))]
    sizes = [2 + min(math.log2(counts[point]), 5) for point in drawn]
    return chart([line("", drawn, tone, bare=True, sizes=sizes)], x={"label": "", "whole": True}, smooth=False)


def reliability(
    models: Sequence[tuple[str, Sequence[tuple[float, float, int]], str]], least: float, size: tuple[int, int]
) -> ChartSpec:
    """How often each model is right where it is so sure, and the diagonal, on which it means what it says.

    A model: its name, (how sure, how often right, rows) of each tenth, and what the legend says of it. `least` is the
    smallest sureness there can be.
    """
    lines = [line("", [(least, least), (1.0, 1.0)], QUIET, faint=True)]
    for tone, (name, tenths, value) in enumerate(models):
        most = max(rows for *_, rows in tenths)
        prefix = f"{name}: " if name else ""
        titles = [f"{prefix}{percent(sure)} sure, {percent(right)} right, {rows} rows" for sure, right, rows in tenths]
        sizes = [2.5 + 5 * math.sqrt(rows / most) for *_, rows in tenths]
        points = [(sure, right) for sure, right, _ in tenths]
        lines.append(line(name, points, tone, marked=True, sizes=sizes, titles=titles, value=value))
    across = [round(least + (1 - least) * fifth / 5, 2) for fifth in range(6)]
    return chart(
        lines,
        x={"label": "sure", "min": least, "max": 1.0, "percent": True, "ticks": across},
        y={"label": "right", "min": 0.0, "max": 1.0, "percent": True, "ticks": [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]},
        smooth=False,
        size=size,
    )


def reaches(values: Sequence[float]) -> bool:
    """True where values are positive and so far apart that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) / min(values) >= LOG_RATIO


def fits_unit(values: Sequence[float], least: float = 0.1) -> bool:
    """True for shares of which one is above `least`: they are drawn on 0 to 1."""
    return bool(values) and min(values) >= 0 and least < max(values) <= 1


def thinned(points: Sequence[Point], most: int) -> list[tuple[float, float, float, float]]:
    """(step, mean, lowest, highest) of at most `most` stretches."""
    cells = min(most, len(points))
    edges = [len(points) * cell // cells for cell in range(cells + 1)] if cells else []
    result = []
    for start, stop in pairwise(edges):
        values = [value for _, value in points[start:stop]]
        result.append((fmean(step for step, _ in points[start:stop]), fmean(values), min(values), max(values)))
    return result


def smoothed(values: Sequence[float]) -> list[float]:
    """Centred running mean over about a tenth of the course, without the extremes: a spike is not smeared out."""
    most = max(2, min(6, len(values) // 20))
    result = []
    for index in range(len(values)):
        # the window shrinks on both sides at the ends, or the line would not meet where the values begin
        reach = min(most, index, len(values) - 1 - index)
        window = sorted(values[index - reach : index + reach + 1])
        result.append(fmean(window[1:-1] if len(window) >= 5 else window))
    return result


def _short(value: float | None) -> float | None:
    """Rounded to what a screen can show; JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
