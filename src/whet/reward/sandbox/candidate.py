"""The process of a unit-test job that runs the code under test. It answers calls; it never sees a test or an expected
value.

Runs inside the sandbox's own processes: only the standard library may be imported here. Nothing in this process is
trusted: code under test may replace all of it, and gains no more than the right to answer its own calls.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import types
import warnings
from collections.abc import Sequence
from typing import Any

from whet.reward.sandbox import wire
from whet.reward.sandbox.remote import OWN_MODULES, Peer

MODULE = "candidate"
MOMENT = 0.005  # seconds that the code's tasks run before the tests' own do


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


class CandidateServer(Peer):
    """The code's end: it does whatever the tests ask, and passes on what the code says on the way."""

    def __init__(self, channel: int, module: types.ModuleType, shared: dict[str, type]) -> None:
        super().__init__(channel)
        self.shared = shared
        self.module = module
        self.number(module)
        self.heard: list[list[str]] = []  # warnings and log records that the tests have not heard of
        self.replaced: dict[tuple[str, str], Any] = {}  # (module, name): what was there before
        self.waiting: dict[int, Any] = {}  # awaitable: its task
        self.loop: Any = None

    def listen(self) -> None:
        """Keep what is printed, warned of and logged from here on, for the tests."""
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, category, *_: self.heard.append(  # type: ignore[assignment]
            ["warning", category.__name__, str(message)]
        )

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, with what the code has said since the last one."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if type(stream) is io.StringIO and (text := stream.getvalue()):
                self.heard.append([name, text])
                stream.seek(0)
                stream.truncate()
        if self.heard:
            message["heard"], self.heard = self.heard, []
        super().send(message)

    def target(self, target: str | int) -> Any:
        """The object that a message is about."""
        return self.objects[target] if isinstance(target, int) else self.named(target)

    def named(self, name: str) -> Any:
        """What the code has under a name: its own, or a method of its `Solution`."""
        if not name:
            return only_function(self.module)
        if hasattr(self.module, name):
            return getattr(self.module, name)
        solution = getattr(self.module, "Solution", None)
        if solution is not None and hasattr(solution, name):
            return getattr(solution(), name)
        raise NameError(f"name {name!r} is not defined")

    def perform(self, operation: str, target: Any, arguments: list[Any], named: dict[str, Any]) -> Any:
        """Perform one operation that the tests ask for, on an object of the code."""
        if "logging" in sys.modules and self.log_handler is None:
            self._listen_to_logs()
        if operation == "find":
            return self._find(*arguments)
        if operation == "wait":
            return self._wait(target)
        if operation == "replace":
            return self._replace(*arguments)
        return super().perform(operation, target, arguments, named)

    log_handler: Any = None

    def _listen_to_logs(self) -> None:
        import logging

        class Handler(logging.Handler):
            def emit(_, record: logging.LogRecord) -> None:
                self.heard.append(["log", record.name, str(record.levelno), record.getMessage()])

        self.log_handler = Handler()
        logging.getLogger().addHandler(self.log_handler)
        logging.getLogger().setLevel(1)  # which of them are of interest is for the tests to say

    def _find(self, names: list[str]) -> dict[str, Any]:
        by_name = {}
        for name in names:
            with contextlib.suppress(Exception):
                by_name[name] = self.named(name)
        return by_name

    def _wait(self, awaitable: Any) -> tuple[bool, Any]:
        """Let the code's tasks run for a moment; whether this one is done, and its result."""
        import asyncio

        if self.loop is None:
            self.loop = asyncio.new_event_loop()

        async def result() -> Any:
            return await awaitable

        task = self.waiting.setdefault(id(awaitable), self.loop.create_task(result()))
        self.loop.run_until_complete(asyncio.wait((task,), timeout=MOMENT))
        return (True, task.result()) if task.done() else (False, None)

    def _replace(self, module_name: str, name: str, *value: Any) -> None:
        """Put something else into a module, as the tests did on their side; without a value, what was there before."""
        module = self.module if module_name in OWN_MODULES else importlib.import_module(module_name)
        if module is sys and name == "stdin" and value and isinstance(value[0], str):
            value = (io.StringIO(value[0]),)
        if value and module is os and name == "environ":
            os.environ.clear()
            os.environ.update(value[0])
            return
        key = (module_name, name)
        self.replaced.setdefault(key, getattr(module, name, None))
        setattr(module, name, value[0] if value else self.replaced[key])


def only_function(module: types.ModuleType) -> Any:
    """The one public function of a module that no other function in it calls."""
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


def _described(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def shared_classes(module: types.ModuleType) -> dict[str, type]:
    """Classes the data itself defines: both sides have them, so their objects can travel."""
    return {name: value for name, value in vars(module).items() if isinstance(value, type) and _is_own(value, module)}


def _is_own(kind: type, module: types.ModuleType) -> bool:
    return kind.__module__ == module.__name__ and "__slots__" not in vars(kind) and kind.__mro__[1:] == (object,)


def serve(channel: int, prelude: str, sources: Sequence[str]) -> None:
    """Load the code, then answer until the other side is done."""
    server = _loaded(channel, prelude, sources)
    server.listen()
    while True:
        try:
            message = server.receive()
        except wire.ConnectionClosed:
            return
        server.send(server.answer(message))


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
        wire.send(channel, {"error": [kind.__name__ for kind in type(error).__mro__], "text": _described(error)[-500:]})
        os._exit(1)
    own_classes = {name: kind for name, kind in shared.items() if vars(module).get(name) is kind}
    wire.send(channel, {"loaded": True})
    return CandidateServer(channel, module, own_classes)
