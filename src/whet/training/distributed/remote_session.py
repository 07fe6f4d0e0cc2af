"""Completions that engines elsewhere write while the trainer trains: one session over all of them.

Requests of one prompt go together to the engine that has the least to write. What a lost engine had not finished is
asked of the others, with the same seeds; a completion counts once, from the engine that has the request now.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from whet.training.distributed.background import ThreadSession
from whet.training.distributed.engine_host import AsyncProgress
from whet.training.distributed.workers import Worker, WorkerCall
from whet.types import Request, Sample, Sampling, SessionShape

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
        load = {engine: sum(_cost(one, budget) for one in self._given.get(engine, {}).values()) for engine in engines}
        for group in self._groups():
            chosen = min(engines, key=lambda each: (load[each], each))
            for number in group:
                request = self._waiting.pop(number)
                self._given.setdefault(chosen, {})[number] = request
                self._unsent.setdefault(chosen, {})[number] = request
                load[chosen] += _cost(request, budget)

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


def _cost(request: Request, budget: int) -> int:
    return request.max_new_tokens or budget


class SharedEngines(Protocol):
    """Engines that a session looks after; `whet.training.distributed.remote_engine.RemoteEngine` has them."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while engines are called or their results are read."""
        ...

    @property
    def version(self) -> int | None:
        """The version of the newest weights."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds after which a silent engine counts as lost."""
        ...

    def store(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights where engines fetch them."""
        ...

    def look(self, seconds: float) -> None:
        """Collect the results of calls, waiting at most this long."""
        ...

    def all_engines(self) -> list[RemoteWorker]:
        """Every engine, including those given up."""
        ...

    def usable(self) -> list[RemoteWorker]:
        """The engines that are not given up."""
        ...

    def is_current(self, engine: RemoteWorker) -> bool:
        """Whether an engine has been sent the newest weights."""
        ...

    def load_into(self, engine: RemoteWorker) -> None:
        """Tell an engine to fetch the newest weights."""
        ...

    def call(self, engine: RemoteWorker, doing: Doing, method: str, *arguments: Any) -> None:
        """Start a call on an engine."""
        ...

    def end_session(self) -> None:
        """Take note that the session is over."""
        ...


class RemoteSession:
    """A `whet.protocols.Session` over the engines of a `RemoteEngine`, which it looks after while it is open."""

    def __init__(self, engines: SharedEngines, sampling: Sampling, shape: SessionShape, vocabulary: int) -> None:
        self._engines, self._sampling, self._shape, self._vocabulary = engines, sampling, shape, vocabulary
        self._shares = RequestShares()
        self._opened: dict[int, Any] = {}  # engine -> the worker that the session is open on
        self._found: list[tuple[int, Sample]] = []
        self._idle: dict[int, float] = {}

    @property
    def idle_seconds(self) -> float:
        """Without anything to write: the mean of the engines."""
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
