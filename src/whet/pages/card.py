"""A run in small, for a notebook: one figure, and a card with the verdict, the headline numbers and the figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from whet.pages.chart_specs import Point, chart, fits_unit, line
from whet.pages.chart_svg import figure_file
from whet.pages.render import render
from whet.pages.run_charts import columns_of, drawn_charts, main_chart
from whet.pages.run_report import POINTS, health_cards, tiles
from whet.record.flat_rows import eval_row, step_row
from whet.record.log import METRICS, read_lines
from whet.record.run import RunRecord, read_run, verdict
from whet.types import WhetError, did_you_mean

EVAL = "eval/"  # in front of the metrics of evaluations
MOST_LISTED = 30  # names in an error
FIGURE_SIZE = (656, 190)


def run_figure(folder: Path | str) -> str:
    """The headline evaluation and what was trained, by step, as one SVG that needs no style sheet; "" before any."""
    return _main_figure(read_run(folder))


def _main_figure(run: RunRecord) -> str:
    plan, columns = main_chart(run), columns_of(run.steps)
    points = {name: columns.points(name, None, None, POINTS) for name in plan.columns}
    figures = drawn_charts([plan], points, run.evals)
    return figure_file([figures[0].spec], size=FIGURE_SIZE) if figures else ""


def metrics_figure(folders: Mapping[str, Path | str], names: Sequence[str], smooth: int = 0) -> str:
    """Metrics of one run or of several, by step: a panel per metric, a line per run; an SVG like `run_figure`'s.

    Names are the columns of `run.metrics()`, and `eval/NAME` for those of evaluations. `smooth` is the number of steps
    that each point is the mean of; evaluations are drawn as they were measured.
    """
    curves_of = {label: _curves(folder) for label, folder in folders.items()}
    panels = []
    for name in names:
        lines = {label: curves.get(name, ()) for label, curves in curves_of.items()}
        if not any(lines.values()):
            known = list(dict.fromkeys(metric for curves in curves_of.values() for metric in curves))
            listed = ", ".join(known[:MOST_LISTED]) + (", ..." if len(known) > MOST_LISTED else "")
            raise WhetError(
                f"no metric is called {name!r}{did_you_mean(name, known)}; "
                + (f"there are: {listed}" if known else "the run has no step yet")
            )
        series = [
            line(
                label if len(lines) > 1 else name,
                points if name.startswith(EVAL) else _mean_of(points, smooth),
                tone,
                marked=name.startswith(EVAL) or smooth > 1,
            )
            for tone, (label, points) in enumerate(lines.items())
            if points
        ]
        values = [value for points in lines.values() for _, value in points]
        panels.append(chart(series, unit=fits_unit(values), title=name))
    return figure_file(panels, size=FIGURE_SIZE, columns=1)


def _curves(folder: Path | str) -> dict[str, tuple[Point, ...]]:
    """Every number of the run's log by name."""
    points_of: dict[str, list[Point]] = {}
    for row in read_lines(Path(folder) / METRICS):
        is_eval = "eval" in row
        for name, value in (eval_row(row) if is_eval else step_row(row)).items():
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                points_of.setdefault(f"{EVAL}{name}" if is_eval else name, []).append(
                    (float(row["step"]), float(value))
                )
    return {name: tuple(points) for name, points in points_of.items()}


def _mean_of(points: tuple[Point, ...], steps: int) -> tuple[Point, ...]:
    """A moving average: each point as the mean of its neighbours, with fewer at the ends."""
    if steps <= 1:
        return points
    values = []
    for index, (step, _) in enumerate(points):
        reach = min((steps - 1) // 2, index, len(points) - 1 - index)
        values.append((step, fmean(value for _, value in points[index - reach : index + reach + 1])))
    return tuple(values)


def run_card(folder: Path | str) -> str:
    """Verdict, numbers, story, problems and the figure as a piece of HTML. Everything from the run is escaped."""
    run = read_run(folder)
    spans = run.finding_spans()
    return render(
        "card.html",
        title=run.title,
        status=run.status,
        verdict=verdict(run),
        tiles=tiles(run),
        story=run.story(spans),
        problems=[card for card in health_cards(spans) if card["is_problem"]],
        figure=_main_figure(run),
        folder=str(run.folder),
    )
