"""The few Linux calls that Python has no function for, made through ctypes.

Runs inside the sandbox's own processes: only the standard library may be imported here. Every function raises
`OSError` where the kernel refuses, so that the caller can note which protection is missing.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
from collections.abc import Callable, Iterable

IS_LINUX = sys.platform == "linux"
MACHINE = platform.machine()

NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2

CLOSE_RANGE, MOUNT_SETATTR = 436, 442
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}

SET_DEATH_SIGNAL, SET_DUMPABLE, GET_SECCOMP, SET_SECCOMP = 1, 4, 21, 22
SET_CHILD_SUBREAPER, SET_NO_NEW_PRIVILEGES = 36, 38
SECCOMP_FILTER = 2
AT_RECURSIVE, ATTRIBUTE_READ_ONLY, ATTRIBUTE_NO_SUID = 0x8000, 1, 2

# what a landlock rule may grant on a folder; each version of the kernel's interface knows more of it
READ_FILES = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
NEWEST_FILES = (1 << 16) - 1
ONLY_FOR_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # the rights that exist on a plain file
ALL_NETWORK = 0b11
ALL_SCOPES = 0b11  # abstract sockets and signals of processes outside


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(number: int, *arguments: object) -> int:
    if _libc is None:
        raise OSError(0, "not Linux")
    # syscall() is variadic: plain Python integers would be passed as 32 bits
    wide = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(int(_libc.syscall(ctypes.c_long(number), *wide)), f"system call {number}")


def _function(name: str) -> Callable[..., int]:
    if _libc is None:
        raise OSError(0, "not Linux")
    return getattr(_libc, name)


def control(option: int, value: int = 0, pointer: object = None) -> int:
    """Set a property of this process, as in prctl(2)."""
    third = ctypes.c_ulong(0) if pointer is None else pointer
    zero = ctypes.c_ulong(0)
    return _checked(
        int(_function("prctl")(ctypes.c_int(option), ctypes.c_ulong(value), third, zero, zero)), f"prctl {option}"
    )


def unshare(flags: int) -> None:
    """Give this process namespaces of its own, as in unshare(2)."""
    _checked(int(_function("unshare")(ctypes.c_int(flags))), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system, as in mount(2); an OSError names the target."""
    result = _function("mount")(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), options.encode() or None
    )
    _checked(int(result), f"mount {target}")


def unmount(target: str) -> None:
    """Detach a mount at once; it goes when nothing uses it any more."""
    _checked(int(_function("umount2")(target.encode(), ctypes.c_int(DETACH))), f"unmount {target}")


def make_read_only(target: str) -> None:
    """Write-protect a mount, with everything mounted below it where the kernel can."""
    attributes = struct.pack("=QQQQ", ATTRIBUTE_READ_ONLY | ATTRIBUTE_NO_SUID, 0, 0, 0)
    try:
        _call(MOUNT_SETATTR, -100, target.encode(), AT_RECURSIVE, ctypes.c_char_p(attributes), len(attributes))
    except OSError:
        flags = os.statvfs(target).f_flag & (NO_SUID | NO_DEVICES | NO_EXEC)
        mount("none", target, "", BIND | REMOUNT | READ_ONLY | flags)


def enter_root(folder: str) -> None:
    """Make the folder, a mount point, the root; the earlier one is out of reach afterwards."""
    os.chdir(folder)
    _call(PIVOT_ROOT[MACHINE], b".", b".")
    unmount(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up all capabilities of this process for good."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _call(CAPSET[MACHINE], ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    control(SET_DEATH_SIGNAL, signal.SIGKILL)


def close_all_but(descriptors: Iterable[int]) -> None:
    """Close every descriptor from 3 on except these."""
    low = 3
    for number in [*sorted(set(descriptors) - {0, 1, 2}), None]:
        high = 0xFFFFFFFF if number is None else number - 1
        if low <= high:
            try:
                _call(CLOSE_RANGE, low, high, 0)
            except OSError:
                os.closerange(low, min(high + 1, 65536))
        if number is not None:
            low = number + 1


def landlock_version() -> int:
    """The version of the kernel's interface."""
    return _call(LANDLOCK_CREATE, 0, 0, 1)


def landlock_rules(readable: Iterable[str], writable: Iterable[str]) -> int:
    """A descriptor of the rules: these files and folders and nothing else, and no network."""
    version = landlock_version()
    files = ALL_FILES.get(version, NEWEST_FILES)
    network = ALL_NETWORK if version >= 4 else 0
    scopes = ALL_SCOPES if version >= 6 else 0
    attributes = struct.pack("=QQQ", files, network, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    rules = _call(LANDLOCK_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    wanted = [(path, READ_FILES) for path in readable] + [(path, files) for path in writable]
    for path, rights in wanted:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            granted = rights & files & (-1 if os.path.isdir(path) else ONLY_FOR_FILES)
            rule = struct.pack("=Qi", granted, folder)
            _call(LANDLOCK_ADD, rules, 1, ctypes.c_char_p(rule), 0)
        finally:
            os.close(folder)
    return rules


def apply_landlock(rules: int) -> None:
    """Restrict this process to the paths that the rules allow; there is no way back."""
    _call(LANDLOCK_RESTRICT, rules, 0)


def apply_filter(program: bytes) -> None:
    """Install a seccomp filter; system calls from here on obey it, in all children too."""
    described = _Program(len(program) // 8, program)
    control(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(described))
