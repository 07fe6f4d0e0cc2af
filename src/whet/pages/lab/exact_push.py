"""The expected gradient of a method on a toy prompt, exactly: every group is enumerated, nothing is sampled.

A prompt has a few possible completions; the first token chooses one, the rest of it is forced. Every group of G
completions goes through the real `Objective.advantage` and `Objective.loss` with its probability. What comes out is
the expected gradient on the logits of the choice, which nothing but the method decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial, nan, prod

import torch
from torch import Tensor

from whet.objective import Objective
from whet.types import TokenBatch, Totals

GROUP_SIZE = 8
BUDGET = 40  # tokens, at most


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
            / prod(map(factorial, each))
            * prod(r.chance**c for r, c in zip(completions, each, strict=True))
            for each in counts
        ],
        dtype=torch.float64,
    )
    kind = torch.tensor([[place for place, count in enumerate(each) for _ in range(count)] for each in counts]).reshape(
        -1
    )
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
    """Every token is a turn, and has earned what its completion says."""
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
    return [one / other if other else nan for one, other in zip(now, even, strict=True)]


@lru_cache(maxsize=4096)
def _relative_push(objective: Objective, usual: int, last: int, group_size: int) -> tuple[float, ...]:
    sizes = ((usual, 1.0), (usual, 0.0), (last, 0.0))
    completions = [ToyCompletion(1 / 3, size, reward) for size, reward in sizes]
    pushes = expected_push(objective, completions, group_size)
    return tuple(one / other for one, other in zip(pushes, exact_gradient(completions), strict=True))


def prompt_weight(objective: Objective, rate: float, group_size: int = GROUP_SIZE) -> float:
    """What a prompt solved at this rate counts, as a multiple of its exact gradient."""
    completions = [ToyCompletion(rate, 1, 1.0), ToyCompletion(1 - rate, 1, 0.0)]
    return expected_push(objective, completions, group_size)[0] / exact_gradient(completions)[0]
