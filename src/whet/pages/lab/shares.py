"""Length and difficulty bias: what aggregations do to long completions, and scales to easy and hard prompts.

A toy prompt has a few possible completions; the first token chooses one, the rest is forced. Every group goes through
the real `Objective.advantage` and `Objective.loss` with its probability: the expected gradient on the logits of the
choice, exactly, which nothing but the method decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial, nan, prod
from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES, Objective
from whet.pages.lab import experiment as lab
from whet.pages.lab.groups import usable_baselines
from whet.types import TokenBatch, Totals, WhetError

GROUP_SIZE = 8
BUDGET = 40  # tokens, at most
LENGTHS = (2, 4, 6, 8, 12, 16, 24, 32, BUDGET)
RATES = (0.01, 0.02, *lab.evenly(0.05, 0.95, 19), 0.98, 0.99)


@dataclass(frozen=True)
class ToyCompletion:
    """One thing the toy policy can say."""

    chance: float
    length: int
    reward: float
    turns: tuple[float, ...] = ()  # what each of its tokens earned, where each is a turn: they add up to the reward


def group_counts(kinds: int, size: int) -> Iterator[tuple[int, ...]]:
    """How often each kind may occur in a group of that size: all ways."""
    if kinds == 1:
        yield (size,)
        return
    for first in range(size + 1):
        for rest in group_counts(kinds - 1, size - first):
            yield (first, *rest)


def expected_push(
    objective: Objective, completions: Sequence[ToyCompletion], group_size: int = GROUP_SIZE
) -> list[float]:
    """The expected gradient of the method's objective on the logit of each completion."""
    counts = list(group_counts(len(completions), group_size))
    chance = torch.tensor(
        [
            factorial(group_size)
            / prod(map(factorial, combination))
            * prod(r.chance**c for r, c in zip(completions, combination, strict=True))
            for combination in counts
        ],
        dtype=torch.float64,
    )
    kind = torch.tensor(
        [[index for index, count in enumerate(combination) for _ in range(count)] for combination in counts]
    ).reshape(-1)
    length = torch.tensor([completion.length for completion in completions])[kind]
    action = torch.arange(max(completion.length for completion in completions)) < length[:, None]
    reward = torch.tensor([completion.reward for completion in completions], dtype=torch.float64)[kind]
    group = torch.arange(len(counts)).repeat_interleave(group_size)
    # one turn per completion, unless the completions have turns
    batch = TokenBatch(torch.zeros_like(action).long(), action, group, reward, segment=action.long() - 1)
    if any(completion.turns for completion in completions):
        batch = _with_turns(batch, completions, kind)
    batch, _ = objective.advantage(batch, {})
    policy = torch.tensor([completion.chance for completion in completions], dtype=torch.float64)
    logp = torch.zeros(action.shape, dtype=torch.float64)
    logp[:, 0] = policy.log()[kind]
    logp.requires_grad_()
    totals = Totals(tokens=1, sequences=group_size, max_new_tokens=BUDGET)
    (gradient,) = torch.autograd.grad(objective.loss(batch, logp, totals).value, logp)
    pull = torch.zeros(len(completions), dtype=torch.float64)
    pull.index_add_(0, kind, -gradient[:, 0] * chance.repeat_interleave(group_size))
    return (pull - policy * pull.sum()).tolist()


def _with_turns(batch: TokenBatch, completions: Sequence[ToyCompletion], kind: Tensor) -> TokenBatch:
    """The batch with every token as a turn, which earned what its completion says."""
    width = batch.action.shape[1]
    earned = torch.full((len(completions), width), float("nan"), dtype=torch.float64)
    for row, completion in zip(earned, completions, strict=True):
        row[: completion.length] = torch.tensor(completion.turns, dtype=torch.float64)
    segment = torch.where(batch.action, torch.arange(width), -1)
    return replace(batch, step_reward=earned[kind], returned=batch.reward, segment=segment)


def exact_gradient(completions: Sequence[ToyCompletion]) -> list[float]:
    """The gradient of the expected reward on the logit of each completion."""
    mean = sum(completion.chance * completion.reward for completion in completions)
    return [completion.chance * (completion.reward - mean) for completion in completions]


def length_push(objective: Objective, usual: int, length: int, group_size: int = GROUP_SIZE) -> list[float]:
    """How hard the right, the wrong and the other wrong completion are pushed, as a share of the exact gradient.

    The three are equally likely; the last has `length` tokens, the others `usual`. The unit is what a method does where
    all three are of one length, so that its constant factors drop out; NaN for one that does nothing then.
    """
    now, even = (_relative_push(objective, usual, last, group_size) for last in (length, usual))
    return [pushed / other if other else nan for pushed, other in zip(now, even, strict=True)]


@lru_cache(maxsize=4096)
def _relative_push(objective: Objective, usual: int, last: int, group_size: int) -> tuple[float, ...]:
    sizes = ((usual, 1.0), (usual, 0.0), (last, 0.0))
    completions = [ToyCompletion(1 / 3, size, reward) for size, reward in sizes]
    pushes = expected_push(objective, completions, group_size)
    return tuple(pushed / other for pushed, other in zip(pushes, exact_gradient(completions), strict=True))


def prompt_weight(objective: Objective, rate: float, group_size: int = GROUP_SIZE) -> float:
    """What a prompt solved at this rate counts, as a multiple of its exact gradient."""
    completions = [ToyCompletion(rate, 1, 1.0), ToyCompletion(1 - rate, 1, 0.0)]
    return expected_push(objective, completions, group_size)[0] / exact_gradient(completions)[0]


def aggregates() -> list[str]:
    """Every aggregation: none asks for more than the toy has, which is the completions and their turns."""
    return [name for name, kind in AXES["aggregate"].items() if lab.asks(kind) <= {"segment"}]


def group_scales() -> list[str]:
    """The scales that look at one group at a time: one that measures a whole batch weighs all its prompts alike."""
    free = [name for name, kind in AXES["scale"].items() if not lab.asks(kind)]
    return [name for name in free if not _looks_beyond(name)]


@lru_cache(maxsize=64)
def _looks_beyond(name: str) -> bool:
    """Whether a group's advantages change with what another group of the step earned."""

    def first(other: list[float]) -> list[float]:
        action = torch.ones(8, 1, dtype=torch.bool)
        reward = torch.tensor([1.0, 0.0, 0.0, 0.0, *other], dtype=torch.float64)
        batch = TokenBatch(torch.zeros(8, 1).long(), action, torch.arange(8) // 4, reward)
        scored, _ = _objective("group_mean", name, "sequence_sum").advantage(batch, {})
        return [] if scored.advantage is None else scored.advantage[:4].flatten().tolist()

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


def _table(settings: lab.LabSettings) -> lab.LabTable:
    size, usual = int(lab.number(settings, "group_size")), int(lab.number(settings, "usual"))
    baseline = str(settings["baseline"])
    smallest = AXES["baseline"][baseline]().smallest_group
    if size < smallest:
        return lab.LabTable(refused=f"{baseline} needs groups of {smallest} or more")
    lengths, weights, left_out = [], [], []
    for tone, name in enumerate(aggregates()):
        lengths.append(lab.line(name, LENGTHS, _length_curve(baseline, "none", name, usual, size), tone))
    for tone, name in enumerate(group_scales()):
        try:
            weights.append(lab.line(name, RATES, _rate_curve(baseline, name, size), tone))
        except WhetError as error:
            left_out.append(f"{name}: {error}")
    length_spec = lab.chart_spec(
        "tokens of the long wrong completion",
        "push / exact",
        lengths,
        x_log=True,
        y_range=(0, None),
        lines=[{"y": 1, "label": "exact"}, {"x": usual, "label": "as long as the others"}],
        height=300,
    )
    rate_spec = lab.chart_spec(
        "success rate of the prompt",
        "weight / exact",
        weights,
        y_range=(0, None),
        lines=[{"y": 1, "label": "exact"}],
        height=300,
    )
    return lab.LabTable(
        (
            lab.LabChart(
                "Length: how hard a wrong completion is pushed down",
                length_spec,
                "one right and two wrong completions, equally likely; 1 where all have the same length",
            ),
            lab.LabChart("Difficulty: what a prompt counts", rate_spec, "; ".join(left_out) or "rewards of 0 and 1"),
        ),
        (),
        "every group is enumerated with its probability: nothing is sampled",
    )


def usable() -> list[str]:
    """The baselines that have an expected gradient here: those that a toy of right and wrong completions can ask."""
    names = []
    for name in usable_baselines():
        try:
            prompt_weight(_objective(name, "none", "sequence_sum"), 0.5, 4)
            names.append(name)
        except WhetError:
            continue
    return names


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
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
            lab.Slider("group_size", "completions per prompt, G", (2, 4, 8, 12), 8, whole=True),
            lab.Slider("usual", "tokens of the other completions", (4, 8, 16), 8, whole=True),
            lab.Selector("baseline", "baseline", tuple((name, name) for name in usable()), "group_mean"),
        ),
        _table,
    )
