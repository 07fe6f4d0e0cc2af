"""Completions one by one from any engine: requests that came together are written together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

from whet.protocols import Engine, Session
from whet.types import Request, Sample, Sampling, SessionShape

Ended = Callable[[int, Sample], None]
"""(number of the request, its sample): told when it has ended, while others are still written."""


def stream_of(engine: Engine) -> Callable[[Sequence[Request], Sampling, Ended], list[Sample]] | None:
    """The engine's `stream`: `generate`, which tells of each completion as it ends. None where it has none of its own.

    A class that changes the `generate` that it inherits, and not `stream`, is asked by `generate`.
    """
    places = [getattr(engine, "__dict__", {}), *map(vars, type(engine).__mro__)]
    changed = next((names for names in places if "stream" in names or "generate" in names), {})
    stream: Callable[[Sequence[Request], Sampling, Ended], list[Sample]] | None = getattr(engine, "stream", None)
    return stream if "stream" in changed else None


class BatchSession:
    """A session over `generate`: whatever waits is written as one batch, and earlier turns are read again.

    Right for every engine, and the quickest way where each conversation has one completion. Rows that end early wait
    for the longest of their batch; an engine that can `stream` tells `ended` of them at once.
    """

    def __init__(self, engine: Engine, sampling: Sampling, ended: Ended | None = None) -> None:
        self._engine, self._sampling, self._ended = engine, sampling, ended
        self._waiting: list[tuple[int, Request]] = []

    def add(self, number: int, request: Request) -> None:
        self._waiting.append((number, request))

    def advance(self) -> list[tuple[int, Sample]]:
        """Write the requests that share a budget and stops with the oldest, as one batch."""
        if not self._waiting:
            return []
        # a batch has one budget and one list of stops: those that share them are written now
        sampling = self._sampling.of(self._waiting[0][1])
        chosen = [entry for entry in self._waiting if self._sampling.of(entry[1]) == sampling]
        self._waiting = [entry for entry in self._waiting if self._sampling.of(entry[1]) != sampling]
        requests = [request for _, request in chosen]
        stream, ended = stream_of(self._engine), self._ended
        if stream is None or ended is None:
            samples = self._engine.generate(requests, sampling)
        else:
            samples = stream(requests, sampling, lambda number, sample: ended(chosen[number][0], sample))
        return [(number, sample) for (number, _), sample in zip(chosen, samples, strict=True)]

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def release(self, number: int) -> None:
        """Nothing to release: nothing is kept between two batches."""

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Load new weights; no completion is in the middle of being written between two calls."""
        self._engine.load(weights, version)

    def close(self) -> None:
        self._waiting.clear()

    def __enter__(self) -> BatchSession:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class LateSession:
    """A session that is opened when the first requests are written.

    Only then is it known how long first prompts are: environments add to what the data has.
    """

    def __init__(
        self, engine: Engine, sampling: Sampling, shape: SessionShape, turns: int, ended: Ended | None = None
    ) -> None:
        """`shape`: with the longest prompt of the data."""
        self._engine, self._sampling, self._shape, self._turns = engine, sampling, shape, turns
        self._ended = ended
        self._waiting: dict[int, Request] = {}
        self._opened = ExitStack()
        self._session: Session | None = None

    @property
    def room(self) -> int | None:
        """Tokens of a conversation at most; None: not yet decided."""
        return None if self._session is None else self._shape.prompt_tokens + self._shape.growth

    def add(self, number: int, request: Request) -> None:
        if self._session is None:
            self._waiting[number] = request
        else:
            self._session.add(number, request)

    def advance(self) -> list[tuple[int, Sample]]:
        return self._open().advance()

    def read_ahead(self) -> None:
        """Let a device begin with what was added, where the engine's session can (`DecodeSession.read_ahead`)."""
        if read_ahead := getattr(self._session, "read_ahead", None):
            read_ahead()

    def _open(self) -> Session:
        if self._session is None:
            longest = max((len(waiting.tokens) for waiting in self._waiting.values()), default=0)
            self._shape = replace(self._shape, prompt_tokens=max(longest, self._shape.prompt_tokens))
            opening = open_session(self._engine, self._sampling, self._shape, self._turns, self._ended)
            self._session = self._opened.enter_context(opening)
            for number, request in self._waiting.items():
                self._session.add(number, request)
            self._waiting.clear()
        return self._session

    @property
    def is_idle(self) -> bool:
        return not self._waiting if self._session is None else self._session.is_idle

    def release(self, number: int) -> None:
        if self._session is not None:
            self._session.release(number)

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        (self._engine if self._session is None else self._session).load(weights, version)

    def close(self) -> None:
        self._waiting.clear()
        self._opened.close()


def session_of(engine: Engine, sampling: Sampling, shape: SessionShape, ended: Ended | None = None) -> Session:
    """The engine's own session, where it has one; else one over its batches."""
    own: Any = getattr(engine, "session", None)
    session: Session = BatchSession(engine, sampling, ended) if own is None else own(sampling, shape)
    return session


@contextmanager
def open_session(
    engine: Engine, sampling: Sampling, shape: SessionShape, turns: int, ended: Ended | None = None
) -> Iterator[Session]:
    """The engine's own session, where it has one and conversations go on; else one over its batches."""
    with closing(
        session_of(engine, sampling, shape, ended) if turns > 1 else BatchSession(engine, sampling, ended)
    ) as session:
        yield session
