"""The reward for a mathematically equal answer.

`read_value` and `same_value` read and compare almost all answers, in this process and in bounded time. What only
math-verify knows (integrals, sums over matrices, answers in running text) goes to processes that can be ended
(`verifier`).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from whet.data.gold import boxed
from whet.reward.answer import explicit_answers, final_answer, final_part, gold_text, said_after_marks, tagged
from whet.reward.failure import unscorable
from whet.reward.mathematics.math_value import MathValue, is_constant
from whet.reward.mathematics.quantity import quantity
from whet.reward.mathematics.read_value import read_value
from whet.reward.mathematics.same_value import Comparison, same
from whet.reward.mathematics.tokens import Unreadable
from whet.reward.mathematics.units import changes_value
from whet.reward.mathematics.verdict import is_copied, leaves_work, verdict
from whet.reward.mathematics.verifier import POOL, MathJob, MathResult
from whet.threads import num_cores
from whet.types import Prompt, WhetError

LONGEST_ANSWER = 300  # characters, or twice the gold answer's; longer ones are wrong without a look
LONGEST_TAIL = 2000  # characters read from the end of a completion without a marked answer
WORD = re.compile(r"[^\W\d_]{3,}")
COMMAND = re.compile(r"\\[a-zA-Z]+")
NUMBER = re.compile(r"[+-]?\$?[0-9][0-9,]*(?:\.[0-9]+)?")
FINDABLE = re.compile(r"[0-9$\\\[]")  # without any of these math-verify finds nothing
UNSURE = re.compile(r"\b(?:not|never|or|either|neither|nor|between|except|unlike|about)\b|n't\b", re.IGNORECASE)
EMPHASIS = re.compile(r"(?<![\w)}])(?:\*\*|__)(?=\S)|(?<=\S)(?:\*\*|__)(?![\w({\\])")  # **131**, but not 2**3
CHOICE = re.compile(r"\(?[A-Za-z](?:\)|[.:]|$)")  # (B) x + 1, or B
STATED = re.compile(r"\b(?:is|are|equals|was|be)\b|=")

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class GoldAnswer:
    """A gold answer: its value, or the text that only math-verify may read, or what was not read."""

    text: str
    value: MathValue | None = None
    unread: str = ""


# a judgement that may wait for math-verify: it yields its questions, and returns
Asking = Generator[MathJob, MathResult, Outcome]


def math_answer(
    prompt: Prompt,
    completion: str,
    *,
    tolerance: float = 0.0,
    relations_as_sets: bool = True,
    judged: Literal["all", "last"] = "all",
) -> float | None:
    """1 when every explicit answer equals the gold one, 0 when not, None when the gold one cannot be read in full.

    Several different answers (two boxes, say) may also be the gold set together; one of them alone is a guess,
    unless `judged` is "last": text by people sometimes frames a result on the way.
    A completion without a marked answer is read by math-verify's own extraction, after the thinking. A sum or product
    that stands in the question is no answer to it, unless the gold one is written the same way. An answer that is too
    large to compute (9^{9^{9}}) or takes too long to compare is wrong, on whichever thread it is scored.

    `tolerance` is a share of the gold value (0.01 lets 78.5 pass for 78.54), for each number of a tuple, set,
    interval or matrix. With `relations_as_sets=False` -2 <= x <= 7 does not pass for [-2, 7].
    """
    settings = {"tolerance": tolerance, "relations_as_sets": relations_as_sets, "judged": judged}
    return math_answers([prompt], [completion], **settings)[0]  # type: ignore[arg-type]


def math_answers(
    prompts: Sequence[Prompt],
    completions: Sequence[str],
    *,
    tolerance: float = 0.0,
    relations_as_sets: bool = True,
    judged: Literal["all", "last"] = "all",
) -> list[float | None]:
    """`math_answer` of many samples; what needs math-verify is dealt out to its processes at once."""
    if not 0 <= tolerance < 1:
        raise WhetError(f"tolerance of reward 'math_answer' is {tolerance}; give a share of the gold value, 0 to 1")
    return _returned(
        [
            # "\\boxed{20} percent" speaks of percent as well as a question does
            _score(
                prompt, text, Comparison(tolerance, relations_as_sets, f"{prompt.question()} {prompt.answer}"), judged
            )
            for prompt, text in zip(prompts, completions, strict=True)
        ]
    )


def unread_gold(prompts: Sequence[Prompt]) -> list[str | None]:
    """Why each prompt cannot be scored, None where it can: what of its gold answer was not read.

    `row_check` asks before the first step.
    """
    return [gold.unread or None for gold in _returned([_gold_of(prompt) for prompt in prompts])]


def _check_library() -> None:
    if importlib.util.find_spec("math_verify") is None:
        raise WhetError("reward 'math_answer' needs math-verify; run pip install math-verify")


def _start_processes() -> None:
    POOL.start_behind(max(1, num_cores() // 4))


math_answer.prepare = _check_library  # type: ignore[attr-defined]
math_answer.start_behind = _start_processes  # type: ignore[attr-defined]
math_answer.packages = ("math_verify",)  # type: ignore[attr-defined]
math_answer.together = math_answers  # type: ignore[attr-defined]
math_answer.unscorable = unread_gold  # type: ignore[attr-defined]


def _returned(cases: Sequence[Asking[Outcome]]) -> list[Outcome]:
    """What each case returns; whatever all of them ask at a time is dealt out to the processes at once."""
    outcomes: dict[int, Outcome] = {}
    results: dict[int, Any] = dict.fromkeys(range(len(cases)))
    while results:
        jobs = {}
        for number, result in results.items():
            try:
                jobs[number] = cases[number].send(result)
            except StopIteration as end:
                outcomes[number] = end.value
        different = list(dict.fromkeys(jobs.values()))
        result_of = dict(zip(different, POOL.run(different), strict=True))
        results = {number: result_of[job] for number, job in jobs.items()}
    return [outcomes[number] for number in range(len(cases))]


def _score(prompt: Prompt, completion: str, rule: Comparison, judged: str) -> Asking[float | None]:
    gold, question = (yield from _gold_of(prompt)), prompt.question()
    if gold.unread:
        unscorable(f"reward 'math_answer': {gold.unread}", prompt)
        return None

    def judge(answer: str) -> bool | None:
        """Whether the answer is the gold one; None where math-verify has to be asked."""
        if is_copied(answer, question, gold.text) or leaves_work(answer, question, gold.text, gold.value):
            return False
        return None if gold.value is None else verdict(gold.text, answer, rule)

    text = final_part(completion)
    answers = explicit_answers(completion)[-1 if judged == "last" else 0 :]
    if not (boxed(text) or tagged(text)):  # a whole sentence may stand behind words or ####
        answers = [_stated_value(answer) for answer in answers]
    elif answers and judged == "all":
        later = said_after_marks(completion)
        answers = answers + [said for said in later if all(_contradicts(said, answer) for answer in answers)]
    if any(len(answer) > max(LONGEST_ANSWER, 2 * len(gold.text)) for answer in answers):
        return 0.0
    if answers and all(answer.split() == gold.text.split() for answer in answers):
        return 1.0
    if not answers:
        # numbers of a question that is repeated are no answers; "5" is one to "Is it 3 or 5?"
        asked = question.strip()
        tail = EMPHASIS.sub("", text.replace(asked, " ") if len(asked) > 8 else text).strip()[-LONGEST_TAIL:]
        is_short = 0 < len(tail) <= LONGEST_ANSWER
        if is_short and judge(tail) is True:
            return 1.0
        if not FINDABLE.search(tail) or (is_short and quantity(tail) is not None):
            return 0.0
        result = yield MathJob("extract", (tail,))
        if not isinstance(result.value, str):
            return None if result.is_lost else 0.0
        answers = [_stated_value(result.value)]
    answers = list(dict.fromkeys(answers))
    verdicts = [judge(answer) for answer in answers]
    if all(verdicts):
        return 1.0
    if len(answers) > 1:
        return float(judge(", ".join(answers)) is True)
    if verdicts[0] is not None:
        return 0.0
    result = yield MathJob("compare", (gold.text, answers[0], rule.relations_as_sets))
    return None if result.is_lost else float(result.value is True)


_foreign: dict[str, GoldAnswer] = {}  # what math-verify said about golds that only it may read


def _gold_of(prompt: Prompt) -> Asking[GoldAnswer]:
    text = gold_text(prompt, "math_answer")
    if isinstance(prompt.answer, list | tuple | set | frozenset):  # its members side by side, as an answer has them
        text = ", ".join(map(str, prompt.answer))
    gold = _gold(text)
    gold = _foreign.get(gold.text, gold) if gold.value is None else gold
    if gold.value is not None or gold.unread or gold.text in _foreign:
        return gold
    result = yield MathJob("read", (gold.text,))
    if not result.is_lost:
        why = "it took too long" if result.is_slow else "math-verify does not read it either"
        unread = "" if result.value is True else f"the gold answer {gold.text[:80]!r} was not read in full: {why}"
        gold = _foreign[gold.text] = GoldAnswer(gold.text, unread=unread)
    return gold


@functools.lru_cache(maxsize=65_536)
def _gold(text: str) -> GoldAnswer:
    frames = boxed(text)
    pieces = re.split(r"\\(?:boxed|fbox)", text)[1:-1]
    between = [piece.replace(frame, "", 1) for frame, piece in zip(frames, pieces, strict=False)]
    # several frames are one answer where they stand side by side, or a word or sign joins them
    joined = all(len(text) < 14 or re.search(r"\b(?:and|or)\b|[,;]", text) for text in between)
    plain = (", ".join(dict.fromkeys(frames)) if joined else frames[-1]) if frames else text
    try:
        return GoldAnswer(plain, read_value(plain))
    except Unreadable as what:
        marked = final_answer(text)  # a whole solution may stand in the column
        if marked and marked != text and not frames:
            return _gold(marked)
        if what.is_command:
            return GoldAnswer(plain)
        return GoldAnswer(plain, unread=f"the gold answer {text[:80]!r} was not read in full: {what}")


def _contradicts(later: str, answer: str) -> bool:
    """True where what is said after the mark and the answer in it are values, and not the same.

    A sentence or the letter of a choice contradicts nothing.
    """
    plain = quantity(later)
    if len(plain.unit.split()) > 1 if plain is not None else WORD.search(COMMAND.sub("", later)) is not None:
        return False  # "3/4 of the total" may be said in passing
    try:
        values = read_value(later), read_value(answer)
        if not is_constant(values[0]) and (is_constant(values[1]) or CHOICE.match(later)):
            return False
        return not (same(values[0], values[1]) or same(values[1], values[0]))
    except Unreadable:
        return False


def _stated_value(sentence: str) -> str:
    """ "The volume of $ABCD$ is 120" says 120: the end of the sentence, or the only number in it."""
    if not WORD.search(COMMAND.sub("", sentence)) or UNSURE.search(sentence) or quantity(sentence) is not None:
        return sentence
    stated = STATED.split(sentence)[-1].strip().strip("*$").strip()
    if re.search(r"[0-9\\]", stated) and (quantity(stated) is not None or not WORD.search(COMMAND.sub("", stated))):
        return stated
    numbers = NUMBER.findall(sentence)
    # "10 degrees below zero" and "3 of the 5 dozen" are not their first number
    return numbers[0] if len(numbers) == 1 and not changes_value(sentence) else sentence
