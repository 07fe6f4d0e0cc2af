"""Groups whose completions all score alike: they teach nothing."""

from __future__ import annotations

from statistics import fmean

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.history import FAILED, RECENT, SOLVED, TREND_STEPS, History
from whet.record.health.rule import HealthRule
from whet.record.text import number, percent

FEWEST_IN_GROUP, FEWEST_IN_STEP = 4, 16  # completions
LOST = 0.05  # of the score, at least
MOSTLY = 0.8  # of the groups: where all are right, so many agree at least


def _no_signal(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or min(uniform) < 0.999:
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
    if history.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        return problem(evidence, cause, "give easier data", *larger)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return problem(evidence, cause, "give data of middling difficulty", *larger)


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


def _agree(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or not 0.5 < (share := fmean(uniform)) < 0.999:
        return None
    evidence = f"{percent(share)} of the groups scored alike and gave no gradient"
    if history.doing_well:
        return note(evidence, "this is normal as the accuracy grows; harder data would use them better")
    return note(evidence, "their prompts are always solved or never; data of middling difficulty would use them better")


GROUP_RULES = (
    HealthRule(
        "no reward signal",
        _no_signal,
        "every group of the last steps scored alike, so no completion is better than another",
        "every completion is right (a note), or the reward still rises",
        ("metrics.uniform_groups",),
        earliest=RECENT,
        hides=("flat reward",),
        depth=3,
    ),
    HealthRule(
        "batch too small",
        _too_few,
        f"a step has groups of fewer than {FEWEST_IN_GROUP} completions, or fewer than {FEWEST_IN_STEP} in all, and "
        "the run lost half of what it had, or its evaluation fell",
        "the run learns all the same",
        ("reward",),
        earliest=2 * TREND_STEPS,
        depth=1,
    ),
    HealthRule(
        "groups agree",
        _agree,
        "most groups score alike",
        "always: a note that harder, or easier, data would use the completions better",
        ("metrics.uniform_groups",),
        earliest=RECENT,
        is_note=True,
    ),
)
