"""The seccomp filter on both machines: its numbers, and what it answers to each call, run by a small interpreter."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from whet.reward.sandbox import seccomp
from whet.reward.sandbox.seccomp import ARCHITECTURE, filter_program

TABLES = {
    **{**seccomp.REFUSED, **seccomp.ATTRIBUTES, **seccomp.CHANGES, **seccomp.UNKNOWN, **seccomp.FORKS},
    **{**seccomp.ONLY_ON_ITSELF, **seccomp.SIGNALS, **seccomp.SIGNALS_BY_DESCRIPTOR},
    **{"clone": seccomp.CLONE, "mmap": seccomp.MMAP, "socketpair": seccomp.SOCKETPAIR},
    **{"fcntl": seccomp.FCNTL, "ioctl": seccomp.IOCTL},
}
# calls that every program makes: (x86-64, aarch64)
EVERYDAY = {
    **{"read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "brk": (12, 214)},
    **{"openat": (257, 56), "munmap": (11, 215), "futex": (202, 98), "exit_group": (231, 94), "execve": (59, 221)},
    **{"wait4": (61, 260), "pipe2": (293, 59), "dup3": (292, 24), "getdents64": (217, 61), "unlinkat": (263, 35)},
    **{"mkdirat": (258, 34), "sendmsg": (46, 211), "recvmsg": (47, 212), "getrandom": (318, 278)},
}
EARLY_HALVES = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
FIRST_COMMON = 424  # numbers are the same on all machines from here on
EPERM, ALLOWED = errno.EPERM, 0


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> int | str:
    """What the kernel would do: an error number, 0 for allowed, or "killed"."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *(each & 0xFFFFFFFFFFFFFFFF for each in given))
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if operation == seccomp.LOAD:
            (loaded,) = struct.unpack_from("=I", call, value)
        elif operation == seccomp.MASK:
            loaded &= value
        elif operation == seccomp.JUMP:
            at += value
        elif operation == seccomp.RETURN:
            if value == seccomp.KILL:
                return "killed"
            return ALLOWED if value == seccomp.ALLOW else value & 0xFFFF
        else:
            holds = {
                seccomp.EQUAL: loaded == value,
                seccomp.AT_LEAST: loaded >= value,
                seccomp.ANY_BIT: bool(loaded & value),
            }[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ARCHITECTURE)
def test_the_numbers_are_those_of_the_kernels_headers(machine):
    if not EARLY_HALVES[machine].is_file():
        pytest.skip("no kernel headers here")
    column = list(ARCHITECTURE).index(machine)
    known = dict(re.findall(r"#define\s+__NR(?:3264)?_(\w+)\s+(\d+)", EARLY_HALVES[machine].read_text()))
    newest = max(map(int, known.values()))
    for name, numbers in {**TABLES, **EVERYDAY}.items():
        number = numbers[column]
        if number is None:
            assert name not in known, name
        elif number <= newest and name in known:
            assert number == int(known[name]), name
        else:
            assert number > newest - 20, name  # a call that these headers are too old to know


def test_the_tables_are_consistent():
    for column in range(2):
        numbers = [pair[column] for pair in TABLES.values() if pair[column] is not None]
        assert len(numbers) == len(set(numbers)) and min(numbers) >= 0
        assert not set(numbers) & {pair[column] for pair in EVERYDAY.values()}
    for name, (x86, arm) in TABLES.items():
        assert x86 is not None, name  # aarch64 dropped old calls; it has none of its own here
        if x86 >= FIRST_COMMON or (arm or 0) >= FIRST_COMMON:
            assert x86 == arm, name


@pytest.mark.parametrize("machine", ARCHITECTURE)
@pytest.mark.parametrize("own", [None, 7])
@pytest.mark.parametrize("may_fork", [True, False])
@pytest.mark.parametrize("has_own_root", [True, False])
def test_every_call_is_answered_as_its_table_says(machine, own, may_fork, has_own_root):
    column, architecture = list(ARCHITECTURE).index(machine), ARCHITECTURE[machine]
    program = filter_program(machine, own, may_fork, has_own_root)
    assert len(program) % 8 == 0 and len(program) // 8 < 4096

    def of(name: str, *arguments: int) -> int | str:
        number = {**TABLES, **EVERYDAY}[name][column]
        return 0 if number is None else answer(program, architecture, number, *arguments)

    def all_of(table: dict, *arguments: int) -> set:
        return {of(name, *arguments) for name in table if TABLES[name][column] is not None}

    assert {of(name) for name in EVERYDAY} == {ALLOWED}
    assert all_of(seccomp.REFUSED) == {EPERM} and all_of(seccomp.UNKNOWN) == {errno.ENOSYS}
    assert all_of(seccomp.ATTRIBUTES) == {errno.EOPNOTSUPP}
    assert all_of(seccomp.CHANGES) == {ALLOWED if has_own_root else EPERM}
    if machine == "x86_64":
        assert all_of(seccomp.FORKS) == {ALLOWED if may_fork else EPERM}
    # signals: to oneself and one's group; to others only where a process namespace bounds them
    assert all_of(seccomp.SIGNALS, 0) == {ALLOWED} and all_of(seccomp.SIGNALS, 7) == {ALLOWED}
    for other in (1, 8, -1, -7):
        assert all_of(seccomp.SIGNALS, other) == {ALLOWED if own is None else EPERM}
    assert of("pidfd_send_signal", 0) == (ALLOWED if own is None else EPERM)
    assert of("prlimit64", 0) == ALLOWED and of("prlimit64", 1) == EPERM
    for owner in seccomp.OWNERS:
        assert of("fcntl", 3, owner, 1) == (ALLOWED if own is None else EPERM)
    assert of("fcntl", 3, 1031, 1 << 20) == EPERM and of("fcntl", 3, 4, 0) == ALLOWED  # larger pipes; non-blocking
    assert of("ioctl", 0, 0x5412) == EPERM and of("ioctl", 0, 0x5401) == ALLOWED
    # processes and namespaces
    assert of("clone", 0x01200011) == (ALLOWED if may_fork else EPERM)  # a fork as libc makes it
    assert of("clone", 0x003D0F00) == ALLOWED  # a thread as libc makes it
    for flag in (0x10000000, 0x00020000, 0x40000000, 0x20000000, 0x08000000):
        assert of("clone", flag | 17) == EPERM
    # memory: private and of files, not shared and nameless
    assert of("mmap", 0, 4096, 3, 0x22, -1) == ALLOWED and of("mmap", 0, 4096, 3, 0x01, 5) == ALLOWED
    assert of("mmap", 0, 4096, 3, 0x21, -1) == EPERM and of("mmap", 0, 4096, 3, 0x23, -1) == EPERM
    # pairs of sockets: Unix streams, with or without flags
    assert of("socketpair", 1, 1) == ALLOWED and of("socketpair", 1, 1 | 0o2000000 | 0o4000) == ALLOWED
    assert of("socketpair", 1, 2) == EPERM and of("socketpair", 1, 5) == EPERM and of("socketpair", 30, 1) == EPERM
    # the numbers of another machine mean nothing here
    assert answer(program, 0x40000003, 0) == "killed"
    if machine == "x86_64":
        assert answer(program, architecture, 0x40000000 | 41) == errno.ENOSYS


@pytest.mark.parametrize("machine", ARCHITECTURE)
@pytest.mark.parametrize("may_fork", [True, False])
def test_the_filters_of_worker_and_job_together_refuse_what_the_whole_one_does(machine, may_fork):
    """The kernel asks both and takes the stricter answer; what the worker itself calls is left to the second."""
    column, architecture = list(ARCHITECTURE).index(machine), ARCHITECTURE[machine]
    whole = filter_program(machine, None, may_fork)
    worker = filter_program(machine, None, True, spared=seccomp.WORKER_CALLS)
    job = seccomp.rest_program(machine, may_fork)
    needed = ("mount", "umount2", "memfd_create", "listxattr", "clone", "prlimit64", "kill", "socketpair", "fcntl")
    different = []
    for name, pair in {**TABLES, **EVERYDAY}.items():
        for arguments in ((), (1, 1), (1, 2), (0, 1031), (0x01200011,), (0x10000011,), (0, 4096, 3, 0x21)):
            if pair[column] is None:
                continue
            answers = [answer(program, architecture, pair[column], *arguments) for program in (whole, worker, job)]
            different += [(name, arguments, answers)] if answers[0] != (answers[2] or answers[1]) else []
            if name in needed and not arguments and name != "clone":
                assert answers[1] == ALLOWED or name == "socketpair", name
    assert not different and len(job) < len(whole) / 3
    assert answer(worker, architecture, 56 if column == 0 else 220, 0x01200011) == ALLOWED  # a fork
    for program in (worker, job):
        assert answer(program, 0x40000003, 0) == "killed"


def test_an_unknown_machine_has_no_filter():
    with pytest.raises(OSError, match="no system call numbers"):
        filter_program("z80", None, True)
