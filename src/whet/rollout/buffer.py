"""Scored groups on their way to the trainer, and a queue of them that can be saved.

`staleness` > 0 makes the rollouts run ahead: a step trains on groups that a policy of `staleness` versions ago wrote,
as an asynchronous sampler would deliver them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whet.record.metrics.timer import Span
from whet.rollout.episode_runner import PlayNotes
from whet.types import Group, Prompt, Sample, StopReason, Support, Turn


@dataclass(frozen=True)
class RolloutBatch:
    """`groups` of (row of the prompt, group), and what it took to get them."""

    groups: tuple[tuple[int, Group], ...]
    outcomes: tuple[tuple[int, float], ...]  # (row, mean outcome) of every prompt visited, kept or not
    num_samples: int  # drawn, kept or not
    rounds: int
    part_weights: Mapping[str, float] = field(default_factory=dict)  # of the reward, when the samples were scored
    seconds: Mapping[str, float] = field(default_factory=dict)  # that the collection of this step took, by phase
    spans: tuple[Span, ...] = ()  # when they were, and what was done behind them
    notes: Mapping[str, float] = field(default_factory=dict)  # what the rewards noticed meanwhile, for the metrics
    played: PlayNotes = field(default_factory=PlayNotes)  # what happened in the episodes meanwhile


class RolloutBuffer:
    """First in, first out; full when it holds one batch more than the staleness."""

    def __init__(self, staleness: int = 0) -> None:
        self.staleness = staleness
        self._waiting: list[RolloutBatch] = []

    @property
    def is_full(self) -> bool:
        """Whether more groups wait than may be stale."""
        return len(self._waiting) > self.staleness

    def add(self, batch: RolloutBatch) -> None:
        """Append a batch; a full buffer does not refuse it, so look at `is_full` first."""
        self._waiting.append(batch)

    def take(self) -> RolloutBatch:
        """Remove and return the oldest batch."""
        return self._waiting.pop(0)

    def state(self) -> list[dict[str, Any]]:
        """What waits as JSON values, without its tensors; `tensors` has those."""
        return [_batch_state(batch) for batch in self._waiting]

    def tensors(self) -> dict[str, Tensor]:
        """The tokens of the groups that wait; empty for a run without staleness."""
        return {
            f"{number}/{position}/{index}/{name}": value
            for number, batch in enumerate(self._waiting)
            for position, (_, group) in enumerate(batch.groups)
            for index, sample in enumerate(_samples(group))
            for name, value in _sample_tensors(sample).items()
        }

    def restore(
        self, state: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor], prompts: Sequence[Prompt]
    ) -> None:
        """Replace what waits by what was saved; `prompts` must have the order they had then."""
        self._waiting = [_restored_batch(saved, f"{number}/", tensors, prompts) for number, saved in enumerate(state)]


def _samples(group: Group) -> list[Sample]:
    return [*group.samples, *([group.greedy] if group.greedy is not None else [])]


def _batch_state(batch: RolloutBatch) -> dict[str, Any]:
    return {
        "groups": [
            {
                "row": row,
                "drawn": list(group.drawn),
                "greedy": group.greedy is not None,
                "samples": [sample_state(sample) for sample in _samples(group)],
            }
            for row, group in batch.groups
        ],
        "outcomes": [list(pair) for pair in batch.outcomes],
        "num_samples": batch.num_samples,
        "rounds": batch.rounds,
        "part_weights": [list(pair) for pair in batch.part_weights.items()],  # in the order of the parts
    }


def sample_state(sample: Sample) -> dict[str, Any]:
    """A sample as JSON, its tensors apart."""
    return {
        "versions": list(sample.versions),
        "stop": str(sample.stop),
        "completion": sample.completion,
        "parts": [list(pair) for pair in sample.parts.items()],  # their order says which is the first
        "steps": [list(pair) for pair in sample.steps],
        "reward": sample.reward,
        "turns": [_turn_state(turn) for turn in sample.turns],
        "returned": sample.returned,
        "episode": sample.episode,
        "role": sample.role,
        "metrics": dict(sample.metrics),
        **({"extra": dict(sample.extra)} if sample.extra else {}),
    }


def _turn_state(turn: Turn) -> dict[str, Any]:
    ended = None if turn.ended is None else str(turn.ended)
    return {**vars(turn), "ended": ended, "counts": dict(turn.counts), "errors": list(turn.errors)}


def _restored_turn(state: Mapping[str, Any]) -> Turn:
    ended = None if state["ended"] is None else StopReason(state["ended"])
    return Turn(**{**state, "ended": ended, "errors": tuple(state["errors"])})


def _sample_tensors(sample: Sample) -> dict[str, Tensor]:
    tensors = {"tokens": sample.tokens, "action": sample.action, "behavior_logp": sample.behavior_logp}
    if sample.support is not None:
        tensors |= {"support_ids": sample.support.ids, "support_counts": sample.support.counts}
    if sample.routed_experts is not None:
        tensors["routed_experts"] = sample.routed_experts
    if sample.token_versions is not None:
        tensors["token_versions"] = sample.token_versions
    return {name: value.contiguous() for name, value in tensors.items()}


def _restored_batch(
    state: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor], prompts: Sequence[Prompt]
) -> RolloutBatch:
    groups = []
    for position, saved in enumerate(state["groups"]):
        samples = [
            restored_sample(sample_state, f"{prefix}{position}/{index}/", tensors)
            for index, sample_state in enumerate(saved["samples"])
        ]
        greedy = samples.pop() if saved["greedy"] else None
        groups.append((saved["row"], Group(prompts[saved["row"]], tuple(samples), greedy, tuple(saved["drawn"]))))
    outcomes = tuple((row, rate) for row, rate in state["outcomes"])
    weights = dict(state["part_weights"])
    return RolloutBatch(tuple(groups), outcomes, state["num_samples"], state["rounds"], weights)


def restored_sample(state: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> Sample:
    """The sample of a `sample_state` and of its tensors, whose names begin with the prefix."""
    support = None
    if f"{prefix}support_ids" in tensors:
        support = Support(tensors[f"{prefix}support_ids"], tensors[f"{prefix}support_counts"])
    return Sample(
        tokens=tensors[f"{prefix}tokens"],
        action=tensors[f"{prefix}action"].to(torch.bool),
        behavior_logp=tensors[f"{prefix}behavior_logp"],
        versions=(state["versions"][0], state["versions"][1]),
        stop=StopReason(state["stop"]),
        completion=state["completion"],
        support=support,
        parts=dict(state["parts"]),
        steps=tuple((position, score) for position, score in state["steps"]),
        reward=state["reward"],
        turns=tuple(_restored_turn(turn_state) for turn_state in state["turns"]),
        returned=state["returned"],
        episode=state["episode"],
        role=state["role"],
        metrics=state["metrics"],
        extra=state.get("extra", {}),
        routed_experts=tensors.get(f"{prefix}routed_experts"),
        token_versions=tensors.get(f"{prefix}token_versions"),
    )
