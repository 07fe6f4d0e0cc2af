"""The gold answer of a row: its own column, another one's, or the end of a solution that its authors marked."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from whet.data.rows import Row

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\(?:boxed|fbox)\s+([^\s{}$\\]+)|\\\\(?!boxed|fbox)|\\[{}]|[{}]|[0-9]+")
FRAME = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
HASHES = re.compile(r"(?<!#)####(?!#)")
# what a heading says that announces the answer, and the answer where it stands on the same line
TITLE = re.compile(
    r"(?:the\s+)?(?:final\s+)?(?:answer|result|conclusion|solution|summary)s?(?:\s*(?:\*\*)?\s*(?::|\bis\b)\s*(?:\*\*)?\s*(.*))?",
    re.IGNORECASE,
)
SECTION = re.compile(
    r"[*_ ]*(?:step|part|case|method|section|example|explanation|analysis|solution|note|approach)\b", re.IGNORECASE
)
ENUMERATED = re.compile(r"(?:\d{1,2}|[a-zA-Z]|[ivx]+)[.)]\s+\S")
COUNTED = re.compile(r"[-+]?\s*[$€£]?\s*[0-9][0-9,]*(?:\.[0-9]+)?\s*%?(?:\s+[a-z]+){0,3}\.?")  # 42 apples
TEXT_COMMAND = re.compile(r"\\(?:text|mbox|mathrm|textbf)\s*\{[^{}]*\}")
WORDS = re.compile(r"[^\W\d_]{3,}")
SENTENCE = re.compile(r"\b(?:is|are|was|were|has|have|equals)\b|[.!?:]$", re.IGNORECASE)
MOST_WORDS = 5  # of an answer below a heading that announces it
# columns that public data has for the gold answer, where there is no `answer`
ANSWERS = ("ground_truth", "gold", "gold_answer", "final_answer", "expected_answer", "Answer", "target", "gt")


def with_gold(row: Row) -> Row:
    """The row with a gold `answer`; the column that it was found in stays, for rewards that ask for it by name."""
    values = dict(row.values)
    answer, name = values.get("answer"), row.names.get("answer", "answer")
    if answer is None:
        answer, name = _found(values)
    if isinstance(answer, str) and (marks := after_hashes(answer)):
        values.setdefault("solution", answer)
        answer, name = marks[-1], f"what follows #### in {name}"
    if answer is None:
        return row
    return row.changed({**values, "answer": answer}, answer=name)


def _found(values: Mapping[str, Any]) -> tuple[Any, str]:
    """A gold answer under another name, and that name."""
    judged = values.get("reward_model")
    if isinstance(judged, Mapping) and judged.get("ground_truth") is not None:
        return judged["ground_truth"], "reward_model.ground_truth"
    for name in ANSWERS:
        if values.get(name) is not None:
            return values[name], name
    solution = values.get("solution")
    if isinstance(solution, str) and boxed(solution):
        return boxed(solution)[-1], "the last \\boxed{} of solution"
    return None, ""


@dataclass
class _Brace:
    """An opening brace whose end is not reached yet."""

    start: int
    is_box: bool
    has_number: bool = False  # outside of the boxes within


def boxed(text: str) -> list[str]:
    r"""Contents of the complete boxes, braces balanced.

    Of a box around a box, what the inner one holds; where the outer one has numbers of its own, all of it, without the
    inner frames. "\boxed 7" without braces holds what follows, up to white space or a dollar sign. An empty frame
    (\phantom) is left out.
    """
    if "\\boxed" not in text and "\\fbox" not in text:  # then no brace and no number need be looked at
        return []
    return list(_boxes(text))


@functools.lru_cache(maxsize=64)  # whoever reads a completion asks several times
def _boxes(text: str) -> tuple[str, ...]:
    spans: list[tuple[int, int]] = []
    opened: list[_Brace] = []
    for match in BOX.finditer(text):
        sign = match[0]
        if match[1] is not None:
            spans.append(match.span(1))
        elif sign[0].isdigit():
            if opened:
                opened[-1].has_number = True
        elif sign.endswith("{") and sign != r"\{":
            opened.append(_Brace(match.end(), is_box=len(sign) > 1))
        elif sign == "}" and opened:
            brace = opened.pop()
            if not brace.is_box:
                if opened:
                    opened[-1].has_number |= brace.has_number
                continue
            has_inner = bool(spans) and spans[-1][0] >= brace.start
            if has_inner and brace.has_number:
                while spans and spans[-1][0] >= brace.start:
                    spans.pop()
            if not has_inner or brace.has_number:
                spans.append((brace.start, match.start()))
    contents = [FRAME.sub(" ", text[start:end]).strip() for start, end in spans]
    return tuple(content for content in contents if not content.startswith("\\phantom"))


def after_hashes(text: str) -> list[str]:
    """The answers that #### marks, on its line or the next that is not blank. Markdown's headings are none.

    A number or formula is an answer wherever it stands. Words are one where nothing is written below them: a heading
    has a text. "#### Final answer" is a heading too, and what stands alone on the line below it is the answer.
    """
    if "####" not in text:
        return []
    marks = []
    pieces = HASHES.split(text)
    for number, piece in enumerate(pieces[1:], start=2):
        lines = [line.strip() for line in piece.splitlines() if line.strip()]
        if not lines:
            continue
        is_last = number == len(pieces)
        title = TITLE.fullmatch(lines[0].strip("*_ "))
        if title is not None and (title[1] or len(lines) > 1):
            line, has_text = (title[1], len(lines) > 1) if title[1] else (lines[1], len(lines) > 2)
            if is_bare_value(line) or not (has_text or SENTENCE.search(line) or len(line.split()) > MOST_WORDS):
                marks.append(bare_answer(line))
        elif (
            is_bare_value(lines[0])
            or (is_last and COUNTED.fullmatch(lines[0].strip("*_ ")))
            or (len(lines) == 1 and not SECTION.match(lines[0]))
        ):
            marks.append(bare_answer(lines[0]))
    return marks


def is_bare_value(line: str) -> bool:
    """True for a number or formula without words: what a heading never is."""
    bare = TEXT_COMMAND.sub("", line.strip().strip("*`_ "))
    if not re.search(r"[0-9\\]", bare) or ENUMERATED.match(bare):
        return False
    return not WORDS.search(re.sub(r"\\[a-zA-Z]+", "", bare))


def first_line(text: str) -> str:
    """The first line of a text as a bare answer; empty for a blank text."""
    lines = text.strip().splitlines()
    return bare_answer(lines[0]) if lines else ""


def bare_answer(text: str) -> str:
    """The text without surrounding space, Markdown marks (`*` and backticks) and one pair of dollar signs."""
    text = text.strip().strip("*`").strip()
    wrapped = len(text) > 2 and text[0] == "$" == text[-1]
    return text[1:-1].strip() if wrapped else text
