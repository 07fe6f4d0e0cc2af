"""A session that writes in the background: in a thread, or in a process with weights of its own.

Both sides talk through two queues; with a process these are pipes. multiprocessing's own queues need semaphores, which
a killed process may hold for ever, and Python's resource tracker prints tracebacks about them where it is killed.
The front is a `whet.rollout.async_rollout.BackgroundSession`; what it is told reaches the session behind it in the
order in which it was said, between two moments of writing.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from whet.protocols import Session
from whet.threads import Thread
from whet.types import Request, Sample, WhetError

MOMENT = 0.05  # seconds that `advance` waits for something to be finished
LOOK_UP = 0.5  # seconds after which a session that has nothing to write looks whether its run is still there


class EngineLost(WhetError):
    """The process or thread that writes has ended, or is silent; the message says why."""


Finished = list[tuple[int, Sample]]


def write_on(
    session: Session,
    commands: Any,
    tell: Callable[[Finished], object],
    idle: Any,
    goes_on: Callable[[], bool],
) -> None:
    """Carry out commands and write completions, until a command says "close" or the run is gone."""
    while goes_on():
        began = time.monotonic()
        try:
            command = commands.get(block=session.is_idle, timeout=LOOK_UP)
        except queue.Empty:
            command = None
        if session.is_idle:
            idle.value += time.monotonic() - began
        while command is not None:
            name, arguments = command
            if name == "close":
                return
            getattr(session, name)(*arguments)
            try:
                command = commands.get(block=False)
            except queue.Empty:
                command = None
        finished = session.advance()
        if finished:
            for number, _ in finished:  # nothing is continued here: its row is free at once
                session.release(number)
            tell(finished)


class _Outbox:
    """The end of a pipe that is written to, by a thread of its own: whoever puts something there never waits."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = Thread(target=self._send, name="whet messages", daemon=True)
        self._thread.start()

    def put(self, message: Any) -> None:
        # not the pipe's own pickling: tensors would go through shared memory, one file each
        self._waiting.put(pickle.dumps(message))

    def close(self, has_reader: Callable[[], bool]) -> None:
        """Wait until everything is sent, or nobody reads it any more."""
        self._waiting.put(None)
        while self._thread.is_alive() and has_reader():
            self._thread.join(MOMENT)

    def _send(self) -> None:
        with self._pipe:
            while (message := self._waiting.get()) is not None:
                try:
                    self._pipe.send_bytes(message)
                except OSError:  # the reader has ended
                    return


class _Inbox:
    """The end of a pipe that is read from; `get` is that of a queue, and raises EOFError where the writer has ended."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def get(self, block: bool = True, timeout: float = 0.0) -> Any:
        if not self._pipe.poll(timeout if block else 0.0):
            raise queue.Empty
        return pickle.loads(self._pipe.recv_bytes())


class _RunCommands(_Inbox):
    """What the process is to do; where the run has ended, to close."""

    def get(self, block: bool = True, timeout: float = 0.0) -> Any:
        try:
            return super().get(block, timeout)
        except EOFError:
            return "close", ()


class _Front:
    """What threads and processes have in common: numbers that are out, and results that come in."""

    def __init__(self, commands: Any, idle: Any) -> None:
        self._commands, self._idle = commands, idle
        self._results: queue.SimpleQueue[Finished | str] = queue.SimpleQueue()  # a text says why it is over
        self._out: set[int] = set()
        self._is_open = True
        self.heard: Callable[[int, Sample], None] | None = None  # told of each request as it is finished

    def _tell(self, finished: Finished) -> None:
        """Called by the thread that has what was finished."""
        if self.heard is not None:
            for number, sample in finished:
                self.heard(number, sample)
        self._results.put(finished)

    def tell(self, name: str, *arguments: Any) -> None:
        """Call a method of the session, between two moments of writing."""
        self._commands.put((name, arguments))

    def add(self, number: int, request: Request) -> None:
        self._out.add(number)
        self.tell("add", number, request)

    def release(self, number: int) -> None:
        """Done where it was written: a request in the background is not continued."""

    @property
    def is_idle(self) -> bool:
        return not self._out

    @property
    def idle_seconds(self) -> float:
        return self._idle.value

    def finished(self) -> list[tuple[int, Sample]]:
        samples: list[tuple[int, Sample]] = []
        while True:
            try:
                samples += self._read(self._results.get(block=False))
            except queue.Empty:
                return samples

    def advance(self) -> list[tuple[int, Sample]]:
        samples = self.finished()
        if samples or not self._out:
            return samples
        try:
            samples = self._read(self._results.get(timeout=MOMENT))
        except queue.Empty:
            self._check()
        return samples + self.finished()

    def _read(self, result: Finished | str) -> Finished:
        if isinstance(result, str):
            raise EngineLost(f"the engine in the background failed: {result}")
        self._out -= {number for number, _ in result}
        return result

    def _check(self) -> None:
        raise NotImplementedError


class ThreadSession(_Front):
    """A session that a thread of this process advances, on a CUDA device in a stream of its own.

    Its engine has weights of its own.
    """

    def __init__(self, session: Session, device: torch.device | None = None) -> None:
        super().__init__(queue.Queue(), SimpleNamespace(value=0.0))
        self._session = session
        self.error: BaseException | None = None  # that ended the thread
        self._num_threads = torch.get_num_threads()
        self._device = device if device is not None and device.type == "cuda" else None
        if self._device is not None:
            torch.cuda.synchronize(self._device)  # the session was opened on another stream
        self._thread = Thread(target=self._run, name="whet rollouts", daemon=True)
        self._thread.start()

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand a copy of the weights to the thread: the trainer writes over its own."""
        copied = {name: value.detach().clone() for name, value in weights.items()}  # the trainer writes over them
        if self._device is not None:
            torch.cuda.current_stream(self._device).synchronize()  # the thread reads them on another stream
        self.tell("load", copied, version)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.tell("close")
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # a new thread has its own number
        stream = nullcontext() if self._device is None else torch.cuda.stream(torch.cuda.Stream(self._device))
        try:
            with stream, torch.no_grad():
                write_on(self._session, self._commands, self._tell, self._idle, lambda: True)
        except BaseException as error:
            self.error = error
            self._results.put(f"{type(error).__name__}: {error}")
        finally:
            self._session.close()

    def _check(self) -> None:
        if not self._thread.is_alive() and self._results.empty():
            raise EngineLost("the engine in the background has ended; resume the run from its last checkpoint")


class ProcessSession(_Front):
    """A session in a process of its own. Weights go there through memory that both share.

    `make` is called in that process and opens the session; it must be importable there. `weights` are of the shapes
    and types that `load` will bring.
    """

    def __init__(self, make: Callable[[], Session], weights: Mapping[str, Tensor], timeout: float = 600.0) -> None:
        context = multiprocessing.get_context("spawn")
        (commands, to_process), (from_process, results) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        super().__init__(_Outbox(to_process), context.RawValue("d", 0.0))
        self._inbox = _Inbox(from_process)
        self._shared = {
            name: torch.empty(value.shape, dtype=value.dtype).share_memory_() for name, value in weights.items()
        }
        self._taken, self._timeout = threading.Event(), timeout
        self._taken.set()
        self._process = context.Process(
            target=_serve,
            args=(make, self._shared, commands, results, self._idle, os.getpid()),
            name="whet rollouts",
            daemon=True,
        )
        self._process.start()
        for pipe in (commands, results):  # where the process ends, so do its pipes
            pipe.close()
        self._receiver = Thread(target=self._receive, name="whet completions", daemon=True)
        self._receiver.start()
        atexit.register(self.close)

    def _receive(self) -> None:
        """Completions as they come, also while a step is trained; until the process has ended and its pipe is empty."""
        while True:
            is_alive = self._process.is_alive()
            try:
                value = self._inbox.get(timeout=MOMENT)
            except queue.Empty:
                if is_alive:
                    continue
                return
            except (EOFError, OSError):
                return
            if value is None:
                self._taken.set()
            elif isinstance(value, str):
                self._results.put(value)
            else:
                self._tell(value)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Send the weights to the process, once it has read those before them."""
        deadline = time.monotonic() + self._timeout
        while not self._taken.wait(MOMENT):  # the weights before these are still being read
            self._check()
            if time.monotonic() > deadline:
                raise EngineLost(
                    f"the engine in the background took no weights for {self._timeout:g} s; raise scale.timeout, or "
                    "look at what else runs on this machine"
                )
        for name, value in weights.items():
            self._shared[name].copy_(value.detach())
        self._taken.clear()
        self.tell("load", version)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self.close)
        self.tell("close")
        self._process.join(10)  # it ends when what it has put is received
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._receiver.join(10)
        self._commands.close(self._process.is_alive)

    def _check(self) -> None:
        if self._process.is_alive():
            return
        self._receiver.join(10)  # a process that was killed in the middle of a message leaves the rest of it away
        if self._results.empty():
            raise EngineLost(
                f"the engine's process has ended (exit code {self._process.exitcode}); resume the run from its last "
                "checkpoint: finished groups are in it, and the others are asked for again"
            )


class _SharedWeights:
    """The session in the process, whose weights come through shared memory."""

    def __init__(self, session: Session, shared: Mapping[str, Tensor], taken: Callable[[], object]) -> None:
        self._session, self._shared, self._taken = session, shared, taken
        self.add, self.advance, self.release = session.add, session.advance, session.release
        self.close = session.close

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    def load(self, version: int) -> None:
        self._session.load(self._shared, version)
        self._taken()


def _serve(
    make: Callable[[], Session],
    shared: Mapping[str, Tensor],
    commands: Connection,
    results: Connection,
    idle: Any,
    parent: int,
) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends its step first, and then this process
    outbox = _Outbox(results)

    def has_run() -> bool:
        return os.getppid() == parent

    try:
        session: Any = _SharedWeights(make(), shared, lambda: outbox.put(None))
        try:
            write_on(session, _RunCommands(commands), outbox.put, idle, has_run)
        finally:
            session.close()
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = str(error) if isinstance(error, WhetError) else f"{type(error).__name__}: {error} ({where.name})"
        outbox.put(line)
    outbox.close(has_run)
    if not has_run():
        os._exit(1)  # nobody reads what is left
