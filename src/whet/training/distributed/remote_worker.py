"""One engine elsewhere, as the run's process knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from whet.training.distributed.workers import Worker, WorkerCall

Doing = Literal["start", "load", "write", "open", "exchange"]


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
