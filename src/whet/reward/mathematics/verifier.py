"""math-verify, run in sessions of the sandbox: it may take for ever over an answer, and then its process is ended."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.reward.sandbox.job import REASONS, Limits
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.session import CALLS, SandboxSession, SessionOver
from whet.threads import in_threads, side_by_side
from whet.types import WhetError

logger = logging.getLogger(__name__)

# a busy machine must not change a verdict: the processor time decides
LIMITS = Limits(cpu_seconds=2.0, wall_seconds=40.0, memory_mb=4096)
ATTEMPTS = 2  # of a job whose process was lost for another reason than its time
PACKAGES = ("math_verify", "math_verify.grader", "math_verify.parser", "latex2sympy2_extended.latex2sympy2")
LONGEST = 4000  # characters of an answer as JSON
PIECE = 16  # jobs of a process, after which those that have started meanwhile take part


@dataclass(frozen=True)
class MathJob:
    """A question to math-verify: a function of `verifier_calls` and its arguments."""

    name: str
    arguments: tuple[Any, ...]


WARM_UP = MathJob("extract", ("$1$",))  # a process makes its patterns for its first question


@dataclass(frozen=True)
class MathResult:
    """What came of a job."""

    value: Any = None
    is_slow: bool = False  # took longer than its time
    is_lost: bool = False  # its process ended for another reason, twice


class MathPool:
    """Runs jobs on as many processes as there are cores, started when jobs need them. Any thread may use it."""

    def __init__(self, size: int = 0) -> None:
        self.sandbox = Sandbox(size, PACKAGES, is_trusted=True)
        self._begin()

    def _begin(self) -> None:
        self._idle: list[tuple[SandboxSession, float]] = []  # and the seconds that each has worked
        self._wanted = 0  # processes, started or about to be
        self._owner = os.getpid()

    def run(self, jobs: Sequence[MathJob]) -> list[MathResult]:
        """The result of every job, in order."""
        if self._owner != os.getpid():  # the sessions belong to the process that this one was forked from
            self._begin()
        results: list[MathResult] = []
        while len(results) < len(jobs):
            ready = min(self.sandbox.size, len(self._idle) + len(self.sandbox.idle))
            # a few jobs start one, many start all; without any, the first job starts one and waits for it
            self.start_behind(1 + len(jobs) // 4 - (not ready))
            piece = jobs[len(results) : len(results) + PIECE * max(1, ready)]
            results += side_by_side([functools.partial(self._ask, job) for job in piece], max(1, ready))
        return results

    def start_behind(self, count: int) -> None:
        """Have up to so many processes, without waiting for those that have yet to start: each takes a second."""
        count = min(count, self.sandbox.size)
        if count > self._wanted:
            self._wanted = count
            with contextlib.suppress(MemoryError, RuntimeError):  # no thread: jobs start what they need
                in_threads([functools.partial(self._start, count)], 1, "whet math-verify")

    def _start(self, count: int) -> None:
        self.sandbox.start(count)
        side_by_side([self._open] * len(self.sandbox.idle), self.sandbox.size)

    def _open(self) -> None:
        session = SandboxSession(self.sandbox, LIMITS)
        self._called(session, WARM_UP)
        self._idle.append((session, 0.0))

    def close(self) -> None:
        """End all processes."""
        self._idle = []
        self.sandbox.close()

    def _ask(self, job: MathJob) -> MathResult:
        for _ in range(ATTEMPTS):
            try:
                session, spent = self._idle.pop()
            except IndexError:
                session, spent = SandboxSession(self.sandbox, LIMITS), 0.0
            started = time.monotonic()
            try:
                return self._called(session, job)
            except SessionOver as end:
                started = -math.inf
                if str(end) == REASONS["time"]:
                    return MathResult(is_slow=True)
            finally:
                spent += time.monotonic() - started
                if spent + LIMITS.cpu_seconds < CALLS * LIMITS.cpu_seconds:
                    self._idle.append((session, spent))
                else:
                    session.close()  # the processor time of a session has a limit, too
        logger.warning("reward 'math_answer' lost a process twice on %.200r; its sample is unscorable", job.arguments)
        return MathResult(is_lost=True)

    def _called(self, session: SandboxSession, job: MathJob) -> MathResult:
        if session.is_fresh:
            session.call({"operation": "load", "source": _source(), "kind": "", "names": ["answer"]}, LONGEST)
        arguments = {"name": job.name, "arguments": job.arguments}
        answer = session.call({"operation": "call", "name": "answer", "arguments": arguments}, LONGEST)
        if answer.error.startswith(("ImportError", "ModuleNotFoundError")):
            raise WhetError(f"math-verify does not start ({answer.error}); run pip install math-verify")
        return MathResult(None if answer.error else json.loads(answer.text)[0])


@functools.cache
def _source() -> str:
    return Path(__file__).with_name("verifier_calls.py").read_text(encoding="utf-8")


POOL = MathPool()  # one for the whole process
