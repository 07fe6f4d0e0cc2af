"""Pages about a reward: a dry run, and a run's samples under another reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from whet.metrics.distribution import TOTAL, distribution, histogram
from whet.report.html import POLICY
from whet.report.rescore import Rejudged, Rescore, verdict
from whet.report.style import STYLE
from whet.report.svg import Series, axes, line_chart, step_scale, tick_text, value_scale
from whet.report.text import duration, number, percent
from whet.report.trial import STRONG, Judged, Trial

REWARD_STYLE = """
.column { fill: var(--tone) } .point { fill: var(--tone); opacity: .45 }
.wide-table { overflow-x: auto } .wide-table td, .wide-table th { padding-right: 18px; vertical-align: top }
.wide-table .text { text-align: left; overflow-wrap: anywhere } .wide-table tr > :last-child { padding-right: 0 }
.wide-table tr.soft > * { white-space: nowrap } .wide-table td.brief { white-space: nowrap }
.wide-table td.gold { min-width: 7em }
.strong { font-weight: 600; color: var(--warn) }
.two { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)) }
"""
MOST_ROWS = 30
MOST_POINTS = 600


def write_trial_page(path: Path | str, trial: Trial) -> Path:
    return _written(path, trial_page(trial))


def write_rescore_page(path: Path | str, found: Rescore) -> Path:
    return _written(path, rescore_page(found))


def trial_page(trial: Trial) -> str:
    """A dry run on one page."""
    sound = "sound" if trial.is_sound() else "look closer"
    head = (
        f'<header><div class="eyebrow"><b>whet reward test</b><span>version {trial.hash}</span>'
        f'<span class="status {"finished" if trial.is_sound() else "failed"}">{sound}</span></div>'
        f'<h1>{escape(trial.title)}</h1><p class="verdict">{escape(_trial_verdict(trial))}</p></header>\n'
    )
    sections = (
        head,
        _trial_tiles(trial),
        _distributions(trial),
        _judged_table("Gold answers that do not score 1", trial.gold_misses, trial),
        _judged_table("Failures", trial.failed, trial),
        _judged_table("Unscorable", trial.unscorable, trial),
        _differing(trial),
        _correlation_tables(trial),
        _judged_table("Slowest", trial.slowest, trial),
        _pieces(trial.pieces),
    )
    return _page(trial.title, "".join(filter(None, sections)), f"Drawn by whet from {escape(trial.source)}.")


def rescore_page(found: Rescore) -> str:
    """A run's saved samples under two rewards."""
    steps = found.by_step()
    series = [
        Series("old", tuple((float(step), old) for step, old, _ in steps), marked=True),
        Series("new", tuple((float(step), new) for step, _, new in steps), marked=True),
    ]
    legend = "".join(
        f'<span class="s{place}"><span class="swatch"></span>{escape(name)} <b>{number(line.points[-1][1])}</b></span>'
        for place, (name, line) in enumerate(zip((found.old_title, found.new_title), series, strict=True))
        if line.points
    )
    figure = (
        '<section><h2>Mean reward of the saved samples</h2><figure class="wide"><figcaption><b>Old and new</b>'
        '<span class="soft">by step</span></figcaption><div class="broad">'
        f'{line_chart(series, "Mean reward", (1060, 270))}</div><div class="narrow">'
        f'{line_chart(series, "Mean reward", (340, 210))}</div><p class="legend">{legend}</p>'
        "</figure></section>\n"
        if steps
        else ""
    )
    head = (
        f'<header><div class="eyebrow"><b>whet reward rescore</b><span>{escape(found.run)}</span>'
        f"<span>{escape(found.old_hash)} → {escape(found.new_hash)}</span></div>"
        f'<h1>{escape(found.new_title)}</h1><p class="verdict">{escape(verdict(found))}</p></header>\n'
    )
    said = "".join(f"<p>{escape(each)}</p>" for each in (*found.changed, *found.notes))
    changed = f'<section><h2>What differs</h2><div class="box objective">{said}</div></section>\n' if said else ""
    sections = (head, _rescore_tiles(found), figure, _means_table(found), changed, _largest(found))
    return _page(found.new_title, "".join(sections), "Nothing was trained: the run's saved samples were scored again.")


def _trial_verdict(trial: Trial) -> str:
    said = []
    rate = trial.gold_rate()
    if rate is not None:
        said.append(f"{percent(rate)} of the gold answers score 1.")
    if trial.failed:
        said.append(f"It failed on {len(trial.failed)} of {len(trial.judged)} samples.")
    if trial.unscorable:
        said.append(f"{len(trial.unscorable)} samples are unscorable.")
    flat = trial.never_vary()
    if flat:
        said.append(f"{', '.join(flat)} never var{'ies' if len(flat) == 1 else 'y'} here.")
    if trial.differences:
        said.append(f"{len(trial.differences)} scores differed the second time.")
    leans = [name for name, *pair in trial.with_length() if max(abs(each or 0.0) for each in pair) >= STRONG]
    if leans:
        said.append(f"{', '.join(leans)} go{'es' if len(leans) == 1 else ''} with the length of the completion.")
    return " ".join(said) or f"{len(trial.judged)} samples were scored, and nothing stood out."


def _trial_tiles(trial: Trial) -> str:
    known = [each.total for each in trial.judged if each.total is not None]
    steady = {None: "not checked", True: "yes", False: "no"}[
        None if trial.differences is None else not trial.differences
    ]
    tiles = [
        ("samples", f"{len(trial.judged):,}"),
        ("gold = 1", percent(trial.gold_rate())),
        ("mean total", number(distribution(known).get("mean") if known else None)),
        ("unscorable", str(len(trial.unscorable))),
        ("failures", str(len(trial.failed))),
        ("deterministic", steady),
        ("time", duration(trial.seconds)),
    ]
    return _tiles(tiles)


def _rescore_tiles(found: Rescore) -> str:
    old, new = found.part_means()[TOTAL]
    flipped = found.flipped_share()
    return _tiles(
        [
            ("mean reward", f"<small>{number(old)} →</small> {number(new)}"),
            ("samples", f"{len(found.rows):,}"),
            ("change places", percent(flipped)),
            ("groups that gain spread", str(len(found.gained_spread()))),
            ("groups that lose it", str(len(found.lost_spread()))),
        ]
    )


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    inside = "".join(f'<div class="tile"><dt>{name}</dt><dd>{value}</dd></div>' for name, value in tiles)
    return f'<dl class="tiles">{inside}</dl>\n'


def _distributions(trial: Trial) -> str:
    figures = []
    for place, (name, scores) in enumerate(trial.shown_columns().items()):
        known = [score for score in scores if score is not None]
        if not known:
            continue
        marks = distribution(known)
        weight = next((f"weight {part.weight}" for part in trial.parts if part.name == name), "weighted sum")
        figures.append(
            f'<figure><figcaption><b>{escape(name)}</b><span class="soft">{escape(weight)}</span><span class="last">'
            f"mean {number(marks['mean'])}</span></figcaption>{column_chart(histogram(known), name, f's{place % 8}')}"
            f'<p class="range">min {number(marks["min"])} · quartiles {number(marks["q1"])}, '
            f"{number(marks['median'])}, {number(marks['q3'])} · max {number(marks['max'])} · "
            f"{percent(marks['at_max'])} at the top</p></figure>"
        )
        figures.append(_scatter_figure(name, trial, scores, f"s{place % 8}"))
    notes = "".join(f'<p class="soft">{escape(note)}</p>' for note in (trial.source, *trial.notes))
    return f'<section><h2>Distribution of each part</h2>{notes}<div class="charts">{"".join(figures)}</div></section>\n'


def column_chart(bins: Sequence[tuple[float, float, int]], label: str, tone: str) -> str:
    """A histogram as SVG text; each column tells its count when pointed at."""
    width, height = 340, 168
    highest = max(count for *_, count in bins)
    vertical = value_scale([0.0, float(highest)], (height - 22, 8))
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    left = 10 + 6.4 * max(map(len, texts))
    room = (width - 8 - left) / len(bins)
    drawn = [
        f'<path class="grid" d="M{left:.1f} {vertical(tick):.1f}H{width - 8}"/>'
        f'<text class="tick end" x="{left - 5:.1f}" y="{vertical(tick) + 3.5:.1f}">{text}</text>'
        for tick, text in zip(vertical.ticks, texts, strict=True)
    ]
    total = sum(count for *_, count in bins)
    width_of = max(min(room - 2, 80), 1)
    for place, (low, high, count) in enumerate(bins):
        x, y = left + place * room, vertical(float(count))
        name = number(low) if low == high else f"{number(low)} to {number(high)}"
        drawn.append(
            f'<rect class="column {tone}" x="{x + (room - width_of) / 2:.1f}" y="{y:.1f}" width="{width_of:.1f}" '
            f'height="{vertical(0.0) - y:.1f}"><title>{name}: {count} ({percent(count / total)})</title></rect>'
        )
        if len(bins) <= 8 or place % 3 == 0:
            middle = x + (room / 2 if low == high else 0)
            anchor = "middle" if low == high else "start"
            drawn.append(f'<text class="tick {anchor}" x="{middle:.1f}" y="{height - 6}">{number(low)}</text>')
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Histogram of {escape(label, quote=True)}">'
        f"{''.join(drawn)}</svg>"
    )


def _scatter_figure(name: str, trial: Trial, scores: Sequence[float | None], tone: str) -> str:
    points = [
        (float(each.tokens), score) for each, score in zip(trial.judged, scores, strict=True) if score is not None
    ]
    counts = Counter(points)
    # sorted first: every other sample may be of another kind
    drawn = sorted(counts)[:: max(1, math.ceil(len(counts) / MOST_POINTS))]
    width, height = 340, 168
    values = [value for _, value in points]
    vertical = value_scale(values, (height - 22, 8), min(values) >= 0 and 0.5 < max(values) <= 1)
    texts = [tick_text(tick, vertical) for tick in vertical.ticks]
    left = 10 + 6.4 * max(map(len, texts))
    horizontal = step_scale(min(x for x, _ in points), max(x for x, _ in points), (left, width - 8))
    dots = "".join(
        f'<circle class="point {tone}" cx="{horizontal(x):.1f}" cy="{vertical(y):.1f}" '
        f'r="{2 + min(math.log2(counts[x, y]), 5):.1f}"/>'
        for x, y in drawn
    )
    found = next(pair for pair in trial.with_length() if pair[0] == name)
    told = ", ".join(
        f"{kind} {'-' if value is None else f'{value:+.2f}'}"
        for kind, value in zip(("Pearson", "Spearman"), found[1:], strict=True)
    )
    return (
        f'<figure><figcaption><b>{escape(name)} by length</b><span class="soft">tokens of the completion</span></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="Length and {escape(name, quote=True)}">'
        f'{axes(vertical, horizontal, texts, (width, height))}{dots}</svg><p class="range">{told}</p></figure>'
    )


def _correlation_tables(trial: Trial) -> str:
    pairs = trial.with_each_other()
    if not pairs:
        return ""
    rows = "".join(
        f"<tr><th>{escape(one)}, {escape(two)}</th>{_correlation(linear)}{_correlation(ranked)}</tr>"
        for one, two, linear, ranked in pairs
    )
    return (
        '<section><h2>Parts with each other</h2><div class="box counts"><table><tr class="soft"><th></th>'
        f"<td>Pearson</td><td>Spearman</td></tr>{rows}</table></div></section>\n"
    )


def _correlation(value: float | None) -> str:
    strong = ' class="strong"' if abs(value or 0.0) >= STRONG else ""
    return f"<td{strong}>{'-' if value is None else f'{value:+.2f}'}</td>"


def _judged_table(title: str, rows: Sequence[Judged], trial: Trial) -> str:
    if not rows:
        return ""
    heads = "".join(f"<td>{escape(part.name)}</td>" for part in trial.parts)
    lines = []
    for each in rows[:MOST_ROWS]:
        scores = "".join(f"<td>{number(each.parts.get(part.name))}</td>" for part in trial.parts)
        trouble = "".join(f'<br><span class="strong">{escape(failure)}</span>' for failure in each.failures.values())
        lines.append(
            f'<tr><th>{escape(each.where)}<br><span class="soft">{escape(each.kind)}</span></th>{scores}'
            f'<td class="brief">{duration(each.seconds)}</td>'
            f'<td class="text mono gold">{escape(_cut(each.answer, 120))}</td>'
            f'<td class="text mono">{escape(_cut(each.completion, 300))}{trouble}</td></tr>'
        )
    more = f'<p class="soft">and {len(rows) - MOST_ROWS} more</p>' if len(rows) > MOST_ROWS else ""
    return (
        f'<section><h2>{title} ({len(rows)})</h2><div class="box wide-table"><table><tr class="soft"><th></th>{heads}'
        f'<td>time</td><td class="text">gold</td><td class="text">completion</td></tr>{"".join(lines)}</table></div>{more}'
        "</section>\n"
    )


def _differing(trial: Trial) -> str:
    if not trial.differences:
        return ""
    rows = "".join(
        f"<tr><th>{escape(each.where)}</th><td>{escape(each.part)}</td><td>{number(each.first)}</td>"
        f"<td>{number(each.second)}</td></tr>"
        for each in trial.differences[:MOST_ROWS]
    )
    return (
        f"<section><h2>Scored differently the second time ({len(trial.differences)})</h2>"
        f'<div class="box counts"><table><tr class="soft"><th></th><td>part</td><td>first</td><td>second</td></tr>'
        f"{rows}</table></div></section>\n"
    )


def _means_table(found: Rescore) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{number(old)}</td><td>{number(new)}</td></tr>"
        for name, (old, new) in found.part_means().items()
    )
    return (
        '<section><h2>Means</h2><div class="box counts"><table><tr class="soft"><th></th><td>old</td><td>new</td></tr>'
        f"{rows}</table></div></section>\n"
    )


def _largest(found: Rescore) -> str:
    cards = "".join(_rejudged(row) for row in found.largest(12))
    return f'<section><h2>Largest differences</h2><div class="two">{cards}</div></section>\n' if cards else ""


def _rejudged(row: Rejudged) -> str:
    chips = "".join(
        f'<span class="chip">{escape(name)} {number(row.old_parts.get(name))} → '
        f"{number(row.new_parts.get(name))}</span>"
        for name in dict.fromkeys((*row.old_parts, *row.new_parts))
    )
    texts = [("Question", row.question), ("Completion", row.completion), ("Gold answer", row.answer)]
    boxes = "".join(
        f'<div class="name">{name}</div><pre class="well" tabindex="0">{escape(text)}</pre>'
        for name, text in texts
        if text
    )
    return (
        f'<article class="sample"><header><b>step {row.step}</b>{chips}<span class="chip main">{number(row.old)} → '
        f"{number(row.new)}</span></header>{boxes}<footer>prompt {escape(row.prompt_id)}</footer></article>"
    )


def _pieces(pieces: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd class=mono>{escape(value)}</dd>" for name, value in pieces.items())
    return (
        f'<section><details><summary>What the version is made of</summary><dl class="box facts">{rows}</dl></details>'
        "</section>\n"
        if rows
        else ""
    )


def _page(title: str, inside: str, foot: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
        f"<style>{STYLE}{REWARD_STYLE}</style></head>\n<body><main>\n{inside}"
        f'<p class="foot">{foot}</p>\n</main></body></html>\n'
    )


def _written(path: Path | str, page: str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8", errors="replace")
    return path


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
