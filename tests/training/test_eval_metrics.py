"""What an evaluation says of its groups."""

from __future__ import annotations

import torch

from whet.training.evaluator import eval_metrics
from whet.types import Group, Prompt, Sample, StopReason


def played(reward: float | None, stop: StopReason = StopReason.END) -> Sample:
    parts = {} if reward is None else {"right": reward}
    return Sample(
        torch.arange(2), torch.tensor([False, True]), torch.zeros(2), (0, 0), stop, "x", parts=parts, reward=reward
    )


def test_a_failed_episode_counts_in_neither_accuracy_nor_reward() -> None:
    failed = played(None, StopReason.FAILED)
    group = Group(Prompt("p", (), "?"), (played(1.0), played(0.0), failed, failed))
    metrics = eval_metrics([group])
    assert (metrics["accuracy"], metrics["reward"], metrics["failed_episodes"]) == (0.5, 0.5, 2.0)
    # a completion that no reward could judge is not a right one
    assert eval_metrics([Group(group.prompt, (played(1.0), played(None)))])["accuracy"] == 0.5
