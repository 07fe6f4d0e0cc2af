"""Process rewards: scores of the steps of a completion, put on the tokens that end them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from whet.protocols import Reward
from whet.reward.combine import RewardPart
from whet.types import Prompt, Sample, WhetError

StepScorer = Callable[[Prompt, str], Sequence[tuple[int, float]]]
"""(prompt, completion) -> (end of each step in characters of the completion, its score), in order."""


def step_scorer(parts: Sequence[RewardPart]) -> StepScorer | None:
    """The scorer of the first part that has one: its reward or its function has an attribute `steps`."""
    for part in parts:
        scorer = steps_of(part.resolved_reward)
        if scorer is not None:
            return scorer
    return None


def steps_of(reward: Reward) -> StepScorer | None:
    """A reward's own scorer of steps; None without one."""
    scorer = getattr(reward, "steps", None) or getattr(getattr(reward, "function", None), "steps", None)
    return scorer if callable(scorer) else None


def with_steps(
    prompts: Sequence[Prompt], samples: Sequence[Sample], scorer: StepScorer, decode: Callable[[list[int]], str]
) -> list[Sample]:
    """The samples with `steps` filled; an unscorable sample has none."""
    return [
        sample
        if sample.reward is None
        else replace(sample, steps=_placed(sample, scorer(prompt, sample.completion), decode))
        for prompt, sample in zip(prompts, samples, strict=True)
    ]


def _placed(
    sample: Sample, steps: Sequence[tuple[int, float]], decode: Callable[[list[int]], str]
) -> tuple[tuple[int, float], ...]:
    """Each step on the first action whose text reaches its end. Of two that end in one token the later one stays."""
    positions = sample.action.nonzero()[:, 0].tolist()
    tokens = sample.tokens[sample.action].tolist()
    placed: dict[int, float] = {}
    for end, score in steps:
        if not 0 < end <= len(sample.completion):
            raise WhetError(
                f"a step ends at character {end} of a completion of {len(sample.completion)}; fix the step scorer"
            )
        placed[positions[tokens_until(tokens, end, decode) - 1]] = float(score)
    return tuple(sorted(placed.items()))


def tokens_until(tokens: Sequence[int], end: int, decode: Callable[[list[int]], str]) -> int:
    """How many of the tokens it takes until their text reaches `end` characters; all where it never does."""
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(decode(list(tokens[:middle]))) >= end else (middle + 1, high)
    return low
