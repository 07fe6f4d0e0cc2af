"""Code of the user's runs in a process it shares with the training. What it changes there holds for its own code only.

`user_code` notes the state that the whole process shares (gradient mode, threads, working directory, environment,
random numbers, signal handlers, ...), runs the block, and puts back what differs. The next block of user code finds
its changes again: a reward that sets `OPENAI_API_KEY` or changes folder when it is imported relies on that.
"""

from __future__ import annotations

import _signal
import contextlib
import functools
import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

logger = logging.getLogger(__name__)

SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGALRM", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


class ExitRefused(BaseException):
    """User code called `os._exit`, which would end the run without a word. Not an `Exception`: graders catch those."""


@dataclass(frozen=True)
class SharedState:
    """One thing that all code of a process shares. `read` gives a value that compares equal while nothing changed."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    is_kept: bool = True  # set again for the next block of user code
    is_reported: bool = True  # a change is said once


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _environment() -> dict[Any, Any]:
    # its own dictionary of bytes: decoding every name and value takes longer than everything else here
    return dict(getattr(os.environ, "_data", os.environ))


def _set_environment(wanted: dict[Any, Any]) -> None:
    now = _environment()
    for name in now.keys() - wanted.keys():
        del os.environ[os.fsdecode(name)]
    for name, value in wanted.items():
        if now.get(name) != value:
            os.environ[os.fsdecode(name)] = os.fsdecode(value)


def _set_warning_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = wanted  # type: ignore[index]
    mutated = getattr(warnings, "_filters_mutated", None) or getattr(warnings, "_filters_mutated_lock_held", None)
    if mutated is not None:
        mutated()


def _umask() -> int:
    mask = os.umask(0o077)  # it can only be read by setting it; meanwhile nothing becomes more open
    os.umask(mask)
    return mask


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _numpy_errors() -> dict[str, str]:
    numpy = _numpy()
    return {} if numpy is None or not hasattr(numpy, "geterr") else dict(numpy.geterr())


def _set_numpy_errors(wanted: dict[str, str]) -> None:
    _numpy().seterr(**(wanted or {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}))


def _handlers() -> tuple[Any, ...]:
    return tuple(map(_signal.getsignal, SIGNALS))  # signal.getsignal makes an enum of each: 40 times slower


def _set_handlers(wanted: tuple[Any, ...]) -> None:
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in zip(SIGNALS, wanted, strict=True):
        if handler is not None:  # None: a C library owns it, and Python cannot put it back
            signal.signal(number, handler)


SHARED: tuple[SharedState, ...] = (
    SharedState("numpy's error handling", _numpy_errors, _set_numpy_errors, is_reported=False),
    SharedState("the working directory", _folder, os.chdir),
    SharedState("the environment", _environment, _set_environment),
    SharedState("the warning filters", lambda: list(warnings.filters), _set_warning_filters, is_reported=False),
    SharedState(
        "the locale",
        lambda: locale.setlocale(locale.LC_ALL),
        lambda wanted: locale.setlocale(locale.LC_ALL, wanted),
    ),
    SharedState("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    SharedState("the socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout),
    SharedState("garbage collection", gc.isenabled, lambda wanted: gc.enable() if wanted else gc.disable()),
    SharedState("the umask", _umask, os.umask),
    SharedState("signal handlers", _handlers, _set_handlers, is_kept=False),
)


@functools.cache
def _shared_states() -> tuple[SharedState, ...]:
    """SHARED and torch's own; torch is loaded with the first user code, and not by commands that only name a reward."""
    import torch

    def set_device(wanted: str) -> None:
        torch.set_default_device(None if wanted == "cpu" else wanted)

    def determinism() -> tuple[bool, bool]:
        return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def set_determinism(wanted: tuple[bool, bool]) -> None:
        torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])

    return (
        SharedState("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
        SharedState("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        SharedState("torch's default device", lambda: str(torch.get_default_device()), set_device),
        SharedState("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
        SharedState("torch's deterministic algorithms", determinism, set_determinism),
        SharedState("torch's matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        SharedState("torch's anomaly detection", torch.is_anomaly_enabled, torch.set_anomaly_enabled),
        *SHARED,
    )


@dataclass(frozen=True)
class _OwnState:
    """The run's side of what is shared, while user code runs."""

    values: list[Any]  # of `_shared_states`
    random: list[Any]
    streams: tuple[Any, Any, Any]
    descriptors: dict[int, tuple[int, int] | None]
    exit: Callable[[int], NoReturn]


_lock = threading.Lock()
_depth = 0  # open blocks of user code, nested or in other threads: the first and the last swap states
_own: _OwnState | None = None
_changes: dict[str, Any] = {}  # what user code has changed, by the name of the state
_random: list[Any] | None = None  # where its random numbers are
_reported: set[tuple[str, str]] = set()


@contextlib.contextmanager
def user_code(who: str, *, tell: bool = True) -> Iterator[None]:
    """Run code of the user's, named `who` in what is said about it; the process is left as it was found.

    Meanwhile `os._exit` raises `ExitRefused`, and standard output and error cannot be closed. `tell=False` is for the
    package's own rewards: what a library changes when it is first imported is no news.
    """
    import torch

    global _depth, _own
    gradients = torch.is_grad_enabled()
    # leaving it also leaves an inference mode that was entered inside and not left, and restores the gradient mode
    with torch.inference_mode(torch.is_inference_mode_enabled()):
        torch.set_grad_enabled(gradients)
        with _lock:
            _depth += 1
            if _depth == 1:
                _own = _enter()
        try:
            yield
        finally:
            with _lock:
                _depth -= 1
                changes = _leave(_own) if _depth == 0 and _own is not None else []
    for state, before, after in changes:
        if tell and state.is_reported and (who, state.name) not in _reported:
            _reported.add((who, state.name))
            difference = _difference(before, after)
            logger.warning(
                "%s changed %s%s; that holds for rewards only, the run keeps its own", who, state.name, difference
            )


def has_changes() -> bool:
    """Whether user code has changed what the process shares: then nothing of the run's may go on beside it."""
    return bool(_changes)


def _enter() -> _OwnState:
    """Note the run's state and put user code's in its place."""
    own = _OwnState(
        [shared.read() for shared in _shared_states()],
        _random_states(),
        (sys.stdin, sys.stdout, sys.stderr),
        _standard_descriptors(),
        os._exit,
    )
    for state in _shared_states():
        if state.name in _changes:
            _write(state, _changes[state.name])
    _set_random_states(_random_states_of_users(own.random))
    sys.stdout, sys.stderr = (None if stream is None else _Unclosable(stream) for stream in own.streams[1:])  # type: ignore[assignment]
    os._exit = _exit_refusal()  # type: ignore[assignment]
    return own


def _leave(own: _OwnState) -> list[tuple[SharedState, Any, Any]]:
    """Put the run's state back; what user code had changed: (state, before, after)."""
    global _random
    os._exit = own.exit  # type: ignore[assignment]
    sys.stdin, sys.stdout, sys.stderr = own.streams
    _random = _random_states()
    _set_random_states(own.random)
    _restore_descriptors(own.descriptors)
    changes = []
    for state, before in zip(_shared_states(), own.values, strict=True):
        after = state.read()
        if after == before:
            _changes.pop(state.name, None)
            continue
        changes.append((state, before, after))
        _write(state, before)
        if state.is_kept:
            _changes[state.name] = after
    return changes


def _write(state: SharedState, value: Any) -> None:
    # a folder may be gone, a locale not be installed: nothing a run should stop for
    with contextlib.suppress(OSError, ValueError, locale.Error):
        state.write(value)


def _difference(before: Any, after: Any) -> str:
    if isinstance(before, dict):
        names = sorted(
            os.fsdecode(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)
        )
        return f" ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
    return "" if isinstance(before, tuple | list) else f" ({before} to {after})"


def _random_states() -> list[Any]:
    import torch

    return [random.getstate(), torch.get_rng_state(), _numpy_generator()]


def _set_random_states(states: list[Any]) -> None:
    import torch

    random.setstate(states[0])
    torch.set_rng_state(states[1])
    if states[2] is not None:
        _numpy().random.set_bit_generator(states[2])


def _numpy_generator() -> Any:
    """What numpy's global random numbers come from: the object, since copying its state takes 70 microseconds."""
    numpy_random = getattr(_numpy(), "random", None)
    return None if numpy_random is None else numpy_random.get_bit_generator()


def _random_states_of_users(own: list[Any]) -> list[Any]:
    """The random states from which users' code goes on: at first the run's, with a numpy generator of their own."""
    theirs = own if _random is None else _random
    if own[2] is None or theirs[2] not in (None, own[2]):
        return theirs
    generator = type(own[2])()
    generator.state = own[2].state
    return [*theirs[:2], generator]


def _exit_refusal() -> Callable[[int], NoReturn]:
    process, real_exit = os.getpid(), os._exit

    def refuse_exit(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that user code forked ends as it likes
            real_exit(status)
        raise ExitRefused(f"os._exit({status}) would end the run without a word")

    return refuse_exit


class _Unclosable:
    """A stream that stays open when it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def close(self) -> None:
        self._stream.flush()

    def detach(self) -> NoReturn:
        raise ValueError("the run writes to this stream; write to it, or open one of your own")


_spares: dict[int, int] = {}  # copies of standard output and error, to put them back where they were closed


def _standard_descriptors() -> dict[int, tuple[int, int] | None]:
    """Which files standard output and error are; a spare of each is kept."""
    files = {number: _file_of(number) for number in (1, 2)}
    for number, file in files.items():
        if file is not None and (number not in _spares or _file_of(_spares[number]) != file):
            with contextlib.suppress(OSError):  # out of descriptors: then there is no spare
                spare = os.dup(number)
                if number in _spares:
                    os.close(_spares[number])
                _spares[number] = spare
    return files


def _restore_descriptors(wanted: dict[int, tuple[int, int] | None]) -> None:
    for number, file in wanted.items():
        if file is not None and number in _spares and _file_of(number) != file:
            os.dup2(_spares[number], number)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
