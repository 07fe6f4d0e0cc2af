"""TRL's environment class, unchanged: `reset(**row)`, public methods that are tools, and `get_reward()` if it wants.

As in TRL 1.16: `reset` gets every column of the prompt's row, and a text that it returns follows the last message of
the prompt; the tools are the class's own public functions in the order of their names, after those given beside
them; an episode goes on while the policy calls tools; `get_reward`, which may be async, is asked once at its end,
and is added to the rewards that are given beside it, which may take `environments`, the objects that played. A
mapping of names to classes is routed by the column `environment`. What differs: a call that fails is answered in
whet's words, and every episode has an object of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from whet.envs.adapters.shared import cannot_be_made, number
from whet.envs.tools.find import MOST_CALLS, find_tools
from whet.envs.tools.formats import Calling, call_format_of
from whet.envs.tools.schema import json_schema
from whet.envs.tools.tool import OpenTools, Tool, ToolLimits, ToolSource
from whet.envs.tools.tool_environment import CallFormat, ToolEnvironment, check_names
from whet.rollout.call_pool import CallPool, finished
from whet.types import Completion, InitialObservation, Prompt, StepResult, StopReason, WhetError

ROUTE = "environment"  # the column that chooses among several classes
NO_TOOLS = ("reset", "get_reward")


def method_source(foreign: Any) -> ToolSource:
    """The public methods of one foreign object as tools."""
    methods = [getattr(foreign, name) for name in tool_methods(type(foreign))]
    tools = tuple(Tool(method.__name__, method_schema(method), _as_text(method), state=foreign) for method in methods)
    return ToolSource(type(foreign).__name__, [tool.schema for tool in tools], lambda limits: OpenTools(tools))


class TrlEnvironment:
    """One episode of one foreign object, made when the episode begins: of several classes, the row names one."""

    waits_for_calls_only = True
    no_branches = "the tools of a TRL class are methods of one object; give it whet's own interface, start and step"

    def __init__(
        self,
        make: Callable[[str], tuple[Any, ToolEnvironment]],
        routes: Sequence[str],
        pool: CallPool,
        stops: tuple[str, ...],
        adds_reward: bool,
        scores: bool,
    ) -> None:
        self._make, self._routes, self._pool = make, routes, pool
        self.stops, self.adds_reward, self.scores = stops, adds_reward, scores
        self.foreign: Any = None  # the object that plays
        self._inner: ToolEnvironment | None = None

    def start(self, prompt: Prompt) -> Awaitable[InitialObservation | None]:
        """Reset the environment with the row's columns; what `reset` returns is added to the last message."""
        row = dict(prompt.meta) | ({} if prompt.answer is None else {"answer": prompt.answer})
        route = row.pop(ROUTE, None) if self._routes else ""
        if self._routes and route not in self._routes:
            raise ValueError(
                f"prompt {prompt.id!r} has {ROUTE}={route!r}; expected one of {', '.join(map(repr, self._routes))}"
            )
        self.foreign, self._inner = self._make(route)
        conversation = [dict(message) for message in prompt.messages] or [
            {"role": "user", "content": prompt.text or ""}
        ]
        addition = self.foreign.reset(**{"prompt": conversation, **row})
        if addition is not None and not isinstance(addition, str):
            raise TypeError(f"{self._name}.reset gave a value of type {type(addition).__name__}; expected text or None")
        last = {**conversation[-1], "content": conversation[-1]["content"] + addition} if addition else conversation[-1]
        return self._inner.start(Prompt(prompt.id, (*conversation[:-1], last), None, prompt.answer, prompt.meta))

    async def step(self, completion: Completion) -> StepResult:
        """Call the tools that the completion names; an episode that is over is scored by `get_reward`."""
        assert self._inner is not None
        result = await self._inner.step(completion)
        return StepResult(reward=await self._reward(), done=True) if result.done else result

    async def cut_off(self, reason: StopReason) -> float | None:
        """Score the episode as it stands, because a limit ended it."""
        return await self._reward()

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    @property
    def _name(self) -> str:
        return type(self.foreign).__name__

    async def _reward(self) -> float | None:
        get_reward = getattr(self.foreign, "get_reward", None)
        if get_reward is None:
            return None
        call = self._pool.submit(get_reward)
        await finished(call)
        score = call.result()
        return None if score is None else number(score, f"{self._name}.get_reward")


def trl_environment(
    kinds: Callable[[], Any] | Mapping[str, Callable[[], Any]], calling: Calling | None = None
) -> Callable[[], Any]:
    """A function that makes the environment of one episode. Everything that can be checked is checked here."""
    calling = calling or Calling()
    routes = dict(kinds) if isinstance(kinds, Mapping) else {"": kinds}
    if not routes:
        raise WhetError("the mapping of environments is empty; give names and classes")
    beside = [find_tools(tool) for tool in calling.tools]
    limits, pools = ToolLimits(calling.tool_seconds), {True: CallPool(), False: CallPool()}
    formats: dict[str, CallFormat] = {}
    scored = []
    for route, kind in routes.items():
        foreign = _checked(kind)
        scored.append(hasattr(foreign, "get_reward"))
        sources = [*beside, method_source(foreign)]
        check_names(sources)
        schemas = [schema for source in sources for schema in source.schemas]
        if not schemas:
            raise WhetError(
                f"{sources[-1].name} has reset and no other public method; give it methods with type hints and a "
                "docstring, or name tools with it"
            )
        formats[route] = call_format_of(
            calling.call_format, schemas, calling.tokenizer, calling.history, calling.instructions
        )

    def make(route: str) -> tuple[Any, ToolEnvironment]:
        foreign = routes[route]()
        sources = [*beside, method_source(foreign)]
        return foreign, ToolEnvironment(sources, formats[route], limits, MOST_CALLS, pools)

    stops = tuple(dict.fromkeys(text for form in formats.values() for text in form.stops))
    named = tuple(routes) if isinstance(kinds, Mapping) else ()
    return lambda: TrlEnvironment(make, named, pools[False], stops, any(scored), any(scored) or bool(named))


def tool_methods(kind: type) -> list[str]:
    """TRL's rule: the public functions of the class, by name."""
    members = inspect.getmembers(kind, predicate=inspect.isfunction)
    return [name for name, _ in members if name not in NO_TOOLS and not name.startswith("_")]


def method_schema(method: Callable[..., Any]) -> Mapping[str, Any]:
    """The schema that TRL shows: transformers' own, the result included."""
    from transformers.utils.chat_template_utils import get_json_schema

    json_schema(method)  # says in one line what is missing
    try:
        return dict(get_json_schema(method))
    except Exception:  # a hint of the result that has no schema; the result is shown as text anyway
        return json_schema(method)


def _as_text(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with TRL's text of its result: Python's own."""
    if inspect.iscoroutinefunction(method):

        async def called_async(**arguments: Any) -> str:
            return str(await method(**arguments))

        return called_async

    def called(**arguments: Any) -> str:
        return str(method(**arguments))

    return called


def _checked(kind: Callable[[], Any]) -> Any:
    """One object of the class, looked at before training."""
    name = getattr(kind, "__name__", repr(kind))
    try:
        foreign = kind()
    except Exception as error:
        raise cannot_be_made(f"the environment {name}", error, "its class must take no arguments") from error
    if not callable(getattr(foreign, "reset", None)):
        raise WhetError(f"the environment {name} has no reset; give it reset(self, **row), which returns text or None")
    return foreign
