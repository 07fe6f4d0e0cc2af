"""A pipeline's stages, the table of its rounds and a verdict that allows for noise. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from whet.pages.pipeline_changes import ALL, MeasuredPolicy, branched, fallen, measured_text
from whet.record.metrics.significance import shares_apart
from whet.record.text import aligned, duration, headline, json_values, metric_text, quantity

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
    label: str = ""  # of an eval: the stage that left the policy; empty: it is told by its round
    sets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # eval set -> metric -> value, low, high
    cost: Mapping[str, int] = field(default_factory=dict)  # updates, completions, tokens sampled and trained

    @property
    def is_done(self) -> bool:
        """Whether the stage came to its end."""
        return self.seconds is not None


@dataclass(frozen=True)
class PipelineSummary:
    """A pipeline: its stages, and what their evals measured."""

    name: str
    about: str
    status: str  # finished, interrupted, failed
    stages: tuple[StageSummary, ...]
    command: str = ""
    config: str = ""
    policies: tuple[MeasuredPolicy, ...] = ()  # with the completions of each eval, where the pipeline kept them


def summary_record(summary: PipelineSummary) -> dict[str, Any]:
    """As JSON; what is not finite is null."""
    record: dict[str, Any] = json_values(asdict(summary))
    return record


def summary_from(record: Mapping[str, Any]) -> PipelineSummary:
    """What `summary_record` wrote; fields that a newer version added are left out."""

    def known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
        return {part.name: values[part.name] for part in fields(kind) if part.name in values}

    stages = []
    for values in record["stages"]:
        values = {**values, "table": tuple(map(tuple, values.get("table", ())))}
        measures = values.get("measures")
        values |= {"measures": None if measures is None else (str(measures[0]), int(measures[1]))}
        values |= {name: tuple(values.get(name, ())) for name in ("findings", "samples")}
        values["metrics"] = {name: each for name, each in values.get("metrics", {}).items() if each is not None}
        stages.append(StageSummary(**known(StageSummary, values)))
    policies = tuple(MeasuredPolicy(**known(MeasuredPolicy, values)) for values in record.get("policies", ()))
    return PipelineSummary(**{**known(PipelineSummary, record), "stages": tuple(stages), "policies": policies})


MOST_WORSE = 2  # in the verdict; the page lists them all


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
    if any(stage.sets for stage in summary.stages):
        return sets_table(summary)
    by_model = metrics_by_round(summary, metric)
    rounds = sorted({number for by_round in by_model.values() for number in by_round})
    rows = [[f"held-out {metric.replace('_', ' ')}", *("before" if not at else f"round {at}" for at in rounds)]]
    for who, by_round in by_model.items():
        rows.append([who, *(_value(by_round[at], metric) if at in by_round else "" for at in rounds)])
    return rows


def sets_table(summary: PipelineSummary) -> list[list[str]]:
    """A row per measured stage: each eval set with its interval, then the largest pass@k, the vote and the length."""
    measured = [stage for stage in summary.stages if stage.sets]
    names = list(dict.fromkeys(name for stage in measured for name in stage.sets))
    first = measured[0].sets[names[0]]
    main = "accuracy" if "accuracy" in first else "reward"
    drawn = [name for name in first if name.startswith(("pass@", "majority@"))]
    shown = [name for name in drawn if name == "pass@1"] + drawn[-2:]
    others = [name for name in dict.fromkeys(shown) if name != main]
    head = [f"{main if name == ALL else name}, {stage_prompts(measured[-1], name)}" for name in names]
    rows = [["after", *head, *others, "tokens"]]
    for stage in measured:
        cells = [_set_cell(stage, name, main) for name in names]
        cells += [_set_cell(stage, names[0], other) for other in others]
        rows.append([stage.label or stage.name, *cells, _set_cell(stage, names[0], "completion_tokens")])
    return rows


def stage_prompts(stage: StageSummary, name: str) -> int:
    """How many prompts an eval set has."""
    return int(stage.sets.get(name, {}).get("prompts", 0))


def _set_cell(stage: StageSummary, name: str, metric: str) -> str:
    values = stage.sets.get(name, {}).get(metric)
    if values is None:
        return ""
    is_share = metric == "accuracy" or metric.startswith(("pass@", "majority@"))
    return measured_text(values, is_share)


def cost_table(summary: PipelineSummary) -> list[list[str]]:
    """What each stage took; empty where no stage says so."""
    spent = [stage for stage in summary.stages if stage.cost]
    if not spent:
        return []
    names = [
        name
        for name in ("updates", "completions", "sampled_tokens", "trained_tokens")
        if any(stage.cost.get(name) for stage in spent)
    ]
    rows = [["stage", "time", *(name.replace("_", " ") for name in names)]]
    for stage in spent:
        cells = [quantity(stage.cost[name]) if stage.cost.get(name) else "" for name in names]
        rows.append([stage.name, duration(stage.seconds), *cells])
    totals = [quantity(sum(stage.cost.get(name, 0) for stage in spent)) for name in names]
    return [*rows, ["in all", duration(sum(stage.seconds or 0.0 for stage in spent)), *totals]]


def _value(stage: StageSummary, metric: str) -> str:
    return metric_text(metric, stage.metrics[metric])


def comparison_lines(summary: PipelineSummary) -> list[str]:
    """Every comparison as text, with its findings."""
    lines: list[str] = []
    for stage in summary.stages:
        if stage.table:
            lines += ["", *aligned(stage.table), *(f"- {finding}" for finding in stage.findings)]
    return lines


def verdict(summary: PipelineSummary) -> str:
    """What the pipeline did to its policy, and whether that is more than noise."""
    metric = main_metric(summary)
    ended = next((f" It ended early: {stage.over}." for stage in summary.stages if stage.over), "")
    left = sum(not stage.is_done for stage in summary.stages)
    if left and not ended:
        ended = f" {left} of {len(summary.stages)} stages are still to do."
    outcome = next((stage.outcome for stage in reversed(summary.stages) if stage.table), "")
    conclusion = f"{outcome[:1].upper()}{outcome[1:]}." if outcome else ""
    if conclusion and not any(stage.sets for stage in summary.stages):
        return f"{conclusion}{ended}"
    if metric is None and left and not any(stage.over for stage in summary.stages):
        return f"Nothing has been measured yet.{ended}"
    if metric is None:
        return f"Nothing was measured: there are no held-out prompts with a reward to score them.{ended}"
    by_model = metrics_by_round(summary, metric)
    who, by_round = next(iter(by_model.items()))
    first, last = by_round[min(by_round)], by_round[max(by_round)]
    name = metric.replace("_", " ")
    if first is last:
        return f"Held-out {name} before the first round: {_value(first, metric)}.{ended}"
    branches = branched(summary.policies)
    if branches:
        return f"Held-out {name}: {branches}.{_worse(summary)}{ended}"
    if last.label:
        text = f"Held-out {name}: {_value(first, metric)} before, {_value(last, metric)} after {last.label}, "
        text += f"{_difference(first, last, metric)}.{_peak(by_round, metric)}"
        return text + _worse(summary) + (f" {conclusion}" if conclusion else "") + ended
    text = f"Held-out {name} of {who}: {_value(first, metric)} to {_value(last, metric)}"
    text += f" in {max(by_round)} round{'s' if max(by_round) > 1 else ''}, {_difference(first, last, metric)}."
    text += _peak(by_round, metric)
    for other, compared in list(by_model.items())[1:]:
        if max(compared) == max(by_round):
            rival = compared[max(compared)]
            text += f" {other.capitalize()}: {_value(rival, metric)}, {_difference(last, rival, metric)}."
    return text + ended


def _worse(summary: PipelineSummary) -> str:
    """The first things that got worse, and how many more there are."""
    found = fallen(summary.policies)
    more = f"; and {len(found) - MOST_WORSE} more" if len(found) > MOST_WORSE else ""
    return f" Worse: {'; '.join(found[:MOST_WORSE])}{more}." if found else ""


def _peak(by_round: Mapping[int, StageSummary], metric: str) -> str:
    """The round that was better than the last, where that is more than noise."""
    best = max(by_round, key=lambda at: by_round[at].metrics[metric])
    words = _difference(by_round[best], by_round[max(by_round)], metric)
    if best == max(by_round) or not words.startswith("worse"):
        return ""
    label = by_round[best].label
    when = f"after {label or f'round {best}'}" if best else "before the first round"
    later = "stages" if label else "rounds"
    return f" It was best {when}: {_value(by_round[best], metric)}; later {later} lost some of that."


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
