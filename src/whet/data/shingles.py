"""Texts as runs of words, for telling whether two of them say the same.

What counts as a word: letters in lower case (accents and width forms composed, NFKC), a number without the commas of
its thousands, one character of a script that writes without spaces, an operator. Punctuation does not count. Numbers,
operators and LaTeX commands are symbols: they tell two formulas apart, not two sentences.

Near duplicates in one pass over the texts, by MinHash and locality-sensitive hashing (Broder 1997).

A text is the set of its runs of three words. Of 64 random orders of all runs, the first run of a text is kept: two
texts agree in as many of the 64 as they have of their runs in common (Jaccard), give or take 0.05. Texts are compared
where four such runs in a row agree, in 16 places: at a similarity of 0.8 one pair in 5,000 is missed. Memory: 400 bytes
per text, however long it is.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whet.types import WhetError

ORDERS, BANDS = 64, 16
RUN = 3  # words
CHUNK = 1024  # texts sketched at a time
ROUNDS = 16  # comparisons of each text with others of its bucket
Sketch = NDArray[np.uint32]  # [N, ORDERS]


class Sketches:
    """What is remembered of the texts that were added."""

    def __init__(self, mask_numbers: bool = False, sketched: bool = True) -> None:
        """Without sketches only exact duplicates are found."""
        random = np.random.default_rng(0)
        self._factors = random.integers(1, 2**63, ORDERS, np.uint64) | np.uint64(1)
        self._table = WordTable()
        self._mask, self._sketched = mask_numbers, sketched
        self._sketches: list[Sketch] = []
        self._first: dict[bytes, int] = {}
        self._same: list[int] = []  # per text, the first one that says exactly the same
        self._empty: list[bool] = []
        self._waiting: list[str] = []

    def add(self, text: str) -> None:
        """Add the shingles of a text."""
        self._waiting.append(text)
        if len(self._waiting) == CHUNK:
            self._sketch()

    def _sketch(self) -> None:
        """Take in the texts that wait."""
        texts, self._waiting = self._waiting, []
        block = self._table.block(texts)
        for key, size in zip(block.keys, block.sizes.tolist(), strict=True):
            self._same.append(self._first.setdefault(key, len(self._same)))
            self._empty.append(not size)
        if not self._sketched or not texts:
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
        self._sketch()
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


def _alike(sketches: Sketch, representatives: Integers, threshold: float) -> Iterator[tuple[int, int]]:
    """Pairs that share a band and enough of their sketches."""
    width = ORDERS // BANDS
    for band in range(BANDS):
        part = sketches[representatives, band * width : (band + 1) * width].astype(np.uint64)
        keys: Hashes = np.zeros(len(representatives), np.uint64)
        for column in range(width):
            keys = mixed_bits(keys + part[:, column] + np.uint64(column + 1))
        order = np.argsort(keys, kind="stable")
        members, keys = representatives[order], keys[order]
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


Hashes = NDArray[np.uint64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0e7f"  # kana, Han, Thai
OTHERS = r"\d+(?:\.\d+)?|\\[a-z]+|[+*/=<>^%]|(?<![^\W\d])-(?=\s*(?:[\d(\\$]|[a-z]\b))"
WORD = re.compile(rf"[{SPACELESS}]|[^\W\d_{SPACELESS}]+|{OTHERS}")
ASCII_WORD = re.compile(rf"[a-z]+|{OTHERS}", re.ASCII)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
ONES = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
TENS = "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand"
NUMERALS = frozenset(f"{ONES} {TENS}".split())
NUMBER = "#"
OPERATORS = frozenset("+*/=<>^%-")
MOST_KNOWN = 1_000_000  # different words that are remembered at a time
_PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses nothing modulo 2**64


def words_of(text: str) -> list[str]:
    """The words of a text, numbers as written."""
    if text.isascii():
        pattern = ASCII_WORD
    else:
        pattern, text = WORD, unicodedata.normalize("NFKC", text)
    if "," in text:
        text = THOUSANDS.sub("", text)
    return pattern.findall(text.lower())


def masked(word: str) -> str:
    """The word; of every number the same one."""
    return NUMBER if word[0].isdecimal() or word in NUMERALS else word


def numbers_of(words: Sequence[str]) -> list[str]:
    """The numbers among the words, in order."""
    return [word for word in words if masked(word) == NUMBER]


def is_symbol(word: str) -> bool:
    """A number, an operator or a LaTeX command."""
    return word in OPERATORS or word[0] == "\\" or masked(word) == NUMBER


def plain_text(text: str) -> str:
    """What two texts have in common that differ in case, white space and punctuation only.

    A text without a word, such as a row of emoji, stands for itself.
    """
    return " ".join(words_of(text)) or text.strip()


def text_key(text: str) -> bytes:
    """16 bytes that equal texts share, and others in practice never do."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class WordTable:
    """What is known of each word that was seen: hashes that are the same in every process, and whether it is a symbol.

    It forgets all words when there are too many, so that its memory stays bounded.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[str, int] = {}
        self._known = 0
        self._written = np.zeros(1024, np.uint64)
        self._masked = np.zeros(1024, np.uint64)
        self._symbols = np.zeros(1024, np.bool_)

    def block(self, texts: Sequence[str]) -> TextBlock:
        """Several texts hashed together."""
        if len(self._numbers) > MOST_KNOWN:
            self._forget()
        numbers: list[int] = []
        starts = np.zeros(len(texts) + 1, np.int64)
        for at, text in enumerate(texts):
            words = words_of(text)
            try:
                numbers += [self._numbers[word] for word in words]
            except KeyError:
                numbers += [self._number(word) for word in words]
            starts[at + 1] = len(numbers)
        at_words = np.array(numbers, np.int64)
        written = self._written[at_words]
        keys = [
            hashlib.blake2b(written[start:stop].tobytes(), digest_size=16).digest() if stop > start else text_key(text)
            for start, stop, text in zip(starts[:-1].tolist(), starts[1:].tolist(), map(str.strip, texts), strict=True)
        ]
        return TextBlock(written, self._masked[at_words], self._symbols[at_words], starts, keys)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is not None:
            return number
        number = self._numbers[word] = self._known
        self._known += 1
        if number == len(self._written):
            self._written = np.concatenate([self._written, np.zeros_like(self._written)])
            self._masked = np.concatenate([self._masked, np.zeros_like(self._masked)])
            self._symbols = np.concatenate([self._symbols, np.zeros_like(self._symbols)])
        self._written[number] = _word_hash(word)
        self._masked[number] = _word_hash(masked(word))
        self._symbols[number] = is_symbol(word)
        return number


@dataclass(frozen=True)
class TextBlock:
    """The words of N texts, one text after the other."""

    written: Hashes  # [W] a hash per word
    masked: Hashes  # [W] the same, every number being one word
    symbols: Flags  # [W]
    starts: Integers  # [N + 1] where the words of a text begin; the last is W
    keys: Sequence[bytes]  # [N] the same for texts that differ in case, white space and punctuation only

    @property
    def sizes(self) -> Integers:
        """The number of words of each text. [N]"""
        return np.diff(self.starts)

    @property
    def formulas(self) -> Flags:
        """Texts of which more than half are symbols: they look alike whatever they ask. [N]"""
        counts = np.concatenate([[0], np.cumsum(self.symbols)])
        return 2 * np.diff(counts[self.starts]) > self.sizes

    def runs(self, size: int, mask_numbers: bool = True) -> tuple[Integers, Integers, Hashes]:
        """The text, the first word and the hash of every run of `size` words. A shorter text is one run."""
        words = self.masked if mask_numbers else self.written
        owners = np.repeat(np.arange(len(self.starts) - 1, dtype=np.int64), self.sizes)
        count = len(words) - size + 1
        if count > 0:
            total = np.zeros(count, np.uint64)
            for offset in range(size):
                total = total * _PRIME + words[offset : offset + count]
            at = np.flatnonzero(owners[:count] == owners[size - 1 :])
            long_runs = owners[at], at, mixed_bits(total[at])
        else:
            long_runs = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64)
        short = np.flatnonzero((self.sizes < size) & (self.sizes > 0))
        if not len(short):
            return long_runs
        whole = [_whole_hash(words[self.starts[row] : self.starts[row + 1]]) for row in short]
        rows = np.concatenate([long_runs[0], short])
        order = np.argsort(rows, kind="stable")
        at = np.concatenate([long_runs[1], self.starts[short]])
        return rows[order], at[order], np.concatenate([long_runs[2], np.array(whole, np.uint64)])[order]

    def wordy(self, at: Integers, size: int) -> Flags:
        """Whether at least half of the words of each run are no symbols."""
        counts = np.concatenate([[0], np.cumsum(self.symbols)])
        return 2 * (counts[np.minimum(at + size, len(self.symbols))] - counts[at]) <= size


def mixed_bits(values: Hashes) -> Hashes:
    """Each value spread over all 64 bits (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _whole_hash(words: Hashes) -> int:
    return int.from_bytes(hashlib.blake2b(words.tobytes(), digest_size=8).digest(), "little")
