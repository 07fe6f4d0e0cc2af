"""Preferences between the policy's own completions: each step draws some, pairs the best with the worst, and learns.

The pairs are on policy and new in every step, so the reference is asked live. A prompt whose completions all score the
same teaches nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor

from whet.objective.preference.objective import PairObjective
from whet.record.metrics.timer import PhaseTimer
from whet.rollout.collect import RolloutCollector
from whet.training.evaluator import Evaluator
from whet.training.preference_trainer import (
    PreferenceDataset,
    PreferenceModels,
    PreferenceRow,
    PreferenceTrainer,
)
from whet.training.row_trainer import RowRun
from whet.training.step_metrics import group_counts, mean_rewards, uniform_share
from whet.types import Encoded, Group, Prompt, RunFailed, Sample, StepReport


class OnlinePreferenceTrainer(PreferenceTrainer):
    """A `PreferenceTrainer` whose rows are written by the policy itself and ranked by a reward."""

    def __init__(
        self,
        models: PreferenceModels,
        objective: PairObjective,
        collector: RolloutCollector,
        evaluator: Evaluator | None = None,
        **how: Unpack[RowRun],
    ) -> None:
        super().__init__(models, objective, PreferenceDataset(()), evaluator, online=True, **how)
        self._collector = collector

    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        rollout = self._collector.collect(progress=(number - 1) / self._steps)
        timer.add(rollout.seconds, rollout.spans)
        groups = [group for _, group in rollout.groups]
        pairs = [pair for group in groups if (pair := best_and_worst(group)) is not None]
        if not pairs:
            raise RunFailed(
                f"step {number}: all completions to each of {len(groups)} prompts scored the same, so there is no pair "
                "to learn from; look at the reward, change the data's difficulty, or draw more with preference.online"
            )
        report = self.learn(pairs, number, timer)
        self._collector.load_weights(self.model.state_dict(), number)
        report = replace(
            report,
            counts={**group_counts(groups), "rows": len(pairs)},
            reward=mean_rewards(groups),
            metrics={**report.metrics, **rollout.notes, "uniform_groups": uniform_share(groups)},
        )
        return report, [(group.prompt, sample) for group in groups for sample in group.samples]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "collector": self._collector.state()}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().restore(state, tensors)
        self._collector.restore(state["collector"], {})
        self._collector.load_weights(self.model.state_dict(), self._version)


def best_and_worst(group: Group) -> PreferenceRow | None:
    """The completion with the highest and the one with the lowest reward, the first of each; None where none differ."""
    scored = [sample for sample in group.samples if sample.reward is not None and bool(sample.action.any())]
    if not scored:
        return None
    best = max(scored, key=lambda sample: sample.reward or 0.0)
    worst = min(scored, key=lambda sample: sample.reward or 0.0)
    if best.reward == worst.reward or best.tokens.tolist() == worst.tokens.tolist():
        return None
    return PreferenceRow((_encoded(best), _encoded(worst)))


def _encoded(sample: Sample) -> Encoded:
    return Encoded(tuple(sample.tokens.tolist()), tuple(sample.action.tolist()))
