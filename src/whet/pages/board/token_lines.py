"""The line of tokens.jsonl that belongs to a sample, found by halving: its lines are in the order of step and place."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from whet.pages.board.files import open_file
from whet.pages.board.growing_log import LONGEST
from whet.record.tokens import VALUES, recorded_tokens

OPENING = re.compile(rb'\{"step": (\d{1,15}), "place": (\d{1,15}),')
BLOCK = 1 << 16


def token_line(path: Path, step: int, place: int) -> dict[str, Any] | None:
    """The line of the sample that was recorded at this place of the step; None where there is none."""
    file = open_file(path)
    if file is None:
        return None
    with file:
        descriptor, wanted = file.fileno(), (step, place)
        low, high = 0, os.fstat(descriptor).st_size  # the first line that is not before `wanted` begins within
        while low < high:
            middle = (low + high) // 2
            start, key = _next_line(descriptor, middle, high)
            if start is None or key >= wanted:
                high = middle
            else:
                low = start + 1
        start, key = _next_line(descriptor, low, os.fstat(descriptor).st_size)
        if start is None or key != wanted:
            return None
        file.seek(start)
        text = file.readline(LONGEST)
    return _checked(text) if text.endswith(b"\n") else None


def _next_line(descriptor: int, place: int, end: int) -> tuple[int | None, tuple[int, int]]:
    """Where the first line at or behind a place begins, and its step and place; None where none begins before `end`.

    A line that is none of ours is passed over.
    """
    start: int | None = place if place == 0 else _behind_newline(descriptor, place - 1, end)
    while start is not None and start < end:
        found = OPENING.match(os.pread(descriptor, 64, start))
        if found:
            return start, (int(found[1]), int(found[2]))
        start = _behind_newline(descriptor, start, end)
    return None, (0, 0)


def _behind_newline(descriptor: int, place: int, end: int) -> int | None:
    while place < end:
        content = os.pread(descriptor, min(BLOCK, end - place), place)
        if not content:
            return None
        newline = content.find(b"\n")
        if newline >= 0:
            return place + newline + 1
        place += len(content)
    return None


def _checked(text: bytes) -> dict[str, Any] | None:
    """A line whose tokens can be told; None for one that somebody damaged."""
    try:
        line = json.loads(text)
        recorded_tokens(line)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, StopIteration, RuntimeError):
        return None
    return line if isinstance(line, dict) else None


def token_values(line: dict[str, Any]) -> dict[str, Any]:
    """A line of tokens.jsonl for a page: equally long lists, null where a token has no such value."""
    tokens = recorded_tokens(line)
    turns = line.get("turns")
    return {
        "pieces": [token.piece for token in tokens],
        "action": [token.is_action for token in tokens],
        **{name: [getattr(token, name) for token in tokens] for name in VALUES},
        "turns": turns if isinstance(turns, list) else [],
        "left_out": line.get("left_out", 0),
    }
