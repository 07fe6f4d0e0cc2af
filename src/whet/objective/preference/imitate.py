"""Are good completions imitated as well? Terms `(completions, totals) -> [B]`, shares of the step included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component
from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairCompletions, PairTotals

if TYPE_CHECKING:
    from torch import Tensor


class ImitateGood(Protocol):
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


class NoPairImitation(Component):
    """Nothing."""

    name: ClassVar[str] = "none"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return None

    def symbols(self) -> str:
        return ""


def _refused(coefficient: float) -> None:
    if not coefficient > 0:
        raise ValueError(f"imitate.coefficient is {coefficient:g}; give a number above 0, or imitate=none")


def _good(completions: PairCompletions, values: Tensor) -> Tensor:
    return torch.where(completions.batch.good, values, 0.0).sum(-1)


@dataclass(frozen=True)
class Summed(Component):
    """-coefficient log pi(y_w), mean over the good completions of the step: a long completion counts with its
    length."""

    coefficient: float = 1.0
    name: ClassVar[str] = "summed"

    def __post_init__(self) -> None:
        _refused(self.coefficient)

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.logp)

    def words(self) -> str:
        return f"imitate the chosen completion with {self.coefficient:g}, all of its tokens added"

    def symbols(self) -> str:
        return f" - {self.coefficient:g} log pi(y_w)"


@dataclass(frozen=True)
class PerCompletion(Component):
    """-coefficient / n_w log pi(y_w), mean over the good completions of the step: all completions count alike."""

    coefficient: float = 1.0
    name: ClassVar[str] = "per_completion"

    def __post_init__(self) -> None:
        _refused(self.coefficient)

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.mean_logp)

    def words(self) -> str:
        return f"imitate the chosen completion with {self.coefficient:g}, a token of it on average"

    def symbols(self) -> str:
        return f" - {self.coefficient:g}/n_w log pi(y_w)"


@dataclass(frozen=True)
class PerToken(Component):
    """-coefficient / M log pi(y_w), M the tokens of all good completions of the step: all tokens count alike."""

    coefficient: float = 1.0
    name: ClassVar[str] = "per_token"

    def __post_init__(self) -> None:
        _refused(self.coefficient)

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable_tokens, 1) * _good(completions, completions.logp)

    def words(self) -> str:
        return f"imitate the chosen completions with {self.coefficient:g}, each token alike"

    def symbols(self) -> str:
        return f" - {self.coefficient:g} (mean over the step's tokens of log pi(y_w))"
