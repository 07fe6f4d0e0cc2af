"""What does a single completion cost? Curves on one score at a time: `(scores) -> [B, S]`, for pairs and labelled
completions.

s is the score less the step's anchor. A pair's two costs are added; of labelled completions each class is averaged by
itself, so that pairs and the same completions without their partners cost the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.component import Component, number
from whet.objective.lazy_torch import functional, torch
from whet.objective.preference.batch import PairTotals
from whet.objective.preference.pair_losses import PairScores

if TYPE_CHECKING:
    from torch import Tensor


class CompletionCurve(Component):
    """A curve on completions; each counts one over the completions of its class in the step."""

    contrasts: ClassVar[bool] = False
    anchors: ClassVar[bool] = True
    takes: ClassVar[frozenset[str]] = frozenset()
    beta: float

    @property
    def reward_unit(self) -> float:
        return self.beta

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        return by_class(scores, 1 / max(totals.desirable, 1), 1 / max(totals.undesirable, 1))


def by_class(scores: PairScores, desirable: float, undesirable: float) -> Tensor:
    """[B, S]: one number for good completions, another for bad ones, in the precision of the scores."""
    return scores.score.new_tensor([undesirable, desirable])[scores.completions.batch.good.long()]


def signed(values: Tensor, good: Tensor) -> Tensor:
    """The values of good completions, minus those of bad ones."""
    return torch.where(good, values, -values)


@dataclass(frozen=True)
class Prospect(CompletionCurve):
    """desirable (1 - sigma(beta s)) or undesirable (1 - sigma(-beta s)), mean over all completions.

    Ethayarajh 2024 (2402.01306). `desirable` and `undesirable` are its lambda_D and lambda_U.
    """

    beta: float = number(0.1, above=0)
    desirable: float = number(1.0, above=0)
    undesirable: float = number(1.0, above=0)
    name: ClassVar[str] = "prospect"

    def __call__(self, scores: PairScores) -> Tensor:
        lost = torch.sigmoid(-self.beta * signed(scores.score, scores.completions.batch.good))
        return by_class(scores, self.desirable, self.undesirable) * lost

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        return 1 / max(totals.desirable + totals.undesirable, 1)

    def words(self) -> str:
        weights = (self.desirable, self.undesirable)
        said = f"; desirable completions weigh {weights[0]:g}, undesirable ones {weights[1]:g}"
        return f"beta {self.beta:g}: gains and losses against a reference point, each completion by itself{said}"

    def symbols(self, score: str, contrast: str) -> str:
        good, bad, beta = f"{self.desirable:g}", f"{self.undesirable:g}", f"{self.beta:g}"
        return f"{good} (1 - sigma({beta} s_w)) or {bad} (1 - sigma(-{beta} s_l))"


@dataclass(frozen=True)
class Classified(CompletionCurve):
    """-log sigma(beta s) for good completions, -log sigma(-beta s) for bad ones. Jung 2024 (2404.04656)."""

    beta: float = number(0.1, above=0)
    name: ClassVar[str] = "classified"
    in_words: ClassVar[str] = "beta {0.beta:g}: tell good completions from bad ones, each by itself"
    in_symbols: ClassVar[str] = "-log sigma({0.beta:g} s_w) - log sigma(-{0.beta:g} s_l)"

    def __call__(self, scores: PairScores) -> Tensor:
        return -functional.logsigmoid(self.beta * signed(scores.score, scores.completions.batch.good))


@dataclass(frozen=True)
class Saturating(CompletionCurve):
    """1 - sigma(beta s) for good completions, sigma(beta s) for bad ones. D'Oosterlinck 2024 (2408.06266), equation
    7."""

    beta: float = number(0.1, above=0)
    name: ClassVar[str] = "saturating"
    in_words: ClassVar[str] = (
        "beta {0.beta:g}; for chosen completions better than the policy's own: they rise, the rejected sink"
    )
    in_symbols: ClassVar[str] = "1 - sigma({0.beta:g} s_w) + sigma({0.beta:g} s_l)"

    def __call__(self, scores: PairScores) -> Tensor:
        return torch.sigmoid(-self.beta * signed(scores.score, scores.completions.batch.good))


@dataclass(frozen=True)
class Targets(CompletionCurve):
    """(s - (P - 1/2)/beta)^2, P the probability that the completion wins: 1 or 0 unless the batch states it.

    Wu 2024 (2405.00675), equation 4.7. beta is the inverse of its eta.
    """

    beta: float = number(0.001, above=0)
    name: ClassVar[str] = "targets"
    takes: ClassVar[frozenset[str]] = frozenset({"preference"})

    def __call__(self, scores: PairScores) -> Tensor:
        wins = torch.as_tensor(scores.preference, dtype=scores.score.dtype, device=scores.score.device)
        half = (wins - 0.5) / self.beta
        target = half[:, None] if half.dim() else half
        return (scores.score - signed(target.expand_as(scores.score), scores.completions.batch.good)).square()

    def words(self) -> str:
        return f"good completions are drawn to {1 / (2 * self.beta):g}, bad ones to {-1 / (2 * self.beta):g}"

    def symbols(self, score: str, contrast: str) -> str:
        half = f"{1 / (2 * self.beta):g}"
        return f"(s_w - {half})^2 + (s_l + {half})^2"


@dataclass(frozen=True)
class NoiseContrast(CompletionCurve):
    """-log sigma(beta s) [good] - 1/2 log sigma(-beta s). Chen 2024 (2402.05369), two completions, one of them best.

    Good completions are drawn to where the two pulls balance, sigma(beta s) = 2/3, instead of on and on.
    """

    beta: float = number(0.01, above=0)
    name: ClassVar[str] = "noise_contrast"
    in_words: ClassVar[str] = (
        "beta {0.beta:g}: the worth of each completion by itself, so that the chosen one does not sink"
    )

    def __call__(self, scores: PairScores) -> Tensor:
        reward = self.beta * scores.score
        return -torch.where(
            scores.completions.batch.good, functional.logsigmoid(reward), 0.0
        ) - 0.5 * functional.logsigmoid(-reward)

    def symbols(self, score: str, contrast: str) -> str:
        b = f"{self.beta:g}"
        return f"-log sigma({b} s_w) - 1/2 log sigma(-{b} s_w) - 1/2 log sigma(-{b} s_l)"
