"""compare.html: one plot and one table of methods side by side, on a page that needs nothing but a browser."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean
from urllib.parse import quote

from whet.report.compare import HIGHEST, Comparison, cells, heads, notes, rows, standings, verdict
from whet.report.html import POLICY, REPORT
from whet.report.style import STYLE
from whet.report.svg import Scale, Series, axes, smoothed, step_scale, strips, thinned, tick_text, value_scale
from whet.report.text import number

NUM_TONES = 8
LEAST_SMOOTHED = 30  # points from which a course is smoothed
MOST_NAMES = 6  # in the title
COMPARE_STYLE = """
.scroll { overflow-x: auto } .compared th, .compared td { padding: 7px 18px 7px 0; white-space: nowrap }
.compared td { text-align: right }
.compared tr > :last-child { text-align: left; padding-right: 0; white-space: normal; min-width: 170px }
.compared .head > * { color: var(--soft); font-size: 12.5px; vertical-align: bottom; white-space: normal }
.compared .best > * { font-weight: 600 } .compared a { color: inherit }
.compared small { font-weight: 400; color: var(--soft); margin-left: 6px }
.key { display: inline-block; width: 24px; height: 10px; margin-right: 7px; vertical-align: -1px }
.dashed { stroke-dasharray: 6 4 } .key .line { stroke-width: 2.6 }
.prose { max-width: 62em }
"""


@dataclass(frozen=True)
class Course:
    """The mean reward of a method by step, with the lowest and the highest of its seeds."""

    method: str
    steps: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    tone: str  # class names of the line


def courses(comparison: Comparison) -> list[Course]:
    """One a method with finished runs; a step counts where every one of them has a reward."""
    found = []
    for place, row in enumerate(rows(comparison)):
        by_seed = [{step: value for step, value in run.rewards if math.isfinite(value)} for run in row.results]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        if not steps:
            continue
        values = [[seed[step] for seed in by_seed] for step in steps]
        tone = f"s{place % NUM_TONES}" + (" dashed" if place // NUM_TONES % 2 else "")
        means, lows, highs = ([of(each) for each in values] for of in (fmean, min, max))
        found.append(Course(row.method, tuple(steps), _calmed(means), _calmed(lows), _calmed(highs), tone))
    return found


def _calmed(values: Sequence[float]) -> tuple[float, ...]:
    """Long courses are smoothed, the band like the line, so that the line stays inside it."""
    return tuple(smoothed(values) if len(values) >= LEAST_SMOOTHED else values)


def band_chart(drawn: Sequence[Course], label: str, size: tuple[int, int]) -> str:
    """Mean lines with bands from the lowest to the highest seed. Empty without a course."""
    if not drawn:
        return ""
    width, height = size
    extremes = [value for course in drawn for value in (*course.lows, *course.highs)]
    steps = [step for course in drawn for step in course.steps]
    vertical = value_scale(extremes, (height - 22, 8), min(extremes) >= 0 and 0.5 < max(extremes) <= 1)
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    horizontal = step_scale(min(steps), max(steps), (10 + 6.4 * max(map(len, texts)), width - 8))
    series = [Series(course.method, tuple(zip(course.steps, course.means, strict=True))) for course in drawn]
    parts = [axes(vertical, horizontal, texts, size)]
    parts += [_band(course, vertical, horizontal) for course in drawn]
    parts += [_mean_line(course, vertical, horizontal) for course in drawn]
    parts.append(strips(series, horizontal, height - 22))
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _band(course: Course, vertical: Scale, horizontal: Scale) -> str:
    if len(course.steps) < 2 or course.lows == course.highs:
        return ""
    upper = _corners(course.steps, course.highs, vertical, horizontal)
    lower = _corners(course.steps, course.lows, vertical, horizontal)
    return f'<path class="band {course.tone}" d="M{"L".join(upper + lower[::-1])}Z"/>'


def _mean_line(course: Course, vertical: Scale, horizontal: Scale) -> str:
    corners = _corners(course.steps, course.means, vertical, horizontal)
    if len(corners) == 1:
        x, y = corners[0].split()
        return f'<circle class="dot {course.tone}" cx="{x}" cy="{y}" r="2.8"/>'
    return f'<path class="line {course.tone}" d="M{"L".join(corners)}"/>'


def _corners(steps: Sequence[float], values: Sequence[float], vertical: Scale, horizontal: Scale) -> list[str]:
    cells = thinned(list(zip(steps, values, strict=True)))
    return [f"{horizontal(step):.1f} {vertical(mean):.1f}" for step, mean, _, _ in cells]


def compare_page(comparison: Comparison) -> str:
    """The whole page."""
    title = (
        ", ".join(comparison.methods) if len(comparison.methods) <= MOST_NAMES else f"{len(comparison.methods)} methods"
    )
    planned = sum(map(comparison.num_planned, comparison.methods))
    status = "finished" if len(comparison.results) == planned else "unfinished"
    sections = (
        _opening(comparison, title, status),
        _table(comparison),
        _figure(comparison),
        _setting(comparison),
        _command(comparison),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}{COMPARE_STYLE}</style></head>\n<body><main>\n{''.join(filter(None, sections))}"
        '<p class="foot">Drawn by whet from the run folders beside this page; the numbers are in compare.json.</p>\n'
        "</main></body></html>\n"
    )


def _opening(comparison: Comparison, title: str, status: str) -> str:
    methods, seeds = len(comparison.methods), len(comparison.seeds)
    planned = f"{methods} method{'s' if methods > 1 else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
    if comparison.planned:
        planned = f"{len(comparison.results)} finished runs"
    return (
        f'<header><div class="eyebrow"><b>whet compare</b><span>{planned}</span><span class="status {status}">{status}'
        f'</span></div><h1>{escape(title)}</h1><p class="verdict">{_held_together(verdict(comparison))}</p></header>\n'
    )


def _table(comparison: Comparison) -> str:
    names = "".join(
        f"<th>{escape(name)}</th>" if place == 0 else f"<td>{escape(name)}</td>"
        for place, name in enumerate(heads(comparison))
    )
    found = standings(comparison)
    lines = []
    for row, texts in zip(rows(comparison), cells(comparison), strict=True):
        links = " ".join(
            f'<a href="{escape(quote(run.folder), quote=True)}/{REPORT}">{run.seed}</a>'
            for run in row.results
            if run.folder
        )
        seeds = f"<small>seeds {links}</small>" if links else ""
        values = "".join(f"<td>{_held_together(text)}</td>" for text in texts[1:])
        kind = ' class="best"' if found[row.method].relation.startswith(HIGHEST) else ""
        lines.append(f"<tr{kind}><th>{escape(row.method)}{seeds}</th>{values}</tr>")
    said = "".join(f"<p>{_held_together(note)}</p>" for note in notes(comparison))
    return (
        f'<section><h2>Methods</h2><div class="box scroll"><table class="compared"><tr class="head">{names}</tr>'
        f'{"".join(lines)}</table></div></section>\n<section class="prose"><h2>How sure is this?</h2>{said}</section>\n'
    )


def _held_together(text: str) -> str:
    """Escaped, with no line break inside `p < 0.05`."""
    return escape(re.sub(r"\bp ([=<]) (?=\d)", "p\u00a0\\1\u00a0", text))


def _figure(comparison: Comparison) -> str:
    drawn = courses(comparison)
    if not drawn:
        return ""
    label = "Mean reward by step, one line a method"
    legend = "".join(
        f'<span><svg class="key" viewBox="0 0 24 10"><path class="line {course.tone}" d="M1 5H23"/></svg>'
        f"{escape(course.method)} <b>{number(course.means[-1])}</b></span>"
        for course in drawn
    )
    calm = ", smoothed" if any(len(course.steps) >= LEAST_SMOOTHED for course in drawn) else ""
    seeds = "mean over seeds, band from the lowest to the highest" if len(comparison.seeds) > 1 else "one seed"
    return (
        f'<section><h2>Reward</h2><figure class="wide"><figcaption><b>Mean reward</b><span class="soft">by step; '
        f'{seeds}{calm}</span></figcaption><div class="broad">{band_chart(drawn, label, (1060, 320))}</div>'
        f'<div class="narrow">{band_chart(drawn, label, (340, 230))}</div><p class="legend">{legend}</p></figure>'
        "</section>\n"
    )


def _setting(comparison: Comparison) -> str:
    parts = []
    for title, values in (("Held equal", comparison.equal), ("Not equal, besides the method", comparison.unequal)):
        pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in values.items())
        parts.append(f'<section><h2>{title}</h2><dl class="box facts">{pairs}</dl></section>\n' if pairs else "")
    return "".join(parts)


def _command(comparison: Comparison) -> str:
    text = escape(comparison.command)
    return f'<section><h2>Reproduce</h2><pre class="well command" tabindex="0">{text}</pre></section>\n' if text else ""
