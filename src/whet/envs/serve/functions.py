"""Agents that are functions of this process: `async def play(client, row)`, many episodes on one event loop.

A process per episode costs seconds where an agent's packages are large. A function is given a client of the package
`openai` that speaks to the endpoint with the episode's own token, and returns its reward, a number or
`{"reward": ..., "metrics": {...}}`; None leaves the episode unscored. What it raises fails its episode alone. It must
not block: other episodes run on the same loop, and a time limit can only interrupt it where it awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from whet.envs.adapters.verifiers import verifiers_play
from whet.envs.sections import VERIFIERS
from whet.registry import error_text, imported
from whet.threads import Thread
from whet.types import WhetError

AgentPlay = Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
CLOSE_SECONDS = 15.0
FUNCTION = re.compile(r"\S+:[A-Za-z_]\w*")
GIVEN: dict[str, AgentPlay] = {}  # that only the calling program has, by the name its config has


def is_function(agent: str) -> bool:
    """Whether `env.agent` names a function, `file.py:name` or `module:name`, and no command."""
    return agent in GIVEN or agent.startswith(VERIFIERS) or FUNCTION.fullmatch(agent) is not None


def agent_function(name: str, settings: Mapping[str, Any] | None = None) -> AgentPlay:
    """The function of that name, or the environment of verifiers; one line where it cannot play."""
    if importlib.util.find_spec("openai") is None:
        raise WhetError(f"env.agent {name!r} is given a client of the package openai; pip install openai")
    if name.startswith(VERIFIERS):
        return verifiers_play(name, settings or {})
    function: AgentPlay = GIVEN[name] if name in GIVEN else imported(name, "agent")
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if not inspect.iscoroutinefunction(called):
        raise WhetError(
            f"env.agent {name!r} is no async function; write `async def {name.rpartition(':')[2]}(client, row)`"
        )
    return function


class FunctionLoop:
    """An event loop in a thread of its own, and the connections that all episodes share."""

    def __init__(self, play: AgentPlay) -> None:
        from openai import DefaultAsyncHttpxClient

        self.play = play
        self.loop = asyncio.new_event_loop()
        self.http = DefaultAsyncHttpxClient(timeout=None, trust_env=False)  # no proxy carries what stays here
        Thread(target=self.loop.run_forever, name="whet-agents", daemon=True).start()

    def close(self) -> None:
        """End the loop; episodes have ended before. What plays is told, where it has a `close`."""
        closing = getattr(self.play, "close", None)
        if closing is not None:
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(closing(), self.loop).result(CLOSE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)


class FunctionEpisode:
    """An episode that a function plays, to its runner like one of a program's (`whet.envs.serve.programs`)."""

    def __init__(
        self, agents: FunctionLoop, address: str, token: str, row: Mapping[str, Any], on_end: Callable[[], None]
    ) -> None:
        self.exit_code, self.output, self.complaint = 0, "", ""
        self._ended, self._on_end = threading.Event(), on_end
        self._task: asyncio.Task[None] | None = None
        self._loop = agents.loop

        def start() -> None:
            self._task = agents.loop.create_task(self._play(agents, address, token, row))

        agents.loop.call_soon_threadsafe(start)

    async def _play(self, agents: FunctionLoop, address: str, token: str, row: Mapping[str, Any]) -> None:
        from openai import AsyncOpenAI

        try:
            client = AsyncOpenAI(base_url=address, api_key=token, http_client=agents.http, max_retries=0)
            reward = await agents.play(client, row)
            if reward is not None:
                report = reward if isinstance(reward, Mapping) else {"reward": reward}
                self.output = json.dumps(report, default=_plain)
        except asyncio.CancelledError:
            self.exit_code = 1
        except Exception as error:
            self.exit_code, self.complaint = 1, error_text(error)
        finally:
            self._ended.set()
            self._on_end()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def ask_to_end(self) -> None:
        """Cancel it where it awaits."""
        self._loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task is not None else None)

    kill = ask_to_end

    def wait(self, seconds: float) -> bool:
        """True when it has ended by then."""
        return self._ended.wait(max(seconds, 0.0))


def _plain(value: Any) -> Any:
    """A number of numpy's or torch's as Python's own."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
