"""Models side by side on the same prompts, as text and JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from whet.pages.chart_specs import cost_chart, cost_line, reliability
from whet.pages.render import Figure, PageTable, render
from whet.pages.rerank import Reranking, rerank_figures, search_text, value_rows
from whet.record.metrics.eval_summary import EvalSummary
from whet.record.metrics.intervals import IntervalEstimate, PairedTest
from whet.record.text import (
    ABSENT,
    aligned,
    count_of,
    estimate_text,
    json_values,
    metric_text,
    number,
    percent,
    words,
)

SURE = 0.05  # p below which a difference is called one


@dataclass(frozen=True)
class ModelEval:
    """One model on one task."""

    model: str
    task: str
    metrics: Mapping[str, float]
    summary: EvalSummary
    temperature: float  # 0: greedy
    facts: Mapping[str, str] = field(default_factory=dict)
    reranking: Reranking | None = None
    completions: str = ""  # the file that holds them


@dataclass(frozen=True)
class EvalReport:
    """The evaluations of all models on all tasks."""

    evals: tuple[ModelEval, ...]
    pairs: Mapping[str, tuple[PairedTest, ...]]  # by task

    @property
    def tasks(self) -> list[str]:
        """The names of the tasks, in the order they were evaluated."""
        return list(dict.fromkeys(evaluation.task for evaluation in self.evals))

    @property
    def models(self) -> list[str]:
        """The names of the models, in the order they were evaluated."""
        return list(dict.fromkeys(evaluation.model for evaluation in self.evals))

    def of(self, task: str) -> list[ModelEval]:
        """The evaluations of every model on one task."""
        return [evaluation for evaluation in self.evals if evaluation.task == task]


def eval_record(report: EvalReport) -> dict[str, Any]:
    """The report as JSON; metrics of a single model on a single task stand at the top as well."""
    only = report.evals[0] if len(report.evals) == 1 else None
    record: dict[str, Any] = dict(only.metrics) if only else {}
    record["evals"] = [_eval_record(evaluation) for evaluation in report.evals]
    record["pairs"] = {task: [asdict(test) for test in tests] for task, tests in report.pairs.items()}
    if only is not None and only.reranking is not None:
        record["rerank"] = asdict(only.reranking)
    finite: dict[str, Any] = json_values(record)
    return finite


def _eval_record(evaluation: ModelEval) -> dict[str, Any]:
    summary = asdict(evaluation.summary)
    return {
        "model": evaluation.model,
        "task": evaluation.task,
        "temperature": evaluation.temperature,
        "completions": evaluation.completions,
        "metrics": dict(evaluation.metrics),
        "summary": summary,
        **({} if evaluation.reranking is None else {"rerank": asdict(evaluation.reranking)}),
    }


def eval_text(report: EvalReport) -> str:
    """One model: a line per metric. Several: a table per task, and every pair of models below it."""
    if len(report.evals) == 1:
        return "\n".join(f"{name:18} {text}" for name, text in model_lines(report.evals[0]))
    blocks = []
    for task in report.tasks:
        evals = report.of(task)
        blocks.append(f"{task}: {evals_summary(evals)}")
        if facts := shared_facts(evals):
            blocks.append("\n".join(f"{name:18} {text}" for name, text in facts))
        blocks.append("\n".join(aligned(model_table(evals))))
        for name, table in curve_tables(evals).items():
            blocks.append("\n".join([name, *aligned(table)]))
        if tests := report.pairs.get(task):
            blocks.append("\n".join(pair_text(test, len(tests)) for test in tests))
    return "\n\n".join(blocks)


def evals_summary(evals: Sequence[ModelEval]) -> str:
    """How many prompts and completions, and how they were drawn."""
    first = evals[0]
    if first.summary.lengths is None:
        questions = count_of(first.summary.prompts, "question")
        return f"{questions}, choices scored by log-likelihood; 95% intervals over the questions"
    how = f"at temperature {first.temperature:g}" if first.temperature else "greedy"
    return (
        f"{count_of(first.summary.prompts, 'prompt')}, {count_of(first.summary.samples, 'completion')} each, {how}; "
        "95% intervals over the prompts"
    )


def shared_facts(evals: Sequence[ModelEval]) -> list[tuple[str, str]]:
    """How the prompts were chosen, put and answered; where models differ in that, it is said of each."""
    names = short_names([evaluation.model for evaluation in evals])
    lines = []
    for fact in dict.fromkeys(name for evaluation in evals for name in evaluation.facts):
        texts = [evaluation.facts.get(fact, "") for evaluation in evals]
        several = [(f"{fact}, {name}", text) for name, text in zip(names, texts, strict=True) if text]
        lines += several if len(set(texts)) > 1 else [(fact, texts[0])]
    return lines


def model_lines(evaluation: ModelEval) -> list[tuple[str, str]]:
    """(name, value) of everything that is known of one model."""
    summary = evaluation.summary
    estimates = {summary.measure: summary.value, **{f"pass@{point.n}": point for point in summary.pass_at}}
    estimates |= {f"{summary.measure}_{name}": value for name, value in summary.tasks.items()}
    estimates |= {f"majority@{point.n}": point for point in summary.votes}
    estimates |= summary.readings
    lengths = summary.lengths
    if lengths is not None:
        estimates["truncated"] = lengths.truncated
    lines = []
    for name, value in evaluation.metrics.items():
        estimate = estimates.get(name)
        shown = metric_text(name, value)
        if estimate is not None:
            shown = estimate_text(estimate, name != "reward" and not name.startswith("reward_"))
        lines.append((words(name), shown))
    accuracy = summary.accuracy
    if accuracy is not None and accuracy.sample_error is not None:
        by_prompts, by_samples = 100 * (accuracy.prompt_error or 0), 100 * (accuracy.sample_error or 0)
        causes = f"{by_prompts:.1f} by the choice of prompts, {by_samples:.1f} by the draw of completions"
        lines.append(("standard error", f"{100 * accuracy.error:.1f} points: {causes}"))
    if lengths is not None:
        lines.append(("length", f"median {number(lengths.median)} tokens, 90% up to {number(lengths.tenth_longest)}"))
    if lengths is not None and lengths.right is not None and lengths.wrong is not None:
        lines.append(("", f"right ones {number(lengths.right)}, wrong ones {number(lengths.wrong)} on average"))
    shares = {"answered": summary.answered, "thought and answer": summary.in_format}
    lines += [(name, estimate_text(share)) for name, share in shares.items() if share is not None]
    for name, calibration in summary.calibration.items():
        errors = f"expected error {percent(calibration.error)}, Brier score {number(calibration.brier)}"
        lines.append(("calibration", f"by {name}: {errors}"))
    lines += [(f"refused {name}".strip(), estimate_text(share)) for name, share in summary.refusals.items()]
    for point in summary.budgets:
        reached = estimate_text(point, summary.measure == "accuracy")
        lines.append((f"cut at {point.budget}", f"{reached}, {number(point.tokens)} tokens written"))
    return lines


def model_table(evals: Sequence[ModelEval]) -> list[list[str]]:
    """A row per model; a column only where some model has it."""
    summaries = [evaluation.summary for evaluation in evals]
    first, lengths = summaries[0], [summary.lengths for summary in summaries]

    def column(name: str, texts: Iterable[str]) -> tuple[str, list[str]]:
        return name, list(texts)

    def labels(field: str) -> list[str]:
        return list(dict.fromkeys(name for summary in summaries for name in getattr(summary, field)))

    main = column(first.measure, (estimate_text(summary.value, summary.measure == "accuracy") for summary in summaries))
    is_share = first.measure == "accuracy"
    columns = [
        *(
            column(name, (estimate_text(summary.tasks.get(name), is_share) for summary in summaries))
            for name in labels("tasks")
        ),
        column(f"pass@{first.samples}", (estimate_text((summary.pass_at or (None,))[-1]) for summary in summaries)),
        column(f"majority@{first.samples}", (estimate_text((summary.votes or (None,))[-1]) for summary in summaries)),
        *(
            column(name, (estimate_text(summary.readings.get(name)) for summary in summaries))
            for name in labels("readings")
        ),
        column("tokens", (number(length.mean) if length else ABSENT for length in lengths)),
        column("truncated", (percent(length.truncated.value) if length else ABSENT for length in lengths)),
        column("answered", (percent(summary.answered.value) if summary.answered else ABSENT for summary in summaries)),
    ]
    for source in ("votes", "tokens"):
        known = [summary.calibration.get(source) for summary in summaries]
        columns.append(
            column(f"ECE ({source})", (percent(calibration.error) if calibration else ABSENT for calibration in known))
        )
    for name in labels("refusals"):
        texts = (estimate_text(summary.refusals.get(name)) for summary in summaries)
        columns.append(column(f"refused {name}".strip(), texts))
    shown = [main, *(titled for titled in columns if any(text != ABSENT for text in titled[1]))]
    names = short_names([evaluation.model for evaluation in evals])
    rows = [[name, *(texts[index] for _, texts in shown)] for index, name in enumerate(names)]
    return [["model", *(name for name, _ in shown)], *rows]


def curve_tables(evals: Sequence[ModelEval]) -> dict[str, list[list[str]]]:
    """Every curve as numbers, by its title."""
    names, summaries = (
        short_names([evaluation.model for evaluation in evals]),
        [evaluation.summary for evaluation in evals],
    )
    is_share = summaries[0].measure == "accuracy"
    curves: list[tuple[str, Callable[[Any], str], bool, list[Any]]] = [
        ("pass@k", lambda point: f"k = {point.n}", True, [summary.pass_at for summary in summaries]),
        ("majority of n", lambda point: f"n = {point.n}", True, [summary.votes for summary in summaries]),
    ]
    budgets: list[Any] = [summary.budgets for summary in summaries]
    curves.append(("completions cut at a budget", lambda point: f"{point.budget} tokens", is_share, budgets))
    tables = {}
    for title, head, shares, points in curves:
        if any(points):
            rows = [["", *map(head, next(row for row in points if row))]]
            rows += [
                [name, *(estimate_text(point, shares) for point in row)]
                for name, row in zip(names, points, strict=True)
                if row
            ]
            tables[title] = rows
    return tables


def pair_text(test: PairedTest, tests: int) -> str:
    """One model against another, in a sentence."""
    first, second = short_names([test.first, test.second])
    verdict = "no difference shown"
    p = test.corrected_p
    if p is not None and p < SURE:
        verdict = f"{second} is {'better' if test.difference > 0 else 'worse'}"
    significance = "no spread to judge by" if p is None else f"p {p_text(p)}"
    corrected = f", corrected for {tests} pairs" if tests > 1 and p is not None else ""
    return (
        f"{second} against {first}: {points(test.difference)} points ({points(test.low)} to {points(test.high)}), "
        f"{significance} ({test.test}{corrected}), {count_of(test.gained, 'prompt')} better and {test.lost} worse: "
        f"{verdict}"
    )


def points(share: float) -> str:
    """A difference of shares in percentage points, with its sign."""
    return f"{100 * share:+.1f}" if math.isfinite(share) else ABSENT


def p_text(p: float) -> str:
    """A p value as text."""
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def short_names(models: Sequence[str]) -> list[str]:
    """The last part of each path, as many parts as tell them apart."""
    parts = [model.rstrip("/").split("/") for model in models]
    for depth in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-depth:]) for part in parts]
        if len(set(short)) == len(set(models)):
            return short
    return list(models)


def eval_page(report: EvalReport, command: str = "") -> str:
    """The whole evaluation page as HTML."""
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
        "pass@k and majority votes are means over every choice of k of the completions, without resampling; "
        "weighted votes draw 4,096 choices where there are more than 20,000.",
    )


def _verdict(report: EvalReport, task: str) -> str:
    evals = report.of(task)
    names = short_names([evaluation.model for evaluation in evals])
    head = f"{task}: " if len(report.tasks) > 1 else ""
    texts = [
        f"{name} {estimate_text(evaluation.summary.value, evaluation.summary.measure == 'accuracy')}"
        for name, evaluation in zip(names, evals, strict=True)
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
    names = short_names([evaluation.model for evaluation in evals])
    reranked = [
        (name, evaluation.reranking)
        for name, evaluation in zip(names, evals, strict=True)
        if evaluation.reranking is not None
    ]
    return {
        "title": task,
        "about": "; ".join([evals_summary(evals), *(f"{name}: {text}" for name, text in shared_facts(evals))]),
        "figures": _figures(evals),
        "tables": [
            ("", _table(model_table(evals))),
            *((name, _table(rows)) for name, rows in curve_tables(evals).items()),
            *(
                (f"choosing one of n completions of {name}", _table(value_rows(reranking)))
                for name, reranking in reranked
            ),
        ],
        "searches": [
            f"{'. '.join(search_text(search, reranking))}."
            for _, reranking in reranked
            for search in reranking.searches
        ],
        "pairs": [pair_text(test, len(tests)) for test in tests],
    }


def _table(rows: Sequence[Sequence[str]]) -> PageTable:
    return PageTable(tuple(rows[0]), tuple(tuple(row) for row in rows[1:]))


def interval_figure(title: str, about: str, rows: Sequence[tuple[str, IntervalEstimate]], is_share: bool) -> Figure:
    """Values with their intervals, one below the other."""
    intervals = [
        (name, estimate.value, estimate.low, estimate.high, estimate_text(estimate, is_share))
        for name, estimate in rows
    ]
    return Figure(title, about, {"intervals": intervals, "percent": is_share})


def _figures(evals: Sequence[ModelEval]) -> list[Figure]:
    is_share = evals[0].summary.measure == "accuracy"
    names = short_names([evaluation.model for evaluation in evals])
    rows = [(name, evaluation.summary.value) for name, evaluation in zip(names, evals, strict=True)]
    for name, evaluation in zip(names, evals, strict=True):
        rows += [(f"{name}: {label}", value) for label, value in evaluation.summary.tasks.items()]
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
    chosen = [
        figure
        for evaluation in evals
        if evaluation.reranking is not None
        for figure in rerank_figures(evaluation.reranking)
    ]
    return [*figures, *chosen, *_budgets(evals, is_share), *_calibrations(evals)]


def _budgets(evals: Sequence[ModelEval], is_share: bool) -> list[Figure]:
    """What is right under each budget, a line per model."""

    def text(estimate: IntervalEstimate) -> str:
        return estimate_text(estimate, is_share)

    series = []
    for tone, (name, evaluation) in enumerate(
        zip(short_names([evaluation.model for evaluation in evals]), evals, strict=True)
    ):
        points = [
            (at.budget, at, f"{name}, cut at {at.budget}, {number(at.tokens)} tokens written: {text(at)}")
            for at in evaluation.summary.budgets
        ]
        series += [cost_line(name, points, tone)] if points else []
    if not series:
        return []
    about = "tokens that a completion may have"
    return [Figure("Token budget", about, cost_chart(series, is_share, marked=True))]


def _calibrations(evals: Sequence[ModelEval]) -> list[Figure]:
    names = short_names([evaluation.model for evaluation in evals])
    figures = []
    for source, about in (("votes", "share of the votes"), ("tokens", "probability of the tokens")):
        models = [
            (name, [(tenth.sure, tenth.right, tenth.rows) for tenth in known.bins], percent(known.error))
            for name, evaluation in zip(names, evals, strict=True)
            if (known := evaluation.summary.calibration.get(source)) is not None
        ]
        if models:
            note = "On the line, a model is right as often as it is sure. Numbers: expected calibration error."
            spec = {**reliability(models, 0.0, (460, 250)), "named": True}
            figures.append(Figure("Calibration", f"share right by the {about}", spec, note=note))
    return figures
