"""How long completions are, and whether they end by themselves."""

from __future__ import annotations

from whet.record.health.episodes import LIMITS
from whet.record.health.finding import HealthFinding, problem
from whet.record.health.history import RECENT, TREND_STEPS, History, improves_truly, score, share_of
from whet.record.health.rule import HealthRule
from whet.record.run_kinds import completion_length
from whet.record.text import number, percent

MUCH_REPEATED = 0.5


def _truncation(history: History) -> HealthFinding | None:
    if history.solved or len(history.steps) < RECENT:
        return None
    recent = history.steps[-RECENT:]
    # episodes that a limit of their own ended ran out of something else, which has its own rule
    share = share_of(recent, "truncated") - sum(share_of(recent, f"ended_by_{limit}") for limit in LIMITS)
    if share <= 0.5:
        return None
    return problem(
        f"{percent(share)} of the completions of the last {RECENT} steps ran out of tokens",
        "they are cut before their answer",
        history.higher("sampling.max_new_tokens"),
        "reward shorter completions",
    )


def _moved_without_gain(history: History) -> tuple[float, float] | None:
    """Mean lengths at the start and now, where the score is no better for it."""
    pair, scores = history.start_and_now(completion_length), history.start_and_now(score)
    if pair is None or history.doing_well or (scores is not None and scores[1] > scores[0] + 0.1 * abs(scores[0])):
        return None
    return pair


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
    if pair is None or not (pair[1] > 4 * pair[0] and pair[1] >= 32):
        return None
    return problem(
        f"Completions grew from {number(pair[0])} to {number(pair[1])} tokens without a better reward",
        "length is being rewarded, or the end of the completion is no longer learned",
        history.give("objective.aggregate", "token_mean"),
        history.lower("sampling.max_new_tokens", 0.5),
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
        "more than half of the completions run out of tokens",
        "the task is solved all the same",
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
        earliest=TREND_STEPS,
    ),
    HealthRule(
        "length blow-up",
        _blow_up,
        "completions are four times as long as they were, and no better",
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
        earliest=TREND_STEPS,
    ),
)
