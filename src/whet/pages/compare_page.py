"""compare.html: one plot and one table of methods side by side; the board shows the same page, with its own links."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any
from urllib.parse import quote

from whet.pages.chart_specs import NUM_TONES, ChartSeries, chart, line, smoothed
from whet.pages.chart_svg import LEAST_SMOOTHED
from whet.pages.compare import BEST, MethodComparison, MethodRun, cells, heads, notes, rows, standings, verdict
from whet.pages.render import Figure, render_live
from whet.pages.run_report import REPORT

MOST_NAMES = 6  # in the title


def compare_page(comparison: MethodComparison) -> str:
    """The whole page, for a folder that the runs lie in."""
    return render_live("compare.html", **comparison_page_values(comparison, _report_beside))


def _report_beside(run: MethodRun) -> str:
    return f"{quote(run.folder)}/{REPORT}" if run.folder else ""


def comparison_page_values(comparison: MethodComparison, address: Callable[[MethodRun], str]) -> dict[str, Any]:
    """What the page is filled in with; `address` is where the page of a run is, empty where it has none."""
    methods, seeds = len(comparison.methods), len(comparison.seeds)
    about = f"{methods} method{'s' if methods > 1 else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
    return {
        "title": ", ".join(comparison.methods) if methods <= MOST_NAMES else f"{methods} methods",
        "eyebrow": "whet compare",
        "about": (f"{len(comparison.results)} finished runs" if comparison.planned else about,),
        "status": comparison.status,
        "verdict": _held_together(verdict(comparison)),
        "head": heads(comparison),
        "rows": table_rows(comparison, address),
        "notes": [_held_together(note) for note in notes(comparison)],
        "figure": reward_figure(comparison),
        "equal": dict(comparison.equal),
        "unequal": dict(comparison.unequal),
        "command": comparison.command,
    }


def table_rows(comparison: MethodComparison, address: Callable[[MethodRun], str]) -> list[dict[str, Any]]:
    """The table, with a link per seed."""
    best = standings(comparison)
    return [
        {
            "method": row.method,
            "is_best": best[row.method].relation.startswith(BEST),
            "links": [(run.seed, link) for run in row.results if (link := address(run))],
            "cells": [_held_together(text) for text in texts[1:]],
        }
        for row, texts in zip(rows(comparison), cells(comparison), strict=True)
    ]


def _held_together(text: str) -> str:
    """With no line break inside `p < 0.05`."""
    return re.sub(r"\bp ([=<]) (?=\d)", "p\u00a0\\1\u00a0", text)


def reward_bands(comparison: MethodComparison) -> list[ChartSeries]:
    """The mean reward of each method with finished runs; a step counts where every one of them has a reward."""
    series = []
    for tone, row in enumerate(rows(comparison)):
        by_seed = [{step: value for step, value in run.rewards if math.isfinite(value)} for run in row.results]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        if not steps:
            continue
        values = [[seed[step] for seed in by_seed] for step in steps]
        means, lows, highs = (_calmed([of(each) for each in values]) for of in (fmean, min, max))
        points = list(zip(steps, means, strict=True))
        series.append(line(row.method, points, tone, low=lows, high=highs, dashed=tone // NUM_TONES % 2 == 1))
    return series


def _calmed(values: Sequence[float]) -> list[float]:
    """Long series are smoothed, the band like the line, so that the line stays inside it."""
    return smoothed(values) if len(values) >= LEAST_SMOOTHED else list(values)


def reward_figure(comparison: MethodComparison) -> Figure | None:
    """The mean reward of each method by step, with what its seeds differ in."""
    series = reward_bands(comparison)
    if not series:
        return None
    calm = ", smoothed" if any(len(each["x"]) >= LEAST_SMOOTHED for each in series) else ""
    seeds = "mean over seeds, band from the lowest to the highest" if len(comparison.seeds) > 1 else "one seed"
    spec = chart(series, smooth=False, named=True, height=320)
    return Figure("Mean reward", f"by step; {seeds}{calm}", spec, is_wide=True)
