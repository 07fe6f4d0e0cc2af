"""Hostile programs in the sandbox, at every level of isolation that this machine can offer.

    python -m benchmarks.trust sandbox --full
    python -m benchmarks.trust.sandbox --level landlock --only "memory: pipes"   # one level, some programs, in detail

The levels are real: a seccomp filter around an unprivileged process refuses what shall be missing (`_weaker`). Root is
that of a user namespace and can do nothing to the machine: none of these programs is ever started by the machine's own.
A program is held when nothing outside changed, no secret came out, no packet arrived, memory and time stayed within
bounds, nothing survived it, and the same worker then does two ordinary jobs properly. Destructive programs aim at a
folder made for the test.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.trust._weaker import ROOT, environment, interpreter

PROGRAMS = Path(__file__).parent / "corpus/sandbox/programs.txt"
WEAKER = Path(__file__).parent / "_weaker.py"
LEVELS = {  # name: (protections that the kernel refuses, title)
    "as root": (ROOT, "namespaces and landlock, started by root of a container"),
    "both": ("", "namespaces and landlock, unprivileged"),
    "namespaces": ("landlock", "namespaces without landlock"),
    "landlock": ("namespaces", "landlock without namespaces"),
}
MEMORY_MB = 320
MOST_MB = 1.5 * MEMORY_MB  # without a cgroup a tree is looked at every 50 ms, and grows in between
LATE_SECONDS = 6.0  # beyond the wall-clock limit, on a busy machine
QUICK = 6  # every so many programs are the quick cut
TOKEN_VARIABLE = "WHET_TRUST_SECRET"

PRELUDE = """
import os
def escaped(what="", *more):
    print("ESCAPED", what, flush=True)
def tried(name, act):
    try:
        return act()
    except Exception:
        return None
def kernel_memory(size):
    print("KERNEL", size, flush=True)
def system_call(name, *arguments):
    import ctypes, platform
    number = CALLS[name][("x86_64", "aarch64").index(platform.machine())]
    if number is None:
        return -1
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc.syscall(ctypes.c_long(number), *wide)
"""


@dataclass(frozen=True)
class HostileProgram:
    kind: str
    name: str
    source: str


@dataclass
class Outcome:
    """What came of one program; `broken` says what did not hold."""

    kind: str
    name: str
    broken: list[str] = field(default_factory=list)
    peak_mb: float = 0.0


def hostile_programs() -> list[HostileProgram]:
    _, *parts = ("\n" + PROGRAMS.read_text(encoding="utf-8")).split("\n=== ")
    found = []
    for part in parts:
        title, _, source = part.partition("\n")
        kind, _, name = title.partition(": ")
        found.append(HostileProgram(kind, name, source + "\n"))
    return found


class Surroundings:
    """What the programs aim at: a canary folder, sockets that must stay silent, a secret in this process."""

    def __init__(self, folder: Path) -> None:
        self.token = secrets.token_hex(16)
        os.environ[TOKEN_VARIABLE] = self.token
        self.canary = folder / "canary"
        folder.chmod(0o777)
        self._fill()
        self.abstract = f"whet-trust-{secrets.token_hex(4)}"
        places = {"stream": str(folder / "stream"), "datagram": str(folder / "datagram")}
        self.sockets = {
            "TCP": _bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "UDP": _bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "Unix stream": _bound(socket.AF_UNIX, socket.SOCK_STREAM, places["stream"]),
            "Unix datagram": _bound(socket.AF_UNIX, socket.SOCK_DGRAM, places["datagram"]),
            "abstract": _bound(socket.AF_UNIX, socket.SOCK_DGRAM, "\0" + self.abstract),
        }
        for place in places.values():
            os.chmod(place, 0o777)
        self.names = {
            **{"SECRET": str(self.canary / "secret"), "CANARY": str(self.canary), "ABSTRACT": self.abstract},
            **{"PORT": self.sockets["TCP"].getsockname()[1], "UDP_PORT": self.sockets["UDP"].getsockname()[1]},
            **{"STREAM": places["stream"], "DATAGRAM": places["datagram"], "PARENT": os.getpid(), "CALLS": _calls()},
        }

    def _fill(self) -> None:
        """Make the canary folder, or make it anew after damage."""
        from whet.reward.sandbox.isolation import empty_folder

        self.canary.mkdir(exist_ok=True)
        empty_folder(str(self.canary))
        for name in ("secret", "other", "inner/deep"):
            file = self.canary / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(self.token)
            # open to every user: what is tested is the sandbox, not the permissions of the files
            file.chmod(0o666)
        for each in (self.canary, self.canary / "inner"):
            each.chmod(0o777)
        with contextlib.suppress(OSError):
            os.setxattr(self.canary / "secret", "user.mark", self.token.encode())
        self.digest = self._digest()

    def _digest(self) -> str:
        lines = []
        for path in sorted([self.canary, *self.canary.rglob("*")]):
            found = path.lstat()
            about = [str(path), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns, found.st_nlink]
            with contextlib.suppress(OSError):
                about += [(name, os.getxattr(path, name).hex()) for name in sorted(os.listxattr(path))]
            if path.is_file():
                about.append(path.read_bytes().hex())
            lines.append(repr(about))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def source(self, program: HostileProgram, worker: int) -> str:
        names = {**self.names, "WORKER": worker}
        return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + PRELUDE + program.source

    def damage(self) -> list[str]:
        """What changed or arrived since the beginning."""
        try:
            found = [] if self._digest() == self.digest else ["the canary folder changed"]
        except OSError as error:
            found = [f"the canary folder cannot be read: {error.strerror}"]
        if found:
            self._fill()
        for name, each in self.sockets.items():
            with contextlib.suppress(BlockingIOError):
                each.accept() if each.type == socket.SOCK_STREAM else each.recvfrom(100)
                found.append(f"{name}: something arrived")
        return found

    def close(self) -> None:
        for each in self.sockets.values():
            each.close()
        os.environ.pop(TOKEN_VARIABLE, None)


def _bound(family: int, kind: int, address: object) -> socket.socket:
    made = socket.socket(family, kind)
    made.bind(address)
    made.setblocking(False)
    if kind == socket.SOCK_STREAM:
        made.listen()
    return made


def _calls() -> dict[str, tuple[int | None, int | None]]:
    from whet.reward.sandbox import seccomp

    tables = (seccomp.REFUSED, seccomp.CHANGES, seccomp.SIGNALS, seccomp.ATTRIBUTES)
    return {name: pair for table in tables for name, pair in table.items()} | {"clone": seccomp.CLONE}


class MemoryPeak:
    """The most memory that the processes below some others, and the machine's shared memory, took meanwhile."""

    def __init__(self, roots: Sequence[int]) -> None:
        self.roots, self.peak, self._ended = set(roots), 0, threading.Event()
        self._shared = _shared_memory()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self.peak = max(self.peak, self._private() + _shared_memory() - self._shared)

    def _private(self) -> int:
        parents, sizes = {}, {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    lines = Path(f"/proc/{entry}/status").read_bytes().split(b"\n")
                    fields = dict(line.split(b":", 1) for line in lines if b":" in line)
                    parents[int(entry)] = int(fields[b"PPid"])
                    sizes[int(entry)] = int(fields.get(b"RssAnon", b"0").split()[0]) * 1024
        total = 0
        for process, size in sizes.items():
            above = process
            while above in parents and above not in self.roots:
                above = parents[above]
            total += size if above in self.roots else 0
        return total


def _shared_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Shmem:")) * 1024


def run_programs(
    programs: Sequence[HostileProgram], without: Sequence[str] = ()
) -> tuple[list[Outcome], frozenset[str]]:
    """Every program, each followed by ordinary jobs of the same worker; and the isolation there was."""
    from whet.reward.sandbox.pool import Sandbox
    from whet.reward.sandbox.requirement import isolation_given

    with tempfile.TemporaryDirectory(prefix="whet-trust-") as folder, Sandbox(1, without=without) as pool:
        around = Surroundings(Path(folder))
        try:
            pool.start()
            outcomes = [_run_one(program, pool, around) for program in programs]
        finally:
            around.close()
        return outcomes, isolation_given(pool.holds)


def _run_one(program: HostileProgram, pool: object, around: Surroundings) -> Outcome:
    from whet.reward.sandbox.job import Limits, ProgramJob
    from whet.reward.sandbox.pool import Sandbox
    from whet.reward.sandbox.protections import num_jobs_left

    assert isinstance(pool, Sandbox)
    is_memory = program.kind == "memory"
    limits = Limits(
        cpu_seconds=1,
        wall_seconds=2.5,
        memory_mb=MEMORY_MB if is_memory else 128,
        file_mb=4,
        processes=8,
        output_kb=256,
    )
    pool.start()
    worker = pool.workers[0].process.pid
    outcome = Outcome(program.kind, program.name)
    started = time.monotonic()
    watch = MemoryPeak([worker]) if is_memory else contextlib.nullcontext()
    with watch as memory:
        (found,) = pool.run([ProgramJob(around.source(program, worker), "", limits)])
    took = time.monotonic() - started
    said = found.stdout + found.stderr
    broken = outcome.broken
    if found.is_lost:
        broken.append("the worker was lost")
    if pool.workers and pool.workers[0].process.pid != worker:
        broken.append("the worker was replaced")
    if around.token in said:
        broken.append("the secret came out")
    broken += [line.removeprefix("ESCAPED ")[:80] for line in found.stdout.splitlines() if line.startswith("ESCAPED")]
    if took > limits.wall_seconds + LATE_SECONDS:
        broken.append(f"took {took:.1f} s")
    if memory is not None:
        kernel = [int(line.split()[1]) for line in found.stdout.splitlines() if line.startswith("KERNEL ")]
        outcome.peak_mb = (memory.peak + max(kernel, default=0)) / 2**20
        if outcome.peak_mb > MOST_MB:
            broken.append(f"peak of {outcome.peak_mb:.0f} MB at a limit of {MEMORY_MB}")
    if num_jobs_left(pool):
        broken.append("processes are left")
    broken += around.damage()
    broken += _next_jobs(pool, around)
    return outcome


def _next_jobs(pool: object, around: Surroundings) -> list[str]:
    """What the same worker then does wrong: a program, and unit tests of which one fails."""
    from whet.reward.sandbox.job import ProgramJob, UnitTestJob
    from whet.reward.sandbox.pool import Sandbox

    assert isinstance(pool, Sandbox)
    look = "import os\nkept = 'left-by-another-' + 'job'\nprint(6 * 7, sorted(os.listdir('.')), input())"
    tests = {"form": "assertions", "tests": ["assert f(1) == 2", "assert f(1) == 3"]}
    program, exam = pool.run([ProgramJob(look, "given\n"), UnitTestJob(("def f(x): return x + 1",), tests)])
    found = []
    if (program.stdout, program.exit_code, program.ended) != ("42 [] given\n", 0, ""):
        found.append(f"the next program gives {program.stdout[:40]!r} {program.stderr[:80]!r} {program.ended}")
    if exam.passed != (True, False):
        found.append(f"the next unit tests give {exam.passed} {exam.ended}")
    return found


def run_level(level: str, programs: Sequence[HostileProgram]) -> list[Outcome] | str:
    """The outcomes at one level, in a process of its own; or why there are none."""
    missing, _ = LEVELS[level]
    program = interpreter()
    if missing == ROOT and os.geteuid() != 0:
        return "only root can hand out the users that a container's root is over"
    if program is None:
        return "no interpreter that an unprivileged user can start"
    before = [sys.executable, "-P", str(WEAKER), missing, "--"]
    command = [*before, program, "-m", "benchmarks.trust.sandbox", "--level", level, "--here"]
    names = json.dumps([f"{each.kind}: {each.name}" for each in programs])
    root = str(Path(__file__).parents[2])
    given = {**environment(), "TMPDIR": "/tmp"}
    given["PYTHONPATH"] = os.pathsep.join([root, str(Path(root) / "src"), given["PYTHONPATH"]])
    done = subprocess.run(command, input=names, capture_output=True, text=True, env=given, cwd="/")
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it was killed"])[-1]
    return [Outcome(**each) for each in json.loads(done.stdout)]


def measure(full: bool) -> list[dict]:
    programs = hostile_programs()
    chosen = programs if full else programs[::QUICK]
    rows = []
    for level, (_, title) in LEVELS.items():
        outcomes = run_level(level, chosen)
        if isinstance(outcomes, str):
            rows.append({"what": title, "tried": 0, "held": 0, "note": f"not offered here: {outcomes}"})
            continue
        failed = [each for each in outcomes if each.broken]
        peaks = [each.peak_mb for each in outcomes if each.kind == "memory"]
        notes = [f"{each.kind}: {each.name} ({each.broken[0]})" for each in failed]
        notes += [f"memory peak {max(peaks):.0f} MB at a limit of {MEMORY_MB}"] if peaks else []
        rows.append(
            {"what": title, "tried": len(outcomes), "held": len(outcomes) - len(failed), "note": "; ".join(notes)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", choices=LEVELS, default="both")
    parser.add_argument("--only", default="", help="programs whose title holds this")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:  # the level's own process: titles on standard input, outcomes on standard output
        titles = set(json.load(sys.stdin))
        chosen = [each for each in hostile_programs() if f"{each.kind}: {each.name}" in titles]
        outcomes, given = run_programs(chosen)
        wanted = {"namespaces", "landlock"} - {LEVELS[options.level][0]}
        if given != wanted:
            raise SystemExit(f"this machine gives {', '.join(sorted(given)) or 'nothing'}")
        print(json.dumps([vars(each) for each in outcomes]))
        return
    chosen = [each for each in hostile_programs() if options.only in f"{each.kind}: {each.name}"]
    outcomes = run_level(options.level, chosen)
    if isinstance(outcomes, str):
        raise SystemExit(outcomes)
    for each in outcomes:
        peak = f"  {each.peak_mb:.0f} MB" if each.peak_mb else ""
        print(f"{'held  ' if not each.broken else 'BROKEN'}  {each.kind}: {each.name}{peak}  {'; '.join(each.broken)}")
    print(f"{sum(not each.broken for each in outcomes)} of {len(outcomes)} held")


if __name__ == "__main__":
    main()
