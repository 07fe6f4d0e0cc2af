"""overoptimization.html: the figure and the tables of the study, on a page that needs nothing but a browser."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from whet.report.curves import LEFT, QUIET, RIGHT, TONES, Curve, Frame, Panel, curves_svg
from whet.report.html import POLICY
from whet.report.overoptimization import HEADS, LAWS, Finding, cells, mean_course, sentence
from whet.report.style import STYLE
from whet.report.svg import tick_stride

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
PAGE_STYLE = """
.scroll { overflow-x: auto } .found th, .found td { padding: 6px 16px 6px 0; white-space: nowrap }
.found .head > * { color: var(--soft); font-size: 12.5px }
.found tr > :last-child { padding-right: 0 } .figure { overflow-x: auto; margin-bottom: 10px }
.figure svg { overflow: hidden } .figure > svg { min-width: 620px }
"""


def figure_svg(found: Sequence[Finding], base: str) -> str:
    """The panels two by two in one file; empty without a curve. `base` is the curve that KL and ensembles change."""
    panels = [_panel_svg(group, found, base) for group in DRAWN]
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


def _panel_svg(group: str, found: Sequence[Finding], base: str) -> str:
    mine = [finding for finding in found if finding.group == group]
    if not mine:
        return ""
    if group in ("kl", "ensemble"):  # beside what they are to improve, of the same seeds
        seeds = {curve.seed for finding in mine for curve in finding.curves}
        bare = [_of_seeds(finding, seeds) for finding in found if finding.group == "rl" and finding.name == base]
        mine = [*bare, *mine]
    curves = [_curve(finding, "gold", place % TONES) for place, finding in enumerate(mine)]
    curves += [_curve(finding, "proxy", place % TONES) for place, finding in enumerate(mine)]
    laws = [_law_curve(finding) for finding in mine] if group in LAWS else []
    curves = [law for law in laws if law is not None] + curves
    points = [point for finding in mine for point in finding.mean]
    title, subtitle = PANELS[group]
    far = max(point.d for point in points)
    low, high = _range([value for point in points for value in (point.gold, point.proxy)])
    frame = Frame(title, "d = sqrt(KL)", "score", (0.0, 1.02 * far), (low, high), subtitle.format(base=base), size=SIZE)
    return curves_svg([Panel(tuple(curves))], frame)


def _of_seeds(finding: Finding, seeds: set[int]) -> Finding:
    curves = [curve for curve in finding.curves if curve.seed in seeds]
    return replace(finding, mean=mean_course(curves), curves=tuple(curves))


def _curve(finding: Finding, part: str, tone: int) -> Curve:
    points = tuple((point.d, getattr(point, part)) for point in finding.mean)
    if finding.kind == "rl":  # the start itself: by definition both scores are 0 there
        points = ((0.0, 0.0), *points)
    return Curve(finding.name if part == "gold" else "proxy", (points,), tone, dashed=part == "proxy")


def _law_curve(finding: Finding) -> Curve | None:
    law = finding.law
    if law is None or not law.fits:
        return None
    stretch = tuple((law.reach * step / LAW_STEPS, law(law.reach * step / LAW_STEPS)) for step in range(LAW_STEPS + 1))
    return Curve("fitted law", (stretch,), QUIET)


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(0.0, *values), max(0.0, *values)
    stride = tick_stride(max(high - low, 1e-6) / 5) / 2
    return stride * math.floor(low / stride), stride * math.ceil(high / stride)


def study_page(found: Sequence[Finding], base: str, facts: Mapping[str, str], command: str, is_finished: bool) -> str:
    """The whole page."""
    status = "finished" if is_finished else "unfinished"
    sections = [
        f'<header><div class="eyebrow"><b>whet study</b><span>over-optimisation</span><span class="status {status}">'
        f"{status}</span></div><h1>The true score while a learned one is optimised</h1>"
        f'<p class="verdict">{escape(verdict(found))}</p></header>\n',
        f'<section><h2>Gold solid, proxy dashed</h2><div class="figure">{figure_svg(found, base)}</div>'
        '<p class="soft">Scores are in standard deviations of the completions of the start, which is at 0. Grey: the '
        "fitted law, where it fits. Lines are means over seeds.</p></section>\n",
        *[_table(group, found, base) for group in PANELS],
        '<section><h2>Setting</h2><dl class="box facts">'
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
        + "</dl></section>\n",
        f'<section><h2>Reproduce</h2><pre class="well command" tabindex="0">{escape(command)}</pre></section>\n',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Over-optimisation</title>'
        f"<style>{STYLE}{PAGE_STYLE}</style></head>\n<body><main>\n{''.join(sections)}"
        '<p class="foot">Drawn by whet; the numbers are in overoptimization.json beside this page.</p>\n'
        "</main></body></html>\n"
    )


def verdict(found: Sequence[Finding]) -> str:
    """What the learning runs showed, the smallest proxy first."""
    mine = [finding for finding in found if finding.group == "rl"]
    return ". ".join(sentence(finding) for finding in mine) + "." if mine else "No learning run is finished yet."


def _table(group: str, found: Sequence[Finding], base: str) -> str:
    mine = [finding for finding in found if finding.group == group]
    if not mine:
        return ""
    head = "".join(f"<td>{escape(name)}</td>" if place else "<th></th>" for place, name in enumerate(HEADS))
    lines = []
    for finding in mine:
        name, *texts = cells(finding)
        values = "".join(f"<td>{escape(text)}</td>" for text in texts)
        lines.append(f"<tr><th>{escape(name)}</th>{values}</tr>")
    title, about = PANELS[group]
    said = f"{about.format(base=base)}; {LAWS[mine[0].kind]}"
    return (
        f'<section><h2>{escape(title)}</h2><p class="soft">{escape(said)}</p>'
        f'<div class="box scroll"><table class="found"><tr class="head">{head}</tr>{"".join(lines)}</table></div>'
        "</section>\n"
    )
