"""Tools of your own: a function, and a class that remembers what happened in its episode.

The type hints and the docstring, with a line per argument under `Args:`, are what the model is told. In a run:

    whet train grpo --tool examples/tools.py:tide --tool examples/tools.py:Logbook --tool calculator ...

This file plays one episode without a model, to see what the model would see.
"""

import asyncio
from typing import Literal

from whet.envs.tools.find import tool_environment
from whet.types import Completion, Prompt

TIDES = {"Brest": {"high": "05:12", "low": "11:24"}, "Dover": {"high": "08:40", "low": "03:05"}}


def tide(port: str, kind: Literal["high", "low"] = "high") -> str:
    """The time of today's tide.

    Args:
        port: Name of the port.
        kind: Which of the two tides.
    """
    if port not in TIDES:
        raise ValueError(f"no tides are known for {port}; there are: {', '.join(TIDES)}")  # the model reads this
    return TIDES[port][kind]


class Logbook:
    """One object per episode: every public method is a tool, and `close`, where there is one, is called at the end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, text: str) -> int:
        """Write a line into the logbook; the result is its number.

        Args:
            text: What to write.
        """
        self.lines.append(text)
        return len(self.lines)

    async def read_lines(self) -> list[str]:
        """All lines so far."""
        return self.lines


async def main(turns: list[str]) -> list[str]:
    """What the tools answer to these turns of a model."""
    environment = tool_environment([tide, Logbook, "calculator"])()
    await environment.start(Prompt("demo", ({"role": "user", "content": "When can we leave?"},)))
    answers: list[str] = []
    for turn in turns:
        result = await environment.step(Completion(turn))
        answers += [str(message["content"]) for message in result.messages]
    environment.close()
    return answers


if __name__ == "__main__":
    for answer in asyncio.run(
        main(
            [
                '<tool_call>{"name": "tide", "arguments": {"port": "Dover"}}</tool_call>',
                '<tool_call>write_line(text="Dover 08:40")</tool_call><tool_call>read_lines()</tool_call>',
                "<tool_call>tide(port='Rome')</tool_call><tool_call>tide(kind='spring', port='Dover')</tool_call>",
            ]
        )
    ):
        print(answer)
