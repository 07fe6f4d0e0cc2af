"""What can go wrong in a run that learns from pairs of completions.

Each rule reads the metrics of the run from its first step on, as `pair_sums` names them. A metric that is missing asks
no question. A trend compares the means of the first and the last quarter of the run, so that one odd step does not
decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import VERIFIED, History
from whet.record.run_kinds import PREFERENCE

MetricSeries = Sequence[Mapping[str, float]]

FEW = 12  # steps before a trend is one: its ends are three each
SETTLED = 10  # steps before it can be said that nothing is learned
LEARNED_BY = 40  # steps in which slow runs part good from bad
FALL = 1.0  # nats per completion: below this a fall is noise
MUCH_LOST = 0.6  # of the log-probability of the chosen completion: most runs lose some of it
MUCH_LONGER = 0.1  # of the length
SAME = 0.01  # nats per token, what rounding may explain
STILL = 1e-3  # of a margin or a loss: below this it has not moved
SOON = 0.2  # share of a run
MANY_ALIKE = 0.1  # of the pairs
USUAL_BETA = (0.01, 1.0)  # below, hardly anything ties the policy to the reference; above, it is chained to it
_rule = partial(health_rule, kinds=(PREFERENCE,))


def _metrics(history: History) -> MetricSeries:
    return [step.metrics for step in history.steps]


def _ends(history: MetricSeries, name: str) -> tuple[float, float] | None:
    """Means of a metric over the first and the last quarter of the steps; None while it is too early to say."""
    values = [step[name] for step in history if name in step]
    if len(values) < FEW:
        return None
    quarter = max(1, len(values) // 4)
    return sum(values[:quarter]) / quarter, sum(values[-quarter:]) / quarter


def _mean(history: MetricSeries, name: str) -> float | None:
    values = [step[name] for step in history if name in step]
    return sum(values) / len(values) if values else None


def _first_drift(series: MetricSeries) -> tuple[float, float] | None:
    """|log pi / ref| per completion before the first update, where it is more than rounding, and the mean length."""
    first = series[0]
    if "drift" not in first or "chosen_length" not in first:
        return None
    length = (first["chosen_length"] + first.get("rejected_length", first["chosen_length"])) / 2
    return (first["drift"], length) if first["drift"] > SAME * max(length, 1.0) else None


@_rule(
    "reference mismatch",
    "policy and reference differ before the first update",
    "rounding explains it: less than 0.01 nats per token",
    ("metrics.drift",),
    depth=0,
)
def _reference_mismatch(history: History) -> HealthFinding | None:
    """Before the first update policy and reference are one model, so log pi / ref is 0 for every completion."""
    series = _metrics(history)
    first_drift = _first_drift(series)
    if first_drift is None:
        return None
    drift, length = first_drift
    first = series[0]
    size = (abs(first["chosen_logp"]) + abs(first.get("rejected_logp", first["chosen_logp"]))) / 2
    return problem(
        f"Before the first update |log pi/ref| is {drift:.3g} nats per completion of {length:.3g} tokens and should be "
        "0",
        f"it is as large as |log pi| itself ({size:.3g}): no reference is being subtracted"
        if drift > 0.9 * size
        else "the reference is another model, another template or precision, or dropout is on",
        "give the model that the run starts from as the reference",
    )


@_rule(
    "likelihood displacement",
    "the chosen completion loses 60% of its log-probability or more, with the rejected one or while the margin grows",
    "only the rejected completion falls, or the chosen one by less",
    ("metrics.chosen_logp", "metrics.rejected_logp"),
    earliest=FEW,
)
def _displacement(history: History) -> HealthFinding | None:
    series = _metrics(history)
    chosen, rejected = _ends(series, "chosen_logp"), _ends(series, "rejected_logp")
    margin, token = _ends(series, "margin"), _ends(series, "chosen_mean_logp")
    if chosen and rejected and rejected[0] - rejected[1] >= FALL and _sinks(chosen, FALL):
        evidence = (
            f"The log-probability of both completions falls, chosen {chosen[0]:.4g} -> {chosen[1]:.4g} and rejected "
            f"{rejected[0]:.4g} -> {rejected[1]:.4g} nats per completion"
        )
    elif margin and token and margin[1] > margin[0] and _sinks(token, SAME):
        evidence = (
            f"The margin goes from {margin[0]:.3g} to {margin[1]:.3g} while a token of the chosen falls from "
            f"{token[0]:.3g} to {token[1]:.3g} nats"
        )
    else:
        return None
    return problem(
        evidence,
        "the rejected completion sinks faster, and what both lose goes to completions nobody has judged; accuracy and "
        "margin do not show it",
        history.give("objective.imitate", "per_completion"),
        history.lower("optimizer.learning_rate"),
        "stop earlier",
    )


def _sinks(ends: tuple[float, float], least: float) -> bool:
    return ends[0] - ends[1] >= max(least, MUCH_LOST * abs(ends[0]))


@_rule(
    "not learning",
    "the rewards of good and bad completions do not part",
    "the loss falls",
    ("metrics.loss",),
    earliest=LEARNED_BY,
    depth=3,
)
def _not_learning(history: History) -> HealthFinding | None:
    series = _metrics(history)
    accuracy, margin, loss = _ends(series, "accuracy"), _ends(_with_margin(series), "margin"), _ends(series, "loss")
    if len(series) < LEARNED_BY or not margin or not loss or margin[1] > margin[0] + STILL:
        return None
    guessing = accuracy is not None and accuracy[1] <= 0.55
    if not guessing and loss[1] < loss[0] - STILL:
        return None
    trend = f"accuracy {accuracy[0]:.2f} -> {accuracy[1]:.2f}, " if accuracy else ""
    trend += f"margin {margin[0]:.3g} -> {margin[1]:.3g}, loss {loss[0]:.4g} -> {loss[1]:.4g}"
    return problem(
        trend,
        f"the rewards of good and bad completions do not part{_ruled_out(series)}",
        history.faster(),
        "read a few pairs: labels may be random, or the difference not visible",
    )


def _with_margin(history: MetricSeries) -> MetricSeries:
    """Adds `margin` to steps of completions judged one by one: mean reward of the good ones less that of the bad."""
    sides = ("chosen_reward", "rejected_reward")
    return [
        {**step, "margin": step[sides[0]] - step[sides[1]]}
        if "margin" not in step and all(side in step for side in sides)
        else step
        for step in history
    ]


def _ruled_out(series: MetricSeries) -> str:
    """The usual suspects that the numbers clear."""
    alike, drift = _mean(series, "alike"), series[0].get("drift")
    cleared = [f"the reference (|log pi/ref| {drift:.2g} at the first step)"] if drift is not None else []
    cleared = [] if _first_drift(series) else cleared
    if alike is not None and alike <= MANY_ALIKE:
        cleared.append(f"completions that are alike ({alike:.0%} of the pairs)")
    return f"; not the cause: {' and '.join(cleared)}" if cleared else ""


@_rule(
    "too easy",
    "every pair is ordered right almost from the start",
    "always: a note, since pairs that a program made are that plain",
    ("metrics.accuracy",),
    earliest=FEW,
    is_note=True,
)
def _too_good(history: History) -> HealthFinding | None:
    known = [step["accuracy"] for step in _metrics(history) if "accuracy" in step]
    if len(known) < FEW:
        return None
    soon = max(1, int(SOON * len(known)))
    early = known[:soon]
    if min(early[-1], *known[soon : soon + 2]) < 1.0:
        return None
    return note(
        f"Accuracy is 1.0 from step {soon} of {len(known)} on",
        "this is normal for pairs that a program made; between people's, something other than quality tells the "
        "completions apart (length, an opening, a missing end token), or the held-out pairs were trained on",
    )


@_rule(
    "hardly different",
    "in more than a tenth of the pairs both completions are alike",
    "a few of them",
    ("metrics.alike",),
    depth=0,
)
def _alike(history: History) -> HealthFinding | None:
    share = _mean(_metrics(history), "alike")
    if share is None or share <= MANY_ALIKE:
        return None
    return problem(
        f"In {share:.0%} of the pairs both completions have the same length and likelihood",
        "pairs that do not differ teach nothing",
        "drop them",
        "raise the bar for a pair",
    )


def _longer_share(history: History) -> tuple[float, float, float]:
    """In which share of the pairs the chosen completion is longer, by how many tokens, and how many were much.

    As often longer as not where that is not known, or where a verdict on the answer chose: then length says nothing.
    """
    series, parts = _metrics(history), [name for name in history.steps[-1].reward if name != "total"]
    share, longer = _mean(series, "chosen_is_longer"), _mean(series, "longer")
    if share is None or longer is None or (parts and all(name in VERIFIED for name in parts)):
        return 0.5, 0.0, 1.0
    return share, longer, MUCH_LONGER * max(_mean(series, "chosen_length") or 1.0, 1.0)


@_rule(
    "chosen is shorter",
    "the chosen completion is the longer one in less than a quarter of the pairs, and a tenth shorter on average",
    "always: a note, since brevity may be what was asked for",
    ("metrics.chosen_is_longer", "metrics.longer"),
    depth=1,
    is_note=True,
)
def _shorter_chosen(history: History) -> HealthFinding | None:
    share, longer, much = _longer_share(history)
    if share >= 0.25 or longer > -much:
        return None
    return note(
        f"The chosen completion is longer in only {share:.0%} of the pairs ({longer:.3g} tokens on average)",
        "this is normal where brevity was asked for; where it was not, chosen and rejected may be swapped, or cut",
    )


@_rule(
    "chosen is longer",
    "the chosen completion is the longer one in more than three quarters of the pairs, by a tenth on average",
    "the better answers need the room, and length is divided out of the score; or the run writes its own pairs, and "
    "only a verdict on the answer says which one is chosen",
    ("metrics.chosen_is_longer", "metrics.longer"),
    depth=1,
)
def _longer_chosen(history: History) -> HealthFinding | None:
    share, longer, much = _longer_share(history)
    if share <= 0.75 or longer < much:
        return None
    return problem(
        f"The chosen completion is longer in {share:.0%} of the pairs ({longer:.3g} tokens on average)",
        "the policy can learn length instead of quality",
        "match the lengths of the pairs",
    )


@_rule(
    "beta out of range",
    "beta is below 0.01 or above 1 for a logistic loss of summed log-ratios",
    "another score or curve has another unit",
    (),
    depth=0,
)
def _beta(history: History) -> HealthFinding | None:
    beta = history.setting("objective.curve.beta")
    kind = (history.setting("objective.score"), history.setting("objective.curve"))
    if kind != ("log_ratio", "logistic") or beta is None:
        return None
    least, most = USUAL_BETA
    if least <= beta <= most:
        return None
    loss = _ends(_metrics(history), "loss")
    trend = f", loss {loss[0]:.4g} -> {loss[1]:.4g} (log 2 = {math.log(2):.4g})" if loss else ""
    if beta < least:
        cause = "nothing holds the policy, and the loss hardly moves"
        return problem(f"beta is {beta:g}, below {least:g}{trend}", cause, history.give("objective.curve.beta", "0.1"))
    cause = "the policy is chained to the reference and pairs saturate at once"
    return problem(f"beta is {beta:g}, above {most:g}{trend}", cause, history.give("objective.curve.beta", "0.1"))


PREFERENCE_RULES = (
    _reference_mismatch,
    _displacement,
    _not_learning,
    _too_good,
    _alike,
    _shorter_chosen,
    _longer_chosen,
    _beta,
)
