"""The penalty for saying the same thing again, measured by n-grams."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whet.types import WhetError

# a word, a number, a Han, kana or Hangul character on its own (they are written without spaces), or a symbol
TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|\d+|[^\w\s]"
)
TAG = re.compile(r"</?[a-z_]{1,40}>")
SHORTEST = 20  # n-grams; fewer say nothing about repetition


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
    return TOKEN.findall(TAG.sub(" ", text.lower()))


def repeated_share(words: Sequence[str], size: int) -> float:
    """1 - distinct n-grams / n-grams; 0 for a text too short to tell."""
    total = len(words) - size + 1
    if total < SHORTEST:
        return 0.0
    distinct = {tuple(words[start : start + size]) for start in range(total)}
    return 1 - len(distinct) / total
