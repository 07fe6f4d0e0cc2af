"""A pipeline's stages, the table of its rounds and a verdict that allows for noise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whet.metrics.significance import shares_apart
from whet.report.text import headline, metric_text

NOISE = 2.0  # standard errors that two metrics must be apart to be called different


@dataclass(frozen=True)
class StageSummary:
    """One stage: what it was to do and, once it is done, what came out."""

    name: str
    about: str
    outcome: str = ""
    seconds: float | None = None  # None: not done
    metrics: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    measures: tuple[str, int] | None = None  # whose metrics, after which round
    num_prompts: int = 0  # held-out prompts behind the metrics
    over: str = ""  # why the stages after it were not done
    report: str = ""  # link to the page of its run
    table: tuple[tuple[str, ...], ...] = ()  # a comparison: its head, then rows that begin with a name
    findings: tuple[str, ...] = ()  # what that table says
    samples: tuple[Mapping[str, object], ...] = ()  # completions beside those of the policy they are compared with

    @property
    def is_done(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class PipelineSummary:
    name: str
    about: str
    status: str  # finished, interrupted, failed
    stages: tuple[StageSummary, ...]
    command: str = ""
    config: str = ""


def main_metric(summary: PipelineSummary) -> str | None:
    """The metric that rounds are compared by."""
    return next((headline(stage.metrics) for stage in summary.stages if stage.measures and stage.metrics), None)


def metrics_by_round(summary: PipelineSummary, metric: str) -> dict[str, dict[int, StageSummary]]:
    """who -> round -> the stage that evaluated it, in the order of the stages."""
    by_model: dict[str, dict[int, StageSummary]] = {}
    for stage in summary.stages:
        if stage.measures and metric in stage.metrics:
            by_model.setdefault(stage.measures[0], {})[stage.measures[1]] = stage
    return by_model


def rounds_table(summary: PipelineSummary) -> list[list[str]]:
    """Metrics by round: a head, then one row for each model that was evaluated. Empty without metrics."""
    metric = main_metric(summary)
    if metric is None:
        return []
    by_model = metrics_by_round(summary, metric)
    rounds = sorted({number for by_round in by_model.values() for number in by_round})
    rows = [[f"held-out {metric.replace('_', ' ')}", *("before" if not at else f"round {at}" for at in rounds)]]
    for who, by_round in by_model.items():
        rows.append([who, *(_value(by_round[at], metric) if at in by_round else "" for at in rounds)])
    return rows


def _value(stage: StageSummary, metric: str) -> str:
    return metric_text(metric, stage.metrics[metric])


def comparison_lines(summary: PipelineSummary) -> list[str]:
    """Every comparison as text, with its findings."""
    lines: list[str] = []
    for stage in summary.stages:
        if stage.table:
            lines += ["", *aligned([list(row) for row in stage.table]), *(f"- {each}" for each in stage.findings)]
    return lines


def aligned(rows: list[list[str]]) -> list[str]:
    """A table as lines of text, numbers to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]


def verdict(summary: PipelineSummary) -> str:
    """What the pipeline did to its policy, and whether that is more than noise."""
    metric = main_metric(summary)
    ended = next((f" It ended early: {stage.over}." for stage in summary.stages if stage.over), "")
    left = sum(not stage.is_done for stage in summary.stages)
    if left and not ended:
        ended = f" {left} of {len(summary.stages)} stages are still to do."
    outcome = next((stage.outcome for stage in reversed(summary.stages) if stage.table), "")
    if outcome:
        return f"{outcome[:1].upper()}{outcome[1:]}.{ended}"
    if metric is None:
        return f"Nothing was measured: there are no held-out prompts with a reward to score them.{ended}"
    by_model = metrics_by_round(summary, metric)
    who, by_round = next(iter(by_model.items()))
    first, last = by_round[min(by_round)], by_round[max(by_round)]
    name = metric.replace("_", " ")
    if first is last:
        return f"Held-out {name} before the first round: {_value(first, metric)}.{ended}"
    text = f"Held-out {name} of {who}: {_value(first, metric)} to {_value(last, metric)}"
    text += f" in {max(by_round)} round{'s' if max(by_round) > 1 else ''}, {_difference(first, last, metric)}."
    text += _peak(by_round, metric)
    for other, compared in list(by_model.items())[1:]:
        if max(compared) == max(by_round):
            rival = compared[max(compared)]
            text += f" {other.capitalize()}: {_value(rival, metric)}, {_difference(last, rival, metric)}."
    return text + ended


def _peak(by_round: Mapping[int, StageSummary], metric: str) -> str:
    """The round that was better than the last, where that is more than noise."""
    best = max(by_round, key=lambda at: by_round[at].metrics[metric])
    words = _difference(by_round[best], by_round[max(by_round)], metric)
    if best == max(by_round) or not words.startswith("worse"):
        return ""
    when = f"after round {best}" if best else "before the first round"
    return f" It was best {when}: {_value(by_round[best], metric)}; later rounds lost some of that."


def _difference(one: StageSummary, two: StageSummary, metric: str) -> str:
    """How the second value compares with the first, in words."""
    gap = two.metrics[metric] - one.metrics[metric]
    num_prompts = min(one.num_prompts, two.num_prompts)
    shares = (one.metrics[metric], two.metrics[metric])
    if not num_prompts or not all(0 <= share <= 1 for share in shares):
        return "higher" if gap > 0 else "lower" if gap < 0 else "the same"
    if abs(shares_apart(shares[1], shares[0], num_prompts)) <= NOISE:
        return f"no further apart than the noise of {num_prompts} prompts"
    return f"{'better' if gap > 0 else 'worse'} by more than the noise of {num_prompts} prompts"
