"""What an engine's own process holds: a copy of the policy, and the engine that writes with it."""

from __future__ import annotations

import pickle
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import torch

from whet.model.causal_lm import CausalLM
from whet.protocols import Engine, Session
from whet.rollout.session import BatchSession
from whet.rollout.weight_sync_check import fingerprint
from whet.threads import Thread
from whet.training.distributed.background import Finished, write_on
from whet.training.distributed.wire import PackedWeights, load_weights, packed_samples
from whet.types import Request, Sample, Sampling, SessionShape


@dataclass(frozen=True)
class WrittenPiece:
    """Completions as they are sent, and the seconds they took."""

    samples: list[Any]
    seconds: float


@dataclass(frozen=True)
class AsyncProgress:
    """What was finished since the last time, and how it goes where it is written."""

    finished: list[bytes]  # pickled, each [(number, sample)]
    seconds: float = 0.0  # spent on writing, since the last time
    idle_seconds: float = 0.0  # without anything to write, since the beginning
    quiet_seconds: float = 0.0  # since it was last seen to go on


class EngineHost:
    """Methods that are called from the run's process."""

    def __init__(self, policy: CausalLM, make: Callable[[], Engine], owns_weights: bool = False) -> None:
        """`owns_weights`: the engine's `load` writes weights into the model; else that is done before it."""
        self._policy, self._make, self._owns_weights = policy, make, owns_weights
        self._engine = make()
        self._version = 0
        self._thread: _SessionThread | None = None
        self._beside: Engine | None = None  # for batches, while a session has the engine's buffers

    def load(self, version: int, *weights: PackedWeights) -> dict[str, int] | None:
        """Take over the policy's weights, later ones over earlier ones; their fingerprint, as they are here.

        A session takes them between two moments of writing: then nothing is returned.
        """
        if self._thread is None:
            self._load_into(self._engine, version, weights)
            return fingerprint(self._policy.model.state_dict())
        self._thread.tell("load", weights, version)
        return None

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> WrittenPiece:
        """Complete the requests, and measure the time it took."""
        started = time.monotonic()
        if self._thread is None:
            samples = self._written(self._engine, requests, sampling)
        else:
            samples = self._thread.run(lambda: self._written_beside(requests, sampling))
        return WrittenPiece(packed_samples(samples), time.monotonic() - started)

    def open(self, sampling: Sampling, shape: SessionShape) -> None:
        """Begin to write in the background."""
        self.shut()

        def opened() -> Session:
            own: Any = getattr(self._engine, "session", None)
            session: Session = BatchSession(self._engine, sampling) if own is None else own(sampling, shape)
            return session

        self._thread = _SessionThread(opened, self._load_into)

    def exchange(self, requests: Sequence[tuple[int, Request]]) -> AsyncProgress:
        """Ask for completions, and take those that are finished; does not wait."""
        if self._thread is None:
            raise RuntimeError("no session is open on this engine")
        for number, request in requests:
            self._thread.tell("add", number, request)
        return self._thread.take()

    def shut(self) -> None:
        """End the session, where there is one."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None

    def _load_into(self, taker: Engine | Session, version: int, weights: Sequence[PackedWeights]) -> None:
        if self._owns_weights:
            own = self._policy.model.state_dict()
            named = {name: value for packed in weights for name, value in packed.tensors().items()}
            taker.load({**own, **named}, version)
        else:
            for packed_weights in weights:
                load_weights(self._policy.model, packed_weights)
            taker.load(self._policy.model.state_dict(), version)
        self._version = version

    def _written_beside(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        engine = self._engine
        if hasattr(engine, "session"):  # its buffers may be the session's
            engine = self._beside = self._beside or self._make()
            engine.load(self._policy.model.state_dict(), self._version)
        return self._written(engine, requests, sampling)

    @torch.no_grad()
    def _written(self, engine: Engine, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        return engine.generate(requests, sampling)


class _SessionThread:
    """A session that a thread of this process advances: the loop of `whet.training.distributed.background`."""

    def __init__(
        self, make: Callable[[], Session], load: Callable[[Session, int, Sequence[PackedWeights]], None]
    ) -> None:
        self._make, self._load = make, load
        self._commands: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue()
        self._results: queue.Queue[bytes] = queue.Queue()
        self._session: Session
        self.value = 0.0  # seconds without anything to write
        self._seconds, self._reported_seconds, self._seen = 0.0, 0.0, time.monotonic()
        self._error: BaseException | None = None
        self._num_threads = torch.get_num_threads()
        self._thread = Thread(target=self._run, name="whet rollouts", daemon=True)
        self._thread.start()

    def tell(self, name: str, *arguments: Any) -> None:
        self._commands.put((name, arguments))

    def run(self, function: Callable[[], Any]) -> Any:
        """What the function returns, called between two moments of writing."""
        errand: Future[Any] = Future()
        self.tell("do", function, errand)
        while not wait([errand], timeout=0.5).done:
            self._check()
        return errand.result()

    def take(self) -> AsyncProgress:
        self._check()
        results = []
        while True:
            try:
                results.append(self._results.get(block=False))
            except queue.Empty:
                break
        before, self._reported_seconds = self._reported_seconds, self._seconds
        quiet = time.monotonic() - self._seen
        return AsyncProgress(results, self._reported_seconds - before, self.value, quiet)

    def close(self) -> None:
        self.tell("close")
        self._thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # a new thread has its own number
        try:
            with torch.no_grad():
                self._session = self._make()
                try:
                    write_on(self, self._commands, self._tell_finished, self, self._goes_on)
                finally:
                    self._session.close()
        except BaseException as error:
            self._error = error

    def _tell_finished(self, finished: Finished) -> None:
        self._results.put(pickle.dumps(finished))

    def _goes_on(self) -> bool:
        self._seen = time.monotonic()
        return True

    # what `write_on` calls, in the thread

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    def add(self, number: int, request: Request) -> None:
        self._session.add(number, request)

    def release(self, number: int) -> None:
        self._session.release(number)

    def load(self, weights: Any, version: int) -> None:
        self._load(self._session, version, weights)

    def advance(self) -> list[tuple[int, Sample]]:
        began = time.monotonic()
        was_idle = self._session.is_idle
        finished = self._session.advance()
        if not was_idle:
            self._seconds += time.monotonic() - began
        return finished

    def do(self, function: Callable[[], Any], errand: Future[Any]) -> None:
        try:
            errand.set_result(function())
        except BaseException as error:
            errand.set_exception(error)
        self._seen = time.monotonic()
