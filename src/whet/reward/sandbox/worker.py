"""A warm worker: an interpreter started once, confined once, that forks fresh processes for every job.

Runs inside the sandbox's own processes: only the standard library may be imported here. The worker speaks with the
trainer over one socket (`wire`), and it never reads or writes a job: it learns the limits, forks, watches the clock
and the memory, and says how the processes ended. The forked processes take their part of the job from the socket or
from a file that came with it, and what they write goes to the trainer by pipes of its own. So code under test is
forked from a state that has seen nothing of another job or of the expected side. A job is a program (source and
standard input in, output back) or unit tests: two processes, one with the code under test, one with the tests
(`candidate`, `suite_runner`); of tests that are but calls with an expected result, the first alone (`plain`); or a
session: one process that answers calls and keeps its state from one to the next (`session_runner`). After a job
everything it started is killed, and the working directory is new.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import select
import signal
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from whet.reward.sandbox import candidate, isolation, kernel, session_runner, suite_pytest, suite_runner, wire
from whet.reward.sandbox.isolation import MEGABYTE, Confinement

MOST_DESCRIPTORS = 2  # that come with a job
TICK = 0.05  # seconds between two looks at the memory of a job
CPU_SIGNALS = (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL)  # what the kernel sends at the limit
NEARLY = 0.5  # of the limit: the kernel counts whole ticks, on a busy machine too many; a usage is exact
# what many programs import, and not more: a fork copies the page tables of all of it. Not threading: its work after
# every fork would double what a fork costs
PRELOAD = (
    *("abc", "array", "bisect", "cmath", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal"),
    *("enum", "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "random"),
    *("re", "statistics", "string", "struct", "time", "traceback", "types", "typing", "warnings"),
)
Body = Callable[[], None]


def start_job(
    confinement: Confinement,
    limits: dict[str, int],
    role: int,
    prepare: Callable[[], tuple[tuple[int, ...], Body]],
    ready: int,
) -> int:
    """Fork a process that prepares itself, is confined, runs its body and never returns.

    What `prepare` returns: the descriptors to keep, and the body. Into `ready` the process writes its role when every
    protection is in place, and before any code of the job runs.
    """
    child = os.fork()
    if child:
        return child
    try:
        gc.enable()
        os.setsid()
        descriptors, body = prepare()
        # the kernel's own limit counts whole seconds; a program that gets rid of this one meets that
        signal.setitimer(signal.ITIMER_PROF, limits["cpu_seconds"])
        held = isolation.confine(confinement, limits, (*descriptors, ready), role)
        if any(confinement.holds.get(name, False) and not value for name, value in held.items()):
            os._exit(1)
        os.write(ready, bytes([role]))
        os.close(ready)
        body()
    finally:
        os._exit(1)


def serve(channel: int, prelude: str, sources: list[str]) -> None:
    """The whole life of a process with code under test."""
    candidate.serve(channel, prelude, sources)
    os._exit(0)


class SandboxWorker:
    """One worker's state: its confinement and its connection to the trainer."""

    def __init__(self, control: int, confinement: Confinement) -> None:
        self.control = control
        self.confinement = confinement
        self.usage: dict[int, tuple[int, float]] = {}  # process: (exit status, processor seconds)
        self.ready, self.ready_end = os.pipe()
        os.set_blocking(self.ready, False)

    def run(self) -> None:
        """Take jobs until the trainer hangs up."""
        while True:
            try:
                header, descriptors = wire.receive_with_descriptors(self.control, MOST_DESCRIPTORS)
            except wire.ConnectionClosed:
                return
            if "session" in header:  # meant for a session that ended meanwhile by itself
                continue
            if "kind" not in header:  # a job of which a process died before it had read its part
                return
            self.usage = {}
            result = self.job(header, descriptors)
            if result is None:
                return
            wire.send(self.control, result)

    def job(self, header: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        """Do one job; how it ended. None where a process could not be confined: that is no fault of the code."""
        limits = header["limits"]
        isolation.renew_folder(self.confinement, limits["file_mb"])
        killed = isolation.num_killed(self.confinement)
        started = time.monotonic()
        starts: dict[str, Callable[..., tuple[int, ...]]] = {
            **{"unit_tests": self.unit_tests, "calls": self.calls, "program": self.program, "session": self.session},
        }
        leader, *others = starts[header["kind"]](limits, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        ended = self.watch(leader, limits, None if header["kind"] == "session" else started + header["wall_seconds"])
        if isolation.num_killed(self.confinement) > killed:
            ended = "memory"
        self.end_all((leader, *others))
        code = others[0] if others else leader
        if not ended and any(self._was_out_of_time(process, limits["cpu_seconds"]) for process in {code, leader}):
            ended = "time"
        if not self._were_confined({0: code, 1: leader} if others else {0: code}):
            return None
        status, processor = self.usage.get(code, (0, 0.0))
        took = time.monotonic() - started
        return {
            **{"ended": ended, "status": status, "processor_seconds": processor, "seconds": took},
            "leader_status": self.usage.get(leader, (0, 0.0))[0],
        }

    def _was_out_of_time(self, process: int, seconds: float) -> bool:
        """True where the kernel ended the process at its limit of processor time, as exactly as the kernel counts."""
        status, spent = self.usage.get(process, (0, 0.0))
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) in CPU_SIGNALS and spent > NEARLY * seconds

    def _were_confined(self, processes: dict[int, int]) -> bool:
        """False where a process, by its role, ended by itself before all its protections were in place."""
        try:
            ready = os.read(self.ready, 16)
        except BlockingIOError:
            ready = b""
        late = [process for role, process in processes.items() if role not in ready]
        # one of two that was killed on the way: the other was done, or it is the code that kills its tests
        is_alone = len(processes) == 1
        return not any(is_alone or os.WIFEXITED(self.usage.get(process, (0, 0.0))[0]) for process in late)

    def unit_tests(self, limits: dict[str, int], record: int, spec: int) -> tuple[int, int]:
        """The process of the tests, which decides the end, and that of the code. `spec` is a file with the tests."""
        here, there = (end.detach() for end in socket.socketpair())

        def prepare_code() -> tuple[tuple[int, ...], Body]:
            job = wire.receive(self.control)
            return (there,), lambda: serve(there, job["prelude"], job["sources"])

        def prepare_tests() -> tuple[tuple[int, ...], Body]:
            return (here, record, spec), lambda: suite_runner.run_tests(here, record, spec)

        code = start_job(self.confinement, limits, 0, prepare_code, self.ready_end)
        os.close(there)
        tests = start_job(self.confinement, limits, 1, prepare_tests, self.ready_end)
        os.close(here)
        return tests, code

    def calls(self, limits: dict[str, int], answers: int) -> tuple[int]:
        """The process of code that is called; what it returns is judged by the trainer."""

        def prepare() -> tuple[tuple[int, ...], Body]:
            job = wire.receive(self.control)
            return (answers,), lambda: candidate.answer_calls(answers, job["sources"], job["calls"])

        return (start_job(self.confinement, limits, 0, prepare, self.ready_end),)

    def program(self, limits: dict[str, int], output: int, errors: int) -> tuple[int]:
        """The process of a program."""

        def prepare() -> tuple[tuple[int, ...], Body]:
            job = wire.receive(self.control)
            stdin = wire.file_with(job["stdin"].encode("utf-8", "surrogatepass"))

            def body() -> None:
                for number, descriptor in enumerate((stdin, output, errors)):
                    os.dup2(descriptor, number)
                kernel.close_all_but(())
                candidate.run_program(job["source"])

            return (stdin, output, errors), body

        return (start_job(self.confinement, limits, 0, prepare, self.ready_end),)

    def session(self, limits: dict[str, int], calls: int, answers: int) -> tuple[int]:
        """The process of a session."""

        def prepare() -> tuple[tuple[int, ...], Body]:
            return (calls, answers), lambda: session_runner.serve(calls, answers)

        return (start_job(self.confinement, limits, 0, prepare, self.ready_end),)

    def _signal_all(self, leader: int, number: int) -> None:
        """Send a signal to all that a session runs; without a process namespace, to what is known of it."""
        if os.getpid() == 1:
            with contextlib.suppress(OSError):
                os.kill(-1, number)
            return
        for process in {leader, *_children()} - set(self.usage):
            with contextlib.suppress(OSError):
                os.killpg(process, number)

    def _over_limits(self, limits: dict[str, int]) -> str:
        """The limit that a job's processes exceed together: "memory" or "files"; "" where they keep to them."""
        if isolation.memory_in_use(self.confinement) > limits["memory_mb"] * MEGABYTE:
            return "memory"
        return "files" if isolation.has_too_many_files(self.confinement, limits["file_mb"]) else ""

    def watch(self, leader: int, limits: dict[str, int], job_deadline: float | None) -> str:
        """Wait for the leader's end. Why it was cut short: "time", "memory" or "files"; "" when it ended itself.

        Without a deadline it is a session: the trainer says when a call begins and what it may take, between two calls
        nothing runs, and only the trainer may end it.
        """
        is_session = job_deadline is None
        deadline, most_processor = job_deadline or math.inf, math.inf
        poll = select.poll()
        end_descriptor = _end_descriptor(leader)
        if end_descriptor is not None:
            poll.register(end_descriptor, select.POLLIN)
        # the processes of another job read from the control socket: only its hang-up concerns the worker
        poll.register(self.control, select.POLLIN if is_session else 0)
        next_look = time.monotonic() + TICK
        try:
            while True:
                now = time.monotonic()
                if now >= deadline or (is_session and _processor_seconds(leader) > most_processor):
                    return "time"
                tick = TICK if end_descriptor is not None or is_session else TICK / 10
                is_idle = deadline == math.inf and end_descriptor is not None
                events = poll.poll(None if is_idle else 1000 * min(deadline - now, tick))
                if any(descriptor == self.control for descriptor, _ in events):
                    message = self._session_message(leader, is_session)
                    if message["session"] == "end":
                        return ""
                    is_call = message["session"] == "call"
                    self._signal_all(leader, signal.SIGCONT if is_call else signal.SIGSTOP)
                    deadline = most_processor = math.inf
                    if is_call:
                        deadline = time.monotonic() + message["wall_seconds"]
                        most_processor = _processor_seconds(leader) + message["cpu_seconds"]
                if self._has_ended(leader):
                    return "ended" if is_session else ""
                if now > next_look and deadline < math.inf:
                    next_look = now + TICK
                    if over := self._over_limits(limits):
                        return over
        finally:
            if end_descriptor is not None:
                os.close(end_descriptor)

    def _session_message(self, leader: int, is_session: bool) -> dict[str, Any]:
        """What the trainer says of a session; a trainer that is gone ends this process, whatever it runs."""
        try:
            if is_session:
                return dict(wire.receive(self.control))
        except wire.ConnectionClosed:
            pass
        self.end_all((leader,))
        os._exit(0)

    def _has_ended(self, process: int) -> bool:
        if process in self.usage:
            return True
        ended, status, usage = os.wait4(process, os.WNOHANG)
        if ended:
            self.usage[ended] = (status, usage.ru_utime + usage.ru_stime)
        return bool(ended)

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
                ended, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return
            self.usage[ended] = (status, usage.ru_utime + usage.ru_stime)


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


def _processor_seconds(process: int) -> float:
    """The processor seconds of a process with all its threads; 0 where the system does not say."""
    try:
        return time.clock_gettime(~process << 3 | 2)  # what clock_getcpuclockid gives for it
    except OSError:
        return 0.0


def _end_descriptor(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends, where the system has such a thing."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            return os.pidfd_open(process)
    return None


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
    """Bytes of address space that the worker itself has."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 512 * MEGABYTE


def load_modules(names: Iterable[str]) -> None:
    """Import what jobs use, once for all of them. All jobs draw the same random numbers."""
    # random would be seeded anew in every fork, which costs as much as the fork
    register, os.register_at_fork = os.register_at_fork, lambda **_: None
    import random

    os.register_at_fork = register
    random.seed(0)
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def warm_up(sources: list[str], tests: dict[str, Any]) -> None:
    """Run a job, each side once in this process: what the interpreter learns on the way, no fork learns anew."""
    read, write = os.pipe()
    sides: tuple[Callable[[int], None], ...] = (
        lambda channel: candidate.serve(channel, "", sources),
        lambda channel: suite_runner.run_test_spec(channel, write, tests),
    )
    modules, streams = dict(sys.modules), (sys.stdout, sys.stderr)
    for here, there in (sides, sides[::-1]):
        ends = [end.detach() for end in socket.socketpair()]
        child = os.fork()
        if not child:
            os.close(ends[0])
            there(ends[1])
            os._exit(0)
        os.close(ends[1])
        with warnings.catch_warnings():
            here(ends[0])
        os.close(ends[0])
        os.waitpid(child, 0)
        sys.stdout, sys.stderr = streams
    for name in set(sys.modules) - set(modules):
        if name in (candidate.MODULE, suite_runner.MODULE):
            del sys.modules[name]
    sys.modules["__main__"] = modules["__main__"]
    os.close(read)
    os.close(write)


def main(control: int) -> None:
    """A worker's whole run: it receives its setup, reports what holds, then takes jobs until the trainer hangs up."""
    setup = wire.receive(control)
    load_modules((*PRELOAD, *setup["preload"]))
    if "pytest" in sys.modules:
        with contextlib.suppress(Exception):  # tests that need it will meet it, and say so
            suite_pytest.prepare()
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
    warm_up(*setup["warm_up"])
    # the code under test has no use for the sandbox's own modules
    for name in [name for name in sys.modules if name.partition(".")[0] == "whet"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    gc.disable()
    wire.send(control, {"holds": confinement.holds, "why": confinement.why})
    SandboxWorker(control, confinement).run()
