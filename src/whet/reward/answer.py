"""The explicit final answer of a completion, and the reward for an exact one.

Nothing is guessed: a completion without a marked answer has none, whatever numbers it mentions, and what stands in
<think>...</think> or <tool_call>...</tool_call> never counts.
"""

from __future__ import annotations

import re
import string
from typing import Any, Literal

from whet.data.gold import after_hashes, bare_answer, boxed, first_line, is_bare_value
from whet.types import Prompt, WhetError

Form = Literal["normal", "words", "strict"]

PHRASE = re.compile(r"\b(?:answer|(?:correct|right) (?:option|choice))(?:\*\*)?\s*(?:is\b\s*:?|:)", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<!\\)[.!?](?=\s|$)")  # `\!` is a space of TeX
NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
MARK = re.compile(r"\\(?:boxed|fbox)\b|</answer>")
ARTICLES = frozenset(("a", "an", "the"))
PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
TOOL_CALL = ("<tool_call>", "</tool_call>")
THOUSANDS = re.compile(r"[+-]?(?!0,)[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")


def exact_answer(prompt: Prompt, completion: str, *, form: Form = "normal", any_of: bool = False) -> float:
    """1 when every explicit answer of the completion equals the gold answer, else 0.

    Every, not any: a completion that names two different answers is guessing. `form` says what equal means: "normal"
    (`normal_form`), "words" (`word_form`, for names and short phrases) or "strict" (the very same characters, the
    white space around them aside). `any_of` reads a list in the gold answer as several answers that are all right.
    """
    changed = FORMS[form]
    gold_answer = gold_text(prompt, "exact_answer")
    alternatives = prompt.answer if any_of and isinstance(prompt.answer, list | tuple) else [gold_answer]
    gold = {changed(alternative) for alternative in alternatives}
    answers = {changed(answer) for answer in explicit_answers(completion)}
    # "x = 7" says \boxed{7} again, and a sentence says something about it
    bare_values = [changed(text) for text in said_after_marks(completion) if is_bare_value(text)]
    later = {text for text in bare_values if not any(answer in text for answer in answers)}
    return float(len(answers | later) == 1 and answers <= gold)


def gold_text(prompt: Prompt, reward: str) -> str:
    """The gold answer as text; a prompt without one is a mistake in the data."""
    text = "" if prompt.answer is None else str(prompt.answer)
    if not normal_form(text):
        raise WhetError(
            f"reward {reward!r} compares with a gold answer, and prompt {prompt.id!r} has none; "
            "give the row an `answer`, or leave the row out"
        )
    return text


def final_answer(completion: str) -> str | None:
    """The last of: <answer>...</answer>, else \\boxed{...}, else after ####, else after "answer is"."""
    text = final_part(completion)
    for kind in (tagged, boxed, after_hashes, after_phrase):
        candidates = kind(text)
        if candidates:
            return candidates[-1] or None
    return None


def explicit_answers(completion: str) -> list[str]:
    """Every answer the completion commits to, the final one last; [] where `final_answer` is None.

    Boxes outside <answer> tags count beside them; the looser marks count only where there is nothing better.
    """
    if final_answer(completion) is None:
        return []
    text = final_part(completion)
    return (boxed(text) + tagged(text)) or after_hashes(text) or after_phrase(text)


def said_after_marks(completion: str) -> list[str]:
    """The answers stated after the last box or <answer>, as in `\\boxed{7} Actually the answer is 8.`"""
    text = final_part(completion)
    last = max((match.end() for match in MARK.finditer(text)), default=None)
    return [] if last is None else after_phrase(text[last:])


def final_part(completion: str) -> str:
    """What follows the thinking, tool calls left out; nothing while the thinking is unfinished."""
    text = after_thinking(completion)
    if TOOL_CALL[0] not in text:
        return text
    pieces = text.split(TOOL_CALL[0])
    # what follows a call that is never closed belongs to the call
    return pieces[0] + "".join(piece.partition(TOOL_CALL[1])[2] for piece in pieces[1:])


def after_thinking(completion: str) -> str:
    """What follows the thinking; nothing while the thinking is unfinished."""
    text = completion.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def word_form(answer: Any) -> str:
    """`normal_form` of an answer in words, its articles and punctuation left out."""
    text = normal_form(answer)
    if NUMBER.fullmatch(text):
        return text
    words = text.translate(PUNCTUATION).split()
    return " ".join(word for word in words if word not in ARTICLES) or text


def normal_form(answer: Any) -> str:
    """Equal for answers that differ in spacing, case, a final period, thousands separators, a plus sign,
    leading zeros or a zero fraction. Only ASCII digits are numbers."""
    text = " ".join(str(answer).split()).casefold()
    text = text.removesuffix(".").rstrip()
    # before spaces are dropped: "32, 349" is two numbers
    text = text.replace(",", "") if THOUSANDS.fullmatch(text) else re.sub(r" ?, ?", ", ", text)
    match = NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return text
    whole = match[2].lstrip("0") or "0"
    fraction = (match[3] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return f"-{number}" if match[1] == "-" and number != "0" else number


FORMS = {"normal": normal_form, "words": word_form, "strict": lambda answer: str(answer).strip()}


def tagged(text: str) -> list[str]:
    """Contents of the complete <answer>...</answer>, innermost where they nest; a box inside is unwrapped."""
    texts: list[str] = []
    for piece in text.split("</answer>")[:-1]:
        if "<answer>" in piece:
            content = piece.rpartition("<answer>")[2]
            texts += boxed(content) or [content.strip()]
    return texts


def after_phrase(text: str) -> list[str]:
    """The texts after each "answer is" or "answer:", to the end of the sentence or line."""
    texts = []
    for match in PHRASE.finditer(text):
        line = first_line(text[match.end() : match.end() + 1000].lstrip("* "))
        sentence = SENTENCE_END.split(line)[0]
        # "Answer: the answer is 7" is one answer, and the next match finds it
        if not PHRASE.search(sentence):
            texts.append(bare_answer(sentence))
    return texts
