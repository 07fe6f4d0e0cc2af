"""Group sampling and advantages: what each completion of a group is credited with."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES, Memory, Objective
from whet.pages.lab import experiment as lab
from whet.types import TokenBatch, WhetError

LENGTHS = (4, 8, 12)  # tokens of a group's completions, in turn
RATES = lab.evenly(0.02, 0.98, 25)
NOISE = 1e-9  # of an advantage: below, it is the rounding of one machine
PATTERNS = {
    "one_right": "one right, the others wrong",
    "half_right": "half right, half wrong",
    "one_wrong": "one wrong, the others right",
    "graded": "graded evenly from 0 to 1",
    "outlier": "close together, one far above",
    "equal": "all the same",
}


def usable_baselines() -> list[str]:
    """Baselines that judge whole completions by their rewards and ask for nothing else."""
    return [name for name, kind in AXES["baseline"].items() if not (lab.asks(kind) or kind.per_token)]  # type: ignore[attr-defined]


def usable_scales() -> list[str]:
    """The advantage scales that need nothing the experiment cannot give."""
    return [name for name, kind in AXES["scale"].items() if not lab.asks(kind)]


def rewards(pattern: str, group_size: int) -> tuple[float, ...]:
    """What the completions of a group earned, best first."""
    if pattern == "graded":
        return tuple(1 - rank / max(group_size - 1, 1) for rank in range(group_size))
    if pattern == "outlier":
        return (3.0, *(0.6 - 0.2 * rank / max(group_size - 2, 1) for rank in range(group_size - 1)))
    right = {"one_right": 1, "half_right": group_size // 2, "one_wrong": group_size - 1, "equal": group_size}[pattern]
    return (1.0,) * right + (0.0,) * (group_size - right)


@lru_cache(maxsize=4096)
def advantages(baseline: str, scale: str, earned: tuple[float, ...]) -> tuple[float, ...]:
    """The advantage of each completion of a group, as `Objective.advantage` finds it.

    Another prompt of the step has a group with one completion in two right: scales that look at the whole batch see
    both. The step before had a mean reward of 1/2.
    """
    size = len(earned)
    other = (1.0,) * (size // 2) + (0.0,) * (size - size // 2)
    objective = _objective(baseline, scale)
    batch = _batch(earned + other, size)
    memory: Memory = objective.baseline.remembered(_batch((0.5,) * size, size), {})
    scored, _ = objective.advantage(batch, memory)
    return () if scored.advantage is None else tuple(scored.advantage[:size, 0].tolist())


def _batch(earned: tuple[float, ...], group_size: int) -> TokenBatch:
    length = torch.tensor([LENGTHS[index % group_size % len(LENGTHS)] for index in range(len(earned))])
    action = torch.arange(max(LENGTHS)) < length[:, None]
    reward: Tensor = torch.tensor(earned, dtype=torch.float64)
    return TokenBatch(torch.zeros_like(action).long(), action, torch.arange(len(earned)) // group_size, reward)


def _objective(baseline: str, scale: str) -> Objective:
    names = {"ratio": "token", "clip": "on_policy", "aggregate": "token_mean", "kl": "none"}
    chosen: dict[str, Any] = {axis: AXES[axis][name]() for axis, name in names.items()}
    return Objective("lab", AXES["baseline"][baseline](), AXES["scale"][scale](), **chosen)


def _table(settings: lab.LabSettings) -> lab.LabTable:
    size, pattern = int(lab.number(settings, "group_size")), str(settings["pattern"])
    baseline, scale = str(settings["baseline"]), str(settings["scale"])
    objective = _objective(baseline, scale)
    words = f"A = {objective.scale.symbols(objective.baseline.symbols())}"
    if size < objective.baseline.smallest_group:
        return lab.LabTable(
            words=words, refused=f"{baseline} needs groups of {objective.baseline.smallest_group} or more"
        )
    earned = rewards(pattern, size)
    try:
        advantage = advantages(baseline, scale, earned)
        plain = advantages(baseline, "none", earned)
    except WhetError as error:
        return lab.LabTable(words=words, refused=str(error))
    numbers = list(range(1, size + 1))
    series = [
        lab.line("reward", numbers, earned, 7, marked=True),
        lab.line("advantage", numbers, advantage, 0, bars=True),
    ]
    if scale != "none":
        series.append(lab.line("advantage, not scaled", numbers, plain, 1, dashed=True, marked=True))
    spec = lab.chart_spec("completion", "", series, steps=True, lines=[{"y": 0, "label": ""}])
    by_count = [advantages(baseline, scale, (1.0,) * right + (0.0,) * (size - right)) for right in range(size + 1)]
    return lab.LabTable(
        (
            lab.LabChart("This group", spec),
            lab.LabChart("By how many are right", _count_spec(size, by_count), "rewards of 0 and 1"),
            lab.LabChart(
                "By success rate", _rate_spec(size, by_count), "groups drawn at that rate; exact, not sampled"
            ),
        ),
        (
            ("sum of the advantages", f"{round(sum(advantage), 9) + 0.0:.3g}"),
            ("largest", f"{max(advantage, key=abs):.3g}"),
        ),
        words,
    )


def _count_spec(size: int, by_count: list[tuple[float, ...]]) -> dict[str, Any]:
    counts = list(range(size + 1))
    good = [values[0] if right else None for right, values in enumerate(by_count)]
    bad = [values[-1] if right < size else None for right, values in enumerate(by_count)]
    series = [
        lab.line("a right completion", counts, good, 0, marked=True),
        lab.line("a wrong one", counts, bad, 1, marked=True),
    ]
    return lab.chart_spec("right completions of the group", "advantage", series, steps=True)


def _rate_spec(size: int, by_count: list[tuple[float, ...]]) -> dict[str, Any]:
    """Expectations over groups drawn at a success rate, by the chance of each count of right completions."""

    def expected(values: list[float]) -> list[float]:
        return [
            sum(comb(size, k) * rate**k * (1 - rate) ** (size - k) * value for k, value in enumerate(values))
            for rate in RATES
        ]

    signal = expected([float(any(abs(value) > NOISE for value in column)) for column in by_count])
    strength = expected([sum(abs(member) for member in group) / size for group in by_count])
    series = [lab.line("groups with a signal", RATES, signal, 2), lab.line("mean |A|", RATES, strength, 0)]
    return lab.chart_spec("success rate of the prompt", "", series, y_range=(0, None))


def _named(names: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "groups",
        "Groups and advantages",
        "Better than what, and in which unit?",
        "Compare scale none with group_std: dividing by the spread makes the lone success of a hard prompt and the "
        "lone failure of an easy one count most, and a group of equal rewards teaches nothing either way. With one "
        "right completion, leave_one_out gives it G/(G-1) of what group_mean gives.",
        (
            ("Shao et al. 2024, section 4.1", "2402.03300"),
            ("Ahmadian et al. 2024, eq. 6", "2402.14740"),
            ("Liu et al. 2025, on the std", "2503.20783"),
        ),
        (
            lab.Slider("group_size", "completions per prompt, G", (2, 4, 8, 16), 8, whole=True, reach=(2, 32)),
            lab.Selector("pattern", "rewards of the group", tuple(PATTERNS.items()), "one_right"),
            lab.Selector("baseline", "baseline", _named(usable_baselines()), "group_mean"),
            lab.Selector("scale", "scale (the std on or off)", _named(usable_scales()), "group_std"),
        ),
        _table,
    )
