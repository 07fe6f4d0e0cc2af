"""Saying the same thing again: every measure of it, and the penalty by n-grams.

Each measure sees what the others miss: n-grams see phrases, sentences see long passages whatever is between them, rows
of eight see passages that sentences cut differently, windows see a circle among a few words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from whet.types import WhetError

# Han, kana, Hangul; Thai, Lao, Tibetan, Burmese, Khmer: no spaces between words
UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e01-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17dd"
# a word, a number, a character on its own where a script has no spaces, or a symbol
TOKEN = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+|\d+|[^\w\s]")
TAG = re.compile(r"</?[a-z_]{1,40}>")
SHORTEST = 20  # n-grams; fewer say nothing about repetition
LEAST_REPEATS = 3  # sentences
LEAST_TERMS = 40
ROW = 8  # words and figures
WINDOW = 30  # words and figures


def repetition(completion: str, *, size: int = 4, allowed: float = 0.25, penalty: float = 1.0) -> float:
    """0 down to -penalty: nothing while the share of repeated n-grams is within `allowed`, then linear.

    A penalty, never above 0. `size` is the n of the n-grams, in words; numbers count as what they are, so a long
    calculation with the same steps on other numbers is no repetition.
    """
    if size < 1 or not 0 <= allowed < 1 or penalty <= 0:
        raise WhetError(
            f"reward 'repetition' has size {size}, allowed {allowed}, penalty {penalty}; "
            "give size >= 1, allowed in [0, 1) and penalty > 0"
        )
    over = (repeated_share(words_of(completion), size) - allowed) / (1 - allowed)
    return -penalty * over if over > 0 else 0.0


def words_of(text: str) -> list[str]:
    """Words, numbers and symbols in lower case; tags are form, not content."""
    return TOKEN.findall(without_marks(TAG.sub(" ", text.lower())))


def without_marks(text: str) -> str:
    """The text without combining marks and joiners: to a pattern of letters, the vowel signs of most scripts of India
    and South-East Asia end a word, and vowel points and accents on their own do so too."""
    if text.isascii():
        return text
    return "".join(sign for sign in text if unicodedata.category(sign)[0] != "M" and sign not in "\u200c\u200d")


def repeated_share(words: Sequence[str], size: int) -> float:
    """1 - distinct n-grams / n-grams; 0 for a text too short to tell."""
    total = len(words) - size + 1
    if total < SHORTEST:
        return 0.0
    distinct = {tuple(words[start : start + size]) for start in range(total)}
    return 1 - len(distinct) / total


def repeated_sentence_share(sentences: Sequence[tuple[str, int]], num_words: int) -> float:
    """The share of a text's words that stand in a sentence said before; `sentences` are (sentence, its words)."""
    times = Counter(sentence for sentence, _ in sentences)
    if sum(times.values()) - len(times) < LEAST_REPEATS:
        return 0.0
    lengths = dict(sentences)
    again = sum((number - 1) * lengths[sentence] for sentence, number in times.items())
    return again / max(num_words, 1)


def echoed_share(terms: Sequence[str]) -> float:
    """The share of words and figures that end a row of eight which stood before, whatever sentences they are in."""
    if len(terms) < LEAST_TERMS:
        return 0.0
    seen: set[tuple[str, ...]] = set()
    again = 0
    for end in range(ROW, len(terms) + 1):
        row = tuple(terms[end - ROW : end])
        again += row in seen
        seen.add(row)
    return again / len(terms)


def looped_share(terms: Sequence[str]) -> float:
    """The share of windows of 30 terms that hold fewer than 8 different ones."""
    if len(terms) < 16:
        return 0.0
    windows = [terms[start : start + WINDOW] for start in range(0, max(len(terms) - WINDOW, 0) + 1, 10)]
    return sum(len(set(window)) < max(4, 0.25 * len(window)) for window in windows) / len(windows)
