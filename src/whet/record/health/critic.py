"""Whether the critic knows what its states are worth."""

from __future__ import annotations

from statistics import fmean

from whet.record.health.finding import HealthFinding, problem
from whet.record.health.history import RECENT, History, finite, score
from whet.record.health.rule import HealthRule
from whet.record.text import number

SETTLED = 12  # steps that a critic has to learn its first lesson
LATELY = 10  # steps whose mean decides
NEARLY_SOLVED = 0.85  # mean score from which there is little left to explain
HARDLY = 0.05  # share of the variance that no critic stays below which learns
WORTHLESS = 0.0  # share of the variance explained: a constant does as well


def _misfit(history: History) -> HealthFinding | None:
    known = finite(step.metrics.get("critic_explains") for step in history.steps)
    if len(known) < SETTLED:
        return None
    now = fmean(known[-LATELY:])
    never = max(fmean(known[start : start + RECENT]) for start in range(len(known) - RECENT + 1)) < HARDLY
    easy = (score(history.steps[0]) or 0.0) >= NEARLY_SOLVED
    if easy or not (never or (now <= WORTHLESS and not history.doing_well)):
        return None
    when = "and never did better" if never else f"over the last {LATELY} steps"
    return problem(
        f"The critic explains {number(now)} of the variance of its targets {when}",
        "it is no better than a constant, and its errors are in every advantage",
        history.higher("critic.learning_rate", 3.0) if never else None,
        history.give("objective.value.warmup", "10"),
        "leave the critic out: compare each completion with its group",
    )


CRITIC_RULES = (
    HealthRule(
        "critic misfit",
        _misfit,
        "the critic's values explain nothing of what completions earn",
        f"the first {SETTLED} steps, while it learns; or every completion is right and there is nothing to explain",
        ("metrics.critic_explains",),
        earliest=SETTLED,
        depth=2,
    ),
)
