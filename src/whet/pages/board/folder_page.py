"""What lies in the folder of a run: its error, the end of its logs, its models and what each is good for; and notes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet.model.run_models import ABOUT, BEST, CHECKPOINTS, FINAL, MANIFEST, NAME
from whet.pages.board.board_app import Board, BoardApp, BoardRequest, BoardResponse, json_response
from whet.pages.board.files import RUN, file_state, open_file, read_small, visible
from whet.record.evaluations import Evaluations
from whet.record.notes import NOTES, checked_notes, notes_from, write_notes
from whet.record.text import memory_text, words

ERROR_LOG, JOURNAL = "error.log", "scoring.txt"  # the traceback of a failure, and the sample that was being scored
LOGS = (".log", ".txt", ".out", ".err")
MOST_LOGS, MOST_TAIL = 12, 64 << 10  # files, and bytes of the end of each
MOST_MODELS = 200


def add_routes(app: BoardApp, board: Board) -> None:
    """The folder of a run, and what people say of it."""

    def page(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        view = board.reader(run.id).view()
        error = view.record.summary.get("error")
        listed = models(run.path, view.record.evaluations(), view.status)
        return board.page(
            "board_folder.html",
            title=f"Files of {visible(run.name)}",
            heading=visible(run.name),
            eyebrow="files",
            run=run.id,
            tab="files",
            verdict=f"It failed: {visible(str(error)[:2000])}" if error else "",
            status=view.status,
            logs=logs(run.path),
            models=listed,
            resume=f"whet resume {visible(str(run.path))}" if any(model["resumes"] for model in listed) else "",
        )

    def noted(request: BoardRequest) -> BoardResponse:
        run = board.find(request.path["run"], RUN)
        write_notes(run.path, checked_notes(request.values()))
        board.watcher.wake()
        return json_response(noted_values(run.path))

    app.get("/run/{run}/files", page)
    app.post("/api/run/{run}/notes", noted)


def noted_values(folder: Path) -> dict[str, Any]:
    """The tags and the note of a run."""
    notes = notes_from(read_small(folder / NOTES, 1 << 20))
    return {"tags": list(notes.tags), "note": notes.note}


def logs(folder: Path) -> list[dict[str, str]]:
    """The ends of the texts a run left besides its records, with its error first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(LOGS))
    except OSError:
        names = []
    first = [name for name in (ERROR_LOG, JOURNAL) if name in names]
    shown = []
    for name in [*first, *(name for name in names if name not in first)][:MOST_LOGS]:
        state = file_state(folder / name)
        text = tail(folder / name)
        if state is None or text is None:
            continue
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(state.changed // 10**9))
        cut = f", the last {memory_text(MOST_TAIL)} of {memory_text(state.size)}" if state.size > MOST_TAIL else ""
        shown.append({"name": visible(name), "about": f"{when}{cut}", "text": visible(text)})
    return shown


def tail(path: Path) -> str | None:
    """The end of a text, from the start of a line on; None where it cannot be read."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        size = os.fstat(file.fileno()).st_size
        content = os.pread(file.fileno(), MOST_TAIL, max(0, size - MOST_TAIL))
    if size > MOST_TAIL:
        content = content.partition(b"\n")[2] or content
    return content.rstrip(b"\0").decode("utf-8", "replace")  # a journal keeps its size


def models(folder: Path, evaluations: Evaluations, status: str) -> list[dict[str, Any]]:
    """The models of a run and what each is good for: the best and the final one, then checkpoints, the newest first."""
    measured = {evaluation.step: evaluation.text for evaluation in evaluations.measured}
    metric = words(evaluations.last.metric) if evaluations.last is not None else ""
    rows = [_plain_model(folder, name, measured, metric) for name in (BEST, FINAL)]
    steps = sorted(_checkpoint_steps(folder / CHECKPOINTS), reverse=True)[:MOST_MODELS]
    for step, path in steps:
        is_newest = (step, path) == steps[0]
        uses = ["go on from here: resume begins with it"] if is_newest and status != "finished" else []
        uses += ["start another run from it, evaluate it, sample from it"]
        evaluation = f"{metric} {measured[step]}" if step in measured else ""
        rows.append(_row(path, f"{CHECKPOINTS}/{path.name}", step, "; ".join(uses), evaluation, is_newest))
    return [row for row in rows if row is not None]


def _plain_model(folder: Path, name: str, measured: Mapping[int, str], metric: str) -> dict[str, Any] | None:
    path = folder / name
    if path.is_symlink() or file_state(path / MANIFEST) is None:
        return None
    try:
        step = int(json.loads(read_small(path / ABOUT) or b"")["step"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    use = "the best by evaluation: use this one" if name == BEST else "the model after the last step"
    return _row(path, name, step, use, f"{metric} {measured[step]}" if step in measured else "")


def _row(path: Path, name: str, step: int, use: str, evaluation: str, resumes: bool = False) -> dict[str, Any]:
    size = sum(state.size for entry in _entries(path) if (state := file_state(entry)) is not None)
    return {
        "name": name,
        "step": step,
        "use": use,
        "evaluation": evaluation,
        "size": memory_text(size),
        "resumes": resumes,
    }


def _checkpoint_steps(folder: Path) -> list[tuple[int, Path]]:
    named = [(match, path) for path in _entries(folder) if (match := NAME.fullmatch(path.name))]
    return [
        (int(match[1]), path)
        for match, path in named
        if not path.is_symlink() and file_state(path / MANIFEST) is not None
    ]


def _entries(folder: Path) -> list[Path]:
    try:
        return [] if folder.is_symlink() else [folder / name for name in os.listdir(folder)]
    except OSError:
        return []
