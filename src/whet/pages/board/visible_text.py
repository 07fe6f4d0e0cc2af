"""Text of samples as it may be shown: what steers a terminal or turns writing around is made visible."""

from __future__ import annotations

import re

# controls but newline and tab; marks that change the direction of what follows, or are not seen at all
UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with such characters as their code, like <U+202E>."""
    return UNSEEN.sub(lambda found: f"<U+{ord(found[0]):04X}>", text)
