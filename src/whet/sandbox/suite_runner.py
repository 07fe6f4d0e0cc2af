"""The process of a unit-test job that holds the tests. The code under test lives in another one and is reached by
calls.

Runs inside the sandbox's own processes: only the standard library may be imported here. The expected values, the
assertions and the verdict are all on this side. What comes back from the other side is rebuilt as plain values
(`literal`); an object that cannot be rebuilt stays a `RemoteObject`, which equals nothing but itself.
"""

from __future__ import annotations

import ast
import builtins
import math
import os
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from whet.sandbox import literal, wire
from whet.sandbox.candidate import load_module, raised, shared_classes

MODULE = "suite_runner"
LARGEST_ANSWER = 1 << 24  # bytes
MOST_TESTS = 10_000
NOTE = 200  # characters


class CandidateConnection:
    """The calls to the other side."""

    def __init__(self, channel: int, shared: dict[str, type]) -> None:
        self.channel = channel
        self.shared = shared
        self.callables: list[Callable[..., Any]] = []

    def ask(self, operation: str, target: str | int, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        message = {
            "operation": operation,
            "target": target,
            "arguments": [self.nodes(each) for each in arguments],
            "named": {name: self.nodes(each) for name, each in named.items()},
        }
        wire.send(self.channel, message)
        while True:
            answer = wire.receive(self.channel, LARGEST_ANSWER)
            if not isinstance(answer, dict):
                raise wire.ConnectionClosed("not an answer")
            if "callback" not in answer:
                break
            wire.send(self.channel, self._called_back(answer))
        if "error" in answer:
            raise raised(answer)
        for argument, nodes in zip(arguments, answer.get("changed", ()), strict=False):
            if nodes is not None and type(argument) in (list, dict, set):
                _overwrite(argument, self.value(nodes))
        return self.value(answer["value"])

    def nodes(self, value: Any) -> list[Any]:
        return literal.nodes_of(value, self._export, self.shared)

    def value(self, nodes: Any) -> Any:
        return literal.value_of(nodes, self._load, self.shared)

    def _export(self, value: Any) -> list[Any]:
        if isinstance(value, RemoteObject):
            return ["m", object.__getattribute__(value, "_target")]
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
            self.callables.append(value)
            return ["h", len(self.callables) - 1]
        return literal.refuse(value)

    def _load(self, tag: str, content: Any) -> Any:
        if tag == "h" and isinstance(content, int):
            return RemoteObject(self, content)
        raise literal.NotPlain(f"unknown tag {tag!r}")

    def _called_back(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self.callables[message["callback"]]
            return {"value": self.nodes(function(*(self.value(each) for each in message["arguments"])))}
        except Exception as error:
            # the kind alone: a message might quote what only this side may know
            return {"error": [kind.__name__ for kind in type(error).__mro__]}


def _overwrite(argument: Any, value: Any) -> None:
    """Give a list, dict or set the content it has on the other side."""
    if type(argument) is not type(value) or argument == value:
        return
    argument.clear()
    (argument.extend if isinstance(argument, list) else argument.update)(value)


class RemoteObject:
    """An object of the code under test: usable, and equal to nothing but itself."""

    def __init__(self, connection: CandidateConnection, target: str | int) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_target", target)

    # positional only: the code under test may have parameters of these names
    def _ask(self, operation: str, /, *arguments: Any, **named: Any) -> Any:
        connection = object.__getattribute__(self, "_connection")
        return connection.ask(operation, object.__getattribute__(self, "_target"), arguments, named)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        return self._ask("call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("assign", name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __len__(self) -> int:
        return int(self._ask("length"))

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self._ask("iterate"))

    def __contains__(self, item: Any) -> bool:
        # asked item by item here: the other side must not be told what is looked for
        return any(each == item for each in self)

    def __repr__(self) -> str:
        return "<an object of the code under test>"


class ResultLog:
    """The results so far, written down as they come: a hang loses none of them."""

    def __init__(self, output: int) -> None:
        self.output = output
        self.count = 0
        self.is_recording = True

    def note(self, passed: bool, error: BaseException | None = None) -> None:
        self.count += 1
        if self.count > MOST_TESTS:
            raise OverflowError(f"more than {MOST_TESTS} assertions")
        kind = "" if error is None else type(error).__name__
        wire.send(self.output, {"passed": passed, "note": kind[:NOTE]})

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, wire.ConnectionClosed) or (error is not None and not isinstance(error, Exception)):
            return False
        self.note(error is None, error)
        return True


def run_test_spec(channel: int, output: int, test_spec: dict[str, Any]) -> None:
    """Run the tests and write the log; `test_spec` is what the trainer sent for this side alone."""
    log = ResultLog(output)
    try:
        answer = wire.receive(channel, LARGEST_ANSWER)
        if not isinstance(answer, dict) or "error" in answer:
            text = str(answer.get("text", "")) if isinstance(answer, dict) else ""
            wire.send(output, {"ended": "the code does not load", "note": text[:NOTE]})
            return
        FORMS[test_spec["form"]](channel, log, test_spec)
        wire.send(output, {"ended": ""})
    except wire.ConnectionClosed:
        wire.send(output, {"ended": "the code ended before its tests"})
    except BaseException as error:
        wire.send(output, {"ended": "the test program failed", "note": type(error).__name__})


def _namespace(channel: int, test_spec: dict[str, Any], tests: str) -> tuple[dict[str, Any], CandidateConnection]:
    """A module with the data's own code, and a `RemoteObject` for every name the tests expect of the completion."""
    module = load_module(MODULE, [test_spec["prelude"]])
    connection = CandidateConnection(channel, shared_classes(module))
    space = vars(module)
    entry = test_spec.get("entry_point") or ""
    for name in expected_names(tests, set(space)) | ({entry} if entry else set()):
        space[name] = RemoteObject(connection, name)
    return space, connection


def expected_names(tests: str, known: set[str]) -> set[str]:
    """The names that tests use and nobody defines; where all are built in, the first one each statement calls."""
    tree = ast.parse(tests)
    bound = set(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    free = {name for name in used - bound if not hasattr(builtins, name)}
    if free or any(isinstance(node, ast.FunctionDef) for node in tree.body):
        return free
    called = [_called_names(statement)[:1] for statement in tree.body]
    return {name for names in called for name in names}


def _called_names(statement: ast.stmt) -> list[str]:
    """The functions a statement calls by name, the outermost first."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]


def _assertions(channel: int, log: ResultLog, test_spec: dict[str, Any]) -> None:
    tests: list[str] = test_spec["tests"]
    space, _ = _namespace(channel, test_spec, "\n".join([test_spec["setup"], *tests]))
    exec(compile(test_spec["setup"], "<setup>", "exec", dont_inherit=True), space)
    for test in tests:
        with log:
            exec(compile(test, "<test>", "exec", dont_inherit=True), space)


class AssertionRecorder(ast.NodeTransformer):
    """Every assertion becomes a recorded one that does not stop the rest; inside `try` they stay as they are."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        if isinstance(node.test, ast.Constant) and node.test.value:
            return ast.copy_location(ast.Pass(), node)
        recorded = ast.With(items=[ast.withitem(ast.Name("__log__", ast.Load()))], body=[node])
        return ast.fix_missing_locations(ast.copy_location(recorded, node))

    def visit_Try(self, node: ast.Try) -> Any:
        return node


def _program(channel: int, log: ResultLog, test_spec: dict[str, Any]) -> None:
    """A test program, and its `check(candidate)` where it defines one without calling it."""
    text: str = test_spec["program"]
    tree = ast.parse(text)
    space, connection = _namespace(channel, test_spec, text)
    entry = test_spec.get("entry_point") or ""
    if entry:
        space["candidate"] = RemoteObject(connection, entry)
    calls_check = any("check" in ast.dump(node) for node in tree.body if isinstance(node, ast.Expr))
    defines_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    if entry and defines_check and not calls_check:
        tree.body += ast.parse("check(candidate)").body
    space["__log__"] = log
    try:
        exec(compile(AssertionRecorder().visit(tree), "<test>", "exec", dont_inherit=True), space)
    except wire.ConnectionClosed:
        raise
    except Exception as error:
        log.note(False, error)
    else:
        if not log.count:
            log.note(True)


def _calls(channel: int, log: ResultLog, test_spec: dict[str, Any]) -> None:
    """Function calls with given arguments, their results compared here."""
    _, connection = _namespace(channel, test_spec, "")
    for arguments, expected in test_spec["cases"]:
        with log:
            result = connection.ask("call", test_spec["entry_point"], arguments, {})
            if not equals(result, expected, test_spec["tolerance"]):
                raise AssertionError


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


FORMS: dict[str, Callable[[int, ResultLog, dict[str, Any]], None]] = {
    "assertions": _assertions,
    "program": _program,
    "calls": _calls,
}


def run_tests(channel: int, output: int, control: int) -> None:
    """Take the tests straight from the trainer: the worker that forks the code under test never holds them."""
    # the code's process takes its part of the job first: this is said before any of that code runs
    wire.receive(channel)
    test_spec = wire.receive(control)
    os.close(control)
    wire.send(output, {"taken": True})
    run_test_spec(channel, output, test_spec)
    os._exit(0)
