"""A small classifier of sentences: does this one speak to a grader, or praise the reply?

Logistic regression on hashed n-grams of words and characters, on the concepts of `grading_concepts.toml`, and on
whether the sentence shares a word with the question. `python -m benchmarks.trust._train_classifier` trains it and
writes `suspect_sentences.json`, with its error rates; nothing here needs more than the standard library.
"""

from __future__ import annotations

import base64
import functools
import json
import math
import re
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from whet.reward.defences.reading import FENCED, content_stems, prose, whole_prompt
from whet.reward.repetition import without_marks
from whet.types import Prompt

WEIGHTS = Path(__file__).parent / "suspect_sentences.json"
CONCEPTS = Path(__file__).parent / "grading_concepts.toml"
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+|(?<=[\u3002\uff01\uff1f\u0964])")
OTHER_SCRIPT = re.compile("[\u0370-\u1fff\u2e80-\uffef]")
SIZE = 1 << 14  # of the table of weights
LONGEST_READ = 20_000  # characters
LONGEST_SENTENCE = 400
SHORTEST_SENTENCE = 12
COMMENT = re.compile(r"(?:#|//|--)\s?([^\n]{12,300})")


@dataclass(frozen=True)
class SentenceModel:
    """Weights by hashed feature, and the scores from which a reply is suspect."""

    weights: tuple[float, ...]
    bias: float
    threshold: float  # where there is no gold answer
    checked_threshold: float  # where there is one: such replies need not speak of themselves

    def score(self, question_stems: set[str], sentence: str) -> float:
        """How suspect a sentence is: the higher, the more."""
        return self.bias + sum(value * self.weights[feature] for feature, value in features(question_stems, sentence))


def suspect_sentences(prompt: Prompt, completion: str, *, threshold: float = 0.0) -> float:
    """A penalty: 0, or -1 where a small classifier takes a sentence for words to a grader or praise of the reply.
    `threshold` is added to the trained one: above 0 for fewer alarms, below 0 for more.

    It goes by likeness to the corpora it was trained on, and errs in both directions: its rates are in its file. Beside
    a judge it is not needed: a judge cuts such sentences before it marks.
    """
    model = sentence_model()
    limit = model.threshold if prompt.answer is None else model.checked_threshold
    return 0.0 - float(suspicion(prompt, completion) > limit + threshold)


def suspicion(prompt: Prompt, completion: str) -> float:
    """The score of the most suspect sentence; minus infinity without any."""
    model, stems = sentence_model(), content_stems(whole_prompt(prompt))
    return max((model.score(stems, sentence) for sentence in sentences_of(completion)), default=-math.inf)


def sentences_of(completion: str) -> Iterator[str]:
    """The sentences of the prose, and the comments of the code."""
    text = completion[:LONGEST_READ]
    for sentence in SENTENCE.split(prose(text)):
        plain = " ".join(sentence.split())
        if is_sentence(plain):
            yield plain[:LONGEST_SENTENCE]
    for block in FENCED.findall(text):
        yield from COMMENT.findall(block)


def is_sentence(plain: str) -> bool:
    """Long enough to be judged: a few letters of an alphabet, fewer signs of another script."""
    return len(plain) >= (SHORTEST_SENTENCE if plain.isascii() else SHORTEST_SENTENCE // 2)


def features(question_stems: set[str], sentence: str) -> list[tuple[int, float]]:
    """(place in the table, value) of everything the classifier sees in a sentence."""
    plain = re.sub(r"\d+", "0", without_marks(sentence).casefold())
    words = re.findall(r"\w+", plain)
    padded = f" {' '.join(words)} "
    grams = [f"w{word}" for word in words] + [f"b{a} {b}" for a, b in pairwise(words)]
    spelled = [padded[start : start + size] for size in (3, 4, 5) for start in range(max(len(padded) - size + 1, 0))]
    if not plain.isascii():
        spelled += [padded[start : start + 2] for start in range(len(padded) - 1)]
    weighted = [(gram, 1 / math.sqrt(len(grams))) for gram in grams]
    weighted += [(f"s{gram}", 1 / math.sqrt(len(spelled))) for gram in spelled]
    flags = [f"c{name}" for name in sorted(concepts_in(sentence))]
    shared = content_stems(sentence) & question_stems
    flags += ["off topic" if not shared else "on topic", "figures" if "0" in plain else "no figures"]
    flags += [f"length {min(len(words) // 4, 6)}"]
    weighted += [(f"f{flag}", 0.5) for flag in flags]
    return [(zlib.crc32(text.encode()) % SIZE, value) for text, value in weighted]


def concepts_in(sentence: str) -> set[str]:
    """The concepts of grading that a sentence speaks of."""
    known = concepts(OTHER_SCRIPT.search(sentence) is not None)
    return {name for name, pattern in known.items() if pattern.search(sentence)}


@functools.cache
def concepts(other_scripts: bool) -> dict[str, re.Pattern[str]]:
    """Name to pattern; of a text in Latin letters, what is written in others need not be looked for."""
    read: dict[str, list[str]] = tomllib.loads(CONCEPTS.read_text(encoding="utf-8"))
    chosen = {
        name: [text for text in texts if other_scripts or not OTHER_SCRIPT.search(text)] for name, texts in read.items()
    }
    return {name: re.compile("|".join(texts), re.IGNORECASE | re.MULTILINE) for name, texts in chosen.items()}


@functools.cache
def sentence_model() -> SentenceModel:
    """The trained classifier, read once."""
    read = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    table = zlib.decompress(base64.b85decode(read["weights"]))
    scale = float(read["scale"])
    weights = tuple((value - 256 if value > 127 else value) * scale for value in table)
    return SentenceModel(weights, float(read["bias"]), float(read["threshold"]), float(read["checked_threshold"]))
