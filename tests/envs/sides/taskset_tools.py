"""A taskset of verifiers 0.4 whose tasks have tools: a server of their own, over MCP."""

from collections.abc import Iterable

import verifiers.v1 as vf
from taskset_sums import SumData


class Adding(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


class ToolTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Adding(vf.ToolsetConfig())]


class Tools(vf.Taskset[ToolTask, vf.TasksetConfig]):
    def load(self) -> Iterable[ToolTask]:
        for number in range(40):
            yield ToolTask(SumData(prompt=f"{number} + {number}?", answer=str(2 * number)), self.config.task)


__all__ = ["Tools"]

if __name__ == "__main__":
    Adding.run()
