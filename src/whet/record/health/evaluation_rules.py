"""What the run's own evaluations say: the first witness of a run, before its rewards and losses."""

from __future__ import annotations

from statistics import fmean

from whet.record.health.finding import HealthFinding, problem
from whet.record.health.health_rule import ALL_KINDS, health_rule
from whet.record.health.history import RECENT, TREND_STEPS, VERIFIED, History
from whet.record.metrics.intervals import share_interval
from whet.record.text import number, percent, words

GAP = 0.15  # of a score from 0 to 1: what training gained, of which evaluation shows less than a quarter
SHOWN = 0.25
FEWEST_PROMPTS = 50  # of an evaluation that is to show a gain
SURE = 2.33  # standard errors of a one-sided bound of 99%


@health_rule(
    "evaluation falls",
    "the last evaluation is below the best, or the last two are: prompt by prompt where the log has scores, as two "
    "shares otherwise; in at most 2% of runs in which nothing changes, whatever the number of looks",
    "the difference is what so few prompts give by chance",
    kinds=ALL_KINDS,
    hides=("flat reward", "falling reward"),
    by_evaluation=True,
    depth=3,
)
def _falls(history: History) -> HealthFinding | None:
    evaluations = history.evaluations
    best, last = evaluations.fell_from, evaluations.last
    if best is None or last is None:
        return None
    at = f"step {best.step}" if best.step else "the start"
    name = words(best.metric)
    evidence = f"Evaluation fell beyond noise: {name} {best.text} at {at}, {last.text} at step {last.step}"
    if history.rising:
        cause = "the reward rises meanwhile, so what it pays is not what is evaluated, or rows are learned by heart"
        first: str | None = "read the best completions in review.html, and run `whet reward attack`"
    else:
        also = ", and the reward falls with it" if history.direction < 0 else ""
        cause, first = f"the updates do harm{also}", None
    return problem(
        evidence,
        cause,
        first,
        history.lower("optimizer.learning_rate"),
        history.tie() if "objective.kl" in history.settings else None,
        f"take {history.best_model}, which evaluates better",
    )


@health_rule(
    "evaluation lags",
    f"by the last evaluation the training score had risen by {GAP:g} or more, and evaluation of {FEWEST_PROMPTS} "
    "prompts or more by less than a quarter of it, with 99% confidence",
    "evaluation follows later, or has too few prompts to say",
    earliest=2 * TREND_STEPS,
    depth=3,
)
def _lags(history: History) -> HealthFinding | None:
    """Training gains, and evaluation could have shown a quarter of it and does not.

    What it gained since the last evaluation, that one could not show.
    """
    measured = history.evaluations.measured
    if len(measured) < 2 or measured[-1].step < TREND_STEPS or history.evaluations.fell_from is not None:
        return None
    first, last = measured[0], measured[-1]
    history = history.without_last(sum(step.step > last.step for step in history.steps))
    scores = history.scores
    if len(scores) < 2 * TREND_STEPS:
        return None
    reward = history.steps[-1].reward
    is_same = any(name in reward for name in VERIFIED) or len([name for name in reward if name != "total"]) <= 1
    is_share = all(0 <= value <= 1 for value in scores) and first.estimate is not None and 0 <= last.value <= 1
    if not is_same or not is_share or min(first.size, last.size) < FEWEST_PROMPTS:
        return None
    trained = fmean(scores[-RECENT:]) - fmean(scores[:RECENT])
    # the sharpest that evaluation may have gained, as if other prompts had been asked each time
    highest = share_interval(last.value, last.size, SURE)[1] - first.value
    if trained < GAP or not history.rising or highest > SHOWN * trained:
        return None
    return problem(
        f"The training score rose by {number(trained)}, and evaluation went from {percent(first.value)} to "
        f"{percent(last.value)} of {last.size:,} prompts, at most by {number(max(0.0, highest))}",
        "what is learned does not carry over: rows are learned by heart, or the eval prompts are of another kind",
        "give more and more varied rows",
        "compare a train and an eval prompt, and how each is scored",
    )


EVALUATION_RULES = (_falls, _lags)
