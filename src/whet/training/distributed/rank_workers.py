"""Trainer ranks in workers: started together, heard by the process that started them, ended together."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whet.training.distributed.launch import rank_environment, run_rank
from whet.training.distributed.workers import START_SECONDS, Worker, WorkerCall, WorkerLost, WorkerPool
from whet.types import RunFailed, WhetError

logger = logging.getLogger(__name__)

PATIENCE = 0.1  # seconds between two looks at what the first rank says
LAST_WORDS = 30.0  # seconds beyond scale.timeout that the other ranks get to say why they end

Event = tuple[str, tuple[Any, ...]]
"""(method of a `whet.protocols.Callback`, its arguments)."""


class RankHost:
    """What a rank's process holds. `main` is the run: it gets a line to the process that started the ranks."""

    def __init__(self, main: Callable[[Callable[[Event], None] | None], Any]) -> None:
        self._main = main

    def meeting_point(self) -> tuple[str, int]:
        """An address of this machine that other machines reach, and a port that is free there."""
        address = socket.gethostbyname(socket.gethostname())
        with socket.socket() as probe:
            probe.bind(("", 0))
            return address, int(probe.getsockname()[1])

    def run(self, environment: Mapping[str, str], line: Callable[[Event], None] | None) -> Any:
        """Run one rank in this process, its events sent along `line`."""
        return run_rank(environment, lambda: self._main(line))


class Mailbox:
    """A queue in which the first rank leaves its events."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def put(self, event: Event) -> None:
        """Add an event."""
        self._events.append(event)

    def take(self) -> list[Event]:
        """Remove and return the events that have arrived."""
        events, self._events = self._events, []
        return events


class Relay:
    """A callback that sends every event elsewhere."""

    def __init__(self, line: Callable[[Event], None]) -> None:
        self._line = line

    def started(self, summary: Mapping[str, Any]) -> None:
        self._line(("started", (dict(summary),)))

    def stepped(self, report: Any, samples: Sequence[Any]) -> None:
        self._line(("stepped", (report, list(samples))))

    def evaluated(self, step: int, name: str, result: Mapping[str, float], seconds: float) -> None:
        self._line(("evaluated", (step, name, dict(result), seconds)))

    def saved(self, step: int, checkpoint: Any) -> None:
        self._line(("saved", (step, checkpoint)))

    def finished(self, summary: Mapping[str, Any]) -> None:
        self._line(("finished", (dict(summary),)))


def run_ranks(
    pool: WorkerPool,
    main: Callable[[Callable[[Event], None] | None], Any],
    count: int,
    *,
    gpus: float,
    timeout: float,
    hear: Callable[[Event], None],
) -> Any:
    """Run `main` on `count` ranks; what the first one returns. `hear` gets its events, in this process.

    The first Ctrl-C lets the ranks finish their step and save, a second one ends them.
    """

    def make() -> RankHost:
        return RankHost(main)

    ranks = [pool.start(f"rank {number}", make, gpus=gpus) for number in range(count)]
    box = pool.start("mailbox", Mailbox, cpus=0)
    _all_of(pool, [starting.call("begin") for starting in (*ranks, box)], max(timeout, START_SECONDS))
    ((address, port),) = _all_of(pool, [ranks[0].call("meeting_point")], timeout)
    running = {
        number: rank.call(
            "run", rank_environment(number, count, address, port), box.line("put") if not number else None
        )
        for number, rank in enumerate(ranks)
    }
    listening = _Listener(pool, box, hear)
    try:
        return _outcome(pool, ranks, running, listening, timeout)
    finally:
        for worker in (*ranks, box):
            worker.end()


def _all_of(pool: WorkerPool, calls: Sequence[WorkerCall], timeout: float) -> list[Any]:
    deadline = time.monotonic() + timeout
    waiting = list(calls)
    while waiting:
        done = pool.finished(waiting, PATIENCE)
        waiting = [call for call in waiting if call not in done]
        if waiting and time.monotonic() > deadline:
            raise WhetError(
                f"{len(waiting)} of {len(calls)} processes did not start in {timeout:g} seconds; the cluster is busy: "
                "wait, lower scale.workers, or raise scale.timeout"
            )
    try:
        return [call.result() for call in calls]
    except WorkerLost as error:
        raise RunFailed(f"a process of the run did not start: {error}") from error


class _Listener:
    """Hands events on, without ever waiting long."""

    def __init__(self, pool: WorkerPool, box: Worker, hear: Callable[[Event], None]) -> None:
        self._pool, self._box, self._hear = pool, box, hear
        self._call: WorkerCall | None = None

    def listen(self) -> None:
        if self._call is None:
            self._call = self._box.call("take")
        if self._pool.finished([self._call], 0.0):
            call, self._call = self._call, None
            with contextlib.suppress(WorkerLost):
                for event in call.result():
                    self._hear(event)


def _outcome(
    pool: WorkerPool, ranks: Sequence[Worker], running: dict[int, WorkerCall], listener: _Listener, timeout: float
) -> Any:
    """Wait for every rank; raise what ended them."""
    first: Any = None
    errors: dict[int, BaseException] = {}
    lost: dict[int, str] = {}
    deadline = float("inf")
    interruptions = 0
    while running and time.monotonic() < deadline:
        try:
            numbers = {id(call): number for number, call in running.items()}
            for call in pool.finished(list(running.values()), PATIENCE):
                number = numbers[id(call)]
                del running[number]
                try:
                    value = call.result()
                    first = value if number == 0 else first
                except WorkerLost as error:
                    lost[number] = str(error)
                except (WhetError, KeyboardInterrupt) as error:
                    errors[number] = error
            listener.listen()
            if (errors or lost) and deadline == float("inf"):
                deadline = time.monotonic() + timeout + LAST_WORDS
        except KeyboardInterrupt:
            interruptions += 1
            if interruptions > 1:
                raise
            for number in running:
                ranks[number].signal(signal.SIGINT)
    listener.listen()
    if not errors and not lost:
        time.sleep(PATIENCE)
        listener.listen()  # the run's last words may still be on their way
        return first
    raise _cause(errors, lost)


def _cause(errors: Mapping[int, BaseException], lost: Mapping[int, str]) -> BaseException:
    """What the first rank says, or another one; else that a process is gone."""
    if errors:
        return errors[min(errors)]
    number = min(lost)
    return RunFailed(f"rank {number} is lost: {lost[number]}")
