"""Processes elsewhere that do a part of a run's work, as everybody but `ray_cluster` sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

START_SECONDS = 300.0  # at least, for a process to start, import and read a model


class WorkerLost(Exception):
    """A worker process ended, does not answer, or failed in a way that another one need not; the message says why."""


class WorkerCall(Protocol):
    """A call of a worker's method that is on its way."""

    def result(self) -> Any:
        """What the method returned, once `WorkerPool.finished` has named the call.

        A `WhetError` of the method is raised as it was; whatever else went wrong is a `WorkerLost`.
        """
        ...


class Worker(Protocol):
    """One process that holds one object, and runs one call of its methods after the other."""

    @property
    def name(self) -> str:
        """The name it was started under."""
        ...

    @property
    def place(self) -> str:
        """Machine and process, in words; known once the first call is finished."""
        ...

    def call(self, method: str, *arguments: Any) -> WorkerCall:
        """Begin a call; an argument that `WorkerPool.store` returned arrives as the value that was stored."""
        ...

    def line(self, method: str) -> Callable[[Any], None]:
        """A function that calls the method and does not wait. Other workers may be given it."""
        ...

    def signal(self, number: int) -> None:
        """Send the process a signal."""
        ...

    def end(self) -> None:
        """Kill the process."""
        ...


class WorkerPool(Protocol):
    """Starts workers, on this machine or a cluster."""

    def start(
        self, name: str, make: Callable[[], Any], *, cpus: float = 1.0, gpus: float = 0.0, memory: int = 0
    ) -> Worker:
        """A process that holds what `make` returns there, once its method `begin` is called.

        `cpus` and `gpus` are what it takes of the cluster; one that holds more than `memory` (bytes) ends itself.
        """
        ...

    def store(self, value: Any) -> Any:
        """Put a value where every worker can fetch it: it travels once to each machine. Kept as long as the result."""
        ...

    def finished(self, calls: Sequence[WorkerCall], seconds: float) -> list[WorkerCall]:
        """The calls that are done; waits for the first, at most so long."""
        ...

    def close(self) -> None:
        """End the workers, and the cluster where this process has started it."""
        ...
