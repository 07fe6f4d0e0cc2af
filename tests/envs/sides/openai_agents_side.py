"""An agent program written with the openai-agents framework: a tool loop, as its documentation shows one."""

import asyncio
import json
import os

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    row = json.loads(os.environ["WHET_PROMPT"])
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=AsyncOpenAI())
    agent = Agent(name="Adder", instructions="Use the tool.", tools=[add], model=model)
    result = await Runner.run(agent, row["messages"][0]["content"])
    print(json.dumps({"reward": float("5" in result.final_output)}))


asyncio.run(main())
