"""Near duplicates in one pass over the texts, by MinHash and locality-sensitive hashing (Broder 1997).

A text is the set of its runs of three words. Of 64 random orders of all runs, the first run of a text is kept: two
texts agree in as many of the 64 as they have of their runs in common (Jaccard), give or take 0.05. Texts are compared
where four such runs in a row agree, in 16 places: at a similarity of 0.8 one pair in 5,000 is missed. Memory: 400 bytes
per text, however long it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from whet.data.shingles import Hashes, Integers, WordTable, mixed_bits
from whet.types import WhetError

ORDERS, BANDS = 64, 16
RUN = 3  # words
CHUNK = 1024  # texts sketched at a time
ROUNDS = 16  # comparisons of each text with others of its bucket
Sketch = NDArray[np.uint32]  # [N, ORDERS]


class Sketches:
    """What is remembered of the texts that were added."""

    def __init__(self, mask_numbers: bool = False) -> None:
        random = np.random.default_rng(0)
        self._factors = random.integers(1, 2**63, ORDERS, np.uint64) | np.uint64(1)
        self._table = WordTable()
        self._mask = mask_numbers
        self._sketches: list[Sketch] = []
        self._first: dict[bytes, int] = {}
        self._same: list[int] = []  # per text, the first one that says exactly the same
        self._empty: list[bool] = []

    def __len__(self) -> int:
        return len(self._same)

    def add(self, texts: Sequence[str], sketched: bool = True) -> None:
        """Add texts; without a sketch only exact duplicates are found."""
        block = self._table.block(texts)
        for key, size in zip(block.keys, block.sizes.tolist(), strict=True):
            self._same.append(self._first.setdefault(key, len(self._same)))
            self._empty.append(not size)
        if not sketched:
            return
        rows, _, hashes = block.runs(RUN, self._mask)
        sketches = np.full((len(texts), ORDERS), np.iinfo(np.uint32).max, np.uint32)
        if len(rows):
            starts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
            for number, factor in enumerate(self._factors):
                values = (hashes * factor) >> np.uint64(32)
                sketches[rows[starts], number] = np.minimum.reduceat(values, starts).astype(np.uint32)
        self._sketches.append(sketches)

    def exact(self) -> Integers:
        """For each text the first one that says the same; case, white space and punctuation aside. [N]"""
        return np.array(self._same, np.int64)

    def clusters(self, threshold: float) -> Integers:
        """For each text the first one of its cluster: texts that are alike, or that others link. [N]"""
        if not 0 < threshold <= 1:
            raise WhetError(f"similarity {threshold:g}: expected a share in (0, 1]")
        root = self.exact()
        if not self._sketches:
            return root
        sketches = np.concatenate(self._sketches)
        representatives = np.flatnonzero((root == np.arange(len(root))) & ~np.array(self._empty, np.bool_))
        roots = root.tolist()
        for one, other in _alike(sketches, representatives, threshold):
            first, second = _root(roots, one), _root(roots, other)
            roots[max(first, second)] = min(first, second)
        return np.array([_root(roots, number) for number in range(len(roots))], np.int64)


def _root(roots: list[int], number: int) -> int:
    while roots[number] != number:
        roots[number] = roots[roots[number]]
        number = roots[number]
    return number


def _alike(sketches: Sketch, kept: Integers, threshold: float) -> Iterator[tuple[int, int]]:
    """Pairs that share a band and enough of their sketches."""
    width = ORDERS // BANDS
    for band in range(BANDS):
        part = sketches[kept, band * width : (band + 1) * width].astype(np.uint64)
        keys: Hashes = np.zeros(len(kept), np.uint64)
        for column in range(width):
            keys = mixed_bits(keys + part[:, column] + np.uint64(column + 1))
        order = np.argsort(keys, kind="stable")
        members, keys = kept[order], keys[order]
        for _ in range(ROUNDS):
            # each with the first of its bucket; those that are not alike form a bucket of their own for the next round
            first = np.append(True, keys[1:] != keys[:-1])
            heads = members[np.flatnonzero(first)[np.cumsum(first) - 1]]
            rest = np.flatnonzero(~first)
            if not len(rest):
                break
            agree = np.concatenate(
                [
                    (sketches[members[chunk]] == sketches[heads[chunk]]).mean(axis=1)
                    for chunk in np.array_split(rest, len(rest) // 65536 + 1)
                ]
            )
            same = agree >= threshold
            yield from zip(heads[rest[same]].tolist(), members[rest[same]].tolist(), strict=True)
            members, keys = members[rest[~same]], keys[rest[~same]]
            if not len(members):
                break
