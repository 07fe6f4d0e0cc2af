"""The reward for code that passes its tests. The code runs in the sandbox, the whole batch at once.

The tests of a prompt are read from its columns, in these forms:

    test_list or tests: ["assert f(1) == 2", ...]       with test_setup_code and test_imports where the data has them
    test: "def check(candidate): ...", entry_point: f   or `tests` as one text, or {"functional": text}
    input_output or tests: {"inputs": [...], "outputs": [...]}            programs that read standard input
    the same with "fn_name": f                          calls of a function, arguments and results as JSON
    tests: [{"input": ..., "output": ...}, ...]         either, one by one; "testtype": "functional" marks calls

Where the tests are called, the code under test and the tests live in two processes: the code sees the arguments of
its calls, never an expected value, an assertion or the verdict, so there is nothing to forge and nothing to look
up. What remains possible: a completion can recognise arguments and answer from memory; and a test that compares two
results of the completion with each other (`decode(encode(x)) == x`) judges by values the completion chose.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from whet.reward.answer import final_part
from whet.sandbox import Job, JobResult, Limits, ProgramJob, UnitTestJob, shared_sandbox
from whet.types import Prompt, Sample, WhetError

FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
PYTHON = ("python", "python3", "py", "python2")
LONGEST_CODE = 200_000  # characters; longer code is wrong without a run
COLUMNS = ("tests", "test_list", "test", "input_output")


@dataclass(frozen=True)
class PromptTests:
    """The tests of one prompt, in one of the forms a sandbox knows."""

    test_spec: Mapping[str, Any] | None = None  # of a unit-test job
    pairs: tuple[tuple[str, str], ...] = ()  # (standard input, expected output)
    prelude: str = ""  # the data's own code: before the completion's and before the tests
    total: int = 0  # how many there are; of a program, how many it holds

    @property
    def is_program(self) -> bool:
        """True where the tests are one program, which alone knows how many assertions it makes."""
        return self.test_spec is not None and self.test_spec["form"] == "program"


@dataclass(frozen=True)
class CodeTests:
    """Runs the completions' code against the tests of their prompts."""

    limits_itself: ClassVar[bool] = True  # every job has limits of its own

    name: str
    partial: bool
    limits: Limits
    workers: int
    tolerance: float
    prelude: str
    deterministic: bool = True

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        return self.scores(prompts, [sample.completion for sample in samples])

    def prepare(self) -> None:
        """Start the workers: it takes a moment that should not count against a time limit."""
        shared_sandbox(self.workers).start()

    def scores(self, prompts: Sequence[Prompt], completions: Sequence[str]) -> list[float | None]:
        """k of n tests passed, or 1 for all and 0 otherwise; None for a prompt whose data gives no usable test."""
        jobs: list[Job] = []
        spans: list[tuple[PromptTests, slice] | None] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            tests = tests_of(prompt, self.prelude, self.tolerance)
            first = len(jobs)
            if tests is not None:
                jobs += self._jobs(tests, prompt, completion)
            spans.append(None if tests is None else (tests, slice(first, len(jobs))))
        results = shared_sandbox(self.workers).run(jobs)
        return [None if span is None else self._score(span[0], results[span[1]]) for span in spans]

    def _jobs(self, tests: PromptTests, prompt: Prompt, completion: str) -> list[Job]:
        code = code_of(completion)
        if code is None or len(code) > LONGEST_CODE:
            return []
        if tests.test_spec is None:
            return [ProgramJob(f"{tests.prelude}\n{code}", given, self.limits) for given, _ in tests.pairs]
        return [UnitTestJob(sources_of(code, prompt), tests.test_spec, tests.prelude, self.limits)]

    def _score(self, tests: PromptTests, results: Sequence[JobResult]) -> float | None:
        if not results:  # the completion holds no code to run
            return 0.0
        if any(result.is_lost for result in results):
            return None
        if tests.test_spec is None:
            passed = [
                result.ended == "" and result.exit_code == 0 and same_output(result.stdout, expected, self.tolerance)
                for result, (_, expected) in zip(results, tests.pairs, strict=True)
            ]
        else:
            passed = [each for result in results for each in result.passed]
        ended_well = all(result.ended == "" for result in results)
        # how many assertions a program makes is known when it ends; before that, at least those it holds and one more
        total = len(passed) if tests.is_program and ended_well else max(tests.total, len(passed) + tests.is_program)
        return sum(passed) / total if self.partial else float(ended_well and sum(passed) == total)


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

    `seconds` is processor time, whole seconds, of one run (all tests of one prompt; with standard input, of one
    test); the wall clock allows three times as much. After a hang or a crash the tests that were left count as
    failed. `tolerance` is for floats where data gives JSON or printed numbers; assertions compare as they are
    written. `prelude` is code every completion may rely on, such as `from typing import *`. `workers` 0 is one a core.
    """
    if seconds <= 0 or not math.isfinite(seconds):
        raise WhetError(f"reward 'code_tests' has seconds = {seconds}; give a number above 0")
    if not 0 <= tolerance < 1:
        raise WhetError(f"reward 'code_tests' has tolerance = {tolerance}; give a share in [0, 1)")
    limits = Limits(cpu_seconds=math.ceil(seconds), wall_seconds=3 * seconds, memory_mb=memory_mb)
    return CodeTests("code_tests", partial, limits, workers, tolerance, prelude)


def code_of(completion: str) -> str | None:
    """The last Python block after the thinking, else the last block without a language, else the whole text."""
    text = final_part(completion)
    if not text.strip():
        return None
    blocks = [(match[1].lower(), match[2]) for match in FENCE.finditer(text)]
    for wanted in (PYTHON, ("",)):
        code_blocks = [code for language, code in blocks if language in wanted]
        if code_blocks:
            return code_blocks[-1]
    return text if "```" not in text else (blocks[-1][1] if blocks else text)


def sources_of(code: str, prompt: Prompt) -> tuple[str, ...]:
    """What runs for a completion: its code; after the prompt's own beginning where the prompt is one.

    A completion that only continues the prompt is joined to it; one that starts over runs after it, so that it may use
    its imports, and replaces what it defines again.
    """
    start = _opening(prompt)
    if not start:
        return (code,)
    return (start + "\n" + code,) if _continues(code) else (start, code)


def _continues(code: str) -> bool:
    first = next((line for line in code.splitlines() if line.strip()), "")
    return first[:1] in (" ", "\t")


def _opening(prompt: Prompt) -> str:
    """The prompt as code, where its data has an entry point and the prompt is the beginning of that function."""
    entry = prompt.meta.get("entry_point")
    if not isinstance(entry, str) or not entry:
        return ""
    for text in (prompt.meta.get("prompt"), prompt.text, prompt.question()):
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


def tests_of(prompt: Prompt, prelude: str, tolerance: float) -> PromptTests | None:
    """The prompt's tests; None where its data says there are none to judge by."""
    given = _given(prompt)
    if prompt.meta.get("unscorable") or given in ([], {}, ""):
        return None
    prelude = "\n".join(part for part in (prelude, _imports(prompt), _opening(prompt)) if part)
    entry = str(prompt.meta.get("entry_point") or "")
    if isinstance(given, Mapping) and isinstance(given.get("functional"), str):
        given = given["functional"]
    if isinstance(given, str):
        _check_parses(given, prompt)
        test_spec: dict[str, Any] = {"form": "program", "program": given, "entry_point": entry}
        return PromptTests(test_spec=test_spec, prelude=prelude, total=num_assertions(given))
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        setup = str(prompt.meta.get("test_setup_code") or "")
        _check_parses("\n".join([setup, *given]), prompt)
        test_spec = {"form": "assertions", "tests": given, "setup": setup, "entry_point": entry}
        return PromptTests(test_spec=test_spec, prelude=prelude, total=len(given))
    return _cases(given, prompt, prelude, tolerance)


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


@functools.lru_cache(maxsize=4096)
def num_assertions(program: str) -> int:
    """How many assertions a test program holds, not counting those that are always true."""
    assertions = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Assert)]
    return sum(not (isinstance(node.test, ast.Constant) and node.test.value) for node in assertions)


def _cases(given: Any, prompt: Prompt, prelude: str, tolerance: float) -> PromptTests:
    """Input and output pairs: of a function where one is named, of standard input and output otherwise."""
    entry = str(prompt.meta.get("entry_point") or prompt.meta.get("fn_name") or "")
    functional = bool(entry)
    if isinstance(given, Mapping):
        entry = str(given.get("fn_name") or entry)
        functional = bool(entry)
        inputs, outputs = given.get("inputs", given.get("input")), given.get("outputs", given.get("output"))
    else:
        rows = given if isinstance(given, list) else []
        is_row = all(isinstance(row, Mapping) and "input" in row and "output" in row for row in rows)
        inputs = [row["input"] for row in rows] if is_row else None
        outputs = [row["output"] for row in rows] if is_row else None
        if is_row and rows and "testtype" in rows[0]:
            functional = rows[0]["testtype"] == "functional"
    is_paired = isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) and inputs
    if not is_paired or (functional and not entry):
        raise WhetError(
            f"the tests of prompt {prompt.id!r} have no form that reward 'code_tests' knows ({str(given)[:80]}); give "
            "a list of assertions, a program with an entry_point, or as many inputs as outputs"
        )
    assert isinstance(inputs, list) and isinstance(outputs, list)
    if functional:
        cases = [(_arguments(each), _json(output)) for each, output in zip(inputs, outputs, strict=True)]
        test_spec = {"form": "calls", "entry_point": entry, "cases": cases, "tolerance": tolerance}
        return PromptTests(test_spec=test_spec, prelude=prelude, total=len(cases))
    pairs = tuple((_lines(given), _lines(wanted)) for given, wanted in zip(inputs, outputs, strict=True))
    return PromptTests(pairs=pairs, prelude=prelude, total=len(pairs))


def _arguments(given: Any) -> list[Any]:
    """The arguments of a call: a list as it is; text has one JSON value a line."""
    if isinstance(given, str):
        return [_json(line) for line in given.splitlines() if line.strip()]
    return list(given) if isinstance(given, list | tuple) else [given]


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
