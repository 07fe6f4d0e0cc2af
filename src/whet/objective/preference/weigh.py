"""How much does a row count? Weights of rows `(completions) -> [B]`, never with gradient. None: all alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component, ComponentProtocol, number
from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairCompletions, summed

if TYPE_CHECKING:
    from torch import Tensor


class PairWeight(ComponentProtocol, Protocol):
    """How much a row counts, [B], without gradient; None where all count alike."""

    def __call__(self, completions: PairCompletions) -> Tensor | None: ...

    def symbols(self) -> str:
        """The factor in front of a row's cost."""
        ...


class Alike(Component):
    """1."""

    name: ClassVar[str] = "alike"
    in_symbols: ClassVar[str] = ""

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        return None


class OwnWords(Component):
    """w_w w_l, w = exp( 1/n SUM_t (logp_t - log SUM_v p_v^2) ). Zhou 2024 (2406.11827), equation 2.

    Small for a completion the policy would hardly have drawn itself.
    """

    name: ClassVar[str] = "own_words"
    needs: ClassVar[frozenset[str]] = frozenset({"log_square"})
    in_words: ClassVar[str] = "pairs count by how likely the policy is to say such things itself"
    in_symbols: ClassVar[str] = "w_w w_l, w = exp(mean_t(log pi_t - log SUM_v pi_v^2)), times "

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        square = completions.extras.log_square
        if square is None:
            raise ValueError("own_words needs the log_square of the pass and got none")
        usual = summed(completions.batch, square.detach().to(completions.logp.dtype))
        log_weight = torch.where(
            completions.batch.counted[:, None], (completions.logp.detach() - usual) / completions.lengths, 0.0
        )
        return log_weight.sum(-1).exp()


@dataclass(frozen=True)
class MarginGate(Component):
    """sigma((bias - (log pi(y_w) - log pi(y_l))) / temperature). Xu 2023 (2312.16682)."""

    bias: float = 0.0
    temperature: float = number(1.0, above=0)
    name: ClassVar[str] = "margin_gate"
    needs: ClassVar[frozenset[str]] = frozenset({"pairs"})
    in_words: ClassVar[str] = "pairs that are far enough apart stop counting"
    in_symbols: ClassVar[str] = "sigma(({0.bias:g} - log pi(y_w)/pi(y_l))/{0.temperature:g}) "

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        logp = completions.logp.detach()
        return torch.sigmoid((self.bias - (logp[:, 0] - logp[:, 1])) / self.temperature)
