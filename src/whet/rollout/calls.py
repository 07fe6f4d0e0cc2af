"""Calls of other people's code beside the engine: in threads, or on an event loop where the code is async."""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from whet.threads import Thread
from whet.types import WhetError

logger = logging.getLogger(__name__)
MOST_THREADS = 64  # calls at once; more wait
PULSE_SECONDS = 0.5  # for a loop to answer
MOST_LOST = 32  # calls that were given up and never came back


class CallPool:
    """Runs calls beside the thread that asks for them. Threads are daemons: one that hangs never holds up the end.

    A call that is given up keeps its thread until it comes back. Too many of them are an error: a process cannot lose
    threads for ever.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._tasks = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._busy = self._lost = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulse: threading.Event | None = None  # set by the loop, where a call on it was given up, if it still runs

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """The result of the call; an async function runs on the event loop, and so does what a plain one hands back."""
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(function(*arguments), self._event_loop())
        future: Future[Any] = Future()
        with self._lock:
            self._busy += 1
            if self._busy > self._threads and self._threads - self._lost < MOST_THREADS:
                self._threads += 1
                Thread(target=self._work, name="environment", daemon=True).start()
        self._tasks.put((future, function, arguments))
        return future

    def give_up(self, future: Future[Any], what: str) -> None:
        """Stop waiting for a call. A coroutine is cancelled; a thread cannot be."""
        if future.cancel() or future.done():
            self._feel_pulse()
            return
        with self._lock:
            self._lost += 1
            lost = self._lost
        future.add_done_callback(lambda _: self._found())
        if lost > MOST_LOST:
            raise WhetError(
                f"{lost} calls of {what} were given up and never came back; a thread cannot be killed: end it inside "
                "the environment, or run the tool in the sandbox (env.sandboxed)"
            )

    def _found(self) -> None:
        with self._lock:
            self._lost -= 1

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            future, function, arguments = task
            if future.set_running_or_notify_cancel():
                self._call(future, function, arguments)
            with self._lock:
                self._busy -= 1

    def _call(self, future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            result = function(*arguments)
            if inspect.isawaitable(result):
                result = asyncio.run_coroutine_threadsafe(_awaited(result), self._event_loop()).result()
        except BaseException as error:  # SystemExit in other people's code must not end a thread that others need
            future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
        else:
            future.set_result(result)

    def _feel_pulse(self) -> None:
        """A coroutine that took too long may have blocked its loop, and all that come after it would wait for ever."""
        with self._lock:
            if self._loop is not None and self._pulse is None:
                self._pulse = threading.Event()
                self._loop.call_soon_threadsafe(self._pulse.set)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        pulse = self._pulse
        is_blocked = pulse is not None and not pulse.wait(PULSE_SECONDS)
        with self._lock:
            if self._pulse is pulse and pulse is not None:
                self._pulse = None
                if is_blocked:  # its thread is lost until the call comes back; others get a loop that runs
                    self._loop = None
                    logger.warning(
                        "an async call blocked its event loop and was left behind; others go on in a new one: await "
                        "what takes time, or write the function without async"
                    )
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                Thread(target=self._loop.run_forever, name="environments", daemon=True).start()
            return self._loop


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
