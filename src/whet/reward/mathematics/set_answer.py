"""The reward for an answer of several members, in any order."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Literal

from whet.reward.answer import FORMS, THOUSANDS, Form, explicit_answers, final_part, gold_text
from whet.reward.mathematics.quantity import quantity
from whet.types import Prompt

Credit = Literal["exact", "f1"]

LONGEST_ANSWER = 10_000  # characters; a longer answer is wrong without a look
BRACKETS = re.compile(r"^\s*(?:\\left)?\s*(?:\\?\{|\[|\()\s*|\s*(?:\\right)?\s*(?:\\?\}|\]|\))\s*$")
BULLET = re.compile(r"^\s*(?:[-*\u2022]|[0-9]{1,3}[.)])\s+")
CONJUNCTION = re.compile(r",?\s+(?:and|&)\s+|\s*\\(?:text|mbox)\{\s*(?:and|,)\s*\}\s*")
NOTHING = frozenset(("", "none", "nothing", "empty", "empty set", "the empty set", "\\emptyset", "\\varnothing", "n/a"))


def set_answer(
    prompt: Prompt, completion: str, *, credit: Credit = "exact", separators: str = ",;\n", form: Form = "normal"
) -> float | None:
    """How well the answer's items match the gold ones, 0 to 1; order and repetition do not matter.

    The gold answer is a list or a text; a text is a JSON list or is cut at the `separators` and at "and". "exact"
    credit asks for the same set; "f1" gives the harmonic mean of the share of the answer that is right and the share
    of the gold set that is found. Members are compared in the `form` of `exact_answer`, plain numbers by value. None
    where the gold text has no member.
    """
    changed = FORMS[form]
    if isinstance(prompt.answer, list | tuple | set | frozenset):
        gold = {_member(member, changed) for member in prompt.answer}
    else:
        gold = {_member(member, changed) for member in members(gold_text(prompt, "set_answer"), separators)}
        if not gold and gold_text(prompt, "set_answer").strip().lower() not in NOTHING:
            return None
    answers = explicit_answers(completion) or _listed(final_part(completion))
    if not answers or any(len(answer) > LONGEST_ANSWER for answer in answers):
        return 0.0
    named = {_member(member, changed) for answer in answers for member in members(answer, separators)}
    if not gold or not named:
        return float(not gold and not named)
    if credit == "exact":
        return float(gold == named)
    return 2 * len(gold & named) / (len(gold) + len(named))


def members(text: str, separators: str = ",;\n") -> list[str]:
    """The members of a list as text: JSON, or cut at the separators; brackets, bullets and quotes taken off."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        return [_text(member) for member in value]
    inner = BRACKETS.sub("", text.strip().strip("$"))
    if inner.strip().strip(".").lower() in NOTHING:
        return []
    if THOUSANDS.fullmatch(inner.strip()):
        return [inner.strip()]
    pieces: Iterable[str] = re.split(f"[{re.escape(separators)}]", CONJUNCTION.sub(separators[:1] or ",", inner))
    bare = (BULLET.sub("", piece).strip().strip("\"'`*").strip() for piece in pieces)
    return [piece for piece in bare if piece and piece != "\\"]


def _listed(text: str) -> list[str]:
    """A completion that marks no answer may end in a list of bullets."""
    lines = text.strip().splitlines()
    start = len(lines)
    while start > 0 and (BULLET.match(lines[start - 1]) or not lines[start - 1].strip()):
        start -= 1
    return ["\n".join(lines[start:])] if start < len(lines) else []


def _member(value: Any, changed: Any) -> str:
    text = _text(value)
    number = quantity(text)
    if number is not None and not number.unit and not number.percent:
        return str(number.counted_out().value)
    return str(changed(text))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
