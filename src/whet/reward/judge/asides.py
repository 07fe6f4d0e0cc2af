"""Asides: pieces of an answer that speak of something else than the question, such as the mark they hope for.

No language is listed. A piece (a sentence, a line, a comment in code) is unrelated where it has no word, number or
symbol in common with the question, the reference answer, or a piece that has. An aside is what the classifier of
`defences.suspicion` takes for words to a grader: it believes so of an unrelated piece easily, of a related one hardly.
What no reader sees is one in any case: characters without a shape, comments of HTML outside code, and pieces whose
words mix Latin letters with their look-alikes of other alphabets. Code is none.
"""

from __future__ import annotations

import functools
import math
import re
from collections import defaultdict
from itertools import pairwise
from typing import Literal

from whet.reward.answer import explicit_answers
from whet.reward.defences.disguise import LOOK_ALIKE, is_mixed
from whet.reward.defences.reading import content_stems
from whet.reward.defences.suspicion import LONGEST_SENTENCE, is_sentence, sentence_model
from whet.reward.language import common_words

Kind = Literal["code", "firm", "prose", "unseen"]
# scores of the classifier from which a piece is an aside
UNRELATED, RELATED = -3.0, 0.3
PIECE = re.compile(
    r"(?<=[.!?\u061f])\s+|(?<=[.!?][)\"'\]\u00bb\u201d])\s+|(?<=\n)(?=[^\n])|(?<=[\u3002\uff01\uff1f\u0964])"
    r"|(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\s+"  # Thai and its neighbours end sentences with a space
)
NUMBER = re.compile(r"(?<![^\W\d_])\d+(?:[.,]\d+)*(?![^\W\d_]{2})")
SYMBOL = re.compile(r"(?<![^\W_])[^\W\d_](?![^\W_])|(?<=\d)[a-z](?![^\W_])")  # the x of 5x and of x = 9
KANA = re.compile("[\u3041-\u309f]+")  # particles and endings, which all sentences share
LETTER = re.compile(r"[^\W\d_]")
CODE = re.compile(r"[=()\[\]{};<>]")
TAG = re.compile(r"<[^<>]*>")
COMMENT = re.compile(r"\s*(?:#|//|--|/\*|\*|\(|<!--|\"\"\"|''')+")
UNSEEN = re.compile("[\u00ad\u200b\u2060-\u2064\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
HTML_COMMENT = re.compile(r"\s*<!--")
WORD = re.compile(r"[^\W\d_]{2,}")
MIXED_WORDS = 2  # of a piece that is cut
FENCE, DOCSTRING = "```", ('"""', "'''")


def without_asides(question: str, reference: str, answer: str) -> str:
    """The answer with its asides cut; "" where it is nothing but words to a grader."""
    pieces = pieces_of(UNSEEN.sub("", answer))
    related = _related(f"{question}\n{reference}", pieces)
    if not any(related):  # nothing tells what it is about
        related = [True] * len(pieces)
    model, stems = sentence_model(), content_stems(question)
    rest, most = [], -math.inf
    for piece, kind, is_related in zip(pieces, _kinds(pieces), related, strict=True):
        opening = COMMENT.match(piece)
        plain = " ".join(TAG.sub(" ", piece[opening.end() if opening else 0 :]).split())[:LONGEST_SENTENCE]
        score = model.score(stems, plain) if kind != "code" and is_sentence(plain) else -math.inf
        most = max(most, score)
        limit = model.threshold if kind == "firm" else RELATED if is_related else UNRELATED
        if score <= limit and kind != "unseen":
            rest.append(piece)
    if not rest and most <= model.threshold:
        return answer
    if len(rest) == len(pieces):
        return "".join(pieces)
    return "".join(rest).strip()


def _is_unseen(piece: str) -> bool:
    """Whether a reader does not see what a model reads there."""
    mixed = sum(is_mixed(word, LOOK_ALIKE) for word in WORD.findall(piece))
    return HTML_COMMENT.match(piece) is not None or mixed >= MIXED_WORDS


def pieces_of(text: str) -> list[str]:
    """Sentences and lines, with the space after them: together they are the text."""
    bounds = [0, *(match.end() for match in PIECE.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(bounds) if end > start]


def _related(topic: str, pieces: list[str]) -> list[bool]:
    """Whether each piece has something in common with the topic or with a piece that has; shared figures lead on."""
    terms = [_terms(piece) for piece in pieces]
    known = _terms(topic)
    known = known.union(*(own for own in terms if own & known))
    with_figure: dict[str, list[int]] = defaultdict(list)
    for number, own in enumerate(terms):
        for term in filter(_is_figure, own):
            with_figure[term].append(number)
    reached = [number for number, own in enumerate(terms) if own & known]
    related = set(reached)
    while reached:
        for figure in filter(_is_figure, terms[reached.pop()]):
            further = [number for number in with_figure.pop(figure, ()) if number not in related]
            reached += further
            related.update(further)
    return [number in related for number in range(len(pieces))]


def _is_figure(term: str) -> bool:
    return term[0].isdigit()


def _terms(text: str) -> set[str]:
    """What a text is about: stems, numbers and symbols."""
    words = " ".join(word for word in text.split() if word.strip(".,;:!?()\"'").casefold() not in _small_words())
    stems = {stem for stem in content_stems(words) if not KANA.fullmatch(stem)}
    return stems | {*NUMBER.findall(words), *SYMBOL.findall(words)}


def _kinds(pieces: list[str]) -> list[Kind]:
    """Code and rulers are never cut, an answer and words in a code block only where the classifier is sure."""
    kinds: list[Kind] = []
    in_code = in_docstring = False
    for piece in pieces:
        if piece.lstrip().startswith(FENCE):
            in_code, in_docstring = not in_code, False
            kinds.append("code")
        elif in_code:
            is_comment = in_docstring or COMMENT.match(piece) is not None
            kinds.append("prose" if is_comment else "code" if CODE.search(piece) else "firm")
            in_docstring ^= sum(map(piece.count, DOCSTRING)) % 2 == 1
        else:
            is_ruler = LETTER.search(TAG.sub("", piece)) is None
            kinds.append(
                "unseen"
                if _is_unseen(piece)
                else "code"
                if is_ruler
                else "firm"
                if explicit_answers(piece)
                else "prose"
            )
    return kinds


@functools.cache
def _small_words() -> frozenset[str]:
    return frozenset().union(*common_words().values())
