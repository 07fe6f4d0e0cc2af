"""How much does a row count? Weights of rows `(completions) -> [B]`, never with gradient. None: all alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairCompletions, summed

if TYPE_CHECKING:
    from torch import Tensor


class PairWeight(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, completions: PairCompletions) -> Tensor | None: ...

    def words(self) -> str: ...

    def symbols(self) -> str:
        """The factor in front of a row's cost."""
        ...


class Alike(Component):
    """1."""

    name: ClassVar[str] = "alike"

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        return None

    def symbols(self) -> str:
        return ""


class OwnWords(Component):
    """w_w w_l, w = exp( 1/n SUM_t (logp_t - log SUM_v p_v^2) ). Zhou 2024 (2406.11827), equation 2.

    Small for a completion the policy would hardly have drawn itself.
    """

    name: ClassVar[str] = "own_words"
    needs: ClassVar[frozenset[str]] = frozenset({"log_square"})

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        square = completions.extras.log_square
        if square is None:
            raise ValueError("own_words needs the log_square of the pass and got none")
        usual = summed(completions.batch, square.detach().to(completions.logp.dtype))
        each = torch.where(
            completions.batch.counted[:, None], (completions.logp.detach() - usual) / completions.lengths, 0.0
        )
        return each.sum(-1).exp()

    def words(self) -> str:
        return "pairs count by how likely the policy is to say such things itself"

    def symbols(self) -> str:
        return "w_w w_l, w = exp(mean_t(log pi_t - log SUM_v pi_v^2)), times "


@dataclass(frozen=True)
class MarginGate(Component):
    """sigma((bias - (log pi(y_w) - log pi(y_l))) / temperature). Xu 2023 (2312.16682)."""

    bias: float = 0.0
    temperature: float = 1.0
    name: ClassVar[str] = "margin_gate"
    needs: ClassVar[frozenset[str]] = frozenset({"pairs"})

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"weigh.temperature is {self.temperature:g}; give a number above 0")

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        logp = completions.logp.detach()
        return torch.sigmoid((self.bias - (logp[:, 0] - logp[:, 1])) / self.temperature)

    def words(self) -> str:
        return "pairs that are far enough apart stop counting"

    def symbols(self) -> str:
        return f"sigma(({self.bias:g} - log pi(y_w)/pi(y_l))/{self.temperature:g}) "
