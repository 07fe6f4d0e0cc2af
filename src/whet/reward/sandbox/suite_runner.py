"""The process of a unit-test job that holds the tests. The code under test lives in another one and is reached by
calls.

Runs inside the sandbox's own processes: only the standard library may be imported here. The expected values, the
assertions and the verdict are all on this side. What comes back from the other side is rebuilt as plain values
(`literal`); for an object that is none, a proxy stands here (`remote`, `suite_peer`).
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import importlib
import inspect
import marshal
import math
import os
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from whet.reward.sandbox import suite_pytest, wire
from whet.reward.sandbox.candidate import load_module, shared_classes
from whet.reward.sandbox.remote import CannotJudge, Remote, RemoteName, RemoteType, asked
from whet.reward.sandbox.suite_log import NOT_REACHED, NOTE, ResultLog
from whet.reward.sandbox.suite_peer import SuitePeer

MODULE = "tests"
# functions of the standard library that look into an object
APPLIED = {
    "dataclasses": ("asdict", "astuple", "fields", "is_dataclass", "replace"),
    "inspect": ("signature", "getdoc", "iscoroutinefunction", "isgeneratorfunction", "isabstract", "getmembers"),
}


class PreparedSuite(NamedTuple):
    """A test program as the trainer prepares it, once per prompt (`suite`). All of it is known to `marshal`."""

    code: types.CodeType  # with its assertions recorded
    holds_check: bool  # something in it can fail
    is_one_test: bool  # as a whole; else each of its tests is one, or each of its assertions
    is_plain: bool  # one test of assertions, which are not recorded, and nothing else
    tests: list[str]  # test functions
    placeholders: list[str]  # such with nothing in them
    classes: list[str]
    uncalled: dict[str, bool]  # functions with checks that nothing calls; whether they hold an assertion
    candidates: list[str]  # test functions that take the code's function
    least: int  # results
    has_assertions: bool  # outside of `uncalled`
    uses_pytest: bool


class NothingReached(BaseException):
    """The code was called, and then no assertion was reached."""


def run_test_spec(channel: int, output: int, test_spec: dict[str, Any]) -> None:
    """Run the tests and write the log; `test_spec` is what the trainer sent for this side alone."""
    log = ResultLog(output)
    connection = SuitePeer(channel, test_spec["secret"])
    load_error = _load_error(channel)
    # code that does not load is tested all the same, without a word of it: what the tests can judge is theirs to show
    log.is_muted = connection.is_closed = load_error is not None
    reason = ""
    try:
        _run(connection, log, test_spec)
        connection.check_claims()
        closing = {"ended": ""}
    except wire.ConnectionClosed:
        closing = {"ended": "the code ended before its tests"}
    except NothingReached:
        closing = {"ended": NOT_REACHED}
    except CannotJudge as error:
        closing, reason = {"ended": "the tests cannot judge"}, str(error)
    except BaseException as error:
        closing = {"ended": "the test program failed", "note": type(error).__name__}
        if not connection.asked:
            reason = f"the tests fail before they call the code: {type(error).__name__}: {error}"
    if not connection.asked:
        reason = reason or "the tests never call the code"
    if reason:
        closing["unscorable"] = reason[:NOTE]
    elif load_error is not None:
        closing = {"ended": "the code does not load", "note": load_error[:NOTE]}
    wire.send(output, closing)


def _load_error(channel: int) -> str | None:
    """What went wrong when the code was loaded; None where it has been loaded."""
    try:
        answer = wire.receive(channel, wire.LARGEST_PLAIN)
    except wire.ConnectionClosed:
        return "the code ended while it was loaded"
    if isinstance(answer, dict) and "error" not in answer:
        return None
    return str(answer.get("text", "")) if isinstance(answer, dict) else ""


def expected_names(free: Collection[str], called: Collection[str], known: Collection[str]) -> set[str]:
    """The names that tests use and nobody defines; where all are built in, those that their statements call."""
    return {*free} - {*known} or {*called}


def _namespace(connection: SuitePeer, test_spec: dict[str, Any]) -> dict[str, Any]:
    """A module with the data's own code, and what the code has under every name that the tests expect of it."""
    module = load_module(MODULE, [test_spec["prelude"]])
    connection.shared = shared_classes(module)
    space = vars(module)
    entry = test_spec["entry_point"]
    names = expected_names(test_spec["free"], test_spec["called"], space) | ({entry} if entry else set())
    connection.watch(test_spec["replaced"])
    entries = {entry} - {*test_spec["free"]} if entry[:1].islower() else set()
    functions = names & {*test_spec["functions"], *entries}
    space.update({name: RemoteName(connection, name) for name in functions})
    space.update(connection.find(names - functions, (entry, *test_spec["callables"])))
    # the tests are the main program
    space["__name__"] = "__main__"
    space["__file__"] = f"/{MODULE}.py"
    sys.modules["__main__"] = module
    for name in test_spec["code_modules"]:
        sys.modules[name] = RemoteModule(name, connection, {member: space[member] for member in sorted(names)})
    # without a name, the other side gives the one function that can be meant
    if isinstance(space.get("candidate"), RemoteName | None):
        space["candidate"] = RemoteName(connection, entry)
    adapt_packages(test_spec["imports"])
    return space


class RemoteModule(types.ModuleType):
    """The completion as a module that tests can import."""

    def __init__(self, name: str, connection: SuitePeer, names: dict[str, Any]) -> None:
        super().__init__(name)
        vars(self).update({**names, "__all__": [*names], "_connection": connection})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self)["_connection"].find({name})[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__"):
            return
        vars(self)["_connection"].ask("assign", 0, [name, value])
        vars(self).pop(name, None)

    def __delattr__(self, name: str) -> None:
        vars(self)["_connection"].ask("delete", 0, [name])


def _run(connection: SuitePeer, log: ResultLog, test_spec: dict[str, Any]) -> None:
    """The set-up, then whatever there is of tests and of calls with an expected result."""
    setup, *tests = marshal.loads(binascii.a2b_base64(test_spec["code"]))
    space = _namespace(connection, test_spec)
    exec(setup, space)
    for test in (PreparedSuite(*parts) for parts in tests):
        if not test.is_one_test:
            SuiteRun(connection, log, space).run(test)
        elif not test.holds_check:  # it is run for those that follow
            with contextlib.suppress(Exception):
                exec(test.code, space)
        else:
            with log:
                exec(test.code, space) if test.is_plain else SuiteRun(connection, log, space).run(test)
    for arguments, expected in test_spec["cases"]:
        with log:
            result = connection.ask("call", test_spec["entry_point"], arguments, {})
            if not equals(result, expected, test_spec["tolerance"]):
                raise AssertionError


class SuiteRun:
    """One test program: it is run as it is written, then whatever tests it defines and does not run itself."""

    def __init__(self, connection: SuitePeer, log: ResultLog, space: dict[str, Any]) -> None:
        self.connection = connection
        self.log = log
        self.space = space
        self.candidate = space["candidate"]
        self.called: set[str] = set()  # test functions that somebody has
        space.update({"__log__": log.assertion, "__tried__": log.tried_assertion, "__test__": self.test})

    def run(self, suite: PreparedSuite) -> None:
        """Run the program, then the tests that it defines and does not run."""
        reached, asked = self.log.reached, self.connection.asked
        with self.recorded_failure(suite.least):
            exec(suite.code, self.space)
        by_name = {name: self.space.get(name) for name in suite.tests if name not in self.called}
        tests = [name for name, function in by_name.items() if isinstance(function, types.FunctionType)]
        own = [name for name in tests if not suite.uses_pytest or name in suite.candidates]
        unittests = [kind for name in suite.classes if _is_unittest(kind := self.space.get(name))]
        num_others = len(own) + sum(map(_num_unittests, unittests))
        is_idle = not own and not unittests and self.connection.asked == asked
        if suite.uses_pytest:
            left_out = {*own, *self.called, *suite.placeholders}
            defined = {name: it for name, it in self.space.items() if name not in left_out and not _is_unittest(it)}
            is_idle = not self.take(suite_pytest.results(defined, self.log, num_others)) and is_idle
        # a function that nobody calls is a test where it is called `check`, or where there is no other test
        called = [name for name in suite.uncalled if callable(self.space.get(name)) and (is_idle or name == "check")]
        checks = [self._check(name) for name in called]
        self.log.plan(num_others)
        for name in own:
            with self.log:
                suite_pytest.completed(self.space[name](*([self.candidate] if name in suite.candidates else [])))
        for check in checks:
            with self.recorded_failure(suite.least):
                check()
        for kind in unittests:
            self.take(_unittest_results(kind, self.log))
        self._settle(suite.has_assertions or any(suite.uncalled[name] for name in called), reached)

    def take(self, results: Iterator[tuple[bool, BaseException | None]]) -> list[bool]:
        """Note each result as it comes; where all are one test, it fails with one of them."""
        taken = []
        for passed, error in results:
            taken.append(passed)
            if not self.log.depth:
                self.log.note(passed, error)
        if self.log.depth and not all(taken):
            raise AssertionError("a test failed")
        return taken

    @contextlib.contextmanager
    def test(self, must_reach: bool, name: str) -> Iterator[None]:
        """The body of a test function: whoever calls it, it is one test, and will not be run again."""
        self.called |= {name}
        with self.log if name else contextlib.nullcontext(), self.log.asserting(must_reach):
            yield

    @contextlib.contextmanager
    def recorded_failure(self, least: int) -> Iterator[None]:
        """What the program itself raises is a failed test; its orderly exit is none."""
        if self.log.depth:
            yield
            return
        try:
            yield
            return
        except wire.ConnectionClosed:
            raise
        except SystemExit as ending:
            if ending.code in (None, 0, False) and not isinstance(ending, Remote):
                return
            error: BaseException = ending
        except Exception as caught:
            error = caught
        if not self.connection.asked:
            raise CannotJudge(f"the tests fail before they call the code: {type(error).__name__}: {error}") from None
        self.log.note(False, error)
        self.log.plan(least - self.log.count)

    def _settle(self, has_assertions: bool, reached: int) -> None:
        """A program of which no assertion was reached has judged nothing, whatever else it did."""
        if self.log.reached == reached and has_assertions:
            if self.log.depth:
                raise AssertionError("no assertion was reached")
            raise NothingReached
        if self.log.depth:
            return
        if not self.log.count:
            for passed in self.log.inside_try:
                self.log.note(passed)
        if not self.log.count:
            self.log.note(True)

    def _check(self, name: str) -> Callable[[], Any]:
        """A call of a function that checks something and that nobody calls."""
        function = self.space[name]
        needed = _needed_parameters(function)
        if len(needed) > 1:
            raise CannotJudge(f"nothing calls {name}, and it needs {', '.join(needed)}")
        return lambda: suite_pytest.completed(function(*([self.candidate] if needed else [])))


def _needed_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters that somebody must give: `mock.patch` gives the first ones of what it decorates itself."""
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    patches = [patch for patch in getattr(function, "patchings", ()) if patch.attribute_name is None]
    return needed[sum(type(patch.new).__name__ == "_SentinelObject" for patch in patches) :]


def adapt_packages(imports: Collection[str]) -> None:
    """The tests are run from here: a program that starts a test runner by itself would look for files."""
    if "unittest" in imports:
        import unittest

        unittest.main = lambda *arguments, **named: None  # type: ignore[misc,assignment]
    if "pytest" in imports:
        with contextlib.suppress(ImportError):
            vars(importlib.import_module("pytest"))["main"] = lambda *arguments, **named: 0
    for name, functions in APPLIED.items():
        if name in imports:
            module = vars(importlib.import_module(name))
            module.update({function: _applied(name, function, module[function]) for function in functions})


def _applied(module: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, done on the other side where it is about an object of the code."""

    @functools.wraps(function)
    def applied(*arguments: Any, **named: Any) -> Any:
        if arguments and isinstance(arguments[0], Remote):
            return asked(arguments[0], "apply", module, name, *arguments[1:], **named)
        if arguments and isinstance(arguments[0], RemoteType):
            return arguments[0]._ask("apply", module, name, *arguments[1:], **named)
        return function(*arguments, **named)

    return applied


def _is_unittest(kind: Any) -> bool:
    unittest = sys.modules.get("unittest")
    return unittest is not None and isinstance(kind, type) and issubclass(kind, unittest.TestCase)


def _num_unittests(kind: Any) -> int:
    import unittest

    return unittest.defaultTestLoader.loadTestsFromTestCase(kind).countTestCases()


def _unittest_results(kind: Any, log: ResultLog) -> Iterator[tuple[bool, BaseException | None]]:
    """Run the methods of one class; each is one test."""
    import unittest

    class Recorder(unittest.TestResult):
        def startTest(self, test: Any) -> None:
            super().startTest(test)
            self.before = len(self.errors) + len(self.failures) + len(self.unexpectedSuccesses)
            self.left_out = len(self.skipped) + len(self.expectedFailures)

        def stopTest(self, test: Any) -> None:
            super().stopTest(test)
            failed = len(self.errors) + len(self.failures) + len(self.unexpectedSuccesses) > self.before
            if failed or len(self.skipped) + len(self.expectedFailures) == self.left_out:
                results.append(not failed)

    results: list[bool] = []
    recorder = Recorder()
    with log.inside():
        unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(recorder)
    # a class that could not be set up has run none of its tests
    missing = len(recorder.errors) + len(recorder.failures) - results.count(False)
    results += [False] * (missing if not recorder.testsRun else 0)
    yield from ((passed, None if passed else AssertionError()) for passed in results)


def equals(result: Any, expected: Any, tolerance: float) -> bool:
    """Equal where JSON could tell: tuples and lists alike, floats within a relative or absolute tolerance."""
    pairs = [(result, expected)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, dict) and isinstance(right, dict):
            named = {str(key): value for key, value in left.items()}
            if named.keys() != {str(key) for key in right}:
                return False
            pairs += [(named[str(key)], value) for key, value in right.items()]
        elif isinstance(left, float) or isinstance(right, float):
            if isinstance(left, bool) or isinstance(right, bool) or not _close(left, right, tolerance):
                return False
        elif isinstance(left, bool) != isinstance(right, bool) or left != right:
            return False
    return True


def _close(left: Any, right: Any, tolerance: float) -> bool:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return False
    try:
        return left == right or math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:
        return False


def run_tests(channel: int, output: int, spec: int) -> None:
    """Take the tests from the trainer's file: the worker that forks the code under test never holds them."""
    test_spec = wire.receive(spec)
    os.close(spec)
    wire.send(output, {"taken": True})
    run_test_spec(channel, output, test_spec)
    os._exit(0)
