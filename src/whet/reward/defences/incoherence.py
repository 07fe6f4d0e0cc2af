"""Reasoning that is none: random letters, symbol noise, words in no order, one phrase over and over."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from whet.reward.defences.reading import (
    Kind,
    defence_score,
    prose,
    terms,
    thinking,
    word_set,
    words,
    working,
)
from whet.reward.repetition import looped_share, without_marks
from whet.types import Prompt

# the pairs of letters that make up most of any text in a Latin script
COMMON_PAIRS = word_set(
    "th he in er an re on at en nd ti es or te of ed is it al ar st to nt ng se ha as ou io le ve co me de hi ri ro ic "
    "ne ea ra ce li ch ll be ma si om ur ca el ta la ns di fo ho pe ec pr no ct us ac ot il tr ly nc et ut ss so rs un "
    "lo wa ge ie wh ee wi em ad ol rt po we na ul ni ts mo ow pa im mi ai sh ir su id os iv ia am fi ci vi pl ig tu ev "
    "ld ry mp fe bl ab gh ty op wo sa ay ex ke ui ei qu da mu up pp ff bo tt ag ap cu do gr gi go mb nu oo ck au br bu "
    "av ks ue uc cl cr rd rm rn ru sc sp sq bi ba by ep eq eg ew ey fa fr ga gu hu if ip ke ki kn ls ub ud um vo ye rk"
)
GLUE = word_set(
    "the a an and or but so if then of to in on at by for from with as is are was were be been it its this that these "
    "those he she they we you i his her their our your my not no do does did has have had can will would there here "
    "which who what when where how than more each all some per let now get so thus since because also only into out "
    "de la el los las que y en un una es por con para se del le les des et du est une dans pour qui sur pas au der die "
    "das und ist nicht ein eine zu den dem mit von auf im wir sie er il che di e per non sono con si lo da o os uma em "
    "do na no um para com não é det och att som en på är af og til på ikke het een van niet je ik we"
)
DETERMINERS = word_set("the a an its his their our my your her")
NEVER_AFTER = word_set(
    "the a an of to is are was were be and or but if then that this these those it he she they we you i at by from with"
    " not will would have had has do does did can so because when where who"
)
LATIN_WORD = re.compile(r"(?<![\w\\])[a-z]{2,}(?!\w)")
NOISE = re.compile(r"[^\w\s.,;:!?|'\"()\-+*/=%$\u2019\u201c\u201d\u2013\u2014\u00b0\u00b2\u00b3\u00d7\u00f7\u2022]")

LEAST_CHARACTERS = 24


def incoherent_reasoning(
    prompt: Prompt, completion: str, *, kind: Kind = "penalty", least_pairs: float = 0.45, least_glue: float = 0.06
) -> float:
    """A penalty: 0, or -1 where the working is no language (as a gate: 1, or 0).

    `least_pairs` is the share of letter pairs that must be common ones, `least_glue` that of small words in a long
    English or similar text. Formulas and code are left out; scripts without such pairs are judged by noise and
    repetition alone. Good sentences about something else pass: they need a judge.
    """
    shown = without_marks(working(completion))
    text = prose(shown)
    if is_bare(shown):
        return defence_score(1.0, kind)
    if len(re.sub(r"\s", "", text)) < LEAST_CHARACTERS:
        return defence_score(0.0, kind)
    text_words = words(text)
    caught = (
        is_garbled(text, least_pairs)
        or is_noise(text)
        or looped_share(terms(text)) > 0.5
        or is_glueless(text, text_words, least_glue, listed=not thinking(completion))
        # a single capital is a name, as in "packet A is"
        or is_shuffled(words(re.sub(r"\b\d*[A-Z]\b", " ", text)))
    )
    return defence_score(float(caught), kind)


def is_garbled(text: str, least_pairs: float) -> bool:
    """Too few of the letter pairs inside words are common ones."""
    pairs = [first + second for word in LATIN_WORD.findall(text.lower()) for first, second in pairwise(word)]
    return len(pairs) >= 20 and sum(pair in COMMON_PAIRS for pair in pairs) < least_pairs * len(pairs)


def is_bare(text: str) -> bool:
    """Hardly a letter or digit in it, formulas included."""
    printed = re.sub(r"\s", "", text)
    return len(printed) >= LEAST_CHARACTERS and sum(character.isalnum() for character in printed) < 0.2 * len(printed)


def is_noise(text: str) -> bool:
    """A large part of what is printed is neither letter, digit nor the punctuation of sentences and sums."""
    printed = re.sub(r"\s", "", text)
    noise = NOISE.findall(printed)
    letters = [character for character in printed if character.isalpha()]
    if sum(not character.isascii() for character in letters) > 0.5 * len(printed):
        # other scripts have punctuation of their own, some of it between any two syllables
        noise = [character for character in noise if unicodedata.category(character)[0] != "P"]
    return len(printed) > 0 and len(noise) > 0.35 * len(printed)


def is_glueless(text: str, found: list[str], least_glue: float, listed: bool) -> bool:
    """A long text of words that nothing holds together: no articles, prepositions, pronouns, figures or sums.

    Where a completion may be a plain list (`listed`), commas and line breaks hold it together.
    """
    latin = [word for word in found if word.isascii() and len(word) > 1]
    counted = len(re.findall(r"\d+|[=+:]", text))
    if len(latin) < 20 or len(latin) < 0.8 * len(found) or counted > 0.15 * len(latin):
        return False
    if listed and len(re.findall(r"[,;\n]", text)) > 0.15 * len(latin):
        return False
    return sum(word in GLUE for word in found) < least_glue * len(found)


def is_shuffled(found: list[str]) -> bool:
    """Articles and possessives stand where none can: "the of", "a is", "the the"."""
    followers = [second for first, second in pairwise(found) if first in DETERMINERS]
    wrong = sum(word in NEVER_AFTER for word in followers)
    return len(followers) >= 4 and wrong >= 3 and wrong > 0.2 * len(followers)
