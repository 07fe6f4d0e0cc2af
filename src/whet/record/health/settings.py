"""The settings of a run that health rules look at, or advise to change, by their names in a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SETTINGS = (
    "batch.group_size",
    "batch.prompts_per_step",
    "batch.epochs_per_batch",
    "batch.routing_replay",
    "batch.staleness",
    "batch.updates_per_step",
    "critic.learning_rate",
    "env.max_tokens",
    "env.max_turns",
    "env.seconds",
    "env.step_seconds",
    "env.tool_seconds",
    "eval.every",
    "eval.prompts",
    "model.lora.alpha",
    "model.lora.rank",
    "objective.aggregate",
    "objective.baseline",
    "objective.baseline.gamma",
    "objective.clip",
    "objective.clip.high",
    "objective.clip.low",
    "objective.curve",
    "objective.curve.beta",
    "objective.imitate",
    "objective.keep",
    "objective.kl",
    "objective.kl.beta",
    "objective.mismatch",
    "objective.ratio",
    "objective.scale",
    "objective.score",
    "objective.value.warmup",
    "optimizer.epsilon",
    "optimizer.learning_rate",
    "optimizer.max_gradient_norm",
    "optimizer.warmup_steps",
    "optimizer.weight_decay",
    "report.save_every",
    "reward.parts",
    "reward.timeout",
    "sampling.max_new_tokens",
    "sampling.temperature",
    "scale.max_staleness",
    "scale.reward_workers",
    "steps",
)

# what a summary says besides the settings, and rules look at: they stand beside them under these names
OVERLAP, DATA, SPENT = "run.overlap", "run.data", "run.seconds."


def known_settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by its summary, with what rules look at of its facts and of where its time went."""
    settings, facts, seconds = (
        value if isinstance(value := summary.get(name), Mapping) else {} for name in ("settings", "facts", "seconds")
    )
    stated = {name: facts[fact] for name, fact in ((OVERLAP, "overlap"), (DATA, "data")) if facts.get(fact)}
    spent = {f"{SPENT}{phase}": took for phase, took in seconds.items() if isinstance(took, int | float)}
    return {**settings, **stated, **spent}
