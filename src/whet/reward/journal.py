"""Which sample a reward is judging, in a small file that outlives the process.

A crash in C code, a kill or a full memory ends a process without a word. The file then still says which call it was.
It is written by position, not mapped into memory: on a full disk a write is an error that can be ignored, a store into
a mapped page is the end of the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from whet.record.run_folder import JOURNAL

SIZE = 2048  # bytes of the file, always: one write replaces everything

GIGABYTE = 1e9
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096

logger = logging.getLogger(__name__)
_descriptor: int | None = None
_grown: Counter[str] = Counter()  # bytes of memory that each reward has taken and not given back
_calls: Counter[str] = Counter()
_reported: dict[str, float] = {}  # bytes at which a reward's growth was last said
_threads_reported: set[str] = set()


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
def remarks(reward: str) -> Iterator[None]:
    """Calls of one reward: what it leaves behind, threads and memory, is said by its name.

    Memory only of calls on the main thread: beside others the process also grows by what those do.
    """
    before, threads = _memory(), set(threading.enumerate())
    is_alone = threading.current_thread() is threading.main_thread()
    try:
        yield
    finally:
        _calls[reward] += 1
        if is_alone and _calls[reward] > 1:  # a first call imports and loads what later ones use
            _grown[reward] += _memory() - before
        _report_growth(reward)
        _report_threads(reward, threads)
        if _descriptor is not None:
            most = max(_grown, key=_grown.__getitem__, default="")
            _write(_growth_text(most) if most and _grown[most] > GIGABYTE else "")


def _report_growth(reward: str) -> None:
    if _grown[reward] > max(GIGABYTE, 2 * _reported.get(reward, 0.0)):
        _reported[reward] = _grown[reward]
        logger.warning(
            "%s: it keeps what it should let go, and the run will end when memory is full", _growth_text(reward)
        )


def _growth_text(reward: str) -> str:
    return f"reward {reward!r} has grown the process by {_grown[reward] / GIGABYTE:.1f} GB in {_calls[reward]} calls"


def _report_threads(reward: str, before: set[threading.Thread]) -> None:
    from concurrent.futures import thread as pools

    pooled = getattr(pools, "_threads_queues", {})  # of an executor: they end by themselves
    left = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.daemon and thread not in pooled
    ]
    if left and threading.current_thread() is threading.main_thread() and reward not in _threads_reported:
        _threads_reported.add(reward)
        logger.warning(
            "reward %r left a thread running (%s); it is not waited for when the command ends", reward, left[0].name
        )


def _memory() -> int:
    """Bytes of memory that the process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _write(text: str) -> None:
    line = text.encode("utf-8", "replace")[: SIZE - 1]
    with contextlib.suppress(OSError):
        os.pwrite(_descriptor or -1, line.ljust(SIZE - 1) + b"\n", 0)
