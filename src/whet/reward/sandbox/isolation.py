"""What a worker puts between the machine and the code it runs: namespaces, a root of its own, limits, filters.

Runs inside the sandbox's own processes: only the standard library may be imported here. Everything is tried. What
the kernel refuses is left out and reported; what held in the trial run but fails in a job ends the job.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from whet.reward.sandbox import cgroup, kernel, seccomp

MEGABYTE = 1 << 20
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
# not /dev/zero: a shared mapping of it is memory that no process shows
DEVICES = ("/dev/null", "/dev/full", "/dev/random", "/dev/urandom")
FIRST_SPARE_USER = 0x70000000  # user numbers nobody has; a worker adds its own process number
NOBODY = 65534
NAMESPACES = {
    **{"mount_namespace": kernel.NEW_MOUNTS, "process_namespace": kernel.NEW_PIDS},
    **{"network_namespace": kernel.NEW_NETWORK, "ipc_namespace": kernel.NEW_IPC},
}
STACK = 64 * MEGABYTE
MOST_FILES = 4096  # of one job
COUNTED = (b"RssAnon", b"RssShmem", b"VmSwap")  # of a process's status: kilobytes


@dataclass
class Confinement:
    """What confines a worker, and what its jobs need to know about it."""

    folder: str  # the jobs' working directory
    without: frozenset[str] = frozenset()  # of "privilege", "namespaces", "landlock", "seccomp": not to be used
    holds: dict[str, bool] = field(default_factory=dict)
    why: dict[str, tuple[int, str]] = field(
        default_factory=dict
    )  # step that failed: (error number or -1, what it said)
    users: tuple[int, ...] = ()  # spare user numbers: of the code under test, of the test runner
    visible: tuple[str, ...] = ()
    rules: int | None = None  # landlock
    processes: int | None = None  # a descriptor of /proc that shows this worker's jobs
    group: cgroup.JobGroup | None = None  # of its jobs
    address_space: int = 0  # bytes the interpreter takes before any job
    mounted: tuple[int, int] | None = None  # megabytes of the working directory's file system, and its birth in ns
    counts_processes: bool = False  # the kernel's limit on processes is about this worker alone; else none may fork
    filter: bytes | None = None  # seccomp, where it is the same for every job


def tried(confinement: Confinement, name: str, step: Callable[[], Any]) -> bool:
    """Try one protection and note whether it holds here."""
    confinement.holds[name] = _works(confinement, name, step)
    return confinement.holds[name]


def _works(confinement: Confinement, name: str, step: Callable[[], Any]) -> bool:
    try:
        step()
    except (OSError, KeyError, ValueError) as error:
        confinement.why[name] = (getattr(error, "errno", None) or 0, getattr(error, "strerror", None) or str(error))
        return False
    confinement.why.pop(name, None)
    return True


def _leave_out(confinement: Confinement, name: str, *steps: str) -> None:
    confinement.holds |= dict.fromkeys(steps, False)
    confinement.why[name] = (-1, "left out, as `without` says")


def visible_paths() -> tuple[str, ...]:
    """What code may read: the interpreter, its packages, the system's libraries; no path lies inside another.

    The environment names more folders only for workers whose code is trusted.
    """
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    prefixes |= {path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)}
    wanted = {*SYSTEM_FOLDERS, *DEVICES, *prefixes, *map(os.path.realpath, prefixes)}
    chosen: list[str] = []
    for path in sorted(wanted, key=lambda name: (len(name), name)):
        inside = any(path.startswith(other + "/") for other in chosen if not os.path.islink(other))
        if path != "/" and os.path.exists(path) and not inside:
            chosen.append(path)
    return tuple(chosen)


def separate(confinement: Confinement) -> None:
    """Leave the machine's namespaces. Ends in a new process: number 1 of a process namespace where there is one."""
    if not kernel.IS_LINUX:
        return
    number = os.getpid()
    _make_group(confinement)
    if "namespaces" in confinement.without:
        _leave_out(confinement, "namespaces", *NAMESPACES)
    else:
        _leave_namespaces(confinement)
    _continue_in_child(confinement)
    confinement.holds["process_namespace"] = os.getpid() == 1
    if not confinement.holds["process_namespace"]:
        tried(confinement, "orphans_adopted", lambda: kernel.control(kernel.SET_CHILD_SUBREAPER, 1))
    if os.geteuid() == 0 and not confinement.holds.get("user_namespace", False):
        _choose_users(confinement, number)


def _leave_namespaces(confinement: Confinement) -> None:
    parts = NAMESPACES
    own_user, own_group = os.geteuid(), os.getegid()
    before = {name: _namespace_link(name) for name in parts}
    everything = kernel.NEW_UTS | sum(parts.values())
    is_privileged = own_user == 0 and "privilege" not in confinement.without
    done = is_privileged and _works(confinement, "namespaces", lambda: kernel.unshare(everything))
    if not done and tried(confinement, "user_namespace", lambda: kernel.unshare(kernel.NEW_USER)):
        # not number 0 inside: that one would get its capabilities back when it starts a program
        for file, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{own_user or 1000} {own_user} 1"),
            ("gid_map", f"{own_group or 1000} {own_group} 1"),
        ):
            with contextlib.suppress(OSError), open(f"/proc/self/{file}", "w") as written:
                written.write(line)
        done = _works(confinement, "namespaces", lambda: kernel.unshare(everything))
    for name, flag in parts.items():
        if not done:
            _succeeds(lambda flag=flag: kernel.unshare(flag))  # type: ignore[misc]
        confinement.holds[name] = _namespace_link(name) != before[name]
    # the kernel counts no processes of the machine's root, whatever it is called inside
    confinement.counts_processes = confinement.holds.get("user_namespace", False) and own_user != 0


def _namespace_link(name: str) -> str:
    kind = {"mount": "mnt", "process": "pid_for_children", "network": "net", "ipc": "ipc"}[name.split("_")[0]]
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _succeeds(step: Callable[[], Any]) -> bool:
    try:
        step()
    except OSError:
        return False
    return True


def _continue_in_child(confinement: Confinement) -> None:
    child = os.fork()
    if child:
        # stays behind as the process the trainer knows: its end takes the child along
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        kernel.close_all_but(() if confinement.group is None else (confinement.group.parent,))
        _, status = os.waitpid(child, 0)
        if confinement.group is not None:
            confinement.group.remove()
        # a trainer that was killed removes nothing; inside a private root there is no such path
        with contextlib.suppress(OSError):
            scratch = os.path.dirname(confinement.folder)
            empty_folder(scratch)
            os.rmdir(scratch)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    confinement.holds["dies_with_parent"] = _succeeds(kernel.die_with_parent)


def _make_group(confinement: Confinement) -> None:
    def make() -> None:
        confinement.group = cgroup.make_group()

    if "cgroup" in confinement.without:
        _leave_out(confinement, "cgroup", "cgroup")
    else:
        tried(confinement, "cgroup", make)


def _choose_users(confinement: Confinement, number: int) -> None:
    """Spare users for the jobs of a worker that is root; none where they could not read the interpreter's files.

    `number` tells workers apart: the kernel counts the processes of a user, whichever worker they belong to.
    """
    first = FIRST_SPARE_USER + 2 * (number % 0x01000000)

    def attempt() -> None:
        for users in ((first, first + 1), (NOBODY, NOBODY)):
            os.setresuid(users[0], 0, 0)
            try:
                readable = confinement.holds.get("mount_namespace", False) or os.access(os.__file__, os.R_OK)
            finally:
                os.setresuid(0, 0, 0)
            if readable:
                confinement.users, confinement.counts_processes = users, users[0] != NOBODY
                return
        raise OSError(0, "no user can read the interpreter")

    tried(confinement, "separate_user", attempt)
    if confinement.counts_processes and not confinement.holds.get("process_namespace"):
        with contextlib.suppress(OSError):  # nobody else has these users: the machine's /proc shows what the jobs hold
            confinement.processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)


def build_root(confinement: Confinement, scratch: str) -> None:
    """A root with the visible paths, read-only, and a working directory; the machine's files are gone from view."""
    confinement.visible = visible_paths()
    if not confinement.holds.get("mount_namespace", False):
        return
    root = os.path.join(scratch, "root")

    def build() -> None:
        os.makedirs(root, exist_ok=True)
        kernel.mount("none", "/", "", kernel.RECURSIVE | kernel.PRIVATE)
        flags = kernel.NO_SUID | kernel.NO_DEVICES
        kernel.mount("tmpfs", root, "tmpfs", flags, "mode=0755,size=4m")
        for path in confinement.visible:
            _show(path, root + path)
        os.makedirs(f"{root}/jobs/now")
        _mount_processes(confinement, f"{root}/jobs/now")
        kernel.enter_root(root)
        kernel.mount("none", "/", "", kernel.BIND | kernel.REMOUNT | kernel.READ_ONLY | flags)
        confinement.folder = "/jobs/now"

    tried(confinement, "private_root", build)


def _show(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and not os.path.isabs(os.readlink(path)):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        with open(target, "w"):
            pass
    kernel.mount(path, target, "", kernel.BIND | kernel.RECURSIVE)
    if path not in DEVICES:
        kernel.make_read_only(target)


def _mount_processes(confinement: Confinement, mount_point: str) -> None:
    """Keep a descriptor of /proc for counting memory, and show no /proc to the jobs."""
    with contextlib.suppress(OSError):
        kernel.mount("proc", mount_point, "proc", kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXEC)
        confinement.processes = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY)
        kernel.unmount(mount_point)


def prepare_rules(confinement: Confinement) -> None:
    """Prepare the Landlock rules and the system-call filter that `confine` applies."""
    if not kernel.IS_LINUX:
        return
    writable = os.path.dirname(confinement.folder) if confinement.holds.get("private_root") else confinement.folder
    os.makedirs(confinement.folder, exist_ok=True)
    readable = [path for path in confinement.visible if os.path.exists(path)]

    def prepare() -> None:
        confinement.rules = kernel.landlock_rules(readable, [writable, "/dev/null"])

    if "landlock" in confinement.without:
        _leave_out(confinement, "landlock", "landlock")
    else:
        tried(confinement, "landlock", prepare)
    if confinement.holds.get("process_namespace") and kernel.MACHINE in seccomp.ARCHITECTURE:
        confinement.filter = call_filter(confinement)
        if confinement.holds.get("private_root") and "seccomp" not in confinement.without:
            with contextlib.suppress(OSError):  # then every job installs the whole one
                _filter_worker()
                confinement.filter = seccomp.rest_program(kernel.MACHINE, confinement.counts_processes)


def _filter_worker() -> None:
    """Refuse to the worker, and so to all its jobs, what neither needs."""
    kernel.control(kernel.SET_NO_NEW_PRIVILEGES, 1)
    kernel.apply_filter(seccomp.filter_program(kernel.MACHINE, None, may_fork=True, spared=seccomp.WORKER_CALLS))


def renew_folder(confinement: Confinement, megabytes: int) -> None:
    """An empty working directory. A fresh file system where possible: no tree is too hostile to remove."""
    owner = confinement.users[0] if confinement.users else os.geteuid()
    if confinement.holds.get("private_root"):
        # a folder nobody touched is used again: mounts take a lock that all workers share
        if _is_untouched(confinement, megabytes):
            return
        if confinement.mounted is not None:
            kernel.unmount(confinement.folder)
            confinement.mounted = None
        group = owner if confinement.users else os.getegid()
        mode = _folder_mode(confinement)
        options = f"mode={mode:04o},size={megabytes}m,nr_inodes={MOST_FILES},uid={owner},gid={group}"
        kernel.mount("tmpfs", confinement.folder, "tmpfs", kernel.NO_SUID | kernel.NO_DEVICES, options)
        confinement.mounted = (megabytes, os.stat(confinement.folder).st_ctime_ns)
        return
    # emptied, not replaced: the landlock rules hold for this very folder
    os.makedirs(confinement.folder, exist_ok=True)
    empty_folder(confinement.folder)
    with contextlib.suppress(OSError):
        os.chown(confinement.folder, owner, owner if confinement.users else -1)
        os.chmod(confinement.folder, _folder_mode(confinement))


def _folder_mode(confinement: Confinement) -> int:
    return 0o770 if confinement.users else 0o700


def has_too_many_files(confinement: Confinement, megabytes: int) -> bool:
    """True where the files of a job exceed what a file system of its own would hold; with one, the kernel counts."""
    if confinement.holds.get("private_root"):
        return False
    entries, size, folders = 0, 0, [confinement.folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as listed:
                for entry in listed:
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entries > MOST_FILES or size > megabytes * MEGABYTE:
                        return True
        except OSError as error:  # removed or closed meanwhile by the job
            if error.errno == errno.ENAMETOOLONG:
                return True
    return False


def _is_untouched(confinement: Confinement, megabytes: int) -> bool:
    status = os.stat(confinement.folder)
    # the clock of file systems is coarse: a quick job may leave the time as it was, never the rest as well
    return (
        confinement.mounted == (megabytes, status.st_ctime_ns)
        and stat.S_IMODE(status.st_mode) == _folder_mode(confinement)
        and not os.listdir(confinement.folder)
        and not os.listxattr(confinement.folder)
    )


def empty_folder(folder: str) -> None:
    """Remove everything in it, however deep and whatever its modes; links are removed, never followed."""
    with contextlib.suppress(OSError):
        if not os.path.islink(folder):
            os.chmod(folder, 0o700)
    top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        names = itertools.count()
        unused = f".{os.urandom(8).hex()}"  # begins no name in there
        while folders := _remove_files(top):
            for name in folders:
                # one level of it: its own folders move up, so that no path gets long and no call nests
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
                try:
                    for nested in _remove_files(inner):
                        os.rename(nested, f"{unused}-{next(names)}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)


def _remove_files(folder: int) -> list[str]:
    """Remove what is no folder; the names of the folders, which can be entered afterwards."""
    folders = []
    for name in os.listdir(folder):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return folders


def confine(confinement: Confinement, limits: dict[str, int], descriptors: Iterable[int], role: int) -> dict[str, bool]:
    """Give up everything a job does not need; `role` 0 is the code under test, 1 the test runner.

    Returns which steps held. The order matters: users before capabilities, the filter last.
    """
    held: dict[str, bool] = {}

    def step(name: str, action: Callable[[], Any]) -> None:
        try:
            action()
            held[name] = True
        except (OSError, ValueError, KeyError):
            held[name] = False

    os.chdir(confinement.folder)
    if confinement.group is not None:
        group = confinement.group
        step("cgroup", lambda: group.join(limits))
    step("resource_limits", lambda: _limit(resource_limits(confinement, limits)))
    if confinement.users:
        # two users, one group: the tests and the code may use each other's files, and nothing else of each other
        os.umask(0o007)
        step("separate_user", lambda: _become(confinement.users[role], confinement.users[0]))
    if not kernel.IS_LINUX:
        kernel.close_all_but(descriptors)
        return held
    step("dies_with_parent", kernel.die_with_parent)
    step("no_new_privileges", lambda: kernel.control(kernel.SET_NO_NEW_PRIVILEGES, 1))
    step("capabilities_dropped", kernel.drop_capabilities)
    step("not_inspectable", lambda: kernel.control(kernel.SET_DUMPABLE, 0))
    if confinement.rules is not None:
        step("landlock", lambda: kernel.apply_landlock(confinement.rules or 0))
    kernel.close_all_but(descriptors)
    if "seccomp" in confinement.without:
        held["seccomp"] = False
        return held
    step("seccomp", lambda: kernel.apply_filter(confinement.filter or call_filter(confinement)))
    return held


def memory_in_use(confinement: Confinement) -> int:
    """Bytes that the jobs of this worker hold together, shared and swapped memory too; 0 where nothing is visible."""
    folder = confinement.processes
    if folder is None:
        return 0
    total = 0
    for name in os.listdir(folder):
        if name.isdigit() and name != "1":
            with contextlib.suppress(OSError, ValueError, IndexError):
                file = os.open(f"{name}/status", os.O_RDONLY, dir_fd=folder)
                try:
                    total += _process_memory(os.read(file, 4096), confinement)
                finally:
                    os.close(file)
    return total


def _process_memory(status: bytes, confinement: Confinement) -> int:
    fields = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    is_job = confinement.holds.get("process_namespace") or int(fields[b"Uid"].split()[0]) in confinement.users
    # not RssFile: the interpreter's own files, which all of them share
    return sum(int(fields.get(field, b"0").split()[0]) for field in COUNTED) * 1024 if is_job else 0


def num_killed(confinement: Confinement) -> int:
    """Processes of the group that the kernel has killed so far for want of memory."""
    return 0 if confinement.group is None else confinement.group.num_killed()


def call_filter(confinement: Confinement) -> bytes:
    """The seccomp filter for the process that asks: without a process namespace it names that very process."""
    own = None if confinement.holds.get("process_namespace") else os.getpid()
    has_own_root = confinement.holds.get("private_root", False)
    return seccomp.filter_program(kernel.MACHINE, own, confinement.counts_processes, has_own_root)


def _become(user: int, group: int) -> None:
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def resource_limits(confinement: Confinement, limits: dict[str, int]) -> list[tuple[int, int]]:
    """The kernel's limits on a process of a job, none above what this one has."""
    wanted = {
        **{resource.RLIMIT_CPU: math.ceil(limits["cpu_seconds"]), resource.RLIMIT_FSIZE: limits["file_mb"] * MEGABYTE},
        **{resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: limits["open_files"], resource.RLIMIT_STACK: STACK},
        resource.RLIMIT_AS: confinement.address_space + limits["memory_mb"] * MEGABYTE,
    }
    if confinement.counts_processes:
        # in a user namespace the worker, its parent and the test runner count too
        wanted[resource.RLIMIT_NPROC] = limits["processes"] + (0 if confinement.users else 3)
    hard = {kind: resource.getrlimit(kind)[1] for kind in wanted}
    return [
        (kind, value if hard[kind] == resource.RLIM_INFINITY else min(value, hard[kind]))
        for kind, value in wanted.items()
    ]


def _limit(values: Iterable[tuple[int, int]]) -> None:
    refused = []
    for kind, value in values:
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            refused.append(kind)
    if refused:  # said after the others are set
        raise OSError(0, f"the system refuses limits {refused}")


def observed(confinement: Confinement, held: dict[str, bool]) -> dict[str, bool]:
    """What a confined process finds when it tries: each filter by an act it must refuse."""
    protections = dict(held)
    if protections.get("seccomp"):
        acts = (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close(), lambda: os.memfd_create("refused"))
        protections["seccomp"] = all(map(_is_refused, acts))
    if protections.get("landlock"):
        protections["landlock"] = _is_refused(lambda: os.listdir("/"))
    if protections.get("separate_user"):
        protections["separate_user"] = os.getuid() == confinement.users[0] and _is_refused(lambda: os.setuid(0))
    return protections


def _is_refused(act: Callable[[], Any]) -> bool:
    try:
        act()
    except PermissionError:
        return True
    except OSError:
        return False
    return False
