"""The trainer's side: warm workers, one per core, and the jobs dealt out to them.

Workers are fresh interpreters, started by exec and never by a fork of the trainer: threads, CUDA and open files of
the trainer do not exist in them. A pool takes batches from any number of threads at once: one thread of its own deals
the jobs of all of them out, so a job that takes long keeps one worker busy and nobody else waiting. A pool starts anew
after a fork.
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
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.reward.sandbox import isolation, wire
from whet.reward.sandbox.job import DEFAULT_LIMITS, LOST, Job, JobResult
from whet.reward.sandbox.requirement import (
    Requirement,
    check_isolation,
    checked_requirement,
    isolation_given,
    required_isolation,
    tell_isolation,
)
from whet.threads import Thread, num_cores, side_by_side
from whet.types import WhetError

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
GRACE_SECONDS = 10.0  # what a worker may take beyond a job's wall-clock limit
END_SECONDS = 2.0  # what a worker may take to end
ATTEMPTS = 2  # of a job whose worker was lost
MOST_SPARE = 256  # workers that wait for another session

# stand-ins for the packages on the way: their own __init__ would load torch into every worker
BOOT = """
import sys, types
for name, folder in zip(("whet", "whet.reward.sandbox"), sys.argv[2:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from whet.reward.sandbox.worker import main
main(int(sys.argv[1]))
"""
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
        """Take what is there; False when that was nothing. Closes where nothing more will be taken."""
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
        """Take no more."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


def _has_room(descriptor: int, most: int) -> bool:
    """True where the pipe can be made to hold everything that is taken from it."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, most) >= most
    except (OSError, AttributeError):
        return False


class JobBatch:
    """The jobs of one call of `Sandbox.run`, and what came of them."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.results: list[JobResult | None] = [None] * len(jobs)
        self.waiting = [WaitingJob(self, number, job) for number, job in enumerate(jobs)]
        self.left = len(jobs)
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.is_over = threading.Event()
        if not jobs:
            self.is_over.set()

    def settle(self, number: int, result: JobResult) -> None:
        """Take the result of one job."""
        self.results[number] = result
        self.left -= 1
        if not self.left:
            self.is_over.set()

    def fail(self, error: BaseException) -> None:
        """End the batch without its results."""
        self.error = error
        self.is_over.set()


@dataclass(eq=False)
class WaitingJob:
    """One job of a batch, on its way."""

    batch: JobBatch
    number: int
    job: Job
    attempts: int = 0

    def __post_init__(self) -> None:
        # in the thread that hands the job in: the dispatcher has all threads' jobs to deal with
        self.header, *parts = map(wire.packed, self.job.messages())
        self.parts = b"".join(parts)
        self.files, self.streams = self.job.files(), self.job.streams()


class WorkerProcess:
    """One worker process as the trainer sees it."""

    def __init__(self, preload: Sequence[str], without: Sequence[str]) -> None:
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
                env=ENVIRONMENT,
                cwd="/",
                pass_fds=(there.fileno(),),
                start_new_session=True,
            )
        self.connection.settimeout(START_SECONDS)
        self.at: WaitingJob | None = None  # the job it works on
        self.streams: list[Stream] = []  # what that job writes
        self.deadline = 0.0
        wanted = {"preload": list(preload), "without": list(without)}
        self.send({"scratch": self.scratch, "limits": DEFAULT_LIMITS.counts(), **wanted})

    def send(self, *messages: object) -> None:
        """Send messages that carry no descriptors."""
        try:
            self.connection.sendall(b"".join(map(wire.packed, messages)))
        except OSError as error:
            raise wire.ConnectionClosed(str(error)) from None

    def give(self, waiting: WaitingJob) -> None:
        """Send a job, with the writing ends of pipes for what it writes, and its files."""
        self.at, ends = waiting, []
        for name, most in waiting.streams.items():
            reading, writing = os.pipe()
            ends.append(writing)
            self.streams.append(Stream(name, most, reading))
        ends += map(wire.file_with, waiting.files)
        try:
            sent = socket.send_fds(self.connection, [waiting.header], ends)
            self.connection.sendall(waiting.header[sent:] + waiting.parts)
        except OSError as error:
            raise wire.ConnectionClosed(str(error)) from None
        finally:
            for end in ends:
                os.close(end)

    def close_streams(self) -> None:
        """Take nothing more of what the job writes."""
        for stream in self.streams:
            stream.close()
        self.streams = []

    def receive(self) -> dict[str, Any]:
        """The worker's next message."""
        return dict(wire.received(self.connection.recv))

    def end(self) -> None:
        """Hang up and let the worker clean up its jobs; only one that does not is killed."""
        self.close_streams()
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
        self.close_streams()
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
        self.workers: list[WorkerProcess] = []  # started ones, for batches
        self._lent: set[WorkerProcess] = set()  # each to one session
        self._spare: list[WorkerProcess] = []  # came back from a session
        self.cores = threading.BoundedSemaphore(self.size)  # calls of sessions that run at once
        self._owner = os.getpid()
        self._lock = threading.RLock()  # of what follows and of `workers`
        self._waiting: deque[WaitingJob] = deque()
        self._bell: tuple[int, int] | None = None  # a pipe that wakes the dispatcher; None: there is none
        self._has_ended_some = False  # workers that the dispatcher still listens to
        self._lending = threading.Lock()
        _open_pools.add(self)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The result of every job, in order; all workers are kept busy."""
        return self.results(self.submit(jobs))

    def submit(self, jobs: Sequence[Job]) -> JobBatch:
        """Hand in jobs without waiting for them."""
        self._notice_fork()
        batch = JobBatch(jobs)
        if jobs:
            with self._lock:
                self._start(1)
                self._waiting += batch.waiting
                self._wake_dispatcher()
        return batch

    def results(self, batch: JobBatch) -> list[JobResult]:
        """Wait for the result of every job of a batch, in order."""
        try:
            batch.is_over.wait()
        except BaseException:  # an alarm or Ctrl-C
            batch.is_cancelled = True
            with self._lock:
                self._wake_dispatcher()
            raise
        if batch.error is not None:
            raise batch.error
        return [result for result in batch.results if result is not None]

    def _wake_dispatcher(self) -> None:
        if self._bell is not None:
            os.write(self._bell[1], b".")
        elif self._waiting:
            self._bell = os.pipe()
            Thread(target=self._dispatch, name="whet-sandbox", daemon=True).start()

    @property
    def requirement(self) -> Requirement:
        """The isolation without which no job runs."""
        return self._require or required_isolation()

    def start(self, count: int | None = None) -> None:
        """Have that many workers ready, all by default."""
        self._notice_fork()
        with self._lock:
            self._start(self.size if count is None else count)

    def close(self) -> None:
        """End all workers."""
        if self._owner == os.getpid():
            with self._lock:
                self._end(self.workers)
            with self._lending:
                lent = [*self._lent, *self._spare]
                self._lent, self._spare = set(), []
            for worker in lent:
                worker.hang_up()
            for worker in lent:
                worker.end()

    @property
    def idle_workers(self) -> list[WorkerProcess]:
        """Workers without a session; between two batches none of them runs anything."""
        return [*self.workers, *self._spare]

    def lend(self) -> WorkerProcess:
        """A worker for one session alone, until it is given back; batches have others."""
        self._notice_fork()
        with self._lending:
            if self._spare:
                worker = self._spare.pop()
                self._lent.add(worker)
                return worker
        worker = WorkerProcess(self.preload, self.without)
        try:
            greeting = worker.receive()
            with self._lending:
                self._admit(worker, greeting)
                self._lent.add(worker)
        except BaseException as error:
            worker.end()
            if isinstance(error, wire.ConnectionClosed):
                raise _no_start(error) from None
            raise
        return worker

    def warm(self, sessions: int) -> None:
        """Have workers ready for so many sessions: to start one takes longer than most calls."""
        count = min(sessions, MOST_SPARE)
        if count <= len(self._spare):
            return
        for worker in side_by_side([self.lend] * count, self.size):
            self.take_back(worker, is_sound=True)

    def take_back(self, worker: WorkerProcess, *, is_sound: bool) -> None:
        """The end of a session. A worker that is not sound ends with it."""
        with self._lending:
            if worker not in self._lent:
                return  # closed meanwhile
            self._lent.remove(worker)
            if is_sound and len(self._spare) < MOST_SPARE:
                self._spare.append(worker)
                return
        worker.end()

    def _notice_fork(self) -> None:
        if self._owner != os.getpid():
            for worker in (*self.workers, *self._lent, *self._spare):
                worker.forget()
            for end in self._bell or ():
                os.close(end)
            self.workers, self._lent, self._spare = [], set(), []
            self._waiting, self._bell = deque(), None
            self._owner, self._lock, self._lending = os.getpid(), threading.RLock(), threading.Lock()
            self.cores = threading.BoundedSemaphore(self.size)

    def _start(self, count: int) -> None:
        fresh = []
        try:
            while len(self.workers) < min(count, self.size):
                worker = WorkerProcess(self.preload, self.without)
                self.workers.append(worker)
                fresh.append(worker)
            for worker in fresh:
                self._admit(worker, worker.receive())
            if self.workers:
                # also for workers that were started when less was required
                check_isolation(self.requirement, self.holds, self.why)
        except WhetError:
            self._end(self.workers)
            raise
        except (wire.ConnectionClosed, OSError) as error:
            self._end(self.workers)
            raise _no_start(error) from None

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

    def _end(self, workers: Sequence[WorkerProcess]) -> None:
        ended = list(workers)
        for worker in ended:
            worker.hang_up()
        for worker in ended:
            self.workers.remove(worker)
            worker.end()
            if worker.at is not None:  # another one will do it
                self._waiting.appendleft(worker.at)
                worker.at = None
        self._has_ended_some = True

    def _dispatch(self) -> None:
        """Deal out jobs and collect their results until there are none; what goes wrong ends all batches."""
        try:
            with selectors.DefaultSelector() as busy:
                assert self._bell is not None
                busy.register(self._bell[0], selectors.EVENT_READ, (None, None))
                while self._deal(busy):
                    for worker, answer in self._answers(busy):
                        self._settle(worker, answer, busy)
        except BaseException as error:
            with self._lock:
                self._end(self.workers)
                batches = {waiting.batch for waiting in self._waiting}
                self._waiting.clear()
                self._close_bell()
            for batch in batches:
                batch.fail(error)

    def _deal(self, busy: selectors.BaseSelector) -> bool:
        """Give every idle worker a job; False where nothing is left to wait for."""
        with self._lock:
            for worker in [worker for worker in self.workers if worker.at is not None and worker.at.batch.is_cancelled]:
                # one in the middle of a job cannot be spoken to
                self._release(worker, busy)
                self._end([worker])
            if any(waiting.batch.is_cancelled for waiting in self._waiting):
                self._waiting = deque(waiting for waiting in self._waiting if not waiting.batch.is_cancelled)
            if self._has_ended_some:
                self._has_ended_some = False
                for key in list(busy.get_map().values()):
                    if key.data[0] is not None and key.data[0] not in self.workers:
                        busy.unregister(key.fd)
            num_busy = sum(worker.at is not None for worker in self.workers)
            if not self._waiting and not num_busy:
                self._close_bell()
                return False
            if self._waiting and len(self.workers) < self.size:
                self._start(len(self._waiting) + num_busy)
            for worker in self.workers:
                if worker.at is None and self._waiting:
                    self._give(worker, self._waiting.popleft(), busy)
            return True

    def _close_bell(self) -> None:
        for end in self._bell or ():
            os.close(end)
        self._bell = None

    def _settle(self, worker: WorkerProcess, answer: dict[str, object] | None, busy: selectors.BaseSelector) -> None:
        """Take a worker's answer; one that is gone is replaced, and its job is done by another."""
        with self._lock:
            waiting = worker.at
            if waiting is None or worker not in self.workers:  # ended meanwhile
                return
            result = None if answer is None else self._result(worker, answer, busy)
            if result is None:
                self._release(worker, busy)
                self._end([worker])
                if waiting.attempts < ATTEMPTS:
                    self._waiting.appendleft(waiting)
                    return
                logger.warning("the sandbox lost a job %d times; its sample cannot be judged", ATTEMPTS)
                result = JobResult(ended=LOST)
        waiting.batch.settle(waiting.number, result)

    def _give(self, worker: WorkerProcess, waiting: WaitingJob, busy: selectors.BaseSelector) -> None:
        waiting.attempts += 1
        worker.deadline = time.monotonic() + waiting.job.limits.wall_seconds + GRACE_SECONDS
        worker.connection.settimeout(GRACE_SECONDS)
        with contextlib.suppress(wire.ConnectionClosed):  # its end will be noticed
            worker.give(waiting)
        busy.register(worker.connection, selectors.EVENT_READ, (worker, None))
        for stream in worker.streams:
            if stream.is_watched:
                busy.register(stream.descriptor, selectors.EVENT_READ, (worker, stream))

    def _release(self, worker: WorkerProcess, busy: selectors.BaseSelector) -> None:
        """The worker is done with its job: nothing more is read for it."""
        busy.unregister(worker.connection)
        for stream in worker.streams:
            if stream.is_open and stream.is_watched:
                busy.unregister(stream.descriptor)
        worker.close_streams()
        worker.at = None

    def _result(
        self, worker: WorkerProcess, answer: dict[str, object], busy: selectors.BaseSelector
    ) -> JobResult | None:
        """What came of the worker's job; None where the process of its tests did not get as far as to take them."""
        for stream in worker.streams:
            was_open = stream.is_open
            while stream.read():  # whoever could write has ended: what is there is all there will be
                pass
            if was_open and not stream.is_open and stream.is_watched:
                busy.unregister(stream.descriptor)
        streams = {stream.name: bytes(stream.data) for stream in worker.streams}
        overflowed = [stream.name for stream in worker.streams if stream.has_overflowed]
        is_taken = b'"taken"' in streams.get("record", b'"taken"')[:64]
        # one that was killed is the doing of the code, which may share its user: no way out of a bad score
        if not is_taken and not os.WIFSIGNALED(int(str(answer["leader_status"]))):
            return None
        assert worker.at is not None
        job = worker.at.job
        self._release(worker, busy)
        return job.result(answer, streams, overflowed)

    def _answers(self, busy: selectors.BaseSelector) -> list[tuple[WorkerProcess, dict[str, object] | None]]:
        """Every worker that has something to say, with None for one that is gone or far too late."""
        answers: list[tuple[WorkerProcess, dict[str, object] | None]] = []
        workers = [worker for worker in self.workers if worker.at is not None]
        earliest = min((worker.deadline for worker in workers), default=0.0)
        for key, _ in busy.select(max(0.0, earliest - time.monotonic())):
            worker, stream = key.data
            if worker is None:
                os.read(key.fd, 4096)  # the bell: more jobs, or fewer
            elif stream is None:
                try:
                    answers.append((worker, worker.receive()))
                except wire.ConnectionClosed:
                    answers.append((worker, None))
            else:
                stream.read()
                if not stream.is_open:
                    busy.unregister(stream.descriptor)
        now = time.monotonic()
        done = {id(worker) for worker, _ in answers}
        return answers + [(process, None) for process in workers if process.deadline < now and id(process) not in done]


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
