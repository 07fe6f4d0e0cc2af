"""Time limits on code we did not write.

`limited` stops waiting for a call; on the main thread it interrupts it too, catastrophic regular expressions
included. `until_second_signal` lets a second Ctrl-C end a call that swallowed the first. `watchdog` is the last
defence, against C code that neither looks at signals nor releases the interpreter: it ends the process, because a
dead run can be resumed and a hanging one only costs money.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn, TypeVar

from whet.threads import Thread

T = TypeVar("T")

LONGEST_SECONDS = 86_400.0  # a limit that anybody may set
GRACE_SECONDS = 10.0  # what the watchdog adds to twice the limit
RENEW_SECONDS = 1.0  # well below the grace: a call is never cut off before twice its limit
REPEAT_SECONDS = 0.1  # between two interruptions of a call that swallowed the first

Positions = tuple[tuple[str, int], ...]  # (file, line) of a stack, the innermost first

_renewed = -math.inf  # when the one timer was last started
_exit = os._exit  # user code finds another one in its place


class Overrun(BaseException):
    """A call took too long. Not an `Exception`: graders like to catch those and to carry on."""

    def __init__(self, innermost_first: Positions = ()) -> None:
        super().__init__("took too long")
        self.innermost_first = innermost_first  # of the interrupted stack


def positions(frames: Iterable[tuple[FrameType, int]]) -> Positions:
    """(file, line) of each frame. Frames themselves would keep the locals of stopped code alive."""
    return tuple((frame.f_code.co_filename, line) for frame, line in frames)


def limited(call: Callable[[], T], seconds: float, when_deaf: Callable[[Positions], None] | None = None) -> T:
    """The call's value, or `Overrun` after `seconds`.

    `when_deaf` is called with the position of a call that swallows every interruption for GRACE_SECONDS.
    """
    return _interrupted(call, seconds, when_deaf) if _alarm_is_ours() else _abandoned(call, seconds)


@contextlib.contextmanager
def until_second_signal(end: Callable[[int, Positions], None]) -> Iterator[None]:
    """Call `end` with the number and the position of a signal that finds the block still running after an earlier one
    raised there: the block swallowed it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    raised = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        if raised:
            end(number, positions(traceback.walk_stack(frame)))
        try:
            earlier[number](number, frame)
        except BaseException:
            raised = True
            raise

    heeded = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(number))]
    earlier: dict[int, Any] = {number: signal.getsignal(number) for number in heeded}
    for number in heeded:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number in heeded:
            if signal.getsignal(number) is pass_on:
                signal.signal(number, earlier[number])


def end_process(line: str, code: int) -> NoReturn:
    """Say why in one line, and be gone: for code that cannot be interrupted."""
    with contextlib.suppress(OSError):
        os.write(2, f"whet: {line}\n".encode(errors="replace"))
    _exit(code)


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[Callable[[], None]]:
    """End the process with every thread's traceback when a call outlives twice the limit and a grace.

    The block renews it before every call. Each renewal starts a thread, so calls that are quicker than
    RENEW_SECONDS share one. There is one such timer in a process: with several threads scoring, the last is watched.
    """

    def renew() -> None:
        global _renewed
        now = time.monotonic()
        if now - _renewed >= RENEW_SECONDS:
            _renewed = now
            # the bare descriptor: notebooks and test runners put objects without one in sys.stderr
            faulthandler.dump_traceback_later(2 * seconds + GRACE_SECONDS, exit=True, file=2)

    global _renewed
    _renewed = -math.inf  # this block's limit, not that of one around it
    renew()
    try:
        yield renew
    finally:
        _renewed = -math.inf  # a block around this one, or in another thread, starts it again with its next call
        faulthandler.cancel_dump_traceback_later()


def _alarm_is_ours() -> bool:
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    # None: a C library owns the handler, and Python could not put it back
    return signal.getsignal(signal.SIGALRM) is not None


def _interrupted(call: Callable[[], T], seconds: float, when_deaf: Callable[[Positions], None] | None) -> T:
    armed = True
    overrun: Overrun | None = None

    def ring(_signal: int, frame: FrameType | None) -> None:
        nonlocal overrun
        if armed:
            overrun = overrun or Overrun(positions(traceback.walk_stack(frame)) if frame else ())
            if when_deaf is not None and time.monotonic() - started > seconds + GRACE_SECONDS:
                when_deaf(overrun.innermost_first)
            raise overrun

    started = time.monotonic()
    # silenced first: an outer alarm must not find this handler before the block that puts things back
    earlier_delay, earlier_interval = signal.setitimer(signal.ITIMER_REAL, 0)
    earlier_handler = signal.signal(signal.SIGALRM, ring)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, REPEAT_SECONDS)
            value = call()
        finally:
            armed = False
    finally:
        # two steps, because the alarm may ring on the very line that disarms it; the next one is far enough
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier_handler)
        if earlier_delay:
            left = earlier_delay - (time.monotonic() - started)
            signal.setitimer(signal.ITIMER_REAL, max(left, 1e-6), earlier_interval)
    if overrun is not None:  # swallowed by the call: what it returned afterwards depends on the clock
        raise overrun
    return value


class _CallThread:
    """A thread that makes the calls of another one, which may stop waiting for it; it ends with that thread."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self.outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.thread = Thread(target=_make_calls, args=(self.calls, self.outcomes), name="whet-reward", daemon=True)
        self.thread.start()

    def __del__(self) -> None:
        self.calls.put(None)


def _make_calls(calls: queue.SimpleQueue[Any], outcomes: queue.SimpleQueue[tuple[Any, BaseException | None]]) -> None:
    while (call := calls.get()) is not None:
        try:
            outcome: tuple[Any, BaseException | None] = (call(), None)
        except BaseException as error:
            outcome = (None, error)
        del call
        outcomes.put(outcome)
        del outcome


_local = threading.local()  # one for each thread that makes limited calls


def _abandoned(call: Callable[[], T], seconds: float) -> T:
    caller: _CallThread | None = getattr(_local, "thread", None)
    if caller is None:
        caller = _local.thread = _CallThread()
    caller.calls.put(call)
    try:
        value, error = caller.outcomes.get(timeout=seconds)
    except queue.Empty:
        _local.thread = None
        caller.calls.put(None)
        frame = sys._current_frames().get(caller.thread.ident or -1)
        overrun = Overrun(positions(traceback.walk_stack(frame)) if frame else ())
        # asks the stray thread to stop burning a core; Python code obeys at its next line
        stray = ctypes.c_ulong(caller.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(stray, ctypes.py_object(Overrun))
        raise overrun from None
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]
