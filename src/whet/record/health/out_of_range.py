"""A setting that leaves nothing to learn with, in a run that learns nothing."""

from __future__ import annotations

from collections.abc import Callable

from whet.record.health.finding import HealthFinding, SettingAdvice, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import FLAT_STEPS, LASTING, History
from whet.record.text import number, percent

MOST_EPSILON = 1e-3  # AdamW divides by it where gradients are smaller, and those of a language model are
LEAST_LIMIT = 1e-4  # of the gradient norm: below, AdamW's epsilon is what is left
LEAST_ADAPTER = 0.1  # alpha / rank
MOST_TIE = 2.0  # weight of the KL term: 0.001 to 0.1 are usual
MOST_HEAT = 2.0  # temperature
MOST_DECAYED = 0.5  # of the weights, since the first step
LEAST_LEFT = 0.01  # of the reward, at the first token of a completion
BY_TOKEN = ("gae", "gae_decoupled", "vtrace", "trace", "return_to_go")  # baselines whose discount is per token
Cause = tuple[str, str, SettingAdvice | None]  # what is seen, what it does, what to give


def _number(history: History, setting: str) -> float:
    value = history.setting(setting)
    return float(value) if isinstance(value, int | float) else 0.0


def _warm_up(history: History) -> Cause | None:
    warm, steps = _number(history, "optimizer.warmup_steps"), _number(history, "steps")
    if not 0 < steps < warm:
        return None
    return (
        f"the warm-up has {warm:,.0f} steps and the run {steps:,.0f}",
        "the learning rate never arrives",
        history.give("optimizer.warmup_steps", f"{max(1, round(steps / 20))}"),
    )


def _epsilon(history: History) -> Cause | None:
    size = _number(history, "optimizer.epsilon")
    if size < MOST_EPSILON:
        return None
    return (
        f"optimizer.epsilon is {size:g}",
        "AdamW divides small gradients by it, and hardly moves",
        history.give("optimizer.epsilon", "1e-08"),
    )


def _limit(history: History) -> Cause | None:
    size = _number(history, "optimizer.max_gradient_norm")
    if not 0 < size <= LEAST_LIMIT:
        return None
    return (
        f"gradients are clipped to a norm of {size:g}",
        "AdamW's epsilon is larger than what is left of them",
        history.give("optimizer.max_gradient_norm", "1.0"),
    )


def _adapter(history: History) -> Cause | None:
    rank, alpha = _number(history, "model.lora.rank"), _number(history, "model.lora.alpha")
    if not rank or alpha / rank >= LEAST_ADAPTER:
        return None
    return (
        f"the adapter is scaled by {alpha / rank:g} (model.lora.alpha {alpha:g}, rank {rank:g})",
        "whatever it learns hardly changes the model",
        history.give("model.lora.alpha", f"{max(32.0, 2 * rank):g}"),
    )


def _tie(history: History) -> Cause | None:
    beta = _number(history, "objective.kl.beta")
    if beta < MOST_TIE:
        return None
    return (
        f"objective.kl.beta is {beta:g}",
        "staying with the reference counts for more than any reward",
        history.give("objective.kl.beta", "0.04"),
    )


def _heat(history: History) -> Cause | None:
    heat = _number(history, "sampling.temperature")
    if heat < MOST_HEAT:
        return None
    return (
        f"completions are sampled at temperature {heat:g}",
        "they are closer to random text than to what the model would say",
        history.give("sampling.temperature", "1.0"),
    )


def _decay(history: History) -> Cause | None:
    decay = _number(history, "optimizer.weight_decay") * _number(history, "optimizer.learning_rate")
    left = (1 - min(1.0, decay)) ** history.steps[-1].step
    if left > 1 - MOST_DECAYED:
        return None
    return (
        f"weight decay alone has shrunk the weights to {percent(left)} of what they were",
        "the model forgets faster than it learns",
        history.give("optimizer.weight_decay", "0.0"),
    )


def _discount(history: History) -> Cause | None:
    gamma = history.setting("objective.baseline.gamma")
    lengths = [step.counts.get("tokens", 0) / max(1, step.counts.get("samples", 0)) for step in history.steps]
    if history.setting("objective.baseline") not in BY_TOKEN or not isinstance(gamma, int | float):
        return None
    longest = max(lengths)  # completions that learn nothing get shorter
    if (left := float(gamma) ** longest) >= LEAST_LEFT:
        return None
    return (
        f"the discount of {gamma:g} leaves {number(left)} of the reward at the first of {longest:.0f} tokens",
        "what a completion begins with learns nothing of how it ends",
        history.give("objective.baseline.gamma", "1.0"),
    )


CAUSES: tuple[Callable[[History], Cause | None], ...] = (
    *(_warm_up, _epsilon, _limit, _adapter, _tie, _heat, _decay, _discount),
)


@health_rule(
    "setting out of range",
    f"nothing is learned after {FLAT_STEPS} steps, and a setting leaves no room for it: a warm-up longer than the "
    f"run, AdamW's epsilon from {MOST_EPSILON:g} on, gradients clipped to {LEAST_LIMIT:g} or less, an adapter "
    f"scaled by less than {LEAST_ADAPTER:g}, a KL weight or a temperature from {MOST_TIE:g} on, weights that decay "
    "by half, a discount that forgets the reward",
    "the run learns all the same",
    ("reward",),
    earliest=FLAT_STEPS + LASTING,
    lasting=LASTING,
    hides=("flat reward",),
    depth=0,
)
def _out_of_range(history: History) -> HealthFinding | None:
    if len(history.scores) < FLAT_STEPS or history.doing_well:
        return None
    causes = [cause for look in CAUSES if (cause := look(history)) is not None]
    if not causes:
        return None
    seen, does, advice = causes[0]
    others = "".join(f"; also, {other[0]}" for other in causes[1:])
    return problem(f"Nothing is learned, and {seen}{others}", does, advice)


RANGE_RULES = (_out_of_range,)
