"""Run a command as an unprivileged user on a machine that gives less: a seccomp filter refuses what shall be missing.

    python -P benchmarks/trust/_weaker.py namespaces,landlock -- python -m whet eval ...

The sandbox under test meets the kernel's own refusals, as in a container or on an old kernel; nothing in it is told.
Where this is root the command runs as `nobody`: what is tried with protections missing must not be able to harm the
machine. `-P`, because the areas beside this file are called like modules of the standard library.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from pathlib import Path

NOBODY = 65534
LANDLOCK_CREATE = 444
UNSHARE = {"x86_64": 272, "aarch64": 97}
CLONE = {"x86_64": 56, "aarch64": 220}
ARGUMENT, NUMBER = 16, 0
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NEW_NAMESPACES = 0x7E020080
MISSING = ("namespaces", "landlock")


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def refusing_filter(missing: tuple[str, ...], machine: str) -> bytes:
    """A filter that answers as a container without user namespaces, or a kernel without landlock, would."""
    code = [_step(LOAD, NUMBER)]
    if "landlock" in missing:
        code += [_step(EQUAL, LANDLOCK_CREATE, 0, 1), _step(RETURN, REFUSE | errno.ENOSYS)]
    if "namespaces" in missing:
        code += [_step(EQUAL, UNSHARE[machine], 0, 1), _step(RETURN, REFUSE | errno.EPERM)]
        code += [_step(EQUAL, CLONE[machine], 0, 3), _step(LOAD, ARGUMENT)]
        code += [_step(ANY_BIT, NEW_NAMESPACES, 0, 1), _step(RETURN, REFUSE | errno.EPERM)]
    return b"".join([*code, _step(RETURN, ALLOW)])


def interpreter() -> str | None:
    """An interpreter that `nobody` can start: this one, else the system's of the same version; None without one."""
    if os.geteuid() != 0:
        return sys.executable
    system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    found = (each for each in (sys.executable, system) if Path(each).exists())
    return next((each for each in found if _is_open(os.path.realpath(each))), None)


def _is_open(path: str) -> bool:
    return all(os.stat(each).st_mode & 0o001 for each in (path, *map(str, Path(path).parents)))


def environment() -> dict[str, str]:
    """This process's, with its import path for whichever interpreter is started."""
    path = [each for each in sys.path if each and Path(each).is_dir() and "/lib/python" not in each]
    path += [each for each in sys.path if each.endswith("site-packages")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}


def main() -> None:
    from whet.reward.sandbox import kernel

    words = sys.argv[1:]
    missing, command = tuple(filter(None, words[0].split(","))), words[2:]
    if unknown := set(missing) - set(MISSING):
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(MISSING)}")
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.control(kernel.SET_NO_NEW_PRIVILEGES, 1)
    kernel.apply_filter(refusing_filter(missing, kernel.MACHINE))
    os.execvpe(command[0], command, dict(os.environ))


if __name__ == "__main__":
    main()
