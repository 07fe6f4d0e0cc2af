"""pipeline.html: marks by round, what each stage did and what was dropped; it needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from whet.report.compare_page import COMPARE_STYLE
from whet.report.html import POLICY
from whet.report.story import StageLine, Story, courses_of, main_mark, rounds_table, verdict
from whet.report.style import STYLE
from whet.report.svg import Series, line_chart
from whet.report.text import ABSENT, duration, measured, quantity

PAGE = "pipeline.html"
PAGE_STYLE = """
.stages td { text-align: left; padding-right: 18px; vertical-align: top }
.stages .number { text-align: right; white-space: nowrap }
.beside { margin-top: 16px }
.stages th { padding-right: 18px; vertical-align: top; white-space: nowrap }
.stages .todo { color: var(--soft) } .stages a { color: inherit }
"""


def write_pipeline_page(folder: Path, story: Story) -> Path:
    path = folder / PAGE
    path.write_text(pipeline_html(story), encoding="utf-8", errors="replace")
    return path


def pipeline_html(story: Story) -> str:
    sections = (_opening(story), _curve(story), _table(story), _stages(story), _counts(story), _settings(story))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>whet pipeline {escape(story.name)}</title>'
        f"<style>{STYLE}{COMPARE_STYLE}{PAGE_STYLE}</style></head>\n<body><main>\n{''.join(filter(None, sections))}"
        '<p class="foot">Drawn by whet from pipeline.toml and the stage.json of each stage.</p>\n'
        "</main></body></html>\n"
    )


def _opening(story: Story) -> str:
    mark = main_mark(story)
    tiles: list[tuple[str, str]] = []
    if mark is not None:
        course = list(next(iter(courses_of(story, mark).values())).values())
        first, last = (measured(mark, each.marks[mark]) for each in (course[0], course[-1]))
        tiles.append((f"held-out {mark.replace('_', ' ')}", f"<small>{escape(first)} →</small> {escape(last)}"))
    done = sum(stage.is_done for stage in story.stages)
    tiles.append(("stages", f"{done} <small>of {len(story.stages)}</small>" if done < len(story.stages) else str(done)))
    tiles.append(("time", duration(sum(stage.seconds or 0 for stage in story.stages))))
    inside = "".join(f'<div class="tile"><dt>{escape(name)}</dt><dd>{value}</dd></div>' for name, value in tiles)
    return (
        f'<header><div class="eyebrow"><b>whet</b><span>pipeline</span><span>{escape(story.about)}</span>'
        f'<span class="status {escape(story.status, quote=True)}">{escape(story.status)}</span></div>'
        f'<h1>{escape(story.name)}</h1><p class="verdict">{escape(verdict(story))}</p></header>\n'
        f'<dl class="tiles">{inside}</dl>\n'
    )


def _curve(story: Story) -> str:
    mark = main_mark(story)
    if mark is None:
        return ""
    courses = courses_of(story, mark)
    if max(len(course) for course in courses.values()) < 2:
        return ""
    series = [
        Series(who, tuple((float(at), stage.marks[mark]) for at, stage in sorted(course.items())), marked=True)
        for who, course in courses.items()
    ]
    values = [value for line in series for _, value in line.points]
    unit = min(values) >= 0 and 0.5 < max(values) <= 1
    name = mark.replace("_", " ")
    legend = "".join(
        f'<span><svg class="key" viewBox="0 0 24 10"><path class="line s{place}" d="M1 5H23"/></svg>'
        f"{escape(line.name)} <b>{escape(measured(mark, line.points[-1][1]))}</b></span>"
        for place, line in enumerate(series)
    )
    charts = [line_chart(series, f"Held-out {name} by round", size, unit) for size in ((1060, 300), (340, 220))]
    return (
        f'<section><h2>Marks</h2><figure class="wide"><figcaption><b>Held-out {escape(name)}</b><span class="soft">'
        f'by round, greedy completions</span></figcaption><div class="broad">{charts[0]}</div><div class="narrow">'
        f'{charts[1]}</div><p class="legend">{legend}</p></figure></section>\n'
    )


def _table(story: Story) -> str:
    rows = rounds_table(story)
    if not rows:
        return ""
    head, *body = rows
    lines = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell or ABSENT)}</td>' for cell in row[1:])}</tr>"
        for row in body
    )
    names = "".join(f"<td>{escape(cell)}</td>" for cell in head[1:])
    return (
        '<section class="beside"><div class="box scroll"><table class="rounds"><tr class="head">'
        f"<th>{escape(head[0])}</th>{names}</tr>{lines}</table></div></section>\n"
    )


def _stages(story: Story) -> str:
    lines = "".join(_stage(place, stage) for place, stage in enumerate(story.stages, 1))
    return (
        '<section><h2>Stages</h2><div class="box scroll"><table class="stages"><tr class="head"><th>stage</th>'
        f'<td>what it does</td><td>what came out</td><td class="number">time</td></tr>{lines}</table></div></section>\n'
    )


def _stage(place: int, stage: StageLine) -> str:
    name = f"{place}. {escape(stage.name)}"
    if stage.report:
        name = f'<a href="{escape(stage.report, quote=True)}">{name}</a>'
    said = escape(stage.said or ("done" if stage.is_done else "not done")) + (
        f"; {escape(stage.over)}" if stage.over else ""
    )
    todo = "" if stage.is_done else ' class="todo"'
    took = duration(stage.seconds) if stage.is_done else ABSENT
    return f'<tr{todo}><th>{name}</th><td>{escape(stage.about)}</td><td>{said}</td><td class="number">{took}</td></tr>'


def _counts(story: Story) -> str:
    counted = [stage for stage in story.stages if stage.counts]
    boxes = "".join(f"<div><h3>{escape(stage.name)}</h3>{_count_table(stage.counts)}</div>" for stage in counted)
    if not boxes:
        return ""
    return f'<section><h2>Counted and dropped</h2><div class="charts">{boxes}</div></section>\n'


def _count_table(counts: Mapping[str, int]) -> str:
    lines = "".join(
        f"<tr><th>{escape(name.replace('_', ' '))}</th><td>{quantity(count)}</td></tr>"
        for name, count in counts.items()
    )
    return f'<div class="box"><table>{lines}</table></div>'


def _settings(story: Story) -> str:
    command = f'<pre class="well command" tabindex="0">{escape(story.command)}</pre>' if story.command else ""
    config = (
        f'<details><summary>pipeline.toml</summary><pre class="well config" tabindex="0">{escape(story.config)}</pre>'
        "</details>"
    )
    return f"<section><h2>Reproduce</h2>{command}{config}</section>\n"
