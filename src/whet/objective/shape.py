"""What is the reward really? Changes to the completion's reward before any comparison: `(batch) -> [N]`."""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor
from whet.types import TokenBatch


class RewardShape(Component):
    """The reward that is learned from, in place of the one that was scored."""

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.reward

    def symbols(self) -> str:
        """The change to R as a line of its own; empty where R stays as it was scored."""
        return super().symbols()


class AsScored(RewardShape):
    """R as it was scored."""

    name = "none"
    in_symbols = ""


@dataclass(frozen=True)
class SoftOverlong(RewardShape):
    """R += 0 while n <= (1 - tail) L, then falls to -penalty at n = L. Yu 2025 (2503.14476), eq. 13.

    L is the generation budget, tail the last share of it: 4096 of 20480 in the paper, so 0.2.
    """

    tail: float = number(0.2, above=0, most=1)
    penalty: float = number(1.0, above=0)
    name = "soft_overlong"
    needs = frozenset({"max_new_tokens"})
    in_words = "a completion in the last {0.tail:.0%} of the budget pays, up to {0.penalty:g} at its end"

    def __call__(self, batch: TokenBatch) -> Tensor:
        most = given(batch.max_new_tokens, "soft_overlong needs max_new_tokens")
        tail = self.tail * most
        over = (batch.lengths.to(batch.reward.dtype) - (most - tail)) / tail
        return batch.reward - self.penalty * over.clamp(0, 1)

    def symbols(self) -> str:
        return f"R -= {self.penalty:g} clip((n - {1 - self.tail:g} L) / ({self.tail:g} L), 0, 1)"


@dataclass(frozen=True)
class LengthCost(RewardShape):
    """R -= cost * n / L: every token costs the same share of the budget."""

    cost: float = number(0.1, above=0)
    name = "length_cost"
    needs = frozenset({"max_new_tokens"})
    in_words = "a completion pays {0.cost:g} times its share of the budget"
    in_symbols = "R -= {0.cost:g} n / L"

    def __call__(self, batch: TokenBatch) -> Tensor:
        most = given(batch.max_new_tokens, "length_cost needs max_new_tokens")
        return batch.reward - self.cost * batch.lengths.to(batch.reward.dtype) / most


@dataclass(frozen=True)
class ClipReward(RewardShape):
    """R <- clip(R, low, high)."""

    low: float = -1.0
    high: float = 1.0
    name = "clip"
    in_words = "rewards are held within {0.low:g} to {0.high:g}"
    in_symbols = "R <- clip(R, {0.low:g}, {0.high:g})"

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}; give less than high = {self.high:g}")

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.reward.clamp(self.low, self.high)
