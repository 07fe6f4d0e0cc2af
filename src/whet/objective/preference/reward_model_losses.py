"""Losses of reward models, under the contract of the preference methods: shares of the whole step, sums as metrics.

Ranked answers: scores [B, K] of K answers to a prompt. Labels: logits [N, T] where an outcome or a step is judged.
Scores and logits carry the gradient; whoever calls has taken them at the last real token, found by the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.component import Component
from whet.objective.lazy_torch import Tensor, functional, torch
from whet.objective.policy import Loss
from whet.types import WhetError


@dataclass(frozen=True)
class RankBatch:
    """Answers of which some are better than others. A row with no two answers of different rank counts nowhere."""

    rank: Tensor  # int64 [B, K], 0 is best, equal for a tie, -1 where there is no answer; a pair is [0, 1]
    margin: Tensor | None = None  # [B, K, K], how far apart answer i should be above j; None: 0
    weight: Tensor | None = None  # [B]; None: 1
    preference: Tensor | None = None  # [B, K, K], probability that answer i is better than j; None: 1

    @property
    def better(self) -> Tensor:
        """bool [B, K, K]: answer i ranks above answer j."""
        there = self.rank >= 0
        return there[:, :, None] & there[:, None, :] & (self.rank[:, :, None] < self.rank[:, None, :])

    @property
    def counted(self) -> Tensor:
        """Which rows have something to be judged: bool [B]."""
        return self.better.flatten(1).any(-1)


@dataclass(frozen=True)
class LabelBatch:
    """Where something is judged right or wrong: the last token of a completion, all its tokens, or the last of each
    step."""

    label: Tensor  # [N, T], the probability of being right: 0 and 1, or soft labels in between
    judged: Tensor  # bool [N, T], where a label stands
    weight: Tensor | None = None  # [N]; None: 1


@dataclass(frozen=True)
class RewardTotals:
    """Counts of the WHOLE optimizer step, over all passes and ranks."""

    rows: int  # rows that count
    pairs: int = 0  # ordered pairs of answers
    answers: int = 0  # answers in rows that count
    labels: int = 0  # places judged


def reward_totals(batch: RankBatch | LabelBatch) -> RewardTotals:
    """The counts of a batch."""
    if isinstance(batch, LabelBatch):
        return RewardTotals(int(batch.judged.any(-1).sum()), labels=int(batch.judged.sum()))
    answers = (batch.rank >= 0) & batch.counted[:, None]
    return RewardTotals(int(batch.counted.sum()), int(batch.better.sum()), int(answers.sum()))


class AllPairs(Component):
    """mean over the ordered pairs of a prompt of -log sigma(r_i - r_j - margin_ij). K = 2 is Bradley and Terry's.

    Where the data is only sure by P_ij: -P log sigma(x) - (1 - P) log sigma(-x), x the same difference.

    Ouyang 2022 (2203.02155): all pairs of a prompt are one element and divided by their number, else it over-fits.
    Margins: Touvron 2023 (2307.09288).
    """

    name = "all_pairs"
    in_words = "every pair of answers to a prompt is compared, and their mean taken"

    def __call__(self, batch: RankBatch, score: Tensor) -> Tensor:
        better = batch.better
        apart = score[:, :, None] - score[:, None, :]
        if batch.margin is not None:
            apart = apart - batch.margin.to(score.dtype)
        pair_cost = -functional.logsigmoid(apart)
        if batch.preference is not None:
            certain = batch.preference.to(score.dtype)
            pair_cost = certain * pair_cost - (1 - certain) * functional.logsigmoid(-apart)
        cost = torch.where(better, pair_cost, 0.0).flatten(1).sum(-1)
        return cost / better.flatten(1).sum(-1).clamp(min=1)


class PlackettLuce(Component):
    """-SUM_k [ r_(k) - log SUM_{j >= k} exp r_(j) ], from the best answer to the worst. K = 2 is Bradley and Terry's.

    Plackett 1975. Tied answers are compared with those below them and not with each other.
    """

    name = "plackett_luce"
    in_words = "the best answer is drawn first, then the best of the rest, and so on"

    def __call__(self, batch: RankBatch, score: Tensor) -> Tensor:
        if batch.margin is not None or batch.preference is not None:
            stated = "margins" if batch.margin is not None else "preferences"
            raise WhetError(
                f"the data states {stated}, which plackett_luce does not look at; drop them or use all_pairs"
            )
        itself = torch.eye(score.shape[1], dtype=torch.bool, device=score.device)
        there = batch.rank >= 0
        among = torch.where(batch.better | itself, score[:, None, :], -torch.inf).logsumexp(-1)
        return torch.where(there, among - score, 0.0).sum(-1)


@dataclass(frozen=True)
class RankLoss:
    """The loss of a reward model on ranked answers.

    mean over rows of cost + centre (r_w + r_l)^2. The second term keeps scores around 0: Eisenstein 2023 (2312.09244),
    0.01. For K answers it is taken over the ordered pairs of a row, as the first.
    """

    cost: AllPairs | PlackettLuce  # of a ranking, [B], from the scores of its answers
    centre: float = 0.0

    def __post_init__(self) -> None:
        if self.centre < 0:
            raise WhetError(f"centre is {self.centre:g}; give 0 (off) or a small number such as 0.01")

    def loss(self, batch: RankBatch, score: Tensor, totals: RewardTotals) -> Loss:
        """The step's loss restricted to the rows of this pass. `score` [B, K] carries the gradient."""
        exact = score if score.dtype == torch.float64 else score.float()
        # a place without an answer may hold anything
        exact = torch.where(batch.rank >= 0, exact, 0.0)
        cost, better = self.cost(batch, exact), batch.better
        if self.centre:
            both = torch.where(better, (exact[:, :, None] + exact[:, None, :]).square(), 0.0).flatten(1).sum(-1)
            cost = cost + self.centre * both / better.flatten(1).sum(-1).clamp(min=1)
        if batch.weight is not None:
            cost = cost * batch.weight.to(cost.dtype)
        value = torch.where(batch.counted, cost, 0.0).sum() / max(totals.rows, 1)
        return Loss(value, {"loss": value.detach(), **self._sums(batch, exact.detach(), totals)})

    def _sums(self, batch: RankBatch, score: Tensor, totals: RewardTotals) -> dict[str, Tensor]:
        better = batch.better
        apart = score[:, :, None] - score[:, None, :]
        right = (apart > 0).to(score.dtype) + 0.5 * (apart == 0).to(score.dtype)
        answers = (batch.rank >= 0) & batch.counted[:, None]
        pairs = {"margin": apart, "accuracy": right, "confidence": torch.sigmoid(apart.abs())}
        sums = {name: torch.where(better, values, 0.0).sum() / max(totals.pairs, 1) for name, values in pairs.items()}
        scores = {"score": score, "score_square": score.square()}
        for name, values in scores.items():
            sums[name] = torch.where(answers, values, 0.0).sum() / max(totals.answers, 1)
        return sums


@dataclass(frozen=True)
class LabelLoss:
    """-[ y log p + (1 - y) log(1 - p) ], p = sigma(logit), on every judged place; y may be soft.

    Outcomes: Cobbe 2021 (2110.14168), every token of a completion with its outcome; or its last token only. Steps:
    Lightman 2023 (2305.20050), the last token of each; soft labels: Wang 2023 (2312.08935). `even_completions`
    averages the
    places of a completion first, so that one of many steps counts as much as one of few.
    """

    even_completions: bool = False
    positive_weight: float = 1.0  # what a right label counts: above 1 where right ones are rare

    def __post_init__(self) -> None:
        if not self.positive_weight > 0:
            raise WhetError(f"positive_weight is {self.positive_weight:g}; give a number above 0")

    def loss(self, batch: LabelBatch, logit: Tensor, totals: RewardTotals) -> Loss:
        """The step's loss restricted to the rows of this pass. `logit` [N, T] carries the gradient."""
        exact = logit if logit.dtype == torch.float64 else logit.float()
        exact = torch.where(batch.judged, exact, 0.0)
        label = torch.where(batch.judged, batch.label.to(exact.dtype), 0.0)
        cost = functional.binary_cross_entropy_with_logits(
            exact, label, reduction="none", pos_weight=exact.new_tensor(self.positive_weight)
        )
        row_cost = torch.where(batch.judged, cost, 0.0).sum(-1)
        if self.even_completions:
            row_cost = row_cost / batch.judged.sum(-1).clamp(min=1)
        if batch.weight is not None:
            row_cost = row_cost * batch.weight.to(row_cost.dtype)
        value = row_cost.sum() / max(totals.rows if self.even_completions else totals.labels, 1)
        predicted, truth = exact.detach() > 0, label > 0.5
        watched = {
            "accuracy": predicted == truth,
            "right_labels": truth,
            "right_said": predicted,
            "squared_error": (torch.sigmoid(exact.detach()) - label).square(),
        }
        sums = {
            name: torch.where(batch.judged, values.to(exact.dtype), 0.0).sum() / max(totals.labels, 1)
            for name, values in watched.items()
        }
        return Loss(value, {"loss": value.detach(), **sums})
