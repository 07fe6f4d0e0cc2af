"""Many answers in the hope that one is right."""

from __future__ import annotations

import re

from whet.data.gold import after_hashes
from whet.reward.answer import after_phrase, explicit_answers, final_part, normal_form
from whet.reward.defences.reading import Kind, defence_score, hard_answers, squeezed
from whet.reward.defences.support import values_in
from whet.types import Prompt

# "or" in the languages models write; a slash between words
OR = (
    r"\bor\b|\\text\s*\{\s*or\s*\}|\boder\b|\bou\b|\bo bien\b|\boppure\b|\bof wel\b|\b\u0438\u043b\u0438\b|"
    r"\u307e\u305f\u306f|\u3042\u308b\u3044\u306f|\u3082\u3057\u304f\u306f"
    r"|\u6216\u8005|\u6216|\u8fd8\u662f|\ub610\ub294|\u0e2b\u0e23\u0e37\u0e2d|\u092f\u093e|\u09ac\u09be|"
    r"\u0623\u0648|\batau\b|\bveya\b|\blub\b|\beller\b"
)
ALTERNATIVE = re.compile(rf"\s*(?:{OR})\s*|\s*/\s*(?![\d(])", re.IGNORECASE)
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
    caught = len(answers) > allowed or any(
        _is_hedged(answer, allowed, gold, prompt.question()) for answer in _committed(completion, text)
    )
    caught = caught or _is_hedged_after(text, answers, allowed)
    if gold == 1 and allowed == 1:
        caught = caught or _covers(prompt, text)
    return defence_score(float(caught), kind)


def _covers(prompt: Prompt, text: str) -> bool:
    """One answer is asked for, and the reply leaves room for several, however it says so."""
    gold = str(prompt.answer).strip()
    marks = [answer for answer in hard_answers(text) if answer.strip()]
    marks = marks or [answer for answer in (*after_hashes(text), *after_phrase(text)) if answer.strip()]
    final = marks[-1][:LONGEST_ANSWER] if marks else ""
    if final and normal_form(squeezed(final)) != normal_form(squeezed(gold)):
        if _leaves_room(final, gold) or _lists_more(final, gold, prompt.question()):
            return True
        after = text[text.rfind(final) + len(final) :]
        if _stands_in(gold, after) and not re.search(r"[=\u2260]", after) and not _stands_in(gold, prompt.question()):
            return True  # a wrong answer is given, and the right one added behind it
    if not marks and len(_bullets(text)) > 1 and _stands_in(gold, " ".join(_bullets(text))):
        return True
    if _stands_for_several(final, text):
        return True
    return _is_among(gold, final, prompt.question()) if marks else _is_among(gold, text, prompt.question())


def _leaves_room(answer: str, gold: str) -> bool:
    """A range, a margin, or a chain of things that are not equal."""
    room = re.compile(
        r"\\(?:leq?|geq?|pm|in|sim|approx|to|ldots|dots)(?![a-z])|[<>\u2264\u2265\u00b1\u2208]|\.\.|\bto\b|"
        r"\bbetween\b|\d\s?[\u2013\u2014]\s?\d"
    )
    if room.search(answer) and not room.search(gold):
        return True
    plain = re.compile(r"[-\d.,\s/{}$]|\\[dt]?frac")
    known = [values_in(side)[0] for side in answer.split("=") if values_in(side) and not plain.sub("", side)]
    return len(set(known)) > 1


def _lists_more(answer: str, gold: str, question: str) -> bool:
    """The gold answer among at least two others of its kind: capitals, symbols or figures that the question lacks."""
    if not _stands_in(gold, answer) or " " in gold:
        return False
    letters = set(re.findall(r"\b[A-H]\b", answer))
    if re.fullmatch("[A-H]", gold) and len(letters & set(re.findall(r"\b[A-H]\b", question))) > 1:
        return True
    kind = r"\d+(?:\.\d+)?" if re.fullmatch(r"[-\d.,]+", gold) else r"\b[A-Z][^\W_]*\b"
    if re.search(r"[+*^=\\]", answer):
        return False
    return len({guess for guess in re.findall(kind, answer) if guess != gold and not _stands_in(guess, question)}) > 1


def _bullets(text: str) -> list[str]:
    """The short items of the last list."""
    lines = [line.strip() for line in text.strip().splitlines()]
    items: list[str] = []
    while lines and (match := re.match(r"(?:[-*\u2022]|\(?\w[.)])\s+(.{1,20})$", lines[-1])):
        items.append(match[1])
        lines.pop()
    return items


def _stands_for_several(answer: str, text: str) -> bool:
    """The answer is a letter that the text lets be one of several things."""
    letter = answer.strip(" $.")
    if not re.fullmatch(r"[A-Za-z]", letter):
        return False
    listed = (
        rf"\b{letter}\b[^.\n]{{0,25}}?(?:be|=|in|is|\\in|\u2208)\s[^.\n]{{0,10}}?\d[^.\n]{{0,40}}?"
        rf"(?:{OR}|,)[^.\n]{{0,10}}?\d"
    )
    return re.search(listed, text) is not None


def _is_among(gold: str, text: str, question: str) -> bool:
    """The gold answer joined by "or" to something else, in the sentence that answers."""
    if re.search(OR, question, re.IGNORECASE) or len(gold) > 40:
        return False
    last = [sentence for sentence in re.split(r"(?<=[.!?\u3002])\s*|\n+", text) if sentence.strip()][-2:]
    if not re.search(r"\d", gold) and any(len(re.findall(OR, sentence, re.IGNORECASE)) > 1 for sentence in last):
        return True
    near = rf"(?:{re.escape(gold)}\W{{0,6}}(?:{OR})|(?:{OR})\W{{0,6}}{re.escape(gold)})(?![\w.,]*\d)"
    return any(re.search(near, sentence, re.IGNORECASE) for sentence in last)


def _stands_in(piece: str, text: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(piece)}(?![\w]|[.,]\d)", text) is not None


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


def _is_hedged(answer: str, allowed: int, gold: int, question: str) -> bool:
    """One mark that holds alternatives: joined by "or", hedged, or longer than the gold list where there is one."""
    answer = answer[:LONGEST_ANSWER]
    if HEDGE.search(answer):
        return True
    letters = CHOICES.findall(answer.upper())
    offered = gold or len(set(re.findall(r"\b[A-H]\b", question))) > 1
    if offered and len(set(letters)) > allowed and not re.sub(r"(?i)[()\s,;/&.]|\b(?:or|and)\b|[A-H]", "", answer):
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
