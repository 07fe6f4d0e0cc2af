"""What a clip rule is: `(ratio, advantage, action, logp) -> weight`, all [N, T], without gradient; weight 1 at ratio 1.

Few rules look at logp, the policy's current log-probability: old = logp - log ratio. `surrogate` is the value of the
paper's own expression: reported, never differentiated.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from whet.objective.component import Component
from whet.objective.lazy_torch import Tensor


class ClipRule(Component):
    """A rule whose surrogate, where it does not say otherwise, is sg[weight] A log pi: its value is weight * A."""

    uses_ratio: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor: ...

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        """What a token adds to the objective [N, T], for the value only: the gradient's weight is `__call__`."""
        return self(ratio, advantage, action, logp) * advantage

    def symbols(self) -> str:
        """A token's term in the objective, such as `r A`."""
        return super().symbols()


def pushed_out(move: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """bool [N, T]: (A > 0 and move > high) or (A < 0 and move < low), beyond the band on the side A pushes to."""
    return ((advantage > 0) & (move > high)) | ((advantage < 0) & (move < low))
