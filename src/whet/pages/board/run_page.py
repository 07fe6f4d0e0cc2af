"""One run while it goes on: the page of a run with its links, and what its charts ask for as they are zoomed."""

from __future__ import annotations

from dataclasses import replace

from whet.pages.board.access import SANDBOX_POLICY
from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import PIPELINE, RUN, FoundFolder, file_state, read_small
from whet.pages.board.folder_page import noted_values
from whet.pages.board.reader import RunView
from whet.pages.render import Figure
from whet.pages.run_charts import drawn_charts, planned_charts
from whet.pages.run_report import REPORT, health_cards, run_values
from whet.record.log import METRICS, SAMPLES
from whet.record.run import RunRecord, StepTotals, started_on

MOST_REPORT = 64 << 20  # bytes
MOST_NAMES = 200  # of a request
POINTS = 400  # of a chart when a page is opened
MOST_POINTS = 4000


def add_routes(app: BoardApp, board: Board) -> None:
    """The page of a run, and what its charts ask for."""

    def page(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        reader = board.reader(run.id)
        view = reader.view()
        record = view.record if view.is_complete else _without_sums(view)
        names = reader.names()
        values = run_values(
            record,
            view.spans,
            names,
            lambda columns: reader.points(columns, most=POINTS),
            view.is_complete,
            draws_others=False,
        )
        return board.page(
            "run.html",
            **values
            | {
                "title": f"{run.name} · {record.title}",
                "heading": run.name,
                "eyebrow": record.title,
                "about": (run.group, started_on(record)),
                "verdict": values["verdict"].replace(", or was killed there", ""),
                "run": run,
                "above": _above(board, run),
                "reading": not view.is_complete,
                "remarks": view.remarks,
                "notes": noted_values(run.path),
                "has_samples": file_state(run.path / SAMPLES) is not None,
                "has_report": file_state(run.path / REPORT) is not None,
            },
        )

    def report(request: BoardRequest) -> BoardResponse:
        return stored_page(board, board.find(request.path["run"], RUN), REPORT)

    def series(request: BoardRequest) -> BoardResponse:
        reader = board.reader(request.path["run"])
        names = request.query.get("names", "").split(",")[:MOST_NAMES]
        points = reader.points(names, request.real("from"), request.real("to"), num_points(request))
        listed = {name: {"x": p.x, "y": p.y, "low": p.low, "high": p.high} for name, p in points.items()}
        return json_response({"series": listed, "names": reader.names(), "complete": reader.is_complete})

    def charts(request: BoardRequest) -> BoardResponse:
        reader = board.reader(request.path["run"])
        view = reader.view()
        plans = planned_charts(view.record, reader.names()).by_key()
        keys = request.query.get("keys", "").split(",")[:MOST_NAMES]
        wanted = [plans[key] for key in keys if key in plans]
        columns = sorted({column for plan in wanted for column in plan.columns})
        points = reader.points(columns, request.real("from"), request.real("to"), num_points(request))
        drawn = drawn_charts(wanted, points, view.record.evals)
        return json_response({"charts": chart_record(drawn), "complete": view.is_complete})

    def health(request: BoardRequest) -> BoardResponse:
        view = board.reader(request.path["run"]).view()
        story = view.record.story(view.spans)
        return json_response({"status": view.status, "story": story.values(), "findings": health_cards(view.spans)})

    app.get("/run/{run}", page)
    app.get("/run/{run}/report", report)
    app.get("/api/run/{run}/series", series)
    app.get("/api/run/{run}/charts", charts)
    app.get("/api/run/{run}/health", health)


def num_points(request: BoardRequest) -> int:
    """How many points of each line a request asks for."""
    return request.number("points", POINTS, 2, MOST_POINTS)


def chart_record(figures: list[Figure]) -> dict[str, dict[str, object]]:
    """Figures as JSON, by key."""
    return {
        figure.key: {"spec": figure.spec, "last": figure.last, "unit": figure.unit, "title": figure.title}
        for figure in figures
    }


def stored_page(board: Board, folder: FoundFolder, name: str) -> BoardResponse:
    """A page that lies in a folder, in an origin of its own: whoever made the folder may have written it."""
    content = read_small(folder.path / name, MOST_REPORT)
    if content is None:
        return board.page(
            "board_error.html",
            title="No page yet",
            verdict=f"There is no {name} in this folder: it is written at the end.",
        )
    return BoardResponse(content, headers={"Content-Security-Policy": SANDBOX_POLICY})


def _above(board: Board, folder: FoundFolder) -> dict[str, str] | None:
    """The pipeline or comparison that a run belongs to."""
    parent = board.found().get(folder.parent)
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
