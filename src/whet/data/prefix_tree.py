"""Rows of tokens as a tree: what several rows begin with stands there once, at any depth. Pure, on the host.

Two tokens are one where everything before them is equal too: then a causal model knows the same at both. What differs
between rows that go through one token (advantages, masks, log-probabilities of the sampler) stays with the rows.

A run of shared tokens shorter than `LEAST_SHARED` is not worth a node of its own: each of its branches has a copy. A
row that ends where others go on makes no branch, so a chain of rows, each the beginning of the next, is a single node.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
SharedTokens = Literal["nothing", "prompts", "prefixes"]  # what a model computes once for all rows of a micro-batch

LEAST_SHARED = 16  # tokens of a node that has branches
LEAST_SAVED = 0.15  # of the tokens that shared prompts alone leave: a tree that saves less is not made


@dataclass(frozen=True)
class PrefixNode:
    """Tokens from position `first` up to `stop` that its rows have in common, as far as each of them goes."""

    parent: int  # number of the node that it continues; NO_PARENT: rows begin with it
    first: int
    stop: int
    rows: tuple[int, ...]  # the first of them goes all the way

    @property
    def length(self) -> int:
        """The number of tokens in the node itself."""
        return self.stop - self.first


NO_PARENT = -1


@dataclass(frozen=True)
class TreeOrder:
    """Rows with common beginnings next to each other, a row after those that it begins with."""

    rows: Integers  # [N], row numbers
    lengths: Integers  # [N], their tokens
    shared: Integers  # [N], tokens that a row has in common with the one before it; 0 for the first

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the tree, with every shared token counted once."""
        return int((self.lengths - self.shared).sum())


def tree_order(tokens: Integers, lengths: Integers) -> TreeOrder:
    """The order of rows [N, T] of which the first `lengths` [N] tokens count; rows of none are left out."""
    present = np.flatnonzero(lengths)
    # the bytes of numbers that begin with their highest byte are ordered as the numbers are
    words = np.ascontiguousarray(tokens[present], dtype=">i8")
    texts = [row[:length].tobytes() for row, length in zip(words, lengths[present].tolist(), strict=True)]
    rows = present[np.array(sorted(range(len(texts)), key=texts.__getitem__), dtype=np.int64)]
    shared = np.zeros(len(rows), np.int64)
    if len(rows) > 1:
        unlike = tokens[rows[1:]] != tokens[rows[:-1]]
        agreed = np.where(unlike.any(1), unlike.argmax(1), tokens.shape[1])
        shared[1:] = np.minimum(agreed, np.minimum(lengths[rows[1:]], lengths[rows[:-1]]))
    return TreeOrder(rows, lengths[rows], shared)


def prefix_tree(order: TreeOrder, least: int | None = None) -> list[PrefixNode]:
    """The nodes, each in front of its branches, and one branch whole before the next."""
    least = LEAST_SHARED if least is None else least
    rows, lengths, shared = order.rows.tolist(), order.lengths, order.shared
    nodes: list[PrefixNode] = []
    open_parts = [(0, len(rows), 0, NO_PARENT)] if rows else []  # rows from, to; position; node that they continue
    while open_parts:
        begin, end, first, parent = open_parts.pop()
        stop, parts = _branches(lengths, shared, begin, end)
        is_leaf = len(parts) < 2
        if is_leaf or stop - first >= least:
            nodes.append(PrefixNode(parent, first, stop, tuple(reversed(rows[begin:end]))))
            first, parent = stop, len(nodes) - 1
        elif begin < parts[0][0]:  # of a run without a node, rows that end there are a branch
            parts.insert(0, (begin, parts[0][0]))
        if not is_leaf:
            open_parts += [(*part, first, parent) for part in reversed(parts)]
    return nodes


def _branches(lengths: Integers, shared: Integers, begin: int, end: int) -> tuple[int, list[tuple[int, int]]]:
    """How far the rows from `begin` to `end` go as one, rows that end earlier apart, and the parts that go on."""
    while True:
        common = int(min(lengths[begin], shared[begin + 1 : end].min())) if end - begin > 1 else int(lengths[begin])
        bounds = [begin, *(begin + 1 + np.flatnonzero(shared[begin + 1 : end] == common)).tolist(), end]
        parts = [(start, stop) for start, stop in pairwise(bounds) if int(lengths[stop - 1]) > common]
        if len(parts) != 1:
            return common, parts
        begin, end = parts[0]


def deeper_tree(tokens: Integers, first: Integers, lengths: Integers) -> list[PrefixNode]:
    """The tree of rows [N, T], `first` tokens of each being its prompt; empty where it saves too little."""
    flat = num_flat_tokens(tokens, first, lengths)
    order = tree_order(tokens, lengths)
    if not is_worthwhile(order.num_tokens, flat):
        return []
    nodes = prefix_tree(order)
    return nodes if is_worthwhile(sum(node.length for node in nodes), flat) else []


def is_worthwhile(tree: int, flat: int) -> bool:
    """Whether a tree of so many tokens saves enough, `flat` being those that shared prompts alone leave."""
    return flat - tree >= max(LEAST_SAVED * flat, LEAST_SHARED)


def num_flat_tokens(tokens: Integers, first: Integers, lengths: Integers) -> int:
    """Tokens of rows that share their prompts and nothing else."""
    prompts = {tokens[row, : first[row]].tobytes(): int(first[row]) for row in np.flatnonzero(lengths).tolist()}
    return sum(prompts.values()) + int((lengths - first).sum())
