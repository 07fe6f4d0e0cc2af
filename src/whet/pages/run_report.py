"""report.html: a run on one page that needs nothing but a browser. No network, and no script but the charts' own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.pages.chart_specs import line_spec, spread_spec
from whet.pages.charts import (
    NARROW,
    NUM_TONES,
    WIDE,
    Point,
    Series,
    calibration_chart,
    line_chart,
    share_bars,
    spread_chart,
    value_scale,
)
from whet.pages.render import Figure, LegendEntry, PageTable, TextCard, Tile, render_live, write_page
from whet.pages.trajectory import turn_cards
from whet.record.health import ACTIONS
from whet.record.run import RunRecord, StepTotals, read_run, started_on, verdict
from whet.record.run_kinds import RL, Measure, Shown, metric, reward_part
from whet.record.text import (
    duration,
    label,
    memory_text,
    metric_text,
    number,
    ordered,
    percent,
    plain_metrics,
    quantity,
    words,
)
from whet.types import StepReport, StopReason

REPORT = "report.html"
PHASE_TONES = {
    "rollout": 0,
    "reward": 1,
    "train": 2,
    "save": 3,
    "evaluate": 4,
    "reference": 5,
    "start_up": 6,
    "teacher": 7,
}
TENTHS = "calibration/"  # in the name of a metric; "step_" may stand before it
BY_LENGTH = (
    ("all pairs", "accuracy"),
    ("better completion is longer", "accuracy_when_longer"),
    ("better completion is shorter", "accuracy_when_shorter"),
)
STOPS = {
    "length": "ran out of tokens",
    "end": "ended by itself",
    "text": "ended at a stop string",
    "turns": "ran out of turns",
    "tokens": "ran out of the episode's tokens",
    "step_seconds": "its environment took too long for an answer",
    "seconds": "ran out of time",
    "failed": "its environment failed",
}


def write_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> Path:
    """`summary` stands for run.json, which a run that ends writes after its report."""
    return write_page(Path(folder) / REPORT, html_report(folder, summary))


def html_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> str:
    """The page of a run folder, whatever state the run was left in."""
    run = read_run(folder, summary)
    summary = run.summary
    facts = {str(name): str(value) for name, value in (summary.get("facts") or {}).items()}
    if summary.get("seed") is not None:
        facts.setdefault("seed", str(summary["seed"]))
    if len(run.steps) < run.totals.num_steps:
        drawn = f"{len(run.steps):,} of {run.totals.num_steps:,}: the first, the last, and evenly spaced ones between"
        facts["steps drawn"] = drawn
    return render_live(
        "run.html",
        title=run.title,
        eyebrow="whet",
        about=(str(summary.get("method") or ""), started_on(run)),
        status=run.status,
        verdict=verdict(run),
        tiles=tiles(run),
        objective=[str(line) for line in summary.get("objective") or ()],
        facts=facts,
        figures=[*main_figures(run), *small_figures(run), *spread_figures(run.steps)],
        others=other_figures(run),
        evaluation=evaluation_section(run),
        phases=phases(run),
        num_steps=run.totals.num_steps,
        problems=problems(run),
        actions=actions(run),
        notes=[finding for finding in run.findings() if not finding.is_problem],
        samples=sample_columns(run),
        counts=count_table(run.totals),
        config=run.config,
        command=str(summary.get("command") or ""),
        folder=str(run.folder),
    )


def tiles(run: RunRecord) -> list[Tile]:
    """The headline numbers of this kind of run, before and after, and what they cost."""
    row = []
    gain = run.gain()
    if gain is not None:
        name, before, after = gain
        row.append(_change(f"eval {words(name)}", metric_text(name, before), metric_text(name, after)))
    for each in (*run.kind.main, *(each for each in run.kind.line if each.title and run.kind.name != RL)):
        points = points_of(run.steps, each.measure)
        if points and each.name not in ("tokens_per_second", "learning_rate", "gradient_norm"):
            ends = [metric_text(each.name, points[place][1]) for place in (0, -1)]
            prefix = "training " if run.kind.name != RL and each in run.kind.main else ""
            row.append(_change(f"{prefix}{(each.title or each.label).lower()}", *ends))
    total = int(run.summary.get("total_steps") or 0)
    row.append(Tile("steps", str(run.num_steps), after=f"of {total}" if total > run.num_steps else ""))
    wall = run.wall_seconds()
    if wall:
        row.append(Tile("wall time", duration(wall)))
    tokens, seconds = run.tokens(), run.seconds()
    if tokens:
        row.append(Tile(f"tokens {run.kind.tokens}", quantity(tokens)))
    phase = "rollout" if run.kind.name == RL else "train"
    if tokens and seconds.get(phase):
        name = "rollout tokens/s" if phase == "rollout" else "tokens/s"
        row.append(Tile(name, number(tokens / seconds[phase])))
    if run.summary.get("memory"):
        row.append(Tile("peak memory", memory_text(run.summary["memory"])))
    return row


def _change(name: str, before: str, after: str) -> Tile:
    return Tile(name, after, before)


def points_of(steps: Sequence[StepReport], measure: Measure) -> tuple[Point, ...]:
    values = ((step.step, measure(step)) for step in steps)
    return tuple((float(step), value) for step, value in values if value is not None and math.isfinite(value))


def main_series(run: RunRecord) -> list[Series]:
    """The headline evaluation and the quantity that is trained together: is what is trained also what is wanted?"""
    series = []
    gain = run.gain()
    if gain is not None:
        by_name: dict[str, list[Point]] = {}
        for each in run.evals:
            value = each.result.get(gain[0])
            if value is not None and math.isfinite(value):
                name = words(gain[0]) if each.name in ("eval", "held_out") else f"{each.name} {words(gain[0])}"
                by_name.setdefault(f"held-out {name}", []).append((float(each.step), value))
        series += [Series(name, tuple(points), marked=True) for name, points in by_name.items()]
    for plotted in run.kind.main:
        points = points_of(run.steps, plotted.measure)
        name = f"training {plotted.title.lower()}" if run.kind.name != RL else plotted.title.lower()
        series += [Series(name, points)] if points else []
    return series


def main_figures(run: RunRecord) -> list[Figure]:
    series = main_series(run)
    if not series:
        return []
    values = [value for line in series for _, value in line.points]
    unit = min(values) >= 0 and max(values) <= 1 and max(values) > 0.1
    names = [line.name for line in series]
    title = " and ".join(dict.fromkeys(names[:2]))
    legend = tuple(
        LegendEntry(
            line.name,
            f"s{place % NUM_TONES}",
            number(line.points[-1][1]),
            f"min {number(min(v for _, v in line.points))}, max {number(max(v for _, v in line.points))}",
        )
        for place, line in enumerate(series)
    )
    wide, narrow = (line_chart(series, f"{title} by step", size, unit) for size in (WIDE, NARROW))
    spec = {**line_spec(series, unit=unit), "height": 300}
    return [Figure(f"{title[0].upper()}{title[1:]}", "by step", wide, narrow=narrow, legend=legend, spec=spec)]


def small_figures(run: RunRecord) -> list[Figure]:
    parts = list(dict.fromkeys(name for step in run.steps for name in step.reward if name != "total"))
    same = len(parts) == 1 and all(step.reward.get(parts[0]) == step.reward.get("total") for step in run.steps)
    rewards = [
        Shown("reward", reward_part(name), name, f"Reward: {name}", "mean of the step") for name in parts if not same
    ]
    drawn = [metric_figure(run.steps, each) for each in (*rewards, *run.kind.figures)]
    return [figure for figure in drawn if figure is not None]


def other_figures(run: RunRecord) -> list[Figure]:
    """Whatever else the steps measured, by name."""
    known = {each.name for each in (*run.kind.main, *run.kind.figures)} | {"completion_length", "grad_norm"}
    names = sorted({name for step in run.steps for name in step.metrics} - known)
    drawn = [metric_figure(run.steps, Shown(name, metric(name), name, words(name))) for name in names]
    return [figure for figure in drawn if figure is not None]


def metric_figure(steps: Sequence[StepReport], shown: Shown) -> Figure | None:
    points = points_of(steps, shown.measure)
    if not points:
        return None
    unit = shown.unit
    log = value_scale([value for _, value in points], (0, 1)).log
    if log:
        unit = f"{unit}, log scale" if unit else "log scale"
    low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
    note = f"min {number(low[1])} at step {low[0]:.0f} · max {number(high[1])} at step {high[0]:.0f}"
    series = [Series(shown.title.lower(), points)]
    chart = line_chart(series, f"{shown.title} by step")
    return Figure(
        shown.title,
        unit,
        chart,
        last=number(points[-1][1]),
        note=note,
        spec={**line_spec(series, log=log), "smooth": shown.name != "learning_rate"},
    )


def spread_figures(steps: Sequence[StepReport]) -> list[Figure]:
    """For each part of the reward its spread by step: all of it, its middle half, its mean."""
    figures = []
    for place, name in enumerate(dict.fromkeys(name for step in steps for name in step.spread)):
        points = [(float(step.step), step.spread[name]) for step in steps if _is_whole(step.spread.get(name))]
        if not points:
            continue
        last = points[-1][1]
        flat = f"; {percent(last['flat'])} of groups flat" if "flat" in last else ""
        note = f"last step: min {number(last['min'])}, max {number(last['max'])}{flat}"
        chart = spread_chart(points, f"Spread of {name} by step", f"s{place % NUM_TONES}")
        figures.append(
            Figure(
                f"Spread: {name}",
                "range, middle half, mean",
                chart,
                last=number(last["mean"]),
                note=note,
                spec=spread_spec(points, place),
            )
        )
    return figures


def _is_whole(values: Mapping[str, float] | None) -> bool:
    wanted = ("min", "q1", "median", "q3", "max", "mean")
    return values is not None and all(name in values and math.isfinite(values[name]) for name in wanted)


def evaluation_section(run: RunRecord) -> dict[str, Any] | None:
    """First and last evaluation side by side, calibration and length; None where at most one metric was taken."""
    main = [each for each in run.evals if each.name == run.evals[0].name and plain_metrics(each.result)]
    if not main or len(plain_metrics(main[-1].result)) < 2:
        return None
    first, last = main[0], main[-1]
    rows = tuple(
        (re.sub("[_/]", " ", name), metric_text(name, first.result.get(name)), metric_text(name, value))
        for name, value in last.result.items()
        if TENTHS not in name
    )
    figures = [figure for figure in (calibration_figure(last.result), length_figure(last.result)) if figure is not None]
    return {"figures": figures, "table": PageTable(("", f"step {first.step}", f"step {last.step}"), rows)}


def calibration_tenths(result: Mapping[str, float]) -> list[tuple[float, float, int]]:
    """(how sure, how often right, rows) of each tenth that holds rows, the least sure first."""
    tenths = []
    for place in sorted({name.rpartition("/")[0] for name in result if TENTHS in name}):
        sure, right, rows = (result.get(f"{place}/{key}") for key in ("sure", "right", "rows"))
        if sure is not None and right is not None and rows is not None and math.isfinite(sure + right + rows):
            tenths.append((sure, right, int(rows)))
    return tenths


def calibration_figure(result: Mapping[str, float]) -> Figure | None:
    """How often the model is right where it is so sure: on the diagonal it means what it says."""
    tenths = calibration_tenths(result)
    if not tenths:
        return None
    gap = result.get("calibration_error", result.get("step_calibration_error"))
    listed = " · ".join(f"{100 * sure:.0f}% → {100 * right:.0f}% ({rows})" for sure, right, rows in tenths)
    return Figure(
        "Calibration",
        "share right",
        calibration_chart(tenths),
        last=f"error {metric_text('calibration_error', gap)}",
        note=f"sure → right (rows): {listed}",
    )


def length_figure(result: Mapping[str, float]) -> Figure | None:
    """Accuracy by whether the better completion is the longer one: far apart, and it is length that is scored."""
    accuracies = [(name, result[key]) for name, key in BY_LENGTH if key in result and math.isfinite(result[key])]
    if len(accuracies) < 2 or not any(key in result for _, key in BY_LENGTH[1:]):
        return None
    together = result.get("longer_correlation")
    note = f"correlation of margin and difference in length {number(together)}" if together is not None else ""
    chart = share_bars(accuracies, "Accuracy by whether the better completion is longer")
    return Figure("Accuracy by length", "held-out pairs", chart, note=note)


def phases(run: RunRecord) -> list[LegendEntry]:
    spent = ordered(run.seconds())
    covered = sum(took for _, took in spent)
    rest = run.wall_seconds() - covered
    if covered and rest > 0.01 * covered:
        spent.append(("other", rest))
    total = sum(took for _, took in spent)
    return [
        LegendEntry(
            label(phase),
            f"s{PHASE_TONES.get(phase, 7)}",
            duration(took),
            percent(took / total),
            share=f"{took / total:.5f}",
        )
        for phase, took in spent
    ]


def actions(run: RunRecord) -> list[dict[str, str]]:
    """What the run did about its problems, with the steps in which it did."""
    return [entry for entry in _entries(run, problems=False) if entry["name"] in ACTIONS.values()]


def problems(run: RunRecord) -> list[dict[str, str]]:
    """Every problem that held in any step, with the steps in which it did."""
    return _entries(run, problems=True)


def _entries(run: RunRecord, problems: bool) -> list[dict[str, str]]:
    entries = []
    for span in run.finding_spans():
        if span.finding.is_problem != problems:
            continue
        steps = f"step {span.first}" if span.first == span.last else f"steps {span.first} to {span.last}"
        if span.num_steps < span.last - span.first + 1:
            steps = f"{span.num_steps} of the {steps}"
        when = f"{steps}, {'still true at the end' if span.holds else 'over by the end'}" if problems else steps
        entries.append({"name": span.finding.name, "sentence": span.finding.sentence, "when": when})
    return entries


def sample_columns(run: RunRecord) -> list[tuple[str, list[TextCard]]]:
    if not run.first_samples:
        return []
    ends = [("First step", run.first_samples)]
    if run.last_samples[0]["step"] != run.first_samples[0]["step"]:
        ends.append(("Last step", run.last_samples))
    return [(f"{name} ({samples[0]['step']})", best_and_worst(samples)) for name, samples in ends]


def best_and_worst(samples: Sequence[Mapping[str, Any]]) -> list[TextCard]:
    scored = [sample for sample in samples if sample.get("reward") is not None]
    if not scored:
        return [sample_card("Not scored", samples[0])]
    best, worst = max(scored, key=lambda sample: sample["reward"]), min(scored, key=lambda sample: sample["reward"])
    if best["reward"] == worst["reward"]:
        return [sample_card("All rewards alike", best)]
    return [sample_card("Best", best), sample_card("Worst", worst)]


def sample_card(rank: str, sample: Mapping[str, Any]) -> TextCard:
    """A line of samples.jsonl as it is shown."""
    answer = sample.get("answer")
    gold = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    turns = turn_cards(sample)
    texts = [] if turns and turns[0].who == "prompt" else [("Prompt", str(sample.get("question") or ""))]
    texts += [] if turns else [("Completion", str(sample.get("completion") or ""))]
    texts += [] if answer is None else [("Gold answer", str(gold))]
    stop = STOPS.get(str(sample.get("stop")), str(sample.get("stop")))
    played = f", as {sample['role']}" if sample.get("role") else ""
    return TextCard(
        rank,
        number(sample.get("reward")),
        tuple((str(name), number(value)) for name, value in (sample.get("parts") or {}).items()),
        tuple(texts),
        f"{sample.get('tokens')} tokens, {stop}, prompt {sample.get('prompt_id')}{played}",
        str(sample.get("id", "")),
        turns,
    )


def count_table(totals: StepTotals) -> PageTable | None:
    counts, num_steps = totals.counts, totals.num_steps
    if not counts:
        return None
    samples = counts.get("samples", 0)
    shares = ("truncated", "unscorable", "failed_episodes", *(f"ended_by_{each}" for each in StopReason))
    rows = [
        (words(name), f"{count:,}", number(count / num_steps), percent(count / samples) if name in shares else "")
        if samples
        else (words(name), f"{count:,}", number(count / num_steps))
        for name, count in counts.items()
    ]
    head = ("", "whole run", "per step", "of samples") if samples else ("", "whole run", "per step")
    return PageTable(head, tuple(rows))
