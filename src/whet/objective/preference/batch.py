"""What a preference loss sees: completions side by side, their lengths and what the reference thinks of them.

B rows; S completions per row: 2 for a pair (chosen, rejected), 1 for a completion with a label; T tokens padded. A
log-probability of completions is [B, S], summed over the completion's tokens with its end token and without its
prompt, or [B, S, T],
one a token, which is then summed here over `action`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from whet.objective.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class PairBatch:
    """Rows of completions. A row with an empty completion counts nowhere: not in the loss, not in a total."""

    lengths: Tensor  # int64 [B, S], trained tokens of each completion
    ref_logp: Tensor | None = None  # [B, S] or [B, S, T], of the reference
    label: Tensor | None = None  # [B, S], +1 desirable, -1 undesirable; None: a pair, chosen first
    action: Tensor | None = None  # bool [B, S, T], the trained tokens; None where log-probabilities come summed
    weight: Tensor | None = None  # [B], what a row counts; None: 1
    margin: Tensor | None = None  # [B], how far apart the rewards of the two completions should be; None: 0
    preference: Tensor | None = None  # [B], probability that the chosen completion is the better one; None: 1
    group: Tensor | None = None  # int64 [B], rows of one prompt share a number

    @property
    def num_rows(self) -> int:
        """The number of pairs, or of single completions where they are labelled."""
        return self.lengths.shape[0]

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of chosen and rejected; False where each completion has a label."""
        return self.label is None

    @property
    def counted(self) -> Tensor:
        """bool [B]: every completion of the row has a token."""
        return (self.lengths > 0).all(-1)

    @property
    def good(self) -> Tensor:
        """bool [B, S]: the completion to move towards."""
        if self.label is not None:
            return self.label > 0
        # made where it is needed: a copy from the host would wait for the device
        sides = torch.arange(2, device=self.lengths.device) == 0
        return sides.expand(self.num_rows, 2)

    def select(self, rows: Tensor | Sequence[int]) -> PairBatch:
        """The batch of these rows, in this order."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.lengths.device)
        tensors = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        changed: dict[str, Any] = {name: value[index] for name, value in tensors.items()}
        return replace(self, **changed)


@dataclass(frozen=True)
class PairExtras:
    """What some methods need of a pass beyond log-probabilities."""

    log_square: Tensor | None = None  # [B, S] or [B, S, T], log SUM_v p(v)^2 over the vocabulary, summed or a token
    rival_logp: Tensor | None = None  # [B, S, T], of one other token drawn from the likeliest; carries gradient


@dataclass(frozen=True)
class PairTotals:
    """Counts of the WHOLE optimizer step, over all passes and ranks, and what its completions are compared with."""

    pairs: int  # rows of two completions
    desirable: int  # completions to move towards, chosen ones included
    undesirable: int
    desirable_tokens: int
    undesirable_tokens: int
    anchor: float = 0.0  # in units of the score; see `PairObjective.anchored`


def pair_totals(batch: PairBatch) -> PairTotals:
    """The counts of a batch."""
    counted, good = batch.counted[:, None], batch.good
    counts = torch.stack(
        [
            (counted & good).sum(),
            (counted & ~good).sum(),
            torch.where(counted & good, batch.lengths, 0).sum(),
            torch.where(counted & ~good, batch.lengths, 0).sum(),
        ]
    ).tolist()
    return PairTotals(int(batch.counted.sum()) if batch.paired else 0, *(int(number) for number in counts))


def summed(batch: PairBatch, values: Tensor) -> Tensor:
    """[B, S]: values of tokens summed over the trained ones; what is summed already is returned as it is."""
    if values.dim() == 2:
        return values
    if batch.action is None:
        raise ValueError("values of tokens need the batch's action to be summed, and it has none")
    return torch.where(batch.action, values, 0.0).sum(-1)


@dataclass(frozen=True)
class PairCompletions:
    """The completions of a pass as scores see them: floats of at least 32 bits, harmless where a row does not count."""

    batch: PairBatch
    logp: Tensor  # [B, S], carries gradient
    lengths: Tensor  # [B, S], at least 1, of the dtype of logp
    token_logp: Tensor | None  # [B, S, T], where given
    extras: PairExtras

    @property
    def ref_logp(self) -> Tensor:
        """The reference's summed log-probabilities [B, S]."""
        if self.batch.ref_logp is None:
            raise ValueError("the method compares with a reference and the batch has no ref_logp")
        return self._safe(summed(self.batch, self.batch.ref_logp.to(self.logp.dtype)))

    @property
    def log_ratio(self) -> Tensor:
        """d = log pi / pi_ref of the whole completion: [B, S]."""
        return self.logp - self.ref_logp

    @property
    def mean_logp(self) -> Tensor:
        """q = log pi a token: [B, S]."""
        return self.logp / self.lengths

    def weighed(self, values: Tensor, weight: Tensor) -> Tensor:
        """[B, S]: SUM over the trained tokens of weight * values, both [B, S, T]."""
        return self._safe(summed(self.batch, values.to(self.logp.dtype) * weight))

    def _safe(self, values: Tensor) -> Tensor:
        # -1, not 0: a completion of probability 1 has infinite odds, and an infinity times a zero share is NaN
        return torch.where(self.batch.counted[:, None], values, -1.0)


def completions_of(batch: PairBatch, logp: Tensor, extras: PairExtras | None = None) -> PairCompletions:
    """`logp` [B, S] or [B, S, T], with the rows that count nowhere put out of harm's way."""
    wanted = tuple(batch.lengths.shape)
    if tuple(logp.shape[:2]) != wanted:
        raise ValueError(f"logp is {tuple(logp.shape)}; the batch has {wanted[0]} rows of {wanted[1]} completions")
    exact = logp if logp.dtype == torch.float64 else logp.float()
    completion = torch.where(batch.counted[:, None], summed(batch, exact), -1.0)
    tokens = exact if logp.dim() == 3 else None
    return PairCompletions(
        batch, completion, batch.lengths.clamp(min=1).to(exact.dtype), tokens, extras or PairExtras()
    )


def mismatched_rows(group: Tensor) -> Tensor:
    """int64 [N]: for each prompt the row whose completion it is paired with instead: the next of another prompt.

    Over the whole step, ranks included, and never a completion to the same prompt; -1 where all rows are of one prompt.
    """
    numbers = group.tolist()
    count, partner = len(numbers), [-1] * len(numbers)
    following = -1
    for at in range(2 * count - 1, -1, -1):
        here, after = at % count, (at + 1) % count
        if numbers[after] != numbers[here]:
            following = after
        if at < count:
            partner[here] = following
    return torch.tensor(partner, dtype=torch.long, device=group.device)
