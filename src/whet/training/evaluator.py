"""Greedy completions to held-out prompts, scored: the number a run is judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from whet.protocols import Engine
from whet.rollout.collect import Score, draw_and_score
from whet.rollout.episode_runner import EpisodePlan, EpisodeRunner
from whet.rollout.episodes import EnvironmentRunner
from whet.types import Group, Prompt, Sample, Sampling, StopReason, by_episode

PromptScores = Mapping[str, Sequence[float]]  # of each prompt, by metric; NaN: it could not be scored


@dataclass(frozen=True)
class Evaluator:
    """Prompts the policy never trains on, who completes them, and how the completions are scored."""

    engine: Engine
    prompts: Sequence[Prompt]
    prompt_tokens: Sequence[tuple[int, ...]]
    sampling: Sampling
    score: Score
    by: str = ""  # column whose values get metrics of their own
    runner: EpisodeRunner | None = None  # of the episodes; None: each is one completion

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand the policy's new weights to the engine, where the trainer has not done it after its step."""
        self.engine.load(weights, version)

    def evaluate(self, num_samples: int = 1, temperature: float = 0.0, seed: int = 0) -> list[Group]:
        """One scored group per prompt: a greedy completion, or `num_samples` drawn ones."""
        sampling = replace(self.sampling, temperature=temperature)
        runner = self.runner or EnvironmentRunner(self.engine)
        plan = EpisodePlan(self.prompts, self.prompt_tokens, num_samples, sampling, (seed,))
        return draw_and_score(runner, plan, self.score)

    def measure(self) -> tuple[dict[str, float], PromptScores]:
        """The metrics of one greedy completion per prompt, and what each prompt scored."""
        groups = self.evaluate()
        metrics = eval_metrics(groups, self.by)
        name, score = ("accuracy", _accuracy) if "accuracy" in metrics else ("reward", _reward)
        return metrics, {name: [score(group.samples) for group in groups]}


def eval_metrics(groups: Sequence[Group], by: str = "") -> dict[str, float]:
    """Means over the completions: `accuracy` where the reward's first part is 0 or 1, `reward` and each part always.

    Branches of an episode are averaged within it first.
    `by` names a column: `accuracy_VALUE` for each of its values, or `reward_VALUE` where there is no accuracy.
    """
    samples = [sample for group in groups for sample in group.samples]
    outcomes = [sample.outcome for sample in samples if sample.outcome is not None]
    metrics: dict[str, float] = {}
    is_binary = bool(outcomes) and all(outcome in (0.0, 1.0) for outcome in outcomes)
    if is_binary:
        metrics["accuracy"] = _accuracy(samples)
    for value in sorted({str(group.prompt.meta[by]) for group in groups}) if by else ():
        part = [sample for group in groups if str(group.prompt.meta[by]) == value for sample in group.samples]
        metrics[f"accuracy_{value}" if is_binary else f"reward_{value}"] = (_accuracy if is_binary else _reward)(part)
    metrics["reward"] = _reward(samples)
    names = sorted({name for sample in samples for name in sample.parts})
    if len(names) > 1:
        for name in names:
            metrics[name] = _mean(samples, lambda sample, name=name: sample.parts.get(name))  # type: ignore[misc]
    metrics["completion_tokens"] = _mean(samples, lambda sample: sample.num_actions)
    metrics |= episode_metrics(samples)
    if failed := sum(sample.stop is StopReason.FAILED for sample in samples):
        metrics["failed_episodes"] = float(failed)
    for reason in (StopReason.SECONDS, StopReason.STEP_SECONDS):
        if late := sum(sample.stop is reason for sample in samples):
            metrics[f"ended_by_{reason}"] = float(late)
    metrics["truncated"] = _mean(samples, lambda sample: sample.stop.is_limit)
    return metrics


def episode_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean turns and calls per episode, and the means of what environments measured; empty without episodes."""
    played = [sample for sample in samples if sample.turns]
    if not played:
        return {}
    metrics = {"turns": fmean([turns_of(sample) for sample in played])}
    counts = sum((Counter(turn.counts) for sample in played for turn in sample.turns), Counter())
    metrics |= {name: count / len(played) for name, count in sorted(counts.items())}
    for name in sorted({name for sample in played for name in sample.metrics}):
        metrics[name] = fmean([sample.metrics[name] for sample in played if name in sample.metrics])
    return metrics


def turns_of(sample: Sample) -> int:
    """Turns of the policy."""
    return sum(turn.role == "assistant" for turn in sample.turns)


def _accuracy(samples: Sequence[Sample]) -> float:
    """An unscorable completion is not a right one. An episode that failed is none: it has no part here, as in the
    reward, and is counted by itself."""
    return _mean(samples, lambda sample: None if sample.stop is StopReason.FAILED else sample.outcome or 0.0)


def _reward(samples: Sequence[Sample]) -> float:
    return _mean(samples, lambda sample: sample.reward)


def _mean(samples: Sequence[Sample], value: Callable[[Sample], float | None]) -> float:
    """The mean over the episodes of the mean over their branches; None has no part in it."""
    means = []
    for branches in by_episode(samples):
        known = [number for number in map(value, branches) if number is not None]
        if known:
            means.append(fmean(known))
    return fmean(means) if means else float("nan")
