"""The reward for picking the right one of several choices, by its letter or by its text."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
from typing import Any

from whet.reward.answer import explicit_answers, final_part, gold_text, word_form
from whet.types import Prompt, WhetError

LONGEST_ANSWER = 1000  # characters; a longer answer is no choice
# the letter at the head of an answer: C, (c), [C], C., C), **C**, option C, choice (b), the answer C: text
HEAD = re.compile(
    r"(?:(?:the\s+)?(?:correct\s+|right\s+|best\s+|final\s+)*(?:option|choice|answer|letter)\s*(?:is\b)?:?\s*)?"
    r"[\s\"'*$({\[]*(?:\\(?:text|textbf|mathrm|mathbf)\{\s*\(?)?([A-Za-z])(?![A-Za-z'\u2019])[\s\"'*$)}\]]*(?:[.:)\-,]|$|(?=\s))(.*)",
    re.DOTALL | re.IGNORECASE,
)
# where nothing is marked as the answer: "option C" anywhere, or a letter that is all of the last line
MENTION = re.compile(r"\b(?:option|choice)\s*[\s\"'*(\[]*([A-Z])\b(?!['\u2019])", re.IGNORECASE)
ALONE = re.compile(r"[\s\"'*$(\[]*([A-Z])[\s\"'*$)\].]*")
LISTED = re.compile(r"^[ \t]*[(\[]?([A-Z])[)\].:][ \t]+(.+?)[ \t]*$", re.MULTILINE)


def choice_answer(prompt: Prompt, completion: str, *, column: str = "choices", first: int = 0) -> float | None:
    """1 when the completion picks the gold choice and no other, else 0; None where the gold one cannot be found.

    The choices are the prompt's `column`: a list of texts, {"label": [...], "text": [...]} or {"A": text, ...}; where
    there is none they are the lines "A) ..." of the question. The gold answer is a letter, a choice's text, or the
    number of the choice, counted from `first`. The completion may give the letter in any of the usual ways ("(b)",
    "option C", "C. text") or the choice's text; a letter with another choice's text is two answers.
    """
    choices = _choices(prompt, column)
    gold = _gold(prompt, choices, column, first)
    if gold is None:
        return None
    answers = explicit_answers(completion)
    picked = (
        [_picked(answer, choices) for answer in answers] if answers else _mentioned(final_part(completion), choices)
    )
    return float(bool(picked) and all(letter == gold for letter in picked))


def _choices(prompt: Prompt, column: str) -> dict[str, str]:
    """Letter -> text, the texts "" where the row gives only letters."""
    listed = prompt.meta.get(column)
    if isinstance(listed, Mapping):
        labels, texts = listed.get("label", listed.get("labels")), listed.get("text", listed.get("texts"))
        if isinstance(labels, Sequence) and isinstance(texts, Sequence) and len(labels) == len(texts):
            letters = _letters(labels)
            return dict(zip(letters, map(str, texts), strict=True))
        return {str(letter).strip().upper(): str(text) for letter, text in listed.items()}
    if isinstance(listed, Sequence) and not isinstance(listed, str):
        if len(listed) > len(string.ascii_uppercase):
            raise WhetError(f"prompt {prompt.id!r} has {len(listed)} choices; reward 'choice_answer' knows 26 letters")
        return {
            letter: _without_letter(str(text), letter)
            for letter, text in zip(string.ascii_uppercase, listed, strict=False)
        }
    if listed is not None:
        raise WhetError(
            f"column {column!r} of prompt {prompt.id!r} is a {type(listed).__name__}; "
            "reward 'choice_answer' needs a list of choices there"
        )
    return dict(LISTED.findall(prompt.question()))


def _letters(labels: Sequence[Any]) -> list[str]:
    """The labels as letters: some rows of public sets count their choices 1, 2, 3, 4."""
    texts = [str(label).strip().upper() for label in labels]
    return texts if all(text.isalpha() for text in texts) else list(string.ascii_uppercase[: len(texts)])


def _without_letter(text: str, letter: str) -> str:
    match = re.match(rf"\s*[(\[]?{letter}[)\].:]\s+", text)
    return text[match.end() :] if match else text


def _gold(prompt: Prompt, choices: Mapping[str, str], column: str, first: int) -> str | None:
    answer = prompt.answer
    if isinstance(answer, int) and not isinstance(answer, bool):
        index = answer - first
        return list(choices)[index] if 0 <= index < len(choices) else None
    text = gold_text(prompt, "choice_answer").strip()
    listed = prompt.meta.get(column)
    labels = listed.get("label", listed.get("labels")) if isinstance(listed, Mapping) else None
    if isinstance(labels, Sequence) and text in map(str, labels):
        return list(choices)[[str(label) for label in labels].index(text)]
    by_text = [letter for letter, choice in choices.items() if choice and word_form(choice) == word_form(text)]
    letter = ALONE.fullmatch(text.upper())
    if letter is not None and (letter[1] in choices or not choices):
        return letter[1]
    if len(by_text) == 1:
        return by_text[0]
    if text.isdecimal() and 0 <= int(text) - first < len(choices):
        return list(choices)[int(text) - first]
    picked = _picked(text, choices)
    return picked if picked in choices else None


def _picked(answer: str, choices: Mapping[str, str]) -> str | None:
    """The letter an answer means; None for one that means no choice, or two."""
    if len(answer) > LONGEST_ANSWER:
        return None
    by_text = [letter for letter, text in choices.items() if text and word_form(text) == word_form(answer)]
    if len(by_text) == 1:
        return by_text[0]
    match = HEAD.fullmatch(answer.strip())
    if match is None:
        return None
    letter, rest = match[1].upper(), match[2].strip().strip("*}$ ")
    if choices and letter not in choices:
        return None
    # "A or B" and "A, B" are two answers, "a dog" is no letter
    if re.match(r"(?:and|or|,|/|&)?\s*\(?[A-Z]\)?[.,]?$", rest) or re.match(r"(?:and|or|&|/)\b", rest):
        return None
    others = [other for other, text in choices.items() if other != letter and text]
    if any(word_form(choices[other]) == word_form(rest) for other in others):
        return None
    # "A dog" is a noun and its article, "A because ..." is a letter and a reason
    if rest and re.match(r"\W*[AI] [a-z]", answer) and not re.match(r"(?:because|since|as|which|is|for)\b", rest):
        return letter if word_form(rest) == word_form(choices.get(letter, "")) else None
    if rest and answer.strip()[:1].islower() and not re.match(r"(?i)\W*(?:the|option|choice|answer|letter)", answer):
        return letter if word_form(rest) == word_form(choices.get(letter, "")) else None
    return letter


def _mentioned(text: str, choices: Mapping[str, str]) -> list[str | None]:
    """The picks of a completion that marks no answer: its last line when that is a choice, else each "option C"."""
    lines = text.strip().splitlines()
    if not lines:
        return []
    last = lines[-1].strip()
    if (
        ALONE.fullmatch(last)
        or LISTED.fullmatch(last)
        or any(choice and word_form(choice) == word_form(last) for choice in choices.values())
    ):
        return [_picked(last, choices)]
    return [match.upper() for match in MENTION.findall(text)]
