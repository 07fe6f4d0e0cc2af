"""Runs in the virtual environment of verifiers: a taskset of its own kind, played against the endpoint in argv.

Arguments: address of the endpoint, folder of the tokenizer. The token is in WHET_TOKEN. Prints one line of JSON.
"""

import asyncio
import json
import sys
from collections.abc import Iterable

import verifiers.v1 as vf
from openai import AsyncOpenAI
from renderers import DefaultRendererConfig


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in str(trace.nodes[-1].message.content))

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(sum(node.sampled for node in trace.nodes))


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterable[SumTask]:
        for number in range(3):
            yield SumTask(SumData(prompt=f"{number} + {number}?", answer=str(2 * number)), self.config.task)


class TwoTurns(vf.Harness[vf.HarnessConfig]):
    """Asks twice, in process: every call goes through the interception server."""

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        client = AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0)
        messages = [{"role": "user", "content": data.prompt}]
        for _ in range(2):
            completion = await client.chat.completions.create(model=ctx.model, messages=messages)
            messages.append(completion.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "Are you sure?"})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["Sums", "TwoTurns"]


async def main(address: str, tokenizer: str) -> None:
    sys.modules["verifiers_side"] = sys.modules["__main__"]
    client = vf.TrainClientConfig(
        base_url=f"{address}/v1",
        api_key_var="WHET_TOKEN",
        renderer=DefaultRendererConfig(),
        renderer_model_name=tokenizer,
    )
    agent = vf.Agent(
        vf.AgentConfig(
            model="scripted",
            client=client,
            harness=vf.HarnessConfig(id="verifiers_side"),
            runtime=vf.SubprocessConfig(),
            sampling=vf.SamplingConfig(temperature=1.0, max_tokens=100),
        )
    )
    traces = []
    for task in Sums(vf.TasksetConfig()):
        trace = await agent.run(task)
        traces.append(
            {
                "errors": [str(each) for each in trace.errors],
                "rewards": {name: each.score for name, each in trace.rewards.items()},
                "metrics": dict(trace.metrics),
                "calls": [
                    {"tokens": list(node.token_ids), "mask": list(node.mask), "logprobs": list(node.logprobs)}
                    for node in trace.nodes
                    if node.sampled
                ],
                "paths": [list(branch.token_ids) for branch in trace.branches],
            }
        )
    print(json.dumps(traces, default=str))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
