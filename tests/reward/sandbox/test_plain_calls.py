"""Tests that are but calls with an expected result: the verdict of the tests' own process, whatever the code writes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from whet.reward.sandbox import plain
from whet.reward.sandbox.job import JobResult, Limits, UnitTestJob
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.wire import LARGEST_PLAIN, packed

SMALL = Limits(cpu_seconds=0.5, wall_seconds=5.0, memory_mb=128)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as pool:
        yield pool


def both_ways(sandbox: Sandbox, source: str, tests: list[str]) -> tuple[JobResult, JobResult]:
    """Judged by the trainer, and by a process with the tests: a comment as a prelude is enough for that."""
    spec = {"form": "assertions", "tests": tests}
    jobs = [UnitTestJob((source,), spec, prelude, SMALL) for prelude in ("", "# nothing")]
    assert [list(job.streams()) for job in jobs] == [["answers"], ["record"]]
    one, other = sandbox.run(jobs)
    return one, other


SAME = {
    "right and wrong": (
        "def f(x, y=0): return x + y",
        ["assert f(1) == 1", "assert f(1, y=2) == 4", "assert f(2) == 2"],
    ),
    "containers": (
        "def f(x): return {1: (x, {x}), 'a': [b'z', None, 1.5, 2 ** 80, 3j]}",
        ["assert f(7) == {1: (7, {7}), 'a': [b'z', None, 1.5, 1208925819614629174706176, 3j]}", "assert f(1) == {}"],
    ),
    "rows that are one list": ("def f(x): return [[x] * 2] * 2", ["assert f(1) == [[1, 1], [1, 1]]"]),
    "equal and not alike": ("def f(x): return True if x else 1.0", ["assert f(0) == 1", "assert f(1) == 1"]),
    "a tuple is no list": ("def f(): return (1, 2)", ["assert f() == [1, 2]"]),
    "an exception": ("def f(x): return 1 // x", ["assert f(0) == 1", "assert f(1) == 1"]),
    "an exit": ("def f(x): raise SystemExit(0)", ["assert f(0) == 1"]),
    "an early end": ("import os\ndef f(x): return x or os._exit(0)", ["assert f(1) == 1", "assert f(0) == 0"]),
    "does not load": ("def f(:", ["assert f(1) == 1"]),
    "ends while it loads": ("import os; os._exit(0)", ["assert f(1) == 1"]),
    "no such name": ("def g(x): return x", ["assert f(1) == 1"]),
    "a method of Solution": ("class Solution:\n    def f(self, x): return x", ["assert f(1) == 1"]),
    "an object that equals everything": (
        "class All:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef f(): return All()",
        ["assert f() == 1"],
    ),
    "a list that equals everything": (
        "class All(list):\n    def __eq__(self, other): return True\ndef f(): return All([2])",
        ["assert f() == [1]", "assert f() == [2]"],
    ),
    "a value that contains itself": ("def f():\n    a = []\n    a.append(a)\n    return a", ["assert f() == []"]),
    "an endless loop": ("def f(x):\n    while x: pass\n    return x", ["assert f(0) == 0", "assert f(1) == 1"]),
}


def test_the_verdict_is_that_of_a_process_with_the_tests(sandbox):
    different = []
    for name, (source, tests) in SAME.items():
        one, other = both_ways(sandbox, source, tests)
        if (one.passed, one.ended, one.notes) != (other.passed, other.ended, other.notes):
            different.append((name, one, other))
    assert not different


MORE = (
    *("assert f(1) == g(1)", "assert f(x) == 1", "assert f(1) != 1", "assert f(1)", "assert f(f(1)) == 1"),
    *("assert f(1) == 1 == 1", "assert f(*[1]) == 1", "assert f(**{'a': 1}) == 1", "x = 1", "assert f.a(1) == 1"),
    *(
        "assert len(f(1)) == 1",
        "assert f(1) == 1\nassert f(2) == 2",
        "assert candidate(1) == 1",
        "assert f(1) == 'a' * 9",
    ),
)


def test_what_is_more_than_a_call_is_left_to_a_process_with_the_tests():
    assert plain.calls_of(("assert f(1) == 1", "assert f([2], k={'a': (1,)}) == -2.5, 'why'"), "") is not None
    assert [test for test in MORE if plain.calls_of((test,), "") is not None] == []
    assert plain.calls_of(("assert f(1) == 1",) * (plain.MOST_CALLS + 1), "") is None
    assert plain.calls_of((f"assert f(1) == {'1' * plain.LONGEST_TESTS}",), "") is None
    assert plain.calls_of(("assert len([1]) == 1", "assert f(1) == 1"), "") is None  # the built-in one


def written(*answers: Any) -> bytes:
    return packed({"loaded": True}) + b"".join(map(packed, answers))


SHARED = [["t", [1]], *(["t", [[level], [level]]] for level in range(60))]
HOSTILE: dict[str, list[Any]] = {
    "shared parts that unfold for ever": [*SHARED, ["s", [[60]]], [61]],
    "deeper than a stack": [["t", [1]], *(["t", [[level]]] for level in range(3000)), ["s", [[3000]]], [3001]],
    "a reference to nothing": [[7]],
    "a reference back": [["l", [[-1]]], [0]],
    "no reference": [["l", [["x"]]], [0]],
    "a class": [["y", "int"], [0]],
    "no class": [["y", "open"], [0]],
    "an unknown tag": [["zz", 1], [0]],
    "an object of this side": [["m", 0], [0]],
    "an object of the code": [["h", 0, True, "int"], [0]],
    "nothing": [],
    "a text": ["1"],
    "a number like it": [["i", "zz"], [0]],
}


def test_hostile_answers_equal_nothing_and_take_no_time():
    calls = plain.calls_of(("assert f(1) == 1",), "")
    assert calls is not None and plain.judged(calls, written({"value": [1]})).passed == (True,)
    started = time.monotonic()
    verdicts = {name: plain.judged(calls, written({"value": nodes})) for name, nodes in HOSTILE.items()}
    assert {name for name, verdict in verdicts.items() if verdict.passed != (False,)} == set()
    texts = [b"", b"\0\0", b"\xff\xff\xff\xff", packed([1]), b"\0\0\0\1{", packed("loaded"), packed({"value": [1]})]
    assert {plain.judged(calls, text).passed for text in texts} == {()}
    broken = [b"\0\0\0\2[]", packed({})[:3], packed({"value": [1]})[:-1], json.dumps({"value": [1]}).encode()]
    assert {plain.judged(calls, written() + text).passed for text in broken} == {()}
    large = written({"value": ["x" * LARGEST_PLAIN]})
    assert plain.judged(calls, large).passed == () and plain.judged(calls, written({}, {"value": [1]})).passed == (
        False,
    )
    errors = [{"error": 7}, {"error": ["ExceptionGroup", "open"], "text": []}, {"error": []}, {"value": None}]
    assert {plain.judged(calls, written(error)).passed for error in errors} == {(False,)}
    assert time.monotonic() - started < 5
