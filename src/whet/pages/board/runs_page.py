"""The first page: every run below the folder, with how it is going; pipelines and comparisons above them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from whet.pages.board.folders import COMPARISON, PIPELINE, RUN
from whet.pages.board.glance import RunGlance
from whet.pages.board.server import Board, BoardApp, BoardRequest, BoardResponse, json_response

MOST_RUNS = 1000  # on the page
SPARK_WIDTH, SPARK_HEIGHT = 96, 26


def add_routes(app: BoardApp, board: Board) -> None:
    """The list of runs."""

    def page(request: BoardRequest) -> BoardResponse:
        runs = board.runs()
        found = board.found().values()
        return board.page(
            "board_runs.html",
            title="Runs",
            heading=board.folder.name or "Runs",
            eyebrow="whet board",
            here="/",
            verdict=runs_verdict(runs),
            groups=grouped(runs[:MOST_RUNS]),
            num_left_out=max(0, len(runs) - MOST_RUNS),
            above=[folder for folder in found if folder.kind in (PIPELINE, COMPARISON)],
        )

    def listed(request: BoardRequest) -> BoardResponse:
        runs = {run.id: asdict(run) for run in board.runs()}
        found = board.found().values()
        others = [{"id": f.id, "kind": f.kind, "place": f.place, "parent": f.parent} for f in found if f.kind != RUN]
        return json_response({"runs": list(runs.values()), "others": others})

    app.get("/", page)
    app.get("/api/runs", listed)


def runs_verdict(runs: Sequence[RunGlance]) -> str:
    """How many runs there are in which state."""
    if not runs:
        return ""
    counts = {status: sum(run.status == status for run in runs) for status in dict.fromkeys(run.status for run in runs)}
    parts = ", ".join(f"{count} {status}" for status, count in counts.items())
    ill = sum(bool(run.problems) for run in runs if run.status == "running")
    warned = f"; {ill} of the running ones {'has' if ill == 1 else 'have'} a health problem" if ill else ""
    return f"{parts}{warned}."


def grouped(runs: Sequence[RunGlance]) -> list[dict[str, Any]]:
    """By folder, the one with the newest run first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(row(run))
    return [{"name": name, "rows": rows} for name, rows in groups.items()]


def row(run: RunGlance) -> dict[str, Any]:
    """A run as the list shows it."""
    share = min(1.0, run.step / run.total_steps) if run.total_steps else 0.0
    return {
        "run": run,
        "progress": f"{100 * share:.1f}",
        "steps": f"{run.step:,} / {run.total_steps:,}" if run.total_steps else f"{run.step:,}",
        "spark": spark(run.spark),
        "started": time.strftime("%Y-%m-%d %H:%M", time.gmtime(run.started)) if 0 < run.started < 4e10 else "",
        "started_at": f"{run.started:.0f}" if 0 < run.started < 4e10 else "",
        "words": " ".join((run.place, run.method, run.model, run.status, *run.problems)).lower()[:1000],
    }


def spark(values: Sequence[float]) -> str:
    """The points of a small curve."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    size = high - low or 1.0
    across = (SPARK_WIDTH - 4) / (len(values) - 1)
    down = SPARK_HEIGHT - 6
    return " ".join(
        f"{2 + place * across:.1f},{3 + down * (1 - (value - low) / size):.1f}" for place, value in enumerate(values)
    )
