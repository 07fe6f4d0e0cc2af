"""Which sample a reward is judging, in a small file that outlives the process.

A crash in C code, a kill or a full memory ends a process without a word. The file then still says which call it was.
It is written by position, not mapped into memory: on a full disk a write is an error that can be ignored, a store into
a mapped page is the end of the process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from whet.record.run_folder import JOURNAL

SIZE = 2048  # bytes of the file, always: one write replaces everything

_descriptor: int | None = None


@contextlib.contextmanager
def journal(folder: Path) -> Iterator[None]:
    """Note the calls of rewards in `folder/scoring.txt`; a block that is left, however it is left, leaves no file."""
    global _descriptor
    path, before = folder / JOURNAL, _descriptor
    try:
        _descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError:  # a journal is no reason to fail
        yield
        return
    try:
        yield
    finally:
        os.close(_descriptor)
        _descriptor = before
        with contextlib.suppress(OSError):
            path.unlink()


def note_call(reward: str, where: str) -> None:
    """About to call a reward."""
    if _descriptor is not None:
        _write(f"reward {reward!r} was judging {where}")


@contextlib.contextmanager
def calls_noted() -> Iterator[None]:
    """Clear the note of the last call of a reward when the block ends."""
    try:
        yield
    finally:
        if _descriptor is not None:
            _write("")


def _write(text: str) -> None:
    line = text.encode("utf-8", "replace")[: SIZE - 1]
    with contextlib.suppress(OSError):
        os.pwrite(_descriptor or -1, line.ljust(SIZE - 1) + b"\n", 0)
