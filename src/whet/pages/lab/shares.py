"""Length and difficulty bias: what aggregations do to long completions, and scales to easy and hard prompts."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from whet.objective import AXES, Objective
from whet.pages.lab.exact_push import BUDGET, length_push, prompt_weight
from whet.pages.lab.experiment import (
    Experiment,
    LabChart,
    LabSettings,
    LabTable,
    Selector,
    Slider,
    chart_spec,
    evenly,
    line,
    number,
)
from whet.pages.lab.groups import usable_baselines
from whet.types import TokenBatch, WhetError

LENGTHS = (2, 4, 6, 8, 12, 16, 24, 32, BUDGET)
RATES = (0.01, 0.02, *evenly(0.05, 0.95, 19), 0.98, 0.99)


def aggregates() -> list[str]:
    """Every aggregation: none asks for more than the toy has, which is the completions and their turns."""
    return [name for name, kind in AXES["aggregate"].items() if _needs(kind) <= {"segment"}]


def group_scales() -> list[str]:
    """The scales that look at one group at a time: one that measures a whole batch weighs all its prompts alike."""
    free = [name for name, kind in AXES["scale"].items() if not _needs(kind)]
    return [name for name in free if not _looks_beyond(name)]


@lru_cache(maxsize=64)
def _looks_beyond(name: str) -> bool:
    """Whether a group's advantages change with what another group of the step earned."""

    def first(other: list[float]) -> list[float]:
        action = torch.ones(8, 1, dtype=torch.bool)
        reward = torch.tensor([1.0, 0.0, 0.0, 0.0, *other], dtype=torch.float64)
        batch = TokenBatch(torch.zeros(8, 1).long(), action, torch.arange(8) // 4, reward)
        found, _ = _objective("group_mean", name, "sequence_sum").advantage(batch, {})
        return [] if found.advantage is None else found.advantage[:4].flatten().tolist()

    return first([1.0, 1.0, 0.0, 0.0]) != first([1.0, 1.0, 1.0, 1.0])


def _objective(baseline: str, scale: str, aggregate: str) -> Objective:
    names = {"ratio": "token", "clip": "on_policy", "kl": "none"}
    chosen: dict[str, Any] = {axis: AXES[axis][name]() for axis, name in names.items()}
    return Objective(
        "lab", AXES["baseline"][baseline](), AXES["scale"][scale](), aggregate=AXES["aggregate"][aggregate](), **chosen
    )


@lru_cache(maxsize=1024)
def _length_curve(baseline: str, scale: str, aggregate: str, usual: int, group_size: int) -> tuple[float, ...]:
    objective = _objective(baseline, scale, aggregate)
    return tuple(length_push(objective, usual, length, group_size)[2] for length in LENGTHS)


@lru_cache(maxsize=1024)
def _rate_curve(baseline: str, scale: str, group_size: int) -> tuple[float, ...]:
    objective = _objective(baseline, scale, "sequence_sum")
    return tuple(prompt_weight(objective, rate, group_size) for rate in RATES)


def _table(settings: LabSettings) -> LabTable:
    size, usual = int(number(settings, "group_size")), int(number(settings, "usual"))
    baseline = str(settings["baseline"])
    smallest = AXES["baseline"][baseline]().smallest_group
    if size < smallest:
        return LabTable(refused=f"{baseline} needs groups of {smallest} or more")
    lengths, weights, left_out = [], [], []
    for tone, name in enumerate(aggregates()):
        lengths.append(line(name, LENGTHS, _length_curve(baseline, "none", name, usual, size), tone))
    for tone, name in enumerate(group_scales()):
        try:
            weights.append(line(name, RATES, _rate_curve(baseline, name, size), tone))
        except WhetError as error:
            left_out.append(f"{name}: {error}")
    length_spec = chart_spec(
        "tokens of the long wrong completion",
        "push / exact",
        lengths,
        x_log=True,
        y_range=(0, None),
        lines=[{"y": 1, "label": "exact"}, {"x": usual, "label": "as long as the others"}],
        height=300,
    )
    rate_spec = chart_spec(
        "success rate of the prompt",
        "weight / exact",
        weights,
        y_range=(0, None),
        lines=[{"y": 1, "label": "exact"}],
        height=300,
    )
    return LabTable(
        (
            LabChart(
                "Length: how hard a wrong completion is pushed down",
                length_spec,
                "one right and two wrong completions, equally likely; 1 where all have the same length",
            ),
            LabChart("Difficulty: what a prompt counts", rate_spec, "; ".join(left_out) or "rewards of 0 and 1"),
        ),
        (),
        "every group is enumerated with its probability: nothing is sampled",
    )


def _needs(kind: Any) -> frozenset[str]:
    return kind.needs


def usable() -> list[str]:
    """The baselines that have an expected gradient here: those that a toy of right and wrong completions can ask."""
    found = []
    for name in usable_baselines():
        try:
            prompt_weight(_objective(name, "none", "sequence_sum"), 0.5, 4)
            found.append(name)
        except WhetError:
            continue
    return found


def experiment() -> Experiment:
    """What the lab shows of it."""
    return Experiment(
        "bias",
        "Length and difficulty bias",
        "Whose gradient is it?",
        "sequence_mean divides by the length of a completion: a long wrong one is pushed down less than a short one, "
        "so wrong completions grow. token_mean, fixed_length and sequence_sum stay at 1. On the right, dividing by the "
        "spread of the group counts almost solved and almost hopeless prompts most; dividing by its mean counts rare "
        "successes most. group_mean stays (G-1)/G below 1, leave_one_out is exact.",
        (
            ("Liu et al. 2025, section 3", "2503.20783"),
            ("Ahmadian et al. 2024, eq. 6", "2402.14740"),
            ("on dividing by the mean, 2026", "2602.02710"),
        ),
        (
            Slider("group_size", "completions per prompt, G", (2, 4, 8, 12), 8, whole=True),
            Slider("usual", "tokens of the other completions", (4, 8, 16), 8, whole=True),
            Selector("baseline", "baseline", tuple((name, name) for name in usable()), "group_mean"),
        ),
        _table,
    )
