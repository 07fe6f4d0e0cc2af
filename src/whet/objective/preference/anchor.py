"""What is a single completion compared with? Anchors: a number of the whole step, in units of the score, without
gradient.

Before the losses of a step, `sums` of all its passes and ranks are added; `value` makes the anchor of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from whet.objective.advantage import Memory
from whet.objective.component import Component, ComponentProtocol, number
from whet.objective.lazy_torch import torch
from whet.objective.preference.batch import PairBatch

if TYPE_CHECKING:
    from torch import Tensor


class Anchor(ComponentProtocol, Protocol):
    """What the score of a single completion is compared with: one number per step, from sums over all of its rows."""

    def sums(self, score: Tensor, batch: PairBatch) -> Tensor:
        """float64 [4]: sum and count over the good completions, sum and count over the others."""
        ...

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        """What scores are compared with, and the memory after the step; `sums` cover all passes and ranks."""
        ...

    def symbols(self) -> str:
        """The number as an expression; empty for 0."""
        ...


def _sums(score: Tensor, batch: PairBatch) -> Tensor:
    counted = batch.counted[:, None]
    sums = []
    for chosen in (counted & batch.good, counted & ~batch.good):
        sums += [torch.where(chosen, score.detach().double(), 0.0).sum(), chosen.sum().double()]
    return torch.stack(sums)


class Zero(Component):
    """s as it is."""

    name: ClassVar[str] = "zero"
    in_symbols: ClassVar[str] = ""

    def sums(self, score: Tensor, batch: PairBatch) -> Tensor:
        return _sums(score, batch)

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        return 0.0, memory


class Mismatched(Component):
    """z = max(0, mean of d over prompts with the completion to another prompt). Ethayarajh 2024 (2402.01306).

    Its sums are those of a batch of mismatched completions, made by `mismatched_rows` over the whole step.
    """

    name: ClassVar[str] = "mismatched"
    needs: ClassVar[frozenset[str]] = frozenset({"mismatched_logp"})
    in_words: ClassVar[str] = (
        "completions are compared with how far the policy has strayed, estimated from mismatched pairs"
    )
    in_symbols: ClassVar[str] = "max(0, mean over mismatched pairs)"

    def sums(self, score: Tensor, batch: PairBatch) -> Tensor:
        return _sums(score, batch)

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        good, num_good, bad, num_bad = sums.tolist()
        return max(0.0, (good + bad) / max(num_good + num_bad, 1)), memory


@dataclass(frozen=True)
class AnchorRunningMean(Component):
    """delta = (mean of s over good completions + mean over bad ones) / 2, averaged over the steps, this one included.

    Jung 2024 (2404.04656). decay 1 weighs all steps alike; below 1 old ones fade.
    """

    decay: float = number(1.0, least=0, most=1)
    name: ClassVar[str] = "running_mean"
    in_words: ClassVar[str] = "completions are compared with the running mean of what completions are worth"
    in_symbols: ClassVar[str] = "running mean of s"

    def sums(self, score: Tensor, batch: PairBatch) -> Tensor:
        return _sums(score, batch)

    def value(self, sums: Tensor, memory: Memory) -> tuple[float, Memory]:
        good, num_good, bad, num_bad = sums.tolist()
        means = [total / count for total, count in ((good, num_good), (bad, num_bad)) if count]
        total, mass = memory.get("anchor_sum", 0.0), memory.get("anchor_mass", 0.0)
        if means:
            total, mass = self.decay * total + sum(means) / len(means), self.decay * mass + 1
        return total / mass if mass else 0.0, {**memory, "anchor_sum": total, "anchor_mass": mass}
