"""Does the training data hold the test? Which train texts say what a test text says, and how closely.

Five kinds of overlap, the closest first:

    exact      the same words and numbers in the same order; case, white space and punctuation do not count
    copy       runs of 13 words that stand in both make up half of the shorter text, and its numbers stand in the
               other one too, in their order; or the other one holds all of a short text
    near       for short texts, which such runs miss: half of the different runs of three words of the shorter one stand
               in the other, and both have the same numbers in the same order
    template   as `copy` or `near`, but with other numbers: another question with another answer
    passage    one run of 13 words in common is enough (the rule of GPT-3, 2005.14165, appendix C): in maths and code
               that is often a common phrase ("m and n are relatively prime positive integers. Find m + n")

The first three give a test answer away (`COPIES`); whether the others count is the caller's choice. A run of which more
than half is numbers, operators and LaTeX commands counts for nothing, and so does a short text of that kind, except
where it is exactly the same: formulas are alike without being copied. In texts that a program writes from templates
only `exact` says something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

import numpy as np

from whet.data.shingles import (
    Hashes,
    Integers,
    TextBlock,
    WordTable,
    is_symbol,
    masked,
    numbers_of,
    words_of,
)
from whet.types import WhetError

CHUNK = 512  # train texts looked up at a time
DENSE = 2**22  # counters of one look-up, above which only pairs that occur are counted


class OverlapKind(StrEnum):
    """How closely a train text follows a test text."""

    EXACT = "exact"
    COPY = "copy"
    NEAR = "near"
    TEMPLATE = "template"
    PASSAGE = "passage"


COPIES = (OverlapKind.EXACT, OverlapKind.COPY, OverlapKind.NEAR)
ORDER = {kind: number for number, kind in enumerate(OverlapKind)}


@dataclass(frozen=True)
class OverlapRule:
    """What counts as an overlap."""

    run: int = 13  # words
    short: int = 26  # words: below that many in the shorter text, runs of `short_run` words decide as well
    short_run: int = 3  # words
    share: float = 0.5  # of the shorter text

    def __post_init__(self) -> None:
        if not (1 <= self.short_run <= self.run and 0 < self.share <= 1 and self.short >= 0):
            raise WhetError(
                f"overlap of texts: run {self.run}, short_run {self.short_run}, share {self.share}; "
                "expected 1 <= short_run <= run and a share in (0, 1]"
            )


DEFAULT_RULE = OverlapRule()


@dataclass(frozen=True)
class Overlap:
    """A train text and a test text, by number, that overlap."""

    train: int
    test: int
    kind: OverlapKind


class ContaminationIndex:
    """An index of the test texts in which train texts are looked up; memory grows with the test texts alone."""

    def __init__(self, tests: Sequence[str], rule: OverlapRule = DEFAULT_RULE) -> None:
        self.rule = rule
        self._tests = list(tests)
        self._table = WordTable()
        self._exact: dict[bytes, list[int]] = {}
        block = self._table.block(self._tests)
        for number, key in enumerate(block.keys):
            self._exact.setdefault(key, []).append(number)
        self._words = block.sizes
        self._long = _Postings(*_long_runs(block, rule), len(self._tests))
        rows, runs = _short_runs(block, rule)
        self._short = _Postings(rows, runs, len(self._tests))
        of_short = self._words[rows] < rule.short
        self._short_only = _Postings(rows[of_short], runs[of_short], len(self._tests))

    def overlaps(self, trains: Iterable[str]) -> Iterator[Overlap]:
        """Every pair that overlaps, with its closest kind, in the order of the train texts."""
        texts, start = iter(trains), 0
        while chunk := list(islice(texts, CHUNK)):
            kinds_by_row = self._of_chunk(chunk)
            for row in sorted(kinds_by_row):
                yield from (Overlap(start + row, test, kind) for test, kind in sorted(kinds_by_row[row].items()))
            start += len(chunk)

    def _of_chunk(self, trains: Sequence[str]) -> dict[int, dict[int, OverlapKind]]:
        kinds_by_row: dict[int, dict[int, OverlapKind]] = {}

        def note(row: int, test: int, kind: OverlapKind) -> None:
            kinds = kinds_by_row.setdefault(row, {})
            kinds[test] = min(kind, kinds.get(test, kind), key=ORDER.__getitem__)

        block = self._table.block(trains)
        for row, key in enumerate(block.keys):
            for test in self._exact.get(key, ()):
                note(row, test, OverlapKind.EXACT)
        for row, test, _ in zip(*self._long.counted(*_long_runs(block, self.rule), len(trains)), strict=True):
            if kinds_by_row.get(row, {}).get(test) != OverlapKind.EXACT:
                note(row, test, self._kind(trains[row], self._tests[test]))
        for row, test in self._similar(block, len(trains)):
            note(row, test, _short_kind(trains[row], self._tests[test]))
        return kinds_by_row

    def _kind(self, train: str, test: str) -> OverlapKind:
        """The kind of overlap of two texts that share a long run, numbers aside."""
        one, other = sorted((words_of(train), words_of(test)), key=len)
        if self._covered(one, other) >= self.rule.share * len(one) and _same_numbers(one, other):
            return OverlapKind.COPY
        one, other = list(map(masked, one)), list(map(masked, other))
        return OverlapKind.TEMPLATE if self._covered(one, other) >= self.rule.share * len(one) else OverlapKind.PASSAGE

    def _covered(self, one: Sequence[str], other: Sequence[str]) -> int:
        """How many words of the first text lie in a long run that also occurs in the other."""
        size = self.rule.run
        runs = {tuple(other[at : at + size]) for at in range(len(other) - size + 1)}
        covered, reached = 0, 0
        for at in range(len(one) - size + 1):
            run = tuple(one[at : at + size])
            if run in runs and 2 * sum(map(is_symbol, run)) <= size:
                covered += at + size - max(at, reached)
                reached = at + size
        return covered

    def _similar(self, block: TextBlock, count: int) -> Iterator[tuple[int, int]]:
        """Pairs of which the shorter one is short, and says enough of what the other says."""
        rows, runs = _short_runs(block, self.rule)
        sizes = np.bincount(rows, minlength=count)
        is_short = block.sizes[rows] < self.rule.short
        for postings, wanted in ((self._short, is_short), (self._short_only, ~is_short)):
            one, other, shared = postings.counted(rows[wanted], runs[wanted], count)
            enough = shared >= self.rule.share * np.minimum(sizes[one], postings.sizes[other])
            yield from zip(one[enough].tolist(), other[enough].tolist(), strict=True)


def contamination(trains: Iterable[str], tests: Sequence[str], rule: OverlapRule = DEFAULT_RULE) -> list[Overlap]:
    """Every train text that overlaps with a test text: a pure function of the texts."""
    return list(ContaminationIndex(tests, rule).overlaps(trains))


def overlap_counts(overlaps: Iterable[Overlap]) -> Counter[OverlapKind]:
    """How many train texts overlap, each counted once, by its closest kind."""
    closest: dict[int, OverlapKind] = {}
    for overlap in overlaps:
        closest[overlap.train] = min(overlap.kind, closest.get(overlap.train, overlap.kind), key=ORDER.__getitem__)
    return Counter(closest.values())


def require_clean(
    train: tuple[str, Sequence[str]],
    test: tuple[str, Sequence[str]],
    fix: str = "leave them out of the training data",
    kinds: Sequence[OverlapKind] = COPIES,
) -> None:
    """Refuse training data that holds test texts. Each side is its name, as the user knows it, and its texts."""
    overlaps = [overlap for overlap in contamination(train[1], test[1]) if overlap.kind in kinds]
    if not overlaps:
        return
    counts = overlap_counts(overlaps)
    named = ", ".join(f"{counts[kind]} {kind}" for kind in OverlapKind if counts[kind])
    first = min(overlaps, key=lambda overlap: (ORDER[overlap.kind], overlap.train))
    text = " ".join(train[1][first.train].split())
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    raise WhetError(
        f"{train[0]}: {counts.total()} of its {len(train[1])} prompts stand in the test set {test[0]} too ({named}; "
        f"such as {shown!r}); {fix}"
    )


class _Postings:
    """Which texts hold a hash."""

    def __init__(self, owners: Integers, values: Hashes, count: int) -> None:
        self.sizes = np.bincount(owners, minlength=count)  # different hashes per text
        order = np.argsort(values, kind="stable")
        self._owners = owners[order]
        self._values, self._starts = np.unique(values[order], return_index=True)
        self._stops = np.append(self._starts[1:], len(values))

    def counted(self, rows: Integers, values: Hashes, count: int) -> tuple[Integers, Integers, Integers]:
        """Texts of `count` others and owners with a hash in common, each pair once, and how many."""
        none = np.zeros(0, np.int64)
        if not len(self._values) or not len(values):
            return none, none, none
        at = np.searchsorted(self._values, values)
        at[at == len(self._values)] = 0
        hit = self._values[at] == values
        rows, at = rows[hit], at[hit]
        lengths = self._stops[at] - self._starts[at]
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owners = self._owners[np.repeat(self._starts[at], lengths) + within]
        width = len(self.sizes)
        keys = np.repeat(rows, lengths) * width + owners
        if count * width <= DENSE:
            counts = np.bincount(keys)
            pair_keys = np.flatnonzero(counts)
            counts = counts[pair_keys]
        else:
            pair_keys, counts = np.unique(keys, return_counts=True)
        return pair_keys // width, pair_keys % width, counts.astype(np.int64)


def _short_kind(train: str, test: str) -> OverlapKind:
    """The kind of overlap of two texts that share most of their short runs, numbers aside."""
    one, other = sorted((words_of(train), words_of(test)), key=len)
    if f" {' '.join(one)} " in f" {' '.join(other)} ":
        return OverlapKind.COPY
    return OverlapKind.NEAR if numbers_of(one) == numbers_of(other) else OverlapKind.TEMPLATE


def _same_numbers(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the numbers of the first text also occur in the other, in the same order."""
    rest = iter(numbers_of(other))
    return all(number in rest for number in numbers_of(one))


def _long_runs(block: TextBlock, rule: OverlapRule) -> tuple[Integers, Hashes]:
    """The text and the hash of the different long runs, numbers aside, of which at least half are words."""
    rows, at, hashes = block.runs(rule.run)
    is_usable = (block.sizes[rows] >= rule.run) & block.wordy(at, rule.run)
    return _different(rows[is_usable], hashes[is_usable])


def _short_runs(block: TextBlock, rule: OverlapRule) -> tuple[Integers, Hashes]:
    """The text and the hash of the different short runs, numbers aside; none of formulas."""
    rows, _, hashes = block.runs(rule.short_run)
    is_text = ~block.formulas[rows]
    return _different(rows[is_text], hashes[is_text])


def _different(rows: Integers, hashes: Hashes) -> tuple[Integers, Hashes]:
    """Each hash once per text."""
    order = np.lexsort((hashes, rows))
    rows, hashes = rows[order], hashes[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (rows[1:] != rows[:-1]) | (hashes[1:] != hashes[:-1])
    return rows[first], hashes[first]
