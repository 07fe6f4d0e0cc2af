"""What prompts need not read: the beginnings that they share with each other, and with what a decoder holds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from whet.data.prefix_tree import PrefixNode, is_worthwhile, prefix_tree, tree_order

LEAST_PER_PASS = 32  # tokens that a further pass over prompts must save: it costs about as much as computing them


@dataclass(frozen=True)
class Beginning:
    """A prompt's first tokens whose keys and values exist already, or will when another prompt is read."""

    length: int = 0  # 0: none
    source: int = -1  # its number among those that are held and, after them, the prompts
    passes: int = 0  # over other prompts that come first


def shared_beginnings(held: Sequence[tuple[int, ...]], prompts: Sequence[tuple[int, ...]]) -> list[Beginning]:
    """The held prompt from which each prompt copies its beginning. At least the last token is left to read.

    Prompts take turns so that no token is read twice; nothing is taken over where that saves too little.
    """
    nothing = [Beginning() for _ in prompts]
    total = sum(map(len, prompts))
    if total < LEAST_PER_PASS:
        return nothing
    rows = [*held, *prompts]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    tokens = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    taken = _taken(prefix_tree(tree_order(tokens, lengths)), lengths.tolist(), len(held))
    saved, num_passes = sum(beginning.length for beginning in taken), _count_passes(taken, len(held))
    worthwhile = is_worthwhile(total - saved, total) and saved >= LEAST_PER_PASS * (1 + max(num_passes))
    if not saved or not worthwhile:
        return nothing
    return [replace(beginning, passes=passes) for beginning, passes in zip(taken, num_passes, strict=True)]


def _taken(nodes: Sequence[PrefixNode], lengths: Sequence[int], num_held: int) -> list[Beginning]:
    """The longest beginning that each prompt can have; a shared one is read by one prompt, its owner."""
    taken = [Beginning() for _ in lengths[num_held:]]
    owners: list[int] = []  # of each node: the prompt that reads it
    for node in nodes:
        reach = {row: min(lengths[row], node.stop) for row in node.rows}
        new = [row for row in node.rows if row >= num_held]
        before = owners[node.parent] if node.parent >= 0 else -1
        owner = max(new, key=lambda row: (reach[row], row == before, lengths[row], -row), default=-1)
        owners.append(owner)
        if not new:
            continue
        donor = max((row for row in node.rows if row < num_held), key=reach.__getitem__, default=-1)
        for row in new:
            of_donor = reach[donor] if donor >= 0 else 0
            of_owner = reach[owner] if owner != row and not _depends(taken, owner, row, num_held) else 0
            length, source = (of_donor, donor) if of_donor >= of_owner else (of_owner, owner)
            length = min(length, lengths[row] - 1)
            if length > max(node.first, taken[row - num_held].length):
                taken[row - num_held] = Beginning(length, source)
    return taken


def _depends(taken: Sequence[Beginning], row: int, other: int, num_held: int) -> bool:
    """Whether a prompt takes something over from another one, perhaps by way of a third."""
    while row >= num_held:
        if row == other:
            return True
        row = taken[row - num_held].source
    return False


def _count_passes(taken: Sequence[Beginning], num_held: int) -> list[int]:
    """How many passes come before each prompt's."""
    counts = []
    for beginning in taken:
        count = 0
        while beginning.source >= num_held:
            beginning, count = taken[beginning.source - num_held], count + 1
        counts.append(count)
    return counts
