"""Which policy is the reference? When it is replaced: the loop asks after every step."""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.component import Component, number


class ReferencePolicy(Component):
    """Which policy the reference is: the first one, one taken anew now and then, or an average."""

    def kept_after(self, step: int) -> float:
        """The weight of the old reference in the new one after this step: 1 leaves it as it is, 0 replaces it."""
        return 1.0


class Frozen(ReferencePolicy):
    """The policy as it was before the first step."""

    name = "frozen"


@dataclass(frozen=True)
class Reset(ReferencePolicy):
    """The policy itself, every `every` steps. DeepSeek-R1 (2501.12948): 400. beta then limits speed only."""

    every: float = number(400, least=1)
    name = "reset"
    in_words = "the reference becomes the policy every {0.every:g} steps"

    def kept_after(self, step: int) -> float:
        return 0.0 if step % int(self.every) == 0 else 1.0


@dataclass(frozen=True)
class MovingAverage(ReferencePolicy):
    """ref <- decay ref + (1 - decay) policy, every `every` steps. `decay` is the weight kept."""

    decay: float = number(0.99, above=0, below=1)
    every: float = number(1, least=1)
    name = "ema"
    in_words = "the reference follows the policy, keeping {0.decay:g} of itself"

    def kept_after(self, step: int) -> float:
        return self.decay if step % int(self.every) == 0 else 1.0
