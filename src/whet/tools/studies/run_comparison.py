"""`whet.compare`: finished runs side by side, as a value to print, to show in a notebook, and to work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from whet.api.run import Run
from whet.api.tables import table
from whet.pages.compare import MethodComparison, cells, comparison_values, heads, table_text, verdict
from whet.tools.studies.comparison import compare_runs, write_comparison
from whet.types import WhetError


@dataclass(frozen=True)
class RunComparison:
    """Finished runs side by side. Printed, it is a table with its verdict; a notebook shows it as one."""

    comparison: MethodComparison

    @property
    def verdict(self) -> str:
        """The comparison in a few sentences: which is highest, and what is only noise."""
        return verdict(self.comparison)

    def values(self) -> dict[str, Any]:
        """Everything as JSON holds it: rows with means, intervals and p, settings that differ, notes."""
        return comparison_values(self.comparison)

    def table(self) -> Any:
        """One row per run, or per group of runs that differ only in the seed. A DataFrame where pandas is installed."""
        rows = []
        for row in self.values()["rows"]:
            means = {
                name: row[name]["mean"] for name in ("before", "after", "reward_last_quarter", "tokens", "seconds")
            }
            rows.append({"run": row["method"], "runs": row["runs"], **means, "p": row["p"], "verdict": row["verdict"]})
        return table(rows)

    def text(self) -> str:
        """The comparison as a table for the terminal."""
        return table_text(self.comparison)

    def save(self, folder: str | Path) -> Path:
        """Write compare.html and compare.json into a folder; the page."""
        return write_comparison(Path(folder), self.comparison)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in heads(self.comparison))
        lines = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in cells(self.comparison))
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        words = f"<p>{escape(self.verdict)}</p>"
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{words}"


def compare(runs: Sequence[Run | str | Path], *, command: str = "") -> RunComparison:
    """Finished runs side by side: metrics before and after, intervals, and which differences are beyond noise.

    Runs that differ in nothing but their seed count as one entry with several seeds.
    """
    if isinstance(runs, str | Path | Run):
        raise WhetError("compare takes a list of runs: whet.compare([first, second])")
    folders = [run.folder if isinstance(run, Run) else Path(run) for run in runs]
    return RunComparison(compare_runs(folders, command))
