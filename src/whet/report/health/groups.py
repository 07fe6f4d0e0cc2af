"""Groups whose completions all score alike: they teach nothing."""

from __future__ import annotations

from statistics import fmean

from whet.report.health.finding import HealthFinding, note, problem
from whet.report.health.history import FAILED, RECENT, History
from whet.report.health.rule import HealthRule
from whet.report.text import number, percent


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
    if history.rising:
        return None
    larger = (history.higher("batch.group_size"), history.higher("sampling.temperature", 1.2))
    if history.score <= FAILED:
        cause = "every completion is wrong, so there is nothing to learn from"
        return problem(evidence, cause, "give easier data", *larger)
    cause = "each prompt is always solved or never, so no completion is better than its group"
    return problem(evidence, cause, "give data of middling difficulty", *larger)


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
