"""The reward for a mathematically equal answer: plain numbers with units by `quantity`, the rest by math-verify."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from whet.data.gold import boxed
from whet.reward.answer import explicit_answers, final_part, gold_text, normal_form, tagged
from whet.reward.limit import Overrun, limited
from whet.reward.quantity import agreement, quantity
from whet.types import Prompt, WhetError

LONGEST_ANSWER = 300  # characters; longer ones are wrong without a look
LONGEST_TAIL = 2000  # characters read from the end of a completion without a marked answer
COMPARISON_SECONDS = 2.0
GOLD_SECONDS = 10.0
WORD = re.compile(r"[^\W\d_]{3,}")
COMMAND = re.compile(r"\\[a-zA-Z]+")
BARE_PI = re.compile(r"(?<![\\a-zA-Z])pi(?![a-zA-Z])")
NUMBER = re.compile(r"[+-]?\$?[0-9][0-9,]*(?:\.[0-9]+)?")
BARE_ARGUMENT = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log)(?:\s*\^\s*\{?\d\}?)?)\s+([a-zA-Z])(?![a-zA-Z])")
SPACED_THOUSANDS = re.compile(r",\\!\s*")
AROUND_SIGNS = re.compile(r"\s*([+\-*/=])\s*")
UNSURE = re.compile(r"\b(?:not|never|or|either|neither|nor|between|except|unlike|about)\b|n't\b", re.IGNORECASE)
STATED = re.compile(r"\b(?:is|are|equals|was|be)\b|=")


def math_answer(
    prompt: Prompt,
    completion: str,
    *,
    tolerance: float = 0.0,
    relations_as_sets: bool = False,
    judged: Literal["all", "last"] = "all",
) -> float | None:
    """1 when every explicit answer equals the gold one, 0 when not, None when the gold one is not mathematics.

    Several different answers (two boxes, say) may also be the gold set together; one of them alone is a guess,
    unless `judged` is "last": text by people sometimes frames a result on the way.
    A completion without a marked answer is read by math-verify's own extraction, after the thinking. An answer that
    takes more than two seconds to compare (9^{9^{9}}) is wrong: a completion must not be able to stop the run.

    `tolerance` is a share of the gold value (0.01 lets 78.5 pass for 78.54), for each number of a tuple, set,
    interval or matrix. `relations_as_sets` lets -2 <= x <= 7 pass for [-2, 7].
    """
    if not 0 <= tolerance < 1:
        raise WhetError(f"tolerance of reward 'math_answer' is {tolerance}; give a share of the gold value, 0 to 1")
    gold_answer = gold_text(prompt, "math_answer")
    gold = _gold(gold_answer)
    if not gold:
        return None
    text = final_part(completion)
    answers = explicit_answers(completion)[-1 if judged == "last" else 0 :]
    if _is_loose(text):
        answers = [_stated_value(answer) for answer in answers]
    tail = text.strip()[-LONGEST_TAIL:]
    if not answers and not tail:
        return 0.0
    if any(len(answer) > LONGEST_ANSWER for answer in answers):
        return 0.0
    if all(normal_form(answer) == normal_form(gold_answer) for answer in answers or [tail]):
        return 1.0
    by_value = [_quantities_agree(gold_answer, answer, tolerance) for answer in answers]
    if by_value and None not in by_value:
        return float(all(by_value))
    same = functools.partial(_equal, gold, tolerance=tolerance, relations_as_sets=relations_as_sets)
    try:
        return float(limited(lambda: _agrees(same, answers, tail), COMPARISON_SECONDS))
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
    _library()  # its import takes seconds, which are not the answer's
    try:
        # a row of the data may be as hard to read as a completion
        return limited(lambda: tuple(_parsed(_as_formula(answer)) or _parsed(answer)), GOLD_SECONDS)
    except Overrun:
        return ()


def _is_loose(text: str) -> bool:
    """True where the answer is marked by words or ####, so that a whole sentence may stand there."""
    return not (boxed(text) or tagged(text))


def _stated_value(sentence: str) -> str:
    """ "The volume of $ABCD$ is 120" says 120: the end of the sentence, or the only number in it."""
    if not WORD.search(COMMAND.sub("", sentence)) or UNSURE.search(sentence) or quantity(sentence) is not None:
        return sentence
    stated = STATED.split(sentence)[-1].strip().strip("*$").strip()
    if re.search(r"[0-9\\]", stated) and (quantity(stated) is not None or not WORD.search(COMMAND.sub("", stated))):
        return stated
    numbers = NUMBER.findall(sentence)
    return numbers[0] if len(numbers) == 1 else sentence


def _quantities_agree(gold: str, answer: str, tolerance: float) -> bool | None:
    """Whether two plain quantities are the same; None when one of them is more than that."""
    wanted, given = _quantity(gold), quantity(answer)
    return None if wanted is None or given is None else agreement(wanted, given, tolerance) == "same"


_quantity = functools.lru_cache(maxsize=4096)(quantity)


def _agrees(same: Callable[[str], bool], answers: Sequence[str], tail: str) -> bool:
    if not answers:
        return same(tail)
    different = list(dict.fromkeys(answers))
    if all(same(_as_formula(answer)) for answer in different):
        return True
    return len(different) > 1 and same(_as_formula(", ".join(different)))


def _as_formula(answer: str) -> str:
    plain = answer.strip().strip("$").rstrip(",;")
    plain = SPACED_THOUSANDS.sub("", plain).replace("\\!", "")
    plain = BARE_PI.sub(r"\\pi ", plain)
    value = quantity(plain)
    # a unit in words would be read as a product of letters
    if value is not None and value.unit and not value.percent:
        plain = str(value.value)
    return f"\\boxed{{{plain}}}"


def _parsed(text: str) -> list[Any]:
    parse, _ = _library()
    found = parse(text, fallback_mode="no_fallback", parsing_timeout=None)
    if found or not text.startswith("\\boxed{"):
        return found
    # letters that stand apart are taken for units: "a + b + c" and "\sin^2 t" are read as nothing
    closer = AROUND_SIGNS.sub(r"\1", BARE_ARGUMENT.sub(r"\1(\2)", text))
    return parse(closer, fallback_mode="no_fallback", parsing_timeout=None) if closer != text else found


def _equal(gold: tuple[Any, ...], text: str, *, tolerance: float, relations_as_sets: bool) -> bool:
    _, verify = _library()
    given = _parsed(text)
    if verify(list(gold), given, timeout_seconds=None, allow_set_relation_comp=relations_as_sets):
        return True
    return tolerance > 0 and any(_is_close(one, other, tolerance) for one in gold for other in given)


def _is_close(gold: Any, given: Any, tolerance: float) -> bool:
    """Number by number, for two values of the same make."""
    import sympy

    wanted, found = _numbers_in(gold, sympy), _numbers_in(given, sympy)
    if not wanted or len(wanted) != len(found):
        return False
    return all(abs(one - other) <= tolerance * abs(one) for one, other in zip(wanted, found, strict=True))


def _numbers_in(value: Any, sympy: Any) -> list[complex]:
    """The numbers a parsed value is made of, those of a set in ascending order; [] where one is unknown."""
    if isinstance(value, sympy.Eq):
        value = value.rhs
    if isinstance(value, sympy.Interval):
        ends = [*_numbers_in(value.start, sympy), *_numbers_in(value.end, sympy)]
        return [*ends, complex(bool(value.left_open)), complex(bool(value.right_open))] if len(ends) == 2 else []
    if isinstance(value, sympy.FiniteSet | sympy.Tuple | sympy.MatrixBase):
        each = [_numbers_in(member, sympy) for member in value]
        if not all(each):
            return []
        if isinstance(value, sympy.FiniteSet):
            each.sort(key=lambda numbers: [(number.real, number.imag) for number in numbers])
        return [number for numbers in each for number in numbers]
    try:
        return [complex(value)]
    except (TypeError, ValueError, OverflowError):
        return []
