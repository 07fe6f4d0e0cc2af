"""Greedy completions to held-out prompts, scored: the number a run is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from whet.protocols import Engine
from whet.rollout.collect import Score, draw_completions, score_groups
from whet.types import Group, Prompt, Sampling, StopReason


@dataclass(frozen=True)
class Evaluator:
    """Prompts the policy never trains on, and how its completions to them are judged."""

    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    sampling: Sampling
    score: Score

    def evaluate(self, engine: Engine, num_samples: int = 1, temperature: float = 0.0, seed: int = 0) -> list[Group]:
        """One scored group a prompt: a greedy completion, or `num_samples` drawn ones."""
        sampling = replace(self.sampling, temperature=temperature)
        written = draw_completions(engine, self.prompt_tokens, num_samples, sampling, (seed,))
        return score_groups(self.prompts, written, self.score)


def eval_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Means over the completions: `accuracy` where the reward's first part is 0 or 1, `reward` and each part always."""
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    scores = [sample.outcome for sample in samples if sample.outcome is not None]
    found: dict[str, float] = {}
    if scores and all(score in (0.0, 1.0) for score in scores):
        # an unscorable completion is not a right one
        found["accuracy"] = sum(scores) / len(samples)
    found["reward"] = fmean(rewards) if rewards else float("nan")
    names = sorted({name for sample in samples for name in sample.parts})
    if len(names) > 1:
        for name in names:
            found[name] = fmean([sample.parts[name] for sample in samples if name in sample.parts])
    found["completion_tokens"] = fmean([sample.num_actions for sample in samples])
    found["truncated"] = fmean([float(sample.stop is StopReason.LENGTH) for sample in samples])
    return found
