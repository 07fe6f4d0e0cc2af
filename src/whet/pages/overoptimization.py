"""Overoptimization as text, JSON and a page: sentences for each proxy, tables, the fitted laws, the figure. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from whet.pages.chart_specs import QUIET, Point, chart, curve
from whet.pages.chart_svg import LEFT, RIGHT, figure_file, tick_stride
from whet.pages.render import PageTable, render
from whet.record.metrics.overoptimization import LAWS, Law, ProxyResult, ScorePoint, mean_curve
from whet.record.text import ABSENT, aligned, number

FALLEN = 0.1  # standard deviations below the peak from which a score is said to have fallen
HEADS = ("", "peak d", "gold there", "end d", "gold there", "proxy there", "alpha", "beta", "R^2", "law's peak d")
PANELS: dict[str, tuple[str, str]] = {
    "best_of_n": ("Best of n", "proxies of several data sizes choose among the start's completions"),
    "rl": ("Learning", "proxies of several data sizes, no KL penalty"),
    "kl": ("Learning with a KL penalty", "{base}, held to the start"),
    "ensemble": ("Learning from an ensemble", "several proxies of {base}, agreed"),
    "best_of_n_ensemble": ("Best of n by an ensemble", "several proxies of {base}, agreed"),
}
DRAWN = ("best_of_n", "rl", "kl", "ensemble")
SIZE, GAP = (470, 210), 14
LAW_STEPS = 60


def cells(result: ProxyResult) -> list[str]:
    """One row of the table."""
    law = result.law
    fitted = [ABSENT] * 4 if law is None else [number(law.alpha), number(law.beta), number(law.r_squared), _turn(law)]
    measured = (result.peak.d, result.peak.gold, result.end.d, result.end.gold, result.end.proxy)
    return [result.name, *map(number, measured), *fitted]


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


def table_text(results: Sequence[ProxyResult]) -> str:
    """The results of one group as an aligned table."""
    return "\n".join(aligned([HEADS, *map(cells, results)]))


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


def figure_svg(results: Sequence[ProxyResult], base: str) -> str:
    """The panels two by two in one file; empty without a result. `base` is the proxy that KL and ensembles change."""
    panels = [_panel_svg(group, results, base) for group in DRAWN]
    parts = [text for text in panels if text]
    if not parts:
        return ""
    wide = LEFT + SIZE[0] + RIGHT
    heights = [float(text.split('height="', 1)[1].split('"', 1)[0]) for text in parts]
    high = max(heights)
    rows = math.ceil(len(parts) / 2)
    width, height = (2 * wide + GAP if len(parts) > 1 else wide), rows * high + (rows - 1) * GAP
    placed = [
        text.replace("<svg ", f'<svg x="{place % 2 * (wide + GAP):.0f}" y="{place // 2 * (high + GAP):.0f}" ', 1)
        for place, text in enumerate(parts)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="Gold and proxy score against sqrt(KL)">\n'
        f"{''.join(placed)}</svg>\n"
    )


def _panel_svg(group: str, results: Sequence[ProxyResult], base: str) -> str:
    mine = [result for result in results if result.group == group]
    if not mine:
        return ""
    if group in ("kl", "ensemble"):  # beside what they are to improve, of the same seeds
        seeds = {each.seed for result in mine for each in result.curves}
        bare = [_of_seeds(result, seeds) for result in results if result.group == "rl" and result.name == base]
        mine = [*bare, *mine]
    fitted = [result.law for result in mine if result.law is not None and result.law.fits] if group in LAWS else []
    curves = [curve("fitted law", (_law_points(law),), QUIET) for law in fitted]
    curves += [curve(result.name, (_points(result, "gold"),), tone) for tone, result in enumerate(mine)]
    curves += [curve("proxy", (_points(result, "proxy"),), tone, dashed=True) for tone, result in enumerate(mine)]
    points = [point for result in mine for point in result.mean]
    title, subtitle = PANELS[group]
    far = max(point.d for point in points)
    low, high = _range([value for point in points for value in (point.gold, point.proxy)])
    spec = chart(
        curves,
        x={"label": "d = sqrt(KL)", "min": 0.0, "max": 1.02 * far},
        y={"label": "score", "min": low, "max": high},
        smooth=False,
    )
    return figure_file([spec], title, subtitle.format(base=base), size=SIZE)


def _of_seeds(result: ProxyResult, seeds: set[int]) -> ProxyResult:
    curves = [curve for curve in result.curves if curve.seed in seeds]
    return replace(result, mean=mean_curve(curves), curves=tuple(curves))


def _points(result: ProxyResult, part: str) -> list[Point]:
    start = [(0.0, 0.0)] if result.kind == "rl" else []  # the start itself: by definition both scores are 0 there
    return [*start, *((point.d, getattr(point, part)) for point in result.mean)]


def _law_points(law: Law) -> list[Point]:
    return [(law.reach * step / LAW_STEPS, law(law.reach * step / LAW_STEPS)) for step in range(LAW_STEPS + 1)]


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(0.0, *values), max(0.0, *values)
    stride = tick_stride(max(high - low, 1e-6) / 5) / 2
    return stride * math.floor(low / stride), stride * math.ceil(high / stride)


def study_page(
    results: Sequence[ProxyResult], base: str, facts: Mapping[str, str], command: str, is_finished: bool
) -> str:
    """The whole page."""
    return render(
        "overoptimization.html",
        title="Over-optimisation",
        heading="The true score while a learned one is optimised",
        eyebrow="whet study",
        about=("over-optimisation",),
        status="finished" if is_finished else "unfinished",
        verdict=verdict(results),
        figure=figure_svg(results, base),
        tables=[table for group in PANELS if (table := _table(group, results, base)) is not None],
        facts=dict(facts),
        command=command,
    )


def verdict(results: Sequence[ProxyResult]) -> str:
    """What the learning runs showed, the smallest proxy first."""
    mine = [result for result in results if result.group == "rl"]
    return ". ".join(sentence(result) for result in mine) + "." if mine else "No learning run is finished yet."


def _table(group: str, results: Sequence[ProxyResult], base: str) -> tuple[str, str, PageTable] | None:
    mine = [result for result in results if result.group == group]
    if not mine:
        return None
    title, about = PANELS[group]
    table = PageTable(HEADS, tuple(tuple(cells(result)) for result in mine))
    return title, f"{about.format(base=base)}; {LAWS[mine[0].kind]}", table
