"""What is known of a run's data before its first step: how many prompts there are, and which are in both halves."""

from __future__ import annotations

import re

from whet.record.health.finding import HealthFinding, problem
from whet.record.health.history import History
from whet.record.health.rule import ALL_KINDS, HealthRule
from whet.record.health.settings import DATA, OVERLAP

FEWEST_PROMPTS = 4
NUM_PROMPTS = re.compile(r"[(,] ?(\d[\d,]*) prompts?\b")


def _overlap(history: History) -> HealthFinding | None:
    stated = str(history.settings.get(OVERLAP) or "")
    if not stated:
        return None
    return problem(
        f"Evaluation asks what is trained on: {stated.partition(';')[0]}",
        "a model that learns its rows by heart evaluates well there",
        "evaluate on other rows (`whet data contamination` finds near copies too)",
    )


def _few_prompts(history: History) -> HealthFinding | None:
    stated = NUM_PROMPTS.search(str(history.settings.get(DATA) or ""))
    if stated is None or (count := int(stated[1].replace(",", ""))) >= FEWEST_PROMPTS:
        return None
    return problem(
        f"The run trains on {count} prompt{'s' if count != 1 else ''}",
        "every step asks the same, and what is learned is its answer",
        "give more prompts",
    )


DATA_RULES = (
    HealthRule(
        "evaluated on training rows",
        _overlap,
        "rows of the evaluation are also trained on, by the facts of the run",
        "never: what is measured there may be memory",
        kinds=ALL_KINDS,
        depth=0,
        is_stated=True,
    ),
    HealthRule(
        "few prompts",
        _few_prompts,
        f"the run has fewer than {FEWEST_PROMPTS} prompts, by its facts",
        "a test of the machinery",
        depth=0,
        is_stated=True,
    ),
)
