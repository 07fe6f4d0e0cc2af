"""The process of a session: it answers calls one by one and keeps what they leave behind.

Runs inside the sandbox's own processes: only the standard library may be imported here. Nothing in this process is
trusted: the code it runs may replace all of it, and gains no more than the right to answer its own calls.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from whet.reward.sandbox import wire
from whet.reward.sandbox.candidate import load_module

CONSOLE = "<python>"
MODULE = "tools"


class CappedText(io.TextIOBase):
    """What is printed: the first characters are kept, the rest is counted."""

    def __init__(self, most: int) -> None:
        self.most, self.length, self.kept = most, 0, 0
        self.pieces: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.length += len(text)
        if room := self.most - self.kept:
            self.pieces.append(text[:room])
            self.kept += min(room, len(text))
        return len(text)


class SessionServer:
    """The state of a session: a console's variables, and the tools that were loaded."""

    def __init__(self) -> None:
        self.console = load_module("__main__", [])
        self.tools: dict[str, Callable[..., Any]] = {}

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to one message of the environment, with what the call printed."""
        printed = CappedText(message["most"])
        sys.stdout = sys.stderr = printed  # type: ignore[assignment]
        error = ""
        try:
            value = OPERATIONS[message["operation"]](self, message)
            if value is not None:
                text = value if message["operation"] == "call" and isinstance(value, str) else _shown(value, message)
                printed.write(text)
        except BaseException as problem:
            error = described(problem)
        return {"text": "".join(printed.pieces), "length": printed.length, "error": error[: message["most"]]}

    def run(self, message: dict[str, Any]) -> Any:
        """Run code in the console; the value of its last line, where that is an expression."""
        tree = ast.parse(message["source"], CONSOLE)
        last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None  # type: ignore[attr-defined]
        space = vars(self.console)
        exec(compile(tree, CONSOLE, "exec", dont_inherit=True), space)
        return None if last is None else eval(compile(ast.Expression(last), CONSOLE, "eval", dont_inherit=True), space)

    def load(self, message: dict[str, Any]) -> None:
        """Take over the functions of a source, or the methods of one object of its class."""
        module = load_module(MODULE, [message["source"]])
        holder: Any = module
        if message["kind"]:
            holder = getattr(module, message["kind"])()
        self.tools = {name: getattr(holder, name) for name in message["names"]}

    def call(self, message: dict[str, Any]) -> Any:
        """What a tool returns; a coroutine is run to its end."""
        value = self.tools[message["name"]](**message["arguments"])
        if not inspect.isawaitable(value):
            return value
        import asyncio  # not above: it brings threads along, whose work after every fork costs more than the fork

        return asyncio.run(_awaited(value))


OPERATIONS: dict[str, Callable[[SessionServer, dict[str, Any]], Any]] = {
    **{"run": SessionServer.run, "load": SessionServer.load, "call": SessionServer.call},
}


async def _awaited(value: Any) -> Any:
    return await value


def _shown(value: Any, message: dict[str, Any]) -> str:
    """A value as Python's console shows it; a tool's value as JSON where it has such a form."""
    if message["operation"] == "call":
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return str(value)
    return repr(value)


def described(error: BaseException) -> str:
    """The last line of a traceback, and the line of the code that it is about."""
    try:
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except BaseException:
        text = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == CONSOLE:
            line = trace.tb_lineno
        trace = trace.tb_next
    return text if line is None else f"{text} (line {line})"


def serve(calls: int, answers: int) -> None:
    """Answer until the trainer is gone."""
    # the code may open what it likes: it must not get at the numbers that the interpreter itself prints to
    sys.argv = [""]
    server = SessionServer()
    while True:
        try:
            message = wire.receive(calls)
        except wire.ConnectionClosed:
            os._exit(0)
        try:
            answer = server.answer(message)
            data = wire.packed(answer)
        except BaseException:
            data = wire.packed({"text": "", "length": 0, "error": "the answer could not be written"})
        wire.send_bytes(answers, data)
