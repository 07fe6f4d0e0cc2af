"""The process of a unit-test job that runs the code under test. It answers calls; it never sees a test or an expected
value.

Runs inside the sandbox's own processes: only the standard library may be imported here. Nothing in this process is
trusted: code under test may replace all of it, and gains no more than the right to answer its own calls.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

from whet.reward.sandbox import literal, wire

MODULE = "candidate"
LONGEST_ITERATION = 100_000


def load_module(name: str, sources: Sequence[str]) -> types.ModuleType:
    """Run the sources one after the other in one new module."""
    module = types.ModuleType(name)
    # dataclasses and pickle look a class's module up by name
    sys.modules[name] = module
    for source in sources:
        exec(compile(source, f"<{name}>", "exec", dont_inherit=True), vars(module))
    return module


def run_program(source: str) -> None:
    """Run the source as a script and end the process as the interpreter would."""
    code = 0
    try:
        load_module("__main__", [source])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException as error:
        code = 1
        os.write(2, _described(error).encode("utf-8", "replace"))
    try:
        sys.stdout.flush()
    except Exception:
        code = code or 1
    os._exit(code & 0xFF)


class CandidateServer:
    """Objects of this side by number, and the messages about them."""

    def __init__(self, channel: int, module: types.ModuleType, shared: dict[str, type]) -> None:
        self.channel = channel
        self.module = module
        self.shared = shared
        self.objects: list[Any] = []

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message asks, and say what came of it."""
        try:
            target = self.target(message["target"])
            given = [self.value(each) for each in message["arguments"]]
            named = {name: self.value(each) for name, each in message["named"].items()}
            result = OPERATIONS[message["operation"]](target, *given, **named)
            # only a call can be about a value of the other side that must change there too
            if message["operation"] != "call":
                return {"value": self.nodes(result)}
            changed = [self.nodes(each) if isinstance(each, list | dict | set) else None for each in given]
            return {"value": self.nodes(result), "changed": changed}
        except BaseException as error:
            return {"error": _kinds(error), "text": _described(error)[-500:]}

    def target(self, target: str | int) -> Any:
        """The object that a message is about."""
        if isinstance(target, int):
            return self.objects[target]
        if not target:
            return only_function(self.module)
        if hasattr(self.module, target):
            return getattr(self.module, target)
        solution = getattr(self.module, "Solution", None)
        if solution is not None and hasattr(solution, target):
            return getattr(solution(), target)
        raise NameError(f"name {target!r} is not defined")

    def nodes(self, value: Any) -> list[Any]:
        """A value of this side as it travels."""
        return literal.nodes_of(value, self._export, self.shared)

    def value(self, nodes: list[Any]) -> Any:
        """A value that has travelled."""
        return literal.value_of(nodes, self._load, self.shared)

    def _export(self, value: Any) -> list[Any]:
        self.objects.append(value)
        return ["h", len(self.objects) - 1, callable(value), type(value).__name__]

    def _load(self, tag: str, content: Any) -> Any:
        if tag == "m":
            return self.objects[content]
        if tag == "h":
            return self._callback(content)
        raise literal.NotPlain(f"unknown tag {tag!r}")

    def _callback(self, number: int) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            wire.send(self.channel, {"callback": number, "arguments": [self.nodes(each) for each in arguments]})
            answer = wire.receive(self.channel)
            if "error" in answer:
                raise raised(answer)
            return self.value(answer["value"])

        return called


def only_function(module: types.ModuleType) -> Any:
    """The function that is meant where no name is given: the only one that no other one calls."""
    functions = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    called = {used for name, function in functions.items() for used in _names_in(function.__code__) if used != name}
    meant = [function for name, function in functions.items() if name not in called]
    if len(meant) != 1:
        raise NameError(f"one function is expected, and there are {len(meant)}: {', '.join(functions)[:200]}")
    return meant[0]


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*inner)


def _awaited(target: Any) -> Any:
    import asyncio

    return asyncio.run(target)


def _iterated(target: Any) -> list[Any]:
    items = []
    for item in target:
        items.append(item)
        if len(items) > LONGEST_ITERATION:
            raise OverflowError("the iteration does not end")
    return items


def _assigned(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda target, /, *given, **named: target(*given, **named),
    "value": lambda target, /, *given, **named: target(*given, **named),
    "attribute": lambda target, name: getattr(target, name),
    "assign": _assigned,
    "item": lambda target, key: target[key],
    "length": lambda target: len(target),
    "iterate": _iterated,
    "contains": lambda target, item: item in target,
    "await": _awaited,
}


def _kinds(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def raised(answer: dict[str, Any]) -> Exception:
    """The nearest built-in exception to the one the other side met."""
    text = str(answer.get("text", ""))
    for name in answer["error"]:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(text)
            except Exception:
                break
    return RuntimeError(text)


def shared_classes(module: types.ModuleType) -> dict[str, type]:
    """Classes the data itself defines: both sides have them, so their objects can travel."""
    return {name: value for name, value in vars(module).items() if isinstance(value, type) and _is_own(value, module)}


def _is_own(kind: type, module: types.ModuleType) -> bool:
    return kind.__module__ == module.__name__ and "__slots__" not in vars(kind) and kind.__mro__[1:] == (object,)


def serve(channel: int, prelude: str, sources: Sequence[str]) -> None:
    """Load the code, then answer until the other side is done."""
    server = _loaded(channel, prelude, sources)
    while True:
        try:
            message = wire.receive(channel)
        except wire.ConnectionClosed:
            os._exit(0)
        wire.send(channel, server.answer(message))


def answer_calls(output: int, sources: Sequence[str], calls: Sequence[dict[str, Any]]) -> None:
    """Load the code, then make these calls and write down what each returns; who knows what is expected reads it."""
    server = _loaded(output, "", sources)
    for call in calls:
        data = wire.packed(server.answer(call))
        wire.send_bytes(output, data if len(data) <= wire.LARGEST_PLAIN else wire.packed({"error": ["OverflowError"]}))
    os._exit(0)


def _loaded(channel: int, prelude: str, sources: Sequence[str]) -> CandidateServer:
    """The code, ready to be called; the other side is told, and also where it does not load."""
    try:
        module = load_module(MODULE, [prelude])
        shared = shared_classes(module)
        for source in sources:
            exec(compile(source, f"<{MODULE}>", "exec", dont_inherit=True), vars(module))
    except BaseException as error:
        wire.send(channel, {"error": _kinds(error), "text": _described(error)[-500:]})
        os._exit(1)
    kept = {name: kind for name, kind in shared.items() if vars(module).get(name) is kind}
    wire.send(channel, {"loaded": True})
    return CandidateServer(channel, module, kept)
