"""A cgroup of a worker's jobs: the one limit on memory and processes that counts a whole tree, whatever it does.

Runs inside the sandbox's own processes: only the standard library may be imported here. It is used where a cgroup v2
folder above this process already hands out the memory and pids controllers and may be written to: on a machine of
one's own as root, or under a systemd user unit. Nothing is changed but the folder made here. The process that stays
behind the worker removes it (`isolation`), also when the trainer was killed; a folder that a killed worker left is
removed by the next one, which can tell by the name that its maker is gone.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

NEEDED = frozenset({"memory", "pids"})
PREFIX = "whet-sandbox"
MEGABYTE = 1 << 20
SLACK = 16 * MEGABYTE  # page tables, pipes, and what the interpreter itself touches


@dataclass(frozen=True)
class JobGroup:
    """A folder of the cgroup file system, by descriptors: the paths are out of reach inside the private root."""

    parent: int
    name: str
    folder: int

    def write(self, file: str, value: int) -> None:
        """Set one of its files."""
        descriptor = os.open(file, os.O_WRONLY, dir_fd=self.folder)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)

    def join(self, limits: dict[str, int]) -> None:
        """Bring this process in, and all it will start."""
        self.write("memory.max", (limits["memory_mb"] + limits["file_mb"]) * MEGABYTE + SLACK)
        self.write("pids.max", limits["processes"] + 1)  # the test runner counts too
        self.write("cgroup.procs", 0)

    def num_killed(self) -> int:
        """Processes that the kernel ended so far because the group was out of memory."""
        descriptor = os.open("memory.events", os.O_RDONLY, dir_fd=self.folder)
        try:
            lines = os.read(descriptor, 4096).decode().splitlines()
        finally:
            os.close(descriptor)
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def remove(self) -> None:
        """Remove the control group."""
        with contextlib.suppress(OSError):
            os.rmdir(self.name, dir_fd=self.parent)


def make_group(root: str = "/", needed: frozenset[str] = NEEDED) -> JobGroup:
    """A new folder below the nearest one that hands out what is needed; OSError with the reason where there is none."""
    reasons = []
    for folder in folders_above(root):
        try:
            if missing := needed - set(_text(os.path.join(folder, "cgroup.subtree_control")).split()):
                raise OSError(0, f"{folder} does not hand out {' and '.join(sorted(missing))}")
            parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return _new_group(parent, needed)
            except OSError:
                os.close(parent)
                raise
        except OSError as error:
            reasons.append(error.strerror or str(error))
    raise OSError(0, reasons[0] if reasons else "no cgroup v2")


def _new_group(parent: int, needed: frozenset[str]) -> JobGroup:
    _remove_left_ones(parent)
    name = f"{PREFIX}-{_maker(os.getpid())}"
    os.mkdir(name, dir_fd=parent)
    try:
        group = JobGroup(parent, name, os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent))
        if "memory" in needed:
            with contextlib.suppress(OSError):  # without swap there is no such file
                group.write("memory.swap.max", 0)
            group.write("memory.oom.group", 1)
        return group
    except OSError:
        os.rmdir(name, dir_fd=parent)
        raise


def folders_above(root: str = "/") -> list[str]:
    """The cgroup v2 folder of this process and those above it, as far as they are visible."""
    path = next((line[3:] for line in _text(f"{root}proc/self/cgroup").splitlines() if line.startswith("0::")), None)
    mount_point = None
    for line in _text(f"{root}proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[:1] == ["cgroup2"] and before.split()[3] == "/":
            mount_point = before.split()[4]
    if path is None or mount_point is None or ".." in path:
        return []
    parts = [part for part in path.split("/") if part]
    return [os.path.join(mount_point, *parts[:count]) for count in range(len(parts), -1, -1)]


def _maker(process: int) -> str:
    """Names a process for good: numbers are used again, start times and namespaces tell them apart."""
    started = _text(f"/proc/{process}/stat").rpartition(")")[2].split()[19]
    space = os.stat("/proc/self/ns/pid").st_ino
    return f"{space}-{process}-{started}"


def _remove_left_ones(parent: int) -> None:
    """Remove the empty folders of workers that are gone; those of other process namespaces cannot be told."""
    own = _maker(os.getpid()).partition("-")[0]
    for name in os.listdir(parent):
        words = name.removeprefix(f"{PREFIX}-").split("-")
        if not name.startswith(f"{PREFIX}-{own}-") or len(words) != 3:
            continue
        try:
            is_alive = _maker(int(words[1])) == "-".join(words)
        except (OSError, ValueError, IndexError):
            is_alive = False
        if not is_alive:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=parent)


def _text(path: str) -> str:
    with open(path) as file:
        return file.read()
