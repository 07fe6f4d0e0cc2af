"""A pipeline: its evaluations by stage and its stages, drawn like the page in its folder, with links to its runs."""

from __future__ import annotations

import json
from typing import Any

from whet.pages.board.access import Refusal
from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse
from whet.pages.board.files import PIPELINE, RUN, FoundFolder, read_small
from whet.pages.pipeline_page import RECORD, PipelineSummary, pipeline_values, summary_from
from whet.record.run_folder import is_locked

MOST_BYTES = 64 << 20


NOT_YET = (
    "This pipeline has finished no stage yet, or was written before whet kept what its page is drawn from: open "
    "pipeline.html in its folder."
)


def add_routes(app: BoardApp, board: Board) -> None:
    """Add the pages of pipelines."""

    def page(request: BoardRequest) -> BoardResponse:
        folder = board.find(request.path["run"], PIPELINE)
        runs = [run for run in board.look().values() if run.kind == RUN and run.parent == folder.id]
        summary = read_pipeline(folder)
        values: dict[str, Any] = {"title": folder.name, "verdict": NOT_YET}
        if summary is not None:
            values = pipeline_values(summary) | {"title": f"{summary.name}: {folder.name}", "eyebrow": summary.name}
            addresses = {run.path: f"/run/{run.id}" for run in runs}
            for stage in values["stages"]:
                stage["report"] = addresses.get((folder.path / stage["report"]).parent, "") if stage["report"] else ""
        return board.page("pipeline.html", **values | {"heading": folder.place}, runs=runs, pipeline=folder.id)

    app.get("/pipeline/{run}", page)


def read_pipeline(folder: FoundFolder) -> PipelineSummary | None:
    """What a pipeline has done so far; None where it has drawn no page yet."""
    content = read_small(folder.path / RECORD, MOST_BYTES)
    if content is None:
        return None
    try:
        record: dict[str, Any] = json.loads(content)
        summary = summary_from(record)
        pipeline_values(summary)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        text = f"{folder.place}/{RECORD} cannot be read ({type(error).__name__}: {str(error)[:200]})"
        raise Refusal(422, f"{text}; it may be of a newer version of whet, or damaged") from None
    if summary.status == "running" and not is_locked(folder.path):
        return PipelineSummary(**{**vars(summary), "status": "interrupted"})
    return summary
