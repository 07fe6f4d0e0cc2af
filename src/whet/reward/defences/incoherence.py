"""Reasoning that is none: random letters, symbol noise, words in no order, one phrase over and over."""

from __future__ import annotations

import re

from whet.reward.coherence import coherence_signals
from whet.reward.defences.reading import prose, working
from whet.reward.language import language_of
from whet.reward.repetition import without_marks
from whet.types import Prompt

LEAST_CHARACTERS = 24
LEAST_COHERENCE = 0.5


def incoherent_reasoning(prompt: Prompt, completion: str) -> float:
    """A penalty: 0, or -1 where the working is no language.

    What is language is told by the signals of the reward `coherence`, formulas and code left out. Good sentences about
    something else pass: they need a judge.
    """
    shown = without_marks(working(completion))
    if is_bare(shown):
        return -1.0
    text = prose(shown)
    if len(re.sub(r"\s", "", text)) < LEAST_CHARACTERS:
        return 0.0
    signals = coherence_signals(text, english=language_of(prompt.question()) == "en")
    return 0.0 - float(min(signals.values()) < LEAST_COHERENCE)


def is_bare(text: str) -> bool:
    """Hardly a letter or digit in it, formulas included."""
    printed = re.sub(r"\s", "", text)
    return len(printed) >= LEAST_CHARACTERS and sum(character.isalnum() for character in printed) < 0.2 * len(printed)
