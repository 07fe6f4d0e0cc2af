"""Who counts how much? Shares: `(batch, totals) -> [N, T]`.

n_i trained tokens of sequence i; N sequences with n_i > 0 and M = SUM n_i, both of the WHOLE optimizer step: a share
never depends on how the batch is cut. A sequence without a trained token has no share and is not in N. Where episodes
have branches the loss multiplies the shares by `row_weight`, and N and M count rows by it: an episode counts once.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from whet.objective.advantage import Memory
from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import STD_FLOOR, episode_weight, group_index, sums_by
from whet.types import TokenBatch, Totals


class Aggregate(Component):
    """How much each token counts: share_it, the factor of its term, from the totals of the whole step."""

    counts_tokens: ClassVar[bool] = False  # True: a long completion counts more than a short one

    @abstractmethod
    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor: ...

    def importance(self, batch: TokenBatch, memory: Memory) -> Tensor | None:
        """[N, 2], a factor of each completion's share and its grad, from the whole batch; None without one."""
        return None

    def learned(self, memory: Memory, grad: float) -> Memory:
        """The memory after a step whose objective rises by `grad` with the learned number."""
        return memory

    def symbols(self) -> str:
        """The sums in front of each token's term, such as `1/M SUM_i SUM_t`."""
        return super().symbols()


def step_totals(batch: TokenBatch, max_new_tokens: int) -> Totals:
    """The denominators of one optimizer step, from the whole of its batch on this rank; add them over ranks."""
    lengths = batch.lengths
    seen = 0 if batch.observed is None else (batch.observed & ~batch.reward.isnan()[:, None]).sum(-1)
    shown = 0 if batch.demonstrated is None else batch.demonstrated.sum(-1)
    counts = (lengths, lengths > 0, 0 if batch.correct is None else lengths * batch.correct, seen, shown)
    tokens, sequences, correct, observed, demonstrated = (_weighed(count, batch.row_weight) for count in counts)
    return Totals(tokens, sequences, max_new_tokens, correct, observed, demonstrated)


def _weighed(counts: Tensor | int, weight: Tensor | None) -> float:
    if isinstance(counts, int):
        return counts
    return int(counts.sum()) if weight is None else float((counts * weight).sum())


def _share(action: Tensor, per_token: Tensor | float) -> Tensor:
    # double: shares are tiny, and their sum over the batch is asserted to be what the method says
    if isinstance(per_token, float):  # made into a tensor, a number's copy would wait for the device
        return action.double() * per_token
    return torch.where(action, per_token.double(), 0.0)


class TokenMean(Aggregate):
    """share = 1 / M."""

    name = "token_mean"
    counts_tokens = True
    in_words = "every token of the step counts the same"
    in_symbols = "1/M SUM_i SUM_t"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        return _share(batch.action, 1.0 / max(totals.tokens, 1))


class SequenceMean(Aggregate):
    """share = 1 / (N n_i)."""

    name = "sequence_mean"
    in_words = "every completion counts the same, whatever its length"
    in_symbols = "1/N SUM_i 1/n_i SUM_t"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        lengths = batch.action.sum(-1, keepdim=True).clamp(min=1).double()
        return _share(batch.action, 1.0 / (max(totals.sequences, 1) * lengths))


class TurnMean(Aggregate):
    """share = 1 / (N T_i n_ij), T_i turns of the trajectory, n_ij trained tokens of turn j.

    Every trajectory counts the same, and every turn in it. In a single completion the turns are its sentences.
    """

    name = "turn_mean"
    needs = frozenset({"segment"})
    in_words = "every trajectory counts the same, and in it every turn, whatever its length"
    in_symbols = "1/N SUM_i 1/T_i SUM_j 1/n_ij SUM_t"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        inside = torch.where(batch.action, given(batch.segment, "turn_mean needs segment"), 0)
        # at most as many turns as columns: asking for the last one's number would wait for a device
        counts = torch.zeros(inside.shape, dtype=torch.float64, device=inside.device)
        counts = counts.scatter_add(1, inside, batch.action.double())
        turns = (counts > 0).sum(-1, keepdim=True).clamp(min=1)
        lengths = counts.gather(1, inside).clamp(min=1)
        return _share(batch.action, 1.0 / (max(totals.sequences, 1) * turns * lengths))


class FixedLength(Aggregate):
    """share = 1 / (N L), L = the generation budget. Liu 2025 (2503.20783), section 3.2.

    L is `max_new_tokens`, never the padded width, so a learning rate tuned for one budget does not carry to another.
    """

    name = "fixed_length"
    counts_tokens = True
    in_words = "every token counts the same, divided by completions times the generation budget L"
    in_symbols = "1/(N L) SUM_i SUM_t"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        return _share(batch.action, 1.0 / (max(totals.sequences, 1) * totals.max_new_tokens))


class SequenceSum(Aggregate):
    """share = 1 / N: the unbiased gradient of the expected reward of a whole completion."""

    name = "sequence_sum"
    in_words = "every completion counts with the sum of its tokens"
    in_symbols = "1/N SUM_i SUM_t"

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        return _share(batch.action, 1.0 / max(totals.sequences, 1))


@dataclass(frozen=True)
class InverseLength(Aggregate):
    """share = f_i / (N L), f_i = n_i^-power / mean_j n_j^-power over the collected batch, L the generation budget.
    He 2025 (2509.07558).

    Unbiased up to a constant whatever the power; of the least variance at 1 if the variance of a completion's gradient
    grows with its length. Below 1 long completions count for more.
    """

    power: float = number(1.0, above=0, most=1, instead="objective.aggregate=fixed_length")
    name = "inverse_length"
    in_words = "every completion counts by its length to the power of -{0.power:g}, tokens within it alike"
    in_symbols = "1/(N L) SUM_i n_i^-{0.power:g}/mean(n^-{0.power:g}) SUM_t"

    def importance(self, batch: TokenBatch, memory: Memory) -> Tensor:
        length = batch.lengths.double()
        counted = (length > 0) & ~batch.reward.isnan()
        weight = episode_weight(batch, counted)
        token_weight = counted.double() if weight is None else weight
        inverse = length.clamp(min=1) ** -self.power
        mean = (token_weight * inverse).sum() / token_weight.sum().clamp(min=1)
        factor = torch.where(counted, inverse / torch.where(mean > 0, mean, 1.0), 1.0)
        return torch.stack([factor, torch.zeros_like(factor)], dim=1)

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        if batch.importance is None:
            raise ValueError("shares by inverse length need the whole step: call Objective.advantage on it first")
        return FixedLength()(batch, totals) * batch.importance[:, :1]


@dataclass(frozen=True)
class LearnedLength(Aggregate):
    """share = f_i / M, f_i = G softmax_g(h^lambda)_i, h_i = 1 + spread * z_i, z the completion's standardised length.

    Wang 2025 (2510.06870): lambda is learned by gradient, from the value of the surrogate: lambda 0 is token_mean,
    below 0 short completions count more. h is held above 0.01. The constants were read in a third-party implementation.
    """

    spread: float = number(1 / 9, above=0)
    start: float = 0.0
    rate: float = number(0.1, least=0)
    name = "learned_length"
    counts_tokens = True
    in_words = "every token counts the same, times a factor of its completion's length that is learned"
    in_symbols = "1/M SUM_i f_i(lambda) SUM_t"

    def importance(self, batch: TokenBatch, memory: Memory) -> Tensor:
        power = memory.get("length_power", self.start)
        index, count = group_index(batch.group)
        length = batch.lengths.double()
        counted = (length > 0) & ~batch.reward.isnan()
        weight = episode_weight(batch, counted)
        token_weight = counted.double() if weight is None else weight
        size = sums_by(index, count, token_weight).clamp(min=1)
        mean = sums_by(index, count, length * token_weight) / size
        deviation = torch.where(counted, length - mean[index], 0.0)
        std = (sums_by(index, count, token_weight * deviation**2) / (size - 1).clamp(min=1)).sqrt()
        height = (1 + self.spread * deviation / (std[index] + STD_FLOOR)).clamp(min=0.01)
        logit = height**power
        share = torch.where(counted, logit.exp(), 0.0)
        share = share / sums_by(index, count, token_weight * share).clamp(min=1e-300)[index]
        rise = logit * height.log()
        mean_rise = sums_by(index, count, token_weight * share * rise)[index]
        factor = size[index] * share
        return torch.stack([torch.where(counted, factor, 1.0), factor * (rise - mean_rise)], dim=1)

    def __call__(self, batch: TokenBatch, totals: Totals) -> Tensor:
        if batch.importance is None:
            raise ValueError("the learned share needs whole groups: call Objective.advantage on the whole step first")
        return _share(batch.action, 1.0 / max(totals.tokens, 1)) * batch.importance[:, :1]

    def learned(self, memory: Memory, grad: float) -> Memory:
        return {**memory, "length_power": memory.get("length_power", self.start) + self.rate * grad}
