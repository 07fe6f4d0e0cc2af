"""Completions that teach nothing because all of a group score alike; and how long they are, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from whet.record.health.episode_rules import LIMITS
from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import health_rule
from whet.record.health.history import (
    EARNED,
    FAILED,
    LASTING,
    RECENT,
    SOLVED,
    TREND_STEPS,
    History,
    improves_truly,
    score,
    share_of,
)
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


@health_rule(
    "truncated completions",
    "more than half of the completions run out of tokens, and did from the start, before their answer",
    "the task is solved all the same; as many are paid as can only be if cut ones are; or the reward pays nobody",
    ("counts.truncated",),
    earliest=RECENT,
    depth=1,
)
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


@health_rule(
    "length collapse",
    "completions are a quarter as long as they were, and no better",
    "the reward rises: the policy found a shorter way",
    ("counts.samples",),
    earliest=TREND_STEPS + LASTING,
    lasting=LASTING,
)
def _collapse(history: History) -> HealthFinding | None:
    pair = _moved_without_gain(history)
    if pair is None or not (pair[0] >= 8 and pair[1] < 0.25 * pair[0]):
        return None
    return problem(
        f"Completions shrank from {number(pair[0])} to {number(pair[1])} tokens without a better reward",
        "the policy found that short completions cost less, not that they are right",
        "weaken length costs and check that the reward gives nothing to an empty completion",
    )


@health_rule(
    "length blow-up",
    "completions are four times as long as they were, or many more than at first run out of tokens while "
    "evaluation or reward goes down, and they are no better",
    "the reward rises: the policy learns to reason",
    ("counts.samples",),
    earliest=TREND_STEPS,
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


@health_rule(
    "repetition",
    "half of what completions say, in runs of four tokens, they have said before, and at first it was less",
    "it was so from the start, as in lists and code; or an accuracy rises",
    ("metrics.repetition",),
    earliest=TREND_STEPS + LASTING,
    lasting=LASTING,
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


LENGTH_RULES = (_truncation, _collapse, _blow_up, _repetition)

FEWEST_IN_GROUP, FEWEST_IN_STEP = 4, 16  # completions
LOST = 0.05  # of the score, at least
MOSTLY = 0.8  # of the groups: where all are right, so many agree at least


@health_rule(
    "no reward signal",
    "every group of the last steps scored alike, so no completion is better than another",
    "every completion is right (a note), or the reward still rises",
    ("metrics.uniform_groups",),
    earliest=RECENT,
    hides=("flat reward",),
    depth=3,
)
def _no_signal(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or min(uniform) < 0.999 or not history.scores:  # without a score it is about the scorer
        return None
    evidence = f"All groups of the last {RECENT} steps scored alike (mean {number(history.score)})"
    larger = (history.higher("batch.group_size"), history.warmer())
    try_it = "score a right and a wrong answer by hand (`whet reward test`)"
    last = history.evaluations.last
    is_solved = history.solved and not (last is not None and last.estimate is not None and last.estimate.high < SOLVED)
    is_constant = len(set(history.scores)) == 1 and history.steps[0].step == 1
    differing = history.metric("agreed_groups", len(history.steps))
    if is_solved and is_constant and differing and fmean(differing) < MOSTLY:
        evidence = f"Every completion since step 1 was rewarded with {number(history.scores[0])}"
        agree = f"completions agree on an answer in {percent(fmean(differing))} of the groups only"
        return problem(f"{evidence}, and {agree}", "the reward pays for answers that contradict each other", try_it)
    if is_solved:
        idle = sorted(part for part, mean in history.steps[-1].reward.items() if mean == 0)
        doubt = f"; look at {', '.join(idle)}, though, which stays at 0" if idle else ""
        cause = f"every completion is right, which is normal once a task is solved{doubt}"
        return note(evidence, f"{cause}. Give harder data to learn more")
    if is_constant:
        evidence = f"Every completion since step 1 was rewarded with the same {number(history.scores[0])}"
        if history.score <= FAILED:
            cause = "the reward never pays, or the task is too hard for the model: nothing can be learned"
            return problem(evidence, cause, try_it, "give easier data", *larger)
        measured = f", while evaluation is at {last.text}" if last is not None else ""
        return problem(f"{evidence}{measured}", "the reward does not depend on the completion", try_it)
    if history.score > FAILED and (history.rising or len(history.steps) < TREND_STEPS):
        return None
    if history.score <= FAILED and (earned := max(history.scores)) >= EARNED:
        evidence += f", after up to {number(earned)} before"
        cause = "the policy no longer does what it could do: updates were too large, unless the later data is harder"
        return problem(
            evidence, cause, history.lower("optimizer.learning_rate"), f"begin again from {history.best_model}"
        )
    if history.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        return problem(evidence, cause, "give easier data", *larger)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return problem(evidence, cause, "give data of middling difficulty", *larger)


@health_rule(
    "batch too small",
    f"a step has groups of fewer than {FEWEST_IN_GROUP} completions, or fewer than {FEWEST_IN_STEP} in all, and "
    "the run lost half of what it had, or its evaluation fell",
    "the run learns all the same",
    ("reward",),
    earliest=2 * TREND_STEPS,
    depth=1,
)
def _too_few(history: History) -> HealthFinding | None:
    """A run that loses what it had, and whose step rests on a handful of completions."""
    group, prompts = history.setting("batch.group_size"), history.setting("batch.prompts_per_step")
    if not isinstance(group, int) or not isinstance(prompts, int) or len(history.scores) < 2 * TREND_STEPS:
        return None
    if (group >= FEWEST_IN_GROUP and group * prompts >= FEWEST_IN_STEP) or history.doing_well:
        return None
    windows = [fmean(history.scores[first : first + RECENT]) for first in range(len(history.scores) - RECENT + 1)]
    lost = max(windows[: len(windows) // 2 + 1]) - windows[-1]
    has_lost = history.evaluations.fell_from is not None or lost > max(LOST, 0.5 * abs(max(windows)))
    if not has_lost:
        return None
    return problem(
        f"A step has {prompts} prompts with {group} completions each, and the run lost what it had",
        "an update rests on so few completions that noise decides it",
        history.higher("batch.group_size", 4.0) if group < FEWEST_IN_GROUP else None,
        history.higher("batch.prompts_per_step", 4.0),
        history.lower("optimizer.learning_rate"),
    )


@health_rule(
    "groups agree",
    "most groups score alike",
    "always: a note that harder, or easier, data would use the completions better",
    ("metrics.uniform_groups",),
    earliest=RECENT,
    is_note=True,
)
def _agree(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or not 0.5 < (share := fmean(uniform)) < 0.999:
        return None
    evidence = f"{percent(share)} of the groups scored alike and gave no gradient"
    if history.doing_well:
        return note(evidence, "this is normal as the accuracy grows; harder data would use them better")
    return note(evidence, "their prompts are always solved or never; data of middling difficulty would use them better")


GROUP_RULES = (_no_signal, _too_few, _agree)
