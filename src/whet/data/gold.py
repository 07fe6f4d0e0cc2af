"""The gold answer of a row: its own column, another one's, or the end of a solution that its authors marked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from whet.data.rows import Row

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{|\\(?:boxed|fbox)\s+([^\s{}$\\]+)|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
# columns that public data has for the gold answer, where there is no `answer`
ANSWERS = ("ground_truth", "gold", "gold_answer", "final_answer", "expected_answer", "Answer", "target", "gt")


def with_gold(row: Row) -> Row:
    """The row with a gold `answer`; the column that it was found in stays, for rewards that ask for it by name."""
    values = dict(row.values)
    answer, name = values.get("answer"), row.names.get("answer", "answer")
    if answer is None:
        answer, name = _found(values)
    if isinstance(answer, str) and "####" in answer:
        values.setdefault("solution", answer)
        answer, name = after_hashes(answer)[-1], f"what follows #### in {name}"
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


def boxed(text: str) -> list[str]:
    r"""Contents of the complete boxes, braces balanced; of a box around a box, what the inner one holds.

    "\boxed 7" without braces holds what follows, up to white space or a dollar sign. An empty frame (\phantom) is
    left out.
    """
    spans: list[tuple[int, int]] = []
    opened: list[tuple[int, bool]] = []
    for match in BOX.finditer(text):
        if match[1] is not None:
            spans.append(match.span(1))
        elif match[0].endswith("{") and match[0] != r"\{":
            opened.append((match.end(), len(match[0]) > 1))
        elif match[0] == "}" and opened:
            start, is_box = opened.pop()
            if is_box and not (spans and spans[-1][0] >= start):
                spans.append((start, match.start()))
    contents = [text[start:end].strip() for start, end in spans]
    return [content for content in contents if not content.startswith("\\phantom")]


def after_hashes(text: str) -> list[str]:
    """What stands after each ####, to the end of its line or on the next line that is not blank."""
    return [first_line(piece) for piece in text.split("####")[1:]]


def first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return bare_answer(lines[0]) if lines else ""


def bare_answer(text: str) -> str:
    text = text.strip().strip("*`").strip()
    wrapped = len(text) > 2 and text[0] == "$" == text[-1]
    return text[1:-1].strip() if wrapped else text
