"""Tokens as pieces of text that join to what the tokenizer says all of them are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

BROKEN = "\ufffd"  # what stands for the bytes of a character whose other bytes are in another token

MOST_BYTES = 4  # of a character, and so tokens that one may be spread over


class TokenPieces:
    """The text of each token, special tokens included. A character in several tokens belongs to the last of them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._alone: dict[int, str] = {}  # a token's text by itself, which is what it adds in all but a few places

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        alone = [self._text_alone(token) for token in tokens]
        text, together = self._text(tokens), "".join(alone)
        if together == text and BROKEN not in together:  # as nearly always
            return alone
        pieces: list[str] = []
        for is_broken, places in groupby(range(len(tokens)), key=lambda index: BROKEN in alone[index]):
            run = list(places)
            pieces += (
                self._grown([tokens[position] for position in run])
                if is_broken
                else [alone[position] for position in run]
            )
        # a tokenizer may write a token otherwise in company, as the space before a word
        return pieces if "".join(pieces) == text else self._grown(tokens)

    def _grown(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds to the text of those before it, looking back as far as the last whole character."""
        pieces: list[str] = []
        start = done = 0  # tokens[start:done] are the last ones that were told apart, the context of those to come
        for end in range(1, len(tokens) + 1):
            before, text = self._text(tokens[start:done]), self._text(tokens[start:end])
            may_complete = end < len(tokens) and end - done < MOST_BYTES
            if may_complete and (text.endswith(BROKEN) or len(text) < len(before)):
                pieces.append("")
                continue
            pieces.append(text[len(before) :])
            start, done = done, end
        return pieces

    def _text_alone(self, token: int) -> str:
        text = self._alone.get(token)
        if text is None:
            text = self._alone[token] = self._text([token])
        return text

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
