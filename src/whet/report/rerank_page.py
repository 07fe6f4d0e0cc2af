"""What choosing among completions is worth at what price, on one page: a figure a scorer, and every number with its
interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from whet.report.html import POLICY
from whet.report.rerank import CEILING, MAJORITY, Line, Mark, Reranking, mark_text, search_text
from whet.report.style import STYLE
from whet.report.svg import Scale, tick_text, value_scale
from whet.report.text import number, quantity

RERANK_STYLE = """
.wide-table { overflow-x: auto } .wide-table td, .wide-table th { padding-right: 18px; white-space: nowrap }
.wide-table tr > :last-child { padding-right: 0 } .line.quiet { stroke-dasharray: 5 4; stroke-width: 1.4 }
.axis-name { font-size: 12.5px; color: var(--soft); margin: 2px 0 8px }
.search { fill: var(--tone); stroke: var(--card); stroke-width: 1.4 } .reach { stroke: var(--tone); stroke-width: 1.6 }
.charts.rerank { grid-template-columns: repeat(auto-fill, minmax(min(100%, 440px), 1fr)) }
"""
SIZE = (460, 250)
TONES = 6  # the last two of eight are for what scorers are compared with
QUIET = {MAJORITY: 7, CEILING: 6}


@dataclass(frozen=True)
class _Curve:
    """A line of a figure and its colour; what is compared with is dashed."""

    line: Line
    tone: int
    label: str

    @property
    def quiet(self) -> bool:
        return self.line.way in QUIET


def reranking_page(found: Reranking) -> str:
    title = f"{found.model}: one of {found.samples} completions"
    figures = [_figure(name, found) for name in dict.fromkeys(line.scorer for line in found.lines if line.scorer)]
    searches = [f"<p>{escape('. '.join(search_text(each, found)))}.</p>" for each in found.searches]
    unit = " in %" if found.measure == "accuracy" else ""
    inside = (
        f'<header><div class="eyebrow"><b>whet eval --rerank</b><span>{escape(found.data)}</span></div>'
        f"<h1>{escape(title)}</h1>"
        f'<p class="verdict">{escape(_verdict(found))}</p></header>\n'
        f'<h2>What it costs</h2><div class="charts rerank">{"".join(figures)}</div>'
        f'<p class="axis-name">{escape(found.measure.capitalize())} against the tokens a prompt: written by the '
        "model and read by the scorer, prompts included. Bands are 95% intervals over the prompts; dots are n = "
        f"{', '.join(str(mark.n) for mark in found.lines[0].marks)}.</p>"
        f"{''.join(['<h2>Search over steps</h2>', *searches] if searches else [])}"
        f'<h2>{escape(found.measure.capitalize())}{unit} by n</h2><div class="box wide-table">{_table(found)}</div>'
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}{RERANK_STYLE}</style></head>\n<body><main>{inside}"
        f'<p class="foot">{found.num_prompts} prompts, {found.samples} completions each at temperature '
        f"{found.temperature:g}. Every number is the mean over all ways to draw n of the {found.samples}"
        f"{'; weighted votes over 4,096 of them where there are more than 20,000' if found.drawn_votes else ''}."
        "</p></main></body></html>\n"
    )


def _verdict(found: Reranking) -> str:
    chosen = [line for line in found.lines if line.way != CEILING]
    best = max(chosen, key=lambda line: line.marks[-1].value)
    alone, ceiling = found.lines[-1].marks[0], found.lines[-1].marks[-1]
    say = found.measure
    return (
        f"A single completion has {say} {mark_text(alone, say)}. Of {found.samples} completions, the choice that does best is "
        f"{best.name}: {mark_text(best.marks[-1], say)}. No choice can pass {mark_text(ceiling, say)}."
    )


def _figure(scorer: str, found: Reranking) -> str:
    mine = [line for line in found.lines if line.scorer == scorer]
    if len({line.aggregate for line in mine}) > 1:
        # eight lines would be a thicket: the votes of each aggregate stand in the table
        mine = [line for line in mine if line.way == mine[0].way]
    curves = [_Curve(line, place % TONES, line.aggregate or line.way) for place, line in enumerate(mine)]
    curves += [_Curve(line, QUIET[line.way], line.way) for line in found.lines if line.way in QUIET]
    searches = [(each.mark, each.aggregate) for each in found.searches if each.scorer == scorer]
    tone = {line.aggregate: place % TONES for place, line in enumerate(mine)}
    drawn = _chart(curves, [(mark, tone.get(aggregate, 0)) for mark, aggregate in searches], found.measure)
    legend = "".join(
        f'<span class="s{curve.tone}"><i class="swatch"></i>{escape(curve.label)}</span>' for curve in curves
    )
    about = "best of n by the aggregate of its steps" if mine[0].aggregate else ""
    if searches:
        about += ", and the search over steps (diamond)"
    return (
        f'<figure><figcaption><b>{escape(scorer)}</b><span class="soft">{escape(about)}</span></figcaption>'
        f'<p class="legend">{legend}</p>{drawn}</figure>'
    )


def _chart(curves: Sequence[_Curve], searches: Sequence[tuple[Mark, int]], measure: str) -> str:
    width, height = SIZE
    marks = [mark for curve in curves for mark in curve.line.marks] + [mark for mark, _ in searches]
    costs = [mark.written + mark.read for mark in marks]
    values = [end for mark in marks for end in (mark.low, mark.high)]
    unit = measure == "accuracy" and max(values) > 0.5
    vertical = value_scale(values, (height - 24, 8), unit)
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    left = 10 + 6.4 * max(map(len, texts))
    horizontal = cost_scale(min(costs), max(costs), (left + 6, width - 14))
    parts = []
    for tick, text in zip(vertical.ticks, texts, strict=True):
        y = vertical(tick)
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{width - 6}"/>')
        parts.append(f'<text class="tick end" x="{left - 5:.1f}" y="{y + 3.5:.1f}">{text}</text>')
    for tick in horizontal.ticks:
        x = horizontal(tick)
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{height - 6}">{quantity(tick)}</text>')
    for curve in curves:
        parts.append(_curve(curve, vertical, horizontal, measure))
    for mark, tone in searches:
        x, y = horizontal(mark.written + mark.read), vertical(mark.value)
        ends = f"M{x:.1f} {vertical(mark.low):.1f}V{vertical(mark.high):.1f}"
        diamond = f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z"
        told = escape(f"search: {mark_text(mark, measure)}, {number(mark.written + mark.read)} tokens")
        parts.append(
            f'<path class="reach s{tone}" d="{ends}"/><path class="search s{tone}" d="{diamond}"><title>{told}</title>'
            "</path>"
        )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(measure)} against tokens">'
        f"{''.join(parts)}</svg>"
    )


def _curve(curve: _Curve, vertical: Scale, horizontal: Scale, measure: str) -> str:
    marks, tone = curve.line.marks, f"s{curve.tone}"
    xs = [horizontal(mark.written + mark.read) for mark in marks]
    ups = [f"{x:.1f} {vertical(mark.high):.1f}" for x, mark in zip(xs, marks, strict=True)]
    downs = [f"{x:.1f} {vertical(mark.low):.1f}" for x, mark in zip(xs, marks, strict=True)]
    way = "L".join(f"{x:.1f} {vertical(mark.value):.1f}" for x, mark in zip(xs, marks, strict=True))
    band = "" if curve.quiet else f'<path class="band {tone}" d="M{"L".join(ups + downs[::-1])}Z"/>'
    quiet = " quiet" if curve.quiet else ""
    dots = "".join(
        f'<circle class="dot {tone}" cx="{x:.1f}" cy="{vertical(mark.value):.1f}" r="3"><title>'
        f"{escape(f'{curve.line.name}, n = {mark.n}: {mark_text(mark, measure)}, ')}"
        f"{number(mark.written + mark.read)} tokens</title></circle>"
        for x, mark in zip(xs, marks, strict=True)
    )
    return f'{band}<path class="line {tone}{quiet}" d="M{way}"/>{dots}'


def cost_scale(low: float, high: float, pixels: tuple[float, float]) -> Scale:
    """Logarithmic, with a label at 1, 2 and 5 of every power of ten."""
    low, high = max(low, 1e-9), max(high, low * 1.01, 1e-9)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 200 else (1,)
    ticks = tuple(factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high)
    return Scale(low, high, *pixels, ticks=ticks, log=True)


def _table(found: Reranking) -> str:
    counts = [mark.n for mark in found.lines[0].marks]
    head = "".join(f"<td>n = {n}</td>" for n in counts)
    rows = [f'<tr class="soft"><th></th>{head}</tr>']
    for line in found.lines:
        cells = "".join(f"<td>{escape(mark_text(mark, found.measure))}</td>" for mark in line.marks)
        rows.append(f"<tr><th>{escape(line.name)}</th>{cells}</tr>")
    tokens = "".join(f"<td>{number(mark.written)}</td>" for mark in found.lines[0].marks)
    rows.append(f'<tr class="soft"><th>tokens written a prompt</th>{tokens}</tr>')
    reading = {line.scorer: line for line in found.lines if line.marks[0].read}
    for name, line in reading.items():
        cells = "".join(f"<td>{number(mark.read)}</td>" for mark in line.marks)
        rows.append(f'<tr class="soft"><th>tokens read by {escape(name)}</th>{cells}</tr>')
    return f"<table>{''.join(rows)}</table>"
