"""Models side by side on one page: accuracy with intervals, the curves over k, n and tokens, calibration, and every
number in a table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from whet.pages.charts import NUM_TONES, CostSeries, Interval, cost_chart, interval_chart, reliability_chart
from whet.pages.evaluation import (
    EvalReport,
    ModelEval,
    curve_tables,
    estimate_text,
    evals_summary,
    model_table,
    pair_text,
    short_names,
)
from whet.pages.render import Figure, LegendEntry, PageTable, render
from whet.record.metrics.eval_summary import CUT, FORCED
from whet.record.metrics.intervals import IntervalEstimate
from whet.record.metrics.reranking import BEST, WEIGHTED
from whet.record.text import number, percent

Points = Sequence[tuple[float, IntervalEstimate, str]]  # where, what, and the words of the place


def eval_page(report: EvalReport, command: str = "") -> str:
    names = short_names(report.models)
    title = names[0] if len(names) == 1 else f"{len(names)} models side by side"
    sections = [_section(report, task, command) for task in report.tasks]
    return render(
        "eval.html",
        title=title,
        eyebrow="whet eval",
        about=tuple(report.tasks),
        verdict=" ".join(_verdict(report, task) for task in report.tasks),
        sections=sections,
        command=command,
        foot="Bands and brackets are 95% intervals over the prompts: attempts at one prompt count as one observation. "
        "pass@k and majority votes are means over every choice of k of the completions, without resampling.",
    )


def _verdict(report: EvalReport, task: str) -> str:
    evals = report.of(task)
    names = short_names([each.model for each in evals])
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


def _section(report: EvalReport, task: str, command: str) -> dict[str, object]:
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


def _figures(evals: Sequence[ModelEval]) -> list[Figure]:
    is_share = evals[0].summary.measure == "accuracy"
    names = short_names([each.model for each in evals])
    rows = [(name, each.summary.value) for name, each in zip(names, evals, strict=True)]
    for name, each in zip(names, evals, strict=True):
        rows += [(f"{name}: {label}", value) for label, value in each.summary.tasks.items()]
    measure = evals[0].summary.measure
    figures = [
        Figure(
            measure.capitalize(),
            "of one completion",
            interval_chart(
                [(name, found.value, found.low, found.high, estimate_text(found, is_share)) for name, found in rows],
                f"{measure} by model",
                is_share,
            ),
        )
    ]
    figures += _curve("pass@k", "any of k is right", evals, lambda each: _sized(each.summary.pass_at, "k"), True)
    figures += _curve(
        "Majority of n", "the answer given most", evals, lambda each: _sized(each.summary.votes, "n"), True
    )
    figures += _best_of(evals)
    figures += _budgets(evals, is_share)
    figures += _calibrations(evals)
    return figures


def _sized(points: Sequence[IntervalEstimate], letter: str) -> Points:
    return [(float(getattr(point, "n")), point, f"{letter} = {getattr(point, 'n')}") for point in points]  # noqa: B009


def _curve(
    title: str, about: str, evals: Sequence[ModelEval], points: Callable[[ModelEval], Points], is_share: bool
) -> list[Figure]:
    names = short_names([each.model for each in evals])
    drawn = [
        (place % NUM_TONES, name, found)
        for place, (name, each) in enumerate(zip(names, evals, strict=True))
        if (found := points(each))
    ]
    if not drawn:
        return []
    series = [CostSeries(_intervals(name, found, is_share), tone) for tone, name, found in drawn]
    chart = cost_chart(series, (), title, is_share, sorted({point.cost for line in series for point in line.points}))
    return [Figure(title, about, chart, legend=tuple(LegendEntry(name, f"s{tone}") for tone, name, _ in drawn))]


def _intervals(name: str, found: Points, is_share: bool) -> tuple[Interval, ...]:
    return tuple(
        Interval(cost, each.value, each.low, each.high, f"{name}, {place}: {estimate_text(each, is_share)}")
        for cost, each, place in found
    )


def _budgets(evals: Sequence[ModelEval], is_share: bool) -> list[Figure]:
    """Completions that are cut are dashed where thoughts are forced as well."""
    names = short_names([each.model for each in evals])
    series, legend = [], []
    has_forced = any(point.way == FORCED for each in evals for point in each.summary.budgets)
    for place, (name, each) in enumerate(zip(names, evals, strict=True)):
        tone = place % NUM_TONES
        for way in (CUT, FORCED):
            found: Points = [
                (float(point.budget), point, f"{way} at {point.budget}, {number(point.tokens)} tokens written")
                for point in each.summary.budgets
                if point.way == way
            ]
            if found:
                quiet = way == CUT and has_forced
                series.append(CostSeries(_intervals(name, found, is_share), tone, quiet))
                legend.append(LegendEntry(f"{name}, {way}" if has_forced else name, f"s{tone}", dashed=quiet))
    if not series:
        return []
    marked = sorted({point.cost for line in series for point in line.points})
    chart = cost_chart(series, (), "accuracy against tokens", is_share, marked)
    about = "tokens that a completion may have" if not has_forced else "tokens of thought before an answer is due"
    return [Figure("Token budget", about, chart, legend=tuple(legend))]


def _calibrations(evals: Sequence[ModelEval]) -> list[Figure]:
    names = short_names([each.model for each in evals])
    figures = []
    for way, about in (("votes", "share of the votes"), ("tokens", "probability of the tokens")):
        found = [
            (name, each.summary.calibration[way])
            for name, each in zip(names, evals, strict=True)
            if way in each.summary.calibration
        ]
        if found:
            series = [(name, [(one.sure, one.right, one.rows) for one in each.bins]) for name, each in found]
            legend = tuple(
                LegendEntry(name, f"s{place % NUM_TONES}", percent(each.error))
                for place, (name, each) in enumerate(found)
            )
            chart = reliability_chart(series, f"share right by the {about}")
            note = "On the line, a model is right as often as it is sure. Numbers: expected calibration error."
            figures.append(Figure("Calibration", f"share right by the {about}", chart, legend=legend, note=note))
    return figures


def _best_of(evals: Sequence[ModelEval]) -> list[Figure]:
    """One figure per model that was reranked: its scorers over n."""
    names = short_names([each.model for each in evals])
    figures = []
    for name, each in zip(names, evals, strict=True):
        if each.reranking is None:
            continue
        lines = [line for line in each.reranking.lines if line.way in (BEST, WEIGHTED)]
        series = [
            CostSeries(
                tuple(
                    Interval(float(point.n), point.value, point.low, point.high, f"{line.name}, n = {point.n}")
                    for point in line.values_by_n
                ),
                place % NUM_TONES,
            )
            for place, line in enumerate(lines)
        ]
        legend = tuple(LegendEntry(line.name, f"s{place % NUM_TONES}") for place, line in enumerate(lines))
        marked = [float(point.n) for point in lines[0].values_by_n]
        chart = cost_chart(series, (), f"best of n of {name}", each.reranking.measure == "accuracy", marked)
        figures.append(Figure("Best of n", name, chart, legend=legend))
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
