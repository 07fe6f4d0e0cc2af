"""Engines in processes of their own, behind `whet.protocols.Engine`: dispatch by load, and what happens to lost ones.

A request has its own seed, so it does not matter who writes it, or how often: one whose engine is lost is written by
another, and the completion is the same; it counts once, from the engine that has the request now. Requests of one
prompt go together to the engine that has the least to write, since they share its prefill. `RemoteSession` is what they
write while the trainer trains.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from whet.training.distributed.background import ThreadSession
from whet.training.distributed.engine_host import AsyncProgress, WrittenPiece
from whet.training.distributed.wire import packed_weights, unpacked_samples
from whet.training.distributed.workers import START_SECONDS, Worker, WorkerCall, WorkerLost, WorkerPool
from whet.types import Request, RunFailed, Sample, Sampling, SessionShape

ROUNDING = 1e-3  # nats that rounding may lift a log-probability above 0
Doing = Literal["start", "load", "write", "open", "exchange"]
PAUSE = 0.02  # seconds between two looks at the engines


def wrong_with(sample: object, request: Request, sampling: Sampling, vocabulary: int, version: int | None) -> str:
    """What is wrong with a sample, in words; empty where nothing is. `version` None: any policy may have written it."""
    if not isinstance(sample, Sample):
        return f"it is {type(sample).__name__}, not a sample"
    start, length = len(request.tokens), len(sample.tokens)
    budget = request.max_new_tokens or sampling.max_new_tokens
    if sample.tokens.dim() != 1 or sample.tokens.dtype != torch.long:
        return f"its tokens are {_described(sample.tokens)}, not int64 [L]"
    if sample.action.shape != sample.tokens.shape or sample.action.dtype != torch.bool:
        return f"its action mask is {_described(sample.action)}, not bool [{length}]"
    if sample.behavior_logp.shape != sample.tokens.shape:
        return f"its log-probabilities are {_described(sample.behavior_logp)}, not [{length}]"
    if tuple(sample.tokens[:start].tolist()) != request.tokens:
        return "it does not begin with the prompt that was sent"
    if not 1 <= length - start <= budget:
        return f"it has {length - start} new tokens; 1 to {budget} were asked for"
    fresh, logp = sample.tokens[start:], sample.behavior_logp[start:]
    if bool(sample.action[:start].any()) or not bool(sample.action[start:].all()):
        return "its action mask is not the completion"
    if int(fresh.min()) < 0 or int(fresh.max()) >= vocabulary:
        return f"it has the token {int(fresh.max())} of a vocabulary of {vocabulary}"
    if not bool(torch.isfinite(logp).all()):
        return "a log-probability is not finite (NaN or infinity)"
    if float(logp.max()) > ROUNDING:
        return f"a log-probability is {float(logp.max()):.3g}, more than 0"
    if version is not None and sample.versions != (version, version):
        return f"policy version {sample.versions[0]} wrote it, and the engine was given {version}"
    return ""


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


@dataclass
class EngineCounts:
    """What one engine did so far."""

    requests: int = 0
    tokens: int = 0  # of completions
    seconds: float = 0.0  # that it wrote
    weight_bytes: int = 0  # that it fetched
    loads: int = 0
    restarts: int = 0


@dataclass(eq=False)
class RemoteWorker:
    """One engine, over all processes it has had. It does one thing at a time."""

    number: int
    worker: Worker
    counts: EngineCounts
    call: WorkerCall | None = None  # that runs
    doing: Doing = "start"
    since: float = 0.0  # the call began
    piece: list[int] | None = None  # requests that it writes
    sent: int | None = None  # number of the load whose weights it was given
    arrived: Mapping[str, int] | None = None  # their fingerprint there, where it has told it
    failures: int = 0  # in a row
    is_given_up: bool = False

    @property
    def name(self) -> str:
        """The engine's name in messages."""
        return f"engine {self.number}"


class RequestShares:
    """Which engine writes which request: plain numbers, which know nothing of processes."""

    def __init__(self) -> None:
        self._waiting: dict[int, Request] = {}  # by number, those of one prompt one after the other
        self._unsent: dict[int, dict[int, Request]] = {}  # by engine
        self._given: dict[int, dict[int, Request]] = {}  # by engine, those that are not sent included
        self.rewritten = 0  # requests that were taken back from a lost engine

    @property
    def is_empty(self) -> bool:
        """Whether no request is waiting or being worked on."""
        return not self._waiting and not any(self._given.values())

    def add(self, number: int, request: Request) -> None:
        """Add a request that no engine has yet."""
        self._waiting[number] = request

    def share_out(self, engines: Sequence[int], budget: int) -> None:
        """Give what waits to these engines, a prompt's requests together, each time to the one with the least."""
        if not engines:
            return
        load = {
            engine: sum(_most_tokens(request, budget) for request in self._given.get(engine, {}).values())
            for engine in engines
        }
        for group in self._groups():
            chosen = min(engines, key=lambda engine: (load[engine], engine))
            for number in group:
                request = self._waiting.pop(number)
                self._given.setdefault(chosen, {})[number] = request
                self._unsent.setdefault(chosen, {})[number] = request
                load[chosen] += _most_tokens(request, budget)

    def _groups(self) -> list[list[int]]:
        groups: list[list[int]] = []
        for number, request in self._waiting.items():
            if groups and self._waiting[groups[-1][0]].tokens == request.tokens:
                groups[-1].append(number)
            else:
                groups.append([number])
        return groups

    def to_send(self, engine: int) -> list[tuple[int, Request]]:
        """Remove and return the requests of an engine that were not sent to it yet."""
        return list(self._unsent.pop(engine, {}).items())

    def has_work(self, engine: int) -> bool:
        """Whether an engine has unfinished requests."""
        return bool(self._given.get(engine))

    def request(self, engine: int, number: int) -> Request | None:
        """The one of this number, where this engine writes it."""
        return self._given.get(engine, {}).get(number)

    def finish(self, engine: int, number: int) -> None:
        """Remove a request that an engine has completed."""
        del self._given[engine][number]

    def take_back(self, engine: int) -> int:
        """The engine is lost: what it has not finished waits again, before what was asked for later."""
        self._unsent.pop(engine, None)
        lost = self._given.pop(engine, {})
        self._waiting = dict(sorted({**self._waiting, **lost}.items()))
        self.rewritten += len(lost)
        return len(lost)


def _most_tokens(request: Request, budget: int) -> int:
    return request.max_new_tokens or budget


class RemoteSession:
    """A `whet.protocols.Session` over the engines of a `RemoteEngine`, which it looks after while it is open."""

    def __init__(self, engines: RemoteEngine, sampling: Sampling, shape: SessionShape, vocabulary: int) -> None:
        self._engines, self._sampling, self._shape, self._vocabulary = engines, sampling, shape, vocabulary
        self._shares = RequestShares()
        self._opened: dict[int, Any] = {}  # engine -> the worker that the session is open on
        self._found: list[tuple[int, Sample]] = []
        self._idle: dict[int, float] = {}

    @property
    def idle_seconds(self) -> float:
        """Seconds without anything to write, the mean over the engines."""
        return sum(self._idle.values()) / max(1, len(self._idle))

    @property
    def rewritten(self) -> int:
        """The number of requests that were taken back from a lost engine."""
        return self._shares.rewritten

    def add(self, number: int, request: Request) -> None:
        self._shares.add(number, request)

    def release(self, number: int) -> None:
        """Done where it was written: a request in the background is not continued."""

    @property
    def is_idle(self) -> bool:
        return self._shares.is_empty and not self._found

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Stored once; each engine takes them before the next request that it is sent."""
        with self._engines.lock:
            self._engines.store(weights, version)

    def advance(self) -> list[tuple[int, Sample]]:
        with self._engines.lock:
            self._engines.look(0.0)
            for engine in self._engines.all_engines():
                if self._opened.get(engine.number) not in (None, engine.worker) or engine.is_given_up:
                    self._opened.pop(engine.number, None)
                    self._shares.take_back(engine.number)
            usable = self._engines.usable()
            for engine in usable:
                if engine.call is None and self._engines.is_current(engine) and engine.number not in self._opened:
                    self._opened[engine.number] = engine.worker
                    self._engines.call(engine, "open", "open", self._sampling, self._shape)
            ready = [worker.number for worker in usable if worker.number in self._opened]
            self._shares.share_out(ready, self._sampling.max_new_tokens)
            for engine in usable:
                if engine.call is not None:
                    continue
                if not self._engines.is_current(engine):
                    self._engines.load_into(engine)
                else:
                    self._engines.call(engine, "exchange", "exchange", self._shares.to_send(engine.number))
            finished, self._found = self._found, []
        if not finished:
            time.sleep(PAUSE)
        return finished

    def take(self, engine: RemoteWorker, written: AsyncProgress) -> str:
        """Note what an engine has finished; what is wrong with it, in words."""
        self._idle[engine.number] = written.idle_seconds
        engine.counts.seconds += written.seconds
        if written.quiet_seconds > self._engines.timeout and self._shares.has_work(engine.number):
            return f"it has not written for {written.quiet_seconds:.0f} seconds (scale.timeout)"
        try:
            came = [numbered for part in written.finished for numbered in pickle.loads(part)]
        except (TypeError, ValueError, AttributeError, IndexError, EOFError, pickle.UnpicklingError) as error:
            return f"it sent what cannot be read ({error})"
        for number, sample in came:
            request = self._shares.request(engine.number, number)
            if request is None:
                return f"it sent a completion that nobody asked it for (number {number})"
            wrong = wrong_with(sample, request, self._sampling, self._vocabulary, None)
            if not wrong and sample.versions[1] > (self._engines.version or 0):
                wrong = f"policy version {sample.versions[1]} wrote it, and the newest is {self._engines.version}"
            if wrong:
                return f"it sent a completion that cannot be: {wrong}"
            self._shares.finish(engine.number, number)
            self._found.append((number, sample))
            engine.failures = 0
            engine.counts.requests += 1
            engine.counts.tokens += sample.num_actions
        return ""

    def close(self) -> None:
        """The engines may be asked for batches again."""
        with self._engines.lock:
            self._engines.end_session()


class RemoteAsyncSession(ThreadSession):
    """A `whet.rollout.async_rollout.BackgroundSession`: a thread talks to the engines, the trainer never waits."""

    def __init__(self, session: RemoteSession) -> None:
        self._remote = session
        super().__init__(session)

    @property
    def idle_seconds(self) -> float:
        return self._remote.idle_seconds

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Stored at once, from where the trainer will write over them; engines fetch them when they look up."""
        self._remote.load(weights, version)


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
        """Where the engine runs and what it did, by name."""
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
        """Store weights where engines can fetch them; `load_into` tells an engine to."""
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
