"""How much isolation code under test must have, what this machine gives, and why it does not give more.

Two kinds count. `namespaces`: a root, process numbers, a network of its own. `landlock`: the machine's own root, with
rules that refuse its files. Both need seccomp and resource limits beside them. A machine that gives neither runs no
code, unless it is told that this is fine.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from whet.reward.sandbox import kernel, seccomp
from whet.types import WhetError, did_you_mean

logger = logging.getLogger(__name__)

Requirement = Literal["any", "namespaces", "landlock", "none"]

ALWAYS = ("seccomp", "no_new_privileges", "capabilities_dropped", "resource_limits")
MECHANISMS: Mapping[str, tuple[str, ...]] = {
    "namespaces": (
        *("mount_namespace", "process_namespace", "network_namespace", "ipc_namespace", "private_root"),
        *ALWAYS,
    ),
    "landlock": ("landlock", *ALWAYS),
}
WITHOUT = {  # what is open without it, where the other one holds
    "namespaces": "code can see the names and sizes of files outside, and its own files are counted only now and then",
    "landlock": "only the namespaces hold",
}
NAMESPACE_STEPS = ("user_namespace", "namespaces", "private_root")
# holds in addition, or says how another protection was reached: its absence takes nothing away
OPTIONAL = ("user_namespace", "separate_user", "cgroup", "orphans_adopted", "not_inspectable", "dies_with_parent")

_required: Requirement = "any"


def require_isolation(requirement: str) -> None:
    """Set what every sandbox of this process needs from now on; `Sandbox(require=...)` has its own."""
    global _required
    _required = checked_requirement(requirement)


def required_isolation() -> Requirement:
    """What every sandbox of this process needs."""
    return _required


def checked_requirement(requirement: str) -> Requirement:
    """The requirement, if it is one."""
    for known in get_args(Requirement):
        if requirement == known:
            checked: Requirement = known
            return checked
    known = get_args(Requirement)
    raise WhetError(
        f"sandbox.require is {requirement!r}{did_you_mean(str(requirement), known)}; give one of {', '.join(known)}"
    )


def isolation_given(holds: Mapping[str, bool]) -> frozenset[str]:
    """Which of "namespaces" and "landlock" hold with everything they need."""
    return frozenset(name for name, steps in MECHANISMS.items() if all(holds.get(step, False) for step in steps))


def check_isolation(requirement: Requirement, holds: Mapping[str, bool], why: Mapping[str, tuple[int, str]]) -> None:
    """Refuse to run code with less than what is required: what is missing, why, and the fix."""
    isolation = isolation_given(holds)
    if requirement == "none" or requirement in isolation or (requirement == "any" and isolation):
        return
    wanted = ("namespaces", "landlock") if requirement == "any" else (requirement,)
    reasons = "; ".join(f"no {name}: {reason(name, holds, why)}" for name in wanted)
    if isolation:
        fix = f"or accept what it gives with sandbox.require={next(iter(isolation))}"
    else:
        fix = (
            "or run in a virtual machine that holds nothing of value, with sandbox.require=none: code can then read, "
            "write and delete this user's files"
        )
    raise WhetError(f"the sandbox will not run code on this machine: {reasons}; fix that, {fix}")


def tell_isolation(requirement: Requirement, holds: Mapping[str, bool], why: Mapping[str, tuple[int, str]]) -> None:
    """Warn of each protection that is missing between the code under test and the machine."""
    for line in isolation_warnings(requirement, holds, why):
        logger.warning("%s", line)


def isolation_warnings(
    requirement: Requirement, holds: Mapping[str, bool], why: Mapping[str, tuple[int, str]]
) -> list[str]:
    """A line for each protection that is missing between the code and the machine."""
    isolation = isolation_given(holds)
    lines = []
    if not isolation:
        closed = (("files", "private_root", "landlock"), ("network", "network_namespace", "seccomp"))
        opened = {name: not any(holds.get(step, False) for step in needed) for name, *needed in closed}
        reach = "read, write and delete this user's files" if opened["files"] else "get around what is left"
        also = " and reach the network" if opened["network"] else ""
        lines.append(
            f"sandbox: NO ISOLATION, as sandbox.require={requirement} allows: code under test can {reach}{also}; "
            f"no namespaces: {reason('namespaces', holds, why)}; no landlock: {reason('landlock', holds, why)}"
        )
    else:
        for name in MECHANISMS:
            if name not in isolation:
                lines.append(f"sandbox: no {name}: {reason(name, holds, why)}; {WITHOUT[name]}")
    if holds.get("process_namespace") and not (holds.get("cgroup") or holds.get("tree_memory")):
        lines.append("sandbox: no tree_memory: memory is limited for each process, not for all of a job together")
    if holds.get("separate_user") is False:  # only tried by root
        cause = f" ({why['separate_user'][1]})" if "separate_user" in why else ""
        lines.append(
            f"sandbox: no separate_user{cause}: whet runs as root, and so does code under test, without root's "
            "capabilities; start whet as another user"
        )
    mentioned = {*OPTIONAL, "tree_memory", *MECHANISMS["namespaces"], *MECHANISMS["landlock"]} - {*ALWAYS}
    others = sorted(name for name, held in holds.items() if not held and name not in mentioned)
    if others:
        lines.append(f"sandbox: missing: {', '.join(others)}")
    return lines


def isolation_summary(holds: Mapping[str, bool]) -> str:
    """What isolates the code, in a few words."""
    isolation = isolation_given(holds)
    if isolation:
        return ", ".join(name for name in MECHANISMS if name in isolation)
    return "none: code can read, write and delete this user's files"


def reason(name: str, holds: Mapping[str, bool], why: Mapping[str, tuple[int, str]]) -> str:
    """Why a mechanism is not there, and where known the setting to change."""
    if sys.platform != "linux":
        return f"this is {sys.platform}, and the sandbox needs Linux"
    if kernel.MACHINE not in seccomp.ARCHITECTURE:
        return f"no system call numbers for {kernel.MACHINE}; known: {', '.join(seccomp.ARCHITECTURE)}"
    if name == "landlock" and "landlock" in why:
        return _landlock_reason(*why["landlock"])
    if name == "namespaces":
        for step in NAMESPACE_STEPS:
            if step in why:
                return _namespace_reason(step, *why[step])
    missing = [step for step in MECHANISMS[name] if not holds.get(step, False)]
    return ", ".join(f"{step} ({why[step][1]})" if step in why else step for step in missing) + " missing"


def _namespace_reason(step: str, number: int, text: str) -> str:
    if number < 0:
        return text
    if _setting("user/max_user_namespaces") == "0" or number == errno.ENOSPC:
        return "user.max_user_namespaces is too low; raise it: sysctl -w user.max_user_namespaces=10000"
    if _setting("kernel/unprivileged_userns_clone") == "0" and os.geteuid() != 0:
        return "kernel.unprivileged_userns_clone is 0; allow them: sysctl -w kernel.unprivileged_userns_clone=1"
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1" and os.geteuid() != 0:
        return (
            "AppArmor restricts user namespaces; allow them: "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile for this interpreter"
        )
    if number in (errno.EPERM, errno.EACCES, errno.ENOSYS) and is_filtered():
        return (
            f"a seccomp filter or container around this process refuses them ({text}); start the container with a "
            "profile that allows unshare and mount, such as --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined"
        )
    return text


def _landlock_reason(number: int, text: str) -> str:
    if number < 0:
        return text
    if number == errno.EOPNOTSUPP:
        return "landlock is off since boot; add it to the kernel's lsm= parameter"
    if number == errno.EPERM and is_filtered():
        return "a seccomp filter around this process refuses it; start the container with one that allows landlock"
    if number == errno.ENOSYS:
        hidden = ", or the filter of this container hides it" if is_filtered() else ""
        return f"the kernel has none (it needs Linux 5.13 with CONFIG_SECURITY_LANDLOCK){hidden}"
    return text


def is_filtered() -> bool:
    """True where this process itself runs under a seccomp filter, as in most containers."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    return any(line.split() == ["Seccomp:", "2"] for line in lines)


def _setting(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""
