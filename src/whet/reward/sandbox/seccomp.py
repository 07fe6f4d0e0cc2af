"""The system calls that code under test may not make, as a seccomp filter.

Runs inside the sandbox's own processes: only the standard library may be imported here. It is a list of what is
refused, not of what is allowed: the interpreter, its extension modules and every libc use a wide and moving set of
calls, and the namespaces and landlock rules already bound what the rest can reach.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Iterable, Mapping

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
FIRST_X32 = 0x40000000  # the x32 calls of an x86-64 kernel have numbers of their own

LOAD, EQUAL, AT_LEAST, ANY_BIT, MASK, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x05, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCH = 0, 4  # offsets of the fields of a call
ARGUMENTS = (16, 24, 32, 40)  # their low halves, little-endian
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW flag
SHARED_THREAD = 0x00010000  # CLONE_THREAD
SHARED, ANONYMOUS = 0x01, 0x20  # flags of mmap
UNIX, STREAM, SOCKET_KINDS = 1, 1, 0xF

# name: (x86-64, aarch64); None where the machine has no such call
Calls = Mapping[str, tuple[int | None, int | None]]

REFUSED: Calls = {
    **{"socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202)},
    **{"accept4": (288, 242), "setsockopt": (54, 208)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51)},
    **{"open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "mount_setattr": (442, 442)},
    **{"fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "open_tree_attr": (467, 467)},
    **{"unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264)},
    **{"bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262)},
    **{"io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89)},
    **{"swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60), "quotactl_fd": (443, 443)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "syslog": (103, 116)},
    **{"clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58)},
    **{"iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None), "personality": (135, 92)},
    # memory that no limit of a process counts
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190)},
    **{"msgget": (68, 186), "mq_open": (240, 180), "vmsplice": (278, 75), "io_setup": (206, 0)},
    # changing other processes of the same user
    **{"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118)},
    **{"sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30)},
    **{"migrate_pages": (256, 238), "move_pages": (279, 239)},
}
# kernel memory that a file's owner may fill without limit, and which landlock does not guard; programs that copy
# files expect file systems without
ATTRIBUTES: Calls = {
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    **{"getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10), "getxattrat": (464, 464)},
    **{"listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13), "listxattrat": (465, 465)},
    **{"removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466)},
}
# changes of a file that landlock does not guard: refused where the machine's files are in reach
CHANGES: Calls = {
    **{"chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452)},
    **{"chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54)},
    **{"utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88)},
    **{"file_setattr": (469, 469)},
    "truncate": (76, 45),  # landlock guards it from its third version on
}
UNKNOWN: Calls = {"clone3": (435, 435)}  # its flags lie in memory a filter cannot read; libc falls back to clone
ONLY_ON_ITSELF: Calls = {"prlimit64": (302, 261)}  # first argument 0 or the process's own number
SIGNALS: Calls = {
    **{"kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)},
    "rt_tgsigqueueinfo": (297, 240),
}
# a descriptor says whom it reaches, and any descriptor can have any number
SIGNALS_BY_DESCRIPTOR: Calls = {"pidfd_send_signal": (424, 424)}
FORKS: Calls = {"fork": (57, None), "vfork": (58, None)}
CLONE, MMAP, SOCKETPAIR, FCNTL, IOCTL = (56, 220), (9, 222), (53, 199), (72, 25), (16, 29)
# what a worker itself does for its jobs: a fresh working directory, its look at what is in there, a file for a program
WORKER_CALLS = frozenset(("mount", "umount2", "memfd_create", *ATTRIBUTES))
LARGER_PIPE = 1031  # F_SETPIPE_SZ
OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would send signals for the process
OWNER_REQUESTS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP
TYPED = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: input for the terminal


def filter_program(
    machine: str, own: int | None, may_fork: bool, has_own_root: bool = True, spared: Collection[str] = ()
) -> bytes:
    """The filter's code. `own`: signals reach only this process and its group (None: any it may reach).

    Calls that are `spared` are left to another filter (`rest_program`).
    """
    column, code = _opening(machine)

    def numbers(*tables: Calls) -> list[int]:
        return _numbers(
            column, *({name: pair for name, pair in table.items() if name not in spared} for table in tables)
        )

    refused = [REFUSED]
    if not may_fork:
        refused.append(FORKS)
    if not has_own_root:
        refused.append(CHANGES)
    if own is not None:
        refused.append(SIGNALS_BY_DESCRIPTOR)
    code += _returns(numbers(*refused), errno.EPERM)
    code += _returns(numbers(ATTRIBUTES), errno.EOPNOTSUPP)
    code += _returns(numbers(UNKNOWN), errno.ENOSYS)
    code += _guarded(numbers(ONLY_ON_ITSELF), (0,) if own is None else (0, own))
    if own is not None:
        code += _guarded(numbers(SIGNALS), (0, own))
    code += _clone(CLONE[column], may_fork)
    code += _call(MMAP[column], _shared_memory())
    code += _call(SOCKETPAIR[column], _other_sockets())
    code += _call(FCNTL[column], _any_of(1, (LARGER_PIPE, *(OWNERS if own is not None else ()))))
    code += _call(IOCTL[column], _any_of(1, TYPED + (OWNER_REQUESTS if own is not None else ())))
    return b"".join([*code, _step(RETURN, ALLOW)])


def rest_program(machine: str, may_fork: bool) -> bytes:
    """The filter of a job whose worker has one without `WORKER_CALLS`, and may fork: what is left to refuse.

    The kernel translates a filter anew for every process that installs it, and gives a child that of its parent for
    nothing: the long one is the worker's.
    """
    column, code = _opening(machine)
    refused = {name: pair for name, pair in REFUSED.items() if name in WORKER_CALLS}
    code += _returns(_numbers(column, refused, *(() if may_fork else (FORKS,))), errno.EPERM)
    code += _returns(_numbers(column, ATTRIBUTES), errno.EOPNOTSUPP)
    if not may_fork:
        code += _clone(CLONE[column], may_fork)
    return b"".join([*code, _step(RETURN, ALLOW)])


def _opening(machine: str) -> tuple[int, list[bytes]]:
    """The column of a machine's numbers, and the code that refuses the numbers of any other."""
    if machine not in ARCHITECTURE:
        raise OSError(0, f"no system call numbers for {machine}")
    code = [_step(LOAD, ARCH), _step(EQUAL, ARCHITECTURE[machine], 1, 0), _step(RETURN, KILL), _step(LOAD, NUMBER)]
    if machine == "x86_64":
        code += [_step(AT_LEAST, FIRST_X32, 0, 1), _step(RETURN, REFUSE | errno.ENOSYS)]
    return list(ARCHITECTURE).index(machine), code


def _numbers(column: int, *tables: Calls) -> list[int]:
    return [number for table in tables for pair in table.values() if (number := pair[column]) is not None]


def _step(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", operation, if_true, if_false, value)


REFUSAL = _step(RETURN, REFUSE | errno.EPERM)


def _call(call: int, body: list[bytes]) -> list[bytes]:
    """The body, which ends in an answer, for this call alone."""
    return [_step(EQUAL, call, 0, len(body)), *body]


def _returns(calls: Iterable[int], error: int) -> list[bytes]:
    numbers = list(calls)
    checks = [_step(EQUAL, call, len(numbers) - at, 0) for at, call in enumerate(numbers)]
    return [*checks, _step(JUMP, 1), _step(RETURN, REFUSE | error)] if numbers else []


def _guarded(calls: Iterable[int], allowed: tuple[int, ...]) -> list[bytes]:
    """Refuse the calls unless their first argument, a process number, is one of these."""
    body = [_step(LOAD, ARGUMENTS[0])]
    for at, value in enumerate(allowed):
        body.append(_step(EQUAL, value, len(allowed) - at, 0))
    body += [REFUSAL, _step(RETURN, ALLOW)]
    return [step for call in calls for step in _call(call, body)]


def _any_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Refuse where the argument is one of these."""
    body = [_step(LOAD, ARGUMENTS[argument])]
    for at, value in enumerate(values):
        body.append(_step(EQUAL, value, len(values) - at, 0))
    return [*body, _step(RETURN, ALLOW), REFUSAL]


def _shared_memory() -> list[bytes]:
    """Refuse shared memory without a file: it outlives what a process shows of its memory."""
    flags = [_step(LOAD, ARGUMENTS[3]), _step(ANY_BIT, SHARED, 0, 2), _step(ANY_BIT, ANONYMOUS, 0, 1)]
    return [*flags, REFUSAL, _step(RETURN, ALLOW)]


def _other_sockets() -> list[bytes]:
    """Refuse pairs of sockets but for connected Unix streams: a datagram socket can write to any address."""
    return [
        *(_step(LOAD, ARGUMENTS[0]), _step(EQUAL, UNIX, 0, 3)),
        *(_step(LOAD, ARGUMENTS[1]), _step(MASK, SOCKET_KINDS), _step(EQUAL, STREAM, 1, 0)),
        *(REFUSAL, _step(RETURN, ALLOW)),
    ]


def _clone(call: int, may_fork: bool) -> list[bytes]:
    """Refuse new namespaces, and new processes too where they cannot be counted; threads are fine."""
    body = [_step(LOAD, ARGUMENTS[0]), _step(ANY_BIT, NEW_NAMESPACES, 0, 1), REFUSAL]
    if not may_fork:
        body += [_step(ANY_BIT, SHARED_THREAD, 1, 0), REFUSAL]
    body.append(_step(RETURN, ALLOW))
    return _call(call, body)
