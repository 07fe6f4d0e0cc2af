"""Tools that run in the sandbox: functions and classes of a file, and a Python console.

Each episode has processes of its own, started by the first call and ended with the episode. A call that takes too
long, too much memory or too much of anything else ends its process: the model is told, and the next call starts with
an empty state.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.envs.tools.schema import json_schema
from whet.envs.tools.tool import (
    ClassSource,
    OpenTools,
    Tool,
    ToolFailed,
    ToolLimits,
    ToolText,
    ToolTimedOut,
    tool_name,
)
from whet.reward.sandbox.job import Limits
from whet.reward.sandbox.pool import Sandbox, shared_sandbox
from whet.reward.sandbox.session import SandboxSession, SessionOver
from whet.types import WhetError

WALL = 2  # times the processor time of a call: the clock only catches what sleeps
TIMES = ("out of time",)


def python(code: str) -> str:
    """Run Python code and see what it prints and the value of its last line. Variables stay for the next call.

    Args:
        code: The code to run.
    """
    raise ToolFailed("it runs in the sandbox alone")


@dataclass(frozen=True)
class PythonSource:
    """A Python console, one per episode."""

    sandbox: Sandbox
    memory_mb: int = 512

    @property
    def name(self) -> str:
        return "python"

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return (json_schema(python),)

    def open(self, limits: ToolLimits) -> OpenTools:
        session = SandboxSession(self.sandbox, session_limits(limits, self.memory_mb))

        def run(code: str) -> ToolText:
            return _call_result(session, {"operation": "run", "source": code}, limits, "its variables are gone")

        tool = Tool(self.name, self.schemas[0], run, state=session, ends_itself=True)
        return OpenTools((tool,), session.close)


@dataclass(frozen=True)
class SandboxedSource:
    """A function, or a class whose methods are tools, of which the sandbox has the source."""

    sandbox: Sandbox
    name: str
    source: str  # Python, that defines it
    kind: str  # name of the class; "" for a function
    schemas: Sequence[Mapping[str, Any]]
    memory_mb: int = 512

    def open(self, limits: ToolLimits) -> OpenTools:
        session = SandboxSession(self.sandbox, session_limits(limits, self.memory_mb))
        names = [tool_name(schema) for schema in self.schemas]
        tools = [
            Tool(name, schema, functools.partial(self._call, session, limits, name), session, True)
            for name, schema in zip(names, self.schemas, strict=True)
        ]
        return OpenTools(tuple(tools), session.close)

    def check(self) -> None:
        """Load the source once: what does not load is told before the run."""
        session = SandboxSession(self.sandbox, Limits())
        try:
            self._load(session, 1000)
        except (ToolFailed, SessionOver) as problem:
            raise WhetError(
                f"tool {self.name!r} does not load in the sandbox: {problem}; there are only the packages of this "
                "interpreter, no other files: keep what it needs in its own file, or do not name it in env.sandboxed"
            ) from None
        finally:
            session.close()

    def _call(self, session: SandboxSession, limits: ToolLimits, name: str, /, **arguments: Any) -> ToolText:
        message = {"operation": "call", "name": name, "arguments": arguments}
        return _call_result(
            session, message, limits, "what it kept is gone", lambda: self._load(session, limits.characters)
        )

    def _load(self, session: SandboxSession, most: int) -> None:
        names = [tool_name(schema) for schema in self.schemas]
        load = {"operation": "load", "source": self.source, "kind": self.kind, "names": names}
        if error := session.call(load, most).error:
            raise ToolFailed(error)


def _call_result(
    session: SandboxSession,
    message: Mapping[str, Any],
    limits: ToolLimits,
    lost: str,
    load: Callable[[], None] | None = None,
) -> ToolText:
    """The result of a call; one that ends the session is a failure that says so."""
    try:
        if session.is_fresh and load is not None:
            load()
        result = session.call(message, limits.characters)
    except SessionOver as over:
        what = f"{over}; the process was ended, and {lost}"
        if str(over) in TIMES:
            raise ToolTimedOut(f"more than {limits.seconds:g} s: {what}") from None
        raise ToolFailed(what) from None
    if result.error:
        printed = result.text.strip()
        raise ToolFailed(f"{result.error}; printed before: {printed}" if printed else result.error)
    return ToolText(result.text, result.length)


def warm_sandboxes(sources: Sequence[Any], episodes: int) -> None:
    """Make processes ready for so many episodes at once, each with a session of every source."""
    counts = Counter(source.sandbox for source in sources if isinstance(source, PythonSource | SandboxedSource))
    for sandbox, sessions in counts.items():
        sandbox.start(episodes * sessions)


def session_limits(limits: ToolLimits, memory_mb: int) -> Limits:
    """Sandbox limits for tool calls; the wall clock is `WALL` times looser, to catch only code that sleeps."""
    processor = max(1, math.ceil(limits.seconds))
    return Limits(cpu_seconds=processor, wall_seconds=WALL * limits.seconds, memory_mb=memory_mb)


def sandboxed_thing(
    thing: Any, schemas: Sequence[Mapping[str, Any]], sandbox: Sandbox | None = None
) -> SandboxedSource:
    """A function or class for the sandbox, loaded there once to see that it works."""
    name = thing.__name__
    source = SandboxedSource(
        sandbox or shared_sandbox(), name, source_of(thing), name if inspect.isclass(thing) else "", schemas
    )
    source.check()
    return source


def source_of(thing: Any) -> str:
    """The file a function or class is written in; of a script or notebook that runs just now, its own lines alone."""
    module = sys.modules.get(getattr(thing, "__module__", ""))
    file = getattr(module, "__file__", None)
    try:
        if module is not None and file and module.__name__ != "__main__" and thing.__qualname__ == thing.__name__:
            return Path(file).read_text(encoding="utf-8")
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        raise WhetError(
            f"tool {thing.__name__!r} cannot run in the sandbox: its source is not in a file; put it into one, or do "
            "not name it in env.sandboxed"
        ) from None


def sandboxed_class(source: ClassSource, sandbox: Sandbox | None = None) -> SandboxedSource:
    """The class with its methods run in the sandbox; raises `WhetError` if it has settings, which stay outside."""
    if source.settings:
        raise WhetError(f"the tool class {source.name} runs in the sandbox and takes no settings there; drop them")
    return sandboxed_thing(source.kind, source.schemas, sandbox)
