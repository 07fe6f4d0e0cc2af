"""What an engine's own process holds: a copy of the policy, and the engine that writes with it."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import torch

from whet.model.causal_lm import CausalLM
from whet.protocols import Engine, Session
from whet.rollout.session import session_of
from whet.rollout.weight_sync_check import fingerprint
from whet.training.distributed.background import EngineLost, ThreadSession
from whet.training.distributed.wire import PackedWeights, load_weights, packed_samples
from whet.types import Request, Sample, Sampling, SessionShape


@dataclass(frozen=True)
class WrittenPiece:
    """Completions as they are sent, and the seconds they took."""

    samples: list[Any]
    seconds: float


@dataclass(frozen=True)
class AsyncProgress:
    """What has finished since the last report, and the state of the process that writes."""

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
        self._session: _HostedSession | None = None
        self._thread: ThreadSession | None = None  # that advances it
        self._reported_seconds = 0.0
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
            errand: Future[list[Sample]] = Future()
            self._thread.tell("do", lambda: self._written_beside(requests, sampling), errand)
            while not wait([errand], timeout=0.5).done:
                if self._thread.error is not None:
                    raise self._thread.error
            samples = errand.result()
        return WrittenPiece(packed_samples(samples), time.monotonic() - started)

    def open(self, sampling: Sampling, shape: SessionShape) -> None:
        """Begin to write in the background."""
        self.shut()
        self._session = _HostedSession(session_of(self._engine, sampling, shape), self._load_into)
        self._thread, self._reported_seconds = ThreadSession(self._session), 0.0

    def exchange(self, requests: Sequence[tuple[int, Request]]) -> AsyncProgress:
        """Ask for completions, and take those that are finished; does not wait."""
        session, thread = self._session, self._thread
        if session is None or thread is None:
            raise RuntimeError("no session is open on this engine")
        for number, request in requests:
            thread.add(number, request)
        try:
            finished = thread.finished()
        except EngineLost as lost:
            raise (thread.error or lost) from None  # as it was: another engine may do better
        before, self._reported_seconds = self._reported_seconds, session.seconds
        return AsyncProgress(
            [pickle.dumps(finished)] if finished else [],
            self._reported_seconds - before,
            thread.idle_seconds,
            time.monotonic() - session.seen,
        )

    def shut(self) -> None:
        """End the session, where there is one."""
        if self._thread is not None:
            self._thread.close()
            self._session = self._thread = None

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


class _HostedSession:
    """A session that takes weights as they are sent, runs errands, and notes when it wrote. Called by one thread."""

    def __init__(self, session: Session, load: Callable[[Session, int, Sequence[PackedWeights]], None]) -> None:
        self._session, self._load = session, load
        self.add, self.release, self.close = session.add, session.release, session.close
        self.seconds, self.seen = 0.0, time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self._session.is_idle

    def load(self, weights: Any, version: int) -> None:
        self._load(self._session, version, weights)

    def advance(self) -> list[tuple[int, Sample]]:
        self.seen = began = time.monotonic()
        was_idle = self._session.is_idle
        finished = self._session.advance()
        if not was_idle:
            self.seconds += time.monotonic() - began
        return finished

    def do(self, function: Callable[[], Any], errand: Future[Any]) -> None:
        try:
            errand.set_result(function())
        except BaseException as error:
            errand.set_exception(error)
        self.seen = time.monotonic()
