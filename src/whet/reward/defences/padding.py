"""Length without content: sentences said again, loops, stock phrases, blank lines and rows of the same character."""

from __future__ import annotations

import re
import zlib

from whet.reward.defences.reading import Kind, defence_score, prose, sentences, terms, words
from whet.reward.repetition import echoed_share, looped_share, repeated_sentence_share
from whet.types import Prompt

STOCK = re.compile(
    r"let(?:'s| us| me) (?:take a (?:moment|step)|think (?:about )?(?:this|it)|consider (?:this|all|every|the matter)|"
    r"reflect|ponder|delve|begin by (?:saying|noting)|be (?:very )?careful)"
    r"|(?:it is|it's) (?:very |quite |truly |also |always )?(?:important|worth|crucial|essential|vital|interesting|"
    r"helpful|useful|necessary) (?:to|noting|mentioning|remember)"
    r"|as (?:i|we) (?:have )?(?:already |just |previously )?(?:said|mentioned|noted|stated|discussed|explained)"
    r"|(?:in|with) (?:other words|this in mind|all things considered|light of (?:this|the above)|conclusion, it)"
    r"|needless to say|at the end of the day|when all is said and done|without further ado|that being said"
    r"|this is (?:a|an) (?:very |truly |really |quite )?(?:good|great|important|interesting|fascinating|deep|profound|"
    r"complex|excellent|thoughtful|challenging) (?:question|problem|point|topic|issue|matter)"
    r"|(?:deserves|requires|demands|merits) (?:careful|close|deep|thorough|our full|serious|great)"
    r"|(?:take|taking) (?:everything|all (?:of )?(?:this|these|factors|aspects))? ?into (?:account|consideration)"
    r"|there are many (?:ways|things|factors|aspects|points|angles|sides)|step by step and with (?:great )?care"
    r"|(?:careful|thorough|deep|detailed|further|close) (?:consideration|thought|thinking|reflection) (?:is|of)"
    r"|(?:keep|bear)(?:ing)? (?:this |that |all of this )?in mind|(?:i|we) (?:will|shall|want to|would like to) now "
    r"(?:continue|proceed|go on|keep)|(?:so|and) (?:on|forth)[.,]? (?:and )?so (?:on|forth)|to be (?:perfectly |very )?"
    r"(?:clear|sure|honest|thorough|precise)|continu(?:e|ing) to (?:think|reason|reflect|consider|analy[sz]e)",
    re.IGNORECASE,
)
SAME_CHARACTER = re.compile(r"([^\w])\1{11,}|(\w)\2{15,}|(?:[^\w\n]{1,3}\n){8,}|(?:[ \t]{0,80}\n){6,}", re.DOTALL)

NUMBERING = re.compile(r"^\W*(?:step )?\d*\W{0,3}")
LEAST_WORDS = 5  # of a sentence that counts as said again
DENSE_CHARACTERS = 500


def padding(
    prompt: Prompt,
    completion: str,
    *,
    kind: Kind = "penalty",
    most_repeated: float = 0.3,
    most_stock: float = 0.5,
    least_density: float = 0.16,
) -> float:
    """A penalty: 0 down to -1, the lower the more of the completion is filler (as a gate: 1 to 0).

    Filling is the share above `most_repeated` of words in sentences or in rows of eight words said before, or of
    characters in long runs of one; or 1 where over half of the text circles among a few words, where more than
    `most_stock` of at least five sentences are phrases that fit any question, or where a long text packs to less
    than `least_density` of its size.
    """
    said_again = repeated_sentence_share(*_counted_sentences(completion))
    repeated = max(said_again, echoed_share(terms(completion)), run_share(completion))
    suspicion = max(0.0, (repeated - most_repeated) / (1 - most_repeated)) if most_repeated < 1 else 0.0
    if (
        looped_share(terms(prose(completion))) > 0.5
        or stock_share(completion) > most_stock
        or density(completion) < least_density
    ):
        suspicion = 1.0
    return defence_score(min(suspicion, 1.0), kind)


def _counted_sentences(completion: str) -> tuple[list[tuple[str, int]], int]:
    """The sentences long enough to count, without their numbering, each with its words; and the words of all."""
    counted = [(sentence, len(sentence.split())) for sentence in sentences(completion)]
    bare = ((NUMBERING.sub("", sentence), length) for sentence, length in counted if length >= LEAST_WORDS)
    long = [(sentence, length) for sentence, length in bare if len(words(sentence)) >= LEAST_WORDS - 1]
    return long, sum(length for _, length in counted)


def run_share(completion: str) -> float:
    """The share of characters in long rows of the same one, blank lines too."""
    runs = [len(match[0]) for match in SAME_CHARACTER.finditer(completion)]
    return sum(runs) / len(completion) if sum(runs) >= 80 else 0.0


def stock_share(completion: str) -> float:
    """The share of sentences that say nothing about the question; figures in a sentence speak for it."""
    spans = [sentence for sentence in sentences(prose(completion)) if len(sentence.split()) >= 4]
    if len(spans) < 5:
        return 0.0
    return sum(STOCK.search(sentence) is not None and not re.search(r"\d", sentence) for sentence in spans) / len(spans)


def density(completion: str) -> float:
    """Size when packed over size; 1 for a short text, where it says nothing.

    A character counts as one byte in every script that has an alphabet: in UTF-8 most scripts take two or three of
    them, of which all but the last hardly change.
    """
    alphabet = {character: index for index, character in enumerate(dict.fromkeys(completion))}
    if completion.isascii() or len(alphabet) > 256:
        raw = completion.encode(errors="replace")
    else:
        raw = bytes(alphabet[character] for character in completion)
    return len(zlib.compress(raw, 9)) / len(raw) if len(raw) >= DENSE_CHARACTERS else 1.0
