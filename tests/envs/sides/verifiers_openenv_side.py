"""Runs where verifiers and OpenEnv are installed: verifiers' OpenEnv taskset, played against the endpoint in argv.

Arguments: address of the endpoint, folder of the tokenizer. The token is in WHET_TOKEN. Prints one line of JSON.
"""

import asyncio
import json
import socket
import sys
import threading
import time

import uvicorn
import verifiers.v1 as vf
from openai import AsyncOpenAI
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from renderers import DefaultRendererConfig
from verifiers.v1.clients import ModelContext
from verifiers.v1.tasksets.openenv import OpenEnvConfig, OpenEnvEnv, OpenEnvEnvConfig


class Move(Action):
    move: str


class Board(Observation):
    text: str = ""


class Echo(Environment):
    """Three moves; each one is paid by its last digit."""

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, **settings) -> Board:
        self._state = State(step_count=0)
        return Board(text="begin")

    def step(self, action: Move, timeout_s=None, **settings) -> Board:
        self._state.step_count += 1
        return Board(text=action.move, reward=float(action.move[-1]), done=self._state.step_count == 3)

    @property
    def state(self) -> State:
        return self._state


class OneCall(vf.Harness[vf.HarnessConfig]):
    """Answers the conversation with one call, in process: every call goes through the interception server."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        _, prompt = self.resolve_prompt(data)
        given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        messages = [
            each if isinstance(each, dict) else {"role": each.role, "content": each.content} for each in given or ()
        ]
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["OneCall"]


def serve() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_fastapi_app(Echo, Move, Board), port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.02)
    return f"http://127.0.0.1:{port}"


async def main(address: str, tokenizer: str) -> None:
    sys.modules["verifiers_openenv_side"] = sys.modules["__main__"]
    client = vf.TrainClientConfig(
        base_url=f"{address}/v1",
        api_key_var="WHET_TOKEN",
        renderer=DefaultRendererConfig(),
        renderer_model_name=tokenizer,
    )
    player = vf.AgentConfig(harness=vf.HarnessConfig(id="verifiers_openenv_side"), runtime=vf.SubprocessConfig())
    taskset = OpenEnvConfig(id="openenv", base_url=serve(), resets=[{}, {"seed": 1}])
    env = OpenEnvEnv(OpenEnvEnvConfig(taskset=taskset, player=player))
    context = ModelContext(model="scripted", client=client, sampling=vf.Sampling(temperature=1.0, max_tokens=100))
    episodes = []
    async with env.serving():
        for task in env.taskset:
            episode = await env.run_episode(task, context)
            (trace,) = episode.traces or [None]
            episodes.append(
                {
                    "errors": [str(each) for each in episode.errors]
                    + [str(each) for each in getattr(trace, "errors", ())],
                    "rewards": {} if trace is None else {name: each.score for name, each in trace.rewards.items()},
                    "paths": [] if trace is None else [list(branch.token_ids) for branch in trace.branches],
                }
            )
    print(json.dumps(episodes, default=str))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
