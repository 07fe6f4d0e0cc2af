"""What is wrong with the data of a run: rows in both halves, a handful of prompts, gold answers that nobody gives."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from whet.record.health.finding import HealthFinding, note, problem
from whet.record.health.health_rule import ALL_KINDS, health_rule
from whet.record.health.history import DATA, FLAT_STEPS, OVERLAP, RECENT, TREND_STEPS, History, score
from whet.record.metrics.intervals import share_interval
from whet.record.text import number, percent
from whet.types import StepReport

VOTING_STEPS = 60
FEWEST_AGREED = 15  # groups whose completions agree on an answer
MOST_REFUSED = 0.2  # of them: a model that is sure is mostly right
FEWEST_PROMPTS = 4
SURE_OF_IT = 0.5  # mean score: a policy that is right more often may agree with itself
LEAST_ENTROPY = 0.05  # nats per token
NUM_PROMPTS = re.compile(r"[(,] ?(\d[\d,]*) prompts?\b(?:, (\d[\d,]*) different)?")


@health_rule(
    "evaluated on training rows",
    "rows of the evaluation are also trained on, by the facts of the run",
    "never: what is measured there may be memory",
    kinds=ALL_KINDS,
    depth=0,
    is_stated=True,
)
def _overlap(history: History) -> HealthFinding | None:
    stated = str(history.settings.get(OVERLAP) or "")
    if not stated:
        return None
    return problem(
        f"Evaluation asks what is trained on: {stated.partition(';')[0]}",
        "a model that learns its rows by heart evaluates well there",
        "evaluate on other rows (`whet data contamination` finds near copies too)",
    )


@health_rule(
    "few prompts",
    f"the run has fewer than {FEWEST_PROMPTS} different prompts, by its facts",
    "a test of the machinery",
    depth=0,
    is_stated=True,
)
def _few_prompts(history: History) -> HealthFinding | None:
    stated = NUM_PROMPTS.search(str(history.settings.get(DATA) or ""))
    if stated is None or (count := int((stated[2] or stated[1]).replace(",", ""))) >= FEWEST_PROMPTS:
        return None
    repeated = f", in {stated[1]} rows that read alike" if stated[2] else ""
    return problem(
        f"The run trains on {count} prompt{'s' if count != 1 else ''}{repeated}",
        "every step asks the same, and what is learned is its answer",
        "see what the rows hold (`whet data stats`) and what the template makes of them"
        if repeated
        else "give more prompts",
    )


@health_rule(
    "gold refused",
    f"more than {MOST_REFUSED:.0%} of the groups that agree on an answer are refused, beyond noise and to the last, "
    "though they are right more often than the other groups",
    "few groups agree; or it is the policy that errs where it is sure: such groups are right no more often than the "
    f"others, are refused more than before or than the run's first {FEWEST_AGREED}, or fewer completions are right "
    "than at first (a note)",
    ("metrics.refused_majorities",),
    earliest=FLAT_STEPS,
    depth=1,
)
def _refused(history: History) -> HealthFinding | None:
    """Groups that agree on an answer are mostly right: a model that is sure and refused says that the gold is not."""
    steps = history.steps[-VOTING_STEPS:]
    agreed, refused = _votes(steps)
    num_agreed, num_refused = sum(agreed), sum(refused)
    if len(history.steps) < FLAT_STEPS or num_agreed < FEWEST_AGREED:
        return None
    if share_interval(num_refused / num_agreed, num_agreed)[0] <= MOST_REFUSED:
        return None
    seen = (
        f"Of {num_agreed:.0f} groups of the last {len(steps)} steps whose completions agree on an answer, "
        f"{percent(num_refused / num_agreed)} are refused by the reward"
    )
    still = sum(refused[-RECENT:]) >= MOST_REFUSED * sum(agreed[-RECENT:])
    if not still or _is_policy_wrong(history, agreed, refused):
        return note(seen, "the policy may be sure of what is wrong, so this says nothing of the gold answers")
    return problem(
        seen,
        "the model is sure of what is called wrong: gold answers are wrong, or the reward does not read their form",
        "read such prompts with their gold answers in samples.jsonl",
        "score them by hand (`whet reward test`)",
    )


def _votes(steps: Sequence[StepReport]) -> tuple[list[float], list[float]]:
    """How many groups of each step agree on an answer, and how many of those are refused."""
    agreed = [step.metrics.get("agreed_groups", 0.0) * step.counts.get("prompts", 0) for step in steps]
    return agreed, [step.metrics.get("refused_majorities", 0.0) * num for step, num in zip(steps, agreed, strict=True)]


def _first(agreed: Sequence[float], count: float) -> int:
    """The number of steps from the first that have so many groups that agree."""
    return bisect_left(list(accumulate(agreed)), count) + 1


def _share(agreed: Sequence[float], refused: Sequence[float]) -> tuple[float, float]:
    """The interval of the share that is refused."""
    return share_interval(sum(refused) / sum(agreed), sum(agreed)) if sum(agreed) else (0.0, 1.0)


def _is_policy_wrong(history: History, agreed: Sequence[float], refused: Sequence[float]) -> bool:
    """Whether groups that agree and are refused may be wrong indeed, by their number in each of the last steps.

    Agreement is no witness where it does not go with being right. Gold answers do not change in a run: what changes
    for the worse is the policy.
    """
    num_agreed, num_right = sum(agreed), sum(agreed) - sum(refused)
    steps = history.steps[-len(agreed) :]
    num_prompts = sum(step.counts.get("prompts", 0) for step in steps)
    num_earned = sum((score(step) or 0.0) * step.counts.get("prompts", 0) for step in steps)
    num_others = num_prompts - num_agreed
    if num_others < 1 or share_interval(num_right / num_agreed, num_agreed)[0] <= (num_earned - num_right) / num_others:
        return True
    half, ever = _first(agreed, num_agreed / 2), _votes(history.steps)
    begun = _first(ever[0], FEWEST_AGREED)
    for before, now in (
        ((agreed[:half], refused[:half]), (agreed[half:], refused[half:])),
        ((ever[0][:begun], ever[1][:begun]), (agreed, refused)),
    ):
        if _share(*now)[0] > _share(*before)[1]:
            return True
    at_first, count = score(history.steps[0]) or 0.0, history.steps[0].counts.get("prompts", 0)
    return count > 0 and 0 <= at_first <= 1 and share_interval(at_first, count)[0] > num_earned / num_prompts


@health_rule(
    "identical completions",
    "all groups of a run agree on an answer, most are wrong, and the policy's entropy is above "
    f"{LEAST_ENTROPY:g} nats per token",
    "the policy is sure, or right",
    ("metrics.agreed_groups",),
    earliest=TREND_STEPS,
    hides=("gold refused", "no reward signal"),
    depth=0,
)
def _identical(history: History) -> HealthFinding | None:
    """A policy that could say several things, and a group that says one: it was drawn once."""
    agreed, entropies = (history.metric(name, len(history.steps)) for name in ("agreed_groups", "entropy"))
    if len(agreed) < max(TREND_STEPS, len(history.steps)) or min(agreed) < 1 or history.score >= SURE_OF_IT:
        return None  # a step without it had no group that agrees
    if len(entropies) < TREND_STEPS or fmean(entropies) < LEAST_ENTROPY:
        return None
    return problem(
        f"The completions of every group since step {history.steps[0].step} give one answer, though the policy has "
        f"{number(fmean(entropies))} nats of entropy per token",
        "the sampler draws a prompt's completions with the same seed, or hands one out several times",
        "read a group in samples.jsonl, and check the seed of the engine",
    )


DATA_RULES = (_identical, _refused, _overlap, _few_prompts)
