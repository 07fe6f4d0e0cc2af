"""Environments of the package verifiers, as they are: `--env verifiers:NAME`.

There are two generations, and the name finds its own: `load_environment` of 0.1 (`SingleTurnEnv`, `MultiTurnEnv`,
`ToolEnv`, a rubric and a parser), and the tasksets of 0.4, whose tasks score a trace. Both ask an OpenAI endpoint for
completions, so they play as an agent's function does (`whet.envs.serve.programs`): their own loop decides who speaks,
runs their tools and scores, and the endpoint records every token as it was sampled.

A taskset names no program that plays it. Where its package has none, a chat does, in this process: it calls the task's
tools over MCP, and executes nothing that the policy wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import itertools
import json
import math
import os
import secrets
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from whet.data.seeds import SEED
from whet.envs.adapters.shared import cannot_be_made, number, numbers, optional
from whet.types import WhetError

INSTALL = "pip install 'verifiers==0.4.0' (tasksets) or 'verifiers==0.1.14' (load_environment)"
MOST_TASKS = 10_000  # of a taskset that never ends
MODEL = "policy"
CHAT = "whet_chat"  # the module that verifiers finds the chat under
MCP_SECONDS = 60.0  # for a task's tool servers to say what they have


def num_tasks(name: str, settings: Mapping[str, Any]) -> int:
    """How many tasks the environment has."""
    return len(_loaded(name, json.dumps(settings, sort_keys=True)).tasks)


def verifiers_play(name: str, settings: Mapping[str, Any]) -> ClassicPlay | TasksetPlay:
    """What plays episodes of the environment: called with a client and a row, whose seed is the number of a task."""
    return _loaded(name, json.dumps(settings, sort_keys=True))


class ClassicPlay:
    """An environment of `load_environment`. It is stateless: each rollout has a state of its own."""

    def __init__(self, name: str, environment: Any) -> None:
        self._name, self._environment = name, environment
        self.tasks: Sequence[Mapping[str, Any]] = environment.get_dataset()

    async def __call__(self, client: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        from verifiers.clients import OpenAIChatCompletionsClient

        task = dict(_task_of(row, self.tasks))
        speaker = OpenAIChatCompletionsClient(client)
        output = await self._environment.run_rollout(task, speaker, MODEL, {})
        if output.get("error"):
            raise RuntimeError(f"verifiers: {_error_line(output['error'])}")
        return _report(self._name, output["reward"], output.get("metrics") or {})

    async def close(self) -> None:
        """Nothing is left open between rollouts."""


class TasksetPlay:
    """A taskset of 0.4, the environment around it, and what it serves while it plays."""

    def __init__(self, name: str, environment: Any, seat: str, tasks: Sequence[Any]) -> None:
        self._name, self._environment, self._seat, self.tasks = name, environment, seat, tasks
        self._serving: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._over = asyncio.Event()

    async def __call__(self, client: Any, row: Mapping[str, Any]) -> dict[str, Any]:
        import verifiers.v1 as vf

        await self._started()
        task = _task_of(row, self.tasks)
        with _key_in_environment(client.api_key) as variable:
            endpoint = vf.EvalClientConfig(base_url=str(client.base_url).rstrip("/"), api_key_var=variable)
            episode = await self._environment.run_episode(task, vf.ModelContext(MODEL, endpoint))
        played = [trace for trace in episode.traces if (trace.agent.name or self._seat) == self._seat]
        failures = [*episode.errors, *(error for trace in played for error in trace.errors)]
        if failures or not played:
            raise RuntimeError(f"verifiers: {_error_line(failures[-1] if failures else 'the episode has no trace')}")
        metrics = {key: value for trace in played for key, value in trace.metrics.items() if value is not None}
        rewards = {key: reward.value for trace in played for key, reward in trace.rewards.items() if reward is not None}
        mean = math.fsum(trace.reward for trace in played) / len(played)
        return _report(self._name, mean, {**rewards, **metrics})

    async def close(self) -> None:
        """End the servers of the taskset's tools."""
        self._over.set()
        if self._serving is not None:
            await asyncio.wait((self._serving,), timeout=10.0)

    async def _started(self) -> None:
        """What the environment serves, opened once and closed by the task that opened it."""
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._ready))
        await asyncio.shield(self._ready)

    async def _serve(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._environment.serving():
                ready.set_result(None)
                await self._over.wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)


def _loaded(name: str, settings: str) -> ClassicPlay | TasksetPlay:
    configured = json.loads(settings)
    identifier = name.partition(":")[2]
    if not identifier:
        raise WhetError(f"the environment {name!r} names none; give verifiers:NAME, such as verifiers:gsm8k")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where a script of the user's own finds its modules, too
    with optional(name, INSTALL):
        import verifiers
    module = _module(name, identifier)
    if hasattr(module, "load_environment"):
        if not hasattr(verifiers, "load_environment"):
            raise WhetError(
                f"{name!r} is written for verifiers 0.1, and {verifiers.__version__} is installed, which has no "
                "load_environment; pip install 'verifiers==0.1.14'"
            )
        return ClassicPlay(name, _classic(name, identifier, settings))
    environment, seat = _taskset_environment(name, identifier, configured)
    return TasksetPlay(name, environment, seat, _tasks(name, identifier, settings))


def _module(name: str, identifier: str) -> Any:
    """The environment's module, found as verifiers finds it; its own package first, for the tasksets that it brings."""
    plain = identifier.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")
    for candidate in (f"verifiers.v1.tasksets.{plain.lower()}", plain):
        try:
            return importlib.import_module(candidate)
        except ModuleNotFoundError as error:
            if error.name is not None and candidate != error.name and not candidate.startswith(f"{error.name}."):
                raise WhetError(f"the environment {name!r} needs the package {error.name!r}; install it") from error
        except Exception as error:
            raise cannot_be_made(f"the environment {name!r}", error, "see whether Python can import it") from error
    raise WhetError(
        f"no module {plain!r} for the environment {name!r}; install its package, or run where {plain}.py lies"
    )


@functools.lru_cache(maxsize=4)
def _classic(name: str, identifier: str, settings: str) -> Any:
    import verifiers

    try:
        environment: Any = verifiers.load_environment(identifier, **json.loads(settings))
    except Exception as error:
        raise cannot_be_made(f"the environment {name!r}", error, "check env.settings, its arguments") from error
    if getattr(environment, "requires_group_rollouts", False):
        raise WhetError(
            f"the environment {name!r} rewards whole groups, and episodes are scored one by one; give a rubric whose "
            "rewards take one rollout"
        )
    return environment


@functools.lru_cache(maxsize=4)
def _tasks(name: str, identifier: str, settings: str) -> Sequence[Any]:
    environment, _ = _taskset_environment(name, identifier, json.loads(settings))
    return list(itertools.islice(environment.taskset, MOST_TASKS))


def _taskset_environment(name: str, identifier: str, settings: Mapping[str, Any]) -> tuple[Any, str]:
    """The environment around a taskset, and the seat in it that the policy has: the one without a model of its own."""
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import default_harness_id, env_config_type, load_environment, resolve_env_config

    _add_chat()
    config = {**settings, "taskset": {**dict(settings.get("taskset") or {}), "id": identifier}}
    try:
        seats = agent_config_fields(env_config_type(identifier, config.get("id") or "")())
        chat = {} if default_harness_id(identifier) == identifier else {"harness": {"id": CHAT}}
        for seat in seats:
            # verifiers' own default is a box at a provider; nothing here leaves this machine unless it is told to
            config[seat] = {**chat, "runtime": {"type": "subprocess"}, **dict(config.get(seat) or {})}
        environment = load_environment(resolve_env_config(config))
    except Exception as error:
        raise cannot_be_made(f"the environment {name!r}", error, "check env.settings, its config") from error
    played = [seat for seat in seats if getattr(environment.config, seat).client is None]
    if len(played) != 1:
        names = ", ".join(seats)
        fix = f"give the others a model with env.settings.SEAT.client ({names})"
        raise WhetError(f"the environment {name!r} has {len(played)} seats for the policy, and it plays one; {fix}")
    return environment, played[0]


def _add_chat() -> None:
    """Let verifiers find the chat as a harness: a module with one class."""
    if CHAT in sys.modules:
        return
    import verifiers.v1 as vf
    from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient
    from verifiers.v1.dialects.chat import message_to_wire
    from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

    class Chat(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
        """Completions until one calls no tool; tools are the task's, over MCP."""

        APPENDS_SYSTEM_PROMPT = True
        SUPPORTS_MCP = True
        SUPPORTS_RESUME = True
        NEEDS_CONTAINER = False
        EXECUTES_CODE = False

        async def launch(
            self,
            ctx: Any,
            trace: Any,
            runtime: Any,
            endpoint: str,
            secret: str,
            mcp_urls: Mapping[str, str],
            data: Any,
        ) -> Any:
            system, prompt = self.resolve_prompt(data)
            messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
            if isinstance(prompt, str):
                messages.append({"role": "user", "content": prompt})
            else:
                messages += map(message_to_wire, prompt or ())
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            async with contextlib.AsyncExitStack() as stack:
                # of this machine, and without TLS, whose certificates would be read for each episode
                http = DefaultAsyncHttpxClient(verify=False, trust_env=False, timeout=None)
                talking = AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http, max_retries=0)
                model = await stack.enter_async_context(talking)
                opening = connect_mcp({"mcpServers": servers}, stack)
                schemas, known, open_servers = await asyncio.wait_for(opening, MCP_SECONDS)
                offered = {"tools": schemas} if schemas else {}
                while True:
                    try:
                        answer = await model.chat.completions.create(model=ctx.model, messages=messages, **offered)
                    except APIStatusError as error:
                        if "context length" not in str(error):
                            raise
                        break  # a limit, not a failure: what there is, is scored
                    message = answer.choices[0].message
                    messages.append(message.model_dump(exclude_none=True))
                    if not message.tool_calls:
                        break
                    for call in message.tool_calls:
                        content = await _result(call, known, partial(call_mcp, open_servers, known))
                        called = {"role": "tool", "tool_call_id": call.id, "name": call.function.name}
                        messages.append({**called, "content": content})
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    module = types.ModuleType(CHAT)
    module.Chat, module.__all__ = Chat, ["Chat"]  # type: ignore[attr-defined]
    Chat.__module__ = CHAT
    sys.modules[CHAT] = module


async def _result(call: Any, known: Mapping[str, Any], run: Any) -> Any:
    """What a call gives the policy to read."""
    if call.function.name not in known:
        return f"error: there is no tool {call.function.name!r}; there are {', '.join(known)}"
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments are no JSON object"
    return await run(call.function.name, arguments)


@contextlib.contextmanager
def _key_in_environment(key: str) -> Iterator[str]:
    """A variable with the episode's token: a client of verifiers takes the name of one, and nothing else."""
    variable = f"WHET_EPISODE_{secrets.token_hex(8).upper()}"
    os.environ[variable] = key
    try:
        yield variable
    finally:
        os.environ.pop(variable, None)


def _task_of(row: Mapping[str, Any], tasks: Sequence[Any]) -> Any:
    seed = (row.get("meta") or {}).get(SEED)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < len(tasks):
        raise ValueError(f"the row has the seed {seed!r}; expected the number of a task, 0 to {len(tasks) - 1}")
    return tasks[seed]


def _report(name: str, reward: Any, metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {"reward": number(reward, name), "metrics": numbers(metrics)}


def _error_line(error: Any) -> str:
    """The last error that a rollout met, whatever shape its package gives it."""
    if isinstance(error, Mapping):
        error = error.get("error_chain_str") or error.get("error_chain_repr") or error.get("error")
    text = getattr(error, "message", None) or str(error)
    kind = getattr(error, "type", "")
    return " ".join(f"{kind}: {text}".removeprefix(": ").split())[:300]
