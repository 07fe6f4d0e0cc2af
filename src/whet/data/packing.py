"""Samples and demonstrations as padded tensors, and the cutting of a batch into micro-batches.

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

from whet.types import Encoded, Group, Sample, TokenBatch


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
        finished=torch.tensor([not sample.stop.is_limit for sample in samples]),
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


@dataclass(frozen=True)
class BlockSize:
    """Rows that stay together in one micro-batch, and what they cost."""

    num_rows: int
    width: int  # tokens of the widest row
    computed: int  # tokens computed where a shared prompt is computed once and padding is left out


def micro_batches(blocks: Sequence[BlockSize], micro_batch_tokens: int, packed: bool) -> list[list[int]]:
    """The numbers of the blocks in each micro-batch: similar widths together, at most `micro_batch_tokens` tokens, or
    one block. Packed, a block costs what it computes; else every row costs as much as the widest.

    Everything that is cut by tokens is cut here.
    """
    batches: list[list[int]] = []
    rows = computed = 0
    for number in sorted(range(len(blocks)), key=lambda number: blocks[number].width):
        block = blocks[number]
        cost = computed + block.computed if packed else (rows + block.num_rows) * block.width
        if not batches or cost > micro_batch_tokens:
            batches.append([])
            rows = computed = 0
        batches[-1].append(number)
        rows, computed = rows + block.num_rows, computed + block.computed
    return batches


def token_micro_batches(batch: TokenBatch, micro_batch_tokens: int, shared: bool = False) -> list[list[int]]:
    """The rows of each micro-batch. Padding is computed, unless `shared`: then rows that start with the same prompt
    compute it once per micro-batch, and stay together where they fit."""
    widths = _widths(batch.action)
    if not shared:
        return micro_batches([BlockSize(1, width, width) for width in widths], micro_batch_tokens, packed=False)
    prompts = batch.action.int().argmax(-1).tolist()
    families: dict[bytes, list[int]] = {}
    tokens = batch.tokens.cpu().numpy()
    for row in sorted(range(len(widths)), key=lambda row: widths[row]):
        families.setdefault(tokens[row, : prompts[row]].tobytes(), []).append(row)
    blocks: list[list[int]] = []
    sizes: list[BlockSize] = []
    for family in families.values():
        prompt = prompts[family[0]]
        for row in family:
            size = max(widths[row] - 1 - prompt, 0)  # nothing is predicted from a row's last action
            if row == family[0] or sizes[-1].computed + size > micro_batch_tokens:
                blocks.append([])
                sizes.append(BlockSize(0, 0, prompt))
            blocks[-1].append(row)
            sizes[-1] = BlockSize(len(blocks[-1]), widths[row], sizes[-1].computed + size)
    cut = micro_batches(sizes, micro_batch_tokens, packed=True)
    return [[row for number in numbers for row in blocks[number]] for numbers in cut]


def trimmed(batch: TokenBatch) -> TokenBatch:
    """The batch without the columns behind the last action of all rows: nothing there can change a gradient."""
    return batch.narrowed(max([*_widths(batch.action), 1]))


def _widths(action: Tensor) -> list[int]:
    column = torch.arange(1, action.shape[1] + 1, device=action.device)
    return (action * column).amax(-1).tolist()


@dataclass(frozen=True)
class PaddedRows:
    """Rows of tokens as tensors, right-padded."""

    tokens: Tensor  # int64 [N, T]
    action: Tensor  # bool [N, T]


def padded_rows(rows: Sequence[Encoded]) -> PaddedRows:
    # numpy reads tuples ten times as fast as torch, and a device waits for this
    width = max(len(row.tokens) for row in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    action = np.zeros((len(rows), width), np.bool_)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
        action[number, : len(row.tokens)] = row.action
    return PaddedRows(torch.from_numpy(tokens), torch.from_numpy(action))


def row_micro_batches(rows: Sequence[Encoded], micro_batch_tokens: int, packed: bool) -> list[list[Encoded]]:
    """Rows cut into micro-batches of at most `micro_batch_tokens` tokens, padding counted where not packed."""
    sizes = [BlockSize(1, len(row.tokens), len(row.tokens)) for row in rows]
    return [[rows[number] for number in numbers] for numbers in micro_batches(sizes, micro_batch_tokens, packed)]
