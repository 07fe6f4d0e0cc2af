"""The tables of the static page, packed: what repeats is stored once.

A table is the number of its notes and the numbers of its charts; a chart is the number of its frame, a spec with None
for every column, and the numbers of its columns in the order in which the frame wants them. Tables stand in the order
of `Experiment.grid`. lab.js unpacks in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from whet.pages.lab.experiment import Experiment

COLUMNS = ("x", "y", "low", "high")


class ValuePool:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        text = json.dumps(value)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]


def packed(
    experiments: Iterable[Experiment],
    said: Callable[[str], None] = lambda _: None,
    kept: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> dict[str, Any]:
    """All tables over all grids, but for those of the experiments that are `kept`. `said` hears of each experiment."""
    columns, frames, charts, notes = (ValuePool() for _ in range(4))
    written = []
    for experiment in experiments:
        tables = []
        known = (kept or {}).get(experiment.name)
        records = map(dict, known) if known else (experiment.table(each).record() for each in experiment.grid())
        for record in records:
            drawn = [_packed_chart(each, columns, frames, charts) for each in record.pop("charts")]
            tables.append([notes.number(record), *drawn])
        written.append({**experiment.record(), "tables": tables})
        said(f"{experiment.name}: {len(tables)} tables")
    return {
        "columns": columns.values,
        "frames": frames.values,
        "charts": charts.values,
        "notes": notes.values,
        "experiments": written,
    }


def _packed_chart(chart: Mapping[str, Any], columns: ValuePool, frames: ValuePool, charts: ValuePool) -> int:
    numbers = []
    series = []
    for trace in chart["spec"]["series"]:
        numbers += [columns.number(trace[name]) for name in COLUMNS if name in trace]
        series.append({name: None if name in COLUMNS else value for name, value in trace.items()})
    frame = frames.number({**chart, "spec": {**chart["spec"], "series": series}})
    return charts.number([frame, *numbers])


def unpacked(record: Mapping[str, Any], table: Sequence[int]) -> dict[str, Any]:
    """One table of a packed record, as `LabTable.record` gave it."""
    charts = []
    for number in table[1:]:
        frame, *numbers = record["charts"][number]
        wanted = iter(numbers)
        chart = json.loads(json.dumps(record["frames"][frame]))
        for trace in chart["spec"]["series"]:
            for name in COLUMNS:
                if name in trace:
                    trace[name] = record["columns"][next(wanted)]
        charts.append(chart)
    return {"charts": charts, **record["notes"][table[0]]}
