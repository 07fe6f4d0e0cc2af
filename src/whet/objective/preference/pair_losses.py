"""What does a pair cost? Curves on the difference of two scores: `(scores) -> [B]`, differentiable.

x = beta m throughout, m the contrast of the two scores and beta the unit of the implicit reward.

What does a single completion cost? Curves on one score at a time: `(scores) -> [B, S]`, for pairs and labelled
completions.

s is the score less the step's anchor. A pair's two costs are added; of labelled completions each class is averaged by
itself, so that pairs and the same completions without their partners cost the same.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, functional, torch
from whet.objective.preference.batch import PairCompletions, PairTotals, summed


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


class CostCurve(Component):
    """What a pair costs, [B], or each completion by itself, [B, S]."""

    contrasts: ClassVar[bool] = False  # it looks at the contrast of a pair
    anchors: ClassVar[bool] = False  # it judges completions one by one: it matters what they are compared with
    takes: ClassVar[frozenset[str]] = frozenset()  # which of the batch's `margin` and `preference` it looks at

    @property
    def reward_unit(self) -> float:
        """beta: the implicit reward is beta times the score; 1 for a curve without."""
        return float(getattr(self, "beta", 1.0))

    @abstractmethod
    def __call__(self, scores: PairScores) -> Tensor:
        """The cost of each pair [B], or of each completion [B, S]."""

    @abstractmethod
    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        """What each cost counts in the step's loss: as the costs, or one number for all."""

    def symbols(self, score: str, contrast: str) -> str:
        """The cost as an expression of these two, which are expressions themselves."""
        return super().symbols(score, contrast)


class PairCurve(CostCurve):
    """A curve on pairs; each counts one over the pairs of the step."""

    needs = frozenset({"pairs"})
    contrasts = True

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        """Each pair counts one over the number of pairs of the whole optimizer step."""
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
    name = "logistic"
    takes = frozenset({"margin", "preference"})

    def __call__(self, scores: PairScores) -> Tensor:
        x = self.beta * scores.apart - self.gamma - scores.margin
        likely = scores.preference * (1 - 2 * self.smoothing) + self.smoothing
        return self.coefficient * (-likely * functional.logsigmoid(x) - (1 - likely) * functional.logsigmoid(-x))

    def words(self) -> str:
        text = f"beta {self.beta:g}"
        text += f", a target margin of {self.gamma:g}" if self.gamma else ""
        text += f", counting {self.coefficient:g}" if self.coefficient != 1 else ""
        return text + (f"; labels are taken to be wrong in {self.smoothing:.0%} of the pairs" if self.smoothing else "")

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
    name = "unflipped"
    takes = frozenset({"margin"})
    in_words = "beta {0.beta:g}; unbiased when {0.flipped:.0%} of the labels are flipped"

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
    name = "squared"

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
    name = "hinge"
    takes = frozenset({"margin"})
    in_symbols = "max(0, {0.delta:g} - {0.beta:g} ({2}))"

    def __call__(self, scores: PairScores) -> Tensor:
        return (self.delta + scores.margin - self.beta * scores.apart).clamp(min=0)

    def words(self) -> str:
        return f"a pair stops counting once it is {self.delta / self.beta:g} apart"


@dataclass(frozen=True)
class Blend(PairCurve):
    """(1 - k)(-log sigma(x)) + k exp(-x), k = sigma(x / temperature). Lu 2024 (2406.08414), equation 5."""

    beta: float = number(0.05, above=0)
    temperature: float = number(0.05, above=0, below=1)
    name = "blend"
    in_words = "beta {0.beta:g}: logistic for wrong pairs, exponential for right ones"
    in_symbols = "(1-k)(-log sigma(x)) + k exp(-x), k = sigma(x/{0.temperature:g}), x = {0.beta:g} ({2})"

    def __call__(self, scores: PairScores) -> Tensor:
        x = self.beta * scores.apart
        turned = x / self.temperature
        # in one exponent: apart, a very wrong pair would be 0 times infinity
        return -torch.sigmoid(-turned) * functional.logsigmoid(x) + (functional.logsigmoid(turned) - x).exp()


@dataclass(frozen=True)
class Lowered(PairCurve):
    """sigma(beta s_w) + 1 - sigma(x). D'Oosterlinck 2024 (2408.06266), equation 8: both completions sink."""

    beta: float = number(0.1, above=0)
    name = "lowered"
    in_words = "beta {0.beta:g}; for chosen completions worse than the policy's own: both sink, the rejected faster"
    in_symbols = "sigma({0.beta:g} s_w) + 1 - sigma({0.beta:g} ({2}))"

    def __call__(self, scores: PairScores) -> Tensor:
        return torch.sigmoid(self.beta * scores.score[:, 0]) + torch.sigmoid(-self.beta * scores.apart)


@dataclass(frozen=True)
class Rivals(PairCurve):
    """coefficient / n_l SUM_t -log sigma(rival_logp_t - logp_t) over the rejected completion. Xu 2023 (2312.16682).

    Each rejected token against one other, drawn by the caller from the likeliest at its place; both carry gradient.
    """

    coefficient: float = number(1.0, above=0)
    name = "rivals"
    needs = frozenset({"pairs", "token_logp", "rival_logp"})
    contrasts = False
    in_words = "each rejected token is pushed below a likely rival ({0.coefficient:g})"
    in_symbols = "{0.coefficient:g}/n_l SUM_t -log sigma(log pi(rival_t) - log pi(y_l,t))"

    def __call__(self, scores: PairScores) -> Tensor:
        completions = scores.completions
        rival, own = completions.extras.rival_logp, completions.token_logp
        action = completions.batch.action
        if rival is None or own is None or action is None:
            raise ValueError("rivals needs logp of each token, [B, S, T], and the rival_logp of the pass")
        gap = torch.where(action, own - rival.to(own.dtype), 0.0)
        lost = summed(completions.batch, functional.softplus(gap))[:, 1] / completions.lengths[:, 1]
        return self.coefficient * lost


class CompletionCurve(CostCurve):
    """A curve on completions; each counts one over the completions of its class in the step."""

    anchors = True

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        """Desirable and undesirable completions each count one over their number in the whole step."""
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
    name = "prospect"

    def __call__(self, scores: PairScores) -> Tensor:
        lost = torch.sigmoid(-self.beta * signed(scores.score, scores.completions.batch.good))
        return by_class(scores, self.desirable, self.undesirable) * lost

    def share(self, scores: PairScores, totals: PairTotals) -> Tensor | float:
        """Each completion counts one over the number of all completions of the step."""
        return 1 / max(totals.desirable + totals.undesirable, 1)

    def words(self) -> str:
        weights = (self.desirable, self.undesirable)
        text = f"; desirable completions weigh {weights[0]:g}, undesirable ones {weights[1]:g}"
        return f"beta {self.beta:g}: gains and losses against a reference point, each completion by itself{text}"

    def symbols(self, score: str, contrast: str) -> str:
        good, bad, beta = f"{self.desirable:g}", f"{self.undesirable:g}", f"{self.beta:g}"
        return f"{good} (1 - sigma({beta} s_w)) or {bad} (1 - sigma(-{beta} s_l))"


@dataclass(frozen=True)
class Classified(CompletionCurve):
    """-log sigma(beta s) for good completions, -log sigma(-beta s) for bad ones. Jung 2024 (2404.04656)."""

    beta: float = number(0.1, above=0)
    name = "classified"
    in_words = "beta {0.beta:g}: tell good completions from bad ones, each by itself"
    in_symbols = "-log sigma({0.beta:g} s_w) - log sigma(-{0.beta:g} s_l)"

    def __call__(self, scores: PairScores) -> Tensor:
        return -functional.logsigmoid(self.beta * signed(scores.score, scores.completions.batch.good))


@dataclass(frozen=True)
class Saturating(CompletionCurve):
    """1 - sigma(beta s) for good completions, sigma(beta s) for bad ones. D'Oosterlinck 2024 (2408.06266), equation
    7."""

    beta: float = number(0.1, above=0)
    name = "saturating"
    in_words = "beta {0.beta:g}; for chosen completions better than the policy's own: they rise, the rejected sink"
    in_symbols = "1 - sigma({0.beta:g} s_w) + sigma({0.beta:g} s_l)"

    def __call__(self, scores: PairScores) -> Tensor:
        return torch.sigmoid(-self.beta * signed(scores.score, scores.completions.batch.good))


@dataclass(frozen=True)
class Targets(CompletionCurve):
    """(s - (P - 1/2)/beta)^2, P the probability that the completion wins: 1 or 0 unless the batch states it.

    Wu 2024 (2405.00675), equation 4.7. beta is the inverse of its eta.
    """

    beta: float = number(0.001, above=0)
    name = "targets"
    takes = frozenset({"preference"})

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
    name = "noise_contrast"
    in_words = "beta {0.beta:g}: the worth of each completion by itself, so that the chosen one does not sink"

    def __call__(self, scores: PairScores) -> Tensor:
        reward = self.beta * scores.score
        return -torch.where(
            scores.completions.batch.good, functional.logsigmoid(reward), 0.0
        ) - 0.5 * functional.logsigmoid(-reward)

    def symbols(self, score: str, contrast: str) -> str:
        b = f"{self.beta:g}"
        return f"-log sigma({b} s_w) - 1/2 log sigma(-{b} s_w) - 1/2 log sigma(-{b} s_l)"
