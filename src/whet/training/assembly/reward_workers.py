"""From a config to rewards that are scored by processes of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from whet.protocols import Reward
from whet.reward.combine import RewardPart
from whet.reward.score import skips_none
from whet.reward.steps import steps_of
from whet.training.config import Config
from whet.training.distributed.reward_workers import GIB, RemoteReward, RewardHost, RewardWorkers, stays_here, wants_all
from whet.training.distributed.workers import WorkerPool


def reward_host(rewards: Mapping[str, Reward], isolation: str | None) -> RewardHost:
    """Runs in the worker's process."""
    if isolation is not None:
        from whet.reward.sandbox import require_isolation

        require_isolation(isolation)
    return RewardHost(rewards)


def scored_elsewhere(
    config: Config, pool: WorkerPool | None, parts: Sequence[RewardPart]
) -> tuple[list[RewardPart], RewardWorkers | None, dict[str, str]]:
    """The parts with rewards that workers score, the workers, and what the run's facts say of them.

    Of several ranks the first one speaks to the workers, and all get the scores; `pool` is None on the others.
    """
    count = config.scale.reward_workers
    if not count or not parts:
        return list(parts), None, {}
    rewards = {part.name: part.resolved_reward for part in parts}
    sent = {name: reward for name, reward in rewards.items() if not stays_here(reward) and steps_of(reward) is None}
    here = [name for name in rewards if name not in sent]
    fact = f"{count} processes for {', '.join(sent)}" if sent else "none"
    if here:
        fact += f"; in the trainer, since they ask the policy or keep notes: {', '.join(here)}"
    if not sent:
        return list(parts), None, {"reward workers": fact}
    memory = int(config.scale.reward_memory * GIB)
    make = partial(reward_host, sent, config.sandbox.require)

    def start(number: int) -> Any:
        assert pool is not None
        return pool.start(f"reward worker {number}", make, memory=memory)

    workers = None
    if pool is not None:
        workers = RewardWorkers(pool, start, count, memory=memory, timeout=config.scale.timeout)

    def elsewhere(part: RewardPart) -> RewardPart:
        reward = part.resolved_reward
        if part.name not in sent:
            return part
        deterministic = bool(getattr(reward, "deterministic", True))
        remote = RemoteReward(
            part.name, workers, config.reward.timeout, wants_all(reward), deterministic, skips_none(reward)
        )
        return replace(part, reward=remote)

    return [elsewhere(part) for part in parts], workers, {"reward workers": fact}
