"""Tools by name, and the factory of their environments.

calculator, python, search            built in
path/to/file.py:function              your own; module:function too
path/to/file.py:Class                 one object per episode, its public methods are the tools
mcp:COMMAND                           all tools of an MCP server, a process per episode; mcp-shared: one for the run
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from whet.envs.tools.calculator import calculator
from whet.envs.tools.formats import call_format_of
from whet.envs.tools.sandboxed import python_source, sandboxed_source, warm_sandboxes
from whet.envs.tools.tool import Tool, ToolLimits, ToolSource, as_tool, class_source, function_source, tool_name
from whet.envs.tools.tool_environment import ToolEnvironment, check_names
from whet.registry import imported
from whet.reward.sandbox.pool import shared_sandbox
from whet.rollout.call_pool import CallPool
from whet.types import WhetError, did_you_mean

BUILT_IN = ("calculator", "python", "search")
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
MOST_CALLS = 16  # of one turn


def find_tools(spec: str | Callable[..., Any], settings: Mapping[str, Any] = NO_SETTINGS) -> ToolSource:
    """The tools behind a name, a function or a class, checked."""
    if isinstance(spec, str):
        return _named(spec, settings)
    if isinstance(spec, Tool):
        return function_source(spec, spec.call)
    if inspect.isclass(spec):
        return class_source(spec, settings)
    return function_source(as_tool(_unset(spec, settings)), spec)


def _named(spec: str, settings: Mapping[str, Any]) -> ToolSource:
    from whet.envs.tools.mcp_server import is_server, server_source

    if is_server(spec):
        return server_source(spec)
    if spec in BUILT_IN:
        return _built_in(spec, settings)
    if ":" not in spec:
        file = " names a file but no function; add it, as in file.py:my_tool" if spec.endswith(".py") else ""
        raise WhetError(
            f"tool {spec!r}{file}"
            if file
            else f"no tool is called {spec!r}{did_you_mean(spec, BUILT_IN)}; built in: {', '.join(BUILT_IN)}; "
            "your own: path/to/file.py:function; of an MCP server: mcp:COMMAND"
        )
    imported_tool = imported(spec, "tool")
    if isinstance(imported_tool, str):
        raise WhetError(f"tool {spec!r} is a text; give a function or a class")
    return find_tools(imported_tool, settings)


def _built_in(name: str, settings: Mapping[str, Any]) -> ToolSource:
    if name == "calculator":
        return function_source(as_tool(_unset(calculator, settings)))
    if name == "python":
        allowed: tuple[str, ...] = ("memory_mb",)
        _check_settings(name, settings, allowed)
        sandbox = shared_sandbox()
        sandbox.start(1)  # a machine that isolates too little is refused now
        return python_source(sandbox, **settings)
    from whet.envs.tools.search import SETTINGS, search_source

    _check_settings(name, settings, SETTINGS)
    return search_source(**settings)


def _check_settings(name: str, settings: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for key in settings:
        if key not in allowed:
            raise WhetError(
                f"the tool {name!r} has no setting {key!r}{did_you_mean(key, allowed)}; it has: {', '.join(allowed)}"
            )


def _unset(function: Callable[..., Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    if settings:
        name = getattr(function, "__name__", repr(function))
        raise WhetError(f"the tool {name!r} takes no settings; drop env.tool_settings.{name}")
    return function


def tool_environment(
    tools: Sequence[str | Callable[..., Any]],
    *,
    sandboxed: Sequence[str] = (),
    call_format: str = "auto",
    tool_seconds: float = 10.0,
    settings: Mapping[str, Mapping[str, Any]] = NO_SETTINGS,
    tokenizer: Any = None,
    history: str = "template",
    instructions: bool = True,
    characters: int = 4000,
    most_calls: int = MOST_CALLS,
    episodes: int = 0,
) -> Callable[[], ToolEnvironment]:
    """A function that makes the environment of one episode. Everything that can be checked is checked here.

    `sandboxed`: names of tools (of functions and classes) that run in the sandbox instead of this process.
    `settings`: by the name of a tool. `characters`: of a result that the model is shown. `episodes`: that will run at
    once; processes of the sandbox are made ready for so many, where they are needed.
    """
    if not tools:
        raise WhetError("no tools are given; name some, such as calculator")
    taken = dict.fromkeys(settings, False)
    sources = []
    for spec in tools:
        name = _spec_name(spec)
        taken.pop(name, None)
        sources.append(find_tools(spec, settings.get(name, NO_SETTINGS)))
    if taken:
        names = [_spec_name(spec) for spec in tools]
        odd = next(iter(taken))
        raise WhetError(
            f"settings are given for the tool {odd!r}{did_you_mean(odd, names)}, and there is none; there are: "
            f"{', '.join(names)}"
        )
    sources = _in_sandbox(sources, sandboxed, settings)
    check_names(sources)
    schemas = [schema for source in sources for schema in source.schemas]
    form = call_format_of(call_format, schemas, tokenizer, history, instructions)
    warm_sandboxes(sources, episodes)
    limits, pools = ToolLimits(tool_seconds, characters), {True: CallPool(), False: CallPool()}
    return lambda: ToolEnvironment(sources, form, limits, most_calls, pools)


def _spec_name(spec: str | Callable[..., Any]) -> str:
    """The name of a tool for settings and errors: of a file's function, the function's."""
    if isinstance(spec, str):
        return spec if spec.startswith("mcp") else spec.rpartition(":")[2]
    return str(getattr(spec, "__name__", None) or getattr(spec, "name", spec))


def _in_sandbox(
    sources: Sequence[ToolSource], names: Sequence[str], settings: Mapping[str, Mapping[str, Any]]
) -> list[ToolSource]:
    """The sources with those of the given names moved into the sandbox."""
    known = {name for source in sources for name in (source.name, *map(tool_name, source.schemas))}
    for name in names:
        if name not in known:
            raise WhetError(
                f"env.sandboxed names {name!r}{did_you_mean(name, known)}, and no tool is called so; there are: "
                f"{', '.join(sorted(known))}"
            )
    moved: list[ToolSource] = []
    for source in sources:
        is_wanted = any(name in (source.name, *map(tool_name, source.schemas)) for name in names)
        if not is_wanted or source.sandbox is not None:
            moved.append(source)
        elif source.movable is None:
            raise WhetError(f"the tool {source.name!r} cannot run in the sandbox; drop it from env.sandboxed")
        elif settings.get(source.name):
            raise WhetError(f"the tool class {source.name} runs in the sandbox and takes no settings there; drop them")
        else:
            moved.append(sandboxed_source(source.movable, source.schemas))
    return moved
