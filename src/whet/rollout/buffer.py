"""Where a run's prompts come from next, and the groups that wait to be trained on. All of it can be saved.

`staleness` > 0 makes the rollouts run ahead: a step trains on groups that a policy of `staleness` versions ago wrote, as an
asynchronous sampler would deliver them. `by_difficulty` visits prompts whose completions all agreed less often, but never
forgets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.data.cursor import Cursor
from whet.rollout.collect import Ask, RolloutBatch, RolloutSpec, harvest, request_seed
from whet.types import Group, Prompt, Sample, StopReason, Support

SELDOM = 0.1  # how often a prompt whose completions all agreed is visited, relative to one of middling difficulty


@dataclass(frozen=True)
class PromptOrder:
    """How a run walks over its prompts."""

    seed: int
    by_difficulty: bool = False
    staleness: int = 0


class RolloutBuffer:
    """Groups for one step after another."""

    def __init__(self, prompts: Sequence[Prompt], ask: Ask, wish: RolloutSpec, route: PromptOrder) -> None:
        self._prompts, self._ask, self._wish, self._route = prompts, ask, wish, route
        self._cursor = Cursor(len(prompts), route.seed)
        self._rates: dict[int, float] = {}  # mean outcome of a prompt's last visit, by row
        self._waiting: list[RolloutBatch] = []
        self._drawn = 0  # harvests so far

    def next_harvest(self) -> RolloutBatch:
        """The groups of the next step; the first step also fills the queue of a lagging run."""
        while len(self._waiting) <= self._route.staleness:
            self._drawn += 1
            found = harvest(self._ask, self._take, self._wish, (self._route.seed, self._drawn))
            self._rates.update(found.outcomes if self._route.by_difficulty else ())
            self._waiting.append(found)
        return self._waiting.pop(0)

    def _take(self, count: int) -> list[int]:
        rows: list[int] = []
        while len(rows) < count:
            (row,), self._cursor = self._cursor.take(1)
            if not self._route.by_difficulty or self._visited(row):
                rows.append(row)
        return rows

    def _visited(self, row: int) -> bool:
        lot = request_seed(self._route.seed, "visit", self._cursor.position) / 2**64
        return lot < visit_share(self._rates.get(row))

    def state(self) -> dict[str, Any]:
        return {
            "position": self._cursor.position,
            "drawn": self._drawn,
            "rates": {str(row): rate for row, rate in self._rates.items()},
            "waiting": [_harvest_state(each) for each in self._waiting],
        }

    def tensors(self) -> dict[str, Tensor]:
        """The tokens of the groups that wait; empty for a run without staleness."""
        return {
            f"{number}/{place}/{index}/{name}": value
            for number, each in enumerate(self._waiting)
            for place, (_, group) in enumerate(each.groups)
            for index, sample in enumerate(_samples(group))
            for name, value in _sample_tensors(sample).items()
        }

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        self._drawn = state["drawn"]
        self._rates = {int(row): rate for row, rate in state["rates"].items()}
        self._waiting = [self._harvest_from(each, number, tensors) for number, each in enumerate(state["waiting"])]

    def _harvest_from(self, state: Mapping[str, Any], number: int, tensors: Mapping[str, Tensor]) -> RolloutBatch:
        groups = []
        for place, saved in enumerate(state["groups"]):
            samples = [
                _sample_from(each, f"{number}/{place}/{index}/", tensors) for index, each in enumerate(saved["samples"])
            ]
            greedy = samples.pop() if saved["greedy"] else None
            prompt = self._prompts[saved["row"]]
            groups.append((saved["row"], Group(prompt, tuple(samples), greedy, tuple(saved["drawn"]))))
        outcomes = tuple((row, rate) for row, rate in state["outcomes"])
        return RolloutBatch(tuple(groups), outcomes, state["num_samples"], state["rounds"])


def visit_share(rate: float | None) -> float:
    """How often a prompt is visited: 1 if never seen or solved half the time, `SELDOM` if its completions all agreed."""
    if rate is None or not 0 <= rate <= 1:
        return 1.0
    return SELDOM + (1 - SELDOM) * 4 * rate * (1 - rate)


def _samples(group: Group) -> list[Sample]:
    return [*group.samples, *([group.greedy] if group.greedy is not None else [])]


def _harvest_state(found: RolloutBatch) -> dict[str, Any]:
    return {
        "groups": [
            {
                "row": row,
                "drawn": list(group.drawn),
                "greedy": group.greedy is not None,
                "samples": [_sample_state(sample) for sample in _samples(group)],
            }
            for row, group in found.groups
        ],
        "outcomes": [list(pair) for pair in found.outcomes],
        "num_samples": found.num_samples,
        "rounds": found.rounds,
    }


def _sample_state(sample: Sample) -> dict[str, Any]:
    return {
        "versions": list(sample.versions),
        "stop": str(sample.stop),
        "completion": sample.completion,
        "parts": [list(pair) for pair in sample.parts.items()],  # their order says which is the first
        "steps": [list(pair) for pair in sample.steps],
        "reward": sample.reward,
    }


def _sample_tensors(sample: Sample) -> dict[str, Tensor]:
    found = {"tokens": sample.tokens, "action": sample.action, "behavior_logp": sample.behavior_logp}
    if sample.support is not None:
        found |= {"support_ids": sample.support.ids, "support_counts": sample.support.counts}
    return {name: value.contiguous() for name, value in found.items()}


def _sample_from(state: Mapping[str, Any], prefix: str, tensors: Mapping[str, Tensor]) -> Sample:
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
    )
