"""What a tool is: a name, a JSON schema and something to call; and where the tools of an episode come from.

A source belongs to the run and is opened once per episode: what its tools remember is the episode's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whet.envs.tools.schema import json_schema
from whet.registry import error_text
from whet.types import WhetError

if TYPE_CHECKING:
    from whet.reward.sandbox.pool import Sandbox

CLOSE = "close"  # the method of a class that is called at the end of an episode, and is no tool


class ToolFailed(Exception):
    """The call came to nothing; the text is for the model to read."""


class ToolTimedOut(ToolFailed):
    """The call took too long and was stopped."""


@dataclass(frozen=True)
class ToolText:
    """A result that its tool has already cut: the beginning, and how many characters there were."""

    text: str
    length: int


@dataclass(frozen=True)
class Tool:
    """One tool as an episode has it. `call` takes the arguments by name; it may be async."""

    name: str
    schema: Mapping[str, Any]  # as chat templates take it: {"type": "function", "function": {...}}
    call: Callable[..., Any]
    state: object = None  # what its calls share: those of one state run one after the other; None: nothing
    ends_itself: bool = False  # it keeps to the time limit by itself; any other is given up, and its thread is lost


@dataclass(frozen=True)
class ToolLimits:
    """What a call may take, and how much of its result the model is shown."""

    seconds: float = 10.0
    characters: int = 4000


@dataclass(frozen=True)
class OpenTools:
    """The tools of one episode, and what to do at its end."""

    tools: tuple[Tool, ...]
    close: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class ToolSource:
    """Where tools come from. Made and checked once per run."""

    name: str  # as errors and `sandboxed` refer to it
    schemas: Sequence[Mapping[str, Any]]
    open: Callable[[ToolLimits], OpenTools]  # the tools for one episode
    keeps: bool = True  # an episode's calls may leave something behind for later ones
    movable: Callable[..., Any] | None = None  # the function or class that could run in the sandbox instead
    sandbox: Sandbox | None = None  # that an episode has a process of


def tool_name(schema: Mapping[str, Any]) -> str:
    """The name in a schema of OpenAI's form, which has it under `function`."""
    return str(schema["function"]["name"])


def as_tool(function: Callable[..., Any]) -> Tool:
    """A plain function as a tool: its schema is read off its type hints and docstring."""
    schema = json_schema(function)
    return Tool(tool_name(schema), schema, function)


def function_source(tool: Tool, movable: Callable[..., Any] | None = None) -> ToolSource:
    """One trusted function: it runs in this process and keeps nothing."""
    return ToolSource(tool.name, (tool.schema,), lambda limits: OpenTools((tool,)), keeps=False, movable=movable)


def class_source(kind: type, settings: Mapping[str, Any]) -> ToolSource:
    """A trusted class: one object per episode, and its public methods are the tools. They run one after the other."""
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        raise WhetError(
            f"the tool class {kind.__name__} cannot be made for an episode: {error}; give its parameters defaults, or "
            f"env.tool_settings.{kind.__name__}"
        ) from None
    except ValueError:
        pass  # a class without a signature in Python
    schemas = [json_schema(getattr(kind, name)) for name in public_methods(kind)]
    if not schemas:
        raise WhetError(
            f"the tool class {kind.__name__} has no public method; give it one with type hints and a docstring"
        )

    def open_object(limits: ToolLimits) -> OpenTools:
        try:
            made = kind(**settings)
        except Exception as error:
            raise RuntimeError(f"the tool class {kind.__name__} cannot be made: {error_text(error)}") from error
        tools = [Tool(tool_name(schema), schema, getattr(made, tool_name(schema)), state=made) for schema in schemas]
        return OpenTools(tuple(tools), getattr(made, CLOSE, lambda: None))

    return ToolSource(kind.__name__, schemas, open_object, movable=kind)


def public_methods(kind: type) -> list[str]:
    """The methods that are tools, in the order they are written in, those of base classes first."""
    names: dict[str, None] = {}
    for base in reversed(kind.__mro__[:-1]):
        for name, value in vars(base).items():
            if not name.startswith("_") and name != CLOSE and inspect.isfunction(inspect.unwrap(_bare(value))):
                names[name] = None
    return list(names)


def _bare(value: Any) -> Any:
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value
