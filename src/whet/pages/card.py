"""A run in small, for a notebook: one figure, and a card with the verdict, the headline numbers and the figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from whet.pages.charts import NUM_TONES, Point, Series, line_chart
from whet.pages.render import render
from whet.pages.run_report import main_series, problems, tiles
from whet.record.log import METRICS, read_lines
from whet.record.rows import eval_row, step_row
from whet.record.run import read_run, verdict
from whet.types import WhetError, did_you_mean

# the tones of a page's style sheet
LIGHT = ("#0f766e", "#c2620a", "#4f5bd5", "#b83280", "#6b8e23", "#0e7fb8", "#8b6f4e", "#8a8f98")
DARK = ("#3fb8a9", "#f0a052", "#8f9bff", "#ee7fb8", "#a6c662", "#5cbcf0", "#c9a87e", "#7d858f")
EVAL = "eval/"  # in front of the metrics of evaluations
MOST_LISTED = 30  # names in an error


def _tones(colours: Sequence[str]) -> str:
    return "".join(
        f".whet-figure .line.s{place},.whet-figure .raw.s{place}{{stroke:{colour}}}"
        f".whet-figure .dot.s{place},.whet-figure .band.s{place},.whet-figure .key.s{place}{{fill:{colour}}}"
        for place, colour in enumerate(colours)
    )


# the figure stands on somebody else's page, so it brings the colours that a report's style sheet would give
FIGURE_STYLE = (
    "<style>.whet-figure{max-width:100%;height:auto;font:11px system-ui,sans-serif}"
    ".whet-figure .tick{fill:#7d858f;font-size:11px}.whet-figure .end{text-anchor:end}"
    ".whet-figure .middle{text-anchor:middle}.whet-figure .grid{stroke:#8a8f98;stroke-opacity:.25;fill:none}"
    ".whet-figure .line,.whet-figure .raw{fill:none;stroke-width:1.8}.whet-figure .raw{opacity:.4;stroke-width:1}"
    ".whet-figure .band{opacity:.16}.whet-figure .strip{fill:transparent}"
    ".whet-figure .name{fill:#7d858f;font-size:13px;font-weight:600}"
    f"{_tones(LIGHT)}@media (prefers-color-scheme:dark){{{_tones(DARK)}}}</style>"
)
FIGURE_SIZE = (720, 240)


def run_figure(folder: Path | str) -> str:
    """The headline evaluation and what was trained, by step, as one SVG that needs no style sheet; "" before any."""
    series = main_series(read_run(folder))
    if not series:
        return ""
    names = " and ".join(dict.fromkeys(line.name for line in series))
    return _stacked([_panel("", series, f"{names} by step")])


def metrics_figure(folders: Mapping[str, Path | str], names: Sequence[str], smooth: int = 0) -> str:
    """Metrics of one run or of several, by step: a panel per metric, a line per run; an SVG like `run_figure`'s.

    Names are the columns of `run.metrics()`, and `eval/NAME` for those of evaluations. `smooth` is the number of steps
    that each point is the mean of.
    """
    found = {label: _curves(folder) for label, folder in folders.items()}
    panels = []
    for name in names:
        lines = {label: curves.get(name, ()) for label, curves in found.items()}
        if not any(lines.values()):
            known = list(dict.fromkeys(each for curves in found.values() for each in curves))
            listed = ", ".join(known[:MOST_LISTED]) + (", ..." if len(known) > MOST_LISTED else "")
            raise WhetError(
                f"no metric is called {name!r}{did_you_mean(name, known)}; "
                + (f"there are: {listed}" if known else "the run has no step yet")
            )
        few = name.startswith(EVAL)
        series = [
            Series(label if len(lines) > 1 else name, _mean_of(points, smooth), marked=few or smooth > 1)
            for label, points in lines.items()
            if points
        ]
        panels.append(_panel(name, series, f"{name} by step"))
    return _stacked(panels)


def _curves(folder: Path | str) -> dict[str, tuple[Point, ...]]:
    """Every number of the run's log by name."""
    found: dict[str, list[Point]] = {}
    for line in read_lines(Path(folder) / METRICS):
        is_eval = "eval" in line
        for name, value in (eval_row(line) if is_eval else step_row(line)).items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(f"{EVAL}{name}" if is_eval else name, []).append((float(line["step"]), float(value)))
    return {name: tuple(points) for name, points in found.items()}


def _mean_of(points: tuple[Point, ...], steps: int) -> tuple[Point, ...]:
    """Each point as the mean of itself and its neighbours, so many in all; fewer at the ends, as many on each side."""
    if steps <= 1:
        return points
    values = []
    for place, (step, _) in enumerate(points):
        reach = min((steps - 1) // 2, place, len(points) - 1 - place)
        values.append((step, fmean(value for _, value in points[place - reach : place + reach + 1])))
    return tuple(values)


def _panel(title: str, series: Sequence[Series], label: str) -> str:
    """One chart with its legend above it; `title` where there are several charts."""
    values = [value for line in series for _, value in line.points]
    unit = min(values) >= 0 and 0.1 < max(values) <= 1
    heading = f'<text class="name" x="4" y="-26">{escape(title)}</text>' if title else ""
    return heading + _legend([line.name for line in series]) + line_chart(series, label, FIGURE_SIZE, unit)


def _stacked(panels: Sequence[str]) -> str:
    """The panels below each other in one SVG, with the colours that they need."""
    width, height = FIGURE_SIZE
    above = 22 if len(panels) == 1 and 'class="name"' not in panels[0] else 42
    pieces = []
    for place, panel in enumerate(panels):
        chart = panel.replace(f'viewBox="0 0 {width} {height}" ', "").replace("<svg ", "<g ").replace("</svg>", "</g>")
        pieces.append(f'<g transform="translate(0 {place * (height + above) + above})">{chart}</g>')
    whole = len(panels) * (height + above)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="whet-figure" width="{width}" height="{whole}" '
        f'viewBox="0 0 {width} {whole}">{FIGURE_STYLE}{"".join(pieces)}</svg>'
    )


def _legend(names: list[str]) -> str:
    parts, x = [], 46.0
    for place, name in enumerate(names):
        parts.append(
            f'<circle class="key s{place % NUM_TONES}" cx="{x:.0f}" cy="-9" r="4"/>'
            f'<text class="tick" x="{x + 9:.0f}" y="-5">{escape(name)}</text>'
        )
        x += 32 + 6.2 * len(name)
    return "".join(parts)


def run_card(folder: Path | str) -> str:
    """Verdict, headline numbers, problems and the figure as a piece of HTML. Everything from the run is escaped."""
    run = read_run(folder)
    return render(
        "card.html",
        title=run.title,
        status=run.status,
        verdict=verdict(run),
        tiles=tiles(run),
        problems=problems(run),
        figure=run_figure(folder),
        folder=str(run.folder),
    )
