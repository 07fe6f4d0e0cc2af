"""One thread that keeps the board true: it looks for what changed, reads on, and tells whoever listens.

Changes are numbered. A client of the event stream holds nothing here but the number it has seen, so nothing is left
behind when a tab is closed, and a client that comes back is told what it missed.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

TICK = 1.0  # seconds between two looks while somebody listens
IDLE = 5.0  # and while nobody does
SLICE = 0.03  # seconds of reading on at a time
KEEP_ALIVE = 15.0  # seconds between comments that keep a stream open
PATIENCE = 0.25  # seconds between two glances of a stream at the number


@dataclass(frozen=True)
class BoardChange:
    """`run`: one run has changed, or is gone. `runs`: some came or went."""

    number: int
    kind: str
    values: dict[str, Any]


class Watcher:
    """`look` returns what each run is like now, by id; `read_on` reads for a slice, and says whether more is left."""

    def __init__(self, look: Callable[[], dict[str, dict[str, Any]]], read_on: Callable[[float], bool]) -> None:
        self._look, self._read_on = look, read_on
        self._lock = threading.Lock()
        self._changes: dict[str, BoardChange] = {}  # the last of each run
        self._seen: dict[str, dict[str, Any]] | None = None
        self.number = 0
        self.num_listeners = 0
        self._stopping, self._wanted = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread = threading.Thread(target=self._run, name="whet-board-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; streams end."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """There is something to read."""
        self._wanted.set()

    def notice(self) -> None:
        """Look once, and number what changed."""
        now = self._look()
        with self._lock:
            before, self._seen = self._seen, now
            if before is None:
                return
            if before.keys() != now.keys():
                self._note("runs", {"count": len(now)}, "")
                for gone in before.keys() - now.keys():
                    self._note("run", {"id": gone, "status": "deleted"}, gone)
            for run, values in now.items():
                if run in before and before[run] != values:
                    self._note("run", {"id": run, **values}, run)

    def _note(self, kind: str, values: dict[str, Any], key: str) -> None:
        self.number += 1
        self._changes[key] = BoardChange(self.number, kind, values)

    def since(self, number: int) -> list[BoardChange]:
        """What changed after a number, the oldest first; of each run only the last change."""
        with self._lock:
            return sorted(
                (change for change in self._changes.values() if change.number > number), key=lambda c: c.number
            )

    async def events(self, last: int | None = None) -> AsyncIterator[str]:
        """Server-sent events for one client: first the number it begins with, then every change."""
        number = self.number if last is None or last > self.number else last
        self.num_listeners += 1
        self.wake()
        try:
            yield f"retry: 2000\nevent: hello\nid: {number}\ndata: {{}}\n\n"
            quiet_since = time.monotonic()
            while not self._stopping.is_set():
                if self.number > number:
                    for change in self.since(number):
                        number = change.number
                        yield f"event: {change.kind}\nid: {change.number}\ndata: {json.dumps(change.values)}\n\n"
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > KEEP_ALIVE:
                    yield ": still here\n\n"
                    quiet_since = time.monotonic()
                await asyncio.sleep(PATIENCE)
        finally:
            self.num_listeners -= 1

    def _run(self) -> None:
        looked, took = -math.inf, 0.0
        while not self._stopping.is_set():
            # a folder that takes long to walk is walked less often
            pause = max(TICK, 2 * took) if self.num_listeners else max(IDLE, 5 * took)
            if time.monotonic() - looked >= pause:
                began = time.monotonic()
                self.notice()
                looked = time.monotonic()
                took = looked - began
            if self._read_on(SLICE):
                time.sleep(0.002)  # requests go first
                continue
            self._wanted.wait(max(0.05, min(looked + pause - time.monotonic(), TICK)))
            self._wanted.clear()
