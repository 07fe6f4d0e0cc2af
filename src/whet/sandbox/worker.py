"""A warm worker: an interpreter started once, confined once, that forks a fresh process for every job.

Runs inside the sandbox's own processes: only the standard library may be imported here. It speaks with the trainer
over one socket (`wire`). A job is a program (source and standard input in, output back) or unit tests: two processes,
one with the code under test, one with the tests (`candidate`, `test_runner`). After a job everything it started is
killed, the working directory is new, and nothing of it is left in this process but the source it was asked to run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from whet.sandbox import candidate, isolation, kernel, test_runner, wire
from whet.sandbox.isolation import BROKEN, MEGABYTE, Confinement

TICK = 0.05  # seconds between two looks at the memory of a job
RECORD = 1 << 20  # bytes of the test runner's record
ERRORS = 4096  # bytes kept of what a program writes to standard error
# not threading: its work after every fork would double what a fork costs
PRELOAD = (
    *("abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "dataclasses"),
    *("datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools"),
    *("json", "math", "numbers", "operator", "pprint", "random", "re", "statistics", "string", "struct"),
    *("textwrap", "time", "traceback", "types", "typing", "unicodedata", "warnings", "zlib"),
)
OWN_MODULES = (
    *("whet", "whet.sandbox"),
    *(
        f"whet.sandbox.{name}"
        for name in ("candidate", "test_runner", "isolation", "kernel", "literal", "seccomp", "wire", "worker")
    ),
)


@dataclass
class Stream:
    """One pipe that is read until it ends or overflows."""

    descriptor: int
    most: int
    is_essential: bool = True  # overflowing it ends the job; else the rest is dropped
    data: bytearray = field(default_factory=bytearray)
    is_open: bool = True

    def read(self) -> bool:
        """Take what is there; False when there was too much."""
        try:
            piece = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return True
        if not piece:
            self.is_open = False
            return True
        room = self.most - len(self.data)
        self.data += piece[:room]
        return not self.is_essential or len(piece) <= room

    def drain(self) -> bool:
        """Take what was written before the writers ended, and close: the end may be seen before the last words.

        False when there was too much.
        """
        os.set_blocking(self.descriptor, False)
        fits = True
        while fits and self.is_open:
            before = len(self.data)
            fits = self.read()
            if len(self.data) == before:
                break
        os.close(self.descriptor)
        return fits


def start_job(
    confinement: Confinement, limits: dict[str, int], kept: tuple[int, ...], role: int, body: Callable[[], None]
) -> int:
    """Fork a confined process that runs `body` and never returns."""
    child = os.fork()
    if child:
        return child
    try:
        gc.enable()
        os.setsid()
        held = isolation.confine(confinement, limits, kept, role)
        if any(confinement.holds.get(name, False) and not value for name, value in held.items()):
            os._exit(BROKEN)
        # the code under test has no use for the sandbox's own modules
        for name in OWN_MODULES:
            sys.modules.pop(name, None)
        body()
    finally:
        os._exit(1)


class SandboxWorker:
    """One worker's state: its confinement and its connection to the trainer."""

    def __init__(self, control: int, confinement: Confinement) -> None:
        self.control = control
        self.confinement = confinement
        self.usage: dict[int, tuple[int, float]] = {}  # process: (exit status, processor seconds)

    def run(self) -> None:
        while True:
            try:
                job = wire.receive(self.control)
            except wire.ConnectionClosed:
                return
            isolation.renew_folder(self.confinement, job["limits"]["file_mb"])
            self.usage = {}
            started = time.monotonic()
            result = self.unit_tests(job) if job["kind"] == "unit_tests" else self.program(job)
            result["seconds"] = time.monotonic() - started
            wire.send(self.control, result)
            if result.pop("is_out_of_step", False):
                return

    def unit_tests(self, job: dict[str, Any]) -> dict[str, Any]:
        limits = job["limits"]
        deadline = time.monotonic() + job["wall_seconds"]
        here, there = (end.detach() for end in socket.socketpair())
        code = start_job(
            *(self.confinement, limits, (there,), 0),
            lambda: candidate.serve(there, job["prelude"], job["sources"]),
        )
        os.close(there)
        record, written = os.pipe()
        # forked second: the code under test never had the record's descriptor, nor the tests in its memory
        tests = start_job(
            *(self.confinement, limits, (here, written, self.control), 1),
            lambda: test_runner.run_tests(here, written, self.control),
        )
        os.close(here)
        os.close(written)
        stream = Stream(record, RECORD)
        ended = self.watch([stream], deadline, limits, tests)
        self.end_all((code, tests))
        stream.drain()
        status, processor = self.usage.get(code, (0, 0.0))
        text = bytes(stream.data)
        return {
            **{"ended": ended, "status": status, "processor_seconds": processor},
            **{"record": text.decode("latin-1"), "is_out_of_step": b'"taken"' not in text[:64]},
        }

    def program(self, job: dict[str, Any]) -> dict[str, Any]:
        limits = job["limits"]
        deadline = time.monotonic() + job["wall_seconds"]
        given = _file_with(job["stdin"].encode("utf-8", "surrogatepass"))
        output, output_end = os.pipe()
        errors, errors_end = os.pipe()

        def body() -> None:
            for number, descriptor in enumerate((given, output_end, errors_end)):
                os.dup2(descriptor, number)
            kernel.close_all_but(())
            candidate.run_program(job["source"])

        code = start_job(self.confinement, limits, (given, output_end, errors_end), 0, body)
        for descriptor in (given, output_end, errors_end):
            os.close(descriptor)
        streams = [Stream(output, limits["output_kb"] * 1024), Stream(errors, ERRORS, is_essential=False)]
        ended = self.watch(streams, deadline, limits, code)
        self.end_all((code,))
        for stream in streams:
            if not stream.drain():
                ended = ended or "output"
        status, processor = self.usage.get(code, (0, 0.0))
        shown = [bytes(stream.data).decode("utf-8", "replace") for stream in streams]
        return {
            **{"ended": ended, "status": status, "processor_seconds": processor},
            **{"stdout": shown[0], "stderr": shown[1]},
        }

    def watch(self, streams: list[Stream], deadline: float, limits: dict[str, int], leader: int) -> str:
        """Wait for the leader's end. Why it was cut short: "time", "memory", "output"; "" when it ended itself."""
        poll = select.poll()
        by_descriptor = {stream.descriptor: stream for stream in streams}
        for descriptor in by_descriptor:
            poll.register(descriptor, select.POLLIN)
        end_descriptor = _end_descriptor(leader)
        if end_descriptor is not None:
            poll.register(end_descriptor, select.POLLIN)
        # the test runner reads the tests from the control socket: only its hang-up concerns the worker
        poll.register(self.control, 0)
        next_look = time.monotonic() + TICK
        try:
            while True:
                now = time.monotonic()
                left = deadline - now
                if left <= 0:
                    return "time"
                for descriptor, _ in poll.poll(1000 * min(left, TICK if end_descriptor is not None else TICK / 10)):
                    if descriptor == self.control:
                        self.end_all((leader,))
                        os._exit(0)
                    stream = by_descriptor.get(descriptor)
                    if stream is None:
                        continue
                    if not stream.read():
                        return "output"
                    if not stream.is_open:
                        poll.unregister(descriptor)
                if self._has_ended(leader):
                    return ""
                if now > next_look:
                    next_look = now + TICK
                    if self._memory() > limits["memory_mb"] * MEGABYTE:
                        return "memory"
        finally:
            if end_descriptor is not None:
                os.close(end_descriptor)

    def _has_ended(self, process: int) -> bool:
        if process in self.usage:
            return True
        found, status, usage = os.wait4(process, os.WNOHANG)
        if found:
            self.usage[found] = (status, usage.ru_utime + usage.ru_stime)
        return bool(found)

    def _memory(self) -> int:
        """Bytes in use by everything this worker runs; 0 where that cannot be seen."""
        folder = self.confinement.processes
        if folder is None:
            return 0
        total = 0
        for name in os.listdir(folder):
            if name.isdigit() and name != "1":
                with contextlib.suppress(OSError, ValueError, IndexError):
                    file = os.open(f"{name}/statm", os.O_RDONLY, dir_fd=folder)
                    try:
                        resident, shared = os.read(file, 200).split()[1:3]
                    finally:
                        os.close(file)
                    total += (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
        return total

    def end_all(self, leaders: Iterable[int]) -> None:
        """Kill whatever runs below this worker, and bury it."""
        while True:
            if os.getpid() == 1:
                with contextlib.suppress(OSError):
                    os.kill(-1, signal.SIGKILL)
            else:
                for process in {*leaders, *_children()} - set(self.usage):
                    for end in (os.killpg, os.kill):
                        with contextlib.suppress(OSError):
                            end(process, signal.SIGKILL)
            try:
                found, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return
            self.usage[found] = (status, usage.ru_utime + usage.ru_stime)


def _children() -> list[int]:
    """Processes whose parent is this one, adopted orphans too."""
    own = os.getpid()
    pids = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == own:
                        pids.append(int(name))
    return pids


def _end_descriptor(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system has such a thing."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(process)
    return None


def _file_with(data: bytes) -> int:
    """A descriptor of a nameless file with this content, at its beginning."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stdin")
    else:
        import tempfile

        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def trial(confinement: Confinement, limits: dict[str, int]) -> None:
    """Confine a first process for nothing but to see what holds, and note it."""
    isolation.renew_folder(confinement, limits["file_mb"])
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            held = isolation.confine(confinement, limits, (write,), 0)
            wire.send(write, isolation.observed(confinement, held))
        finally:
            os._exit(0)
    os.close(write)
    try:
        confinement.holds.update(wire.receive(read))
    except wire.ConnectionClosed:
        confinement.holds["landlock"] = confinement.holds["seccomp"] = False
    os.close(read)
    os.waitpid(child, 0)


def address_space() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 512 * MEGABYTE


def main(control: int) -> None:
    """A worker's whole run: it receives its setup, reports what holds, then takes jobs until the trainer hangs up."""
    setup = wire.receive(control)
    for name in (*PRELOAD, *setup["preload"]):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    confinement = Confinement(
        os.path.join(setup["scratch"], "now"), frozenset(setup["without"]), address_space=address_space()
    )
    os.makedirs(confinement.folder, exist_ok=True)
    isolation.separate(confinement)
    isolation.build_root(confinement, setup["scratch"])
    isolation.prepare_rules(confinement)
    trial(confinement, setup["limits"])
    confinement.holds["tree_memory"] = confinement.processes is not None
    gc.collect()
    gc.freeze()
    gc.disable()
    wire.send(control, {"holds": confinement.holds, "why": confinement.why})
    SandboxWorker(control, confinement).run()
