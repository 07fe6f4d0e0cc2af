"""Processes that run math-verify for the trainer, started when the first job needs one.

They are fresh interpreters, started by exec and never by a fork of the trainer, so its threads, CUDA and open files do
not exist in them. A job that takes too long ends its process, and another takes its place: the same on any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from whet.threads import num_cores, side_by_side
from whet.types import WhetError

logger = logging.getLogger(__name__)

SECONDS = 2.0  # of CPU time for one job
GOLD_SECONDS = 10.0
START_SECONDS = 120.0
GRACE_FACTOR = 20  # wall-clock time per second of CPU time: a busy machine must not change a verdict

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
    is_lost: bool = False  # its process ended for another reason


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

    def said(self, seconds: float) -> Any:
        """The next message of the worker; `TimeoutError` after so many seconds, `EOFError` where it has ended."""
        try:
            if not self.connection.poll(seconds):
                raise TimeoutError
            return json.loads(self.connection.recv_bytes())
        except ConnectionError:
            raise EOFError from None

    def ask(self, job: MathJob) -> MathResult:
        """What comes of the job; the worker has ended where the result is slow or lost."""
        with contextlib.suppress(OSError):  # its end is noticed below
            self.connection.send_bytes(json.dumps([job.seconds, job.kind, *job.arguments]).encode())
        try:
            return MathResult(self.said(GRACE_FACTOR * job.seconds))
        except TimeoutError:
            self.process.kill()
            self.process.wait()
            return MathResult(is_slow=True)
        except EOFError:
            is_slow = self.process.wait() == -signal.SIGPROF
            return MathResult(is_slow=is_slow, is_lost=not is_slow)

    def end(self) -> None:
        """Kill the worker."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


class MathPool:
    """Runs jobs on as many processes as there are cores. Any thread may use it, one batch at a time."""

    def __init__(self, size: int = 0) -> None:
        self.size = size or num_cores()
        self.processes: list[MathProcess] = []
        self._idle: list[MathProcess] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def run(self, jobs: Sequence[MathJob]) -> list[MathResult]:
        """The result of every job, in order; a job whose process was lost is tried once more."""
        if self._owner != os.getpid():
            self._forget()
        with self._lock:
            try:
                results = self._asked(jobs)
                lost = [at for at, result in enumerate(results) if result.is_lost]
                for at, result in zip(lost, self._asked([jobs[at] for at in lost]), strict=True):
                    results[at] = result
            except BaseException:
                self.close()  # an alarm or Ctrl-C may strike between a question and its answer
                raise
        for job, result in zip(jobs, results, strict=True):
            if result.is_lost:
                logger.warning(
                    "reward 'math_answer' lost a worker twice on %.200r; its sample is unscorable", job.arguments
                )
        return results

    def close(self) -> None:
        """End all workers."""
        processes, self.processes, self._idle = self.processes, [], []
        for process in processes if self._owner == os.getpid() else ():
            process.end()

    def _forget(self) -> None:
        """Let go of workers that belong to the process this one was forked from."""
        for process in self.processes:
            process.connection.close()
            process.process.returncode = 0
        self.processes, self._idle, self._owner, self._lock = [], [], os.getpid(), threading.Lock()

    def _asked(self, jobs: Sequence[MathJob]) -> list[MathResult]:
        # a process costs a second of start: one for a few jobs, all for many
        most = min(self.size, 1 + len(jobs) // 4)
        return side_by_side([functools.partial(self._ask, job) for job in jobs], most, when_failed=self._stop)

    def _ask(self, job: MathJob) -> MathResult:
        try:
            process = self._idle.pop()
        except IndexError:
            process = self._started()
        result = process.ask(job)
        if result.is_slow or result.is_lost:
            self.processes.remove(process)
            process.end()
        else:
            self._idle.append(process)
        return result

    def _started(self) -> MathProcess:
        process = MathProcess()
        self.processes.append(process)
        try:
            process.said(START_SECONDS)
        except (EOFError, TimeoutError):
            raise WhetError(
                "a worker of reward 'math_answer' did not start; "
                f"run {sys.executable} -c 'import math_verify' to see why"
            ) from None
        return process

    def _stop(self) -> None:
        """Kill the workers, so that those who wait for one hear of it."""
        for process in self.processes:
            process.process.kill()


POOL = MathPool()  # one for the whole process
atexit.register(POOL.close)
