"""Pages about a reward: a dry run, and a run's samples under another reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.pages.charts import NARROW, NUM_TONES, WIDE, Series, column_chart, line_chart, scatter_chart
from whet.pages.render import Figure, LegendEntry, PageTable, TextCard, Tile, render, write_page
from whet.pages.rescore import Rescore, RescoredSample, verdict
from whet.pages.reward_dry_run import STRONG, ScoredAnswer, Trial
from whet.record.metrics.distribution import TOTAL, distribution, histogram
from whet.record.text import duration, number, percent

MOST_ROWS = 30


def write_trial_page(path: Path | str, trial: Trial) -> Path:
    return write_page(path, trial_page(trial))


def write_rescore_page(path: Path | str, rescore: Rescore) -> Path:
    return write_page(path, rescore_page(rescore))


def trial_page(trial: Trial) -> str:
    """A dry run on one page."""
    lists = (
        ("Gold answers that do not score 1", trial.gold_misses),
        ("Wrong controls that score 1", trial.controls_passed),
        ("Failures", trial.failed),
        ("Unscorable", trial.unscorable),
        ("Slowest", trial.slowest),
    )
    differences = None
    if trial.differences:
        rows = [(each.where, each.part, number(each.first), number(each.second)) for each in trial.differences]
        differences = PageTable(("", "part", "first", "second"), tuple(rows[:MOST_ROWS]))
    return render(
        "reward_trial.html",
        title=trial.title,
        eyebrow="whet reward test",
        about=(f"version {trial.hash}",),
        status="finished" if trial.is_sound() else "failed",
        status_text="sound" if trial.is_sound() else "look closer",
        verdict=trial_verdict(trial),
        tiles=trial_tiles(trial),
        notes=(trial.source, *trial.notes),
        figures=distribution_figures(trial),
        parts=[part.name for part in trial.parts],
        tables=[(title, answer_table(rows, trial)) for title, rows in lists if rows],
        differences=differences,
        num_differences=len(trial.differences or ()),
        correlations=[
            (f"{one}, {two}", [(correlation_text(value), abs(value or 0.0) >= STRONG) for value in values])
            for one, two, *values in trial.with_each_other()
        ],
        version=dict(trial.pieces),
        source=trial.source,
    )


def rescore_page(rescore: Rescore) -> str:
    """A run's saved samples under two rewards."""
    old, new = rescore.part_means()[TOTAL]
    return render(
        "reward_rescore.html",
        title=rescore.new_title,
        eyebrow="whet reward rescore",
        about=(rescore.run, f"{rescore.old_hash} → {rescore.new_hash}"),
        verdict=verdict(rescore),
        tiles=[
            Tile("mean reward", number(new), number(old)),
            Tile("samples", f"{len(rescore.rows):,}"),
            Tile("change places", percent(rescore.flipped_share())),
            Tile("groups that gain spread", str(len(rescore.gained_spread()))),
            Tile("groups that lose it", str(len(rescore.lost_spread()))),
        ],
        figure=rescore_figure(rescore),
        means=PageTable(
            ("", "old", "new"),
            tuple((name, number(before), number(after)) for name, (before, after) in rescore.part_means().items()),
        ),
        changed=(*rescore.changed, *rescore.notes),
        cards=[rescored_card(row) for row in rescore.largest(12)],
    )


def rescore_figure(rescore: Rescore) -> Figure | None:
    steps = rescore.by_step()
    if not steps:
        return None
    series = [
        Series("old", tuple((float(step), old) for step, old, _ in steps), marked=True),
        Series("new", tuple((float(step), new) for step, _, new in steps), marked=True),
    ]
    legend = tuple(
        LegendEntry(title, f"s{place}", number(line.points[-1][1]))
        for place, (title, line) in enumerate(zip((rescore.old_title, rescore.new_title), series, strict=True))
    )
    wide, narrow = (line_chart(series, "Mean reward", size) for size in (WIDE, NARROW))
    return Figure("Old and new", "by step", wide, narrow=narrow, legend=legend)


def trial_verdict(trial: Trial) -> str:
    sentences = [f"{trouble[0].upper()}{trouble[1:]}." for trouble in trial.troubles()[:2]]
    rate = trial.gold_rate()
    if rate is not None:
        sentences.append(f"{percent(rate)} of the gold answers score 1.")
    if trial.failed:
        sentences.append(f"It failed on {len(trial.failed)} of {len(trial.scored)} samples.")
    if trial.unscorable:
        sentences.append(f"{len(trial.unscorable)} samples are unscorable.")
    flat = trial.never_vary()
    if flat:
        sentences.append(f"{', '.join(flat)} never var{'ies' if len(flat) == 1 else 'y'} here.")
    if trial.differences:
        sentences.append(f"{len(trial.differences)} scores differed the second time.")
    leans = [name for name, *pair in trial.with_length() if max(abs(each or 0.0) for each in pair) >= STRONG]
    if leans:
        sentences.append(f"{', '.join(leans)} go{'es' if len(leans) == 1 else ''} with the length of the completion.")
    return " ".join(sentences) or f"{len(trial.scored)} samples were scored, and nothing stood out."


def trial_tiles(trial: Trial) -> list[Tile]:
    totals = [each.total for each in trial.scored if each.total is not None]
    steady = "not checked" if trial.differences is None else "no" if trial.differences else "yes"
    return [
        Tile("samples", f"{len(trial.scored):,}"),
        Tile("gold = 1", percent(trial.gold_rate())),
        Tile("mean total", number(distribution(totals).get("mean") if totals else None)),
        Tile("unscorable", str(len(trial.unscorable))),
        Tile("failures", str(len(trial.failed))),
        Tile("deterministic", steady),
        Tile("time", duration(trial.seconds)),
    ]


def distribution_figures(trial: Trial) -> list[Figure]:
    """Of each part a histogram, and its scores against the length of the completions."""
    figures = []
    together = {name: values for name, *values in trial.with_length()}
    for place, (name, scores) in enumerate(trial.shown_columns().items()):
        given = [score for score in scores if score is not None]
        if not given:
            continue
        tone, spread = f"s{place % NUM_TONES}", distribution(given)
        weight = next((f"weight {part.weight}" for part in trial.parts if part.name == name), "weighted sum")
        note = (
            f"min {number(spread['min'])} · quartiles {number(spread['q1'])}, {number(spread['median'])}, "
            f"{number(spread['q3'])} · max {number(spread['max'])} · {percent(spread['at_max'])} at the top"
        )
        columns = column_chart(histogram(given), f"Histogram of {name}", tone)
        figures.append(Figure(name, weight, columns, last=f"mean {number(spread['mean'])}", note=note))
        points = [
            (float(each.tokens), score) for each, score in zip(trial.scored, scores, strict=True) if score is not None
        ]
        note = ", ".join(
            f"{kind} {correlation_text(value)}"
            for kind, value in zip(("Pearson", "Spearman"), together[name], strict=True)
        )
        chart = scatter_chart(points, f"Length and {name}", tone)
        figures.append(Figure(f"{name} by length", "tokens of the completion", chart, note=note))
    return figures


def correlation_text(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def answer_table(rows: Sequence[ScoredAnswer], trial: Trial) -> dict[str, Any]:
    return {
        "count": len(rows),
        "more": max(0, len(rows) - MOST_ROWS),
        "rows": [
            {
                "where": each.where,
                "kind": each.kind,
                "scores": [number(each.parts.get(part.name)) for part in trial.parts],
                "time": duration(each.seconds),
                "gold": _cut(each.answer, 120),
                "completion": _cut(each.completion, 300),
                "failures": list(each.failures.values()),
            }
            for each in rows[:MOST_ROWS]
        ],
    }


def rescored_card(row: RescoredSample) -> TextCard:
    names = dict.fromkeys((*row.old_parts, *row.new_parts))
    chips = tuple((name, f"{number(row.old_parts.get(name))} → {number(row.new_parts.get(name))}") for name in names)
    texts = [("Prompt", row.question), ("Completion", row.completion), ("Gold answer", row.answer)]
    return TextCard(
        f"step {row.step}",
        f"{number(row.old)} → {number(row.new)}",
        chips,
        tuple((name, text) for name, text in texts if text),
        f"prompt {row.prompt_id}",
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
