"""A comparison of methods: its own page, drawn from compare.json, with links to its runs and their curves."""

from __future__ import annotations

import json
from posixpath import normpath
from typing import Any

from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse
from whet.pages.board.files import COMPARISON, RUN, SIGNS, FoundFolder, file_state, read_small
from whet.pages.board.run_page import MOST_REPORT, stored_page
from whet.pages.board.runs_page import row
from whet.pages.compare import MethodComparison, comparison_from, comparison_page_values

COMPARE_REPORT = "compare.html"
UNREADABLE = "compare.json cannot be read: it is damaged, being written, or of another version of whet."


def add_routes(app: BoardApp, board: Board) -> None:
    """Add the pages of comparisons."""

    def page(request: BoardRequest) -> BoardResponse:
        folder = board.find(request.path["run"], COMPARISON)
        all_runs = [folder for folder in board.found().values() if folder.kind == RUN]
        runs = [board.glance(run) for run in all_runs if run.parent == folder.id]
        addresses = {run.place: f"/run/{run.id}" for run in all_runs}
        shown = comparison_page_values(
            read_comparison(folder) or MethodComparison((), (), ()),
            lambda run: addresses.get(normpath(f"{folder.place}/{run.folder}"), ""),
        )
        if not shown["rows"]:
            shown |= {"status": "damaged", "verdict": UNREADABLE, "notes": []}
        shown |= {"title": f"{folder.name} · comparison", "heading": folder.name, "eyebrow": "comparison"}
        return board.page(
            "compare.html",
            **shown | {"about": (folder.group, *shown["about"])},
            run=folder,
            runs=[row(run) for run in runs],
            ids=",".join(run.id for run in runs[:24]),
            has_report=file_state(folder.path / COMPARE_REPORT) is not None,
        )

    def report(request: BoardRequest) -> BoardResponse:
        return stored_page(board, board.find(request.path["run"], COMPARISON), COMPARE_REPORT)

    app.get("/comparison/{run}", page)
    app.get("/comparison/{run}/report", report)


def read_comparison(folder: FoundFolder) -> MethodComparison | None:
    """What compare.json holds; None where it cannot be read."""
    content = read_small(folder.path / SIGNS[COMPARISON], MOST_REPORT)
    try:
        values: dict[str, Any] = json.loads(content or b"")
        comparison = comparison_from(values)
        comparison_page_values(comparison, lambda run: "")
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return None
    return comparison
