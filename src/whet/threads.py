"""Threads that begin or fail, and jobs done side by side.

CPython waits for ever in `Thread.start` where the new thread dies before its first line, which a full memory brings
about (python/cpython issue 140746). A run that is out of memory has to say so, not to hang.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

START_SECONDS = 10.0  # after which a thread that gave no sign is taken for dead


class _SignOfLife(threading.Event):
    """What `Thread.start` waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(START_SECONDS if timeout is None else timeout) and timeout is None:
            raise MemoryError("a new thread ended before it began")
        return self.is_set()


class Thread(threading.Thread):
    """A thread of Python's whose `start` raises `MemoryError` where the new thread died before it began."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._started = _SignOfLife()

    def start(self) -> None:
        try:
            super().start()
        except MemoryError:
            getattr(threading, "_limbo", {}).pop(self, None)  # else it counts among the threads for ever
            raise


def side_by_side(
    jobs: Sequence[Callable[[], T]], most: int, when_failed: Callable[[], object] | None = None
) -> list[T]:
    """What the jobs return, done by this thread and up to `most - 1` others; fewer where no more can be started.

    The first error is raised once all threads have ended: no job is begun after it, and `when_failed` is called, so
    that those under way can end early.
    """
    waiting = deque(enumerate(jobs))
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def fail(error: BaseException) -> None:
        errors.append(error)
        if when_failed is not None:
            when_failed()

    def work(late: threading.Event) -> None:
        while not errors and not late.is_set():
            try:
                number, job = waiting.popleft()
            except IndexError:
                return
            try:
                results[number] = job()
            except BaseException as error:
                fail(error)

    threads, _ = _started(work, min(most, len(jobs)) - 1, f"{threading.current_thread().name} beside")
    try:
        work(threading.Event())
    except BaseException as error:  # an interruption between two jobs
        fail(error)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]


def in_threads(jobs: Sequence[Callable[[], T]], most: int, name: str) -> list[Future[T]]:
    """What the jobs will return, done in this order by up to `most` threads; fewer where no more can be started.

    Nobody waits for the threads, not even the end of the process: whoever needs no more cancels what has not begun.
    """
    futures: list[Future[T]] = [Future() for _ in jobs]
    waiting = deque(zip(futures, jobs, strict=True))

    def work(late: threading.Event) -> None:
        while not late.is_set():
            try:
                future, job = waiting.popleft()
            except IndexError:
                return
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:
                    future.set_exception(error)

    threads, error = _started(work, min(max(1, most), len(jobs)), name)
    if error is not None and not threads:
        raise error
    return futures


def _started(
    work: Callable[[threading.Event], None], count: int, name: str
) -> tuple[list[Thread], MemoryError | RuntimeError | None]:
    """Threads that do `work` until its event is set, and why they are no more."""
    threads: list[Thread] = []
    for number in range(count):
        late = threading.Event()
        thread = Thread(target=work, args=(late,), name=f"{name} {number + 1}", daemon=True)
        try:
            thread.start()
        except (MemoryError, RuntimeError) as error:  # RuntimeError: the system gives no more threads
            late.set()  # one that begins after all takes no job
            return [*threads, thread] if thread.is_alive() else threads, error
        threads.append(thread)
    return threads, None


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
