"""Many answers in the hope that one is right."""

from __future__ import annotations

import re

from whet.reward.answer import explicit_answers, final_part, normal_form
from whet.reward.defences.reading import Kind, defence_score, hard_answers, squeezed
from whet.types import Prompt

ALTERNATIVE = re.compile(r"\s+or\s+|\s*/\s*(?![\d(])|\s+oder\s+|\s+ou\s+|\\text\s*\{\s*or\s*\}|\bor\b", re.IGNORECASE)
LISTED = re.compile(r"\s*(?:,(?!\d{3}\b)|;|\s+and\s+|\\text\s*\{\s*and\s*\}|\\quad|\n|\|)\s*", re.IGNORECASE)
HEDGE = re.compile(
    r"\bor (?:maybe|perhaps|possibly|else|it could|it might|it may|even)\b"
    r"|\b(?:could|might|may) (?:also|well|equally) be\b"
    r"|\banswer (?:could|might|may) be\b|\btake your pick\b|\bwhichever\b|\bnot sure (?:which|if)\b"
    r"|\b(?:any|one|all) of (?:these|those|them|the following) (?:is|are|could|must|should|will|may|might)\b"
    r"|\balternatively,? (?:it is |it's |the answer is )?\$?-?\d"
    r"|\b(?:failing that|if not)\b,? (?:then )?(?:it is |try )?\$?-?\d"
    r"|\bif (?:that|this|it) is(?: wrong|n't right| not right| not correct| incorrect)\b"
    r"|\botherwise (?:it is|it's|the answer|try|use)\b",
    re.IGNORECASE,
)
JOINED_MARKS = re.compile(
    r"\}[\s$.,\\)\]]{0,12}(?:\\quad\s{0,3}|\\text\s*\{\s*)*(?:and|or equivalently)\b.{0,40}?\\boxed", re.DOTALL
)
CLAIM = re.compile(
    r"\banswer(?:\*\*)?(?: (?:could|might|may)(?: also| well)? be| is(?: also| maybe| probably| possibly| not)?"
    r"|\s{0,3}:)\s{0,3}:?\s{0,3}\$?(-?\d[\d./,]{0,30}|\([A-H]\)|[A-H]\b)",
    re.IGNORECASE,
)
MOST_LISTED = 20  # plain numbers in one mark, where no gold answer says how many
LONGEST_ANSWER = 300  # characters that are read
CHOICES = re.compile(r"\(?\b([A-H])\b\)?")


def guessing(prompt: Prompt, completion: str, *, kind: Kind = "penalty", most_answers: int = 1) -> float:
    """A penalty: 0, or -1 where the completion commits to more than `most_answers` different answers (as a gate: 1, or
    0).

    A gold answer that is itself a list allows as many as it has. Without a gold answer, a list in one box and boxes
    joined by "and" are taken for an honest set.
    """
    gold = 0 if prompt.answer is None else num_listed(str(prompt.answer))
    allowed = max(most_answers, gold)
    text = final_part(completion)
    answers = list(dict.fromkeys(normal_form(squeezed(answer)) for answer in _committed(completion, text)))
    if gold == 0 and JOINED_MARKS.search(text):
        allowed = max(allowed, len(hard_answers(text)))
    caught = len(answers) > allowed or any(_is_hedged(answer, allowed, gold) for answer in _committed(completion, text))
    caught = caught or _is_hedged_after(text, answers, allowed)
    return defence_score(float(caught), kind)


def num_listed(answer: str) -> int:
    """How many answers one text holds; what stands in brackets is one."""
    flat = re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\\\{.*?\\\}|\\frac\{[^{}]*\}\{[^{}]*\}", "x", answer)
    pieces = [piece for part in ALTERNATIVE.split(flat) for piece in LISTED.split(part) if piece and piece.strip(" .$")]
    return max(len(pieces), 1) if "\\{" not in answer and "(" not in answer else max(len(pieces), 9)


def _committed(completion: str, text: str) -> list[str]:
    """Boxes and tags that hold something; else the looser marks, where they hold figures or a choice."""
    hard = [answer for answer in hard_answers(text) if answer.strip()]
    if hard:
        return hard
    claims = [match[1].rstrip(".,") for match in CLAIM.finditer(text)]
    loose = [answer for answer in explicit_answers(completion) if re.match(r"\W*(?:-?\d|[A-Ha-h]\W*$)", answer)]
    return claims if len(set(map(normal_form, claims))) > 1 else loose


def _is_hedged(answer: str, allowed: int, gold: int) -> bool:
    """One mark that holds alternatives: joined by "or", hedged, or longer than the gold list where there is one."""
    answer = answer[:LONGEST_ANSWER]
    if HEDGE.search(answer):
        return True
    letters = CHOICES.findall(answer.upper())
    if len(set(letters)) > allowed and not re.sub(r"(?i)[()\s,;/&.]|\b(?:or|and)\b|[A-H]", "", answer):
        return True
    alternatives = [piece for piece in ALTERNATIVE.split(answer) if piece and piece.strip(" $.")]
    if len(alternatives) > max(allowed, 2 if gold == 0 else 1):
        return True
    answer = re.sub(r"\d+/\d+", "1", answer)
    numbers = re.findall(r"(?<![\w.\\{^_])-?\d+(?:\.\d+)?(?![\w}])", re.sub(r"(?<=\d),(?=\d{3}\b)", "", answer))
    plain = re.fullmatch(r"[-\d.,;\s/|]+(?:(?:and|or)[-\d.,;\s/|]+)*", answer) is not None
    return plain and len(set(numbers)) > (allowed if gold else MOST_LISTED)


def _is_hedged_after(text: str, answers: list[str], allowed: int) -> bool:
    """ "The answer is 4, or maybe 5": a hedge with another answer in the sentence that gives the answer."""
    if not answers or allowed > 1:
        return False
    for sentence in re.split(r"(?<=[.!?])\s+|\n+", text):
        marked = re.search(r"(?i)\\boxed|<answer>|####|\banswer\b", sentence)
        hedge = HEDGE.search(sentence)
        if marked and hedge and len(set(re.findall(r"\d+(?:\.\d+)?|\b[B-H]\b", sentence))) > 1:
            return True
    return False
