"""What a judge looks at: criteria with weights on one scale."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.types import WhetError, did_you_mean

TEXT_FILES = (".txt", ".md")
TABLE_FILES = (".toml", ".json")
KNOWN = ("instructions", "scale", "criteria")
KNOWN_OF_CRITERION = ("name", "weight", "text")
LARGEST = 1e6  # end of a scale
RESERVED = ("code", "reason")  # keys of every verdict
DEFAULT_TEXT = "How correct, complete and helpful the answer is. Length and style earn nothing by themselves."


@dataclass(frozen=True)
class Criterion:
    """One thing that is judged."""

    name: str
    text: str
    weight: float = 1.0


@dataclass(frozen=True)
class Rubric:
    """Criteria, judged on a scale from `low` to `high`."""

    criteria: tuple[Criterion, ...] = (Criterion("quality", DEFAULT_TEXT),)
    low: float = 0.0
    high: float = 10.0
    instructions: str = ""

    def share(self, scores: Mapping[str, float]) -> float:
        """The weighted mean of the marks, as a share of the scale: in [0, 1]."""
        total = sum(criterion.weight for criterion in self.criteria)
        earned = sum(criterion.weight * (scores[criterion.name] - self.low) for criterion in self.criteria)
        return min(1.0, max(0.0, earned / (total * (self.high - self.low))))


def rubric_from(given: str | Mapping[str, Any]) -> Rubric:
    """A rubric from text, from a file (.txt, .md: text; .toml, .json: a table), or from a table; "" is the default.

    A table has `criteria` (a list of {name, weight, text}), and may have `scale` ([low, high]) and `instructions`.
    """
    if isinstance(given, Mapping):
        return _from_table(given, "the rubric")
    path = Path(given.strip())
    suffix = path.suffix.lower() if "\n" not in given and len(given) < 1000 else ""
    if suffix in (*TEXT_FILES, *TABLE_FILES) and " " not in path.name:
        text = _read(path)
        if suffix in TEXT_FILES:
            return _from_text(text, str(path))
        return _from_table(_table(path, text), str(path))
    return _from_text(given, "the rubric") if given.strip() else Rubric()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WhetError(f"the rubric {path} cannot be read ({error.strerror}); correct the path") from None
    except UnicodeDecodeError:
        raise WhetError(f"the rubric {path} is not UTF-8 text; save it as such") from None


def _table(path: Path, text: str) -> Mapping[str, Any]:
    try:
        table = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise WhetError(f"the rubric {path} is broken: {error}; fix that line") from None
    if not isinstance(table, Mapping):
        raise WhetError(f"the rubric {path} holds a {type(table).__name__}; expected a table with `criteria`")
    return table


def _from_text(text: str, place: str) -> Rubric:
    if not text.strip():
        raise WhetError(f"{place} is empty; write what a good answer has")
    return Rubric((Criterion("quality", text.strip()),))


def _from_table(table: Mapping[str, Any], place: str) -> Rubric:
    _check_keys(table, KNOWN, place)
    rows = table.get("criteria")
    if not isinstance(rows, Sequence) or isinstance(rows, str) or not rows:
        raise WhetError(f"{place} has no `criteria`; give a list of tables with name, weight and text")
    criteria = tuple(_criterion(row, f"{place}, criterion {number}") for number, row in enumerate(rows, 1))
    names = [criterion.name.casefold() for criterion in criteria]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise WhetError(f"{place}: two criteria are called {repeated[0]!r}; marks are told apart by name, rename one")
    if sum(criterion.weight for criterion in criteria) <= 0:
        raise WhetError(f"{place}: every weight is 0; give at least one criterion a weight")
    low, high = _scale(table.get("scale", [0, 10]), place)
    return Rubric(criteria, low, high, str(table.get("instructions", "")))


def _criterion(row: Any, place: str) -> Criterion:
    if not isinstance(row, Mapping) or not str(row.get("name", "")).strip():
        raise WhetError(f"{place} has no name; give a table with name, weight and text")
    _check_keys(row, KNOWN_OF_CRITERION, place)
    if str(row["name"]).strip().casefold() in RESERVED:
        raise WhetError(f"{place} is called {row['name']!r}, which a verdict uses for itself; rename it")
    weight = row.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise WhetError(f"{place} ({row['name']}) has weight {weight!r}; give a number that is not negative")
    return Criterion(str(row["name"]).strip(), str(row.get("text", "")).strip(), float(weight))


def _scale(given: Any, place: str) -> tuple[float, float]:
    good = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2
    if not good or not all(_is_finite(number) for number in given) or not given[0] < given[1]:
        raise WhetError(f"{place} has the scale {given!r}; give [lowest, highest], as in [0, 10]")
    return float(given[0]), float(given[1])


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -LARGEST <= value <= LARGEST


def _check_keys(table: Mapping[str, Any], allowed: Sequence[str], place: str) -> None:
    for key in table:
        if key not in allowed:
            raise WhetError(
                f"{place} has the key {key!r}{did_you_mean(str(key), allowed)}; known: {', '.join(allowed)}"
            )
