"""Runs that learn from rows that are given: the loss should fall, and scores should tell better from worse."""

from __future__ import annotations

from statistics import fmean

from whet.record.evaluations import Measurement, evaluations_of
from whet.record.health.finding import HealthFinding, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import FLAT_STEPS, LASTING, RECENT, History, finite, trend, trend_in_errors
from whet.record.metrics.intervals import share_interval
from whet.record.run_kinds import PREFERENCE, REWARD_MODEL, SFT
from whet.record.text import number, percent

# scores of a new head begin as guesses; a healthy one guessed 3,300 outcomes
GUESSED_PAIRS, GUESSED_OUTCOMES = 1500, 4000
COIN = 0.56  # of the pairs: what a model that guesses stays below, with 99% confidence
SURE = 2.33  # standard errors of a one-sided bound of 99%
FEWEST_EVALS = 4
ENDS = 3  # steps whose mean is a loss
ABOVE = 1.5  # times the loss of the first steps
SOARED = 3  # times the loss of the first step: in a short run, what no batch's own rows explain
WORSE = 0.1  # of a loss
HARDLY = 0.5  # standard errors of a rise that is none
RISES = 3.6  # standard errors: one in a thousand looks at pure noise
MUCH_LESS = 0.15  # of the pairs, beyond noise
RUINED = 3  # times the log-probability of the chosen completion at first
FEWEST_PAIRS = 20  # of an evaluation
LEARNED, OPPOSITE = 0.7, 0.4  # of the pairs: ordered right in training, and at most in evaluation


@health_rule(
    "loss rises",
    f"the loss rises by a tenth over {FLAT_STEPS} steps, beyond noise, or is half as much again as at first; before "
    f"step {2 * RECENT + LASTING}, only where it is {SOARED} times that of the first step",
    "it goes up and down around a level",
    ("metrics.loss",),
    kinds=(SFT, REWARD_MODEL),
    earliest=ENDS + 1 + LASTING,
    lasting=LASTING,
    depth=3,
)
def _loss_rises(history: History) -> HealthFinding | None:
    """A loss on rows that are seen again should fall."""
    first = finite(step.metrics.get("loss") for step in history.steps[:ENDS])
    losses = history.metric("loss", FLAT_STEPS)
    if len(history.steps) <= ENDS or not first or not losses:
        return None
    if len(history.steps) < 2 * RECENT and min(losses[-ENDS:]) <= SOARED * abs(first[0]) + 0.05:
        return None
    began, start, now = min(first), fmean(losses[:RECENT]), fmean(losses[-RECENT:])
    is_more = now - start > WORSE * max(abs(start), 0.05)
    rises = len(losses) == FLAT_STEPS and is_more and trend_in_errors(losses) > RISES
    if not rises and now <= ABOVE * abs(began) + 0.05:
        return None
    where = f"from {number(start)} to {number(now)} over {FLAT_STEPS} steps" if rises else f"from {number(began)}"
    return problem(
        f"The loss rose {where}" + ("" if rises else f", where it began, to {number(now)}"),
        "the updates do harm",
        history.lower("optimizer.learning_rate"),
        "look for rows of another kind late in the data",
    )


@health_rule(
    "guessing",
    "a reward model orders its training pairs no better than a coin",
    f"it has seen fewer than {GUESSED_PAIRS:,} pairs or {GUESSED_OUTCOMES:,} outcomes, or its accuracy begins to rise",
    ("metrics.accuracy",),
    kinds=(REWARD_MODEL,),
    earliest=2 * RECENT,
    depth=3,
)
def _guesses(history: History) -> HealthFinding | None:
    accuracies = finite(step.metrics.get("accuracy") for step in history.steps)
    pairs = sum(step.counts.get("rows", 0) for step in history.steps)
    has_outcomes = "right_labels" in history.steps[-1].metrics
    if pairs < (GUESSED_OUTCOMES if has_outcomes else GUESSED_PAIRS) or not accuracies:
        return None
    now = fmean(accuracies[len(accuracies) // 2 :])
    if share_interval(now, pairs / 2, SURE)[1] > COIN:
        return None
    rise, error = trend(accuracies)
    if rise > HARDLY * error or history.evaluations.rose:  # slowly, but it learns
        return None
    return problem(
        f"Accuracy on the training pairs is {percent(now)} after {pairs:,} of them",
        "the scores do not tell better from worse: labels are random, or the difference is not visible",
        "read a few pairs, and count how often you agree with their labels",
    )


@health_rule(
    "overfitting",
    "the loss on held-out rows rises while the training's falls below it",
    "it rises by less than a tenth, in a single evaluation, or the two do not part",
    ("metrics.loss",),
    kinds=(SFT, PREFERENCE, REWARD_MODEL),
    earliest=2 * ENDS,
)
def _overfits(history: History) -> HealthFinding | None:
    evals, losses = history.evaluated(("loss",)), history.metric("loss", 2 * FLAT_STEPS)
    if len(evals) < FEWEST_EVALS or len(losses) < 2 * ENDS:
        return None
    lowest, (best_at, best) = min(value for _, value in evals), min(evals, key=lambda evaluation: evaluation[1])
    training, now = fmean(losses[-ENDS:]), evals[-1][1]
    falls = training < fmean(losses[:ENDS])
    if not falls or min(value for _, value in evals[-2:]) <= lowest + WORSE * max(abs(lowest), 0.01):
        return None
    if now - training <= WORSE * max(abs(training), 0.01):  # they part, or nothing was learned by heart
        return None
    return problem(
        f"The loss on held-out rows rose from {number(best)} at step {best_at} to {number(now)} while the training's "
        f"falls to {number(training)}",
        "the rows are being learned by heart",
        "take the model of best/" if best_at else "the model it began with is better",
        "give more rows, or fewer steps",
        history.lower("optimizer.learning_rate"),
    )


@health_rule(
    "answers get worse",
    "the accuracy of held-out answers is below its best beyond noise, whatever the loss on held-out rows says",
    "the difference is what so few prompts give by chance",
    kinds=(SFT,),
    by_evaluation=True,
)
def _answers_worse(history: History) -> HealthFinding | None:
    """Demonstrations are learned, the loss falls, and what the model could do before is lost."""
    known = [evaluation for evaluation in history.evals if evaluation.step <= history.steps[-1].step]
    accuracy = evaluations_of(known, ("accuracy",))
    best, last = accuracy.fell_from, accuracy.last
    if best is None or last is None or last.metric != "accuracy":
        return None
    losses = [value for step, value in history.evaluated(("loss",)) if step in (best.step, last.step)]
    meanwhile = f"; the loss on held-out rows went from {number(losses[0])} to {number(losses[-1])}" if losses else ""
    at = f"step {best.step}" if best.step else "the start"
    return problem(
        f"Held-out accuracy fell beyond noise: {best.text} at {at}, {last.text} at step {last.step}{meanwhile}",
        "the rows teach another way to answer than the model's own, which was right more often",
        "compare the model's answers from before with the rows: their length, their working, their form",
        history.lower("optimizer.learning_rate"),
    )


@health_rule(
    "swapped labels",
    "training pairs are ordered right, and held-out ones the wrong way round, beyond noise",
    "held-out pairs are ordered no better than by a coin",
    ("metrics.accuracy",),
    kinds=(PREFERENCE, REWARD_MODEL),
    earliest=RECENT,
    depth=0,
)
def _swapped(history: History) -> HealthFinding | None:
    """What is learned is the opposite of what is evaluated."""
    known, last = history.metric("accuracy"), _held_out_pairs(history)
    if last is None or len(known) < RECENT:
        return None
    chosen = [step.metrics.get("chosen_logp", 0.0) for step in (history.steps[0], history.steps[-1])]
    if abs(chosen[1]) > RUINED * max(abs(chosen[0]), 1.0):  # such a policy orders pairs by accident
        return None
    if fmean(known) < LEARNED or share_interval(last.value, last.size)[1] >= OPPOSITE:
        return None
    return problem(
        f"The training pairs are ordered right in {percent(fmean(known))}, those of the evaluation in "
        f"{percent(last.value)} of {last.size:,}",
        "the opposite is learned: chosen and rejected are swapped in one of the two files",
        "read a few pairs of both, and swap the columns of the wrong one",
    )


@health_rule(
    "noisy labels",
    "held-out pairs are ordered right far more often than training pairs, beyond noise",
    "both are ordered alike; where held-out labels are as wrong as the training's, nothing shows it",
    ("metrics.accuracy",),
    kinds=(PREFERENCE, REWARD_MODEL),
    earliest=FLAT_STEPS,
    depth=0,
)
def _noisy(history: History) -> HealthFinding | None:
    known, last = history.metric("accuracy", FLAT_STEPS), _held_out_pairs(history)
    if last is None or len(known) < FLAT_STEPS:
        return None
    if share_interval(last.value, last.size)[0] <= fmean(known) + MUCH_LESS:
        return None
    return problem(
        f"{percent(last.value)} of the {last.size:,} held-out pairs are ordered right, and {percent(fmean(known))} of "
        "the training's",
        "part of the training pairs are labelled the wrong way round",
        "read the training pairs that the model orders with the largest margin against their label",
    )


def _held_out_pairs(history: History) -> Measurement | None:
    """The accuracy of the newest evaluation on held-out pairs; None where that is not measured, or on too few."""
    last = history.evaluations.last
    metric = "pair_accuracy" if "chosen_logp" in history.steps[-1].metrics else "accuracy"
    return last if last is not None and last.metric == metric and last.size >= FEWEST_PAIRS else None


ROW_RULES = (_loss_rises, _overfits, _answers_worse, _swapped, _noisy, _guesses)
