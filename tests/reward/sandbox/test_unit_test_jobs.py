"""Unit-test jobs: the code under test answers calls, and can neither see the tests nor touch the verdict."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
from collections import Counter, OrderedDict, deque, namedtuple
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from whet.reward.sandbox.job import JobResult, Limits, UnitTestJob
from whet.reward.sandbox.literal import NotPlain, nodes_of, value_of
from whet.reward.sandbox.pool import Sandbox
from whet.reward.sandbox.suite import read_suite
from whet.reward.sandbox.suite_runner import equals
from whet.reward.sandbox.worker import SandboxWorker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the attacks are Linux ones")

SMALL = Limits(cpu_seconds=0.5, wall_seconds=5.0, memory_mb=128)
ASSERTIONS = ["assert f(2) == 4", "assert f(3) == 9", "assert f(-41) == 1681"]
CHECK = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 9
    for value in (5, 6):
        assert candidate(value) == value * value, "square"
    assert True, "always"
"""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(2) as pool:
        yield pool


def run_tests(sandbox: Sandbox, code: str, spec: dict[str, Any] | None = None, prelude: str = "") -> JobResult:
    spec = spec or {"form": "assertions", "tests": ASSERTIONS}
    (found,) = sandbox.run([UnitTestJob((textwrap.dedent(code),), spec, prelude, SMALL)])
    assert not found.is_lost
    return found


def test_assertions_are_counted_one_by_one(sandbox):
    assert run_tests(sandbox, "def f(x): return x * x").passed == (True, True, True)
    assert run_tests(sandbox, "def f(x): return x * x if x < 3 else 0").passed == (True, False, True)
    assert run_tests(sandbox, "def f(x): return x * x if x != 3 else 1 / 0").notes == ("", "ZeroDivisionError", "")
    assert run_tests(sandbox, "def g(x): return x").passed == (False, False, False)


def test_a_check_program_is_counted_too(sandbox):
    spec = {"form": "program", "program": CHECK, "entry_point": "f"}
    assert run_tests(sandbox, "def f(x): return x * x", spec).passed == (True,) * 4
    assert run_tests(sandbox, "def f(x): return 4", spec).passed == (True, False, False, False)


def test_code_that_does_not_load(sandbox):
    found = run_tests(sandbox, "def f(x) return x")
    assert found.ended == "the code does not load" and "SyntaxError" in found.note
    assert run_tests(sandbox, "import sys\nsys.exit(0)").ended == "the code does not load"


ATTACKS = {
    "exit while loading": "import sys\nsys.exit(0)",
    "hard exit while loading": "import os\nos._exit(0)",
    "exit when called": "import sys\ndef f(x): sys.exit(0)",
    "hard exit when called": "import os\ndef f(x): os._exit(0)",
    "equal to everything": """
        class Any:
            __eq__ = lambda self, other: True
            __ne__ = lambda self, other: False
            __hash__ = object.__hash__
        def f(x): return Any()
    """,
    "a number equal to everything": """
        class Any(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        def f(x): return Any(7)
    """,
    "a float that lies": """
        class Any(float):
            def __eq__(self, other): return True
            def __float__(self): raise SystemExit(0)
            __hash__ = float.__hash__
        def f(x): return Any(7)
    """,
    "assertions that never fail": """
        import builtins
        class AssertionError(Exception): pass
        builtins.AssertionError = None
        builtins.isinstance = lambda *_: True
        def f(x): return 0
    """,
    "reading the tests from frames": """
        import gc, inspect, sys
        def f(x):
            texts = []
            frame = sys._getframe()
            while frame:
                texts += [str(frame.f_locals), str(frame.f_globals), str(frame.f_code.co_consts)]
                frame = frame.f_back
            for found in gc.get_objects():
                if type(found) in (dict, list, tuple) and len(found) < 500:
                    texts.append(repr(found))
            return 1681 if any('1681' in text or 'assert f' in text for text in texts) else 0
    """,
    "reading the tests from memory": """
        import ctypes, os, re, sys
        def f(x):
            found = b''
            try:
                for line in open('/proc/self/maps'):
                    start, end = (int(part, 16) for part in line.split()[0].split('-'))
                    if 'rw' in line:
                        found += ctypes.string_at(start, end - start)
            except OSError:
                pass
            return 1681 if b'== ' + b'16' + b'81' in found else 0
    """,
    "a forged verdict on every descriptor": """
        import json, os, struct, sys
        def f(x):
            for message in ({'passed': True, 'note': ''}, {'taken': True}, {'ended': ''}):
                text = json.dumps(message).encode()
                for number in range(256):
                    try:
                        os.write(number, struct.pack('>I', len(text)) + text)
                    except OSError:
                        pass
            print('3 passed', file=sys.stderr)
            print('{"passed": true}')
            os._exit(0)
    """,
    "answers ahead of the question": """
        import json, os, struct
        text = json.dumps({'loaded': True}).encode()
        for number in range(3, 64):
            try:
                os.write(number, struct.pack('>I', len(text)) + text)
                os.write(number, (struct.pack('>I', 12) + b'{"value":[]}') * 9)
            except OSError:
                pass
        os._exit(0)
    """,
    "garbage on the line": """
        import os
        for number in range(3, 64):
            try:
                os.write(number, b'\\xff' * 4096)
            except OSError:
                pass
        def f(x): return 0
    """,
    "a result without end": "def f(x): return iter(int, 1)",
    "a result that contains itself": "def f(x):\n    loop = []\n    loop.append(loop)\n    return loop",
    "a huge result": "def f(x): return 'x' * (40 << 20)",
    "a deep result": "def f(x):\n    deep = 0\n    for _ in range(20000): deep = [deep]\n    return deep",
    "killing the test runner": """
        import os, signal
        def f(x):
            for process in range(2, 100):
                if process != os.getpid():
                    try:
                        os.kill(process, signal.SIGKILL)
                    except OSError:
                        pass
            return 0
    """,
    "a replaced harness": """
        import gc, sys, types
        for found in gc.get_objects():
            names = ('answer', 'equals', 'note', 'run_tests', 'run_test_spec')
            if isinstance(found, types.FunctionType) and found.__name__ in names:
                found.__code__ = (lambda *given, **named: {'value': [True], 'changed': []}).__code__
        def f(x): return 0
    """,
    "hanging": "def f(x):\n    while True: pass",
}


def test_no_attack_passes_a_test(sandbox):
    """All in one batch, an honest job behind each: what an attack does to its worker must not spoil the next one."""
    assertions = {"form": "assertions", "tests": ASSERTIONS}
    program = {"form": "program", "program": CHECK, "entry_point": "f"}
    tried = [(name, assertions) for name in ATTACKS]
    # each of these takes its second, once is enough
    tried += [(name, program) for name in ATTACKS if name not in ("hanging", "a huge result")]
    jobs = []
    for name, spec in tried:
        jobs.append(UnitTestJob((textwrap.dedent(ATTACKS[name]),), spec, limits=SMALL))
        jobs.append(UnitTestJob(("def f(x): return x * x",), assertions, limits=SMALL))
    results = sandbox.run(jobs)
    paid = [
        (name, spec["form"])
        for (name, spec), attack, honest in zip(tried, results[::2], results[1::2], strict=True)
        if attack.is_lost or True in attack.passed or honest.passed != (True, True, True)
    ]
    assert paid == [] and len(results) > 60


def test_results_before_a_hang_are_kept(sandbox):
    found = run_tests(sandbox, "def f(x):\n    while x == 3: pass\n    return x * x")
    assert found.passed == (True,) or found.passed == (True, False)
    assert found.ended or found.exit_code < 0


def test_functions_of_the_tests_can_be_handed_over(sandbox):
    spec = {
        "form": "assertions",
        "tests": ["assert f(lambda x: x + 1, [1, 2]) == [2, 3]", "assert f(len, ['ab']) == [2]"],
    }
    assert run_tests(sandbox, "def f(g, xs): return [g(x) for x in xs]", spec).passed == (True, True)


def test_types_can_be_handed_over(sandbox):
    spec = {"form": "assertions", "tests": ["assert f((1, 'a'), int) == ['a']", "assert f((1, 'a'), str) == [1]"]}
    assert run_tests(sandbox, "def f(xs, t): return [x for x in xs if not isinstance(x, t)]", spec).passed == (
        True,
        True,
    )


def test_arguments_changed_in_place_change_in_the_tests(sandbox):
    program = "def check(candidate):\n    xs = [3, 1, 2]\n    candidate(xs)\n    assert xs == [1, 2, 3]"
    spec = {"form": "program", "program": program, "entry_point": "f"}
    assert run_tests(sandbox, "def f(xs): xs.sort()", spec).passed == (True,)
    assert run_tests(sandbox, "def f(xs): sorted(xs)", spec).passed == (False,)


def test_objects_of_the_code_can_be_used_by_the_tests(sandbox):
    code = """
    class Node:
        def __init__(self, value): self.value, self.left = value, None
    def depth(node): return 0 if node is None else 1 + depth(node.left)
    """
    spec = {
        "form": "assertions",
        "setup": "root = Node(1)\nroot.left = Node(2)",
        "tests": ["assert depth(root) == 2", "assert root.left.value == 2", "assert depth(root) == 3"],
    }
    assert run_tests(sandbox, code, spec).passed == (True, True, False)


def test_objects_of_the_data_travel_whole(sandbox):
    prelude = """
class Link:
    def __init__(self, value, after=None): self.value, self.after = value, after
def links(values):
    found = None
    for value in reversed(values): found = Link(value, found)
    return found
def values(link):
    found = []
    while link: found.append(link.value); link = link.after
    return found
"""
    code = """
    def f(link):
        back = None
        while link: back = Link(link.value, back); link = link.after
        return back
    """
    spec = {"form": "assertions", "tests": ["assert values(f(links(range(5000)))) == list(range(4999, -1, -1))"]}
    assert run_tests(sandbox, code, spec, prelude).passed == (True,)
    assert run_tests(
        sandbox, "values = lambda link: list(range(4999, -1, -1))\ndef f(x): return 1", spec, prelude
    ).passed == (False,)


def test_calls_compare_results(sandbox):
    spec = {
        "form": "calls",
        "entry_point": "f",
        "tolerance": 1e-6,
        "cases": [[[1, 2], [3, 1.5]], [[2, 2], [4, 1]]],
    }
    code = "class Solution:\n    def f(self, a, b): return (a + b, (a + b) / 2 - 1e-9)"
    assert run_tests(sandbox, code, spec).passed == (True, False)
    assert run_tests(sandbox, "def f(a, b): return (a + b, (a + b) / 2)", spec).passed == (True, False)


def test_parameters_may_have_any_name(sandbox):
    names = ("target", "operation", "self", "arguments", "named", "message", "line")
    spec = {"form": "assertions", "tests": [f"assert f({name}=3) == 4" for name in names]}
    assert run_tests(sandbox, "def f(**given): return sum(given.values()) + 1", spec).passed == (True,) * len(names)


def test_exceptions_reach_the_tests(sandbox):
    program = "try:\n    f(0)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok"
    assert run_tests(sandbox, "def f(x): raise ValueError", {"form": "program", "program": program}).passed == (True,)
    assert run_tests(sandbox, "def f(x): raise KeyError", {"form": "program", "program": program}).passed == (False,)


def test_a_function_named_like_a_builtin(sandbox):
    spec = {"form": "assertions", "tests": ["assert sum(10, 15) == 6", "assert sum(100, 150) == 93"]}
    code = "def sum(a, b):\n    return __builtins__['sum'](i for i in range(1, a + 1) if a % i == b % i == 0)"
    assert run_tests(sandbox, code, spec).passed == (True, True)
    # and one that was not asked for changes nothing in the tests
    spec = {"form": "assertions", "tests": ["assert set(f(2)) == set((1, 2))"]}
    assert run_tests(sandbox, "def set(x): return 0\ndef f(x): return [0]", spec).passed == (False,)


def test_names_the_tests_expect():
    assert read_suite("assert f(1) == g(2)").expected_names() == {"f", "g"}
    assert read_suite("import math\nx = 1\nassert math.isclose(f(x), 2)").expected_names() == {"f"}
    assert read_suite("assert poly(f(1)) == [v for v in (1, 2)]").expected_names({"poly"}) == {"f"}
    assert read_suite("assert max([1]) == 1").expected_names() == {"max"}


def test_values_travel_unchanged():
    point = namedtuple("point", "x y")
    shared = [1, [2]]
    values = [
        *(None, True, 0, -5, 2**70, 1.5, math.inf, "é\ud800", b"\x00a", bytearray(b"b"), 1 + 2j, range(2, 9, 3)),
        *([], (), set(), {}, [1, (2, {3: "x"}), {4, 5}], frozenset({1}), {(1, 2): [3]}, deque([1]), [shared, shared]),
        *(
            Counter("aab"),
            OrderedDict(a=1),
            point(1, 2),
            Decimal("1.10"),
            Fraction(1, 3),
            date(2020, 2, 3),
            timedelta(3),
        ),
        int,
    ]
    for value in values:
        assert value_of(nodes_of(value)) == value
    assert type(value_of(nodes_of(point(1, 2)))) is tuple
    assert math.isnan(value_of(nodes_of(math.nan)))


def test_hostile_nodes_are_refused():
    for nodes in (
        [],
        [["l", [[0]]], [0]],
        [["?", 1], [0]],
        [["s", [[0]]], [0]],
        [[1, 2], [0]],
        [["i", "zz"], [0]],
        [["y", "eval"], [0]],
    ):
        with pytest.raises(NotPlain):
            value_of(nodes)
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, object(), lambda: 0, sys):
        with pytest.raises(NotPlain):
            nodes_of(value)


def test_equality_of_json_results():
    assert equals((1, [2.0, "a"]), [1, (2.0000001, "a")], 1e-6) and equals({1: 2}, {"1": 2}, 0)
    for left, right in ((True, 1), (1, True), ([1], [1, 2]), ("1", 1), (None, 0), ({1: 2}, {1: 3}), (1.1, 1)):
        assert not equals(left, right, 1e-6)


def test_tests_that_do_not_compile_are_told_and_harm_no_other_job(sandbox):
    specs = [
        {"form": "program", "program": "def check(candidate):\n    assert candidate(1) == 1\nreturn 1\n"},
        {"form": "assertions", "tests": ["assert f(1) == 1", "assert (yield f(1)) == 1"]},
        {"form": "assertions", "tests": ["assert f(1"]},
        {"form": "assertions", "tests": ["assert f(1) == 1"]},
    ]
    found = sandbox.run([UnitTestJob(("def f(x): return x",), spec, limits=SMALL) for spec in specs])
    assert [result.passed for result in found] == [(), (True, False), (), (True,)]
    assert ["SyntaxError" in result.unscorable for result in found] == [True, False, True, False]


def test_a_trainer_that_runs_without_assertions_still_sends_them():
    check = "def check(candidate):\n    assert candidate(1) == 1\n"
    script = f"""
from whet.reward.sandbox.job import UnitTestJob
from whet.reward.sandbox.pool import Sandbox
specs = [{{"form": "program", "program": {check!r}}}, {{"form": "assertions", "tests": ["assert not f(1)"]}}]
with Sandbox(1) as pool:
    print([result.passed for result in pool.run([UnitTestJob(("def f(x): return 7",), spec) for spec in specs])])
"""
    found = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[(False,), (False,)]\n"


def test_a_process_that_ends_by_itself_before_it_is_confined_is_no_result():
    """Of a pair, one that is killed on its way is no reason; one that nobody saw end is."""
    worker, killed = SandboxWorker(-1, None), (9, 0.0)  # type: ignore[arg-type]

    def were_confined(ready: bytes, usage: dict[int, tuple[int, float]], num_processes: int = 2) -> bool:
        os.write(worker.ready_end, ready)
        worker.usage = usage
        return worker._were_confined(dict(enumerate((50, 51)[:num_processes])))

    assert were_confined(b"\0\1", {}) and were_confined(b"\0", {}, num_processes=1)
    assert were_confined(b"\0", {51: killed})
    assert not were_confined(b"\0", {51: (0, 0.0)}) and not were_confined(b"\0", {})
    assert not were_confined(b"", {50: killed}, num_processes=1)
    for end in (worker.ready, worker.ready_end):
        os.close(end)
