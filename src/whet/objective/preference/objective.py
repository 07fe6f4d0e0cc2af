"""The one loss of every preference method.

    loss = SUM_i w_i [ share_i curve(contrast(s_w - z, s_l - z)) - imitation ]

Only `logp` carries gradient, and the `PairExtras` of methods that need more. A method is a choice of components, one
per axis; nothing here knows a method by name. Every number of the whole step comes in as `PairTotals`, so that cutting
a step
into passes, its order, its padding and its ranks never change the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from whet.objective.advantage import Memory
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.policy import Loss
from whet.objective.preference.batch import PairBatch, PairCompletions, PairExtras, PairTotals, completions_of
from whet.objective.preference.pair_losses import CostCurve, PairScores
from whet.objective.preference.pair_terms import (
    Alike,
    Anchor,
    ImitateGood,
    NoPairImitation,
    PairContrast,
    PairWeight,
    ScoreDifference,
    Zero,
)
from whet.objective.preference.score import CompletionScore
from whet.objective.reference import Frozen, ReferencePolicy
from whet.types import WhetError

# one token per completion, and hundredths of a nat per token: closer than this two completions say the same
SAME_LENGTH, SAME_LOGP = 1, 0.01


def pair_sums(completions: PairCompletions, reward: Tensor, totals: PairTotals) -> dict[str, Tensor]:
    """`reward` [B, S] is the implicit one: beta times the score, less what it is compared with.

    chosen_* and rejected_* are means over good and bad completions, the rest means over pairs. `drift` is the mean of
    |log pi / ref|; *_ratio the mean of log pi / ref, where there is a reference.
    """
    batch = completions.batch
    watched = {"logp": completions.logp.detach(), "mean_logp": completions.mean_logp.detach(), "reward": reward}
    watched["length"] = completions.lengths
    if batch.ref_logp is not None:
        watched["ratio"] = completions.log_ratio.detach()
    sides = {"chosen": (batch.good, totals.desirable), "rejected": (~batch.good, totals.undesirable)}
    sums = {
        f"{side}_{name}": _total(values, batch.counted[:, None] & chosen, count)
        for name, values in watched.items()
        for side, (chosen, count) in sides.items()
    }
    if batch.ref_logp is not None:
        drift = watched["ratio"].abs()
        sums["drift"] = _total(drift, batch.counted[:, None], totals.desirable + totals.undesirable)
    return sums if not batch.paired else {**sums, **_paired(completions, reward, totals)}


def _paired(completions: PairCompletions, reward: Tensor, totals: PairTotals) -> dict[str, Tensor]:
    gap, longer = (values[:, 0] - values[:, 1] for values in (reward, completions.lengths))
    likelier = (completions.mean_logp[:, 0] - completions.mean_logp[:, 1]).detach()
    means = {
        "margin": gap,
        "margin_square": gap.square(),
        # equal rewards are a coin's throw, so that a model that knows nothing is right half of the time
        "accuracy": (gap > 0).to(gap.dtype) + 0.5 * (gap == 0).to(gap.dtype),
        "longer": longer,
        "longer_square": longer.square(),
        "longer_margin": longer * gap,
        "chosen_is_longer": (longer > 0).to(gap.dtype),
        "alike": ((longer.abs() <= SAME_LENGTH) & (likelier.abs() < SAME_LOGP)).to(gap.dtype),
    }
    return {name: _total(values, completions.batch.counted, totals.pairs) for name, values in means.items()}


def _total(values: Tensor, chosen: Tensor, count: int) -> Tensor:
    return torch.where(chosen, values, 0.0).sum() / max(count, 1)


@dataclass(frozen=True)
class PairObjective:
    """A preference method as a choice of orthogonal components, one per axis."""

    name: str
    score: CompletionScore
    curve: CostCurve
    contrast: PairContrast = field(default_factory=ScoreDifference)
    anchor: Anchor = field(default_factory=Zero)
    weigh: PairWeight = field(default_factory=Alike)
    imitate: ImitateGood = field(default_factory=NoPairImitation)
    reference: ReferencePolicy = field(default_factory=Frozen)

    def needs(self) -> frozenset[str]:
        """What the loop must provide beyond logp: `pairs` (not labelled completions), `ref_logp`, `token_logp` (log-
        probabilities of tokens instead of sums), `mismatched_logp`, `log_square`, `rival_logp`."""
        return frozenset().union(*(getattr(self, axis.name).needs for axis in fields(self)[1:]))

    def tuned(self, progress: float) -> PairObjective:
        """The method when this share of the run, in [0, 1], is done."""
        return replace(self, contrast=self.contrast.at(progress))

    def symbols(self, updates_per_step: int = 1) -> list[str]:
        """What is minimised, line by line."""
        against = self.anchor.symbols()
        cost = self.curve.symbols(self.score.symbols(), self.contrast.symbols())
        return [
            f"s = {self.score.symbols()}" + (f", less z = {against}" if against else ""),
            f"L = mean {self.weigh.symbols()}[ {cost}{self.imitate.symbols()} ]",
        ]

    def spoken(self, updates_per_step: int = 1) -> list[Any]:
        """The components, in the order in which a pair meets them."""
        return [self.score, self.contrast, self.curve, self.anchor, self.weigh, self.imitate, self.reference]

    def anchor_sums(self, batch: PairBatch, logp: Tensor) -> Tensor:
        """float64 [4], to be added over the passes and ranks of the step, before its first loss.

        Where the method needs `mismatched_logp`, the batch and logp are those of the mismatched completions.
        """
        return self.anchor.sums(self.score(completions_of(batch, logp.detach())), batch)

    def anchored(self, totals: PairTotals, sums: Tensor, memory: Memory) -> tuple[PairTotals, Memory]:
        """The step's totals with its anchor, and what to remember for the next step."""
        value, memory = self.anchor.value(sums, memory)
        return replace(totals, anchor=value), memory

    def loss(self, batch: PairBatch, logp: Tensor, totals: PairTotals, extras: PairExtras | None = None) -> Loss:
        """The step's loss restricted to the rows of this pass. `logp` [B, S] or [B, S, T] carries the gradient."""
        self._refuse(batch)
        completions = completions_of(batch, logp, extras)
        scores = self._scores(completions, totals)
        cost = self.curve(scores) * self.curve.share(scores, totals)
        row_cost = cost.sum(-1) if cost.dim() == 2 else cost
        imitated = self.imitate(completions, totals)
        if imitated is not None:
            row_cost = row_cost + imitated
        for weight in (batch.weight, self.weigh(completions)):
            row_cost = row_cost if weight is None else row_cost * weight.to(row_cost.dtype)
        value = torch.where(batch.counted, row_cost, 0.0).sum()
        sums = pair_sums(completions, scores.score.detach() * self.curve.reward_unit, totals)
        return Loss(value, {"loss": value.detach(), **sums})

    def grad(
        self, batch: PairBatch, logp: Tensor, totals: PairTotals, extras: PairExtras | None = None
    ) -> tuple[Tensor, Loss]:
        """d loss / d logp, shaped as logp, and the loss: who has read logp without a graph weighs the second reading
        of the tokens with it and never builds both completions' graphs at once."""
        if "rival_logp" in self.needs():
            raise ValueError(f"the method {self.name} also has a grad in rival_logp: differentiate its loss")
        with torch.enable_grad():
            leaf = logp.detach().requires_grad_()
            loss = self.loss(batch, leaf, totals, extras)
            (gradient,) = torch.autograd.grad(loss.value, leaf)
        return gradient, Loss(loss.value.detach(), loss.sums)

    def _scores(self, completions: PairCompletions, totals: PairTotals) -> PairScores:
        score = self.score(completions) - totals.anchor
        contrasted = self.contrast(score[:, 0], score[:, 1]) if completions.batch.paired else None
        return PairScores(score, contrasted, completions)

    def _refuse(self, batch: PairBatch) -> None:
        if "pairs" in self.needs() and not batch.paired:
            raise ValueError(f"the method {self.name} needs pairs and the batch has single completions with labels")
        for name in ("margin", "preference"):
            if getattr(batch, name) is not None and name not in self.curve.takes:
                raise WhetError(
                    f"the data states a {name} for each pair, which {self.curve.name} does not look at; "
                    "drop the column or take the curve logistic"
                )

    def refuse_idle(self) -> None:
        """Refuse components that would have no effect, or not the one they promise."""
        if not self.curve.contrasts and self.contrast != ScoreDifference():
            raise WhetError(
                f"objective.contrast={self.contrast.name} has no effect: {self.curve.name} judges completions one by "
                "one; "
                "give contrast=difference"
            )
        if not self.curve.anchors and self.anchor != Zero():
            raise WhetError(
                f"objective.anchor={self.anchor.name} has no effect: {self.curve.name} compares two completions, and "
                "what both "
                "are compared with cancels; give anchor=zero"
            )
        if self.reference != Frozen() and "ref_logp" not in self.needs():
            raise WhetError(
                f"objective.reference={self.reference.name} has no effect: {self.score.name} does not look at a "
                "reference; "
                "give reference=frozen"
            )
