"""Evaluations: what `whet eval` left below the folder, with intervals, and what runs measured of themselves."""

from __future__ import annotations

import json
import math
import time
from typing import Any

from whet.board.files import file_state, read_small
from whet.board.folders import EVALUATION, SIGNS
from whet.board.run_page import MOST_REPORT
from whet.board.server import Board, BoardApp, BoardRequest, BoardResponse
from whet.metrics.estimates import IntervalEstimate
from whet.report.charts import interval_chart
from whet.report.evaluation import estimate_text, short_names
from whet.report.text import metric_text, words

MOST_EVALS = 200  # on the page
MOST_ROWS = 40  # of one evaluation


def add_routes(app: BoardApp, board: Board) -> None:
    def page(request: BoardRequest) -> BoardResponse:
        found = [each for each in board.look().values() if each.kind == EVALUATION]
        changed = {each.id: file_state(each.path / SIGNS[EVALUATION]) for each in found}
        found.sort(key=lambda each: -(state.changed if (state := changed[each.id]) else 0))
        evaluations = []
        for each in found[:MOST_EVALS]:
            state = changed[each.id]
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(state.changed / 1e9)) if state else ""
            evaluations.append(
                {
                    "place": each.place,
                    "when": when,
                    "tasks": read_tasks(read_small(each.path / SIGNS[EVALUATION], MOST_REPORT)),
                }
            )
        runs = [run for run in board.runs() if run.outcome]
        return board.page(
            "board_evals.html", title="Evaluations", here="/evals", evaluations=evaluations, runs=runs[:MOST_EVALS]
        )

    app.get("/evals", page)


def read_tasks(content: bytes | None) -> list[dict[str, Any]] | None:
    """The tasks of an eval.json with their models; None where it cannot be read."""
    try:
        value = json.loads(content or b"")
        evals = value["evals"]
        pairs = value.get("pairs") or {}
        tasks: dict[str, list[dict[str, Any]]] = {}
        for each in evals[:MOST_ROWS]:
            tasks.setdefault(str(each["task"])[:300], []).append(each)
        return [_task(name, found, pairs.get(name) or []) for name, found in tasks.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _task(name: str, evals: list[dict[str, Any]], pairs: list[dict[str, Any]]) -> dict[str, Any]:
    names = short_names([str(each["model"])[:300] for each in evals])
    measure = str(evals[0]["summary"]["measure"])[:60]
    is_share = measure == "accuracy"
    estimates = [_estimate(each["summary"]["value"]) for each in evals]
    rows = [
        (short, found.value, found.low, found.high, estimate_text(found, is_share))
        for short, found in zip(names, estimates, strict=True)
    ]
    metrics = list(dict.fromkeys(str(key) for each in evals for key in each["metrics"]))[:16]
    table = [
        (short, *(metric_text(key, _number(each["metrics"].get(key))) for key in metrics))
        for short, each in zip(names, evals, strict=True)
    ]
    about = f"{int(evals[0]['summary']['prompts']):,} prompts, {int(evals[0]['summary']['samples'])} per prompt"
    return {
        "name": name,
        "about": about,
        "measure": measure,
        "svg": interval_chart(rows, f"{measure} by model", is_share),
        "head": [words(key) for key in metrics],
        "table": table,
        "pairs": [_pair_text(each) for each in pairs[:40]],
    }


def _estimate(values: dict[str, Any]) -> IntervalEstimate:
    low, high = (_number(values.get(key)) for key in ("low", "high"))
    value = _number(values["value"])
    if value is None:
        raise ValueError("an estimate without a value")
    return IntervalEstimate(value, -math.inf if low is None else low, math.inf if high is None else high)


def _number(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


def _pair_text(test: dict[str, Any]) -> str:
    first, second = short_names([str(test["first"])[:300], str(test["second"])[:300]])
    low, high, p = (_number(test.get(key)) for key in ("low", "high", "corrected_p"))
    span = f" (95% {low:+.3f} to {high:+.3f})" if low is not None and high is not None else ""
    sure = "" if p is None else f", p = {p:.3g}" + ("" if p < 0.05 else ": within noise")
    return f"{second} less {first}: {float(test['difference']):+.3f}{span}{sure}"
