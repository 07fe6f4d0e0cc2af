"""Random rows that branch: of any depth, with empty branches, rows that end where others go on, and equal rows."""

from __future__ import annotations

import random

import torch
from torch import Tensor


def random_tree(
    seed: int, *, depth: int = 8, run: tuple[int, int] = (0, 4), most: int = 20, vocabulary: int = 50
) -> tuple[Tensor, Tensor]:
    """tokens and action [N, T], padded with 0; runs between two branchings have `run` tokens, both included.

    Equal tokens of two rows need not both be actions: a mask belongs to its row.
    """
    draw = random.Random(seed)
    rows: list[tuple[list[int], list[bool]]] = []

    def grow(tokens: list[int], flags: list[bool], left: int) -> None:
        count = draw.randint(run[0] if tokens else max(run[0], 1), run[1])
        tokens = tokens + [draw.randrange(vocabulary) for _ in range(count)]
        flags = flags + [draw.random() < 0.6 for _ in range(count)]
        if left == 0 or draw.random() < 0.2:  # some rows end where others go on
            rows.append((tokens, flags))
        for _ in range(draw.randint(1, 2) if left else 0):
            grow(tokens, flags, left - 1)

    grow([], [], depth)
    grow([], [], depth // 2)
    draw.shuffle(rows)
    rows = rows[:most] + rows[:1]
    width = max(len(tokens) for tokens, _ in rows)
    tokens, action = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.bool)
    for row, (line, flags) in enumerate(rows):
        tokens[row, : len(line)] = torch.tensor(line)
        action[row, 1 : len(line)] = torch.tensor(
            [flag and draw.random() < 0.9 for flag in flags[1:]], dtype=torch.bool
        )
    return tokens, action
