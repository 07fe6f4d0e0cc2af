"""Samples and demonstrations as padded tensors, and the cutting of a batch into passes.

How a batch is cut is a question of memory only: the objective's shares come from the whole step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor

from whet.types import Encoded, Group, Sample, StopReason, TokenBatch


def token_batch(
    groups: Sequence[Group], part_weights: Mapping[str, float] | None = None, max_new_tokens: int | None = None
) -> TokenBatch:
    """All samples of the groups as one right-padded batch; an unscored sample has reward NaN."""
    samples = [sample for group in groups for sample in group.samples]
    width = max(len(sample.tokens) for sample in samples)

    def padded(values: Sequence[Tensor]) -> Tensor:
        rows = values[0].new_zeros(len(values), width)
        for row, value in zip(rows, values, strict=True):
            row[: len(value)] = value
        return rows

    rewards = [_number(sample.reward) for sample in samples]
    names = (
        list(part_weights) if part_weights is not None else sorted({name for each in samples for name in each.parts})
    )
    weights = [1.0 if part_weights is None else part_weights[name] for name in names]
    wide = torch.float64
    return TokenBatch(
        tokens=padded([sample.tokens for sample in samples]),
        action=padded([sample.action for sample in samples]),
        group=torch.tensor([number for number, group in enumerate(groups) for _ in group.samples]),
        reward=torch.tensor(rewards, dtype=wide),
        behavior_logp=padded([sample.behavior_logp for sample in samples]),
        support=_supports(samples, width),
        parts=torch.tensor([[_number(each.parts.get(name)) for name in names] for each in samples], dtype=wide)
        if names
        else None,
        part_weight=torch.tensor(weights, dtype=wide).expand(len(samples), -1) if names else None,
        finished=torch.tensor([sample.stop is not StopReason.LENGTH for sample in samples]),
        greedy_reward=_greedy(groups),
        drawn=_drawn(groups),
        prompt=torch.tensor(
            [number for group in groups for number in [_number_of(group.prompt.id)] * len(group.samples)]
        ),
        step_reward=_steps(samples, width),
        max_new_tokens=max_new_tokens,
    )


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _number_of(name: str) -> int:
    """A number of its own for each name, the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def _greedy(groups: Sequence[Group]) -> Tensor | None:
    if any(group.greedy is None for group in groups):
        return None
    each = [_number(group.greedy.reward) for group in groups if group.greedy is not None for _ in group.samples]
    return torch.tensor(each, dtype=torch.float64)


def _drawn(groups: Sequence[Group]) -> Tensor | None:
    """count, mean and Bessel's std of every reward drawn for the prompt."""
    if not all(group.drawn for group in groups):
        return None
    rows = [
        (len(group.drawn), fmean(group.drawn), stdev(group.drawn) if len(group.drawn) > 1 else 0.0)
        for group in groups
        for _ in group.samples
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _steps(samples: Sequence[Sample], width: int) -> Tensor | None:
    if not any(sample.steps for sample in samples):
        return None
    rows = torch.full((len(samples), width), float("nan"), dtype=torch.float64)
    for row, sample in zip(rows, samples, strict=True):
        for position, score in sample.steps:
            row[position] = score
    return rows


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


def passes(batch: TokenBatch, micro_batch_tokens: int, shared: bool = False) -> list[list[int]]:
    """The rows of each pass: rows of similar length together, at most `micro_batch_tokens` computed tokens (or one row).

    Padding is computed, unless `shared`: then rows that start with the same prompt compute it once a pass, and stay
    together where they fit.
    """
    if shared:
        return _shared_passes(batch, micro_batch_tokens)
    widths = _widths(batch.action)
    order = sorted(range(len(widths)), key=lambda row: widths[row])
    found: list[list[int]] = []
    for row in order:
        if found and widths[row] * (len(found[-1]) + 1) <= micro_batch_tokens:
            found[-1].append(row)
        else:
            found.append([row])
    return found


def _shared_passes(batch: TokenBatch, micro_batch_tokens: int) -> list[list[int]]:
    widths, prompts = _widths(batch.action), batch.action.int().argmax(-1).tolist()
    families: dict[bytes, list[int]] = {}
    rows = batch.tokens.cpu().numpy()
    for row in sorted(range(len(widths)), key=lambda row: widths[row]):
        families.setdefault(rows[row, : prompts[row]].tobytes(), []).append(row)
    found: list[list[int]] = []
    filled = 0
    for family in sorted(families.values(), key=lambda family: widths[family[-1]]):
        prompt = prompts[family[0]]
        # nothing is predicted from a row's last action
        sizes = [max(widths[row] - 1 - prompt, 0) for row in family]
        # a family that fits into a pass of its own is not torn apart to fill another one
        apart = not found or filled + prompt + sum(sizes) > micro_batch_tokens
        for row, size in zip(family, sizes, strict=True):
            if apart or filled + size > micro_batch_tokens:
                found.append([])
                filled = prompt
                apart = False
            elif row == family[0]:
                filled += prompt
            found[-1].append(row)
            filled += size
    return found


def trimmed(batch: TokenBatch) -> TokenBatch:
    """The batch without the columns behind the last action of all rows: nothing there can change a gradient."""
    return batch.narrowed(max([*_widths(batch.action), 1]))


def _widths(action: Tensor) -> list[int]:
    column = torch.arange(1, action.shape[1] + 1, device=action.device)
    return (action * column).amax(-1).tolist()


@dataclass(frozen=True)
class Rows:
    """Demonstrations as tensors, one a row, right-padded."""

    tokens: Tensor  # int64 [N, T]
    action: Tensor  # bool [N, T]


def padded_rows(rows: Sequence[Encoded]) -> Rows:
    # numpy reads tuples ten times as fast as torch, and a device waits for this
    width = max(len(row.tokens) for row in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    action = np.zeros((len(rows), width), np.bool_)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
        action[number, : len(row.tokens)] = row.action
    return Rows(torch.from_numpy(tokens), torch.from_numpy(action))


def row_passes(rows: Sequence[Encoded], micro_batch_tokens: int, packed: bool) -> list[list[Encoded]]:
    """Rows cut into passes of at most `micro_batch_tokens` tokens (or one row), padding counted where not packed."""
    found: list[list[Encoded]] = []
    filled = 0
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        size = len(row.tokens)
        after = filled + size if packed else (len(found[-1]) + 1) * size if found else size
        if found and after <= micro_batch_tokens:
            found[-1].append(row)
            filled = after
        else:
            found.append([row])
            filled = size
    return found
