"""`whet.compare`: finished runs side by side, as a value to print, to show in a notebook, and to work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, overload

from whet.api.evaluation import EvalResult
from whet.api.run import Run
from whet.api.tables import table
from whet.pages.compare import MethodComparison, cells, comparison_values, heads, table_text, verdict
from whet.pages.eval_report import EvalReport, ModelEval, eval_record, eval_text
from whet.record.metrics.intervals import PairedTest, paired_tests
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


@dataclass(frozen=True)
class EvalComparison:
    """Evaluations of several models on the same prompts, compared prompt by prompt. Printed, it is a table."""

    report: EvalReport

    @property
    def tests(self) -> tuple[PairedTest, ...]:
        """Every pair of models: the difference with its interval, p, and the prompts gained and lost."""
        return tuple(test for tests in self.report.pairs.values() for test in tests)

    def values(self) -> dict[str, Any]:
        """Everything as JSON holds it."""
        return eval_record(self.report)

    def text(self) -> str:
        """The models as a table, and every pair of them."""
        return eval_text(self.report)

    def __str__(self) -> str:
        return self.text()


@overload
def compare(runs: Sequence[EvalResult], *, command: str = "") -> EvalComparison: ...


@overload
def compare(runs: Sequence[Run | str | Path], *, command: str = "") -> RunComparison: ...


def compare(
    runs: Sequence[Run | str | Path] | Sequence[EvalResult], *, command: str = ""
) -> RunComparison | EvalComparison:
    """Finished runs side by side: metrics before and after, intervals, and which differences are beyond noise.

        print(whet.compare(["runs/grpo-001", "runs/rloo-001"]))

    Runs that differ in nothing but their seed count as one entry with several seeds. Results of `whet.evaluate` are
    compared prompt by prompt instead, as `whet eval MODEL MODEL` does.
    """
    if isinstance(runs, str | Path | Run | EvalResult):
        raise WhetError("compare takes a list: whet.compare([first, second])")
    results = [run for run in runs if isinstance(run, EvalResult)]
    if results and len(results) < len(runs):
        raise WhetError("compare takes runs or results of whet.evaluate, not both; give one kind")
    if results:
        return _compare_results(results)
    folders = [run.folder if isinstance(run, Run) else Path(str(run)) for run in runs]
    return RunComparison(compare_runs(folders, command))


def _compare_results(results: Sequence[EvalResult]) -> EvalComparison:
    if len(results) < 2:
        raise WhetError("1 result to compare; give two or more")
    names = [f"{result.model} ({number})" for number, result in enumerate(results, 1)]
    models = [result.model for result in results]
    names = [model if models.count(model) == 1 else name for model, name in zip(models, names, strict=True)]
    prompts = [[(row["prompt_id"], row["prompt"]) for row in result.completions] for result in results]
    for name, asked in zip(names, prompts, strict=True):
        if asked != prompts[0]:
            raise WhetError(
                f"{names[0]} and {name} were asked other prompts, or another number of samples; evaluate them "
                "together: whet.evaluate([first, second], data)"
            )
    evals = [
        ModelEval(name, results[0].task, result.metrics, result.summary, result.temperature, result.facts)
        for name, result in zip(names, results, strict=True)
    ]
    outcomes = {name: result.outcomes for name, result in zip(names, results, strict=True)}
    return EvalComparison(EvalReport(tuple(evals), {results[0].task: paired_tests(outcomes)}))
