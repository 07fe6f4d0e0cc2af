"""Which policy is the reference? When it is replaced: the loop asks after every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from whet.objective.component import Component


class ReferencePolicy(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def kept_after(self, step: int) -> float:
        """The weight of the old reference in the new one after this step: 1 leaves it as it is, 0 replaces it."""
        ...

    def words(self) -> str: ...


class Frozen(Component):
    """The policy as it was before the first step."""

    name: ClassVar[str] = "frozen"

    def kept_after(self, step: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Reset(Component):
    """The policy itself, every `every` steps. DeepSeek-R1 (2501.12948): 400. beta then limits speed only."""

    every: float = 400
    name: ClassVar[str] = "reset"

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"reference.every is {self.every:g}; give at least 1 step")

    def kept_after(self, step: int) -> float:
        return 0.0 if step % int(self.every) == 0 else 1.0

    def words(self) -> str:
        return f"the reference becomes the policy every {self.every:g} steps"


@dataclass(frozen=True)
class MovingAverage(Component):
    """ref <- decay ref + (1 - decay) policy, every `every` steps. `decay` is the weight kept."""

    decay: float = 0.99
    every: float = 1
    name: ClassVar[str] = "ema"

    def __post_init__(self) -> None:
        Reset(self.every)
        if not 0 < self.decay < 1:
            raise ValueError(f"reference.decay is {self.decay}; give the share that is kept, in (0, 1)")

    def kept_after(self, step: int) -> float:
        return self.decay if step % int(self.every) == 0 else 1.0

    def words(self) -> str:
        return f"the reference follows the policy, keeping {self.decay:g} of itself"
