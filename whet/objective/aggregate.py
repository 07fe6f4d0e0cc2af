"""Who counts how much? Shares: `(action, totals) -> [N, T]`.

n_i trained tokens of sequence i; N sequences with n_i > 0 and M = SUM n_i, both of the WHOLE optimizer step: a share
never depends on how the batch is cut. A sequence without a trained token has no share and is not in N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from whet.types import TokenBatch, Totals


class Aggregate(Protocol):
    name: ClassVar[str]

    def __call__(self, action: Tensor, totals: Totals) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


def step_totals(batch: TokenBatch, max_new_tokens: int) -> Totals:
    """The denominators of one optimizer step, from the whole of its batch on this rank; add them over ranks."""
    lengths = batch.lengths
    return Totals(int(lengths.sum()), int((lengths > 0).sum()), max_new_tokens)


def _share(action: Tensor, each: Tensor | float) -> Tensor:
    # double: shares are tiny, and their sum over the batch is asserted to be what the row says
    return torch.where(action, torch.as_tensor(each, dtype=torch.float64, device=action.device), 0.0)


@dataclass(frozen=True)
class TokenMean:
    """share = 1 / M."""

    name: ClassVar[str] = "token_mean"

    def __call__(self, action: Tensor, totals: Totals) -> Tensor:
        return _share(action, 1.0 / max(totals.tokens, 1))

    def words(self) -> str:
        return "every token of the step counts the same"

    def symbols(self) -> str:
        return "1/M SUM_i SUM_t"


@dataclass(frozen=True)
class SequenceMean:
    """share = 1 / (N n_i)."""

    name: ClassVar[str] = "sequence_mean"

    def __call__(self, action: Tensor, totals: Totals) -> Tensor:
        lengths = action.sum(-1, keepdim=True).clamp(min=1).double()
        return _share(action, 1.0 / (max(totals.sequences, 1) * lengths))

    def words(self) -> str:
        return "every reply counts the same, whatever its length"

    def symbols(self) -> str:
        return "1/N SUM_i 1/n_i SUM_t"


@dataclass(frozen=True)
class FixedLength:
    """share = 1 / (N L), L = the generation budget. Liu 2025 (2503.20783), section 3.2.

    L is `max_new_tokens`, never the padded width, so a learning rate tuned for one budget does not carry to another.
    """

    name: ClassVar[str] = "fixed_length"

    def __call__(self, action: Tensor, totals: Totals) -> Tensor:
        return _share(action, 1.0 / (max(totals.sequences, 1) * totals.max_new_tokens))

    def words(self) -> str:
        return "every token counts the same, divided by replies times the generation budget L"

    def symbols(self) -> str:
        return "1/(N L) SUM_i SUM_t"


@dataclass(frozen=True)
class SequenceSum:
    """share = 1 / N: the unbiased gradient of the expected reward of a whole reply."""

    name: ClassVar[str] = "sequence_sum"

    def __call__(self, action: Tensor, totals: Totals) -> Tensor:
        return _share(action, 1.0 / max(totals.sequences, 1))

    def words(self) -> str:
        return "every reply counts with the sum of its tokens"

    def symbols(self) -> str:
        return "1/N SUM_i SUM_t"
