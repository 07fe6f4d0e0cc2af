"""The reward for reasoning that reads like reasoning: several cheap signals, of which the worst decides.

    characters    share of characters that people write with
    repetition    share of n-grams that come back
    compression   what zlib makes of it: next to nothing for a loop, next to no gain for noise
    spelling      share of words whose letters follow each other as in English, or as in any language with vowels
    common        share of words among the commonest English ones
    order         how much likelier the neighbours of common words are than by chance

The last two need English; the letter and neighbour tables in `english.json` are counts over about six million
characters of school mathematics, instructions and technical English. None of this knows whether the reasoning is
right, or fluent nonsense.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from whet.reward.language import NO_LANGUAGE, language_of
from whet.reward.repetition import repeated_share, words_of
from whet.types import Prompt

ENGLISH = Path(__file__).parent / "english.json"
LONGEST_TEXT = 50_000  # characters that are read
FEWEST_WORDS = 24  # below, words say nothing
FEWEST_LETTERS = 50  # below, spelling says nothing
FEWEST_BYTES = 120  # below, zlib says nothing
OVERHEAD = 30  # bytes that zlib needs for a short text of any kind
TOKEN = re.compile(r"[a-z]+(?:'[a-z]+)?|[$#]?\d[\d.,]*(?<![.,])%?|[#]|[.!?;:\n]+|,|[=<>+*/-]+")
LATIN_WORD = re.compile(r"(?<![^\W\d_])[A-Za-z]{3,}(?![^\W\d_])")
HAN = re.compile("[\u3400-\u9fff]")

NUM_SIGNS = 4  # the first rows of the table are "#", ".", "," and "=": two of them side by side are no language

# (no credit at, full credit at): between what the attacks of the tests reach and what honest text does
CHARACTERS = (0.70, 0.92)
REPETITION = (0.90, 0.60)
LOOP = (0.08, 0.18)
NOISE = (0.80, 0.70)
SPELLING = (0.35, 0.75)
COMMON = (0.02, 0.10)
ORDER = (-0.30, -0.06)


def coherence(prompt: Prompt, completion: str, *, think_tag: str = "think") -> float:
    """0 to 1: how much the thinking reads like language; the whole completion where there is no thinking.

    Below 0.5 it is noise, a loop or a heap of words. An empty thought scores 0. Too little text to judge scores 1:
    ask for a length elsewhere (`agent_format`).
    """
    thought = _thought(completion, think_tag)
    if not thought.strip():
        return 0.0
    asked = language_of(prompt.question())
    return min(coherence_signals(thought, english=asked == "en").values(), default=1.0)


def coherence_signals(text: str, english: bool = False) -> dict[str, float]:
    """The signals the text is long enough for, each 0 to 1; `english` insists on English words."""
    text = text[:LONGEST_TEXT]
    signals = {"characters": _credit(_written_share(text), CHARACTERS)}
    signals["repetition"] = _credit(repeated_share(words_of(text), 4), REPETITION)
    packed = text.encode(errors="replace")
    if len(packed) >= FEWEST_BYTES:
        # a long text packs better whatever it says: only beginnings are comparable
        ratio = _packed_share(packed[:1000])
        signals["compression"] = _credit(ratio, LOOP)
        # every Chinese character is news to zlib
        if len(HAN.findall(text)) < 0.3 * len(text):
            noise = _credit(ratio - OVERHEAD / len(packed[:1000]), NOISE)
            signals["compression"] = min(signals["compression"], noise)
    bare = NO_LANGUAGE.sub(" # ", text)
    # names are spelled as they please, and one odd word often is no odder than once
    words = {word for word in LATIN_WORD.findall(bare) if word.islower()}
    english = english or language_of(bare) == "en"
    if sum(map(len, words)) >= FEWEST_LETTERS:
        # the table is of English: of other languages only what no alphabet of vowels and consonants does counts
        share = _well_spelled_share(words) if english else _pronounceable_share(words)
        signals["spelling"] = _credit(share, SPELLING)
    if english:
        signals |= _english_signals(bare)
    return signals


def _thought(completion: str, tag: str) -> str:
    before, opened, after = completion.partition(f"<{tag}>")
    if opened:
        return after.partition(f"</{tag}>")[0]
    # the prompt may have opened the tag
    thought, closed, _ = completion.partition(f"</{tag}>")
    return thought if closed else before


def _credit(value: float, ends: tuple[float, float]) -> float:
    none, full = ends
    return min(max((value - none) / (full - none), 0.0), 1.0)


def _written_share(text: str) -> float:
    written = sum(unicodedata.category(character)[0] in "LNPZSM" or character in "\n\t\r" for character in text)
    symbols = sum(unicodedata.category(character) in ("So", "Sk") for character in text)
    return (written - symbols) / len(text)


def _packed_share(text: bytes) -> float:
    return len(zlib.compress(text, 6)) / len(text)


@dataclass(frozen=True)
class English:
    """Tables of English: which letters and which words follow each other."""

    letters: Mapping[tuple[str, str], float]  # log-probability of a letter after another, "`" at a word's ends
    places: Mapping[str, int]  # common word -> row of `neighbours`; any other word has the last row
    neighbours: Sequence[Sequence[float]]  # log of how much likelier a pair is than by chance


@functools.cache
def english() -> English:
    """The tables of `english.json`, whose characters are numbers: 35 is 0, letters in sixths, pairs in tenths."""
    content = json.loads(ENGLISH.read_text(encoding="utf-8"))
    alphabet = "`abcdefghijklmnopqrstuvwxyz"
    letters = {
        (first, second): (35 - ord(code)) / 6
        for first, row in zip(alphabet, content["letters"], strict=True)
        for second, code in zip(alphabet, row, strict=True)
    }
    words = content["words"].split()
    neighbours = [[(ord(code) - 75) / 10 for code in row] for row in content["pairs"]]
    return English(letters, {word: index for index, word in enumerate(words)}, neighbours)


def _well_spelled_share(words: Collection[str]) -> float:
    """The share of letters in well-spelled words: an endless word counts for its length."""
    return sum(len(word) for word in words if _is_well_spelled(word)) / sum(map(len, words))


def _pronounceable_share(words: Collection[str]) -> float:
    """The share of letters in words whose vowels and consonants more or less alternate."""
    return sum(len(word) for word in words if _is_pronounceable(word)) / sum(map(len, words))


def _is_pronounceable(word: str) -> bool:
    runs = [len(run) for run in re.split("[aeiouyw]+", word)]
    vowels = len(word) - sum(runs)
    return max(runs) <= 4 and 0.25 * len(word) <= vowels <= 0.8 * len(word)


@functools.lru_cache(maxsize=65536)
def _is_well_spelled(word: str) -> bool:
    table = english().letters
    chances = [table[pair] for pair in zip("`" + word, word + "`", strict=True)]
    # one impossible pair is enough in a short word, a long one may be foreign in one place
    return sum(chances) / len(chances) > -3.1 and sum(chance < -5.0 for chance in chances) <= len(word) // 6


def _english_signals(bare: str) -> dict[str, float]:
    table = english()
    tokens = tokens_of(bare)
    places = [table.places.get(token, -1) for token in tokens]
    known = [index >= 0 for token, index in zip(tokens, places, strict=True) if token.isalpha()]
    pairs = [
        table.neighbours[first][second]
        for first, second in itertools.pairwise(places)
        if first >= NUM_SIGNS or second >= NUM_SIGNS
    ]
    signals = {}
    if len(known) >= FEWEST_WORDS:
        signals["common"] = _credit(sum(known) / len(known), COMMON)
    if len(pairs) >= FEWEST_WORDS:
        signals["order"] = _credit(sum(pairs) / len(pairs), ORDER)
    return signals


def tokens_of(text: str) -> list[str]:
    """Words in lower case; a number or formula as "#", the end of a sentence as ".", a comma, any operator as "="."""
    return [_class(token) for token in TOKEN.findall(text.lower().replace("\u2019", "'"))]


def _class(token: str) -> str:
    if token[0].isalpha() or token == ",":
        return token
    if token[0] in ".!?;:\n":
        return "."
    return "#" if token[0] in "$#" or token[0].isdigit() else "="
