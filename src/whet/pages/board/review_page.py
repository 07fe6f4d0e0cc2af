"""The review of a run: its best and worst completions, to be marked by keyboard, and how far the reward agrees."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from whet.pages.board.access import Refusal
from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import RUN, FileState, FoundFolder, file_state, visible
from whet.pages.board.samples_page import visible_card
from whet.pages.review import REVIEW, read_review, review_values
from whet.record.marks import (
    HIGH,
    LONGEST_NOTE,
    LOW,
    MARKS,
    MARKS_LOG,
    SampleMark,
    agreement,
    append_marks,
    review_counts,
    review_verdict,
)

MOST_BYTES = 256 << 20  # of a review that is read
NOTHING = (
    "Nothing to review yet: a run with a reward selects completions every report.review_every steps and at its end."
)

Rows = list[dict[str, Any]]


def stored_rows(folder: Path) -> Rows:
    """The review of a run with its marks, read again when its files change."""
    states = tuple(file_state(folder / name) for name in (REVIEW, MARKS_LOG))
    if states[0] is None:
        return []
    if sum(state.size for state in states if state is not None) > MOST_BYTES:
        raise Refusal(413, f"{REVIEW} and {MARKS_LOG} are larger than the board reads")
    if states[1] is None and (folder / MARKS_LOG).is_symlink():
        raise Refusal(422, f"{MARKS_LOG} is a link, and the board follows none; put the file itself there")
    return _rows_of(folder, states)


@lru_cache(maxsize=8)
def _rows_of(folder: Path, states: tuple[FileState | None, ...]) -> Rows:
    return read_review(folder)


def add_routes(app: BoardApp, board: Board) -> None:
    """The review of a run, and the marks that are posted."""

    def page(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        rows = stored_rows(run.path)
        steps = sorted({int(row["step"]) for row in rows}, reverse=True)
        step = request.number("step", steps[0] if steps else 0, 0, 2**53)
        if step not in steps and steps:
            raise Refusal(404, f"step {step} has no review")
        at = steps.index(step) if steps else 0
        return board.page(
            "review.html",
            **review_values(rows, [step] if steps else [], lambda row: replace(visible_card(row), id=str(row["id"]))),
            title=f"Review of {visible(run.name)}",
            run=run.id,
            tab="review",
            verdict=review_verdict(review_counts(rows)) if rows else NOTHING,
            agreement=_agreement(rows) if rows else {},
            step=step,
            listed=[_step_link(rows, step) for step in steps],
            newer=steps[at - 1] if at > 0 else None,
            older=steps[at + 1] if at + 1 < len(steps) else None,
            marks=MARKS,
        )

    def marked(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        return json_response(_agreement(stored_rows(run.path)))

    def mark(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        append_marks(run.path, [_given(run, stored_rows(run.path), request.values())])
        return json_response(_agreement(stored_rows(run.path)))

    app.get("/run/{run}/review", page)
    app.get("/api/run/{run}/review", marked)
    app.post("/api/run/{run}/review", mark)


def _given(run: FoundFolder, rows: Rows, values: dict[str, Any]) -> SampleMark:
    """What somebody says of a sample, checked."""
    name, mark, note = values.get("id"), values.get("mark"), values.get("note", "")
    if not any(row["id"] == name for row in rows):
        raise Refusal(404, "the review has no such sample; reload the page")
    if mark is not None and mark not in MARKS:
        raise Refusal(400, f"mark is not one of {', '.join(MARKS)} or null")
    if not isinstance(note, str) or len(note) > LONGEST_NOTE:
        raise Refusal(400, f"note is not a text of at most {LONGEST_NOTE:,} characters")
    return SampleMark(str(name), mark, note)


def _agreement(rows: Rows) -> dict[str, Any]:
    """The counts, and what people and the reward agree on."""
    counts = review_counts(rows)
    both = agreement(counts)
    return {
        "counts": {end: {name: counts[f"{end} {name}"] for name in (*MARKS, "unmarked")} for end in (HIGH, LOW)},
        "marked": both.marked,
        "agreed": both.agreed,
        "total": len(rows),
        **{name: getattr(both, name) for name in ("share", "low", "high", "kappa")},
        "verdict": review_verdict(counts),
    }


def _step_link(rows: Rows, step: int) -> tuple[int, int, int]:
    """The step, and how many of its samples are marked."""
    of_step = [row for row in rows if row["step"] == step]
    return step, sum(bool(row.get("mark")) for row in of_step), len(of_step)
