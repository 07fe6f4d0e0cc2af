"""The system calls that code under test may not make, as a seccomp filter.

Runs inside the sandbox's own processes: only the standard library may be imported here. It is a list of what is
refused, not of what is allowed: the interpreter, its extension modules and every libc use a wide and moving set of
calls, and the namespaces and landlock rules already bound what the rest can reach.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FIRST_X32 = 0x40000000  # the x32 calls of an x86-64 kernel have numbers of their own

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH, FIRST = 0, 4, 16  # offsets of the fields of a call; low halves, little-endian
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW flag
SHARED_THREAD = 0x00010000  # CLONE_THREAD

# name: (x86-64, aarch64); None where the machine has no such call
REFUSED: dict[str, tuple[int | None, int]] = {
    **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept4": (288, 242)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442)},
    **{"unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "syslog": (103, 116)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170)},
    **{"clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58)},
    **{"iopl": (172, -1), "ioperm": (173, -1), "modify_ldt": (154, -1), "personality": (135, 92)},
    # memory that no limit of a process counts
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190)},
    **{"msgget": (68, 186), "mq_open": (240, 180)},
    # changing other processes of the same user
    **{"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118)},
    **{"sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"migrate_pages": (256, 238), "move_pages": (279, 239)},
}
UNKNOWN = {"clone3": (435, 435)}  # its flags lie in memory a filter cannot read; libc falls back to clone
ONLY_ON_ITSELF = {"prlimit64": (302, 261)}  # first argument 0 or the process's own number
SIGNALS = {
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)},
    **{"rt_tgsigqueueinfo": (297, 240), "pidfd_send_signal": (424, 424)},
}
FORKS: dict[str, tuple[int, int]] = {"fork": (57, -1), "vfork": (58, -1)}
CLONE = (56, 220)


def filter_program(machine: str, own: int | None, may_fork: bool) -> bytes:
    """The filter's code. `own`: signals reach only this process and its group (None: any it may reach)."""
    if machine not in ARCHITECTURE:
        raise OSError(0, f"no system call numbers for {machine}")
    column = list(ARCHITECTURE).index(machine)

    def numbers(table: dict[str, tuple[int, int]] | dict[str, tuple[int | None, int]]) -> list[int]:
        return [number for pair in table.values() if (number := pair[column]) is not None and number >= 0]

    code = [_step(LOAD, ARCH), _step(EQUAL, ARCHITECTURE[machine], 1, 0), _step(RETURN, KILL), _step(LOAD, NUMBER)]
    if machine == "x86_64":
        code += [_step(AT_LEAST, FIRST_X32, 0, 1), _step(RETURN, REFUSE | errno.ENOSYS)]
    code += _returns(numbers(REFUSED) + ([] if may_fork else numbers(FORKS)), REFUSE | errno.EPERM)
    code += _returns(numbers(UNKNOWN), REFUSE | errno.ENOSYS)
    code += _guarded(numbers(ONLY_ON_ITSELF), (0,) if own is None else (0, own))
    if own is not None:
        code += _guarded(numbers(SIGNALS), (0, own))
    code += _clone(CLONE[column], may_fork)
    return b"".join([*code, _step(RETURN, ALLOW)])


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


def _returns(calls: Iterable[int], answer: int) -> list[bytes]:
    return [step for call in calls for step in (_step(EQUAL, call, 0, 1), _step(RETURN, answer))]


def _guarded(calls: Iterable[int], allowed: tuple[int, ...]) -> list[bytes]:
    """Refuse the calls unless their first argument, a process number, is one of these."""
    body = [_step(LOAD, FIRST)]
    for at, value in enumerate(allowed):
        body.append(_step(EQUAL, value, len(allowed) - at, 0))
    body += [_step(RETURN, REFUSE | errno.EPERM), _step(RETURN, ALLOW)]
    return [step for call in calls for step in (_step(EQUAL, call, 0, len(body)), *body)]


def _clone(call: int, may_fork: bool) -> list[bytes]:
    """Refuse new namespaces, and new processes too where they cannot be counted; threads are fine."""
    refusal = _step(RETURN, REFUSE | errno.EPERM)
    body = [_step(LOAD, FIRST), _step(ANY_BIT, NEW_NAMESPACES, 0, 1), refusal]
    if not may_fork:
        body += [_step(ANY_BIT, SHARED_THREAD, 1, 0), refusal]
    body.append(_step(RETURN, ALLOW))
    return [_step(EQUAL, call, 0, len(body)), *body]
