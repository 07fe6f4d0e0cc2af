"""A pipeline on one page, pipeline.html: metrics by round or stage, what each stage did and changed prompt by prompt,
what was dropped, and a verdict that allows for noise. The board shows the same page, drawn from pipeline.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from whet.pages.chart_specs import chart, fits_unit, line
from whet.pages.render import Figure, PageTable, Tile, render_live
from whet.record.metrics.intervals import PairedTest, paired_test, shares_apart
from whet.record.run_folder import write_atomically
from whet.record.text import ABSENT, aligned, duration, headline, json_values, metric_text, percent, quantity, words

ALL = "all"  # the eval prompts together
SURE = 0.05  # p below which a change is called one
MOST_LOST, MOST_SHOWN = 5, 4  # prompts on the page
LONGEST = 1200  # characters of a text on the page
NOISE = 2.0  # standard errors that two metrics must be apart to be called different
PAGE, RECORD = "pipeline.html", "pipeline.json"
MeasuredPoint = tuple[float, float, float | None, float | None]  # place across, value, low, high
HALF = 0.5  # shares that stay below are drawn on an axis of their own, not on 0 to 1


@dataclass(frozen=True)
class MeasuredPolicy:
    """What the eval after a stage found: a row per held-out prompt, with `right` and `completion`."""

    label: str  # of the stage that left the policy
    rows: Mapping[str, Mapping[str, Any]]  # by the prompt's id
    name: str = ""  # of the eval
    against: str = ""  # name of the eval it is compared with; empty: the one before, "none": nobody


@dataclass(frozen=True)
class SetChange:
    """One eval set between two stages, over the prompts that both were measured on."""

    set: str
    metric: str  # accuracy of greedy completions, or pass@1 of drawn ones
    prompts: int
    test: PairedTest

    @property
    def is_sure(self) -> bool:
        """Whether the change is more than noise."""
        return self.test.p is not None and self.test.p < SURE

    @property
    def text(self) -> str:
        """The change in words."""
        test = self.test
        where = "" if self.set == ALL else f" on {self.set}"
        return (
            f"{self.metric}{where} from {test.first} to {test.second}: {100 * test.difference:+.1f} points "
            f"({100 * test.low:+.1f} to {100 * test.high:+.1f}); "
            f"{test.gained} of {self.prompts} prompts gained, {test.lost} lost"
        )


def set_changes(before: MeasuredPolicy, after: MeasuredPolicy) -> list[SetChange]:
    """Every eval set, paired by prompt: greedy completions, and drawn ones where there are any."""
    both = [(row, after.rows[name]) for name, row in before.rows.items() if name in after.rows]
    sets = list(dict.fromkeys([ALL, *(str(row.get("set", ALL)) for row, _ in both)]))
    if len(sets) == 2:
        sets = [ALL]
    changes = []
    for name in sets:
        inside = [pair for pair in both if name in (ALL, pair[0].get("set"))]
        for metric, outcomes in (("accuracy", _greedy), ("pass@1", _drawn)):
            pairs = [(outcomes(one), outcomes(two)) for one, two in inside]
            known = [(one, two) for one, two in pairs if one and two]
            if known:
                first, second = [one for one, _ in known], [two for _, two in known]
                test = paired_test((before.label, first), (after.label, second))
                changes.append(SetChange(name, metric, len(known), test))
    return changes


def _greedy(row: Mapping[str, Any]) -> list[float]:
    return [row["right"]] if row.get("right") in (0, 1) else []


def _drawn(row: Mapping[str, Any]) -> list[float]:
    known = [right for right in row.get("sample_right", ()) if right is not None]
    return known if all(right in (0, 1) for right in known) else []


def compared(policies: Sequence[MeasuredPolicy]) -> list[tuple[MeasuredPolicy, MeasuredPolicy]]:
    """Which policy is held against which earlier one."""
    named = {policy.name: policy for policy in policies}
    pairs = [(named.get(two.against) if two.against else one, two) for one, two in pairwise(policies)]
    return [(one, two) for one, two in pairs if one is not None]


def branched(policies: Sequence[MeasuredPolicy]) -> str:
    """The comparisons of branching stages, each policy against the one it began from, over all prompts; else empty."""
    if not any(policy.against for policy in policies):
        return ""
    texts = []
    for one, two in compared(policies):
        change = next(iter(set_changes(one, two)), None)
        if change is not None:
            test = change.test
            right = [row["right"] for row in two.rows.values() if row.get("right") in (0, 1)]
            gain = (
                f"{100 * test.difference:+.1f} points on {one.label}, {100 * test.low:+.1f} to {100 * test.high:+.1f}"
            )
            texts.append(f"{two.label} {percent(sum(right) / len(right))} ({gain})")
    return "; ".join(texts)


def fallen(policies: Sequence[MeasuredPolicy]) -> list[str]:
    """What got worse from one stage to the next, in words; only what is more than noise."""
    changes = [change for one, two in compared(policies) for change in set_changes(one, two)]
    return [change.text for change in changes if change.is_sure and change.test.difference < 0]


def lost_prompts(policies: Sequence[MeasuredPolicy]) -> list[dict[str, Any]]:
    """Prompts that an earlier policy had right and the last one has wrong, with both completions."""
    if len(policies) < 2:
        return []
    last, lost = policies[-1], []
    named = [policy for policy in policies[:-1] if policy.name == last.against] if last.against else policies[:-1]
    for name, row in last.rows.items():
        earlier = next((policy for policy in reversed(named) if policy.rows.get(name, {}).get("right") == 1), None)
        if row.get("right") == 0 and earlier is not None:
            lost.append(
                {
                    "prompt": question(row),
                    "answer": str(row.get("answer")),
                    "before": earlier.label,
                    "right": _cut(earlier.rows[name]["completion"]),
                    "after": last.label,
                    "wrong": _cut(row["completion"]),
                }
            )
    return lost


def side_by_side(policies: Sequence[MeasuredPolicy]) -> list[dict[str, Any]]:
    """The completions of every policy to the same few prompts: first those whose outcome changed."""
    if not policies:
        return []
    shared = [name for name in policies[0].rows if all(name in policy.rows for policy in policies)]
    changed = [name for name in shared if len({policy.rows[name].get("right") for policy in policies}) > 1]
    chosen = [*changed[: MOST_SHOWN - 1], *(name for name in shared if name not in changed)][:MOST_SHOWN]
    return [
        {
            "prompt": question(policies[0].rows[name]),
            "answer": str(policies[0].rows[name].get("answer")),
            "written": [
                (policy.label, _mark(policy.rows[name].get("right")), _cut(policy.rows[name]["completion"]))
                for policy in policies
            ],
        }
        for name in chosen
    ]


def question(row: Mapping[str, Any]) -> str:
    """What a row asks, as text."""
    content = row.get("prompt", "")
    if isinstance(content, str):
        return content
    return str(content[-1].get("content", "")) if content else ""


def _mark(right: Any) -> str:
    return "right" if right == 1 else "wrong" if right == 0 else "" if right is None else f"{right:g}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def measured_text(values: Sequence[float], is_share: bool) -> str:
    """A value with its interval."""
    value, low, high = values
    if not is_share:
        return f"{value:.3g}"
    return f"{percent(value)} ({100 * low:.1f} to {100 * high:.1f})"


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
    """The summary as JSON; what is not finite is null."""
    record: dict[str, Any] = json_values(asdict(summary))
    return record


def summary_from(record: Mapping[str, Any]) -> PipelineSummary:
    """What `summary_record` wrote; fields that a newer version added are left out."""
    return TypeAdapter(PipelineSummary).validate_python(record)


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
    prompts = {name: int(measured[-1].sets.get(name, {}).get("prompts", 0)) for name in names}
    head = [f"{main if name == ALL else name}, {prompts[name]}" for name in names]
    rows = [["after", *head, *others, "tokens"]]
    for stage in measured:
        cells = [_set_cell(stage, name, main) for name in names]
        cells += [_set_cell(stage, names[0], other) for other in others]
        rows.append([stage.label or stage.name, *cells, _set_cell(stage, names[0], "completion_tokens")])
    return rows


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
    drops = fallen(summary.policies)
    more = f"; and {len(drops) - MOST_WORSE} more" if len(drops) > MOST_WORSE else ""
    return f" Worse: {'; '.join(drops[:MOST_WORSE])}{more}." if drops else ""


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


def _difference(earlier: StageSummary, two: StageSummary, metric: str) -> str:
    """How the second value compares with the first, in words."""
    gap = two.metrics[metric] - earlier.metrics[metric]
    num_prompts = min(earlier.num_prompts, two.num_prompts)
    shares = (earlier.metrics[metric], two.metrics[metric])
    if not num_prompts or not all(0 <= share <= 1 for share in shares):
        return "higher" if gap > 0 else "lower" if gap < 0 else "the same"
    if abs(shares_apart(shares[1], shares[0], num_prompts)) <= NOISE:
        return f"no further apart than the noise of {num_prompts} prompts"
    return f"{'better' if gap > 0 else 'worse'} by more than the noise of {num_prompts} prompts"


def write_pipeline_page(folder: Path, summary: PipelineSummary) -> Path:
    """The page, and beside it what it was drawn from."""
    write_atomically(folder / RECORD, json.dumps(summary_record(summary), ensure_ascii=False, allow_nan=False) + "\n")
    return write_atomically(folder / PAGE, pipeline_html(summary))


def pipeline_html(summary: PipelineSummary) -> str:
    """The page as a file of its own."""
    return render_live("pipeline.html", **pipeline_values(summary))


def pipeline_values(summary: PipelineSummary) -> dict[str, Any]:
    """What the template of the page is filled in with, in a file and on the board."""
    return {
        "title": f"whet pipeline {summary.name}",
        "heading": summary.name,
        "eyebrow": "whet",
        "about": ("pipeline", summary.about),
        "status": summary.status,
        "verdict": verdict(summary),
        "tiles": _tiles(summary),
        "figure": _figure(summary),
        "rounds": _page_table(rounds_table(summary)),
        "costs": _page_table(cost_table(summary)),
        "is_staged": any(stage.sets for stage in summary.stages),
        "fallen": fallen(summary.policies),
        "is_paired": len(summary.policies) > 1,
        "lost": _lost(summary),
        "written": side_by_side(summary.policies),
        "comparisons": [_comparison(stage) for stage in summary.stages if stage.table],
        "samples": [sample for stage in summary.stages for sample in stage.samples],
        "stages": [_stage(stage) for stage in summary.stages],
        "counted": [
            (stage.name, [(words(name), quantity(count)) for name, count in stage.counts.items()])
            for stage in summary.stages
            if stage.counts
        ],
        "command": summary.command,
        "config": summary.config,
    }


def _page_table(rows: list[list[str]]) -> PageTable | None:
    if not rows:
        return None
    head, *body = rows
    return PageTable(tuple(head), tuple(tuple(cell or ABSENT for cell in row) for row in body))


def _lost(summary: PipelineSummary) -> dict[str, object]:
    """Prompts once right and now wrong: how many, and the first few."""
    lost = lost_prompts(summary.policies)
    return {"count": len(lost), "shown": lost[:MOST_LOST]}


def _tiles(summary: PipelineSummary) -> list[Tile]:
    name = main_metric(summary)
    tiles = []
    if name is not None and not branched(summary.policies):
        stages = list(next(iter(metrics_by_round(summary, name).values())).values())
        first, last = (metric_text(name, stage.metrics[name]) for stage in (stages[0], stages[-1]))
        tiles.append(Tile(f"held-out {words(name)}", last, first))
    done, planned = sum(stage.is_done for stage in summary.stages), len(summary.stages)
    tiles.append(Tile("stages", str(done), after=f"of {planned}" if done < planned else ""))
    tiles.append(Tile("time", duration(sum(stage.seconds or 0 for stage in summary.stages))))
    return tiles


def _figure(summary: PipelineSummary) -> Figure | None:
    """The main metric by round, a line per model; by stage, a line per eval set, where stages are measured on sets."""
    name = main_metric(summary)
    if name is None:
        return None
    measured = [stage for stage in summary.stages if stage.sets]
    if measured:
        if len(measured) < 2 or branched(summary.policies):  # a line would join policies that did not follow each other
            return None
        sets = list(
            dict.fromkeys(set_name for stage in measured for set_name in stage.sets if name in stage.sets[set_name])
        )
        lines = {
            name if set_name == ALL else set_name: [
                (float(at), *stage.sets[set_name][name]) for at, stage in enumerate(measured) if set_name in stage.sets
            ]
            for set_name in sets
        }
        return _line_figure(name, "stage", lines, [stage.label or stage.name for stage in measured])
    by_model = metrics_by_round(summary, name)
    if max(len(rounds) for rounds in by_model.values()) < 2:
        return None
    lines = {
        who: [(float(at), stage.metrics[name], None, None) for at, stage in sorted(rounds.items())]
        for who, rounds in by_model.items()
    }
    last = max(at for rounds in by_model.values() for at in rounds)
    return _line_figure(name, "round", lines, ["before", *(f"round {at}" for at in range(1, last + 1))])


def _line_figure(name: str, across: str, lines: dict[str, list[MeasuredPoint]], names: Sequence[str]) -> Figure:
    """`names` of the places across; a line has its 95% interval where that is known."""
    series = []
    for tone, (who, points) in enumerate(lines.items()):
        edges = {"low": [low for *_, low, _ in points], "high": [high for *_, high in points]}
        band = edges if any(low is not None for low in edges["low"]) else {}
        value = metric_text(name, points[-1][1])
        series.append(line(who, [(x, y) for x, y, *_ in points], tone, marked=True, value=value, **band))
    values = [value for points in lines.values() for _, value, *_ in points]
    axis = {"label": across, "log": False, "steps": True, "names": list(names)}
    spec = chart(series, x=axis, unit=fits_unit(values, HALF), named=True, height=300)
    return Figure(f"Held-out {words(name)}", f"by {across}, greedy completions", spec, is_wide=True)


def _comparison(stage: StageSummary) -> dict[str, object]:
    head, *rows = stage.table
    cells = tuple(tuple(cell or ABSENT for cell in row) for row in rows)
    heading = f"{stage.about[:1].upper()}{stage.about[1:]}"
    return {"heading": heading, "table": PageTable(head, cells), "findings": stage.findings}


def _stage(stage: StageSummary) -> dict[str, object]:
    outcome = stage.outcome or ("done" if stage.is_done else "not done")
    return {
        "name": stage.name,
        "about": stage.about,
        "report": stage.report,
        "is_done": stage.is_done,
        "outcome": f"{outcome}; {stage.over}" if stage.over else outcome,
        "time": duration(stage.seconds) if stage.is_done else ABSENT,
    }
