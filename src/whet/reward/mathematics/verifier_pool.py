"""Processes that run math-verify for the trainer, started when the first job needs one.

They are fresh interpreters, started by exec and never by a fork of the trainer, so its threads, CUDA and open files do
not exist in them. A job that takes too long ends its process, and another takes its place: the same on any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from whet.threads import num_cores
from whet.types import WhetError

logger = logging.getLogger(__name__)

SECONDS = 2.0  # of CPU time for one job
GOLD_SECONDS = 10.0
START_SECONDS = 120.0
GRACE_FACTOR = 20  # wall-clock time per second of CPU time: a busy machine must not change a verdict
ATTEMPTS = 2  # of a job whose process was lost for another reason than its time

# stand-ins for the packages on the way: their own __init__ would load torch into every process
BOOT = """
import sys, types
for name, folder in zip(("whet", "whet.reward"), sys.argv[2:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from whet.reward.mathematics.verifier_worker import main
main(int(sys.argv[1]))
"""


@dataclass(frozen=True)
class MathJob:
    """What a worker is asked to do."""

    kind: str  # of `verifier_worker.JOBS`
    arguments: tuple[Any, ...]
    seconds: float = SECONDS


@dataclass(frozen=True)
class MathResult:
    """What came of a job."""

    value: Any = None
    is_slow: bool = False  # took longer than its time
    is_lost: bool = False  # its process ended for another reason, twice


class MathProcess:
    """One worker as the trainer sees it."""

    def __init__(self) -> None:
        self.connection, there = Pipe()
        here = Path(__file__).parent
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", BOOT, str(there.fileno()), str(here.parent.parent), str(here.parent)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=(there.fileno(),),
                start_new_session=True,  # Ctrl-C goes to the trainer alone
            )
        self.is_ready = False
        self.at: int | None = None
        self.deadline = 0.0

    def end(self) -> None:
        """Kill the worker."""
        with contextlib.suppress(OSError):
            self.connection.close()
        with contextlib.suppress(OSError):
            self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        """Let go of a process that belongs to the one this was forked from."""
        self.connection.close()
        self.process.returncode = 0


class MathPool:
    """Runs jobs on as many processes as there are cores. Any thread may use it, one batch at a time."""

    def __init__(self, size: int = 0) -> None:
        self.size = size or num_cores()
        self.processes: list[MathProcess] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def run(self, jobs: Sequence[MathJob]) -> list[MathResult]:
        """The result of every job, in order."""
        if self._owner != os.getpid():
            for process in self.processes:
                process.forget()
            self.processes, self._owner, self._lock = [], os.getpid(), threading.Lock()
        if not jobs:
            return []
        with self._lock:
            try:
                return self._run(jobs)
            except BaseException:
                self._end(self.processes)  # an alarm or Ctrl-C may strike between a question and its answer
                raise

    def close(self) -> None:
        """End all workers."""
        if self._owner == os.getpid():
            self._end(self.processes)

    def _end(self, processes: Sequence[MathProcess]) -> None:
        for process in list(processes):
            self.processes.remove(process)
            process.end()

    def _run(self, jobs: Sequence[MathJob]) -> list[MathResult]:
        results: list[MathResult | None] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        attempts = [0] * len(jobs)
        # a process costs a second of start: one for a few jobs, all for many
        wanted = min(self.size, 1 + len(jobs) // 4)
        while any(result is None for result in results):
            while len(self.processes) < wanted:
                process = MathProcess()
                process.deadline = time.monotonic() + START_SECONDS
                self.processes.append(process)
            for process in self.processes:
                if process.is_ready and process.at is None and waiting:
                    self._give(process, waiting.popleft(), jobs, attempts)
            for process in self._spoken():
                self._hear(process, jobs, results, waiting, attempts)
        return [result for result in results if result is not None]

    def _give(self, process: MathProcess, at: int, jobs: Sequence[MathJob], attempts: list[int]) -> None:
        job = jobs[at]
        attempts[at] += 1
        process.at = at
        process.deadline = time.monotonic() + GRACE_FACTOR * job.seconds
        with contextlib.suppress(OSError):  # its end will be noticed
            process.connection.send_bytes(json.dumps([job.seconds, job.kind, *job.arguments]).encode())

    def _spoken(self) -> list[MathProcess]:
        """Those of the busy and starting processes that have something to say, or are too late."""
        busy = [process for process in self.processes if process.at is not None or not process.is_ready]
        earliest = min(process.deadline for process in busy)
        ready = wait([process.connection for process in busy], max(0.0, earliest - time.monotonic()))
        spoken = [process for process in busy if process.connection in ready]
        return spoken or [process for process in busy if process.deadline <= time.monotonic()]

    def _hear(
        self,
        process: MathProcess,
        jobs: Sequence[MathJob],
        results: list[MathResult | None],
        waiting: deque[int],
        attempts: list[int],
    ) -> None:
        is_late = process.deadline <= time.monotonic()
        answer = _answer(process.connection)
        if answer is not None and not process.is_ready:
            process.is_ready = True
            return
        at, process.at = process.at, None
        if answer is not None:
            assert at is not None
            results[at] = MathResult(answer[0])
            return
        if process.is_ready and not is_late:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.process.wait(START_SECONDS)  # it hung up, so it is ending
        is_slow = is_late or process.process.returncode == -signal.SIGPROF
        self._end([process])
        if at is None:
            raise WhetError(
                "a worker of reward 'math_answer' did not start; "
                f"run {sys.executable} -c 'import math_verify' to see why"
            )
        if is_slow:
            results[at] = MathResult(is_slow=True)
        elif attempts[at] < ATTEMPTS:
            waiting.appendleft(at)
        else:
            logger.warning(
                "reward 'math_answer' lost a worker twice on %.200r; its sample is unscorable", jobs[at].arguments
            )
            results[at] = MathResult(is_lost=True)


def _answer(connection: Connection[Any, Any]) -> tuple[Any] | None:
    """(what was said,), None where nothing was or the process is gone."""
    try:
        return (json.loads(connection.recv_bytes()),) if connection.poll() else None
    except (EOFError, OSError, ValueError):
        return None


POOL = MathPool()  # one for the whole process
atexit.register(POOL.close)
