"""Samples and demonstrations as padded or packed tensors, and the cutting of a batch into passes.

How a batch is cut is a question of memory only: the objective's shares come from the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whet.types import Encoded, Group, Sample, TokenBatch


def token_batch(groups: Sequence[Group]) -> TokenBatch:
    """All samples of the groups as one right-padded batch; an unscored sample has reward NaN."""
    samples = [sample for group in groups for sample in group.samples]
    width = max(len(sample.tokens) for sample in samples)

    def padded(values: Sequence[Tensor]) -> Tensor:
        rows = values[0].new_zeros(len(values), width)
        for row, value in zip(rows, values, strict=True):
            row[: len(value)] = value
        return rows

    rewards = [float("nan") if sample.reward is None else sample.reward for sample in samples]
    return TokenBatch(
        tokens=padded([sample.tokens for sample in samples]),
        action=padded([sample.action for sample in samples]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group.samples]),
        reward=torch.tensor(rewards, dtype=torch.float64),
        behavior_logp=padded([sample.behavior_logp for sample in samples]),
        support=_supports(samples, width),
    )


def _supports(samples: Sequence[Sample], width: int) -> Tensor | None:
    if all(sample.support is None for sample in samples):
        return None
    largest = max(int(sample.support.counts.max()) for sample in samples if sample.support is not None)
    rows = torch.full((len(samples), width, largest), -1, dtype=torch.int32)
    for row, sample in enumerate(samples):
        if sample.support is None:
            raise ValueError("some samples of the batch were drawn with truncation and some without")
        positions = sample.action.nonzero()[:, 0].tolist()
        pieces = sample.support.ids.split(sample.support.counts.tolist())
        for position, ids in zip(positions, pieces, strict=True):
            rows[row, position, : len(ids)] = ids
    return rows


def passes(batch: TokenBatch, tokens_per_pass: int) -> list[list[int]]:
    """The rows of each pass: rows of similar length together, at most `tokens_per_pass` padded tokens (or one row)."""
    widths = _widths(batch.action)
    order = sorted(range(len(widths)), key=lambda row: widths[row])
    found: list[list[int]] = []
    for row in order:
        if found and widths[row] * (len(found[-1]) + 1) <= tokens_per_pass:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def trimmed(batch: TokenBatch) -> TokenBatch:
    """The batch without the columns behind the last action of all rows: nothing there can change a gradient."""
    width = max([*_widths(batch.action), 1])

    def cut(value: Tensor | None) -> Tensor | None:
        return None if value is None else value[:, :width]

    return replace(
        batch,
        tokens=batch.tokens[:, :width],
        action=batch.action[:, :width],
        behavior_logp=cut(batch.behavior_logp),
        old_logp=cut(batch.old_logp),
        ref_logp=cut(batch.ref_logp),
        advantage=cut(batch.advantage),
        support=cut(batch.support),
    )


def _widths(action: Tensor) -> list[int]:
    column = torch.arange(1, action.shape[1] + 1, device=action.device)
    return (action * column).amax(-1).tolist()


@dataclass(frozen=True)
class Rows:
    """Demonstrations as tensors: one a row, right-padded, or several behind one another in a single row."""

    tokens: Tensor  # int64 [N, T]
    action: Tensor  # bool [N, T]
    position_ids: Tensor | None  # int64 [N, T], restarting with each demonstration where packed; None where padded


def padded_rows(rows: Sequence[Encoded]) -> Rows:
    width = max(len(row.tokens) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.long)
    action = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = torch.tensor(row.tokens)
        action[number, : len(row.tokens)] = torch.tensor(row.action)
    return Rows(tokens, action, None)


def packed_rows(rows: Sequence[Encoded]) -> Rows:
    """All rows behind one another; restarting positions keep them from seeing each other."""
    tokens = torch.tensor([token for row in rows for token in row.tokens])[None]
    action = torch.tensor([flag for row in rows for flag in row.action])[None]
    positions = torch.cat([torch.arange(len(row.tokens)) for row in rows])[None]
    return Rows(tokens, action, positions)


def row_passes(rows: Sequence[Encoded], tokens_per_pass: int, packed: bool) -> list[list[Encoded]]:
    """Rows cut into passes of at most `tokens_per_pass` tokens (or one row), padding counted where not packed."""
    found: list[list[Encoded]] = []
    filled = 0
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        size = len(row.tokens)
        after = filled + size if packed else (len(found[-1]) + 1) * size if found else size
        if found and after <= tokens_per_pass:
            found[-1].append(row)
            filled = after
        else:
            found.append([row])
            filled = size
    return found
