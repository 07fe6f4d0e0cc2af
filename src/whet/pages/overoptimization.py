"""Over-optimisation as text, JSON and a figure: a sentence and a row for each proxy, and its curves. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from whet.pages.chart_specs import QUIET, Point, chart, curve
from whet.pages.chart_svg import figure_file, tick_stride
from whet.record.metrics.overoptimization import LAWS, Law, ProxyResult, ScorePoint
from whet.record.text import ABSENT, number

FALLEN = 0.1  # standard deviations below the peak from which a score is said to have fallen
HEADS = ("", "peak d", "gold there", "end d", "gold there", "proxy there", "alpha", "beta", "R^2", "law's peak d")
PANELS = {
    "best_of_n": "Best of n",
    "rl": "Learning",
    "kl": "Learning with a KL penalty",
    "best_of_n_ensemble": "Best of n by an ensemble",
    "ensemble": "Learning from an ensemble",
}
DRAWN = ("best_of_n", "rl", "kl", "ensemble")
LAW_STEPS = 60


def cells(result: ProxyResult) -> list[str]:
    """One row of the table."""
    law = result.law
    fitted = [ABSENT] * 4 if law is None else [number(law.alpha), number(law.beta), number(law.r_squared), _turn(law)]
    measured = (result.peak.d, result.peak.gold, result.end.d, result.end.gold, result.end.proxy)
    approach = "best of n" if result.kind == "best_of_n" else "learning"
    return [f"{approach}, {result.name}", *map(number, measured), *fitted]


def _turn(law: Law) -> str:
    if not law.fits:
        return "does not fit"
    if law.peak is None:
        return "none"
    if law.peak < law.nearest:
        return f"before {number(law.nearest)}"
    return number(law.peak) if law.peak <= law.reach else f"beyond {number(law.reach)}"


def sentence(result: ProxyResult) -> str:
    """What happened to the true score, in words."""
    peak, end = result.peak, result.end
    if result.lost < FALLEN:
        words = f"gold rose to {number(end.gold)} and did not fall" if end.gold >= FALLEN else "gold did not rise"
    elif peak.gold < FALLEN:
        words = f"gold only fell, to {number(end.gold)}"
    else:
        words = f"gold rose to {number(peak.gold)} at d = {number(peak.d)}, then fell to {number(end.gold)}"
    return f"{result.name}: {words}, while the proxy went to {number(end.proxy)}"


def result_values(result: ProxyResult) -> dict[str, Any]:
    """A result as JSON."""

    def listed(points: Sequence[ScorePoint]) -> list[dict[str, float]]:
        return [{"d": point.d, "gold": point.gold, "proxy": point.proxy} for point in points]

    law = result.law
    fitted = None
    if law is not None:
        fitted = {
            "law": LAWS[law.kind],
            "alpha": law.alpha,
            "beta": law.beta,
            "r_squared": law.r_squared,
            "fits": law.fits,
            "peak": law.peak,
            "points": law.num_points,
        }
    return {
        "name": result.name,
        "group": result.group,
        "peak": listed([result.peak])[0],
        "end": listed([result.end])[0],
        "fit": fitted,
        "mean": listed(result.mean),
        "seeds": {str(curve.seed): listed(curve.points) for curve in result.curves},
    }


def figure_svg(results: Sequence[ProxyResult]) -> str:
    """A panel per group, two by two on the same axes; the first proxy that learns stands beside what restrains it."""
    tones = {name: tone for tone, name in enumerate(dict.fromkeys(result.name for result in results))}
    bare = [result for result in results if result.group == "rl"][:1]
    shown = [
        (group, [*(bare if group in ("kl", "ensemble") else ()), *mine])
        for group in DRAWN
        if (mine := [result for result in results if result.group == group])
    ]
    points = [point for _, mine in shown for result in mine for point in result.mean]
    low, high = _range([value for point in points for value in (point.gold, point.proxy)])
    panels = []
    for group, mine in shown:
        fitted = [result.law for result in mine if result.law is not None and result.law.fits] if group in LAWS else []
        curves = [curve("fitted law", (_law_points(law),), QUIET) for law in fitted]
        curves += [curve(result.name, (_points(result, "gold"),), tones[result.name]) for result in mine]
        curves += [curve("its proxy", (_points(result, "proxy"),), tones[result.name], dashed=True) for result in mine]
        x = {"label": "d = sqrt(KL)", "min": 0.0, "max": 1.02 * max(p.d for result in mine for p in result.mean)}
        y = {"label": "score", "min": low, "max": high}
        panels.append(chart(curves, x=x, y=y, smooth=False, title=PANELS[group]))
    return figure_file(panels, "Gold and proxy score against sqrt(KL)", size=(430, 210), columns=2)


def _points(result: ProxyResult, part: str) -> list[Point]:
    start = [(0.0, 0.0)] if result.kind == "rl" else []  # the start itself: by definition both scores are 0 there
    return [*start, *((point.d, getattr(point, part)) for point in result.mean)]


def _law_points(law: Law) -> list[Point]:
    return [(law.reach * step / LAW_STEPS, law(law.reach * step / LAW_STEPS)) for step in range(LAW_STEPS + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(0.0, *values), max(0.0, *values)
    stride = tick_stride(max(high - low, 1e-6) / 5) / 2
    return stride * math.floor(low / stride), stride * math.ceil(high / stride)
