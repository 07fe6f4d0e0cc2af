"""The moments of a whet command, and what goes wrong at one of them, inside the process that it happens to.

There are two clocks. One ticks before whatever changes a file below a folder, alike in two equal runs: opening for
writing, a write that reaches the operating system (and once more with half of it written), truncating, flushing,
renaming, making and removing. The other is the processor time of the process, which is nearly alike.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import errno
import fcntl
import io
import itertools
import json
import os
import resource
import shutil
import signal
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ARMED = "armed.py"  # what the reward, environment or program of a run does at its next call
FILLER = "filler"
KNOWN_PROGRAMS = {
    "without a word": "crash reporter",
    "sandbox": "sandbox",
    "resource_tracker": "resource tracker",
    "spawn_main": "writer",
    "program.py": "agent program",
    "_WorkerHost": "engine",
    "gcs_server": "Ray's controller",
    "raylet": "raylet",
    "ray": "other process of Ray",
}


def processes_below(parent: int) -> dict[int, str]:
    """Every process that descends from one, and what it is, in the order of their numbers."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, above = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(folder.name)] = int(above)
    named: dict[int, str] = {}
    for process, first in sorted(parents.items()):
        above = first
        while above in parents and above != parent:
            above = parents[above]
        if above == parent:
            named[process] = _program(process, is_child=first == parent, own=_command_line(parent))
    return named


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _program(process: int, is_child: bool, own: str) -> str:
    line = _command_line(process)
    if line == own:  # a fork
        return "trainer" if is_child else "fork"
    return next((name for part, name in KNOWN_PROGRAMS.items() if part in line), line[:80])


class Clock:
    """Counts changes of files below a folder, and does something before one of them, once."""

    def __init__(self, watch: Path, wanted: int, act: Callable[[], None], ends_here: bool) -> None:
        self.watch, self.wanted, self.act, self.ends_here = str(watch), wanted, act, ends_here
        self.process, self.ticks, self._next = os.getpid(), 0, itertools.count(1)

    def tick(self, half: bool = False) -> bool:
        """True where half of what comes next is to be done before the end."""
        if os.getpid() != self.process:
            return False
        self.ticks = number = next(self._next)
        if number != self.wanted:
            return False
        if half and self.ends_here:
            return True
        self.act()
        return False

    def path_of(self, path: Any, dir_fd: int | None = None) -> str:
        """The whole path of what a call names."""
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
        return os.path.normpath(os.path.join(base, os.fsdecode(path)))

    def changes(self, path: Any, dir_fd: int | None = None) -> None:
        """Something is about to change this path."""
        if self.path_of(path, dir_fd).startswith(self.watch):
            self.tick()

    def install(self) -> None:
        """From here on the clock ticks."""
        for name in ("mkdir", "unlink", "remove", "rmdir", "truncate", "ftruncate", "fsync", "chmod"):
            self._patch(os, name)
        for name in ("rename", "replace", "link", "symlink"):
            self._patch(os, name, target=1)
        self._patch(fcntl, "flock")
        self._patch_open()

    def _patch(self, module: Any, name: str, target: int = 0) -> None:
        plain = getattr(module, name)

        def patched(*arguments: Any, **options: Any) -> Any:
            subject = arguments[target]
            subject = subject.fileno() if hasattr(subject, "fileno") else subject
            self.changes(subject, options.get("dst_dir_fd" if target else "dir_fd"))
            return plain(*arguments, **options)

        setattr(module, name, patched)

    def _patch_open(self) -> None:
        plain_open, plain_os_open, clock = io.open, os.open, self

        class Raw(io.FileIO):
            """Every write that reaches the operating system."""

            def write(self, data: Any) -> Any:
                data = memoryview(data).cast("B")
                clock.tick()
                if len(data) > 1 and clock.tick(half=True):
                    super().write(data[: len(data) // 2])
                    clock.act()
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                clock.tick()
                return super().truncate(size)

        def os_open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self.changes(path, options.get("dir_fd"))
            return plain_os_open(path, flags, *arguments, **options)

        def watched_open(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            is_written = set(mode) & set("wxa+") and not isinstance(file, int)
            if not is_written or not self.path_of(file).startswith(self.watch):
                return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            self.tick()
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

        os.open, io.open, builtins.open = os_open, watched_open, watched_open  # type: ignore[assignment]


def begin(fault: Mapping[str, Any] | None, work: Path, notes: Path) -> None:
    """Let this process, a copy of one with whet imported, count its moments, and meet with the fault at its own."""
    own = fault or {"how": "nothing", "clock": "file", "moment": 0}
    if own["how"] == "read-only":
        _heed_permissions()  # before there are threads

    def act(*_: Any) -> None:
        (notes / "struck").touch()
        globals()["_" + own["how"].replace(" ", "_").replace("-", "_")](own, work, notes)

    by_file = own["clock"] == "file"
    is_end = own["how"] == "kill" and own["who"] == "trainer"
    clock = Clock(work, int(own["moment"]) if by_file else 0, act, is_end)
    clock.install()
    if not by_file:
        signal.signal(signal.SIGPROF, act)
        signal.setitimer(signal.ITIMER_PROF, max(0.001, own["moment"]))
    process = os.getpid()

    def say_moments() -> None:
        if os.getpid() == process:
            signal.setitimer(signal.ITIMER_PROF, 0)  # a run that is ending has no handler any more
            (notes / "moments").write_text(json.dumps({"file": clock.ticks, "processor": time.process_time()}))

    atexit.register(say_moments)


def _victims(fault: Mapping[str, Any], notes: Path) -> list[int]:
    """The processes that it happens to: this one, all, any by a number drawn, or any of a name."""
    alive = processes_below(os.getppid())
    named = [process for process, name in alive.items() if name == fault["who"]]
    if fault["who"] == "trainer":
        chosen = [os.getpid()]
    elif fault["who"] == "all":
        chosen = sorted(alive, key=lambda process: process == os.getpid())  # itself last: it must not stop before
    else:
        pool = list(alive) if fault["who"] == "any" else named
        chosen = [pool[int(fault["drawn"] * len(pool))]] if pool else []
    with open(notes / "victims", "a") as file:
        file.write("".join(f"{process} {alive.get(process, 'trainer')}\n" for process in chosen))
    return chosen


def _send(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _nothing(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    pass


def _kill(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    victims = _victims(fault, notes)
    for process in victims:
        _send(process, signal.SIGKILL)
    if not victims:  # it is not there yet
        signal.setitimer(signal.ITIMER_PROF, 0.02)


def _stop(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    """The process that waits for this one lets them go on after a while."""
    victims = _victims(fault, notes)
    (notes / "stopped").write_text(" ".join(map(str, victims)))
    for process in victims:
        _send(process, signal.SIGSTOP)


def _signal(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    for number in fault["signals"]:
        for process in _victims(fault, notes):
            _send(process, number)


def _full_disk(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    if fault["drawn"] < 0.25:  # no room for another file; there is for more bytes
        try:
            for number in itertools.count():
                os.close(os.open(work / f"{FILLER}{number}", os.O_CREAT | os.O_WRONLY))
        except OSError:
            return
    file = os.open(work / FILLER, os.O_CREAT | os.O_WRONLY)
    for size in (1 << 20, 1 << 12, 1):
        try:
            while os.write(file, bytes(size)):
                pass
        except OSError:
            pass
    room = int((fault["drawn"] - 0.25) * 4 * 400_000) if fault["drawn"] > 0.5 else 0  # some files still fit
    os.ftruncate(file, max(0, os.fstat(file).st_size - room))
    os.close(file)


def _heed_permissions() -> None:
    """Give up what lets root write into a folder that is read-only."""
    libc, header, data = ctypes.CDLL(None), struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    libc.capget(header, data)
    words = [word & ~0b110 if number < 2 else word for number, word in enumerate(struct.unpack("6I", data.raw))]
    libc.capset(header, struct.pack("6I", *words))


def _read_only(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    for path in [*(work / "run").rglob("*"), work / "run", work]:
        if path.exists():
            os.chmod(path, 0o555 if path.is_dir() else 0o444)


def _clock_jump(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    """The wall clock is another one from now on; clocks that only measure stay."""
    plain, plain_ns, ahead = time.time, time.time_ns, fault["ahead"]
    time.time = lambda: plain() + ahead
    time.time_ns = lambda: plain_ns() + ahead * 10**9


def _little_memory(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    """From now on the system gives this process so much more memory, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + fault["bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _few_handles(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    """From now on so many more files can be open, and no more."""
    used = set(map(int, os.listdir("/proc/self/fd")))
    free = itertools.islice((number for number in itertools.count() if number not in used), fault["handles"] + 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def _error(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    import torch

    raise {
        "MemoryError": MemoryError(),
        "torch out of memory": torch.OutOfMemoryError("out of memory. Tried to allocate 2.00 GiB."),
        "allocator": RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate"),
        "input/output error": OSError(errno.EIO, os.strerror(errno.EIO)),
        "nobody expects": KeyError("surprise"),
    }[fault["error"]]


def _take_away(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    """The run's folder, or a log in it, is deleted, moved or replaced."""
    run, moved = work / "run", work.parent / "moved"
    if not run.exists():
        return
    shutil.rmtree(moved, ignore_errors=True)
    way = fault["way"]
    if way == "log":
        (run / "metrics.jsonl").unlink(missing_ok=True)
    elif way == "files":
        for path in list(run.iterdir()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        shutil.move(run, moved)
        if way == "replaced":
            run.mkdir()


def _arm(fault: Mapping[str, Any], work: Path, notes: Path) -> None:
    (work / "arming").write_text(fault["code"])
    os.rename(work / "arming", work / ARMED)
