"""The lab as a page: a file that needs nothing but a browser, or a page of the board that asks for every table.

In the file what repeats is stored once: a table is the number of its notes and the numbers of its charts; a chart is
the number of its frame, a spec with None for every column, and the numbers of its columns in the order in which the
frame wants them. Tables stand in the order of `Experiment.grid`. lab.js unpacks in the same way.

Every experiment of the lab, in the order in which a reader meets them.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from whet.pages.lab import (
    bandit,
    clip_weights,
    groups,
    kl_estimates,
    lookahead,
    preferences,
    rare_token,
    ratio_noise,
    shares,
)
from whet.pages.lab.experiment import PLACE_DIGITS, Experiment, rounded
from whet.pages.render import render_live
from whet.record.run_folder import write_atomically
from whet.types import WhetError, did_you_mean

MODULES = (groups, clip_weights, rare_token, ratio_noise, shares, kl_estimates, lookahead, preferences, bandit)


@cache
def experiments() -> tuple[Experiment, ...]:
    """All experiments, in the order of the page."""
    return tuple(module.experiment() for module in MODULES)


def experiment_named(name: str) -> Experiment:
    """The experiment of that name; an error that names the nearest where there is none."""
    known = {experiment.name: experiment for experiment in experiments()}
    if name not in known:
        raise WhetError(
            f"no experiment is called {name[:40]!r}{did_you_mean(name[:40], known)}; give {', '.join(known)}"
        )
    return known[name]


COLUMNS = ("x", "y", "low", "high")
SCRIPT = "lab.js"
DATA = "lab-data"  # the id of the element that holds the tables


class ValuePool:
    """Values by number, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        """The index of a value in the pool, which holds equal values once."""
        text = json.dumps(value)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]


def packed(experiments: Iterable[Experiment], report: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """All tables over all grids. `report` hears of each experiment."""
    columns, frames, charts, notes = (ValuePool() for _ in range(4))
    written = []
    for experiment in experiments:
        tables = []
        for record in (experiment.table(settings).record() for settings in experiment.grid()):
            drawn = [_packed_chart(table, columns, frames, charts) for table in record.pop("charts")]
            tables.append([notes.number(record), *drawn])
        written.append({**experiment.record(), "tables": tables})
        report(f"{experiment.name}: {len(tables)} tables")
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


def static_page(record: Mapping[str, Any]) -> str:
    """The whole lab in one file: `record` is what `packed` made."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    # a fifth of its size, and a browser unpacks it itself; no letter of base64 means anything to a page
    data = base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode()
    return render_live(
        "lab.html",
        SCRIPT,
        title="The lab",
        eyebrow="whet",
        experiments=experiments(),
        data=data,
        api="",
    )


def written_tables(page: str) -> Mapping[str, Any]:
    """The tables that a static page holds."""
    held = page.partition(f'<script id="{DATA}" type="text/plain">')[2].partition("</script>")[0]
    if not held:
        raise WhetError("the page holds no tables of the lab; write it with: python -m whet.pages.lab")
    return json.loads(gzip.decompress(base64.b64decode(held)))


def write_static_page(path: Path, report: Callable[[str], None] = lambda _: None) -> Path:
    """Compute every table and write the page."""
    return write_atomically(path, static_page(packed(experiments(), report)))


def rewrite_static_page(path: Path) -> Path:
    """The page with its tables as they are, and everything else as it is today."""
    record = dict(written_tables(path.read_text(encoding="utf-8")))
    previous = {experiment["name"]: experiment for experiment in record["experiments"]}
    described = []
    for experiment in experiments():
        today = json.loads(json.dumps(experiment.record()))
        if previous.get(experiment.name, {}).get("controls") != today["controls"]:
            raise WhetError(f"the controls of {experiment.name} have changed: compute the tables anew")
        described.append({**today, "tables": previous[experiment.name]["tables"]})
    columns = rounded(record["columns"], PLACE_DIGITS)
    return write_atomically(path, static_page({**record, "columns": columns, "experiments": described}))
