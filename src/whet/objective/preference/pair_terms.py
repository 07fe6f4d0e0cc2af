"""The terms around a preference loss: anchors, contrasts, imitation and the weights of rows.

What is a single completion compared with? Anchors: a number of the whole step, in units of the score, without
gradient.

Before the losses of a step, `sums` of all its passes and ranks are added; `value` makes the anchor of them.

How are two completions set against each other? Contrasts: `(chosen, rejected) -> [B]`, from scores to one
difference.

Are good completions imitated as well? Terms `(completions, totals) -> [B]`, shares of the step included.

How much does a row count? Weights of rows `(completions) -> [B]`, never with gradient. None: all alike.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

from whet.objective.advantage import Memory
from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.preference.batch import PairBatch, PairCompletions, PairTotals, summed


class PairContrast(Component):
    """The difference of the two scores of a pair, [B]."""

    @abstractmethod
    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor: ...

    def at(self, progress: float) -> PairContrast:
        """The contrast when this share of the run, in [0, 1], is done."""
        return self

    def symbols(self) -> str:
        """The contrast as a formula in s_w and s_l."""
        return super().symbols()


class ScoreDifference(PairContrast):
    """m = s_w - s_l."""

    name = "difference"
    in_symbols = "s_w - s_l"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected


@dataclass(frozen=True)
class Shifted(PairContrast):
    """m = s_w - f s_l, f from `factor` at the start linearly to `final` at the end. Yang 2025 (2502.07599).

    With s = log pi / ref the factor applies to the reference too.
    """

    factor: float = number(0.95, above=0, most=1)
    final: float = number(0.95, above=0, most=1)
    name = "shifted"
    in_symbols = "s_w - {0.factor:g} s_l"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - self.factor * rejected

    def at(self, progress: float) -> Shifted:
        return replace(self, factor=self.factor + (self.final - self.factor) * min(max(progress, 0.0), 1.0))

    def words(self) -> str:
        moving = f", moving to {self.final:g} by the end" if self.final != self.factor else ""
        return f"the rejected completion counts {self.factor:g}{moving}: less reason to push both down"


@dataclass(frozen=True)
class Protected(PairContrast):
    """m = s_w - s_l - penalty max(0, -s_w). Pal 2024 (2402.13228)."""

    penalty: float = number(50.0, above=0, instead="objective.contrast=difference")
    name = "protected"
    in_words = "a chosen completion that is worth less than nothing costs {0.penalty:g} times what it lacks"
    in_symbols = "s_w - s_l - {0.penalty:g} max(0, -s_w)"

    def __call__(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return chosen - rejected - self.penalty * (-chosen).clamp(min=0)


class ImitateGood(Component):
    """What is added to the cost of a row for imitating its good completion."""

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return None

    def symbols(self) -> str:
        """The term with its sign, such as ` - 0.1 log pi(y_w)`; empty for none."""
        return super().symbols()


class NoPairImitation(ImitateGood):
    """No imitation: the loss is the preference loss alone."""

    name = "none"
    in_symbols = ""


def _good(completions: PairCompletions, values: Tensor) -> Tensor:
    return torch.where(completions.batch.good, values, 0.0).sum(-1)


@dataclass(frozen=True)
class Summed(ImitateGood):
    """-coefficient log pi(y_w), mean over the good completions of the step: a long completion counts with its
    length."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name = "summed"
    in_words = "imitate the chosen completion with {0.coefficient:g}, all of its tokens added"
    in_symbols = " - {0.coefficient:g} log pi(y_w)"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.logp)


@dataclass(frozen=True)
class PerCompletion(ImitateGood):
    """-coefficient / n_w log pi(y_w), mean over the good completions of the step: all completions count alike."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name = "per_completion"
    in_words = "imitate the chosen completion with {0.coefficient:g}, a token of it on average"
    in_symbols = " - {0.coefficient:g}/n_w log pi(y_w)"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable, 1) * _good(completions, completions.mean_logp)


@dataclass(frozen=True)
class PerToken(ImitateGood):
    """-coefficient / M log pi(y_w), M the tokens of all good completions of the step: all tokens count alike."""

    coefficient: float = number(1.0, above=0, instead="objective.imitate=none")
    name = "per_token"
    in_words = "imitate the chosen completions with {0.coefficient:g}, each token alike"
    in_symbols = " - {0.coefficient:g} (mean over the step's tokens of log pi(y_w))"

    def __call__(self, completions: PairCompletions, totals: PairTotals) -> Tensor | None:
        return -self.coefficient / max(totals.desirable_tokens, 1) * _good(completions, completions.logp)


class PairWeight(Component):
    """How much a row counts, [B], without gradient; None where all count alike."""

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        return None

    def symbols(self) -> str:
        """The factor in front of a row's cost."""
        return super().symbols()


class Alike(PairWeight):
    """The factor 1 for every pair."""

    name = "alike"
    in_symbols = ""


class OwnWords(PairWeight):
    """w_w w_l, w = exp( 1/n SUM_t (logp_t - log SUM_v p_v^2) ). Zhou 2024 (2406.11827), equation 2.

    Small for a completion the policy would hardly have drawn itself.
    """

    name = "own_words"
    needs = frozenset({"log_square"})
    in_words = "pairs count by how likely the policy is to say such things itself"
    in_symbols = "w_w w_l, w = exp(mean_t(log pi_t - log SUM_v pi_v^2)), times "

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
class MarginGate(PairWeight):
    """sigma((bias - (log pi(y_w) - log pi(y_l))) / temperature). Xu 2023 (2312.16682)."""

    bias: float = 0.0
    temperature: float = number(1.0, above=0)
    name = "margin_gate"
    needs = frozenset({"pairs"})
    in_words = "pairs that are far enough apart stop counting"
    in_symbols = "sigma(({0.bias:g} - log pi(y_w)/pi(y_l))/{0.temperature:g}) "

    def __call__(self, completions: PairCompletions) -> Tensor | None:
        logp = completions.logp.detach()
        return torch.sigmoid((self.bias - (logp[:, 0] - logp[:, 1])) / self.temperature)


class Anchor(Component):
    """What the score of a single completion is compared with: one number per step, from sums over all of its rows."""

    def sums(self, score: Tensor, batch: PairBatch) -> Tensor:
        """float64 [4]: sum and count over the good completions, sum and count over the others."""
        counted = batch.counted[:, None]
        sums = []
        for chosen in (counted & batch.good, counted & ~batch.good):
            sums += [torch.where(chosen, score.detach().double(), 0.0).sum(), chosen.sum().double()]
        return torch.stack(sums)

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        """What scores are compared with, and the memory after the step; `sums` cover all passes and ranks."""
        return 0.0, memory

    def symbols(self) -> str:
        """The number as an expression; empty for 0."""
        return super().symbols()


class Zero(Anchor):
    """No reference point: s unchanged."""

    name = "zero"
    in_symbols = ""


class Mismatched(Anchor):
    """z = max(0, mean of d over prompts with the completion to another prompt). Ethayarajh 2024 (2402.01306).

    Its sums are those of a batch of mismatched completions, made by `mismatched_rows` over the whole step.
    """

    name = "mismatched"
    needs = frozenset({"mismatched_logp"})
    in_words = "completions are compared with how far the policy has strayed, estimated from mismatched pairs"
    in_symbols = "max(0, mean over mismatched pairs)"

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        good, num_good, bad, num_bad = sums.tolist()
        return max(0.0, (good + bad) / max(num_good + num_bad, 1)), memory


@dataclass(frozen=True)
class AnchorRunningMean(Anchor):
    """delta = (mean of s over good completions + mean over bad ones) / 2, averaged over the steps, this one included.

    Jung 2024 (2404.04656). decay 1 weighs all steps alike; below 1 old ones fade.
    """

    decay: float = number(1.0, least=0, most=1)
    name = "running_mean"
    in_words = "completions are compared with the running mean of what completions are worth"
    in_symbols = "running mean of s"

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        good, num_good, bad, num_bad = sums.tolist()
        means = [total / count for total, count in ((good, num_good), (bad, num_bad)) if count]
        total, mass = memory.get("anchor_sum", 0.0), memory.get("anchor_mass", 0.0)
        if means:
            total, mass = self.decay * total + sum(means) / len(means), self.decay * mass + 1
        return total / mass if mass else 0.0, {**memory, "anchor_sum": total, "anchor_mass": mass}
