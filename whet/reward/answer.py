"""The explicit final answer of a reply, and the reward for an exact one.

Nothing is guessed: a reply without a marked answer has none, whatever numbers it mentions, and what stands in
<think>...</think> never counts.
"""

from __future__ import annotations

import re
from typing import Any

from whet.types import Prompt, WhetError

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
PHRASE = re.compile(r"\banswer(?:\*\*)?\s*(?:is\b\s*:?|:)", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?")


def exact_answer(prompt: Prompt, reply: str) -> float:
    """1 when every explicit answer of the reply equals the gold answer after `normal_form`, else 0.

    Every, not any: a reply that names two different answers is guessing.
    """
    gold = normal_form(gold_text(prompt, "exact_answer"))
    found = explicit_answers(reply)
    return float(bool(found) and all(normal_form(answer) == gold for answer in found))


def gold_text(prompt: Prompt, reward: str) -> str:
    """The gold answer as text; a prompt without one is a mistake in the data."""
    text = "" if prompt.answer is None else str(prompt.answer)
    if not normal_form(text):
        raise WhetError(
            f"reward {reward!r} compares with a gold answer, and prompt {prompt.id!r} has none; "
            "give the row an `answer`, or leave the row out"
        )
    return text


def final_answer(reply: str) -> str | None:
    """The last of: <answer>...</answer>, else \\boxed{...}, else after ####, else after "answer is"."""
    text = final_part(reply)
    for kind in (tagged, boxed, after_hashes, after_phrase):
        found = kind(text)
        if found:
            return found[-1] or None
    return None


def explicit_answers(reply: str) -> list[str]:
    """Every answer the reply commits to, the final one last; [] where `final_answer` is None.

    Boxes outside <answer> tags count beside them; the looser marks count only where there is nothing better.
    """
    if final_answer(reply) is None:
        return []
    text = final_part(reply)
    return (boxed(text) + tagged(text)) or after_hashes(text) or after_phrase(text)


def final_part(reply: str) -> str:
    """What follows the thinking; nothing while the thinking is unfinished."""
    text = reply.rpartition("</think>")[2]
    return "" if "<think>" in text else text


def normal_form(answer: Any) -> str:
    """Equal for answers that differ in spacing, case, a final period, thousands separators, a plus sign,
    leading zeros or a zero fraction. Only ASCII digits are numbers."""
    text = " ".join(str(answer).split()).casefold()
    text = re.sub(r" ?, ?", ",", text)
    text = text.removesuffix(".").rstrip()
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    match = NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return text
    whole = match[2].lstrip("0") or "0"
    fraction = (match[3] or "").rstrip("0")
    number = f"{whole}.{fraction}" if fraction else whole
    return f"-{number}" if match[1] == "-" and number != "0" else number


def tagged(text: str) -> list[str]:
    """Contents of the complete <answer>...</answer>, innermost where they nest; a box inside is unwrapped."""
    found: list[str] = []
    for piece in text.split("</answer>")[:-1]:
        if "<answer>" in piece:
            content = piece.rpartition("<answer>")[2]
            found += boxed(content) or [content.strip()]
    return found


def boxed(text: str) -> list[str]:
    """Contents of the complete boxes, braces balanced; of a box around a box, what the inner one holds."""
    spans: list[tuple[int, int]] = []
    opened: list[tuple[int, bool]] = []
    for match in BOX.finditer(text):
        if match[0].endswith("{") and match[0] != r"\{":
            opened.append((match.end(), len(match[0]) > 1))
        elif match[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box and not (spans and spans[-1][0] >= start):
                spans.append((start, match.start()))
    return [text[start:end].strip() for start, end in spans]


def after_hashes(text: str) -> list[str]:
    """What stands after each ####, to the end of its line or on the next line that is not blank."""
    return [_first_line(piece) for piece in text.split("####")[1:]]


def after_phrase(text: str) -> list[str]:
    """What stands after each "answer is" or "answer:", to the end of the sentence or line."""
    found = []
    for match in PHRASE.finditer(text):
        line = _first_line(text[match.end() : match.end() + 1000].lstrip("* "))
        sentence = SENTENCE_END.split(line)[0]
        # "Answer: the answer is 7" is one answer, and the next match finds it
        if not PHRASE.search(sentence):
            found.append(_bare(sentence))
    return found


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return _bare(lines[0]) if lines else ""


def _bare(text: str) -> str:
    text = text.strip().strip("*`").strip()
    wrapped = len(text) > 2 and text[0] == "$" == text[-1]
    return text[1:-1].strip() if wrapped else text
