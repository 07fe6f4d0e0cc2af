"""The reward for a mathematically equal answer, judged by math-verify."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from whet.reward.answer import explicit_answers, final_part, gold_text, normal_form
from whet.reward.limit import Overrun, limited
from whet.types import Prompt, WhetError

LONGEST_ANSWER = 300  # characters; longer ones are wrong without a look
LONGEST_TAIL = 2000  # characters read from the end of a reply without a marked answer
COMPARISON_SECONDS = 2.0
WORD = re.compile(r"[^\W\d_]{3,}")


def math_answer(prompt: Prompt, reply: str) -> float | None:
    """1 when every explicit answer equals the gold one, 0 when not, None when the gold one is not mathematics.

    Several different answers (two boxes, say) may also be the gold set together; one of them alone is a guess.
    A reply without a marked answer is read by math-verify's own extraction, after the thinking. An answer that
    takes more than two seconds to compare (9^{9^{9}}) is wrong: a reply must not be able to stop the run.
    """
    gold_answer = gold_text(prompt, "math_answer")
    gold = _gold(gold_answer)
    if not gold:
        return None
    found = explicit_answers(reply)
    tail = final_part(reply).strip()[-LONGEST_TAIL:]
    if not found and not tail:
        return 0.0
    if any(len(answer) > LONGEST_ANSWER for answer in found):
        return 0.0
    if found and all(normal_form(answer) == normal_form(gold_answer) for answer in found):
        return 1.0
    try:
        return float(limited(lambda: _agrees(gold, found, tail), COMPARISON_SECONDS))
    except Overrun:
        return 0.0


@functools.cache
def _library() -> tuple[Callable[..., list[Any]], Callable[..., bool]]:
    try:
        from math_verify import parse, verify
    except ImportError:
        raise WhetError("reward 'math_answer' needs math-verify; run pip install math-verify") from None
    # it warns that its own timers are off: they only work on the main thread, and ours replace them
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return parse, verify


math_answer.prepare = _library  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _gold(answer: str) -> tuple[Any, ...]:
    """The parsed gold answer, empty where it is not mathematics.

    Plain words are not: as formulas they would be products of letters, and every anagram would be right.
    """
    if WORD.search(answer) and "\\" not in answer and not re.search("[0-9]", answer):
        return ()
    return tuple(_parsed(_as_formula(answer)) or _parsed(answer))


def _agrees(gold: tuple[Any, ...], found: Sequence[str], tail: str) -> bool:
    if not found:
        return _equal(gold, tail)
    different = list(dict.fromkeys(found))
    if all(_equal(gold, _as_formula(answer)) for answer in different):
        return True
    return len(different) > 1 and _equal(gold, _as_formula(", ".join(different)))


def _as_formula(answer: str) -> str:
    return f"\\boxed{{{answer.strip().strip('$')}}}"


def _parsed(text: str) -> list[Any]:
    parse, _ = _library()
    return parse(text, fallback_mode="no_fallback", parsing_timeout=None)


def _equal(gold: tuple[Any, ...], text: str) -> bool:
    _, verify = _library()
    return verify(list(gold), _parsed(text), timeout_seconds=None)
