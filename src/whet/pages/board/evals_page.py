"""Evaluations: what `whet eval` measured, with intervals, and what runs measured of themselves before and after."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse
from whet.pages.board.files import EVALUATION, RUN, FoundFolder, file_state, read_small
from whet.pages.eval_report import interval_figure
from whet.pages.render import Figure, PageTable
from whet.record.metrics.intervals import IntervalEstimate
from whet.record.text import ABSENT, estimate_text, headline, metric_text, words

MOST_SHOWN = 500
MOST_BARS = 24
LONGEST_NAME = 40
ENDS = ("value", "low", "high")
NOTHING = "Nothing was evaluated below this folder yet: `whet eval MODEL --data TASK --out FOLDER` measures a model."


@dataclass(frozen=True)
class ListedEval:
    """One model on one task, as eval.json has it."""

    model: str
    task: str
    measure: str
    estimate: IntervalEstimate
    prompts: int
    samples: int
    temperature: float
    place: str
    measured: float  # seconds since 1970


def add_routes(app: BoardApp, board: Board) -> None:
    """Add the page that lists all evaluations."""

    def page(request: BoardRequest) -> BoardResponse:
        folders = list(board.look().values())
        listed: list[ListedEval] = []
        damaged: list[str] = []
        for folder in folders:
            if folder.kind == EVALUATION:
                evals = read_evals(folder)
                listed += evals or ()
                damaged += [folder.place] if evals is None else []
        listed.sort(key=lambda evaluation: (evaluation.task, -evaluation.measured))
        runs = [row for folder in folders if folder.kind == RUN if (row := run_row(folder)) is not None]
        tasks = [(task, [e for e in listed if e.task == task]) for task in dict.fromkeys(e.task for e in listed)]
        return board.page(
            "eval.html",
            title="Evaluations",
            here="/evals",
            verdict="" if listed or runs else NOTHING,
            sections=[section(task, evals[:MOST_SHOWN]) for task, evals in tasks],
            runs=runs[:MOST_SHOWN],
            damaged=damaged,
            command="",
            foot="",
            num_hidden=max(len(runs) - MOST_SHOWN, 0),
        )

    app.get("/evals", page)


def read_evals(folder: FoundFolder) -> list[ListedEval] | None:
    """What an eval.json lists; None where it cannot be read."""
    path = folder.path / "eval.json"
    content, state = read_small(path), file_state(path)
    try:
        record = json.loads(content or b"")
        return [
            _listed(evaluation, folder.place, state.changed / 1e9 if state else 0.0) for evaluation in record["evals"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _listed(evaluation: Mapping[str, Any], folder_path: str, measured: float) -> ListedEval:
    summary = evaluation["summary"]
    value = {name: math.nan if summary["value"][name] is None else float(summary["value"][name]) for name in ENDS}
    return ListedEval(
        model=str(evaluation["model"]),
        task=str(evaluation["task"]),
        measure=str(summary["measure"]),
        estimate=IntervalEstimate(**value),
        prompts=int(summary["prompts"]),
        samples=int(summary["samples"]),
        temperature=float(evaluation.get("temperature") or 0.0),
        place=folder_path,
        measured=measured,
    )


def section(task: str, evals: list[ListedEval]) -> dict[str, Any]:
    """A task: a figure of the newest, and a table of all."""
    rows = tuple(
        (
            evaluation.model,
            evaluation.measure,
            estimate_text(evaluation.estimate, evaluation.measure == "accuracy"),
            str(evaluation.prompts),
            str(evaluation.samples),
            f"{evaluation.temperature:g}",
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(evaluation.measured)),
            evaluation.place,
        )
        for evaluation in evals
    )
    head = ("model", "measure", "value (95% interval)", "prompts", "completions each", "temperature", "UTC", "folder")
    tables = [("", PageTable(head, rows))]
    return {"title": task, "about": "", "figures": _figures(task, evals), "tables": tables, "pairs": (), "searches": ()}


def _figures(task: str, evals: list[ListedEval]) -> list[Figure]:
    drawn = [
        evaluation for evaluation in evals if all(math.isfinite(getattr(evaluation.estimate, end)) for end in ENDS)
    ]
    drawn = [evaluation for evaluation in drawn if evaluation.measure == drawn[0].measure][:MOST_BARS]
    if len(drawn) < 2:
        return []
    title = f"{drawn[0].measure.capitalize()} on {task}"
    rows = [(evaluation.model[-LONGEST_NAME:], evaluation.estimate) for evaluation in drawn]
    return [interval_figure(title, "95% intervals over the prompts", rows, drawn[0].measure == "accuracy")]


def run_row(folder: FoundFolder) -> dict[str, str] | None:
    """What a run measured of itself on held-out prompts, before and after; None where it did not."""
    try:
        summary = json.loads(read_small(folder.path / "run.json") or b"")
        before, after = (dict(summary.get(end) or {}) for end in ("before", "after"))
        name = headline(after)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    if name is None:
        return None

    def shown(values: Mapping[str, Any]) -> str:
        value = values.get(name)
        return metric_text(name, value) if isinstance(value, int | float) else ABSENT

    return {
        "id": folder.id,
        "place": folder.place,
        "metric": words(name),
        "before": shown(before),
        "after": shown(after),
    }
