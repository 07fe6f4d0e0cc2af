"""Engines in processes of their own, behind `whet.protocols.Engine`: dispatch by load, and what happens to lost ones.

A request has its own seed, so it does not matter who writes it, or how often: one whose engine is lost is written by
another, and the completion is the same. Requests of one prompt stay together, since they share its prefill.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.training.distributed.engine_host import WrittenPiece
from whet.training.distributed.remote_session import (
    Doing,
    EngineCounts,
    RemoteAsyncSession,
    RemoteSession,
    RemoteWorker,
    wrong_with,
)
from whet.training.distributed.wire import packed_weights, unpacked_samples
from whet.training.distributed.workers import START_SECONDS, Worker, WorkerLost, WorkerPool
from whet.types import Request, RunFailed, Sample, Sampling, SessionShape

logger = logging.getLogger(__name__)

MOST_RESTARTS = 2  # of an engine that has written nothing in between
LEAST_ROWS = 64  # of a piece: fewer side by side cost more per token than an even load saves
MOST_PIECES = 4  # per engine
PATIENCE = 0.2  # seconds between two looks at calls that run


class RemoteEngine:
    """`count` engines; `start(number)` begins one in a process of its own."""

    def __init__(
        self,
        pool: WorkerPool,
        start: Callable[[int], Worker],
        count: int,
        *,
        vocabulary: int,
        timeout: float,
        frozen: frozenset[str] = frozenset(),  # weights that never change: sent once
    ) -> None:
        self._pool, self._start, self._vocabulary, self.timeout = pool, start, vocabulary, timeout
        self._frozen = frozen
        self._base: tuple[Any, int] | None = None  # stored, bytes: all weights of the first load, where some are frozen
        self._newest: tuple[Any, int] | None = None  # stored, bytes: those that change
        self.version: int | None = None
        self._num_loads = 0
        self._session: RemoteSession | None = None
        self.lock = threading.RLock()  # a session is looked after by a thread of its own
        self._lost_pieces: list[list[int]] = []
        self._last_loss = ""
        self._engines = [RemoteWorker(number, start(number), EngineCounts()) for number in range(count)]
        for engine in self._engines:
            self.call(engine, "start", "begin")
        self._await(lambda: any(worker.call is not None for worker in self.usable()))

    @property
    def counts(self) -> dict[str, tuple[str, EngineCounts]]:
        """By name: where the engine runs, and what it did."""
        return {engine.name: (engine.worker.place, engine.counts) for engine in self._engines}

    @property
    def arrived(self) -> Mapping[str, int] | None:
        """Fingerprint of the weights as they are in the engines: what differs in any of them differs here.

        None while a session is open, and where only a part of the weights is sent.
        """
        states = [engine.arrived for engine in self.usable()]
        known = [state for state in states if state is not None]
        if self._frozen or self._session is not None or not known or len(known) < len(states):
            return None
        first = known[0]
        other = {name: value for state in known for name, value in state.items() if first.get(name) != value}
        return {**first, **other}

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Weights are stored once and fetched by the engines: one copy per machine."""
        if self._session is not None:  # which is told each version by itself
            return
        self.store(weights, version)
        for engine in self.usable():
            if engine.call is None:
                self.load_into(engine)
        self._await(lambda: any(worker.doing == "load" and worker.call is not None for worker in self.usable()))

    def store(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights where engines fetch them; `load_into` tells an engine so."""
        first = self._base is None and bool(self._frozen)
        packed = packed_weights(weights, () if first else self._frozen)
        stored = (self._pool.store(packed), packed.num_bytes)
        if first:
            self._base = stored
        else:
            self._newest = stored
        self.version = version
        self._num_loads += 1

    def background_session(self, sampling: Sampling, shape: SessionShape) -> RemoteAsyncSession:
        """Completions that all engines write while this process does something else."""
        if self._session is not None:
            raise RuntimeError("a session is open on these engines: close it first")
        self._session = RemoteSession(self, sampling, shape, self._vocabulary)
        return RemoteAsyncSession(self._session)

    def end_session(self) -> None:
        """Engines that do nothing else end theirs; the others do when they are asked for the next one."""
        self._session = None
        for engine in self.usable():
            if engine.call is None:
                self.call(engine, "open", "shut")

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        with self.lock:
            return self._generate(requests, sampling)

    def _generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        samples: dict[int, Sample] = {}
        todo = deque(pieces(requests, sampling, max(1, len(self.usable()))))
        while len(samples) < len(requests):
            for engine in self.usable():
                if engine.call is None and not self.is_current(engine):
                    self.load_into(engine)
                elif engine.call is None and todo:
                    engine.piece = todo.popleft()
                    self.call(engine, "write", "generate", [requests[number] for number in engine.piece], sampling)
            for engine, piece, written in self._next_results(PATIENCE):
                wrong = self._take(engine, piece, written, requests, sampling, samples)
                if wrong:
                    todo.appendleft(piece)
                    self._lose(engine, f"it sent a completion that cannot be: {wrong}")
            todo.extendleft(reversed(self._lost_pieces))
            self._lost_pieces = []
        return [samples[number] for number in range(len(requests))]

    def close(self) -> None:
        for engine in self._engines:
            engine.worker.end()

    def _take(
        self,
        engine: RemoteWorker,
        piece: Sequence[int],
        written: WrittenPiece,
        requests: Sequence[Request],
        sampling: Sampling,
        samples: dict[int, Sample],
    ) -> str:
        """Note the samples of a piece, all or none; what is wrong with one of them, in words."""
        try:
            written_samples = unpacked_samples(written.samples)
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            return f"it cannot be read ({error})"
        if len(written_samples) != len(piece):
            return f"{len(written_samples)} came for {len(piece)} requests"
        for number, sample in zip(piece, written_samples, strict=True):
            wrong = wrong_with(sample, requests[number], sampling, self._vocabulary, self.version)
            if wrong:
                return wrong
        samples.update(zip(piece, written_samples, strict=True))
        engine.failures = 0
        engine.counts.requests += len(piece)
        engine.counts.tokens += sum(written_sample.num_actions for written_sample in written_samples)
        engine.counts.seconds += written.seconds
        return ""

    def all_engines(self) -> list[RemoteWorker]:
        """Every engine, including those given up."""
        return list(self._engines)

    def is_current(self, engine: RemoteWorker) -> bool:
        """Whether it was given the newest weights."""
        return engine.sent == self._num_loads

    def look(self, seconds: float) -> None:
        """Take in what the engines have done since; waits so long for the first."""
        if not self.usable() or any(engine.call is not None for engine in self.usable()):
            self._next_results(seconds)

    def usable(self) -> list[RemoteWorker]:
        """The engines that are not given up."""
        return [engine for engine in self._engines if not engine.is_given_up]

    def call(self, engine: RemoteWorker, doing: Doing, method: str, *arguments: Any) -> None:
        """Start a call on an engine; its result is collected later."""
        engine.call, engine.doing, engine.since = engine.worker.call(method, *arguments), doing, time.monotonic()

    def load_into(self, engine: RemoteWorker) -> None:
        """Tell an engine to fetch the newest weights, and the frozen ones if it has none yet."""
        stored = [self._base if engine.sent is None else None, self._newest]
        chosen = [weights for weights in stored if weights is not None]
        engine.sent, engine.arrived = self._num_loads, None
        engine.counts.loads += 1
        engine.counts.weight_bytes += sum(size for _, size in chosen)
        self.call(engine, "load", "load", self.version, *[weights for weights, _ in chosen])

    def _await(self, is_waiting: Callable[[], bool]) -> None:
        while is_waiting() or not self.usable():
            self._next_results(PATIENCE)

    def _next_results(self, seconds: float) -> list[tuple[RemoteWorker, list[int], WrittenPiece]]:
        """Wait for calls; completions that came, each with its engine and its requests."""
        running = {id(worker.call): worker for worker in self.usable() if worker.call is not None}
        if not running:
            raise RunFailed(
                f"all {len(self._engines)} engines are lost; the last: {self._last_loss}; look at its machine, then "
                "resume the run"
            )
        came = []
        for call in self._pool.finished(
            [worker.call for worker in running.values() if worker.call is not None], seconds
        ):
            engine = running[id(call)]
            engine.call = None
            try:
                result = call.result()
            except WorkerLost as error:
                self._lose(engine, str(error))
                continue
            if engine.piece is not None:
                came.append((engine, engine.piece, result))
                engine.piece = None
                continue
            if engine.doing == "load":
                engine.arrived = result
            wrong = ""
            if engine.doing == "exchange" and self._session is not None:
                wrong = self._session.take(engine, result)
            if wrong:
                self._lose(engine, wrong)
            elif self.version is not None and not self.is_current(engine):  # newer ones came, or it was started anew
                self.load_into(engine)
        for engine in running.values():
            starts = engine.doing == "start"
            limit = max(self.timeout, START_SECONDS) if starts else self.timeout
            if engine.call is not None and time.monotonic() - engine.since > limit:
                self._lose(engine, f"no answer for {limit:g} seconds (scale.timeout)", starts)
        return came

    def _lose(self, engine: RemoteWorker, why: str, has_no_room: bool = False) -> None:
        """End an engine's process and start another, unless it has failed too often; others get its requests."""
        engine.call = None
        engine.worker.end()
        if engine.piece is not None:
            self._lost_pieces.append(engine.piece)
            engine.piece = None
        engine.failures += 1
        self._last_loss = f"{engine.name} at {engine.worker.place}: {why}"
        if has_no_room or engine.failures > MOST_RESTARTS:
            engine.is_given_up = True
            logger.warning("%s; it is left out from now on", self._last_loss)
            return
        logger.warning("%s; its requests are written by another engine, and it is started again", self._last_loss)
        engine.counts.restarts += 1
        engine.worker, engine.sent, engine.arrived = self._start(engine.number), None, None
        self.call(engine, "start", "begin")


def pieces(requests: Sequence[Request], sampling: Sampling, engines: int) -> list[list[int]]:
    """Requests in parts of about equal cost, a few for each engine: who is done early takes the next.

    Requests of one prompt that follow each other stay together, unless there are fewer prompts than engines.
    """
    groups: list[list[int]] = []
    for number, request in enumerate(requests):
        if groups and requests[groups[-1][0]].tokens == request.tokens:
            groups[-1].append(number)
        else:
            groups.append([number])
    if len(groups) < engines:
        size = max(1, -(-len(requests) // engines))
        groups = [group[start : start + size] for group in groups for start in range(0, len(group), size)]
    per_engine = max(1, min(MOST_PIECES, len(requests) // (engines * LEAST_ROWS)))
    costs = [_cost([requests[number] for number in group], sampling) for group in groups]
    share = sum(costs) / (engines * per_engine)
    parts: list[list[int]] = []
    filled, last = 0.0, -1  # cost of the groups before this one; where the last went
    for group, cost in zip(groups, costs, strict=True):
        # a group goes where its middle lies
        index = int((filled + cost / 2) / share)
        if last == index:
            parts[-1] += group
        else:
            parts.append(list(group))
        last, filled = index, filled + cost
    return parts


def _cost(requests: Sequence[Request], sampling: Sampling) -> int:
    """Tokens at most: one prefill, and every completion at its full length."""
    new = sum(request.max_new_tokens or sampling.max_new_tokens for request in requests)
    return len(requests[0].tokens) + new
