"""Calls of other people's code beside the engine: in threads, or on an event loop where the code is async.

Coroutines of whet's own that wait for nothing but such calls (`finished`, `side_by_side`) need no event loop: whoever
asks for them runs them on from call to call (`DrivenCall`). A class says so with `waits_for_calls_only = True`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import queue
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, NamedTuple

from whet.threads import Thread
from whet.types import WhetError

logger = logging.getLogger(__name__)
MOST_THREADS = 64  # calls at once; more wait
PULSE_SECONDS = 0.5  # for a loop to answer
MOST_LOST = 32  # calls that were given up and never came back


class PoolCall:
    """A call that a thread of a pool makes. Those of a pool share its lock: a `Future` has one of its own, and with all
    that it makes for itself costs as much as a quick call."""

    def __init__(self, lock: threading.Lock, function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> None:
        self._lock, self._function, self._arguments = lock, function, arguments
        self._is_begun = self._is_done = False  # begun: made, or given up
        self._result: Any = None
        self._error: Exception | None = None
        self._callbacks: tuple[Callable[[Any], object], ...] = ()

    def make(self, awaited: Callable[[Any], Any]) -> None:
        """Make the call, unless it was given up; `awaited` gives what comes of an awaitable."""
        with self._lock:
            if self._is_begun:
                return
            self._is_begun = True
        try:
            result = self._function(*self._arguments)
            self._result = awaited(result) if inspect.isawaitable(result) else result
        except BaseException as error:  # SystemExit in other people's code must not end a thread that others need
            self._error = error if isinstance(error, Exception) else RuntimeError(repr(error))
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._is_done = True
        for callback in self._callbacks:
            callback(self)

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Let it be told, from any thread, once the call is done."""
        with self._lock:
            if not self._is_done:
                self._callbacks += (callback,)
                return
        callback(self)

    def done(self) -> bool:
        """Whether the call came back, or was given up before it was begun."""
        return self._is_done

    def exception(self, timeout: float | None = None) -> Exception | None:
        """What the call raised; waits for its end."""
        if not self._is_done:
            ended = threading.Event()
            self.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout):
                raise TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        """What the call returned; waits for its end, and raises what it raised."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._result

    def cancel(self) -> bool:
        """Give up a call that is not begun; False where it is."""
        with self._lock:
            if self._is_begun:
                return False
            self._is_begun, self._error = True, CancelledError()
        self._end()
        return True


class CallBundle:
    """Calls that are asked for together: one thread makes them one after another, or many, once they are `spread`.

    Threads that are woken one by one for calls of microseconds take turns with the thread that asks, and cost more.
    """

    def __init__(self) -> None:
        self._tasks: dict[CallPool, deque[PoolCall]] = {}
        self._last: list[PoolCall] = []  # of each pool, after all others

    def add(self, pool: CallPool, call: PoolCall) -> None:
        """Add a call for a pool, which starts when the gathering ends."""
        self._tasks.setdefault(pool, deque()).append(call)

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """What this thread asks of any pool inside is begun at the end."""
        _gathering.bundle = self
        try:
            yield
        finally:
            _gathering.bundle = None
            for pool, tasks in self._tasks.items():
                self._last.append(PoolCall(pool.lock, bool))
                tasks.append(self._last[-1])
                pool.start(tasks)

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True where every call was made, or was at least begun after `spread`."""
        until = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            for call in self._last:
                call.exception(max(until - time.monotonic(), 0.0))
            return True
        return False

    def spread(self) -> None:
        """Let other threads make the calls that are not begun: one of them takes its time."""
        for pool, tasks in self._tasks.items():
            while (call := _next_of(tasks)) is not None:
                pool.start(deque((call,)))
        self._tasks.clear()


_gathering = threading.local()


def _next_of(tasks: deque[PoolCall]) -> PoolCall | None:
    """Taken out; another thread may do the same."""
    try:
        return tasks.popleft()
    except IndexError:
        return None


class CallPool:
    """Runs calls beside the thread that asks for them. Threads are daemons: one that hangs never holds up the end.

    A call that is given up keeps its thread until it comes back. Too many of them are an error: a process cannot lose
    threads for ever.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[deque[PoolCall]] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self._threads = self._busy = self._lost = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulse: threading.Event | None = None  # set by the loop, where a call on it was given up, if it still runs

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any] | PoolCall:
        """The result of the call; an async function runs on the event loop, and so does what a plain one hands back."""
        if inspect.iscoroutinefunction(function):
            return asyncio.run_coroutine_threadsafe(function(*arguments), self._event_loop())
        call = PoolCall(self.lock, function, arguments)
        bundle: CallBundle | None = getattr(_gathering, "bundle", None)
        if bundle is None:
            self.start(deque((call,)))
        else:
            bundle.add(self, call)
        return call

    def start(self, tasks: deque[PoolCall]) -> None:
        """Let a thread take calls from these until none is left."""
        with self.lock:
            self._busy += 1
            if self._busy > self._threads and self._threads - self._lost < MOST_THREADS:
                self._threads += 1
                Thread(target=self._work, name="environment", daemon=True).start()
        self._tasks.put(tasks)

    def give_up(self, future: Future[Any] | PoolCall | DrivenCall, what: str) -> None:
        """Stop waiting for a call. A coroutine is cancelled; a thread cannot be."""
        if future.cancel() or future.done():
            self._feel_pulse()
            return
        assert not isinstance(future, DrivenCall)
        with self.lock:
            self._lost += 1
            lost = self._lost
        future.add_done_callback(lambda _: self._found())
        if lost > MOST_LOST:
            raise WhetError(
                f"{lost} calls of {what} were given up and never came back; a thread cannot be killed: end it inside "
                "the environment, or run the tool in the sandbox (env.sandboxed)"
            )

    def _found(self) -> None:
        with self.lock:
            self._lost -= 1

    def _work(self) -> None:
        while True:
            tasks = self._tasks.get()
            while (call := _next_of(tasks)) is not None:
                call.make(self._awaited)
            with self.lock:
                self._busy -= 1

    def _awaited(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._event_loop()).result()

    def _feel_pulse(self) -> None:
        """A coroutine that took too long may have blocked its loop, and all that come after it would wait for ever."""
        with self.lock:
            if self._loop is not None and self._pulse is None:
                self._pulse = threading.Event()
                self._loop.call_soon_threadsafe(self._pulse.set)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        pulse = self._pulse
        is_blocked = pulse is not None and not pulse.wait(PULSE_SECONDS)
        with self.lock:
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


class _Pause(NamedTuple):
    """What a coroutine waits for: one of these calls to come back, or a time."""

    calls: Sequence[Future[Any] | PoolCall]
    until: float  # of the monotonic clock; infinity: no limit

    @property
    def is_over(self) -> bool:
        return any(call.done() for call in self.calls) or time.monotonic() >= self.until


_BEGINNING = _Pause((), -math.inf)


@types.coroutine
def _pause(calls: Sequence[Future[Any] | PoolCall], until: float) -> Generator[_Pause, None, None]:
    yield _Pause(calls, until)


async def finished(call: Future[Any] | PoolCall, seconds: float | None = None) -> None:
    """Wait for a call in another thread, at most so long; it goes on if this is not waited for any more."""
    if not _on_a_loop():
        if not call.done():
            await _pause([call], math.inf if seconds is None else time.monotonic() + seconds)
        return
    loop = asyncio.get_running_loop()
    woken = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    def wake_from_thread(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closed when an abandoned call comes back
            loop.call_soon_threadsafe(wake)

    timer = None if seconds is None else loop.call_later(seconds, wake)
    call.add_done_callback(wake_from_thread)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()


async def side_by_side(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines that wait for calls, all to their end."""
    if _on_a_loop():
        await asyncio.gather(*coroutines)
        return
    waiting = [(coroutine, _BEGINNING) for coroutine in coroutines]
    while waiting:
        running = [(coroutine, _run_on(coroutine) if pause.is_over else pause) for coroutine, pause in waiting]
        waiting = [(coroutine, pause) for coroutine, pause in running if pause is not None]
        if waiting and not any(pause.is_over for _, pause in waiting):
            calls = [call for _, pause in waiting for call in pause.calls]
            await _pause(calls, min(pause.until for _, pause in waiting))


def _run_on(coroutine: Coroutine[Any, Any, None]) -> _Pause | None:
    try:
        pause: _Pause = coroutine.send(None)
    except StopIteration:
        return None
    return pause


def _on_a_loop() -> bool:
    return asyncio._get_running_loop() is not None


class DrivenCall:
    """What a coroutine that waits for calls will return, run on by the thread that asks for it, and by no other."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._pause: _Pause | None = _BEGINNING  # None: at the end
        self._wake: Callable[[], object] = bool  # does nothing
        self._result: Any = None
        self._error: Exception | None = None

    @property
    def until(self) -> float:
        """The time at which to go on with whatever has come by then, on the monotonic clock."""
        return math.inf if self._pause is None else self._pause.until

    def begin(self, wake: Callable[[], object]) -> None:
        """Run, and call `wake`, from any thread, whenever there is something to run on with."""
        self._wake = wake
        self.run_on()

    def run_on(self) -> None:
        """Run up to the next call that is not back yet, or to the end; do nothing before the time has come."""
        if self._pause is None or not self._pause.is_over:
            return
        try:
            self._pause = self._coroutine.send(None)
        except StopIteration as end:
            self._pause, self._result = None, end.value
        except Exception as error:
            self._pause, self._error = None, error
        else:
            for call in self._pause.calls:  # one that is back by now wakes at once
                call.add_done_callback(lambda _: self._wake())

    def done(self) -> bool:
        """Whether it has come to its end."""
        return self._pause is None

    def exception(self) -> Exception | None:
        """What it raised in the end."""
        return self._error

    def result(self) -> Any:
        """What it returned in the end; raises what it raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> bool:
        """Give up what has not come to its end."""
        self._coroutine.close()
        return True
