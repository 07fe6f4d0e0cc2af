"""One run: verdict, health, curves, where the time went, the objective and its config, while it goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from whet.pages.board.access import SANDBOX_POLICY
from whet.pages.board.files import file_state, read_small
from whet.pages.board.folders import PIPELINE, RUN, FoundFolder
from whet.pages.board.reader import RunReader, RunView
from whet.pages.board.run_charts import (
    MOST_POINTS,
    POINTS,
    BoardFigure,
    all_charts,
    drawn_charts,
    kind_charts,
    main_charts,
    other_charts,
    part_charts,
    time_charts,
)
from whet.pages.board.server import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.run_report import REPORT, count_table, phases, tiles
from whet.record.health import FindingSpan
from whet.record.log import METRICS, SAMPLES
from whet.record.run import RunRecord, StepTotals, started_on, verdict
from whet.record.text import ABSENT
from whet.settings.layers import flattened
from whet.training.config import config_values, resolved
from whet.types import WhetError

MOST_REPORT = 64 << 20  # bytes
MOST_NAMES = 200  # of a request
LONGEST_VALUE = 300  # characters of a setting that are shown


def add_routes(app: BoardApp, board: Board) -> None:
    def page(request: BoardRequest) -> BoardResponse:
        found = board.find(request.path["run"], RUN)
        reader = board.reader(found.id)
        view = reader.view()
        return board.page("board_run.html", **_values(board, found, reader, view))

    def report(request: BoardRequest) -> BoardResponse:
        """The run's own page, in an origin of its own: whoever made the folder may have written it."""
        content = read_small(board.find(request.path["run"], RUN).path / REPORT, MOST_REPORT)
        if content is None:
            return board.page(
                "board_error.html", title="No report yet", verdict="A run writes its report when it ends."
            )
        return BoardResponse(content, headers={"Content-Security-Policy": SANDBOX_POLICY})

    def series(request: BoardRequest) -> BoardResponse:
        reader = board.reader(request.path["run"])
        names = request.query.get("names", "").split(",")[:MOST_NAMES]
        points = reader.points(names, request.real("from"), request.real("to"), _points(request))
        found = {name: {"x": p.x, "y": p.y, "low": p.low, "high": p.high} for name, p in points.items()}
        return json_response({"series": found, "names": reader.names(), "complete": reader.is_complete})

    def charts(request: BoardRequest) -> BoardResponse:
        reader = board.reader(request.path["run"])
        view = reader.view()
        plans = all_charts(reader, view)
        keys = request.query.get("keys", "").split(",")[:MOST_NAMES]
        wanted = [plans[key] for key in keys if key in plans]
        drawn = drawn_charts(reader, view, wanted, request.real("from"), request.real("to"), _points(request))
        shown = {
            each.key: {"spec": each.spec, "last": each.last, "unit": each.unit, "title": each.title} for each in drawn
        }
        return json_response({"charts": shown, "complete": view.is_complete})

    def health(request: BoardRequest) -> BoardResponse:
        view = board.reader(request.path["run"]).view()
        return json_response({"status": view.status, "findings": [health_card(span) for span in view.spans]})

    app.get("/run/{run}", page)
    app.get("/run/{run}/report", report)
    app.get("/api/run/{run}/series", series)
    app.get("/api/run/{run}/charts", charts)
    app.get("/api/run/{run}/health", health)


def _points(request: BoardRequest) -> int:
    return request.number("points", POINTS, 2, MOST_POINTS)


def _values(board: Board, found: FoundFolder, reader: RunReader, view: RunView) -> dict[str, Any]:
    record, names = view.record, reader.names()
    if not view.is_complete:
        record = _without_sums(view)
    summary = record.summary
    cards = [health_card(span) for span in view.spans]
    first = drawn_charts(reader, view, [*main_charts(view), *kind_charts(view, names)])
    return {
        "title": f"{found.name} · {record.title}",
        "heading": found.name,
        "eyebrow": record.title,
        "about": (found.group, started_on(record)),
        "status": view.status,
        "verdict": verdict(record).replace(", or was killed there", ""),
        "run": found,
        "above": _above(board, found),
        "reading": not view.is_complete,
        "remarks": view.remarks,
        "tiles": tiles(record) if record.steps else [],
        "cards": cards,
        "num_problems": sum(card["is_problem"] and card["holds"] for card in cards),
        "has_steps": bool(record.steps),
        "figures": first,
        "parts_figures": drawn_charts(reader, view, part_charts(view, names)),
        "times": drawn_charts(reader, view, time_charts(view, names)),
        "phases": phases(record) if view.is_complete or summary.get("seconds") else [],
        "others": [
            BoardFigure(each.key, each.title, each.unit, "", "", False, {}) for each in other_charts(view, names)
        ],
        "objective": [str(line)[:2000] for line in (summary.get("objective") or ())[:60]],
        "facts": {str(name)[:80]: str(value)[:2000] for name, value in list((summary.get("facts") or {}).items())[:80]},
        "changes": config_changes(reader),
        "config": record.config,
        "counts": count_table(record.totals) if view.is_complete else None,
        "command": str(summary.get("command") or "")[:4000],
        "has_samples": file_state(found.path / SAMPLES) is not None,
        "has_report": file_state(found.path / REPORT) is not None,
    }


def _above(board: Board, found: FoundFolder) -> dict[str, str] | None:
    """The pipeline or comparison that a run belongs to."""
    parent = board.found().get(found.parent)
    if parent is None:
        return None
    address = f"/pipeline/{parent.id}" if parent.kind == PIPELINE else f"/comparison/{parent.id}"
    return {"name": f"{parent.kind} {parent.name}", "address": address}


def _without_sums(view: RunView) -> RunRecord:
    """A run whose log is not read yet: what needs all of it is left out rather than wrong."""
    record = view.record
    summary = dict(record.summary)
    changed = file_state(record.folder / METRICS)
    if summary.get("finished") is None and changed is not None:
        summary["finished"] = changed.changed / 1e9
    return replace(record, summary=summary, totals=StepTotals())


def health_card(span: FindingSpan) -> dict[str, Any]:
    finding = span.finding
    steps = f"step {span.first:,}" if span.first == span.last else f"steps {span.first:,} to {span.last:,}"
    if span.num_steps < span.last - span.first + 1:
        steps = f"{span.num_steps:,} of the {steps}"
    when = f"since step {span.first:,}" if span.holds and finding.is_problem else steps
    return {
        "name": finding.name,
        "sentence": finding.sentence,
        "is_problem": finding.is_problem,
        "holds": span.holds,
        "when": when if finding.is_problem else "normal",
        "steps": steps,
        "evidence": finding.evidence,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "settings": [f"{name}: {value}" for name, value in finding.settings],
        "normal_when": finding.normal_when,
    }


def config_changes(reader: RunReader) -> list[tuple[str, str, str]] | None:
    """(setting, of the preset, of the run) where they differ; None where the config cannot be read."""
    values = reader.settings()
    method = values.get("method")
    if not isinstance(method, str):
        return None
    model = values.get("model")
    base = (
        {"model": {"name": model["name"]}} if isinstance(model, Mapping) and isinstance(model.get("name"), str) else {}
    )
    try:
        usual = flattened(config_values(resolved(method, base)))
        own = flattened(config_values(resolved(method, values)))
    except (WhetError, OSError, ValueError, TypeError):
        return None
    names = sorted(name for name in usual.keys() | own.keys() if name != "folder" and usual.get(name) != own.get(name))
    return [(name, _shown(usual.get(name)), _shown(own.get(name))) for name in names]


def _shown(value: Any) -> str:
    if value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"
