"""compare.html: one plot and one table of methods side by side, on a page that needs nothing but a browser."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any
from urllib.parse import quote

from whet.pages.chart_specs import band_spec
from whet.pages.charts import LEAST_SMOOTHED, NUM_TONES, BandSeries, band_chart, smoothed
from whet.pages.compare import BEST, MethodComparison, cells, heads, notes, rows, standings, verdict
from whet.pages.render import Figure, LegendEntry, render_live
from whet.pages.run_report import REPORT
from whet.record.text import number

MOST_NAMES = 6  # in the title


def reward_bands(comparison: MethodComparison) -> list[BandSeries]:
    """The mean reward of each method with finished runs; a step counts where every one of them has a reward."""
    series = []
    for place, row in enumerate(rows(comparison)):
        by_seed = [{step: value for step, value in run.rewards if math.isfinite(value)} for run in row.results]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        if not steps:
            continue
        values = [[seed[step] for seed in by_seed] for step in steps]
        tone = f"s{place % NUM_TONES}" + (" dashed" if place // NUM_TONES % 2 else "")
        means, lows, highs = ([of(each) for each in values] for of in (fmean, min, max))
        series.append(BandSeries(row.method, tuple(steps), _calmed(means), _calmed(lows), _calmed(highs), tone))
    return series


def _calmed(values: Sequence[float]) -> tuple[float, ...]:
    """Long series are smoothed, the band like the line, so that the line stays inside it."""
    return tuple(smoothed(values) if len(values) >= LEAST_SMOOTHED else values)


def compare_page(comparison: MethodComparison) -> str:
    """The whole page."""
    methods, seeds = len(comparison.methods), len(comparison.seeds)
    about = f"{methods} method{'s' if methods > 1 else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
    title = ", ".join(comparison.methods) if methods <= MOST_NAMES else f"{methods} methods"
    planned = sum(map(comparison.num_planned, comparison.methods))
    return render_live(
        "compare.html",
        title=title,
        eyebrow="whet compare",
        about=(f"{len(comparison.results)} finished runs" if comparison.planned else about,),
        status="finished" if len(comparison.results) == planned else "unfinished",
        verdict=_held_together(verdict(comparison)),
        head=heads(comparison),
        rows=table_rows(comparison),
        notes=[_held_together(note) for note in notes(comparison)],
        figure=reward_figure(comparison),
        equal=dict(comparison.equal),
        unequal=dict(comparison.unequal),
        command=comparison.command,
    )


def table_rows(comparison: MethodComparison) -> list[dict[str, Any]]:
    best = standings(comparison)
    return [
        {
            "method": row.method,
            "is_best": best[row.method].relation.startswith(BEST),
            "links": [(run.seed, f"{quote(run.folder)}/{REPORT}") for run in row.results if run.folder],
            "cells": [_held_together(text) for text in texts[1:]],
        }
        for row, texts in zip(rows(comparison), cells(comparison), strict=True)
    ]


def _held_together(text: str) -> str:
    """With no line break inside `p < 0.05`."""
    return re.sub(r"\bp ([=<]) (?=\d)", "p\u00a0\\1\u00a0", text)


def reward_figure(comparison: MethodComparison) -> Figure | None:
    series = reward_bands(comparison)
    if not series:
        return None
    label = "Mean reward by step, one line per method"
    legend = tuple(
        LegendEntry(line.name, line.tone.split()[0], number(line.means[-1]), dashed="dashed" in line.tone)
        for line in series
    )
    calm = ", smoothed" if any(len(line.steps) >= LEAST_SMOOTHED for line in series) else ""
    seeds = "mean over seeds, band from the lowest to the highest" if len(comparison.seeds) > 1 else "one seed"
    wide, narrow = (band_chart(series, label, size) for size in ((1060, 320), (340, 230)))
    spec = {**band_spec(series), "height": 320}
    return Figure("Mean reward", f"by step; {seeds}{calm}", wide, narrow=narrow, legend=legend, spec=spec)
