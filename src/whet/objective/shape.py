"""What is the reward really? Changes to the completion's reward before any comparison: `(batch) -> [N]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.types import TokenBatch

if TYPE_CHECKING:
    from torch import Tensor


class RewardShape(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, batch: TokenBatch) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


class AsScored(Component):
    name: ClassVar[str] = "none"

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.reward

    def symbols(self) -> str:
        return ""


@dataclass(frozen=True)
class SoftOverlong(Component):
    """R += 0 while n <= (1 - tail) L, then falls to -penalty at n = L. Yu 2025 (2503.14476), eq. 13.

    L is the generation budget, tail the last share of it: 4096 of 20480 in the paper, so 0.2.
    """

    tail: float = 0.2
    penalty: float = 1.0
    name: ClassVar[str] = "soft_overlong"
    needs: ClassVar[frozenset[str]] = frozenset({"max_new_tokens"})

    def __post_init__(self) -> None:
        if not 0 < self.tail <= 1 or self.penalty <= 0:
            raise ValueError(
                f"shape.tail is {self.tail}, penalty {self.penalty}; give a share in (0, 1] and a number > 0"
            )

    def __call__(self, batch: TokenBatch) -> Tensor:
        if batch.max_new_tokens is None:
            raise ValueError("soft_overlong needs max_new_tokens and the batch has none")
        tail = self.tail * batch.max_new_tokens
        over = (batch.lengths.to(batch.reward.dtype) - (batch.max_new_tokens - tail)) / tail
        return batch.reward - self.penalty * over.clamp(0, 1)

    def words(self) -> str:
        return f"a completion in the last {self.tail:.0%} of the budget pays, up to {self.penalty:g} at its end"

    def symbols(self) -> str:
        return f"R -= {self.penalty:g} clip((n - {1 - self.tail:g} L) / ({self.tail:g} L), 0, 1)"


@dataclass(frozen=True)
class LengthCost(Component):
    """R -= cost * n / L: every token costs the same share of the budget."""

    cost: float = 0.1
    name: ClassVar[str] = "length_cost"
    needs: ClassVar[frozenset[str]] = frozenset({"max_new_tokens"})

    def __post_init__(self) -> None:
        if self.cost <= 0:
            raise ValueError(f"shape.cost is {self.cost}; give a number above 0")

    def __call__(self, batch: TokenBatch) -> Tensor:
        if batch.max_new_tokens is None:
            raise ValueError("length_cost needs max_new_tokens and the batch has none")
        return batch.reward - self.cost * batch.lengths.to(batch.reward.dtype) / batch.max_new_tokens

    def words(self) -> str:
        return f"a completion pays {self.cost:g} times its share of the budget"

    def symbols(self) -> str:
        return f"R -= {self.cost:g} n / L"


@dataclass(frozen=True)
class ClipReward(Component):
    """R <- clip(R, low, high)."""

    low: float = -1.0
    high: float = 1.0
    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"shape.low is {self.low}; give less than shape.high = {self.high}")

    def __call__(self, batch: TokenBatch) -> Tensor:
        return batch.reward.clamp(self.low, self.high)

    def words(self) -> str:
        return f"rewards are held within {self.low:g} to {self.high:g}"

    def symbols(self) -> str:
        return f"R <- clip(R, {self.low:g}, {self.high:g})"
