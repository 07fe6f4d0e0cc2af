"""A pipeline: its evaluations by stage and its stages, drawn like the page in its folder, with links to its runs."""

from __future__ import annotations

import json
from typing import Any

from whet.pages.board.access import Refusal
from whet.pages.board.files import read_small
from whet.pages.board.folders import PIPELINE, RUN, FoundFolder
from whet.pages.board.server import Board, BoardApp, BoardRequest, BoardResponse
from whet.pages.pipeline_page import RECORD, pipeline_values
from whet.pages.pipeline_summary import PipelineSummary, summary_from
from whet.record.run_folder import is_locked

MOST_BYTES = 64 << 20


def add_routes(app: BoardApp, board: Board) -> None:
    def page(request: BoardRequest) -> BoardResponse:
        found = board.find(request.path["run"], PIPELINE)
        runs = [each for each in board.look().values() if each.kind == RUN and each.parent == found.id]
        summary = read_pipeline(found)
        if summary is None:
            return board.page("board_pipeline_begun.html", title=found.name, heading=found.place, runs=runs)
        values = pipeline_values(summary)
        addresses = {run.path: f"/run/{run.id}" for run in runs}
        for stage in values["stages"]:
            stage["report"] = addresses.get((found.path / stage["report"]).parent, "") if stage["report"] else ""
        values |= {"title": f"{summary.name}: {found.name}", "heading": found.place, "eyebrow": summary.name}
        return board.page("board_pipeline.html", **values, runs=runs, pipeline=found.id)

    app.get("/pipeline/{run}", page)


def read_pipeline(found: FoundFolder) -> PipelineSummary | None:
    """What a pipeline has done so far; None where it has drawn no page yet."""
    content = read_small(found.path / RECORD, MOST_BYTES)
    if content is None:
        return None
    try:
        record: dict[str, Any] = json.loads(content)
        summary = summary_from(record)
        pipeline_values(summary)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        text = f"{found.place}/{RECORD} cannot be read ({type(error).__name__}: {str(error)[:200]})"
        raise Refusal(422, f"{text}; it may be of a newer version of whet, or damaged") from None
    if summary.status == "running" and not is_locked(found.path):
        return PipelineSummary(**{**vars(summary), "status": "interrupted"})
    return summary
