"""The trainer's side: warm workers, one per core, and the jobs dealt out to them.

Workers are fresh interpreters, started by exec and never by a fork of the trainer: threads, CUDA and open files of
the trainer do not exist in them. Whoever has something to run, a job of a batch or a session, is lent a worker of its
own; no more jobs and calls run at once than there are cores. Batches of any number of threads share the cores job by
job, so a job that takes long keeps one worker busy and nobody else waiting. A pool starts anew after a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import logging
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from whet.reward.sandbox import isolation, wire
from whet.reward.sandbox.job import DEFAULT_LIMITS, LOST, Job, JobResult, UnitTestJob
from whet.reward.sandbox.requirement import (
    Requirement,
    check_isolation,
    checked_requirement,
    isolation_given,
    required_isolation,
    tell_isolation,
)
from whet.threads import in_threads, num_cores, side_by_side
from whet.types import WhetError

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
GRACE_SECONDS = 10.0  # what a worker may take beyond a job's wall-clock limit
END_SECONDS = 2.0  # what a worker may take to end
ATTEMPTS = 2  # of a job whose worker was lost
MOST_IDLE = 256  # workers that wait for another job or session

# stand-ins for the packages on the way: their own __init__ would load torch into every worker
BOOT = """
import sys, types
for name, folder in zip(("whet", "whet.reward.sandbox"), sys.argv[2:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from whet.reward.sandbox.worker import main
main(int(sys.argv[1]))
"""
WARM_UP = UnitTestJob(
    ("def f(x):\n    return [x, {'a': 2.5}]\n",),
    {"form": "program", "program": "def check(f):\n    for n in range(9):\n        assert f(n) == [n, {'a': 2.5}]\n"},
)
ENVIRONMENT = {
    # equal runs give equal scores: without it the order of a set of strings would change from worker to worker
    **{"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": "/usr/bin:/bin"},
    **{"HOME": "/nonexistent", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
}


class Stream:
    """The reading end of a pipe that a job writes to."""

    def __init__(self, name: str, most: int, descriptor: int) -> None:
        self.name, self.most, self.descriptor = name, most, descriptor
        self.data = bytearray()
        self.has_overflowed = False  # never of standard error: what is too much of it is dropped
        self.is_open = True
        os.set_blocking(descriptor, False)
        # what the pipe itself holds is read at the end: many small results would be as many interruptions
        self.is_watched = name not in ("record", "answers") or not _has_room(descriptor, most)

    def read(self) -> bool:
        """Read what has arrived; False where nothing had. Closes at the end of the stream."""
        if not self.is_open:
            return False
        try:
            piece = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return False
        room = self.most - len(self.data)
        self.data += piece[:room]
        self.has_overflowed = self.name != "stderr" and len(piece) > room
        if self.has_overflowed or not piece:
            self.close()
        return bool(piece)

    def close(self) -> None:
        """Stop reading."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


def _has_room(descriptor: int, most: int) -> bool:
    """True where the pipe can be made to hold everything that is taken from it."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, most) >= most
    except (OSError, AttributeError):
        return False


@dataclass(eq=False)
class JobBatch:
    """The jobs of one call of `Sandbox.run`, and who works on them."""

    futures: list[Future[JobResult]] = field(default_factory=list)
    busy: set[WorkerProcess] = field(default_factory=set)
    is_cancelled: bool = False

    def cancel(self) -> None:
        """Begin no more jobs, and end those under way."""
        self.is_cancelled = True
        for future in self.futures:
            future.cancel()
        for worker in list(self.busy):
            worker.hang_up()


def _folders_of(packages: Sequence[str]) -> list[str]:
    """The folders in which this process finds these packages; a new interpreter might look elsewhere."""
    tops = {name.partition(".")[0] for name in packages}
    return [path for path in sys.path if path and any(PathFinder.find_spec(top, [path]) for top in tops)]


class WorkerProcess:
    """One worker process as the trainer sees it."""

    def __init__(self, preload: Sequence[str], without: Sequence[str], environment: Mapping[str, str]) -> None:
        self.scratch = tempfile.mkdtemp(prefix="whet-sandbox-")
        os.chmod(self.scratch, 0o711)
        self.connection, there = socket.socketpair()
        here = Path(__file__).parent
        folders = [str(here.parent), str(here)]
        with there:
            self.process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-B", "-c", BOOT, str(there.fileno()), *folders],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )
        self.connection.settimeout(START_SECONDS)
        wanted = {"preload": list(preload), "without": list(without), "warm_up": [WARM_UP.sources, WARM_UP.tests()]}
        self.send({"scratch": self.scratch, "limits": DEFAULT_LIMITS.counts(), **wanted})

    def send(self, *messages: object) -> None:
        """Send messages that carry no descriptors."""
        try:
            self.connection.sendall(b"".join(map(wire.packed, messages)))
        except OSError as error:
            raise wire.ConnectionClosed(str(error)) from None

    def send_with(self, message: bytes, ends: Sequence[int], more: bytes = b"") -> None:
        """Send a message that carries descriptors, which are closed here, and what follows it."""
        try:
            self.connection.settimeout(GRACE_SECONDS)
            sent = socket.send_fds(self.connection, [message], ends)
            self.connection.sendall(message[sent:] + more)
        except OSError as error:
            raise wire.ConnectionClosed(str(error)) from None
        finally:
            for end in ends:
                os.close(end)

    def do(self, job: Job) -> JobResult | None:
        """Have the worker do a job; None where it is gone or far too late."""
        header, *parts = map(wire.packed, job.messages())
        pipes = {name: os.pipe() for name in job.streams()}
        streams = [Stream(name, most, pipes[name][0]) for name, most in job.streams().items()]
        ends = [*(end for _, end in pipes.values()), *map(wire.file_with, job.files())]
        try:
            self.send_with(header, ends, b"".join(parts))
            answer = self._answer(streams, time.monotonic() + job.limits.wall_seconds + GRACE_SECONDS)
            for stream in streams:
                while stream.read():  # whoever could write has ended: what is there is all there will be
                    pass
        except (wire.ConnectionClosed, OSError, ValueError):  # ValueError: of a connection that was closed here
            return None
        finally:
            for stream in streams:
                stream.close()
        written = {stream.name: bytes(stream.data) for stream in streams}
        is_taken = b'"taken"' in written.get("record", b'"taken"')[:64]
        # one that was killed is the doing of the code, which may share its user: no way out of a bad score
        if not is_taken and not os.WIFSIGNALED(int(answer["leader_status"])):
            return None  # the process of the tests did not get as far as to take them
        return job.result(answer, written, [stream.name for stream in streams if stream.has_overflowed])

    def _answer(self, streams: Sequence[Stream], deadline: float) -> dict[str, Any]:
        """What the worker says at the end of a job; what the job writes is read meanwhile."""
        with selectors.DefaultSelector() as events:
            events.register(self.connection, selectors.EVENT_READ)
            for stream in streams:
                if stream.is_watched:
                    events.register(stream.descriptor, selectors.EVENT_READ, stream)
            while ready := events.select(deadline - time.monotonic()):
                for key, _ in ready:
                    if key.data is None:
                        return self.receive()
                    key.data.read()
                    if not key.data.is_open:
                        events.unregister(key.fd)
        raise wire.ConnectionClosed("the worker is too late")

    def receive(self) -> dict[str, Any]:
        """The worker's next message."""
        return dict(wire.received(self.connection.recv))

    def end(self) -> None:
        """Hang up and let the worker clean up its jobs; only one that does not is killed."""
        self.hang_up()
        self.connection.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.remove_scratch()

    def hang_up(self) -> None:
        """Close the connection, upon which the worker ends by itself."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def remove_scratch(self) -> None:
        """Remove the worker's folder."""
        with contextlib.suppress(OSError):  # it may be gone already
            isolation.empty_folder(self.scratch)
            os.rmdir(self.scratch)

    def forget(self) -> None:
        """Let go of a worker that belongs to the process this one was forked from."""
        self.connection.close()
        self.process.returncode = 0  # not a child of this process: there is nothing to wait for


class Sandbox:
    """A pool of workers. Starts with the first batch; `close` or the end of the process ends it.

    `without` leaves protections out ("privilege", "namespaces", "landlock", "seccomp"), to see what the others hold.
    `require` is the isolation without which no job runs; by default what `require_isolation` set for the process.
    What is trusted, a library of whet's own that may only take too long, needs none, and nothing is said about it.
    """

    def __init__(
        self,
        workers: int = 0,
        preload: Sequence[str] = (),
        without: Sequence[str] = (),
        require: str | None = None,
        is_trusted: bool = False,
    ) -> None:
        if workers < 0:
            raise WhetError(f"the sandbox's workers is {workers}; give a count, or 0 for one per core")
        self.size = workers or num_cores()
        self.preload, self.without = tuple(preload), tuple(without)
        self.holds: Mapping[str, bool] = {}
        self.why: Mapping[str, tuple[int, str]] = {}  # step that failed: (error number or -1, what it said)
        self._is_trusted = is_trusted
        self._require = "none" if is_trusted else None if require is None else checked_requirement(require)
        self._begin()
        _open_pools.add(self)

    def _begin(self) -> None:
        self.idle: list[WorkerProcess] = []
        self._lent: set[WorkerProcess] = set()
        self._starting: set[WorkerProcess] = set()
        self.cores = threading.BoundedSemaphore(self.size)  # jobs and calls of sessions that run at once
        self._lock = threading.RLock()  # of the workers
        self._owner = os.getpid()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The result of every job, in order; all workers are kept busy."""
        return self.results(self.submit(jobs))

    def submit(self, jobs: Sequence[Job]) -> JobBatch:
        """Hand in jobs without waiting for them."""
        batch = JobBatch()
        if jobs:
            self.start(1)
            work = [functools.partial(self._result, job, batch) for job in jobs]
            batch.futures = in_threads(work, self.size, "whet-sandbox")
        return batch

    def results(self, batch: JobBatch) -> list[JobResult]:
        """Wait for the result of every job of a batch, in order."""
        try:
            return [future.result() for future in batch.futures]
        except BaseException:  # an alarm or Ctrl-C, or no worker starts
            batch.cancel()
            raise

    def _result(self, job: Job, batch: JobBatch) -> JobResult:
        """Do one job; one whose worker is lost is done by another."""
        attempts = 0
        while attempts < ATTEMPTS and not batch.is_cancelled:
            with self.cores:
                worker, result = self.lend(), None
                batch.busy.add(worker)
                try:
                    result = None if batch.is_cancelled else worker.do(job)
                finally:
                    batch.busy.discard(worker)
                    attempts += self.take_back(worker, is_sound=result is not None)
            if result is not None:
                return result
        if not batch.is_cancelled:
            logger.warning("the sandbox lost a job %d times; its sample cannot be judged", ATTEMPTS)
        return JobResult(ended=LOST)

    @property
    def requirement(self) -> Requirement:
        """The isolation without which no job runs."""
        return self._require or required_isolation()

    @property
    def workers(self) -> list[WorkerProcess]:
        """All workers that run."""
        return [*self.idle, *self._lent]

    def start(self, count: int | None = None) -> None:
        """Have that many workers ready, by default one a core: to start one takes longer than most jobs."""
        self._notice_fork()
        wanted = min(self.size if count is None else count, MOST_IDLE)
        if self.workers:
            self._check_isolation()
        for worker in side_by_side([self._started] * (wanted - len(self.workers)), self.size):
            self.take_back(worker, is_sound=True)

    def close(self) -> None:
        """End all workers."""
        if self._owner == os.getpid():
            with self._lock:
                ended = self.workers
                self.idle, self._lent = [], set()
            for worker in list(self._starting):  # it would not hear of it before it has loaded its packages
                worker.process.kill()
                ended.append(worker)
            for worker in ended:
                worker.hang_up()
            for worker in ended:
                worker.end()

    def lend(self) -> WorkerProcess:
        """A worker for one job or session alone, until it is given back."""
        self._notice_fork()
        with self._lock:
            if self.idle:
                self._check_isolation()
            while self.idle:
                worker = self.idle.pop()
                if worker.process.poll() is None:
                    self._lent.add(worker)
                    return worker
                worker.end()  # it died while nobody had it
        return self._started()

    def take_back(self, worker: WorkerProcess, *, is_sound: bool) -> bool:
        """The end of a job or session. A worker that is not sound ends with it. False for one that was ended before."""
        with self._lock:
            if worker not in self._lent:
                return False  # closed meanwhile
            self._lent.remove(worker)
            if is_sound and len(self.idle) < MOST_IDLE:
                self.idle.append(worker)
                return True
        worker.end()
        return True

    def _notice_fork(self) -> None:
        if self._owner != os.getpid():
            for worker in (*self.workers, *self._starting):
                worker.forget()
            self._begin()

    def _check_isolation(self) -> None:
        """Refuse also workers that were started when less was required."""
        try:
            check_isolation(self.requirement, self.holds, self.why)
        except WhetError:
            self.close()
            raise

    def _started(self) -> WorkerProcess:
        where = {"PYTHONPATH": os.pathsep.join(_folders_of(self.preload))} if self._is_trusted else {}
        worker = WorkerProcess(self.preload, self.without, ENVIRONMENT | where)
        self._starting.add(worker)
        try:
            greeting = worker.receive()
            with self._lock:
                self._admit(worker, greeting)
                self._lent.add(worker)
        except BaseException as error:
            worker.end()
            if isinstance(error, WhetError):
                self.close()
            if isinstance(error, wire.ConnectionClosed | OSError):
                raise _no_start(error) from None
            raise
        finally:
            self._starting.discard(worker)
        return worker

    def _admit(self, worker: WorkerProcess, greeting: Mapping[str, Any]) -> None:
        """Take a worker in, with no less isolation than is required and than the first one had."""
        holds, why = dict(greeting["holds"]), {name: (reason[0], reason[1]) for name, reason in greeting["why"].items()}
        check_isolation(self.requirement, holds, why)
        if lost := isolation_given(self.holds) - isolation_given(holds):
            raise WhetError(
                f"the sandbox lost its {', '.join(sorted(lost))} since it started, and will not go on with less; find "
                "out what changed on this machine, and start again"
            )
        if holds.get("private_root"):
            worker.remove_scratch()  # it lives on inside the worker; outside nothing is left to clean up
        if not self.holds:
            self.holds, self.why = holds, why
            if not self._is_trusted:
                tell_isolation(self.requirement, holds, why)


def _no_start(error: Exception) -> WhetError:
    return WhetError(
        f"the sandbox's worker did not start ({error}); run {sys.executable} -c pass to see whether this "
        "interpreter starts, and check that the temporary folder is writable"
    )


_open_pools: weakref.WeakSet[Sandbox] = weakref.WeakSet()


@atexit.register
def _close_pools() -> None:
    for pool in list(_open_pools):
        pool.close()


def shared_sandbox(workers: int = 0, preload: tuple[str, ...] = ()) -> Sandbox:
    """One pool for all rewards of the process; another one where jobs gain by packages that are loaded already."""
    return _shared_pool(workers, preload)


@functools.lru_cache(maxsize=8)  # on its own: with defaults, equal calls would count as different
def _shared_pool(workers: int, preload: tuple[str, ...]) -> Sandbox:
    return Sandbox(workers, preload)
