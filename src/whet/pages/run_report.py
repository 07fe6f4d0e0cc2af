"""A run on one page: report.html, which needs nothing but a browser, and the board, which follows the run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.pages.chart_specs import reliability
from whet.pages.render import Figure, LegendEntry, PageTable, TextCard, Tile, TurnCard, render_live
from whet.pages.run_charts import PHASE_TONES, SeriesPoints, columns_of, drawn_charts, planned_charts, typical_step
from whet.record.health.finding import ACTIONS, FindingSpan
from whet.record.run import RunRecord, StepTotals, read_run, started_on, verdict
from whet.record.run_folder import write_atomically
from whet.record.run_kinds import RL
from whet.record.text import (
    ABSENT,
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
from whet.settings.layers import flattened
from whet.training.config import config_values, resolved
from whet.types import StopReason, Turn, WhetError

POLICY = "assistant"
LONGEST_OPENING = 800  # characters that a terminal shows; the tools of a task alone can be thousands of them
LIMITS = {"length": "cut off by the turn's token budget", "text": "ended at a stop string"}
REPORT = "report.html"
POINTS = 600  # of a chart of report.html
LONGEST_VALUE = 300  # characters of a setting that are shown
LONGEST_TEXT = 4000  # characters of a line that a run says of itself
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


def turn_cards(sample: Mapping[str, Any]) -> tuple[TurnCard, ...]:
    """The turns of a line of samples.jsonl; empty for a single completion."""
    turns: Sequence[Mapping[str, Any]] = sample.get("turns") or ()
    seconds: Sequence[float] = sample.get("seconds") or [0.0] * len(turns)
    return tuple(_card(turn, spent) for turn, spent in zip(turns, seconds, strict=False))


def _card(turn: Mapping[str, Any], seconds: float) -> TurnCard:
    is_policy = turn.get("role") == POLICY
    tokens = int(turn.get("tokens") or 0)
    learned = "learned" if is_policy else "not learned" if tokens else "never read by the policy"
    notes = [f"{tokens} tokens, {learned}" if tokens else learned]
    if turn.get("reward") is not None:
        notes.append(f"reward {number(turn['reward'])}")
    if turn.get("state") is not None:
        notes.append(f"state {str(turn['state'])[:40]}")
    notes += [f"{words(name)} {count}" for name, count in (turn.get("counts") or {}).items() if count]
    if turn.get("ended") in LIMITS:
        notes.append(LIMITS[str(turn["ended"])])
    if is_policy and seconds:
        notes.append(f"answered in {number(seconds)} s")
    errors = tuple(str(error) for error in turn.get("errors") or ())
    return TurnCard(str(turn.get("role")), str(turn.get("text") or ""), tuple(notes), errors, is_policy)


def trajectory_text(turns: Sequence[Turn]) -> str:
    """The turns of an episode for a terminal, one after the other."""
    lines = []
    for turn in turns:
        if turn.role == "prompt":
            continue
        reward = "" if turn.reward is None else f" (reward {number(turn.reward)})"
        lines.append(f"{turn.role}{reward}: {turn.text.strip()}")
        lines += [f"  ! {error}" for error in turn.errors]
    return "\n".join(lines)


def opening_text(turns: Sequence[Turn]) -> str:
    """What the policy was shown first, as an environment of its own tasks began; its end, where it is long."""
    text = next((turn.text.strip() for turn in turns if turn.role == "prompt"), "")
    return text if len(text) <= LONGEST_OPENING else f"... {text[-LONGEST_OPENING:]}"


def write_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> Path:
    """`summary` stands for run.json, which a run that ends writes after its report."""
    return write_atomically(Path(folder) / REPORT, html_report(folder, summary))


def html_report(folder: Path | str, summary: Mapping[str, Any] | None = None) -> str:
    """The page of a run folder, whatever state the run was left in."""
    run = read_run(folder, summary)
    columns = columns_of(run.steps)
    values = run_values(
        run,
        run.finding_spans(),
        columns.names,
        lambda names: {name: columns.points(name, None, None, POINTS) for name in names},
    )
    if len(run.steps) < run.totals.num_steps:
        drawn = f"{len(run.steps):,} of {run.totals.num_steps:,}: the first, the last, and evenly spaced ones between"
        values["facts"]["steps drawn"] = drawn
    return render_live("run.html", **values, eyebrow="whet", title=run.title, folder=str(run.folder))


def run_values(
    run: RunRecord,
    spans: Sequence[FindingSpan],
    names: Sequence[str],
    points: Callable[[Sequence[str]], Mapping[str, SeriesPoints]],
    is_complete: bool = True,
    draws_others: bool = True,
) -> dict[str, Any]:
    """What the page of a run is filled in with. `names` are the columns of its log, and `points` looks them up.

    Of a run whose log was not read whole, sums over it are left out rather than wrong. Without `draws_others` the
    metrics that are folded away are named and not drawn.
    """
    summary, charts = run.summary, planned_charts(run, names)
    others = charts.others if draws_others else []
    plans = [*charts.curves, *charts.parts, *charts.times, *others]
    wanted = {column for plan in plans for column in plan.columns} | {f"{plan.key}/flat" for plan in charts.parts}
    values = points(sorted(wanted))
    facts = {str(name)[:80]: str(value)[:LONGEST_TEXT] for name, value in (summary.get("facts") or {}).items()}
    facts |= {name: str(summary[name])[:LONGEST_TEXT] for name in ("checkpoints", "models") if summary.get(name)}
    if failures := summary.get("save_failures"):
        facts["not saved"] = str(failures[-1] if isinstance(failures, list) else failures)[:LONGEST_TEXT]
    if summary.get("seed") is not None:
        facts.setdefault("seed", str(summary["seed"]))
    listed = [Figure(plan.title, plan.unit, {}, key=plan.key) for plan in charts.others]
    return {
        "about": (str(summary.get("method") or ""), started_on(run)),
        "status": run.status,
        "verdict": verdict(run),
        "tiles": tiles(run),
        "story": (story := run.story(spans)),
        "cards": health_cards([span for span in spans if span is not story.cause]),
        "has_steps": bool(run.steps),
        "figures": drawn_charts(charts.curves, values, run.evals),
        "parts": drawn_charts(charts.parts, values),
        "times": [*drawn_charts(charts.times, values), *typical_step(run.steps)],
        "others": drawn_charts(charts.others, values) if draws_others else listed,
        "evaluation": evaluation_section(run),
        "course": run.totals.course_values() if is_complete else None,
        "phases": phases(run) if is_complete or summary.get("seconds") else [],
        "objective": [str(text)[:LONGEST_TEXT] for text in summary.get("objective") or ()],
        "facts": facts,
        "samples": sample_columns(run),
        "changes": config_changes(run),
        "config": run.config,
        "counts": count_table(run.totals) if is_complete else None,
        "command": str(summary.get("command") or "")[:LONGEST_TEXT],
    }


def tiles(run: RunRecord) -> list[Tile]:
    """The headline numbers of this kind of run, before and after, and what they cost."""
    row = []
    gain = run.gain()
    if gain is not None:
        name, before, after = gain
        row.append(Tile(f"eval {words(name)}", metric_text(name, after), metric_text(name, before)))
    for metric in (*run.kind.main, *(metric for metric in run.kind.line if metric.title and run.kind.name != RL)):
        values = [value for step in run.steps if (value := metric.measure(step)) is not None and math.isfinite(value)]
        if values and metric.name not in ("tokens_per_second", "learning_rate", "gradient_norm"):
            prefix = "training " if run.kind.name != RL and metric in run.kind.main else ""
            first, last = (metric_text(metric.name, values[end]) for end in (0, -1))
            row.append(Tile(f"{prefix}{(metric.title or metric.label).lower()}", last, first))
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


def evaluation_section(run: RunRecord) -> dict[str, Any] | None:
    """First and last evaluation side by side, calibration and length; None where at most one metric was taken."""
    main = [
        evaluation
        for evaluation in run.evals
        if evaluation.name == run.evals[0].name and plain_metrics(evaluation.result)
    ]
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
    for prefix in sorted({name.rpartition("/")[0] for name in result if TENTHS in name}):
        sure, right, rows = (result.get(f"{prefix}/{key}") for key in ("sure", "right", "rows"))
        if sure is not None and right is not None and rows is not None and math.isfinite(sure + right + rows):
            tenths.append((sure, right, int(rows)))
    return tenths


def calibration_figure(result: Mapping[str, float]) -> Figure | None:
    """How often the model is right where it is so sure; in a choice between two nobody is less than half sure."""
    tenths = calibration_tenths(result)
    if not tenths:
        return None
    gap = result.get("calibration_error", result.get("step_calibration_error"))
    listed = " · ".join(f"{100 * sure:.0f}% → {100 * right:.0f}% ({rows})" for sure, right, rows in tenths)
    return Figure(
        "Calibration",
        "share right by how sure the model is",
        reliability([("", tenths, "")], 0.5, (340, 210)),
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
    rows = [(name, share, None, None, percent(share)) for name, share in accuracies]
    spec = {"intervals": rows, "percent": True}
    return Figure("Accuracy by length", "held-out pairs; chance is 50%", spec, note=note)


def phases(run: RunRecord) -> list[LegendEntry]:
    """The phases of the run with their seconds and the segments of a bar."""
    spent = ordered(run.seconds())
    covered = sum(took for _, took in spent)
    rest = run.wall_seconds() - covered
    if covered and rest > 0.01 * covered:
        spent.append(("other", rest))
    total = sum(took for _, took in spent)
    entries, start = [], 0.0
    for phase, took in spent:
        share = took / total
        tone = f"s{PHASE_TONES.get(phase, 7)}"
        entries.append(
            LegendEntry(label(phase), tone, duration(took), percent(share), start=f"{start:.5f}", share=f"{share:.5f}")
        )
        start += share
    return entries


def health_cards(spans: Sequence[FindingSpan]) -> list[dict[str, Any]]:
    """Every problem that held in any step, what the run did about it, and what is normal, with its steps."""
    return [_health_card(span) for span in spans]


def _health_card(span: FindingSpan) -> dict[str, Any]:
    finding = span.finding
    steps = f"step {span.first:,}" if span.first == span.last else f"steps {span.first:,} to {span.last:,}"
    has_gaps = span.num_steps < span.last - span.first + 1
    if has_gaps:
        steps = f"{span.num_steps:,} of the {steps}"
    when = steps if finding.name in ACTIONS.values() else "normal"
    if finding.is_problem:
        since = f"{steps}, still true at the last step" if has_gaps else f"since step {span.first:,}"
        when = since if span.holds else f"{steps}, over by the last step"
    return {
        "name": finding.name,
        "sentence": finding.sentence,
        "is_problem": finding.is_problem,
        "holds": span.holds,
        "when": when,
        "steps": steps,
        "evidence": finding.evidence,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "settings": [f"{name}: {value}" for name, value in finding.settings],
        "normal_when": finding.normal_when,
    }


def config_changes(run: RunRecord) -> list[tuple[str, str, str]] | None:
    """(setting, of the preset, of the run) where they differ; None where the config cannot be read."""
    values = run.config_values()
    method, model = values.get("method"), values.get("model")
    if not isinstance(method, str):
        return None
    name = model.get("name") if isinstance(model, Mapping) else None
    base = {"model": {"name": name}} if isinstance(name, str) else {}
    try:
        usual = flattened(config_values(resolved(method, base)))
        own = flattened(config_values(resolved(method, values)))
    except (WhetError, OSError, ValueError, TypeError):
        return None
    names = sorted(name for name in usual.keys() | own.keys() if name != "folder" and usual.get(name) != own.get(name))
    return [(name, setting_text(usual.get(name)), setting_text(own.get(name))) for name in names]


def setting_text(value: Any) -> str:
    """A value of a config as a table shows it."""
    if value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …"


def sample_columns(run: RunRecord) -> list[tuple[str, list[TextCard]]]:
    """The best and the worst sample of the first and of the last recorded step."""
    if not run.first_samples:
        return []
    ends = [("First step", run.first_samples)]
    if run.last_samples[0]["step"] != run.first_samples[0]["step"]:
        ends.append(("Last step", run.last_samples))
    return [(f"{name} ({samples[0]['step']})", best_and_worst(samples)) for name, samples in ends]


def best_and_worst(samples: Sequence[Mapping[str, Any]]) -> list[TextCard]:
    """The best and the worst of some samples, or one where they are alike."""
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
    """What the run counted; None where it counted nothing."""
    counts, num_steps = totals.counts, totals.num_steps
    if not counts:
        return None
    samples = counts.get("samples", 0)
    shares = ("truncated", "unscorable", "failed_episodes", *(f"ended_by_{reason}" for reason in StopReason))
    rows = [
        (words(name), f"{count:,}", number(count / num_steps), percent(count / samples) if name in shares else "")
        if samples
        else (words(name), f"{count:,}", number(count / num_steps))
        for name, count in counts.items()
    ]
    head = ("", "whole run", "per step", "of samples") if samples else ("", "whole run", "per step")
    return PageTable(head, tuple(rows))
