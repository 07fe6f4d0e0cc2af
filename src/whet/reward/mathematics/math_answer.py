"""The reward for a mathematically equal answer.

`read_value` and `same_value` read and compare almost all answers, in this process and in bounded time. What only
math-verify knows (integrals, sums over matrices, answers in running text) goes to processes that can be ended
(`verifier`).
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
from whet.reward.mathematics.verifier import POOL, MathJob
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


@dataclass(frozen=True)
class GoldAnswer:
    """A gold answer: its value, or the text that only math-verify may read, or what was not read."""

    text: str
    value: MathValue | None = None
    unread: str = ""

    @property
    def is_foreign(self) -> bool:
        """True where only math-verify may read it."""
        return self.value is None and not self.unread


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
    golds = _golds([_written(prompt) for prompt in prompts])
    cases = []
    for prompt, gold, completion in zip(prompts, golds, completions, strict=True):
        # "\\boxed{20} percent" speaks of percent as well as a question does
        rule = Comparison(tolerance, relations_as_sets, f"{prompt.question()} {prompt.answer}")
        cases.append(MathCase(gold, prompt.question(), rule))
        if gold.unread:
            unscorable(f"reward 'math_answer': {gold.unread}", prompt)
        else:
            cases[-1].find_answers(completion, judged)
    unmarked = [case for case in cases if case.tail]
    for case, result in zip(unmarked, POOL.run([MathJob("extract", (case.tail,)) for case in unmarked]), strict=True):
        case.answers = [_stated_value(result.value)] if isinstance(result.value, str) else []
        case.score = None if case.answers or result.is_lost else 0.0
    for case in cases:
        case.compare()
    foreign = [case for case in cases if case.is_open]
    jobs = [MathJob("compare", (case.gold.text, case.answers[0], relations_as_sets)) for case in foreign]
    for case, result in zip(foreign, POOL.run(jobs), strict=True):
        case.score = None if result.is_lost else float(result.value is True)
    return [case.score for case in cases]


def unread_gold(prompts: Sequence[Prompt]) -> list[str | None]:
    """Why each prompt cannot be scored, None where it can: what of its gold answer was not read.

    `row_check` asks before the first step.
    """
    return [gold.unread or None for gold in _golds([_written(prompt) for prompt in prompts])]


def _written(prompt: Prompt) -> str:
    """The gold answer as text; the members of a list side by side, as an answer would have them."""
    text = gold_text(prompt, "math_answer")
    if isinstance(prompt.answer, list | tuple | set | frozenset):
        return ", ".join(map(str, prompt.answer))
    return text


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


@dataclass
class MathCase:
    """One completion on its way to a score."""

    gold: GoldAnswer
    question: str
    rule: Comparison
    answers: Sequence[str] = ()  # the different ones
    tail: str = ""  # of a completion without a marked answer, where math-verify may find one
    score: float | None = None

    @property
    def is_open(self) -> bool:
        """True where there are answers to be compared."""
        return self.score is None and bool(self.answers)

    def find_answers(self, completion: str, judged: str) -> None:
        """Set `answers` or `tail`, or the score where it takes no comparison."""
        text = final_part(completion)
        answers = explicit_answers(completion)[-1 if judged == "last" else 0 :]
        if not (boxed(text) or tagged(text)):  # a whole sentence may stand behind words or ####
            answers = [_stated_value(answer) for answer in answers]
        elif answers and judged == "all":
            marked = tuple(answers)
            later = said_after_marks(completion)
            answers += [said for said in later if all(_contradicts(said, answer) for answer in marked)]
        longest = max(LONGEST_ANSWER, 2 * len(self.gold.text))
        if any(len(answer) > longest for answer in answers):
            self.score = 0.0
        elif answers and all(answer.split() == self.gold.text.split() for answer in answers):
            self.score = 1.0
        elif answers:
            self.answers = list(dict.fromkeys(answers))
        else:
            # numbers of a question that is repeated are no answers; "5" is one to "Is it 3 or 5?"
            asked = self.question.strip()
            tail = EMPHASIS.sub("", text.replace(asked, " ") if len(asked) > 8 else text).strip()[-LONGEST_TAIL:]
            is_short = 0 < len(tail) <= LONGEST_ANSWER
            if is_short and self.verdict(tail) is True:
                self.score = 1.0
            elif not FINDABLE.search(tail) or (is_short and quantity(tail) is not None):
                self.score = 0.0
            else:
                self.tail = tail

    def compare(self) -> None:
        """Set the score, unless math-verify has to be asked."""
        if not self.is_open:
            return
        verdicts = [self.verdict(answer) for answer in self.answers]
        if all(verdicts):
            self.score = 1.0
        elif len(self.answers) > 1:
            self.score = float(self.verdict(", ".join(self.answers)) is True)
        elif verdicts[0] is not None:
            self.score = 0.0

    def verdict(self, answer: str) -> bool | None:
        """Whether the answer is the gold one; None where math-verify has to be asked."""
        gold = self.gold
        asked = self.question, gold.text
        if is_copied(answer, *asked) or leaves_work(answer, *asked, gold.value):
            return False
        return None if gold.value is None else verdict(gold.text, answer, self.rule)


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


_foreign: dict[str, GoldAnswer] = {}  # what math-verify said about golds that only it may read


def _golds(texts: Sequence[str]) -> list[GoldAnswer]:
    golds = [_gold(text) for text in texts]
    unknown = {gold.text: gold for gold in golds if gold.is_foreign and gold.text not in _foreign}
    results = POOL.run([MathJob("read", (text,)) for text in unknown])
    for (text, gold), result in zip(unknown.items(), results, strict=True):
        why = "it took too long" if result.is_slow else "math-verify does not read it either"
        unread = "" if result.value is True else f"the gold answer {text[:80]!r} was not read in full: {why}"
        if not result.is_lost:
            _foreign[text] = GoldAnswer(gold.text, unread=unread)
    return [_foreign.get(gold.text, gold) if gold.is_foreign else gold for gold in golds]


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
