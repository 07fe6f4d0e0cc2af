"""A job for the sandbox, how much it may use, and its result."""

from __future__ import annotations

import ast
import binascii
import functools
import marshal
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from whet.reward.sandbox import plain, suite
from whet.reward.sandbox.wire import messages, packed
from whet.types import WhetError

MOST = 1 << 30  # of any limit: what the kernel can count


@dataclass(frozen=True)
class Limits:
    """Bounds of one job. Processor time is the one that decides; the wall clock only catches what sleeps."""

    cpu_seconds: float = 5  # of one process
    wall_seconds: float = 15.0  # of the whole job
    memory_mb: int = 1024  # of one process, and of all together where the kernel lets a worker look
    file_mb: int = 16  # of one file, and of all together
    processes: int = 16  # threads count
    output_kb: int = 1024  # standard output of a program
    open_files: int = 64

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and 0 < value <= MOST):
                raise WhetError(f"the sandbox's {name} is {value}; give a number above 0, at most {MOST}")
        if self.open_files < 8:
            raise WhetError(f"the sandbox's open_files is {self.open_files}; the interpreter needs at least 8")
        if self.memory_mb < 16:
            raise WhetError(f"the sandbox's memory_mb is {self.memory_mb}; the interpreter needs at least 16")

    def counts(self) -> dict[str, Any]:
        """The limits the kernel takes, as they are sent to a worker; whole numbers but for the processor time."""
        whole = {name: int(value) for name, value in asdict(self).items() if name != "wall_seconds"}
        return {**whole, "cpu_seconds": self.cpu_seconds}


DEFAULT_LIMITS = Limits()
LOST = "the worker was lost"
RECORD = 1 << 20  # bytes of what a job's tests write down
ERRORS = 4096  # bytes kept of what a program writes to standard error
REASONS = {
    **{"time": "out of time", "memory": "out of memory", "output": "too much output"},
    **{"files": "too many files", "ended": "the process ended", "": ""},
}


@dataclass(frozen=True)
class ProgramJob:
    """A script with its standard input, run as `python script.py < stdin`."""

    source: str
    stdin: str = ""
    limits: Limits = DEFAULT_LIMITS

    def messages(self) -> list[dict[str, Any]]:
        """The header for the worker, and what the process of the job takes itself."""
        return [_header("program", self.limits), {"source": self.source, "stdin": self.stdin}]

    def files(self) -> list[bytes]:
        """Files for one process of the job alone: none."""
        return []

    def streams(self) -> dict[str, int]:
        """The pipes the job writes to, and how many bytes are taken from each."""
        return {"stdout": self.limits.output_kb * 1024, "stderr": ERRORS}

    def result(self, answer: Mapping[str, Any], streams: Mapping[str, bytes], overflowed: Collection[str]) -> JobResult:
        """What came of it, from the worker's answer and what the job wrote."""
        return _job_result(answer, streams, overflowed)


@dataclass(frozen=True)
class UnitTestJob:
    """Code to call and tests that call it, in two processes; tests that are but calls with an expected result are
    judged by the trainer, from what a process with the code alone returns (`plain`).

    `test_spec` goes to the tests' side alone: {"form": "assertions", "tests": [...], "setup": ...}, {"form": "program",
    "program": ..., "entry_point": ...} or {"form": "calls", "cases": [(arguments, expected), ...], ...}. `prelude`,
    the data's own code, runs on both sides: objects of the classes it defines can travel.
    """

    sources: tuple[str, ...]
    test_spec: Mapping[str, Any]
    prelude: str = ""
    limits: Limits = DEFAULT_LIMITS

    def messages(self) -> list[dict[str, Any]]:
        """The header for the worker, and what the process of the code takes itself."""
        if (calls := self._calls()) is not None:
            return [_header("calls", self.limits), {"sources": list(self.sources), "calls": calls.messages}]
        return [_header("unit_tests", self.limits), {"sources": list(self.sources), "prelude": self.prelude}]

    def files(self) -> list[bytes]:
        """Files for one process of the job alone."""
        return [] if self._calls() is not None else [packed(self.tests())]

    def tests(self) -> dict[str, Any]:
        """The tests as their process takes them."""
        spec = {"setup": "", "tests": (), "program": "", "entry_point": "", "cases": (), **self.test_spec}
        texts = (spec["setup"], *spec["tests"]) if not spec["program"] else (spec["program"],)
        prepared = _prepared_tests(spec["setup"], (*spec["tests"],), spec["program"], spec["entry_point"] or "")
        known = {"cases": spec["cases"], "tolerance": spec.get("tolerance", 0.0)}
        # what the code cannot foresee, and what is the same in every run
        secret = "\n".join((*texts, str(spec["cases"])))
        return {**known, **prepared, "secret": secret, "prelude": self.prelude}

    def streams(self) -> dict[str, int]:
        """The pipe the tests write their results to, or the code what it returns."""
        return {"record" if self._calls() is None else "answers": RECORD}

    def result(self, answer: Mapping[str, Any], streams: Mapping[str, bytes], overflowed: Collection[str]) -> JobResult:
        """What came of it, from the worker's answer and what the job wrote."""
        result, calls = _job_result(answer, streams, overflowed), self._calls()
        if calls is None:
            return result
        verdict = plain.judged(calls, streams["answers"])
        ended = result.ended or verdict.ended
        return replace(result, ended=ended, passed=verdict.passed, notes=verdict.notes, note=verdict.note)

    def _calls(self) -> plain.PlainCalls | None:
        """The tests as calls with an expected result, where they are nothing else."""
        spec = self.test_spec
        if self.prelude or spec["form"] != "assertions" or spec.get("setup"):
            return None
        return plain.calls_of(tuple(spec["tests"]), spec.get("entry_point") or "")


Job = ProgramJob | UnitTestJob


@dataclass(frozen=True)
class JobResult:
    """How a job ended. For a program, its output; for unit tests, the tests it came to, in order."""

    ended: str = ""  # "" when the job ran to its own end; else why it did not, in words
    exit_code: int = 0  # of the code under test; negative: the signal that killed it
    stdout: str = ""
    stderr: str = ""
    passed: tuple[bool, ...] = ()
    notes: tuple[str, ...] = ()  # what each failed test met, by the name of the exception
    seconds: float = 0.0
    processor_seconds: float = 0.0
    planned: int = 0  # how many results the tests said there would be at least
    unscorable: str = ""  # why the tests can judge nothing, whatever the code does
    note: str = ""  # what ended the tests or the code, in its own words

    @property
    def is_lost(self) -> bool:
        """True when the sandbox failed, not the code."""
        return self.ended == LOST

    @property
    def is_out_of_time(self) -> bool:
        """True when it was stopped at its limit of processor time, or by the wall clock."""
        return self.ended == REASONS["time"]


def _job_result(answer: Mapping[str, Any], streams: Mapping[str, bytes], overflowed: Collection[str]) -> JobResult:
    """A worker's answer and what the job wrote, as a `JobResult`."""
    record = list(messages(streams.get("record", b"")))
    tests = [entry for entry in record if "passed" in entry]
    closing = next((entry for entry in record if "ended" in entry), None)
    ended = REASONS["output" if overflowed else answer["ended"]]
    if "record" in streams and not ended:
        ended = "the test program ended early" if closing is None else str(closing["ended"])
    status = int(answer["status"])
    signal_number, code = status & 0x7F, status >> 8 & 0xFF
    return JobResult(
        ended=ended,
        exit_code=-signal_number if signal_number else code,
        stdout=streams.get("stdout", b"").decode("utf-8", "replace"),
        stderr=streams.get("stderr", b"").decode("utf-8", "replace"),
        passed=tuple(bool(entry["passed"]) for entry in tests),
        notes=tuple(str(entry["note"]) for entry in tests),
        seconds=float(answer["seconds"]),
        processor_seconds=float(answer["processor_seconds"]),
        planned=max((int(entry["planned"]) for entry in record if "planned" in entry), default=0),
        unscorable="" if closing is None else str(closing.get("unscorable", "")),
        note="" if closing is None else str(closing.get("note", "")),
    )


@functools.lru_cache(maxsize=4096)
def _prepared_tests(setup: str, tests: tuple[str, ...], program: str, entry_point: str) -> dict[str, Any]:
    """What the trainer works out of tests for the process that runs them, once: many jobs have the same tests."""
    try:
        read = suite.read_suite(program or "\n".join([setup, *tests]))
        suites = [suite.prepared_suite(program)] if program else [suite.prepared_suite(test, True) for test in tests]
        start = suite.compiled(ast.parse(setup))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        read, suites, start = suite.read_suite(""), [], suite.raising(error)
    names = {key: sorted(value) for key, value in vars(read).items() if isinstance(value, frozenset)}
    code = binascii.b2a_base64(marshal.dumps([start, *map(tuple, suites)])).decode()
    modules = sorted(read.imports & {*suite.CODE_MODULES, entry_point})
    return {**names, "code": code, "code_modules": modules, "entry_point": entry_point}


def _header(kind: str, limits: Limits) -> dict[str, Any]:
    """The part of a job that the worker itself sees; the rest goes to processes that end with the job."""
    return {"kind": kind, "limits": limits.counts(), "wall_seconds": limits.wall_seconds}
