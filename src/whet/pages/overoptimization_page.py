"""overoptimization.html: the figure and the tables of the study, on a page that needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from whet.pages.charts import FILE_TONES, LEFT, QUIET, RIGHT, Frame, Panel, PlottedCurve, curves_svg, tick_stride
from whet.pages.overoptimization import HEADS, cells, sentence
from whet.pages.render import PageTable, render
from whet.record.metrics.overoptimization import LAWS, ProxyResult, mean_curve

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
        seeds = {curve.seed for result in mine for curve in result.curves}
        bare = [_of_seeds(result, seeds) for result in results if result.group == "rl" and result.name == base]
        mine = [*bare, *mine]
    curves = [_curve(result, "gold", place % FILE_TONES) for place, result in enumerate(mine)]
    curves += [_curve(result, "proxy", place % FILE_TONES) for place, result in enumerate(mine)]
    laws = [_law_curve(result) for result in mine] if group in LAWS else []
    curves = [law for law in laws if law is not None] + curves
    points = [point for result in mine for point in result.mean]
    title, subtitle = PANELS[group]
    far = max(point.d for point in points)
    low, high = _range([value for point in points for value in (point.gold, point.proxy)])
    frame = Frame(title, "d = sqrt(KL)", "score", (0.0, 1.02 * far), (low, high), subtitle.format(base=base), size=SIZE)
    return curves_svg([Panel(tuple(curves))], frame)


def _of_seeds(result: ProxyResult, seeds: set[int]) -> ProxyResult:
    curves = [curve for curve in result.curves if curve.seed in seeds]
    return replace(result, mean=mean_curve(curves), curves=tuple(curves))


def _curve(result: ProxyResult, part: str, tone: int) -> PlottedCurve:
    points = tuple((point.d, getattr(point, part)) for point in result.mean)
    if result.kind == "rl":  # the start itself: by definition both scores are 0 there
        points = ((0.0, 0.0), *points)
    return PlottedCurve(result.name if part == "gold" else "proxy", (points,), tone, dashed=part == "proxy")


def _law_curve(result: ProxyResult) -> PlottedCurve | None:
    law = result.law
    if law is None or not law.fits:
        return None
    stretch = tuple((law.reach * step / LAW_STEPS, law(law.reach * step / LAW_STEPS)) for step in range(LAW_STEPS + 1))
    return PlottedCurve("fitted law", (stretch,), QUIET)


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
