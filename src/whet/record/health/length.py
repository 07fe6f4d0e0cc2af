"""How long completions are, and whether they end by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from whet.record.health.episodes import LIMITS
from whet.record.health.finding import HealthFinding, problem
from whet.record.health.history import LASTING, RECENT, TREND_STEPS, History, improves_truly, score, share_of
from whet.record.health.rule import HealthRule
from whet.record.run_kinds import completion_length
from whet.record.text import number, percent
from whet.types import StepReport

MUCH_REPEATED = 0.5
SOME = 0.2  # of the completions: cut from the start
PAID = 0.15  # by how much the score may pass the share of completions that end
NEARLY_ALL = 0.8  # of the completions
MORE_CUT, MUCH_MORE_CUT = 1.5, 0.1  # times as many as at first, and so many of the completions more


def _cut(steps: Sequence[StepReport]) -> float:
    """The share of completions that ran out of tokens; what a limit of episodes ended has its own rule."""
    return share_of(steps, "truncated") - sum(share_of(steps, f"ended_by_{limit}") for limit in LIMITS)


def _truncation(history: History) -> HealthFinding | None:
    if history.solved or len(history.steps) < RECENT:
        return None
    share, first = _cut(history.steps[-RECENT:]), _cut(history.steps[:1])  # the first are those of the model as it was
    if share <= 0.5 or first < SOME:
        return None
    # what is cut behind its answer is paid all the same, and a reward that pays nobody does not pay what ends either
    is_paid = history.score > 1 - share + PAID
    pays_nobody = share < NEARLY_ALL and max(history.scores, default=0.0) <= 0
    if is_paid or pays_nobody:
        return None
    return problem(
        f"{percent(share)} of the completions of the last {RECENT} steps ran out of tokens, {percent(first)} at first, "
        f"and the mean score is {number(history.score)}",
        "they are cut before their answer",
        history.higher("sampling.max_new_tokens"),
        "reward shorter completions",
    )


def _moved_without_gain(history: History) -> tuple[float, float] | None:
    """Mean lengths at the start and now, where evaluation, or else the score, is no better for it."""
    pair, scores = history.start_and_now(completion_length), history.start_and_now(score)
    if pair is None or history.doing_well:
        return None
    measured = history.evaluations.measured
    if len(measured) > 1:
        return None if measured[-1].is_better_than(measured[0]) else pair
    return None if scores is not None and scores[1] > scores[0] + 0.1 * abs(scores[0]) else pair


def _collapse(history: History) -> HealthFinding | None:
    pair = _moved_without_gain(history)
    if pair is None or not (pair[0] >= 8 and pair[1] < 0.25 * pair[0]):
        return None
    return problem(
        f"Completions shrank from {number(pair[0])} to {number(pair[1])} tokens without a better reward",
        "the policy found that short completions cost less, not that they are right",
        "weaken length costs and check that the reward gives nothing to an empty completion",
    )


def _blow_up(history: History) -> HealthFinding | None:
    pair = _moved_without_gain(history)
    if pair is None:
        return None
    lengths = [length for step in history.steps[-RECENT:] if (length := completion_length(step)) is not None]
    is_longer = min(lengths, default=0.0) > max(4 * pair[0], 32)
    before, now = _cut(history.steps[:TREND_STEPS]), _cut(history.steps[-TREND_STEPS:])
    measured = history.evaluations.measured
    is_worse = history.direction < 0 or (len(measured) > 1 and measured[0].is_better_than(measured[-1]))
    is_cut = len(history.steps) >= 2 * TREND_STEPS and now > MORE_CUT * before and now > before + MUCH_MORE_CUT
    is_cut = is_cut and (is_worse or now > 0.5)
    if not is_longer and not is_cut:
        return None
    seen = f"Completions grew from {number(pair[0])} to {number(pair[1])} tokens" if is_longer else ""
    if is_cut:
        also = f"{percent(before)} of the completions ran out of tokens at first, {percent(now)} now"
        seen = f"{seen}, and {also}" if seen else also[0].upper() + also[1:]
    fell = history.evaluations.fell_from is not None
    return problem(
        f"{seen}, {'and evaluation fell' if fell else 'without a better reward'}",
        "the policy runs on: length is being rewarded, or the updates are so large that it no longer ends",
        history.lower("optimizer.learning_rate"),
        history.tie(),
        "add a length cost; more room would only be filled",
    )


def _repetition(history: History) -> HealthFinding | None:
    pair = history.start_and_now(lambda step: step.metrics.get("repetition"))
    if pair is None or not (pair[1] > MUCH_REPEATED and pair[1] > pair[0] + 0.2) or improves_truly(history):
        return None
    return problem(
        f"{percent(pair[1])} of what completions say, in runs of four tokens, they have said before, "
        f"{percent(pair[0])} at first",
        "the policy repeats itself, because the reward pays for it or nothing ends a completion",
        "add padding to reward.defences, or the reward repetition to reward.parts",
        history.tie(),
        history.lower("optimizer.learning_rate"),
    )


LENGTH_RULES = (
    HealthRule(
        "truncated completions",
        _truncation,
        "more than half of the completions run out of tokens, and did from the start, before their answer",
        "the task is solved all the same; as many are paid as can only be if cut ones are; or the reward pays nobody",
        ("counts.truncated",),
        earliest=RECENT,
        depth=1,
    ),
    HealthRule(
        "length collapse",
        _collapse,
        "completions are a quarter as long as they were, and no better",
        "the reward rises: the policy found a shorter way",
        ("counts.samples",),
        earliest=TREND_STEPS + LASTING,
        lasting=LASTING,
    ),
    HealthRule(
        "length blow-up",
        _blow_up,
        "completions are four times as long as they were, or many more than at first run out of tokens while "
        "evaluation or reward goes down, and they are no better",
        "the reward rises: the policy learns to reason",
        ("counts.samples",),
        earliest=TREND_STEPS,
    ),
    HealthRule(
        "repetition",
        _repetition,
        "half of what completions say, in runs of four tokens, they have said before, and at first it was less",
        "it was so from the start, as in lists and code; or an accuracy rises",
        ("metrics.repetition",),
        earliest=TREND_STEPS + LASTING,
        lasting=LASTING,
    ),
)
