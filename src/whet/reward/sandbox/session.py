"""A process in the sandbox that lives as long as an episode: it takes calls one by one and keeps its state.

It has all the protections of a job. Memory, files and processes are limited for the session as a whole, processor
time and the wall clock for each call; between two calls its processes stand still. A call that goes over a limit ends
the session: the next one starts with an empty state, and is told so by `is_fresh`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.reward.sandbox import wire
from whet.reward.sandbox.job import REASONS, Limits
from whet.reward.sandbox.pool import GRACE_SECONDS, Sandbox, WorkerProcess

CALLS = 100  # a session as a whole may use the processor time of so many calls
OVERHEAD = 1 << 16  # bytes of an answer beside its text
BYTES = 6  # of a character in JSON, at most


class SessionOver(Exception):
    """The call ended the session; `text` says why."""


@dataclass(frozen=True)
class CallResult:
    """What a call printed and returned, cut to what was asked for; `error` is one line where it raised."""

    text: str
    length: int  # of the text before it was cut
    error: str


class SandboxSession:
    """One session; it starts with the first call and is used from one thread at a time."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self.sandbox, self.limits = sandbox, limits
        self._worker: WorkerProcess | None = None
        self._calls = self._answers = -1
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def is_fresh(self) -> bool:
        """True where the next call starts a new process, without any state."""
        return self._worker is None

    def call(self, message: Mapping[str, Any], most: int) -> CallResult:
        """Run a call within its limits; of its text the first `most` characters are kept."""
        # no more calls at once than cores: the wall clock of one must not measure the others
        with self._lock, self.sandbox.cores:
            if self._is_closed:
                raise SessionOver("the session is closed")
            try:
                self._start()
                assert self._worker is not None
                limits = {"wall_seconds": self.limits.wall_seconds, "cpu_seconds": self.limits.cpu_seconds}
                self._worker.send({"session": "call", **limits})
                result = self._exchange(wire.packed({**message, "most": most}), OVERHEAD + 2 * BYTES * most)
                self._worker.send({"session": "pause"})
                return result
            except (wire.ConnectionClosed, OSError):
                self._end(is_sound=False)
                raise SessionOver("the sandbox lost the process") from None
            except BaseException:
                # of an interrupted call nobody knows how far it got
                if self._worker is not None:
                    self._end(is_sound=False)
                raise

    def close(self) -> None:
        """End the process and everything it started, also from another thread in the middle of a call."""
        self._is_closed = True
        if not self._lock.acquire(blocking=False):
            if (worker := self._worker) is not None:
                worker.hang_up()
            return  # whoever is in the call finds the session over, and ends it
        try:
            self._end(is_sound=True)
        finally:
            self._lock.release()

    def _start(self) -> None:
        if self._worker is not None:
            return
        self._worker = self.sandbox.lend()
        calls, self._calls = os.pipe()
        self._answers, answers = os.pipe()
        limits = {**self.limits.counts(), "cpu_seconds": self.limits.cpu_seconds * CALLS}
        self._worker.send_with(wire.packed({"kind": "session", "limits": limits}), [calls, answers])
        os.set_blocking(self._calls, False)
        os.set_blocking(self._answers, False)

    def _exchange(self, question: bytes, largest: int) -> CallResult:
        """Send the call and take its answer, whichever way the process behaves."""
        worker = self._worker
        assert worker is not None
        left, answer = memoryview(question), bytearray()
        deadline = time.monotonic() + self.limits.wall_seconds + GRACE_SECONDS
        with selectors.DefaultSelector() as events:
            events.register(self._calls, selectors.EVENT_WRITE)
            events.register(self._answers, selectors.EVENT_READ)
            events.register(worker.connection, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in events.select(deadline - time.monotonic())}
                if not ready:
                    raise wire.ConnectionClosed("the worker is too late")
                if self._calls in ready:
                    with contextlib.suppress(BlockingIOError):
                        left = left[self._write(left) :]
                    if not left:
                        events.unregister(self._calls)
                if self._answers in ready:
                    piece = os.read(self._answers, 1 << 16)
                    answer += piece
                    if not piece:
                        events.unregister(self._answers)  # the worker will say how it ended
                    if (result := self._result(answer, largest)) is not None:
                        return result
                elif worker.connection.fileno() in ready:
                    report = worker.receive()
                    self._end(is_sound=True, has_reported=True)
                    raise SessionOver(REASONS.get(str(report["ended"]), "") or "the process ended")

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._calls, data)
        except BrokenPipeError:
            return len(data)  # nobody reads it: the worker will say how the process ended

    def _result(self, answer: bytearray, largest: int) -> CallResult | None:
        """The answer, once all of it is there. The other side may write anything."""
        if len(answer) < wire.LENGTH.size:
            return None
        (length,) = wire.LENGTH.unpack(answer[: wire.LENGTH.size])
        if length > largest:
            self._end(is_sound=True)
            raise SessionOver(REASONS["output"])
        if len(answer) < wire.LENGTH.size + length:
            return None
        try:
            result = json.loads(answer[wire.LENGTH.size :])
            return CallResult(str(result["text"]), int(result["length"]), str(result["error"]))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self._end(is_sound=True)
            raise SessionOver("its answer cannot be read") from None

    def _end(self, *, is_sound: bool, has_reported: bool = False) -> None:
        worker, self._worker = self._worker, None
        for descriptor in (self._calls, self._answers):
            if descriptor >= 0:
                os.close(descriptor)
        self._calls = self._answers = -1
        if worker is None:
            return
        if is_sound and not has_reported:
            try:
                worker.connection.settimeout(GRACE_SECONDS)
                worker.send({"session": "end"})
                worker.receive()
            except wire.ConnectionClosed:
                is_sound = False
        self.sandbox.take_back(worker, is_sound=is_sound)
