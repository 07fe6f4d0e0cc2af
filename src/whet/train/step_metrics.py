"""What a step of reinforcement learning reports: counts, mean rewards, and how far sampler and trainer are apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from whet.model.token_logp import TokenScores
from whet.rollout.buffer import RolloutBatch
from whet.types import Group, StopReason, TokenBatch


def group_counts(groups: Sequence[Group]) -> dict[str, int]:
    samples = [sample for group in groups for sample in group.samples]
    return {
        "prompts": len(groups),
        "samples": len(samples),
        "tokens": sum(sample.num_actions for sample in samples),
        "truncated": sum(sample.stop is StopReason.LENGTH for sample in samples),
        "unscorable": sum(sample.reward is None for sample in samples),
    }


def collection_counts(rollout: RolloutBatch, groups: Sequence[Group]) -> dict[str, int]:
    """What it took to collect the groups, where that is more than the groups themselves."""
    trained = sum(len(group.samples) for group in groups)
    if rollout.num_samples == trained:
        return {}
    return {"prompts_spent": len(rollout.outcomes), "samples_spent": rollout.num_samples, "rounds": rollout.rounds}


def mean_rewards(groups: Sequence[Group]) -> dict[str, float]:
    """`total` and each part: means over the scored samples."""
    samples = [sample for group in groups for sample in group.samples if sample.reward is not None]
    if not samples:
        return {"total": float("nan")}
    parts = {name: fmean([sample.parts[name] for sample in samples]) for name in samples[0].parts}
    return {"total": fmean([sample.reward for sample in samples if sample.reward is not None]), **parts}


def uniform_share(groups: Sequence[Group]) -> float:
    """Share of groups whose scored samples all have the same reward: they teach nothing."""
    rewards = [{sample.reward for sample in group.samples if sample.reward is not None} for group in groups]
    return fmean([float(len(each) <= 1) for each in rewards])


def group_staleness(group: Group, version: int) -> int:
    """Policy versions between the oldest weights that wrote the group and those that train on it."""
    return version - min(sample.versions[0] for sample in group.samples)


def sampler_metrics(batch: TokenBatch, scores: TokenScores, is_stale: bool) -> dict[str, float]:
    """How far the trainer's log-probabilities are from the sampler's, before the first update of the step."""
    action = batch.action
    if not action.any() or batch.behavior_logp is None:
        return {}
    gap = (scores.logp - batch.behavior_logp)[action].abs()
    name = "staleness" if is_stale else "sampler_gap"  # an older policy is meant to differ, an engine is not
    return {
        "entropy": float(scores.entropy[action].double().mean()),
        name: float(gap.double().mean()),
        f"{name}_max": float(gap.max()),
    }


def critic_metrics(batch: TokenBatch) -> dict[str, float]:
    """The share of the targets' variance that the critic explains: 1 is perfect, below 0 worse than a constant."""
    if batch.target is None or batch.value is None or int(batch.action.sum()) < 2:
        return {}
    target, value = batch.target[batch.action], batch.value[batch.action].to(batch.target.dtype)
    variance = target.var()
    return {"critic_explains": float(1 - (target - value).var() / variance)} if variance > 0 else {}
