"""Lines of a log as a table: a DataFrame where pandas is installed, else a list of dictionaries of equal content."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

COUNTS_PREFIX = "counts."  # in front of a count whose name a metric has taken


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Rows of unequal keys as one table; a value that a row lacks is missing in it."""
    if importlib.util.find_spec("pandas") is None:
        return [dict(row) for row in rows]
    import pandas

    return pandas.DataFrame([dict(row) for row in rows])


def step_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """One step of metrics.jsonl, flat: `reward` is the total and `reward.NAME` a part, `seconds` all of the step and
    `seconds.NAME` one phase; metrics and counts keep their names."""
    seconds = {name: value for name, value in line["seconds"].items() if value is not None}
    row = {"step": line["step"]}
    if "total" in line["reward"]:
        row["reward"] = line["reward"]["total"]
    row |= {f"reward.{name}": value for name, value in line["reward"].items() if name != "total"}
    row |= line["metrics"]
    for name, count in line["counts"].items():
        row[f"{COUNTS_PREFIX}{name}" if name in row else name] = count
    row["seconds"] = sum(seconds.values())
    row |= {f"seconds.{name}": value for name, value in seconds.items()}
    return {**row, "policy_version": line["policy_version"], "health": list(line["health"])}


def eval_row(line: Mapping[str, Any]) -> dict[str, Any]:
    """One evaluation of metrics.jsonl, flat."""
    return {"step": line["step"], "eval": line["eval"], **line["result"], "seconds": line["seconds"]["evaluate"]}
