"""How a completion is scored from its steps, and the part of a score that is only length."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from whet.types import Prompt, WhetError

Aggregate = Literal["min", "mean", "last", "product"]


def aggregated(scores: Sequence[float], how: Aggregate) -> float:
    """The score of a completion from the scores of its steps; 0 for a completion without steps."""
    if not scores:
        return 0.0
    match how:
        case "min":
            return min(scores)
        case "mean":
            return sum(scores) / len(scores)
        case "last":
            return scores[-1]
        case "product":
            return math.prod(scores)


def check_choice(given: str, choices: Any, what: str) -> None:
    if given not in get_args(choices):
        raise WhetError(f"{what} is {given!r}; give one of {', '.join(get_args(choices))}")


@dataclass(frozen=True)
class LengthFit:
    """How much of a score is length: `slope` a token, around `center` tokens."""

    slope: float = 0.0
    center: float = 0.0

    def without_length(self, score: float, length: int) -> float:
        return score - self.slope * (length - self.center)


def length_fit(lengths: Sequence[float], scores: Sequence[float], groups: Sequence[Hashable]) -> LengthFit:
    """slope = SUM (l - l_g)(s - s_g) / SUM (l - l_g)^2, with l_g and s_g the means of the row's group.

    Within groups, because a harder question has longer answers and other scores without either being the cause of
    the other. Slope 0 where lengths do not vary.
    """
    members: dict[Hashable, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    together = spread = 0.0
    for rows in members.values():
        mean_length = sum(lengths[row] for row in rows) / len(rows)
        mean_score = sum(scores[row] for row in rows) / len(rows)
        together += sum((lengths[row] - mean_length) * (scores[row] - mean_score) for row in rows)
        spread += sum((lengths[row] - mean_length) ** 2 for row in rows)
    if not lengths or spread < 1e-9:
        return LengthFit()
    return LengthFit(together / spread, sum(lengths) / len(lengths))


@dataclass(frozen=True)
class Example:
    """One row of the data a slope is fitted on: a completion to be scored, or a length with its score."""

    group: str
    prompt: Prompt | None = None
    completion: str = ""
    length: float = 0.0
    score: float = 0.0


def length_examples(file: str) -> list[Example]:
    """JSON lines of {prompt, completion}, or of {length, score} and, where several belong together, {group}."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise WhetError(
            f"length_fit: {file} cannot be read ({error}); give 'running' or a file of JSON lines"
        ) from None
    examples = [_example(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if len(examples) < 2:
        raise WhetError(f"length_fit: {file} has {len(examples)} rows; give at least 2, and better hundreds")
    return examples


def _example(line: str, place: str) -> Example:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        raise WhetError(f"{place} is not JSON; write one object a line") from None
    if isinstance(row, Mapping) and _is_number(row.get("length")) and _is_number(row.get("score")):
        return Example(str(row.get("group", row.get("prompt", ""))), length=row["length"], score=row["score"])
    if (
        isinstance(row, Mapping)
        and isinstance(row.get("completion"), str)
        and isinstance(row.get("prompt"), str | list)
    ):
        value = row["prompt"]
        messages = () if isinstance(value, str) else tuple(value)
        prompt = Prompt(place, messages, value if isinstance(value, str) else None)
        return Example(json.dumps(value), prompt, row["completion"])
    raise WhetError(f"{place} has neither `prompt` and `completion` nor `length` and `score`; give one of these pairs")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
