"""Solutions whose steps were judged one by one.

A step's label is the chance that it is right; None where nobody said. Where only the first error is known, what
follows it has no label: a step that builds on an error is neither right nor wrong by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from whet.data.foreign_rows import with_prompt
from whet.data.pairs import require_both
from whet.data.prompts import LabelledCompletion, prompts_from
from whet.data.rows import Row, mistake, value_text
from whet.data.usable import Usable
from whet.types import Prompt

FIRST_ERROR = ("first_error", "mistake_index", "label")
NO_ERROR = -1
LABELS = "labels"


@dataclass(frozen=True)
class LabelledSteps:
    """A solution in steps, with a label for each."""

    prompt: Prompt
    steps: tuple[str, ...]
    labels: tuple[float | None, ...]  # one per step

    @property
    def first_error(self) -> int | None:
        """The number of the first step that is more likely wrong than right; None where there is none."""
        wrong = (at for at, label in enumerate(self.labels) if label is not None and label < 0.5)
        return next(wrong, None)


def stepped_from(
    rows: Sequence[Row],
    *,
    as_chat: bool = False,
    labels_in: str = LABELS,
    need_labels: bool = True,
) -> list[LabelledSteps]:
    """From `prompt`, `steps` and `labels` or `first_error` (counted from 0; -1 or null for none).

    Also from solutions with `error_steps` counted from 1, and from search trees of prefixes with `mc_value`. Where
    rows have labels of several kinds, `labels_in` is the column to take. Without `need_labels` a step may have none.
    """
    if labels_in != LABELS:
        rows = [_with_labels(row, labels_in) for row in rows]
    if not need_labels:
        rows = [_with_some_labels(row) for row in rows]
    by_row = [list(_solutions(row, as_chat)) for row in rows]
    labelled = Usable([solution for row_solutions in by_row for solution in row_solutions], _without_steps(by_row))
    labels = {label for solution in labelled for label in solution.labels if label is not None}
    if need_labels and len(rows) > 1 and labels <= {1.0}:
        raise mistake(rows[0], "labels", "call every step of the data right", "some wrong steps too", "add some")
    return labelled


def common_separator(solutions: Sequence[LabelledSteps]) -> str | None:
    """What the rows say that ends a step; None where they do not say, or not the same."""
    stated = [solution.prompt.meta.get("separator") for solution in solutions]
    only = stated[0] if stated and all(separator == stated[0] for separator in stated) else None
    return only if isinstance(only, str) and only else None


def _with_labels(row: Row, name: str) -> Row:
    if row.values.get(name) is None:
        known = [column for column in (LABELS, "shares", "truth") if row.values.get(column) is not None]
        fix = f"give reward_model.labels={known[0]}" if known else "drop reward_model.labels"
        raise mistake(row, f"'{name}'", "is missing", "a label for each step", fix)
    return Row({**row.values, LABELS: row.values[name]}, row.where)


def _with_some_labels(row: Row) -> Row:
    """The row with a label of null for each step, where it has no other."""
    if any(name in row.values for name in (LABELS, "ratings", *FIRST_ERROR)):
        return row
    steps = row.values.get("steps")
    return Row({**row.values, LABELS: [None] * len(steps)}, row.where) if isinstance(steps, list) else row


def outcomes_from(rows: Sequence[Row], *, as_chat: bool = False) -> list[LabelledCompletion]:
    """Whole solutions, right or wrong: as `final_answer_correct` says, else right where no step is wrong."""
    by_row = [list(_solutions(row, as_chat)) for row in rows]
    labelled: Usable[LabelledCompletion] = Usable((), _without_steps(by_row))
    for row_solutions in by_row:
        for solution in row_solutions:
            stated = solution.prompt.meta.get("final_answer_correct")
            right = stated if isinstance(stated, bool) else solution.first_error is None
            labelled.append(
                LabelledCompletion(solution.prompt, "\n\n".join(step.strip() for step in solution.steps), right)
            )
    require_both(rows, [completion.label for completion in labelled])
    return labelled


def _without_steps(by_row: Sequence[Sequence[LabelledSteps]]) -> dict[str, int]:
    """How many rows hold no solution: a search tree may have no branch with a step."""
    empty = sum(not row_solutions for row_solutions in by_row)
    return {"no branch with a step": empty} if empty else {}


def _solutions(row: Row, as_chat: bool) -> Iterator[LabelledSteps]:
    if isinstance(row.values.get("reasoning_steps"), list):
        yield from _branches(row, as_chat)
    elif "modified_process" in row.values:
        yield from _modified(row, as_chat)
    else:
        values = dict(row.values)
        if "steps" not in values and isinstance(values.get("completions"), list):
            values["steps"] = values.pop("completions")
        steps = _steps(row, values.get("steps"))
        yield LabelledSteps(_prompt(row.changed(values), as_chat), steps, _labels(row, values, len(steps)))


def _steps(row: Row, value: Any, field: str = "steps") -> tuple[str, ...]:
    if value is None:
        fault = f"is missing; the row has {', '.join(map(repr, row.values))}"
        raise mistake(row, repr(field), fault, "a list of steps", f"set data.columns.YOURS={field}")
    if not isinstance(value, list | tuple) or not value:
        raise mistake(
            row, field, f"is {value_text(value)}", "a list of steps", f"name the column of the steps {field!r}"
        )
    for at, step in enumerate(value):
        if not isinstance(step, str) or not step.strip():
            raise mistake(
                row, f"{field}[{at}]", f"is {value_text(step)}", "some text", "fill it in, or drop step and label"
            )
    return tuple(value)


def _labels(row: Row, values: Mapping[str, Any], count: int) -> tuple[float | None, ...]:
    name = next((column for column in ("labels", "ratings") if values.get(column) is not None), None)
    if name is None:
        return _until_error(row, values, count)
    labels = values[name]
    if not isinstance(labels, list | tuple) or len(labels) != count:
        size = len(labels) if isinstance(labels, list | tuple) else value_text(labels)
        raise mistake(row, name, f"has {size} entries for {count} steps", "one for each step", "correct the row")
    return tuple(_label(row, f"{name}[{at}]", value, name == "ratings") for at, value in enumerate(labels))


def _label(row: Row, field: str, value: Any, rating: bool) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float) and math.isfinite(value)
    if rating:
        # a neutral step does no harm, so it counts as right
        if not number or value not in (-1, 0, 1):
            raise mistake(
                row, field, f"is {value_text(value)}", "-1, 0 or 1", "correct it, or write null for no rating"
            )
        return 0.0 if value < 0 else 1.0
    if not number or not 0 <= value <= 1:
        fix = "name a column of -1, 0 and 1 'ratings'" if value == -1 else "correct it, or write null for no label"
        raise mistake(row, field, f"is {value_text(value)}", "true, false or a share in [0, 1]", fix)
    return float(value)


def _until_error(row: Row, values: Mapping[str, Any], count: int) -> tuple[float | None, ...]:
    name = next((column for column in FIRST_ERROR if column in values), None)
    if name is None:
        expected = "a label for each step, or the number of the first wrong one"
        raise mistake(row, "'labels'", "is missing", expected, "add 'labels' or 'first_error'")
    at = values[name]
    if at is None or at == NO_ERROR:
        return (1.0,) * count
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < count:
        expected = f"a step from 0 to {count - 1}, or {NO_ERROR} for no error"
        raise mistake(row, name, f"is {value_text(at)} in a solution of {count} steps", expected, "correct the row")
    return (1.0,) * at + (0.0,) + (None,) * (count - at - 1)


def _modified(row: Row, as_chat: bool) -> Iterator[LabelledSteps]:
    """A right solution and the same one with errors put in, which are all known."""
    values = row.values
    steps = _steps(row, values["modified_process"], "modified_process")
    wrong = values.get("error_steps")
    if not isinstance(wrong, list | tuple) or not all(isinstance(at, int) and 1 <= at <= len(steps) for at in wrong):
        expected = f"steps from 1 to {len(steps)}"
        raise mistake(row, "error_steps", f"is {value_text(wrong)}", expected, "correct the row or drop it")
    name = values.get("idx", row.where)
    columns = {"prompt": values.get("modified_question") or values.get("question"), "id": f"{name}/modified"}
    labels = tuple(float(at not in wrong) for at in range(1, len(steps) + 1))
    yield LabelledSteps(_prompt(Row(columns, row.where), as_chat), steps, labels)
    if wrong and values.get("original_process"):
        right = _steps(row, values["original_process"], "original_process")
        columns = {"prompt": values.get("original_question") or values.get("question"), "id": f"{name}/original"}
        yield LabelledSteps(_prompt(Row(columns, row.where), as_chat), right, (1.0,) * len(right))


def _branches(row: Row, as_chat: bool) -> Iterator[LabelledSteps]:
    """Each longest prefix of a search tree, cut where shorter ones end; its labels are the shares that went well."""
    question = row.values.get("question")
    seen: dict[str, list[float]] = {}
    for at, node in enumerate(row.values["reasoning_steps"]):
        if not isinstance(node, Mapping):
            fault, expected = f"is {value_text(node)}", "an object with solution_prefix and mc_value"
            raise mistake(row, f"reasoning_steps[{at}]", fault, expected, "correct the row")
        prefix, share = node.get("solution_prefix"), _label(row, f"reasoning_steps[{at}]", node.get("mc_value"), False)
        if not isinstance(prefix, str) or share is None or not prefix.startswith(str(question)):
            expected = "the question and the steps so far, with mc_value"
            raise mistake(row, f"reasoning_steps[{at}]", f"is {value_text(node)}", expected, "correct the row")
        seen.setdefault(prefix, []).append(share)
    ordered = sorted(seen, key=len)
    for number, leaf in enumerate(ordered):
        if any(other.startswith(leaf) for other in ordered[number + 1 :]):
            continue
        path = [beginning for beginning in ordered if leaf.startswith(beginning) and beginning != question]
        starts = [len(str(question)), *map(len, path)]
        steps = tuple(leaf[start:stop] for start, stop in pairwise(starts))
        if not path or not all(step.strip() for step in steps):
            continue
        labels = tuple(sum(seen[beginning]) / len(seen[beginning]) for beginning in path)
        columns = {"prompt": question, "id": f"{row.values.get('question_id', row.where)}/{number}"}
        yield LabelledSteps(_prompt(Row(columns, row.where), as_chat), tuple(step.strip() for step in steps), labels)


def _prompt(row: Row, as_chat: bool) -> Prompt:
    prompted = with_prompt(row)
    rest = {name: value for name, value in prompted.values.items() if name not in ("steps", "labels", "ratings")}
    return prompts_from([prompted.changed(rest)], as_chat=as_chat)[0]
