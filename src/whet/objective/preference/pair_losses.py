"""What does a pair cost? Curves on the difference of two scores: `(scores) -> [B]`, differentiable.

x = beta m throughout, m the contrast of the two scores and beta the unit of the implicit reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.component import Component, ComponentProtocol, number
from whet.objective.lazy_torch import functional, torch
from whet.objective.preference.batch import PairCompletions, PairTotals, summed

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class PairScores:
    """The completions' worth, in the method's own unit."""

    score: Tensor  # [B, S], less the step's anchor
    difference: Tensor | None  # [B], the contrast; None for single completions
    completions: PairCompletions

    @property
    def apart(self) -> Tensor:
        """[B]: the difference of a pair."""
        if self.difference is None:
            raise ValueError("the method compares two completions and the batch has single ones with labels")
        return self.difference

    @property
    def margin(self) -> Tensor | float:
        """[B], in units of the reward."""
        margin = self.completions.batch.margin
        return 0.0 if margin is None else margin.to(self.score.dtype)

    @property
    def preference(self) -> Tensor | float:
        """[B], the probability that the chosen completion is the better one."""
        preference = self.completions.batch.preference
        return 1.0 if preference is None else preference.to(self.score.dtype)


class CostCurve(ComponentProtocol, Protocol):
    """What a pair costs, [B], or each completion by itself, [B, S]."""

    contrasts: ClassVar[bool]  # it looks at the contrast of a pair
    anchors: ClassVar[bool]  # it judges completions one by one, so that it matters what they are compared with
    takes: ClassVar[frozenset[str]]  # which of the batch's `margin` and `preference` it looks at

    @property
    def reward_unit(self) -> float:
        """beta: the implicit reward is beta times the score."""
        ...

    def __call__(self, scores: PairScores) -> Tensor:
        """The cost of each pair [B], or of each completion [B, S]."""
        ...

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        """What each cost counts in the step's loss: as the costs, or one number for all."""
        ...

    def symbols(self, score: str, contrast: str) -> str:
        """The cost as an expression of these two, which are expressions themselves."""
        ...


class PairCurve(Component):
    """A curve on pairs; each counts one over the pairs of the step."""

    needs: ClassVar[frozenset[str]] = frozenset({"pairs"})
    contrasts: ClassVar[bool] = True
    anchors: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset()
    beta: float

    @property
    def reward_unit(self) -> float:
        return self.beta

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        return 1 / max(totals.pairs, 1)


@dataclass(frozen=True)
class Logistic(PairCurve):
    """coefficient [ -P log sigma(y) - (1 - P) log sigma(-y) ], y = x - gamma - margin, P = 1 - smoothing.

    Rafailov 2023 (2305.18290), equation 7; smoothing: Mitchell's note on noisy preferences; gamma: Meng 2024
    (2405.14734), equation 6. Where the batch states preferences p, P = p (1 - smoothing) + (1 - p) smoothing.
    """

    beta: float = number(0.1, above=0)
    smoothing: float = number(0.0, least=0, below=0.5)
    gamma: float = 0.0
    coefficient: float = number(1.0, above=0)
    name: ClassVar[str] = "logistic"
    takes: ClassVar[frozenset[str]] = frozenset({"margin", "preference"})

    def __call__(self, scores: PairScores) -> Tensor:
        x = self.beta * scores.apart - self.gamma - scores.margin
        likely = scores.preference * (1 - 2 * self.smoothing) + self.smoothing
        return self.coefficient * (-likely * functional.logsigmoid(x) - (1 - likely) * functional.logsigmoid(-x))

    def words(self) -> str:
        said = f"beta {self.beta:g}"
        said += f", a target margin of {self.gamma:g}" if self.gamma else ""
        said += f", counting {self.coefficient:g}" if self.coefficient != 1 else ""
        return said + (f"; labels are taken to be wrong in {self.smoothing:.0%} of the pairs" if self.smoothing else "")

    def symbols(self, score: str, contrast: str) -> str:
        x = f"{self.beta:g} ({contrast})" + (f" - {self.gamma:g}" if self.gamma else "")
        times = "" if self.coefficient == 1 else f"{self.coefficient:g} "
        if not self.smoothing:
            return f"-{times}log sigma({x})"
        wrong = f"{self.smoothing:g}"
        return f"-{times}[(1-{wrong}) log sigma(x) + {wrong} log sigma(-x)], x = {x}"


@dataclass(frozen=True)
class Unflipped(PairCurve):
    """[ -(1 - e) log sigma(x) + e log sigma(-x) ] / (1 - 2e), x less the margin. Chowdhury 2024 (2403.00409).

    Its expectation over labels flipped with probability e is the cost of the clean ones. May be negative.
    """

    beta: float = number(0.1, above=0)
    flipped: float = number(0.1, least=0, below=0.5)
    name: ClassVar[str] = "unflipped"
    takes: ClassVar[frozenset[str]] = frozenset({"margin"})
    in_words: ClassVar[str] = "beta {0.beta:g}; unbiased when {0.flipped:.0%} of the labels are flipped"

    def __call__(self, scores: PairScores) -> Tensor:
        x = self.beta * scores.apart - scores.margin
        cost = -(1 - self.flipped) * functional.logsigmoid(x) + self.flipped * functional.logsigmoid(-x)
        return cost / (1 - 2 * self.flipped)

    def symbols(self, score: str, contrast: str) -> str:
        e = f"{self.flipped:g}"
        return f"[-(1-{e}) log sigma(x) + {e} log sigma(-x)]/(1 - 2*{e}), x = {self.beta:g} ({contrast})"


@dataclass(frozen=True)
class Squared(PairCurve):
    """(m - 1/(2 beta))^2. Azar 2023 (2310.12036), equation 17; beta is its tau."""

    beta: float = number(0.1, above=0)
    name: ClassVar[str] = "squared"

    def __call__(self, scores: PairScores) -> Tensor:
        return (scores.apart - 1 / (2 * self.beta)).square()

    def words(self) -> str:
        return f"the margin is drawn to {1 / (2 * self.beta):g}, from below and from above"

    def symbols(self, score: str, contrast: str) -> str:
        return f"({contrast} - {1 / (2 * self.beta):g})^2"


@dataclass(frozen=True)
class Hinge(PairCurve):
    """max(0, delta - (x - margin)). Zhao 2023 (2305.10425), there with beta 1 and without a reference."""

    beta: float = number(0.1, above=0)
    delta: float = number(1.0, above=0)
    name: ClassVar[str] = "hinge"
    takes: ClassVar[frozenset[str]] = frozenset({"margin"})
    in_symbols: ClassVar[str] = "max(0, {0.delta:g} - {0.beta:g} ({2}))"

    def __call__(self, scores: PairScores) -> Tensor:
        return (self.delta + scores.margin - self.beta * scores.apart).clamp(min=0)

    def words(self) -> str:
        return f"a pair stops counting once it is {self.delta / self.beta:g} apart"


@dataclass(frozen=True)
class Blend(PairCurve):
    """(1 - k)(-log sigma(x)) + k exp(-x), k = sigma(x / temperature). Lu 2024 (2406.08414), equation 5."""

    beta: float = number(0.05, above=0)
    temperature: float = number(0.05, above=0, below=1)
    name: ClassVar[str] = "blend"
    in_words: ClassVar[str] = "beta {0.beta:g}: logistic for wrong pairs, exponential for right ones"
    in_symbols: ClassVar[str] = "(1-k)(-log sigma(x)) + k exp(-x), k = sigma(x/{0.temperature:g}), x = {0.beta:g} ({2})"

    def __call__(self, scores: PairScores) -> Tensor:
        x = self.beta * scores.apart
        turned = x / self.temperature
        # in one exponent: apart, a very wrong pair would be 0 times infinity
        return -torch.sigmoid(-turned) * functional.logsigmoid(x) + (functional.logsigmoid(turned) - x).exp()


@dataclass(frozen=True)
class Lowered(PairCurve):
    """sigma(beta s_w) + 1 - sigma(x). D'Oosterlinck 2024 (2408.06266), equation 8: both completions sink."""

    beta: float = number(0.1, above=0)
    name: ClassVar[str] = "lowered"
    in_words: ClassVar[str] = (
        "beta {0.beta:g}; for chosen completions worse than the policy's own: both sink, the rejected faster"
    )
    in_symbols: ClassVar[str] = "sigma({0.beta:g} s_w) + 1 - sigma({0.beta:g} ({2}))"

    def __call__(self, scores: PairScores) -> Tensor:
        return torch.sigmoid(self.beta * scores.score[:, 0]) + torch.sigmoid(-self.beta * scores.apart)


@dataclass(frozen=True)
class Rivals(PairCurve):
    """coefficient / n_l SUM_t -log sigma(rival_logp_t - logp_t) over the rejected completion. Xu 2023 (2312.16682).

    Each rejected token against one other, drawn by the caller from the likeliest at its place; both carry gradient.
    """

    coefficient: float = number(1.0, above=0)
    name: ClassVar[str] = "rivals"
    needs: ClassVar[frozenset[str]] = frozenset({"pairs", "token_logp", "rival_logp"})
    contrasts: ClassVar[bool] = False
    in_words: ClassVar[str] = "each rejected token is pushed below a likely rival ({0.coefficient:g})"
    in_symbols: ClassVar[str] = "{0.coefficient:g}/n_l SUM_t -log sigma(log pi(rival_t) - log pi(y_l,t))"

    @property
    def reward_unit(self) -> float:
        return 1.0

    def __call__(self, scores: PairScores) -> Tensor:
        completions = scores.completions
        rival, own = completions.extras.rival_logp, completions.token_logp
        action = completions.batch.action
        if rival is None or own is None or action is None:
            raise ValueError("rivals needs logp of each token, [B, S, T], and the rival_logp of the pass")
        gap = torch.where(action, own - rival.to(own.dtype), 0.0)
        lost = summed(completions.batch, functional.softplus(gap))[:, 1] / completions.lengths[:, 1]
        return self.coefficient * lost
