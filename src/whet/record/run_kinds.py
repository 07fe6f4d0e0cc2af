"""Kinds of run as data: which metrics are worth a line, a tile, a figure and the verdict of each.

A kind is known by the metrics its steps report, so a folder needs no label to be read. To add a kind, add an entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whet.types import StepReport

RL, PREFERENCE, SFT, REWARD_MODEL = "rl", "preference", "sft", "reward_model"
Measure = Callable[[StepReport], float | None]


def metric(name: str) -> Measure:
    """A metric of the step by its name."""
    return lambda step: step.metrics.get(name)


def reward_part(name: str) -> Measure:
    """The mean of a part of the reward."""
    return lambda step: step.reward.get(name)


def speed(step: StepReport) -> float | None:
    """Tokens per second over the whole step."""
    seconds = sum(step.seconds.values())
    return step.counts.get("tokens", 0) / seconds if seconds > 0 and math.isfinite(seconds) else None


def truncated(step: StepReport) -> float | None:
    """The share of completions that ran out of tokens."""
    samples = step.counts.get("samples", 0)
    return step.counts["truncated"] / samples if samples and "truncated" in step.counts else None


def completion_length(step: StepReport) -> float | None:
    """Mean number of tokens per completion."""
    if "completion_length" in step.metrics:
        return step.metrics["completion_length"]
    samples = step.counts.get("samples", 0)
    tokens = step.counts.get("tokens", 0) + step.counts.get("shared_tokens", 0)
    return tokens / samples if samples else None


def leaves(step: StepReport) -> float | None:
    """Samples of an episode that may branch; None where none may."""
    episodes = step.counts.get("episodes", 0)
    return step.counts.get("samples", 0) / episodes if episodes else None


def shared(step: StepReport) -> float | None:
    """The share of leaf tokens that branching saved from being written again; None where no episode may branch."""
    saved, written = step.counts.get("shared_tokens"), step.counts.get("tokens", 0)
    return None if saved is None else saved / max(saved + written, 1)


def per_sample(name: str) -> Measure:
    """How often something was counted in a sample, on average; None where it never was."""

    def measure(step: StepReport) -> float | None:
        samples = step.counts.get("samples", 0)
        return step.counts[name] / samples if samples and name in step.counts else None

    return measure


def spent(step: StepReport) -> float | None:
    """The completions drawn for the step, including those left out of training."""
    return step.counts.get("samples_spent")


@dataclass(frozen=True)
class StepMetric:
    """One quantity of a step as it is shown. `name` also decides the unit of its value, by `metric_text`."""

    name: str
    measure: Measure
    label: str  # in a line of the console
    title: str = ""  # of its figure; no figure without
    unit: str = ""


@dataclass(frozen=True)
class RunKind:
    """What is shown of a kind of run."""

    name: str
    goal: str  # the name of the quantity the verdict names where nothing was evaluated
    main: tuple[StepMetric, ...]  # drawn together in the large figure, the first also as a sparkline
    line: tuple[StepMetric, ...]  # in the step's line, after the main ones
    figures: tuple[StepMetric, ...]
    evals: tuple[str, ...]  # evaluation metrics in the order of importance: the first present is the headline
    tokens: str  # what the counted tokens are


REWARD = StepMetric("reward", reward_part("total"), "reward", "Mean reward")
LOSS = StepMetric("loss", metric("loss"), "loss", "Loss")
ACCURACY = StepMetric("accuracy", metric("accuracy"), "accuracy", "Accuracy", "share of the pairs ordered right")
SPEED = StepMetric("tokens_per_second", speed, "tokens/s", "Speed", "tokens per second, whole step")
GRADIENT = StepMetric("gradient_norm", metric("gradient_norm"), "gradient norm", "Gradient norm", "before clipping")
LEARNING_RATE = StepMetric("learning_rate", metric("learning_rate"), "learning rate", "Learning rate")
MARGIN = StepMetric("margin", metric("margin"), "margin", "Margin", "reward of chosen less that of rejected")
CHOSEN_LOGP = StepMetric("chosen_logp", metric("chosen_logp"), "chosen", "log p of chosen", "nats per completion")
REJECTED_LOGP = StepMetric(
    "rejected_logp", metric("rejected_logp"), "rejected", "log p of rejected", "nats per completion"
)

RUN_KINDS: dict[str, RunKind] = {
    RL: RunKind(
        RL,
        "reward",
        (REWARD,),
        (
            SPEED,
            StepMetric("kl", metric("kl"), "KL"),
            StepMetric("entropy", metric("entropy"), "entropy"),
            StepMetric("completion_length", completion_length, "length"),
            StepMetric("turns", per_sample("turns"), "turns"),
            StepMetric("leaves", leaves, "leaves"),
            StepMetric("tool_calls", per_sample("tool_calls"), "calls"),
            StepMetric("critic_explains", metric("critic_explains"), "critic explains"),
            StepMetric("code_timeouts", metric("code_timeouts"), "out of time"),
            StepMetric("samples_spent", spent, "completions spent"),
        ),
        (
            StepMetric("completion_length", completion_length, "length", "Completion length", "tokens"),
            StepMetric("truncated", truncated, "truncated", "Truncated completions", "share"),
            StepMetric("turns", per_sample("turns"), "turns", "Turns", "of the policy in an episode"),
            StepMetric("leaves", leaves, "leaves", "Leaves", "per episode"),
            StepMetric("shared", shared, "shared", "Tokens that leaves share", "share"),
            StepMetric("tool_calls", per_sample("tool_calls"), "calls", "Tool calls", "in an episode"),
            StepMetric(
                "malformed_calls", per_sample("malformed_calls"), "malformed", "Malformed calls", "in an episode"
            ),
            StepMetric("tool_errors", per_sample("tool_errors"), "tool errors", "Tool errors", "in an episode"),
            StepMetric("code_timeouts", metric("code_timeouts"), "out of time", "Programs out of time", "in a step"),
            StepMetric("uniform_groups", metric("uniform_groups"), "uniform", "Groups that agree", "share"),
            StepMetric("entropy", metric("entropy"), "entropy", "Entropy", "nats per token"),
            StepMetric("kl", metric("kl"), "KL", "KL", "nats per token"),
            GRADIENT,
            StepMetric("loss", metric("loss"), "loss", "Loss", "share x weight x A x log pi"),
            StepMetric("sampler_gap", metric("sampler_gap"), "gap", "Sampler gap", "nats per token"),
            SPEED,
        ),
        ("accuracy", "reward"),
        "generated",
    ),
    PREFERENCE: RunKind(
        PREFERENCE,
        "accuracy",
        (ACCURACY,),
        (MARGIN, CHOSEN_LOGP, REJECTED_LOGP, LOSS, SPEED),
        (
            StepMetric("loss", metric("loss"), "loss", "Loss", "preference loss, mean over the pairs"),
            MARGIN,
            CHOSEN_LOGP,
            REJECTED_LOGP,
            StepMetric("chosen_reward", metric("chosen_reward"), "chosen reward", "Reward of chosen", "implicit"),
            StepMetric(
                "rejected_reward", metric("rejected_reward"), "rejected reward", "Reward of rejected", "implicit"
            ),
            StepMetric("drift", metric("drift"), "drift", "Drift", "mean |log pi / ref|, nats per completion"),
            GRADIENT,
            LEARNING_RATE,
            SPEED,
        ),
        ("pair_accuracy", "accuracy", "reward", "margin", "loss"),
        "trained on",
    ),
    SFT: RunKind(
        SFT,
        "loss",
        (LOSS,),
        (SPEED, GRADIENT, LEARNING_RATE),
        (GRADIENT, LEARNING_RATE, SPEED),
        ("loss", "accuracy", "reward"),
        "trained on",
    ),
    REWARD_MODEL: RunKind(
        REWARD_MODEL,
        "accuracy",
        (ACCURACY,),
        (
            MARGIN,
            LOSS,
            StepMetric("confidence", metric("confidence"), "confidence"),
            SPEED,
        ),
        (
            StepMetric("loss", metric("loss"), "loss", "Loss", "-log of the chance given to the label"),
            StepMetric("margin", metric("margin"), "margin", "Margin", "score of better less that of worse"),
            StepMetric(
                "confidence", metric("confidence"), "confidence", "Confidence", "mean chance given to its own choice"
            ),
            StepMetric("score", metric("score"), "score", "Score", "mean over the completions"),
            GRADIENT,
            LEARNING_RATE,
            SPEED,
        ),
        ("accuracy", "step_accuracy", "calibration_error", "margin", "loss"),
        "trained on",
    ),
}

# the metric that only runs of a kind report; a run whose steps report none of them imitates
SIGNS = ((PREFERENCE, "chosen_logp"), (REWARD_MODEL, "score"), (REWARD_MODEL, "squared_error"))


def kind_of(steps: Sequence[StepReport]) -> RunKind:
    """The kind of run that reports such steps; RL before the first step."""
    if not steps or steps[-1].reward or "samples" in steps[-1].counts:
        return RUN_KINDS[RL]
    metrics = steps[-1].metrics
    name = next((kind for kind, sign in SIGNS if sign in metrics), SFT if "loss" in metrics else RL)
    return RUN_KINDS[name]
