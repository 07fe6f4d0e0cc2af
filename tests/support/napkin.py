"""Batches small enough for a napkin."""

import pytest
import torch

from whet.types import TokenBatch, Totals

ACTION = torch.tensor([[False, True, True], [False, True, False]])
TOTALS = Totals(tokens=3, sequences=2, max_new_tokens=4)


def near(table):
    return [pytest.approx(line, rel=1e-6, abs=1e-12) for line in table]


def double(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def batch_of(*rewards, groups=None, action=None, **fields):
    """One row a reward; three trained tokens each where `action` is not given."""
    count = len(rewards)
    action = torch.ones(count, 3, dtype=torch.bool) if action is None else action
    group = torch.zeros(count, dtype=torch.long) if groups is None else torch.tensor(groups)
    tokens = torch.zeros_like(action).long()
    return TokenBatch(tokens, action, group, torch.tensor(rewards, dtype=torch.float64), **fields)
