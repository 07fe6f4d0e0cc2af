"""Run a command as an unprivileged user on a machine that gives less: a seccomp filter refuses what shall be missing.

    python -P benchmarks/trust/_weaker.py namespaces,landlock -- python -m whet eval ...

The sandbox under test meets the kernel's own refusals, as in a container or on an old kernel; nothing in it is told.
Where this is root the command runs as `nobody`: what is tried with protections missing must not be able to harm the
machine. With `root` it runs as the root of a user namespace of its own, as in a container: all that a sandbox does as
root can be done there, and outside it is a user that owns nothing. `-P`, because the areas beside this file are called
like modules of the standard library.
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
ROOT = "root"
# (first number inside, first outside, how many): users that nobody has; the second line is for the sandbox's jobs
USERS = ((0, 0x60000000, 0x10000), (0x70000000, 0x70000000, 0x02000000))


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


def become_root_of_a_namespace() -> None:
    """Root over users that nobody has, and an unprivileged user to everything outside."""
    from whet.reward.sandbox import kernel

    reading, writing = os.pipe()
    helper = os.fork()
    if not helper:  # only who stayed outside may hand out more than one user
        os.read(reading, 1)
        text = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in USERS)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{os.getppid()}/{name}").write_text(text)
        os._exit(0)
    kernel.unshare(kernel.NEW_USER)
    os.write(writing, b".")
    if os.waitpid(helper, 0)[1]:
        raise SystemExit("no users for a namespace")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    with open("/proc/self/uid_map") as file:
        assert [tuple(map(int, line.split())) for line in file] == list(USERS)  # this root is not the machine's


def main() -> None:
    from whet.reward.sandbox import kernel

    words = sys.argv[1:]
    missing, command = tuple(filter(None, words[0].split(","))), words[2:]
    if unknown := set(missing) - {ROOT, *MISSING}:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join((ROOT, *MISSING))}")
    if ROOT in missing:
        become_root_of_a_namespace()
    elif os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if ROOT not in missing:
        kernel.control(kernel.SET_NO_NEW_PRIVILEGES, 1)
        kernel.apply_filter(refusing_filter(missing, kernel.MACHINE))
    os.execvpe(command[0], command, dict(os.environ))


if __name__ == "__main__":
    main()
