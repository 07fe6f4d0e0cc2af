"""An answer that the reasoning never reaches."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise, product

from whet.reward.answer import explicit_answers, final_part, normal_form
from whet.reward.defences.reading import WORD, Kind, defence_score, squeezed, thinking, words, working
from whet.reward.mathematics import quantity
from whet.types import Prompt

NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<![\w.])\.\d+|\d+(?:\.\d+)?")
FRACTION = re.compile(
    r"\\[dt]?frac\s?\{?\s?(-?\d{1,30})\s?\}?\s?\{?\s?(\d{1,30})|(?<!\d)(\d{1,30})\s?/\s?(\d{1,30})(?!\d)"
)
NUMBER_WORDS: dict[str, Fraction] = {
    **{word: Fraction(value) for word, value in quantity.NUMBER_WORDS.items()},
    **{word: Fraction(10**power) for word, power in quantity.SCALES.items()},
    **{"dozen": Fraction(12), "half": Fraction(1, 2), "no": Fraction(0), "none": Fraction(0), "once": Fraction(1)},
    **{"single": Fraction(1), "twice": Fraction(2), "both": Fraction(2), "pair": Fraction(2), "third": Fraction(3)},
}
CHAIN_END = re.compile(r"(?:=|\\approx|\\equiv|\\implies|\\Rightarrow|\\in|:|\\[lg]eq?)[^.\n]{0,60}\Z")
LONGEST_NUMBER = 40  # characters; longer ones are no results
MOST_NUMBERS = 60  # of the working, the last ones, that are tried against each other
MOST_ROUNDED = 1000  # of the working, the last ones, that may have been rounded
NEAR = 8  # numbers before the end whose products, sums and quotients count as worked out


def unsupported_answer(
    prompt: Prompt, completion: str, *, kind: Kind = "penalty", least_words: int = 8, must_reason: bool = False
) -> float:
    """A penalty: 0, or -1 where nothing in the working leads to the final answer (as a gate: 1, or 0).

    A number is supported when it stands in the working, is written there as a word, fraction or percentage, or is one
    step (+ - * /) from two of its numbers. Words are supported when half of them are in the working or in the question.
    An answer that contradicts the conclusion of the thinking is not supported. A completion with fewer than
    `least_words` words and numbers of working gives nothing to compare with and passes, unless the task `must_reason`.
    """
    answers = explicit_answers(completion)
    text = working(completion)
    if not answers:
        return defence_score(0.0, kind)
    if len(words(text)) + len(NUMBER.findall(text)) < least_words:
        return defence_score(float(must_reason), kind)
    answer = answers[-1]
    thought = thinking(completion)
    if is_supported(answer, text, prompt.question()):
        return defence_score(float(bool(thought) and _contradicts(answer, thought)), kind)
    # without tags the answer itself ends the working: a formula that leads into the box, a count or a word said once
    excused = not thought and (_closes_formula(final_part(completion)) or _is_count(answer) or not values_in(answer))
    return defence_score(float(not excused), kind)


def is_supported(answer: str, text: str, question: str) -> bool:
    """Whether the working, or the question, leads to the answer."""
    wanted = list(dict.fromkeys(values_in(answer)))[:MOST_NUMBERS]
    plain = squeezed(answer)
    if plain and len(plain) > 1 and plain in squeezed(text):
        return True
    if not wanted:
        said = set(words(text)) | set(words(question))
        asked = [word for word in words(answer) if word not in ("text", "frac", "boxed", "the", "a")]
        return not asked or sum(word in said for word in asked) >= 0.5 * len(asked) or len(plain) == 1
    there = values_in(text)
    asked_for = set(values_in(question))
    recent = set(there[-MOST_ROUNDED:])
    reached = set(there) | {rounded for number in wanted for rounded in _rounded(recent, number)}
    needed = [number for number in wanted if not _is_near(number, reached)]
    if 2 * len(needed) <= len(wanted) or all(number in asked_for for number in wanted):
        return True
    worked_out = _one_step(there)
    if _is_assembled(answer, there):
        return True
    needed = [number for number in needed if not _is_near(number, worked_out)]
    return 2 * len(needed) <= len(wanted)


def _is_near(number: Fraction, reached: set[Fraction]) -> bool:
    """There, or there with another sign or as a percentage."""
    return any(value in reached for value in (number, -number, number * 100, number / 100))


def _rounded(numbers: set[Fraction], wanted: Fraction) -> list[Fraction]:
    """The wanted number where another one rounds to it, up or down, at the places it has."""
    places = 1
    while (wanted * places).denominator != 1 and places < 10**6:
        places *= 10
    return [wanted for number in numbers if number != wanted and abs(number - wanted) * places < 1]


def _is_assembled(answer: str, there: list[Fraction]) -> bool:
    """A number whose digits the working found one by one."""
    digits = re.sub(r"\D", "", answer)
    return 2 < len(digits) < 8 and {Fraction(digit) for digit in digits} <= set(there[-MOST_NUMBERS:])


def _is_count(answer: str) -> bool:
    return re.fullmatch(r"\W*\d{1,2}\W*", answer) is not None


def values_in(text: str) -> list[Fraction]:
    """Every number of a text, exactly and in order: figures, fractions and number words."""
    plain = text.replace("{,}", ",").replace("\\!", "").replace("\\,", "")
    values = [(match.end(), _fraction(match)) for match in FRACTION.finditer(plain)]
    figures = (match for match in NUMBER.finditer(plain) if len(match[0]) <= LONGEST_NUMBER)
    values += [(match.end(), Fraction(match[0].replace(",", ""))) for match in figures]
    spoken = [(match.end(), NUMBER_WORDS.get(match[0].casefold())) for match in WORD.finditer(plain)]
    values += [(end, number) for end, number in spoken if number is not None]
    for (_, first), (end, second) in pairwise(spoken):
        if first is not None and second is not None:
            values += [(end, first + second), (end, first * second)]
    return [number for _, number in sorted(values, key=lambda each: each[0])]


def _fraction(match: re.Match[str]) -> Fraction:
    above, below = (match[1], match[2]) if match[1] is not None else (match[3], match[4])
    return Fraction(int(above), int(below)) if int(below) else Fraction(0)


def _one_step(numbers: list[Fraction]) -> set[Fraction]:
    """Sums, differences, products and quotients of numbers near each other, and of the last ones all together."""
    recent = numbers[-MOST_NUMBERS:]
    pairs = [*pairwise(recent), *zip(recent, recent[2:], strict=False), *product(recent[-NEAR:], repeat=2)]
    results: set[Fraction] = set()
    for first, second in pairs:
        results |= {first + second, first - second, second - first, first * second}
        results |= {above / below for above, below in ((first, second), (second, first)) if below}
    results |= {number + one for number in recent[-NEAR:] for one in (1, -1)}
    for start in range(max(len(recent) - 6, 0), len(recent)):
        results.add(sum(recent[start:], Fraction(0)))
    return results


def _contradicts(answer: str, thought: str) -> bool:
    """The thinking concludes on another number, and does not come to this one afterwards."""
    concluded = explicit_answers(thought)
    wanted, last = values_in(answer), values_in(concluded[-1]) if concluded else []
    if not wanted or not last or set(wanted) & set(last) or len(wanted) > 1 or len(last) > 1:
        return False
    if normal_form(answer) == normal_form(concluded[-1]):
        return False
    afterwards = thought[thought.rfind(concluded[-1]) + len(concluded[-1]) :]
    return wanted[0] not in values_in(afterwards) and wanted[0] not in _one_step(values_in(afterwards))


def _closes_formula(text: str) -> bool:
    """The box ends an equation or a chain of steps, as in "x = 2 + 3 = \\boxed{5}"."""
    before, _, box = text.replace("\\fbox", "\\boxed").rpartition("\\boxed")
    return bool(box) and CHAIN_END.search(before) is not None
