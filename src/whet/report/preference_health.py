"""What can go wrong in a preference run: checks of the registry in `whet.report.health`.

Each reads the metrics of the run from its first step on, as `pair_sums` names them. A metric that is missing asks no
question. A trend compares the means of the first and the last quarter of the run, so that one odd step does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from whet.metrics.preference import length_correlation
from whet.report.findings import Check, HealthFinding, History

MetricSeries = Sequence[Mapping[str, float]]

FEW = 4  # steps before a trend is one
FALL = 1.0  # nats per completion: below this a fall is noise
SAME = 0.01  # nats per token, what rounding may explain
STILL = 1e-3  # of a margin or a loss: below this it has not moved
SOON = 0.2  # share of a run
USUAL_BETA = (0.01, 1.0)  # below, hardly anything ties the policy to the reference; above, it is chained to it


def check(name: str, sentence: Callable[[MetricSeries], str | None]) -> Check:
    """A check of the registry from a function of the metrics alone."""

    def find(history: History) -> HealthFinding | None:
        text = sentence([step.metrics for step in history.steps])
        return None if text is None else HealthFinding(name, text)

    return find


def beta_check(beta: float) -> Check:
    """Whether beta is out of the usual range of a logistic loss of summed log-ratios."""
    return check("beta out of range", lambda history: _beta(beta, history))


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


def _not_finite(history: MetricSeries) -> str | None:
    for step, metrics in enumerate(history, 1):
        for name, number in metrics.items():
            if not math.isfinite(number):
                return f"{name} is {number} at step {step}; look at the pairs of that step, then at the learning rate"
    return None


def _reference_mismatch(history: MetricSeries) -> str | None:
    """Before the first update policy and reference are one model, so log pi / ref is 0 for every completion."""
    first = history[0]
    if "drift" not in first or "chosen_length" not in first:
        return None
    length = (first["chosen_length"] + first.get("rejected_length", first["chosen_length"])) / 2
    if first["drift"] <= SAME * max(length, 1.0):
        return None
    drift = first["drift"]
    size = (abs(first["chosen_logp"]) + abs(first.get("rejected_logp", first["chosen_logp"]))) / 2
    raw = drift > 0.9 * size
    return (
        f"Before the first update |log pi/ref| is {drift:.3g} nats per completion of {length:.3g} tokens "
        "and should be 0; "
        + (
            f"it is as large as |log pi| itself ({size:.3g}): no reference is being subtracted"
            if raw
            else "the reference is another model, another template or precision, or dropout is on"
        )
    )


def _displacement(history: MetricSeries) -> str | None:
    chosen, rejected = _ends(history, "chosen_logp"), _ends(history, "rejected_logp")
    if not chosen or not rejected or chosen[0] - chosen[1] < FALL or rejected[0] - rejected[1] < FALL:
        return None
    return (
        f"The log-probability of both completions falls, chosen {chosen[0]:.4g} -> "
        f"{chosen[1]:.4g} and rejected {rejected[0]:.4g} -> {rejected[1]:.4g} nats per completion; what they lose "
        "goes to completions nobody has judged: imitate the chosen completion as well, protect it, or stop earlier"
    )


def _falling_chosen(history: MetricSeries) -> str | None:
    margin, chosen = _ends(history, "margin"), _ends(history, "chosen_mean_logp")
    if not margin or not chosen or margin[1] <= margin[0] or chosen[1] >= chosen[0] - SAME:
        return None
    return (
        f"{margin[0]:.3g} -> {margin[1]:.3g} while a token of the chosen completion falls from "
        f"{chosen[0]:.3g} to {chosen[1]:.3g} nats; accuracy and margin say nothing about the chosen completion here"
    )


def _not_learning(history: MetricSeries) -> str | None:
    """The rewards of good and bad completions do not part, and accuracy or loss shows it."""
    accuracy, margin, loss = _ends(history, "accuracy"), _ends(_with_margin(history), "margin"), _ends(history, "loss")
    if not margin or margin[1] > margin[0] + STILL:
        return None
    guessing = accuracy is not None and accuracy[1] <= 0.55
    if not guessing and (loss is None or loss[1] < loss[0] - STILL):
        return None
    trend = f"accuracy {accuracy[0]:.2f} -> {accuracy[1]:.2f}, " if accuracy else ""
    trend += f"margin {margin[0]:.3g} -> {margin[1]:.3g}" + (f", loss {loss[0]:.4g} -> {loss[1]:.4g}" if loss else "")
    return (
        f"{trend}{_ruled_out(history)}; raise the learning rate or beta, and read a few pairs: the "
        "difference may not be visible"
    )


def _with_margin(history: MetricSeries) -> MetricSeries:
    """Of completions judged one by one: the gap between the mean rewards of good and bad ones."""
    sides = ("chosen_reward", "rejected_reward")
    return [
        {**step, "margin": step[sides[0]] - step[sides[1]]}
        if "margin" not in step and all(side in step for side in sides)
        else step
        for step in history
    ]


def _ruled_out(history: MetricSeries) -> str:
    """The usual suspects that the numbers clear."""
    alike, drift = _mean(history, "alike"), history[0].get("drift")
    cleared = [f"the reference (|log pi/ref| {drift:.2g} at the first step)"] if drift is not None else []
    cleared = [] if _reference_mismatch(history) else cleared
    if alike is not None and not _alike(history):
        cleared.append(f"completions that are alike ({alike:.0%} of the pairs)")
    return f"; not the cause: {' and '.join(cleared)}" if cleared else ""


def _too_good(history: MetricSeries) -> str | None:
    known = [step["accuracy"] for step in history if "accuracy" in step]
    if len(known) < FEW:
        return None
    soon = max(1, int(SOON * len(known)))
    early = known[:soon]
    if min(early[-1], *known[soon : soon + 2]) < 1.0:
        return None
    return (
        f"accuracy is 1.0 from step {soon} of {len(known)} on; something other than quality tells the "
        "completions apart (length, an opening, a missing end token), or the held-out pairs were trained on"
    )


def _alike(history: MetricSeries) -> str | None:
    share = _mean(history, "alike")
    if share is None or share <= 0.1:
        return None
    return (
        f"in {share:.0%} of the pairs both completions have the same length and likelihood; pairs that "
        "do not differ teach nothing: drop them or raise the bar for a pair"
    )


def _shorter_chosen(history: MetricSeries) -> str | None:
    share, longer = _mean(history, "chosen_is_longer"), _mean(history, "longer")
    if share is None or longer is None or share >= 0.25 or longer >= 0:
        return None
    return (
        f"The chosen completion is longer in only {share:.0%} of the pairs ({longer:.3g} tokens on average): unusual "
        "for preferences; check that chosen and rejected are not swapped and that neither is truncated"
    )


def _longer_chosen(history: MetricSeries) -> str | None:
    share, longer = _mean(history, "chosen_is_longer"), _mean(history, "longer")
    if share is None or longer is None or share <= 0.75 or longer <= 0:
        return None
    return (
        f"The chosen completion is longer in {share:.0%} of the pairs ({longer:.3g} tokens on average): the policy can "
        "learn length instead of quality; match lengths, or divide them out of the score"
    )


def _length_bias(history: MetricSeries) -> str | None:
    known = [value for step in history if (value := length_correlation(step)) is not None]
    last = known[-max(1, len(known) // 4) :]
    if len(known) < FEW or abs(mean := sum(last) / len(last)) < 0.5:
        return None
    side = "longer" if mean > 0 else "shorter"
    return (
        f"the margin and the difference in length correlate by {mean:.2f} over the last {len(last)} "
        f"steps, the {side} completion wins; divide the score by the length or discount the longer completion's tail"
    )


def _beta(beta: float, history: MetricSeries) -> str | None:
    least, most = USUAL_BETA
    if least <= beta <= most:
        return None
    loss = _ends(history, "loss")
    trend = f", loss {loss[0]:.4g} -> {loss[1]:.4g} (log 2 = {math.log(2):.4g})" if loss else ""
    if beta < least:
        return f"beta is {beta:g}, below {least:g}: nothing holds the policy, and the loss hardly moves{trend}"
    return f"beta is {beta:g}, above {most:g}: the policy is chained to the reference and pairs saturate at once{trend}"


PREFERENCE_CHECKS: tuple[Check, ...] = (
    check("not a number", _not_finite),
    check("reference mismatch", _reference_mismatch),
    check("likelihood displacement", _displacement),
    check("the margin grows by sinking", _falling_chosen),
    check("not learning", _not_learning),
    check("too easy", _too_good),
    check("hardly different", _alike),
    check("chosen is shorter", _shorter_chosen),
    check("chosen is longer", _longer_chosen),
    check("length decides", _length_bias),
)
