"""Groups whose completions all score alike: they teach nothing."""

from __future__ import annotations

from statistics import fmean

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.history import FAILED, LASTING, RECENT, TREND_STEPS, History
from whet.record.health.rule import HealthRule
from whet.record.text import number, percent

MANY_STEPS = 10
MOSTLY_UNIFORM = 0.8  # of the groups


def _no_signal(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or min(uniform) < 0.999:
        return None
    evidence = f"All groups of the last {RECENT} steps scored alike (mean {number(history.score)})"
    if history.solved:
        idle = sorted(part for part, mean in history.steps[-1].reward.items() if mean == 0)
        doubt = f"; look at {', '.join(idle)}, though, which stays at 0" if idle else ""
        cause = f"every completion is right, which is normal once a task is solved{doubt}"
        return note(evidence, f"{cause}. Give harder data to learn more")
    if history.score > FAILED and (history.rising or len(history.steps) < TREND_STEPS):
        return None
    larger = (history.higher("batch.group_size"), history.higher("sampling.temperature", 1.2))
    if history.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        return problem(evidence, cause, "give easier data", *larger)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return problem(evidence, cause, "give data of middling difficulty", *larger)


def _uniform(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups", MANY_STEPS)
    if len(uniform) < MANY_STEPS or history.doing_well or (share := fmean(uniform)) < MOSTLY_UNIFORM:
        return None
    filters = history.give("objective.keep", "mixed_outcome")
    return problem(
        f"{percent(share)} of the groups of the last {MANY_STEPS} steps scored alike and gave no gradient",
        "most prompts are always solved or never, and most completions are wasted",
        "give data of middling difficulty",
        history.higher("batch.group_size"),
        history.higher("sampling.temperature", 1.2),
        filters,
    )


def _agree(history: History) -> HealthFinding | None:
    uniform = history.metric("uniform_groups")
    if len(uniform) < RECENT or not history.doing_well or not 0.5 < (share := fmean(uniform)) < 0.999:
        return None
    evidence = f"{percent(share)} of the groups scored alike and gave no gradient"
    return note(evidence, "this is normal as the accuracy grows; harder data would use them better")


GROUP_RULES = (
    HealthRule(
        "no reward signal",
        _no_signal,
        "every group of the last steps scored alike, so no completion is better than another",
        "every completion is right (a note), or the reward still rises",
        ("metrics.uniform_groups",),
        earliest=RECENT,
        hides=("flat reward", "uniform groups"),
        depth=3,
    ),
    HealthRule(
        "uniform groups",
        _uniform,
        f"four in five groups of the last {MANY_STEPS} steps score alike, in a run that does not improve",
        "the reward rises or is at its top: more and more prompts are solved (a note)",
        ("metrics.uniform_groups",),
        earliest=MANY_STEPS + LASTING,
        lasting=LASTING,
        depth=3,
    ),
    HealthRule(
        "groups agree",
        _agree,
        "most groups score alike in a run that goes well",
        "always: a note that harder data would use the completions better",
        ("metrics.uniform_groups",),
        earliest=RECENT,
        is_note=True,
    ),
)
