"""Do two tokenizers mean the same by the same number? Needed wherever one model judges another's tokens."""

from __future__ import annotations

from typing import Any

SHOWN = 3  # tokens that a refusal names


def vocabulary_refusal(ours: Any, theirs: Any) -> str:
    """How two tokenizers differ, in words; empty where every token of ours has the same id in theirs.

    Rows of an embedding that no token uses do not matter, nor do tokens that they alone have.
    """
    mine: dict[str, int] = ours.get_vocab()
    other: dict[str, int] = theirs.get_vocab()
    apart = sorted((number, token) for token, number in mine.items() if other.get(token) != number)
    if not apart:
        return ""
    named = ", ".join(
        f"{token!r} is {number} here and {'unknown' if other.get(token) is None else other[token]} there"
        for number, token in apart[:SHOWN]
    )
    return f"{len(apart)} of {len(mine)} tokens differ ({named})"
