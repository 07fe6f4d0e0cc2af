"""A comparison of methods: what compare.json says of it, with links to its runs and their curves."""

from __future__ import annotations

import json
from typing import Any

from whet.pages.board.access import SANDBOX_POLICY
from whet.pages.board.files import file_state, read_small
from whet.pages.board.folders import COMPARISON, RUN, SIGNS, FoundFolder
from whet.pages.board.run_page import MOST_REPORT
from whet.pages.board.runs_page import row
from whet.pages.board.server import Board, BoardApp, BoardRequest, BoardResponse
from whet.record.text import ABSENT, duration, metric_text

COMPARE_REPORT = "compare.html"


def add_routes(app: BoardApp, board: Board) -> None:
    def comparison(request: BoardRequest) -> BoardResponse:
        found = board.find(request.path["run"], COMPARISON)
        values = _json(found)
        runs = [board.glance(each) for each in board.found().values() if each.kind == RUN and each.parent == found.id]
        rows = (
            [each for each in values.get("rows", []) if isinstance(each, dict)]
            if isinstance(values.get("rows"), list)
            else []
        )
        return board.page(
            "board_comparison.html",
            title=f"{found.name} · comparison",
            heading=found.name,
            eyebrow="comparison",
            about=(found.group,),
            status=str(values.get("status") or "damaged")[:40],
            verdict=str(values.get("verdict") or "compare.json cannot be read, or is being written.")[:2000],
            run=found,
            rows=[_method_row(each, str(values.get("metric") or "")) for each in rows[:200]],
            notes=[str(each)[:1000] for each in values.get("notes", [])[:40]]
            if isinstance(values.get("notes"), list)
            else [],
            runs=[row(each) for each in runs],
            ids=",".join(each.id for each in runs[:24]),
            has_report=file_state(found.path / COMPARE_REPORT) is not None,
        )

    def report(request: BoardRequest) -> BoardResponse:
        content = read_small(board.find(request.path["run"], COMPARISON).path / COMPARE_REPORT, MOST_REPORT)
        if content is None:
            text = f"There is no {COMPARE_REPORT} in this folder."
            return board.page("board_error.html", title="No page yet", verdict=text)
        return BoardResponse(content, headers={"Content-Security-Policy": SANDBOX_POLICY})

    app.get("/comparison/{run}", comparison)
    app.get("/comparison/{run}/report", report)


def _method_row(values: dict[str, Any], metric: str) -> tuple[str, ...]:
    def mean(name: str) -> float | None:
        each = values.get(name)
        found = each.get("mean") if isinstance(each, dict) else None
        return found if isinstance(found, int | float) else None

    return (
        str(values.get("method", ""))[:200],
        str(values.get("runs", "")),
        metric_text(metric, mean("before")),
        metric_text(metric, mean("after")),
        duration(mean("seconds")) if mean("seconds") is not None else ABSENT,
        str(values.get("verdict", ""))[:200],
    )


def _json(found: FoundFolder) -> dict[str, Any]:
    return _object(read_small(found.path / SIGNS[COMPARISON], MOST_REPORT))


def _object(content: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
