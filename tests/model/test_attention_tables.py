"""The tables of the attention kernels: every pair of a query and a key that it may see, once."""

import pytest
import torch

from whet.model import attention_tables as module
from whet.model.attention_tables import attention_tables
from whet.model.shared_prefix import shared_prefix_batch

LAYOUTS = {
    "groups": [(20, [33, 5, 1]), (37, [50, 2]), (7, [18, 40])],
    "lone rows": [(5, [40]), (9, [1])],
    "both": [(16, [16, 17]), (4, [30]), (33, [1, 1]), (3, [2, 60, 9])],
}


def rows_of(groups):
    width = max(prompt + max(completions) for prompt, completions in groups)
    place, tokens, action = torch.arange(width), [], []
    for number, (prompt, completions) in enumerate(groups):
        for count, length in enumerate(completions):
            tokens.append(torch.where(place < prompt, number, 100 * count + place))
            action.append((place >= prompt) & (place < prompt + length))
    return torch.stack(tokens), torch.stack(action)


def seen_by(batch):
    """bool [S, S]: which key each query may see."""
    seen = torch.zeros(batch.size, batch.size, dtype=torch.bool)
    for node in batch.nodes:
        span = slice(node.start, node.start + node.length)
        seen[span, span] = torch.ones(node.length, node.length, dtype=torch.bool).tril()
        above = node.parent
        while above >= 0:
            seen[span, batch.nodes[above].start : batch.nodes[above].start + batch.nodes[above].length] = True
            above = batch.nodes[above].parent
    return seen


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("blocks", [(16, 16), (32, 8), (8, 32)])
def test_every_pair_once(layout, blocks, monkeypatch):
    monkeypatch.setattr(module, "LEAST_QUERIES", 8)
    batch = shared_prefix_batch(*rows_of(LAYOUTS[layout]))
    tables = attention_tables(batch.segments, *blocks, 2, torch.device("cpu"))
    place = torch.arange(batch.size)
    by_query = torch.zeros(batch.size, batch.size, dtype=torch.long)
    for row, start, end, above, length in tables.queries.tolist():
        rows = slice(row, min(row + blocks[0], end))
        by_query[rows, above : above + length] += 1
        by_query[rows, start:end] += (place[start:end] <= place[rows, None]).long()
    assert torch.equal(by_query, seen_by(batch).long())
    lengths = [above + row - start for row, start, _, _, above in tables.queries.tolist()]
    assert lengths == sorted(lengths, reverse=True)  # the longest begin first, or they end last and alone
    by_key, slots = torch.zeros_like(by_query), []
    for row, stop, first, last, causal, slot in tables.keys.tolist():
        assert stop - row <= blocks[1]
        by_key[first:last, row:stop] += (
            ~torch.tensor(bool(causal)) | (place[row:stop] <= place[first:last, None])
        ).long()
        slots += [(slot - 1, row, stop)] if slot else []
    assert torch.equal(by_key, seen_by(batch).long())
    summed = [
        (slot, row, stop) for row, stop, first, count in tables.sums.tolist() for slot in range(first, first + count)
    ]
    assert sorted(slots) == sorted(summed) == [(number, *each[1:]) for number, each in enumerate(sorted(slots))]
    assert len(slots) == tables.num_slots
    assert any(each[4] for each in tables.queries.tolist()) == bool(slots)


def test_a_long_row_of_queries_is_shared_out():
    batch = shared_prefix_batch(*rows_of([(16, [600, 600, 600])]))
    tables = attention_tables(batch.segments, 128, 64, 2, torch.device("cpu"))
    shares = [last - first for _, _, first, last, causal, _ in tables.keys.tolist() if not causal]
    assert sum(shares) == 3 * 599 and max(shares) <= 300 and len(shares) == 8
