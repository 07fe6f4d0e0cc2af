"""Which protections hold on this machine: each is tried by an act it must stop, none is assumed."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from whet.reward.sandbox.job import REASONS, JobResult, Limits, ProgramJob
from whet.reward.sandbox.pool import Sandbox

SMALL = Limits(cpu_seconds=1, wall_seconds=20.0, memory_mb=64, file_mb=1, processes=6, output_kb=64)
STOPPED = "stopped"  # what a probe prints when its act was refused

NETWORK = """
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=2).close()
except OSError:
    print("stopped")
"""
READING = """
try:
    open({path!r}).read()
except OSError:
    print("stopped")
"""
WRITING = """
import os
done = 0
for act in (lambda: open({path!r}, "a").write("x"), lambda: os.remove({path!r}), lambda: os.mkdir({path!r} + ".d")):
    try:
        act()
        done += 1
    except OSError:
        pass
print("stopped" if not done else "done")
"""
MEMORY = """
try:
    bytearray(200 << 20)
except MemoryError:
    print("stopped")
"""
FILE_SIZE = """
try:
    with open("large", "wb") as file:
        file.write(bytes(8 << 20))
except OSError:
    print("stopped")
"""
PROCESSES = """
import os, time
made = 0
for _ in range(40):
    try:
        child = os.fork()
    except OSError:
        break
    if not child:
        time.sleep(5)
        os._exit(0)
    made += 1
print("stopped" if made < 40 else "made", flush=True)
os._exit(0)
"""
SURVIVOR = """
import os, time
try:
    child = os.fork()
    if not child:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(30)
        os._exit(0)
    os.waitpid(child, 0)
except OSError:
    pass
print("stopped")
"""
BARE = """
import os
given = set(os.environ) - {known!r}
opened = []
for number in range(3, 256):
    try:
        os.fstat(number)
        opened.append(number)
    except OSError:
        pass
print("stopped" if not given and not opened and os.listdir(".") == [] else (given, opened))
"""
KNOWN = {
    *("PYTHONHASHSEED", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PATH", "HOME"),
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
}


@dataclass(frozen=True)
class Protections:
    """What the kernel granted (`mechanisms`), and what hostile acts met (`effects`)."""

    mechanisms: Mapping[str, bool]
    effects: Mapping[str, bool]

    def missing(self) -> tuple[str, ...]:
        """The effects that do not hold here."""
        return tuple(name for name, holds in self.effects.items() if not holds)

    def summary(self) -> str:
        """Lines for a person."""
        lines = []
        for title, protections in (("stopped", self.effects), ("granted by the kernel", self.mechanisms)):
            held = ", ".join(sorted(name for name, holds in protections.items() if holds))
            lacking = ", ".join(sorted(name for name, holds in protections.items() if not holds))
            lines.append(f"{title}: {held or 'nothing'}; not: {lacking or 'nothing'}")
        return "\n".join(lines)


def active_protections(sandbox: Sandbox | None = None) -> Protections:
    """Try every protection on this machine; takes a second or two."""
    if sandbox is None:
        with Sandbox(min(2, os.cpu_count() or 1)) as made:
            return active_protections(made)
    with _surroundings() as (secret, other, port):
        programs = {
            "files hidden": READING.format(path=secret),
            "files unchangeable": WRITING.format(path=other),
            "no network": NETWORK.format(port=port),
            "memory limit": MEMORY,
            "file size limit": FILE_SIZE,
            "process limit": PROCESSES,
            "bare start": BARE.format(known=KNOWN),
        }
        jobs = {name: ProgramJob(source, limits=SMALL) for name, source in programs.items()}
        jobs["processor time limit"] = ProgramJob("while True: pass", limits=replace(SMALL, cpu_seconds=0.2))
        jobs["wall clock limit"] = ProgramJob("import time; time.sleep(60)", limits=replace(SMALL, wall_seconds=0.5))
        jobs["output limit"] = ProgramJob("while True: print('x' * 1000)", limits=SMALL)
        results = dict(zip(jobs, sandbox.run(list(jobs.values())), strict=True))
    effects = {name: JUDGED.get(name, _is_stopped)(result) for name, result in results.items()}
    sandbox.run([ProgramJob(SURVIVOR, limits=SMALL)] * sandbox.size)
    effects["whole tree killed"] = num_jobs_left(sandbox) == 0
    return Protections(dict(sandbox.holds), effects)


def _is_stopped(result: JobResult) -> bool:
    return result.stdout.strip() == STOPPED


JUDGED: Mapping[str, Callable[[JobResult], bool]] = {
    "processor time limit": lambda result: result.is_out_of_time and result.exit_code < 0,
    "wall clock limit": lambda result: result.is_out_of_time,
    "output limit": lambda result: result.ended == REASONS["output"],
}


@contextlib.contextmanager
def _surroundings() -> Iterator[tuple[str, str, int]]:
    """A file that must stay secret, one that must stay as it is, and a port that must stay out of reach."""
    with tempfile.TemporaryDirectory(prefix="whet-probe-") as folder, socket.socket() as listener:
        # open to every user: what is tested is the sandbox, not the file's own permissions
        os.chmod(folder, 0o777)
        files = [Path(folder) / name for name in ("secret", "other")]
        for file in files:
            file.write_text("secret")
            file.chmod(0o666)
        listener.bind(("127.0.0.1", 0))
        listener.listen(4)
        yield str(files[0]), str(files[1]), listener.getsockname()[1]


def num_jobs_left(sandbox: Sandbox) -> int:
    """Processes that still run below idle workers, counted from outside."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat") if Path("/proc/self/stat").exists() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_bytes().rpartition(b")")[2].split()[1])
            parents.setdefault(parent, []).append(int(entry.parent.name))
    if not parents:
        return 0 if sandbox.holds.get("process_namespace") else 1  # nothing can be counted: not known to hold
    workers = [worker.process.pid for worker in sandbox.idle]
    inner = [child for worker in workers for child in parents.get(worker, [])]
    return sum(len(parents.get(process, [])) for process in inner)
