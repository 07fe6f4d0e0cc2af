"""The reward for code that passes its tests. The code runs in the sandbox, the whole batch at once.

The tests of a prompt are read from its columns, in these forms:

    test_list or tests: ["assert f(1) == 2", ...]       with test_setup_code and test_imports where the data has them
    test: "def check(candidate): ...", entry_point: f   or `tests` as one text, or {"functional": text}
    tests: "def test_f(): ..."                          pytest functions, unittest classes, a program of assertions;
                                                        the code's names as they are, or `from solution import f`
    input_output or tests: {"inputs": [...], "outputs": [...]}            programs that read standard input
    the same with "fn_name": f                          calls of a function, arguments and results as JSON
    tests: [{"input": ..., "output": ...}, ...]         either, one by one; "testtype": "functional" marks calls

The code under test and what is expected of it never live in the same process: the code sees the arguments of its
calls, never an assertion or the verdict, so there is nothing to forge and nothing to look up. Plain values are compared
on the tests' side; the tests use any other object of the code by a proxy (`sandbox.remote`).
Tests that can judge nothing (they are empty, hold no assertion, never call the code, or cannot run here) make the
prompt unscorable, with the reason. What remains possible: a completion can recognise arguments and answer from
memory; and a test that compares two results of the completion with each other (`decode(encode(x)) == x`), or with an
object that the tests build by the completion's own class, judges by values the completion chose or has seen.

Fenced blocks of a completion, in the markdown that models write: in lists, in quotations, of tildes, not closed.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import logging
import math
import re
import textwrap
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from whet.reward.answer import final_part, tagged
from whet.reward.failure import unscorable
from whet.reward.sandbox.job import Job, JobResult, Limits, ProgramJob, UnitTestJob
from whet.reward.sandbox.pool import shared_sandbox
from whet.reward.sandbox.suite import prepared_suite, read_suite
from whet.reward.sandbox.suite_log import NOT_REACHED
from whet.threads import Thread
from whet.types import Prompt, Sample, WhetError

QUOTE = r"(?:[ \t]{0,3}>[ \t]?)*"
OPENING = re.compile(rf"({QUOTE})([ \t]*(?:(?:[-*+]|\d{{1,3}}[.)])[ \t]+)*)(`{{3,}}|~{{3,}})[ \t]*([^`]*)$")
CLOSING = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*$")
CLOSING_INDENT = 3  # spaces more than the opening; beyond that it belongs to the content, say to a docstring
TAB = 4


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of each fenced block; the indentation of the fence is taken off its content."""
    blocks: list[tuple[str, str]] = []
    lines = text.replace("\r\n", "\n").split("\n")  # not splitlines: a form feed inside code is no end of a line
    at = 0
    while at < len(lines):
        opening = OPENING.match(lines[at])
        at += 1
        if opening is None:
            continue
        quote, indent, fence, info = opening.groups()
        end = _end(lines, at, bool(quote), _width(indent), fence)
        content = [_unindented(_unquoted(line, bool(quote)), _width(indent)) for line in lines[at:end]]
        blocks.append((_language(info), "\n".join(content) + "\n"))
        at = end + 1
    return blocks


def is_python(language: str) -> bool:
    """True for the names under which fences hold Python."""
    return language.startswith("python") or language in ("py", "py3", "ipython")


def _end(lines: list[str], start: int, is_quoted: bool, indent: int, fence: str) -> int:
    """The line of the closing fence; without one, the first that looks like it, else the end of the text."""
    looks_alike = len(lines)
    for at in range(start, len(lines)):
        closing = CLOSING.match(_unquoted(lines[at], is_quoted))
        if closing is not None and closing[2][0] == fence[0] and len(closing[2]) >= len(fence):
            if _width(closing[1]) <= indent + CLOSING_INDENT:
                return at
            looks_alike = min(looks_alike, at)
    return looks_alike


def _language(info: str) -> str:
    """The first word of what follows the fence: `python title="x"`, `{.python .numberLines}`."""
    word = re.search(r"[\w+#-]+", info)
    return word[0].lower() if word else ""


def _unquoted(line: str, is_quoted: bool) -> str:
    return re.sub(rf"^{QUOTE}", "", line, count=1) if is_quoted else line


def _unindented(line: str, width: int) -> str:
    """The line without up to `width` columns of white space."""
    at = columns = 0
    while at < len(line) and columns < width and line[at] in " \t":
        columns += TAB if line[at] == "\t" else 1
        at += 1
    return line[at:]


def _width(indent: str) -> int:
    return sum(TAB if character == "\t" else 1 for character in indent)


DEFINITION = re.compile(r"^(?:async )?def (\w+)\(", re.MULTILINE)  # of a function that is no method
LONGEST_CODE = 200_000  # characters; longer code is wrong without a run
TEST_PACKAGES = ("asyncio", "pytest", "unittest")
COLUMNS = ("tests", "test_list", "test", "input_output")
SOLUTION_COLUMNS = ("canonical_solution", "code", "solution", "solutions")
# Of the 3,312 gold solutions of HumanEval, MBPP and LeetCode that pass their tests, all but 5 need less than a tenth
# of a second of processor time; a program may take ten times as long as the gold one, and half a second in any case.
FLOOR_SECONDS = 0.5
MULTIPLE = 10
WALL = 3  # seconds on the clock for a second of processor time: the machine has other things to do
LEAST_WALL = 3.0  # seconds on the clock in any case
MOST_ROWS = 3  # that the log names
MOST_PROGRAMS = 1 << 14  # that are remembered: more than a step or a few evaluations have

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PromptTests:
    """The tests of one prompt, in one of the forms a sandbox knows."""

    test_spec: Mapping[str, Any] | None = None  # of a unit-test job
    pairs: tuple[tuple[str, str], ...] = ()  # (standard input, expected output)
    prelude: str = ""  # the data's own code: before the completion's and before the tests
    total: int = 0  # how many there are; of a program, how many it holds
    unscorable: str = ""  # why they can judge nothing

    @property
    def names(self) -> frozenset[str]:
        """What the tests expect the code to define."""
        if self.test_spec is None:
            return frozenset()
        entry = self.test_spec["entry_point"]
        if entry:
            return frozenset((entry,))
        tests = self.test_spec.get("program") or "\n".join((self.test_spec["setup"], *self.test_spec["tests"]))
        return frozenset(read_suite(tests).expected_names())

    @property
    def packages(self) -> tuple[str, ...]:
        """What a worker should have loaded before the tests come: importing it takes longer than most tests."""
        if self.test_spec is None or self.test_spec["form"] == "calls":
            return ()
        text = self.test_spec.get("program") or "\n".join(self.test_spec["tests"])
        is_needed = not read_suite(text).imports.isdisjoint(TEST_PACKAGES) or prepared_suite(text).uses_pytest
        return TEST_PACKAGES if is_needed else ()

    @property
    def is_program(self) -> bool:
        """True where the tests are one program, which alone knows how many assertions it makes."""
        return self.test_spec is not None and self.test_spec["form"] == "program"


@dataclass(eq=False)
class CandidateProgram:
    """The code of one completion, or of several that are equal, with the tests of its prompt and what came of them."""

    prompt: Prompt
    tests: PromptTests
    code: str | None  # None: the completion has none
    results: tuple[JobResult, ...] = ()

    @property
    def seconds(self) -> float:
        """What its runs took, on the clock."""
        return sum(result.seconds for result in self.results)

    @property
    def is_out_of_time(self) -> bool:
        """True where one of its runs met its time limit."""
        return any(result.is_out_of_time for result in self.results)


@dataclass
class RunMemory:
    """What is known of a run's prompts from earlier calls. It changes the order and the time limits, no verdict."""

    limits: dict[tuple[str, str], float] = field(default_factory=dict)  # (prompt, gold code): processor seconds
    seconds: dict[str, float] = field(default_factory=dict)  # prompt: its slowest program of the last call
    timeouts: deque[tuple[str, float]] = field(default_factory=deque)  # (prompt, seconds), not yet noted
    rows: dict[str, float] = field(default_factory=dict)  # prompt: seconds lost to time limits since the start
    num_programs: int = 0
    num_timeouts: int = 0
    last_seconds: list[float] = field(default_factory=list)  # of each completion of the last call
    # what was run since notes were taken, by prompt and code: completions of a step come in several calls
    programs: dict[tuple[int, str | None], CandidateProgram] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeTests:
    """Runs the completions' code against the tests of their prompts."""

    limits_itself: ClassVar[bool] = True  # every job has limits of its own
    notes_add_up: ClassVar[bool] = True  # those of several processes
    ahead: ClassVar[int] = 8  # calls at once: a straggler must not hold up those that end after it

    name: str
    partial: bool
    limits: Limits
    workers: int
    tolerance: float
    prelude: str
    deterministic: bool = True
    _memory: RunMemory = field(default_factory=RunMemory, compare=False, repr=False)

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        return self.scores(prompts, [sample.completion for sample in samples])

    def prepare(self) -> None:
        """Start the workers: it takes a moment that should not count against a time limit."""
        shared_sandbox(self.workers).start()

    def scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        """k of n tests passed, or 1 for all and 0 otherwise; None for a prompt whose data gives no usable test."""
        tests: dict[int, PromptTests] = {}
        programs: dict[tuple[int, str | None], CandidateProgram] = {}  # equal programs of one prompt are run once
        written: list[CandidateProgram] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            if id(prompt) not in tests:
                tests[id(prompt)] = tests_of(prompt, self.prelude, self.tolerance)
            prompt_tests = tests[id(prompt)]
            code = code_of(completion, prompt_tests.names)
            key = (id(prompt), code)
            known = self._memory.programs.get(key) or CandidateProgram(prompt, prompt_tests, code)
            written.append(programs.setdefault(key, known))
        self._run([program for key, program in programs.items() if key not in self._memory.programs])
        self._memory.programs |= programs
        for key in list(self._memory.programs)[:-MOST_PROGRAMS]:
            self._memory.programs.pop(key, None)
        self._note(written)
        self._memory.last_seconds = [program.seconds for program in written]
        return [self._score(program) for program in written]

    def apart(self) -> CodeTests:
        """The same reward for evaluations. What it notes belongs to no step, so nobody takes its notes: a program that
        an earlier evaluation ran is not run again, and most of a greedy policy's programs stay as they are."""
        return replace(self, _memory=RunMemory(limits=self._memory.limits, timeouts=deque(maxlen=0)))

    def begin_timing_golds(self, prompts: Sequence[Prompt]) -> None:
        """Time the gold solutions that take long, in a thread, while nobody waits: the first program that does would
        wait for its prompt's, and then be run once more."""

        def work() -> None:
            with contextlib.suppress(WhetError):  # whoever scores the first completion says it
                self._time_slow_golds(prompts)

        Thread(target=work, name="whet-golds", daemon=True).start()

    def _time_slow_golds(self, prompts: Sequence[Prompt]) -> None:
        golds: list[CandidateProgram] = []
        for prompt in prompts:
            if (gold := gold_solution(prompt)) is not None:
                tests = tests_of(prompt, self.prelude, self.tolerance)
                golds.append(CandidateProgram(prompt, tests, code_of(gold, tests.names)))
        self._run_within(golds, [FLOOR_SECONDS] * len(golds))
        self._measure_golds([gold for gold in golds if gold.is_out_of_time])

    def take_notes(self) -> dict[str, float]:
        """How many programs ran into a time limit since the last call, and the seconds they were allowed."""
        self._memory.programs.clear()  # a resumed run does not know what was run before
        taken = [self._memory.timeouts.popleft() for _ in range(len(self._memory.timeouts))]
        if not taken:
            return {}
        return {"code_timeouts": float(len(taken)), "code_timeout_seconds": sum(seconds for _, seconds in taken)}

    def take_seconds(self) -> list[float]:
        """What the program of each completion of the last call took; equal programs were run once and took the same."""
        return self._memory.last_seconds

    def _run(self, programs: Sequence[CandidateProgram]) -> None:
        """Run all programs; those whose prompts were slow before go first, so that nobody waits for them at the end.

        A gold solution is run only where it matters: when a program used up the least time that all have.
        """
        slow_first = sorted(programs, key=lambda program: -self._memory.seconds.get(program.prompt.id, 0.0))
        self._run_within(slow_first, [self._seconds(program) for program in slow_first])
        late = [program for program in slow_first if program.is_out_of_time and self._seconds_of_gold(program) is None]
        self._measure_golds(late)
        again = [program for program in late if self._seconds(program) > FLOOR_SECONDS]
        self._run_within(again, [self._seconds(program) for program in again])

    def _run_within(self, programs: Sequence[CandidateProgram], seconds: Sequence[float]) -> None:
        """Run programs with so much processor time each, where the packages their tests need are loaded."""
        jobs = [self._jobs(program, allowed) for program, allowed in zip(programs, seconds, strict=True)]
        under_way = []
        for wanted in sorted({program.tests.packages for program in programs}):
            chosen = [number for number, program in enumerate(programs) if program.tests.packages == wanted]
            sandbox = shared_sandbox(self.workers, wanted)
            under_way.append((chosen, sandbox, sandbox.submit([job for number in chosen for job in jobs[number]])))
        for chosen, sandbox, batch in under_way:
            results = iter(sandbox.results(batch))
            for number in chosen:
                programs[number].results = tuple(next(results) for _ in jobs[number])

    def _jobs(self, program: CandidateProgram, seconds: float) -> list[Job]:
        tests, code = program.tests, program.code
        limits = replace(self.limits, cpu_seconds=seconds, wall_seconds=self._wall_seconds(seconds))
        if tests.unscorable:
            return []
        if tests.test_spec is not None:
            # without code, only to see whether the tests can judge at all
            sources = ("",) if code is None else sources_of(code, program.prompt)
            return [UnitTestJob(sources, tests.test_spec, tests.prelude, limits)]
        if code is None:
            return []
        return [ProgramJob(f"{tests.prelude}\n{code}", stdin, limits) for stdin, _ in tests.pairs]

    def _wall_seconds(self, seconds: float) -> float:
        """What a run of so much processor time may take on the clock."""
        return min(self.limits.wall_seconds, max(WALL * seconds, LEAST_WALL))

    def _seconds(self, program: CandidateProgram) -> float:
        """The processor time of a run: as the gold solution says, the least where it is not known yet."""
        measured = self._seconds_of_gold(program)
        return min(self.limits.cpu_seconds, FLOOR_SECONDS if measured is None else measured)

    def _seconds_of_gold(self, program: CandidateProgram) -> float | None:
        """The limit that the gold solution sets; the configured one without a gold solution; None: not yet known."""
        gold = gold_solution(program.prompt)
        return self.limits.cpu_seconds if gold is None else self._memory.limits.get((program.prompt.id, gold))

    def _measure_golds(self, late: Sequence[CandidateProgram]) -> None:
        """Run the gold solutions of these programs' prompts, once each; one that fails its tests sets no limit."""
        golds: dict[tuple[str, str], CandidateProgram] = {}
        for program in late:
            gold = gold_solution(program.prompt)
            assert gold is not None
            code = code_of(gold, program.tests.names)
            golds.setdefault((program.prompt.id, gold), CandidateProgram(program.prompt, program.tests, code))
        self._run_within(list(golds.values()), [self.limits.cpu_seconds] * len(golds))
        for key, program in golds.items():
            spent = max((result.processor_seconds for result in program.results), default=0.0)
            # in steps of two: equal runs measure nearly the same, and should allow the same
            allowed = 2.0 ** math.ceil(math.log2(max(FLOOR_SECONDS, MULTIPLE * spent)))
            is_right = self._passed_all(program)
            self._memory.limits[key] = min(allowed, self.limits.cpu_seconds) if is_right else self.limits.cpu_seconds

    def _note(self, programs: Sequence[CandidateProgram]) -> None:
        """Remember who was slow, and count the completions whose programs met a time limit, whoever ran them."""
        memory, before = self._memory, self._memory.num_timeouts
        memory.seconds.update(dict.fromkeys((program.prompt.id for program in programs), 0.0))
        for program in programs:
            memory.num_programs += 1
            name = program.prompt.id
            memory.seconds[name] = max(memory.seconds[name], program.seconds)
            if program.is_out_of_time:
                memory.num_timeouts += 1
                lost = sum(self._lost(program, result) for result in program.results)
                memory.timeouts.append((name, lost))
                memory.rows[name] = memory.rows.get(name, 0.0) + lost
        if len(str(memory.num_timeouts)) > len(str(before)) or (memory.num_timeouts and not before):
            costly = sorted(memory.rows.items(), key=lambda row: -row[1])[:MOST_ROWS]
            worst = ", ".join(f"{name} ({seconds:g} s)" for name, seconds in costly)
            logger.warning(
                "%d of %d programs so far ran into their time limit, and count as wrong from there on; the rows that "
                "cost most: %s",
                *(memory.num_timeouts, memory.num_programs, worst),
            )

    def _lost(self, program: CandidateProgram, result: JobResult) -> float:
        """The seconds that a run was allowed, by the limit it met: equal runs count the same."""
        if not result.is_out_of_time:
            return 0.0
        seconds = self._seconds(program)
        is_busy = 2 * result.processor_seconds > seconds
        return float(seconds if is_busy else self._wall_seconds(seconds))

    def _score(self, program: CandidateProgram) -> float | None:
        tests, results = program.tests, program.results
        reason = tests.unscorable or next((result.unscorable for result in results if result.unscorable), "")
        if reason:
            return unscorable(reason, program.prompt)
        if any(result.is_lost for result in results):
            return unscorable("the sandbox lost the job", program.prompt)
        if program.code is None or any(result.ended == NOT_REACHED for result in results):
            return 0.0
        passed, total = self._passed(program)
        return passed / total if self.partial else float(self._passed_all(program))

    def _passed_all(self, program: CandidateProgram) -> bool:
        passed, total = self._passed(program)
        return 0 < total == passed and all(result.ended == "" for result in program.results)

    def _passed(self, program: CandidateProgram) -> tuple[int, int]:
        """How many tests it passed, of how many."""
        tests, results = program.tests, program.results
        if tests.test_spec is None:
            passed = [
                result.ended == "" and result.exit_code == 0 and same_output(result.stdout, expected, self.tolerance)
                for result, (_, expected) in zip(results, tests.pairs, strict=True)
            ]
        else:
            passed = [outcome for result in results for outcome in result.passed]
        ended_well = all(result.ended == "" for result in results)
        # how many assertions a program makes is known when it ends; before that, at least those it holds and one more
        least = 0 if tests.is_program and ended_well else max(tests.total, len(passed) + tests.is_program)
        return sum(passed), max(len(passed), least, *(result.planned for result in results))


def code_tests(
    *,
    partial: bool = True,
    seconds: float = 5.0,
    memory_mb: int = 1024,
    workers: int = 0,
    tolerance: float = 1e-6,
    prelude: str = "",
) -> CodeTests:
    """The share of tests the completion's code passes, in [0, 1]; with `partial=False` 1 for all of them, else 0.

    `seconds` is the most processor time of one run (all tests of one prompt; with standard input, of one test); the
    wall clock allows three times as much. Where the row has a gold solution that passes, a run gets ten times the gold
    one's time, at least half a second. After a hang or a crash the tests that were left count as failed.
    `tolerance` is for floats where data gives JSON or printed numbers; assertions compare as they are written.
    `prelude` is code every completion may rely on, such as `from typing import *`. `workers` 0 is one a core.
    """
    if seconds <= 0 or not math.isfinite(seconds):
        raise WhetError(f"reward 'code_tests' has seconds = {seconds}; give a number above 0")
    if not 0 <= tolerance < 1:
        raise WhetError(f"reward 'code_tests' has tolerance = {tolerance}; give a share in [0, 1)")
    limits = Limits(cpu_seconds=seconds, wall_seconds=WALL * seconds, memory_mb=memory_mb)
    return CodeTests("code_tests", partial, limits, workers, tolerance, prelude)


def code_of(completion: str, names: Collection[str] = ()) -> str | None:
    """The last Python block after the thinking, else the last block without a language, else the whole text.

    Where blocks differ in it, the last one that defines one of `names`: an example of use may follow the code.
    """
    text = final_part(completion)
    if not text.strip():
        return None
    candidates = fenced_blocks(text)
    if not candidates:
        answers = tagged(text)
        candidates = [("", answers[-1] if answers and "def " in answers[-1] else text)]
    for wanted in (is_python, lambda language: not language, lambda _: True):
        blocks = [code for language, code in candidates if wanted(language)]
        if blocks:
            break
    defining = [code for code in blocks if any(_defines(code, name) for name in names)]
    code = (defining or blocks)[-1]
    return code if len(code) <= LONGEST_CODE else None


def _defines(code: str, name: str) -> bool:
    pattern = rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{re.escape(name)}\b|^{re.escape(name)}[ \t]*[:=]"
    return re.search(pattern, code, re.MULTILINE) is not None


def sources_of(code: str, prompt: Prompt) -> tuple[str, ...]:
    """What runs for a completion: its code; after the prompt's own beginning where the prompt is one.

    A completion that only continues the prompt is joined to it; one that starts over runs after it, so that it may use
    its imports, and replaces what it defines again.
    """
    start = _opening(prompt)
    if not start:
        return (textwrap.dedent(code),)
    return (start + "\n" + code,) if _continues(code) else (start, code)


def gold_solution(prompt: Prompt) -> str | None:
    """The row's own solution, where it has one."""
    for column in SOLUTION_COLUMNS:
        value = prompt.meta.get(column)
        value = value[0] if isinstance(value, list | tuple) and value else value
        if isinstance(value, str) and value.strip():
            return value
    return None


def entry_point(prompt: Prompt) -> str:
    """The function that the tests are about: as the data names it, or the only one the prompt or its solution defines.

    "" where neither says: the completion may then have only one function that no other one calls.
    """
    entry = prompt.meta.get("entry_point")
    if isinstance(entry, str) and entry:
        return entry
    for column in ("prompt", "starter_code", "canonical_solution", "code", "solution"):
        text = prompt.meta.get(column) if column != "prompt" else prompt.question()
        names = set(DEFINITION.findall(text)) if isinstance(text, str) else set()
        if len(names) == 1:
            return str(names.pop())
    return ""


def _continues(code: str) -> bool:
    first = next((line for line in code.splitlines() if line.strip()), "")
    return first[:1] in (" ", "\t")


def _opening(prompt: Prompt) -> str:
    """The prompt as code, where its data has an entry point and the prompt is the beginning of that function."""
    entry = entry_point(prompt)
    if not entry:
        return ""
    for text in (prompt.meta.get("prompt"), prompt.meta.get("starter_code"), prompt.text, prompt.question()):
        if isinstance(text, str) and f"def {entry}" in text and _is_code(text):
            return text
    return ""


@functools.lru_cache(maxsize=4096)
def _is_code(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def tests_of(prompt: Prompt, prelude: str, tolerance: float) -> PromptTests:
    """The prompt's tests, or why there are none to judge by."""
    column_value = _given(prompt)
    if prompt.meta.get("unscorable"):
        return PromptTests(unscorable="its `unscorable` column says so")
    if column_value in ([], {}) or (isinstance(column_value, str) and not column_value.strip()):
        return PromptTests(unscorable="the tests are empty")
    prelude = "\n".join(part for part in (prelude, _imports(prompt), _opening(prompt)) if part)
    entry = entry_point(prompt)
    if isinstance(column_value, Mapping) and isinstance(column_value.get("functional"), str):
        column_value = column_value["functional"]
    if isinstance(column_value, str):
        _check_parses(column_value, prompt)
        suite = read_suite(column_value)
        test_spec: dict[str, Any] = {"form": "program", "program": column_value, "entry_point": entry}
        return PromptTests(test_spec, (), prelude, suite.num_results, suite.why_unscorable)
    if isinstance(column_value, list) and all(isinstance(test, str) for test in column_value):
        setup = str(prompt.meta.get("test_setup_code") or "")
        _check_parses("\n".join([setup, *column_value]), prompt)
        test_spec = {"form": "assertions", "tests": column_value, "setup": setup, "entry_point": entry}
        total = sum(not read_suite(test).why_unscorable for test in column_value)
        return PromptTests(
            test_spec, (), prelude, total, "" if total else read_suite("\n".join(column_value)).why_unscorable
        )
    return _cases(column_value, prompt, prelude, tolerance)


def _given(prompt: Prompt) -> Any:
    for column in COLUMNS:
        if prompt.meta.get(column) is not None:
            return _unpacked(prompt.meta[column])
    if isinstance(prompt.answer, list | dict):
        return prompt.answer
    raise WhetError(
        f"reward 'code_tests' needs tests, and prompt {prompt.id!r} has none of the columns {', '.join(COLUMNS)} "
        f"(it has: {', '.join(sorted(prompt.meta)) or 'none'}); name the column of the tests so, or leave the row out"
    )


def _unpacked(value: Any) -> Any:
    """Lists and objects that data carries as JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return list(value) if isinstance(value, tuple) else value


def _imports(prompt: Prompt) -> str:
    lines = prompt.meta.get("test_imports") or ()
    return "\n".join([lines] if isinstance(lines, str) else [str(line) for line in lines])


def _check_parses(tests: str, prompt: Prompt) -> None:
    if not _is_code(tests):
        raise WhetError(
            f"the tests of prompt {prompt.id!r} are not Python: {tests[:80]!r}; fix them, or give the row an "
            "`unscorable` column that is true"
        )


def _cases(tests: Any, prompt: Prompt, prelude: str, tolerance: float) -> PromptTests:
    """Input and output pairs: of a function where one is named, of standard input and output otherwise."""
    entry = str(prompt.meta.get("entry_point") or prompt.meta.get("fn_name") or "")
    functional = bool(entry)
    if isinstance(tests, Mapping):
        entry = str(tests.get("fn_name") or entry)
        functional = bool(entry)
        inputs, outputs = tests.get("inputs", tests.get("input")), tests.get("outputs", tests.get("output"))
    else:
        rows = tests if isinstance(tests, list) else []
        is_row = all(isinstance(row, Mapping) and "input" in row and "output" in row for row in rows)
        inputs = [row["input"] for row in rows] if is_row else None
        outputs = [row["output"] for row in rows] if is_row else None
        if is_row and rows and "testtype" in rows[0]:
            functional = rows[0]["testtype"] == "functional"
    is_paired = isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) and inputs
    if not is_paired or (functional and not entry):
        raise WhetError(
            f"the tests of prompt {prompt.id!r} have no form that reward 'code_tests' knows ({str(tests)[:80]}); give "
            "a list of assertions, a program with an entry_point, or as many inputs as outputs"
        )
    assert isinstance(inputs, list) and isinstance(outputs, list)
    if functional:
        cases = [(_arguments(text), _json(output)) for text, output in zip(inputs, outputs, strict=True)]
        test_spec = {"form": "calls", "entry_point": entry, "cases": cases, "tolerance": tolerance}
        return PromptTests(test_spec=test_spec, prelude=prelude, total=len(cases))
    pairs = tuple((_lines(text), _lines(wanted)) for text, wanted in zip(inputs, outputs, strict=True))
    return PromptTests(pairs=pairs, prelude=prelude, total=len(pairs))


def _arguments(inputs: Any) -> list[Any]:
    """The arguments of a call: a list as it is; text has one JSON value a line."""
    if isinstance(inputs, str):
        return [_json(line) for line in inputs.splitlines() if line.strip()]
    return list(inputs) if isinstance(inputs, list | tuple) else [inputs]


def _json(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _lines(text: Any) -> str:
    return "\n".join(map(str, text)) if isinstance(text, list | tuple) else str(text)


def same_output(printed: str, expected: str, tolerance: float) -> bool:
    """Equal word by word, line by line, white space and blank lines at the end aside; numbers within tolerance."""
    lines = [[line.split() for line in text.rstrip().splitlines()] for text in (printed, expected)]
    if [len(line) for line in lines[0]] != [len(line) for line in lines[1]]:
        return False
    words = [[word for line in text for word in line] for text in lines]
    return all(_same_word(one, other, tolerance) for one, other in zip(words[0], words[1], strict=True))


def _same_word(printed: str, expected: str, tolerance: float) -> bool:
    if printed == expected:
        return True
    # only where the data writes a fraction: whole numbers are exact, and "nan" is a word
    if not re.fullmatch(r"[+-]?\d*\.\d*(?:[eE][+-]?\d+)?", expected):
        return False
    try:
        return math.isclose(float(printed), float(expected), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False
