"""Are good completions imitated as well? Terms `(completions, totals) -> [B]`, shares of the step included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component, ComponentProtocol, number
from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairCompletions, PairTotals

if TYPE_CHECKING:
    from torch import Tensor


class ImitateGood(ComponentProtocol, Protocol):
    """What is added to the cost of a row for imitating its good completion."""

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None: ...

    def symbols(self) -> str:
        """The term with its sign, such as ` - 0.1 log pi(y_w)`; empty for none."""
        ...


class NoPairImitation(Component):
    """Nothing."""

    name: ClassVar[str] = "none"
    in_symbols: ClassVar[str] = ""

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return None


def _good(completions: PairCompletions, values: Tensor) -> Tensor:
    return torch.where(completions.batch.good, values, 0.0).sum(-1)


@dataclass(frozen=True)
class Summed(Component):
    """-coefficient log pi(y_w), mean over the good completions of the step: a long completion counts with its
    length."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name: ClassVar[str] = "summed"
    in_words: ClassVar[str] = "imitate the chosen completion with {0.coefficient:g}, all of its tokens added"
    in_symbols: ClassVar[str] = " - {0.coefficient:g} log pi(y_w)"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.logp)


@dataclass(frozen=True)
class PerCompletion(Component):
    """-coefficient / n_w log pi(y_w), mean over the good completions of the step: all completions count alike."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name: ClassVar[str] = "per_completion"
    in_words: ClassVar[str] = "imitate the chosen completion with {0.coefficient:g}, a token of it on average"
    in_symbols: ClassVar[str] = " - {0.coefficient:g}/n_w log pi(y_w)"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.mean_logp)


@dataclass(frozen=True)
class PerToken(Component):
    """-coefficient / M log pi(y_w), M the tokens of all good completions of the step: all tokens count alike."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name: ClassVar[str] = "per_token"
    in_words: ClassVar[str] = "imitate the chosen completions with {0.coefficient:g}, each token alike"
    in_symbols: ClassVar[str] = " - {0.coefficient:g} (mean over the step's tokens of log pi(y_w))"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable_tokens, 1) * _good(completions, completions.logp)
