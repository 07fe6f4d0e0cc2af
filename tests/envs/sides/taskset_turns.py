"""A taskset of verifiers 0.4 with an environment of its own, which asks again."""

import verifiers.v1 as vf
from taskset_sums import Sums as Base


class Sums(Base):
    pass


class TurnsConfig(vf.EnvConfig):
    solver: vf.AgentConfig = vf.AgentConfig()


class Turns(vf.Env[TurnsConfig]):
    async def run(self, task, agents):
        async with agents.solver.interaction(task) as talk:
            await talk.turn()
            for number in range(2):
                await talk.turn(f"sure? {number}")


__all__ = ["Sums", "Turns"]
