"""Models side by side on one page: accuracy with intervals, the curves over k, n and tokens, calibration, and every
number in a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from whet.pages.chart_specs import cost_chart, cost_line, reliability
from whet.pages.evaluation import (
    EvalReport,
    ModelEval,
    curve_tables,
    evals_summary,
    model_table,
    pair_text,
    short_names,
)
from whet.pages.render import Figure, PageTable, render
from whet.record.metrics.eval_summary import CUT, FORCED
from whet.record.metrics.intervals import IntervalEstimate
from whet.record.metrics.reranking import BEST, WEIGHTED
from whet.record.text import estimate_text, number, percent


def eval_page(report: EvalReport, command: str = "") -> str:
    """The whole page."""
    names = short_names(report.models)
    title = names[0] if len(names) == 1 else f"{len(names)} models side by side"
    sections = [_section(report, task) for task in report.tasks]
    return render(
        "eval.html",
        title=title,
        eyebrow="whet eval",
        about=tuple(report.tasks),
        verdict=" ".join(_verdict(report, task) for task in report.tasks),
        sections=sections,
        damaged=(),
        runs=(),
        command=command,
        foot="Bands and brackets are 95% intervals over the prompts: attempts at one prompt count as one observation. "
        "pass@k and majority votes are means over every choice of k of the completions, without resampling.",
    )


def _verdict(report: EvalReport, task: str) -> str:
    evals = report.of(task)
    names = short_names([evaluation.model for evaluation in evals])
    head = f"{task}: " if len(report.tasks) > 1 else ""
    texts = [
        f"{name} {estimate_text(each.summary.value, each.summary.measure == 'accuracy')}"
        for name, each in zip(names, evals, strict=True)
    ]
    sure = [test for test in report.pairs.get(task, ()) if test.corrected_p is not None and test.corrected_p < 0.05]
    compared = ""
    if report.pairs.get(task):
        compared = (
            " No pair of them differs beyond noise."
            if not sure
            else " Beyond noise: "
            + "; ".join(
                f"{short_names([test.second])[0]} {'above' if test.difference > 0 else 'below'} "
                f"{short_names([test.first])[0]}"
                for test in sure
            )
            + "."
        )
    return f"{head}{evals[0].summary.measure.capitalize()}: {', '.join(texts)}.{compared}"


def _section(report: EvalReport, task: str) -> dict[str, object]:
    evals = report.of(task)
    tests = report.pairs.get(task, ())
    return {
        "title": task,
        "about": evals_summary(evals),
        "figures": _figures(evals),
        "tables": [
            ("", _table(model_table(evals))),
            *((name, _table(rows)) for name, rows in curve_tables(evals).items()),
            *_rerank_tables(evals),
        ],
        "pairs": [pair_text(test, len(tests)) for test in tests],
    }


def _table(rows: Sequence[Sequence[str]]) -> PageTable:
    return PageTable(tuple(rows[0]), tuple(tuple(row) for row in rows[1:]))


def interval_figure(title: str, about: str, rows: Sequence[tuple[str, IntervalEstimate]], is_share: bool) -> Figure:
    """Values with their intervals, one below the other."""
    intervals = [(name, each.value, each.low, each.high, estimate_text(each, is_share)) for name, each in rows]
    return Figure(title, about, {"intervals": intervals, "percent": is_share})


def _figures(evals: Sequence[ModelEval]) -> list[Figure]:
    is_share = evals[0].summary.measure == "accuracy"
    names = short_names([evaluation.model for evaluation in evals])
    rows = [(name, each.summary.value) for name, each in zip(names, evals, strict=True)]
    for name, each in zip(names, evals, strict=True):
        rows += [(f"{name}: {label}", value) for label, value in each.summary.tasks.items()]
    figures = [interval_figure(evals[0].summary.measure.capitalize(), "of one completion", rows, is_share)]
    for title, about, letter, points in (
        ("pass@k", "any of k is right", "k", [evaluation.summary.pass_at for evaluation in evals]),
        ("Majority of n", "the answer given most", "n", [evaluation.summary.votes for evaluation in evals]),
    ):
        series = [
            cost_line(name, [(at.n, at, f"{name}, {letter} = {at.n}: {estimate_text(at)}") for at in row], tone)
            for tone, (name, row) in enumerate(zip(names, points, strict=True))
            if row
        ]
        figures += [Figure(title, about, cost_chart(series, True, marked=True))] if series else []
    return [*figures, *_best_of(evals), *_budgets(evals, is_share), *_calibrations(evals)]


def _budgets(evals: Sequence[ModelEval], is_share: bool) -> list[Figure]:
    """Completions that are cut are dashed where thoughts are forced as well."""

    def text(estimate: IntervalEstimate) -> str:
        return estimate_text(estimate, is_share)

    series = []
    has_forced = any(point.way == FORCED for evaluation in evals for point in evaluation.summary.budgets)
    for tone, (name, each) in enumerate(
        zip(short_names([evaluation.model for evaluation in evals]), evals, strict=True)
    ):
        for way in (CUT, FORCED):
            points = [
                (at.budget, at, f"{name}, {way} at {at.budget}, {number(at.tokens)} tokens written: {text(at)}")
                for at in each.summary.budgets
                if at.way == way
            ]
            if points:
                full = f"{name}, {way}" if has_forced else name
                dashed = way == CUT and has_forced
                series.append(cost_line(full, points, tone, dashed=dashed))
    if not series:
        return []
    about = "tokens that a completion may have" if not has_forced else "tokens of thought before an answer is due"
    return [Figure("Token budget", about, cost_chart(series, is_share, marked=True))]


def _calibrations(evals: Sequence[ModelEval]) -> list[Figure]:
    names = short_names([evaluation.model for evaluation in evals])
    figures = []
    for way, about in (("votes", "share of the votes"), ("tokens", "probability of the tokens")):
        models = [
            (name, [(tenth.sure, tenth.right, tenth.rows) for tenth in known.bins], percent(known.error))
            for name, each in zip(names, evals, strict=True)
            if (known := each.summary.calibration.get(way)) is not None
        ]
        if models:
            note = "On the line, a model is right as often as it is sure. Numbers: expected calibration error."
            spec = {**reliability(models, 0.0, (460, 250)), "named": True}
            figures.append(Figure("Calibration", f"share right by the {about}", spec, note=note))
    return figures


def _best_of(evals: Sequence[ModelEval]) -> list[Figure]:
    """One figure per model that was reranked: its scorers over n."""
    figures = []
    for name, each in zip(short_names([evaluation.model for evaluation in evals]), evals, strict=True):
        if each.reranking is None:
            continue
        is_share = each.reranking.measure == "accuracy"
        series = [
            cost_line(curve.name, [(at.n, at, f"{curve.name}, n = {at.n}") for at in curve.values_by_n], tone)
            for tone, curve in enumerate(curve for curve in each.reranking.lines if curve.way in (BEST, WEIGHTED))
        ]
        figures.append(Figure("Best of n", name, cost_chart(series, is_share, marked=True)))
    return figures


def _rerank_tables(evals: Sequence[ModelEval]) -> list[tuple[str, PageTable]]:
    tables = []
    for name, each in zip(short_names([one.model for one in evals]), evals, strict=True):
        if each.reranking is not None:
            counts = [point.n for point in each.reranking.lines[0].values_by_n]
            rows = tuple(
                (line.name, *(percent(point.value) if each.reranking.measure == "accuracy" else number(point.value)
                              for point in line.values_by_n))
                for line in each.reranking.lines
            )  # fmt: skip
            tables.append((f"one of n completions of {name}", PageTable(("", *(f"n = {n}" for n in counts)), rows)))
    return tables
