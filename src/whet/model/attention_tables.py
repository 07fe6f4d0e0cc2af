"""Which rows of a shared-prefix batch the blocks of an attention kernel work on: small tables, made once per batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from whet.model.shared_prefix import Segments, to_device

PROGRAMS = 512  # that the keys of all prompts are shared out among, where there are queries enough
LEAST_QUERIES = 256  # of a program that reads a prompt's keys


@dataclass(frozen=True)
class AttentionTables:
    """Which rows each block works on; int32. A row of zeros is a block without rows."""

    queries: Tensor  # [Q, 5]: first row, the segment's first row and end, the prompt's first row and length
    keys: Tensor  # [B, 6]: first row and end, the first query and the end, whether it is causal, 1 + slot or 0
    sums: Tensor  # [P, 4]: first row and end, first slot, slots
    num_slots: int


def attention_tables(
    segments: Segments, query_rows: int, key_rows: int, key_heads: int, device: torch.device
) -> AttentionTables:
    """Blocks of `query_rows` queries and of `key_rows` keys; a segment's first token begins a block."""
    owns, prompts, blocks = segments.own_bounds, segments.prompt_bounds, segments.completion_bounds
    spans = list(pairwise(owns))
    first = segments.first_completion
    # completions of a prompt lie together, in the order of the prompts
    prompt_of: dict[int, int] = {}
    number = 0
    for segment, (start, _) in enumerate(spans):
        if first <= start < first + blocks[-1]:
            while start - first >= blocks[number + 1]:
                number += 1
            prompt_of[segment] = number
    queries = []
    for segment, (start, end) in enumerate(spans):
        prompt = prompt_of.get(segment)
        above = (0, 0) if prompt is None else (prompts[prompt], prompts[prompt + 1] - prompts[prompt])
        queries += [(row, start, end, *above) for row in range(start, end, query_rows)]
    queries.sort(key=lambda block: block[1] - block[0] - block[4])  # those with the most keys first
    answered = len(prompts) - 1
    shared = sum(-(-(prompts[prompt + 1] - prompts[prompt]) // key_rows) for prompt in range(answered))
    keys: list[tuple[int, ...]] = []
    sums = []
    slots = 0
    for segment, (start, end) in enumerate(spans):
        readers = (blocks[segment] + first, blocks[segment + 1] + first) if segment < answered else (0, 0)
        count = readers[1] - readers[0]
        pieces = min(-(-PROGRAMS // (shared * key_heads)), -(-count // LEAST_QUERIES)) if count else 0
        for row in range(start, end, key_rows):
            stop = min(row + key_rows, end)
            if not pieces:
                keys.append((row, stop, row, end, 1, 0))
                continue
            sums.append((row, stop, slots, 1 + pieces))
            keys.append((row, stop, row, end, 1, 1 + slots))
            bounds = np.linspace(readers[0], readers[1], pieces + 1).astype(int).tolist()
            keys += [(row, stop, *reader_range, 0, slots + n) for n, reader_range in enumerate(pairwise(bounds), 2)]
            slots += 1 + pieces
    keys.sort(key=lambda block: block[2] - block[3])

    def table(rows: Sequence[tuple[int, ...]], width: int) -> Tensor:
        return to_device(torch.from_numpy(np.array(rows, np.int32).reshape(-1, width)), device)

    return AttentionTables(table(queries, 5), table(keys, 6), table(sums, 4), slots)
