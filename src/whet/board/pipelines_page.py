"""Pipelines with their stages, and comparisons with their runs."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from whet.board.access import SANDBOX_POLICY
from whet.board.files import file_state, read_small
from whet.board.folders import COMPARISON, PIPELINE, RUN, SIGNS, FoundFolder
from whet.board.run_page import MOST_REPORT
from whet.board.runs_page import row
from whet.board.server import Board, BoardApp, BoardRequest, BoardResponse
from whet.config.run_folder import is_locked
from whet.report.text import ABSENT, duration, metric_text, quantity, words

# as whet.pipeline.stages writes them; importing that room would take seconds
RESULT, STARTED = "stage.json", "started.json"
PIPELINE_REPORT, COMPARE_REPORT = "pipeline.html", "compare.html"
STAGE = re.compile(r"(\d+)-(.+)")
MOST_STAGES = 500


def add_routes(app: BoardApp, board: Board) -> None:
    def pipeline(request: BoardRequest) -> BoardResponse:
        found = board.find(request.path["run"], PIPELINE)
        settings = _toml(found)
        stages = pipeline_stages(board, found)
        status = pipeline_status(found, stages)
        done = sum(stage["status"] == "finished" for stage in stages)
        name = str(settings.get("pipeline") or settings.get("recipe") or found.name)[:200]
        return board.page(
            "board_pipeline.html",
            title=f"{found.name} · {name}",
            heading=found.name,
            eyebrow=name,
            about=("pipeline", found.group),
            status=status,
            verdict=f"{done} of {len(stages)} stages that were begun are finished."
            if stages
            else "No stage was begun yet.",
            run=found,
            stages=stages,
            config=(read_small(found.path / SIGNS[PIPELINE]) or b"").decode("utf-8", "replace"),
            has_report=file_state(found.path / PIPELINE_REPORT) is not None,
        )

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
        found = board.find(request.path["run"], PIPELINE, COMPARISON)
        name = PIPELINE_REPORT if found.kind == PIPELINE else COMPARE_REPORT
        content = read_small(found.path / name, MOST_REPORT)
        if content is None:
            return board.page("board_error.html", title="No page yet", verdict=f"There is no {name} in this folder.")
        return BoardResponse(content, headers={"Content-Security-Policy": SANDBOX_POLICY})

    app.get("/pipeline/{run}", pipeline)
    app.get("/pipeline/{run}/report", report)
    app.get("/comparison/{run}", comparison)
    app.get("/comparison/{run}/report", report)


def pipeline_stages(board: Board, found: FoundFolder) -> list[dict[str, Any]]:
    """Every stage that was begun, in order, with the runs it made."""
    try:
        places = [
            path
            for path in found.path.iterdir()
            if STAGE.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]
    except OSError:
        return []
    places.sort(key=lambda path: (int(path.name.split("-")[0][:9]), path.name))
    runs = [each for each in board.found().values() if each.kind == RUN and each.parent == found.id]
    held, stages = is_locked(found.path), []
    for place in places[:MOST_STAGES]:
        saved = _object(read_small(place / RESULT))
        result = _table(saved.get("result"))
        begun = file_state(place / STARTED) is not None
        status = "finished" if result else "running" if begun and held else "interrupted" if begun else "damaged"
        own = [each for each in runs if each.path == place or place in each.path.parents]
        metrics = _table(result.get("metrics"))
        counts = _table(result.get("counts"))
        took = saved.get("seconds")
        stages.append(
            {
                "name": STAGE.fullmatch(place.name)[2],  # type: ignore[index]
                "status": status,
                "summary": str(result.get("summary") or "")[:2000],
                "seconds": duration(took) if isinstance(took, int | float) else "",
                "metrics": [
                    (words(str(k)), metric_text(str(k), v)) for k, v in metrics.items() if isinstance(v, int | float)
                ],
                "counts": [(words(str(k)), quantity(v)) for k, v in counts.items() if isinstance(v, int | float)],
                "runs": [row(board.glance(each)) for each in own],
            }
        )
    return stages


def pipeline_status(found: FoundFolder, stages: list[dict[str, Any]]) -> str:
    if is_locked(found.path):
        return "running"
    return "finished" if stages and all(stage["status"] == "finished" for stage in stages) else "interrupted"


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


def _toml(found: FoundFolder) -> dict[str, Any]:
    try:
        return tomllib.loads((read_small(found.path / SIGNS[PIPELINE]) or b"").decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}


def _json(found: FoundFolder) -> dict[str, Any]:
    return _object(read_small(found.path / SIGNS[COMPARISON], MOST_REPORT))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _object(content: bytes | None) -> dict[str, Any]:
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
