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
from pathlib import Path
from typing import Any

from whet.envs.tools.schema import json_schema
from whet.envs.tools.tool import (
    OpenTools,
    Tool,
    ToolFailed,
    ToolLimits,
    ToolSource,
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
MEMORY_MB = 512  # of a session


def python(code: str) -> str:
    """Run Python code and see what it prints and the value of its last line. Variables stay for the next call.

    Args:
        code: The code to run.
    """
    raise ToolFailed("it runs in the sandbox alone")


def python_source(sandbox: Sandbox, memory_mb: int = MEMORY_MB) -> ToolSource:
    """A Python console, one per episode."""
    schema = json_schema(python)

    def open_console(limits: ToolLimits) -> OpenTools:
        session = SandboxSession(sandbox, session_limits(limits, memory_mb))

        def run(code: str) -> ToolText:
            return _call_result(session, {"operation": "run", "source": code}, limits, "its variables are gone")

        return OpenTools((Tool("python", schema, run, state=session, ends_itself=True),), session.close)

    return ToolSource("python", (schema,), open_console, sandbox=sandbox)


def sandboxed_source(thing: Any, schemas: Sequence[Mapping[str, Any]]) -> ToolSource:
    """A function, or a class whose methods are tools, run in the sandbox; loaded there once to see that it works."""
    sandbox, name = shared_sandbox(), thing.__name__
    load = {
        **{"operation": "load", "source": source_of(thing), "kind": name if inspect.isclass(thing) else ""},
        "names": [tool_name(schema) for schema in schemas],
    }

    def load_into(session: SandboxSession, most: int) -> None:
        if error := session.call(load, most).error:
            raise ToolFailed(error)

    def open_thing(limits: ToolLimits) -> OpenTools:
        session = SandboxSession(sandbox, session_limits(limits, MEMORY_MB))

        def call(called: str, /, **arguments: Any) -> ToolText:
            message = {"operation": "call", "name": called, "arguments": arguments}
            again = functools.partial(load_into, session, limits.characters)
            return _call_result(session, message, limits, "what it kept is gone", again)

        names = [tool_name(schema) for schema in schemas]
        tools = [
            Tool(name, schema, functools.partial(call, name), session, True)
            for name, schema in zip(names, schemas, strict=True)
        ]
        return OpenTools(tuple(tools), session.close)

    trial = SandboxSession(sandbox, Limits())
    try:
        load_into(trial, 1000)
    except (ToolFailed, SessionOver) as problem:
        raise WhetError(
            f"tool {name!r} does not load in the sandbox: {problem}; there are only the packages of this "
            "interpreter, no other files: keep what it needs in its own file, or do not name it in env.sandboxed"
        ) from None
    finally:
        trial.close()
    return ToolSource(name, schemas, open_thing, sandbox=sandbox)


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


def warm_sandboxes(sources: Sequence[ToolSource], episodes: int) -> None:
    """Make processes ready for so many episodes at once, each with a session of every source."""
    for sandbox, sessions in Counter(source.sandbox for source in sources if source.sandbox is not None).items():
        sandbox.start(episodes * sessions)


def session_limits(limits: ToolLimits, memory_mb: int) -> Limits:
    """Sandbox limits for tool calls; the wall clock is `WALL` times looser, to catch only code that sleeps."""
    processor = max(1, math.ceil(limits.seconds))
    return Limits(cpu_seconds=processor, wall_seconds=WALL * limits.seconds, memory_mb=memory_mb)


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
