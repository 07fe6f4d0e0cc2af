"""What a tool is: a name, a JSON schema and something to call; and where the tools of an episode come from.

A source belongs to the run and is opened once per episode: what its tools remember is the episode's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from whet.envs.tools.schema import json_schema
from whet.registry import error_text
from whet.types import WhetError

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


class ToolSource(Protocol):
    """Where tools come from. Made and checked once per run."""

    @property
    def name(self) -> str:
        """As errors and `sandboxed` refer to it."""
        ...

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]: ...

    def open(self, limits: ToolLimits) -> OpenTools:
        """The tools for one episode."""
        ...


def tool_name(schema: Mapping[str, Any]) -> str:
    """The name in a schema of OpenAI's form, which has it under `function`."""
    return str(schema["function"]["name"])


def as_tool(function: Callable[..., Any]) -> Tool:
    """A plain function as a tool: its schema is read off its type hints and docstring."""
    schema = json_schema(function)
    return Tool(tool_name(schema), schema, function)


@dataclass(frozen=True)
class FunctionSource:
    """One trusted function: it runs in this process and keeps nothing."""

    tool: Tool

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return (self.tool.schema,)

    def open(self, limits: ToolLimits) -> OpenTools:
        return OpenTools((self.tool,))


@dataclass(frozen=True)
class ClassSource:
    """A trusted class: one object per episode, and its public methods are the tools. They run one after the other."""

    kind: type
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind.__name__

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        return [json_schema(getattr(self.kind, name)) for name in public_methods(self.kind)]

    def open(self, limits: ToolLimits) -> OpenTools:
        try:
            made = self.kind(**self.settings)
        except Exception as error:
            raise RuntimeError(f"the tool class {self.name} cannot be made: {error_text(error)}") from error
        tools = [
            Tool(tool_name(schema), schema, getattr(made, tool_name(schema)), state=made) for schema in self.schemas
        ]
        return OpenTools(tuple(tools), getattr(made, CLOSE, lambda: None))


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


def checked_class(kind: type, settings: Mapping[str, Any]) -> ClassSource:
    """The source of a class, checked: it can be made without arguments, and it has methods to call."""
    try:
        inspect.signature(kind).bind(**settings)
    except TypeError as error:
        raise WhetError(
            f"the tool class {kind.__name__} cannot be made for an episode: {error}; give its parameters defaults, or "
            f"env.tool_settings.{kind.__name__}"
        ) from None
    except ValueError:
        pass  # a class without a signature in Python
    source = ClassSource(kind, settings)
    if not source.schemas:
        raise WhetError(
            f"the tool class {kind.__name__} has no public method; give it one with type hints and a docstring"
        )
    return source
