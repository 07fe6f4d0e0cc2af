"""pipeline.html: metrics by round, what each stage did and what was dropped; it needs nothing but a browser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.pages.chart_specs import chart, fits_unit, line
from whet.pages.pipeline_changes import ALL, MOST_LOST, branched, fallen, lost_prompts, side_by_side
from whet.pages.pipeline_summary import (
    PipelineSummary,
    StageSummary,
    cost_table,
    main_metric,
    metrics_by_round,
    rounds_table,
    summary_record,
    verdict,
)
from whet.pages.render import Figure, PageTable, Tile, render_live, write_page
from whet.record.text import ABSENT, duration, metric_text, quantity, words

PAGE, RECORD = "pipeline.html", "pipeline.json"
MeasuredPoint = tuple[float, float, float | None, float | None]  # place across, value, low, high
HALF = 0.5  # shares that stay below are drawn on an axis of their own, not on 0 to 1


def write_pipeline_page(folder: Path, summary: PipelineSummary) -> Path:
    """The page, and beside it what it was drawn from."""
    write_page(folder / RECORD, json.dumps(summary_record(summary), ensure_ascii=False, allow_nan=False) + "\n")
    return write_page(folder / PAGE, pipeline_html(summary))


def pipeline_html(summary: PipelineSummary) -> str:
    """The page as a file of its own."""
    return render_live("pipeline.html", **pipeline_values(summary))


def pipeline_values(summary: PipelineSummary) -> dict[str, Any]:
    """What the template of the page is filled in with, in a file and on the board."""
    return {
        "title": f"whet pipeline {summary.name}",
        "heading": summary.name,
        "eyebrow": "whet",
        "about": ("pipeline", summary.about),
        "status": summary.status,
        "verdict": verdict(summary),
        "tiles": _tiles(summary),
        "figure": _figure(summary),
        "rounds": _page_table(rounds_table(summary)),
        "costs": _page_table(cost_table(summary)),
        "is_staged": any(stage.sets for stage in summary.stages),
        "fallen": fallen(summary.policies),
        "is_paired": len(summary.policies) > 1,
        "lost": _lost(summary),
        "written": side_by_side(summary.policies),
        "comparisons": [_comparison(stage) for stage in summary.stages if stage.table],
        "samples": [sample for stage in summary.stages for sample in stage.samples],
        "stages": [_stage(stage) for stage in summary.stages],
        "counted": [
            (stage.name, [(words(name), quantity(count)) for name, count in stage.counts.items()])
            for stage in summary.stages
            if stage.counts
        ],
        "command": summary.command,
        "config": summary.config,
    }


def _page_table(rows: list[list[str]]) -> PageTable | None:
    if not rows:
        return None
    head, *body = rows
    return PageTable(tuple(head), tuple(tuple(cell or ABSENT for cell in row) for row in body))


def _lost(summary: PipelineSummary) -> dict[str, object]:
    """Prompts once right and now wrong: how many, and the first few."""
    found = lost_prompts(summary.policies)
    return {"count": len(found), "shown": found[:MOST_LOST]}


def _tiles(summary: PipelineSummary) -> list[Tile]:
    name = main_metric(summary)
    tiles = []
    if name is not None and not branched(summary.policies):
        stages = list(next(iter(metrics_by_round(summary, name).values())).values())
        first, last = (metric_text(name, each.metrics[name]) for each in (stages[0], stages[-1]))
        tiles.append(Tile(f"held-out {words(name)}", last, first))
    done, planned = sum(stage.is_done for stage in summary.stages), len(summary.stages)
    tiles.append(Tile("stages", str(done), after=f"of {planned}" if done < planned else ""))
    tiles.append(Tile("time", duration(sum(stage.seconds or 0 for stage in summary.stages))))
    return tiles


def _figure(summary: PipelineSummary) -> Figure | None:
    """The main metric by round, a line per model; by stage, a line per eval set, where stages are measured on sets."""
    name = main_metric(summary)
    if name is None:
        return None
    measured = [stage for stage in summary.stages if stage.sets]
    if measured:
        if len(measured) < 2 or branched(summary.policies):  # a line would join policies that did not follow each other
            return None
        sets = list(dict.fromkeys(each for stage in measured for each in stage.sets if name in stage.sets[each]))
        lines = {
            name if each == ALL else each: [
                (float(at), *stage.sets[each][name]) for at, stage in enumerate(measured) if each in stage.sets
            ]
            for each in sets
        }
        return _line_figure(name, "stage", lines, [stage.label or stage.name for stage in measured])
    by_model = metrics_by_round(summary, name)
    if max(len(rounds) for rounds in by_model.values()) < 2:
        return None
    lines = {
        who: [(float(at), stage.metrics[name], None, None) for at, stage in sorted(rounds.items())]
        for who, rounds in by_model.items()
    }
    last = max(at for rounds in by_model.values() for at in rounds)
    return _line_figure(name, "round", lines, ["before", *(f"round {at}" for at in range(1, last + 1))])


def _line_figure(name: str, across: str, lines: dict[str, list[MeasuredPoint]], names: Sequence[str]) -> Figure:
    """`names` of the places across; a line has its 95% interval where that is known."""
    series = []
    for tone, (who, points) in enumerate(lines.items()):
        edges = {"low": [low for *_, low, _ in points], "high": [high for *_, high in points]}
        band = edges if any(low is not None for low in edges["low"]) else {}
        said = metric_text(name, points[-1][1])
        series.append(line(who, [(x, y) for x, y, *_ in points], tone, marked=True, value=said, **band))
    values = [value for points in lines.values() for _, value, *_ in points]
    axis = {"label": across, "log": False, "steps": True, "names": list(names)}
    spec = chart(series, x=axis, unit=fits_unit(values, HALF), named=True, height=300)
    return Figure(f"Held-out {words(name)}", f"by {across}, greedy completions", spec, is_wide=True)


def _comparison(stage: StageSummary) -> dict[str, object]:
    head, *rows = stage.table
    cells = tuple(tuple(cell or ABSENT for cell in row) for row in rows)
    heading = f"{stage.about[:1].upper()}{stage.about[1:]}"
    return {"heading": heading, "table": PageTable(head, cells), "findings": stage.findings}


def _stage(stage: StageSummary) -> dict[str, object]:
    outcome = stage.outcome or ("done" if stage.is_done else "not done")
    return {
        "name": stage.name,
        "about": stage.about,
        "report": stage.report,
        "is_done": stage.is_done,
        "outcome": f"{outcome}; {stage.over}" if stage.over else outcome,
        "time": duration(stage.seconds) if stage.is_done else ABSENT,
    }
