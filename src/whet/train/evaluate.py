"""Greedy completions to held-out prompts, scored: the number a run is judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from whet.protocols import Engine
from whet.rollout.collect import Score, draw_completions, score_groups
from whet.types import Group, Prompt, Sampling, StopReason


@dataclass(frozen=True)
class Evaluator:
    """Prompts the policy never trains on, who completes them, and how the completions are scored."""

    engine: Engine
    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    sampling: Sampling
    score: Score

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand the policy's new weights to the engine, where the trainer has not done it after its step."""
        self.engine.load(weights, version)

    def evaluate(self, num_samples: int = 1, temperature: float = 0.0, seed: int = 0) -> list[Group]:
        """One scored group per prompt: a greedy completion, or `num_samples` drawn ones."""
        sampling = replace(self.sampling, temperature=temperature)
        completions = draw_completions(self.engine, self.prompt_tokens, num_samples, sampling, (seed,))
        return score_groups(self.prompts, completions, self.score)

    def metrics(self) -> dict[str, float]:
        """Of one greedy completion per prompt."""
        return eval_metrics(self.evaluate())


def eval_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the completions: `accuracy` where the reward's first part is 0 or 1, `reward` and each part always."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    outcomes = [sample.outcome for sample in samples if sample.outcome is not None]
    metrics: dict[str, float] = {}
    if outcomes and all(outcome in (0.0, 1.0) for outcome in outcomes):
        # an unscorable completion is not a right one
        metrics["accuracy"] = sum(outcomes) / len(samples)
    metrics["reward"] = fmean(rewards) if rewards else float("nan")
    names = sorted({name for sample in samples for name in sample.parts})
    if len(names) > 1:
        for name in names:
            metrics[name] = fmean([sample.parts[name] for sample in samples if name in sample.parts])
    metrics["completion_tokens"] = fmean([sample.num_actions for sample in samples])
    metrics["truncated"] = fmean([float(sample.stop is StopReason.LENGTH) for sample in samples])
    return metrics
