"""Rewards that look at a completion's length, in tokens as the tokenizer counted them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whet.protocols import Reward
from whet.types import Prompt, Sample, WhetError


def soft_overlong(num_tokens: int, *, max_tokens: int, tail: float = 0.2) -> float:
    """0 while n <= (1 - tail) L, then linear down to -1 at n = L. Yu 2025 (2503.14476), eq. 13.

    A penalty, never above 0. L is `max_tokens`, the generation budget; the paper's 4,096 of 20,480 are a tail of 0.2.
    """
    _check("soft_overlong", max_tokens)
    if not 0 < tail <= 1:
        raise WhetError(f"tail of reward 'soft_overlong' is {tail}; give a share of max_tokens, in (0, 1]")
    over = (num_tokens - (1 - tail) * max_tokens) / (tail * max_tokens)
    return -min(max(over, 0.0), 1.0) + 0.0


def length_cost(num_tokens: int, *, max_tokens: int, cost: float = 0.1) -> float:
    """-cost * n / L: every token costs the same, a completion of L tokens costs `cost`. A penalty, never above 0."""
    _check("length_cost", max_tokens)
    if cost <= 0:
        raise WhetError(f"cost of reward 'length_cost' is {cost}; give what a completion of max_tokens pays, above 0")
    return -cost * num_tokens / max_tokens + 0.0


def cosine_length(
    *,
    max_tokens: int,
    accuracy: str = "math_answer",
    right: tuple[float, float] = (2.0, 1.0),
    wrong: tuple[float, float] = (-10.0, 0.0),
    exceeded: float = -10.0,
) -> Reward:
    """A right completion is worth less the longer it is, a wrong one costs less the longer it tried. Yeo 2025
    (2502.03373).

    Each pair is (value at length 0, value at max_tokens), half a cosine in between; a completion that is cut off is
    worth `exceeded`. `accuracy` names the reward that says whether a completion is right (it gives 1). The range is
    that of the numbers given, the paper's by default: weigh it, and use it instead of the accuracy reward.
    """
    from whet.reward.find import find_reward

    _check("cosine_length", max_tokens)
    return CosineLength(find_reward(accuracy), max_tokens, right, wrong, exceeded)


@dataclass(frozen=True)
class CosineLength:
    """The reward `cosine_length` makes."""

    accuracy: Reward
    max_tokens: int
    right: tuple[float, float]
    wrong: tuple[float, float]
    exceeded: float
    name: str = "cosine_length"

    def prepare(self) -> None:
        """Prepare the reward that tells right completions from wrong ones."""
        prepare = getattr(self.accuracy, "prepare", None)
        if callable(prepare):
            prepare()

    def __call__(self, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
        verdicts = self.accuracy(prompts, samples)
        return [self._one(verdict, sample) for verdict, sample in zip(verdicts, samples, strict=True)]

    def _one(self, verdict: float | None, sample: Sample) -> float | None:
        if verdict is None:
            return None
        if sample.stop == "length" or sample.num_actions >= self.max_tokens:
            return self.exceeded
        return half_cosine(sample.num_actions / self.max_tokens, *(self.right if verdict == 1 else self.wrong))


def half_cosine(share: float, start: float, end: float) -> float:
    """From `start` at 0 to `end` at 1, flat at both ends: end + (start - end) (1 + cos(pi share)) / 2."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _check(name: str, max_tokens: int) -> None:
    if max_tokens < 1:
        raise WhetError(f"max_tokens of reward {name!r} is {max_tokens}; give the generation budget, at least 1")
