"""Methods side by side: their results, and which differences are beyond noise. Pure.

Noise is what the seed changes. Every method is held against the best one by Welch's t-test over seeds, and p is
corrected for the number of tests: of many equal methods the luckiest would otherwise seem to beat some. Where there is
nothing to test with (one seed, no spread at all) the words say so instead of a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from textwrap import indent, wrap
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from whet.pages.chart_specs import NUM_TONES, ChartSeries, Point, chart, line, smoothed
from whet.pages.chart_svg import LEAST_SMOOTHED
from whet.pages.render import Figure, render_live
from whet.pages.run_report import REPORT
from whet.record.metrics.intervals import corrected, more_right_p, paired_test, share_interval, welch_p
from whet.record.text import (
    ABSENT,
    ACCURACY_NAMES,
    LOWER_IS_BETTER,
    aligned,
    duration,
    headline,
    json_values,
    metric_text,
    quantity,
)

BEYOND_NOISE = 0.05  # p below which a difference counts
NOTEWORTHY_COST = 1.1  # ratio of generated tokens from which a difference in cost is put into words
LAST_QUARTER = "reward, last quarter"
NO_RUN, BEST = "no finished run", ("highest", "lowest")
COLUMNS = ("method", "runs", "before", "after", LAST_QUARTER, "tokens per run", "time per run", "verdict")
SHORT_HEADS = ("method", "runs", "before", "after", "reward", "tokens", "time")
MOST_NAMES = 6  # in the title


@dataclass(frozen=True)
class MethodRun:
    """One finished run."""

    method: str
    seed: int
    before: Mapping[str, float]  # metrics on held-out prompts, empty where there are none
    after: Mapping[str, float]
    rewards: tuple[Point, ...]  # (step, mean reward), steps ascending
    tokens: int  # generated
    seconds: float
    folder: str = ""  # beside the page
    eval_size: int = 0  # prompts or rows behind the eval metrics; 0: unknown
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of each prompt, by metric; NaN: none

    @property
    def last_quarter(self) -> float | None:
        """Mean reward of the last quarter of the steps."""
        values = [reward for _, reward in self.rewards if math.isfinite(reward)]
        return fmean(values[-math.ceil(len(values) / 4) :]) if values else None


@dataclass(frozen=True)
class MethodComparison:
    """Everything that was planned, and the runs finished so far."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    results: tuple[MethodRun, ...]
    equal: Mapping[str, str] = field(default_factory=dict)  # what was held equal, in words
    unequal: Mapping[str, str] = field(default_factory=dict)  # settings that differ besides the method
    remarks: tuple[str, ...] = ()  # sentences a reader must not miss: failed runs, a setting that hides differences
    command: str = ""
    planned: Mapping[str, int] = field(default_factory=dict)  # runs of a method, where that is not one per seed
    incomparable: str = ""  # why these runs cannot be ranked; empty: they can

    @property
    def status(self) -> str:
        """finished, or unfinished where a planned run is missing."""
        planned = sum(map(self.num_planned, self.methods))
        return "finished" if len(self.results) == planned else "unfinished"

    def num_planned(self, method: str) -> int:
        """How many runs of a method there are to be."""
        return self.planned.get(method, len(self.seeds))


@dataclass(frozen=True)
class Estimate:
    """One number of a method, over its seeds."""

    values: tuple[float, ...]
    eval_size: int = 0  # prompts behind each value where it is a share of them; 0: not a share, or unknown
    scores: tuple[float, ...] = ()  # of each prompt, for a single run; NaN: it could not be scored

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None without a run."""
        return fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds, Bessel's; None below two runs."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of a single run's share over its eval prompts."""
        return share_interval(self.values[0], self.eval_size) if self.eval_size and len(self.values) == 1 else None

    def text(self, name: str) -> str:
        """The mean with its spread, or with its interval where there is one run."""
        spread = "" if self.spread is None else f" ± {metric_text(name, self.spread)}"
        if self.interval is not None:
            spread = f" ({' to '.join(metric_text(name, end) for end in self.interval)})"
        return f"{metric_text(name, self.mean)}{spread}"


@dataclass(frozen=True)
class MethodRow:
    """One method of the table."""

    method: str
    results: tuple[MethodRun, ...]
    before: Estimate
    after: Estimate
    reward: Estimate  # of the last quarter of steps
    tokens: Estimate
    seconds: Estimate


@dataclass(frozen=True)
class Standing:
    """How a method compares with the best one."""

    relation: str  # the best method's name goes where the braces are
    best: str = ""
    detail: str = ""
    p: float | None = None  # corrected for the number of tests; None where nothing was tested

    @property
    def words(self) -> str:
        """The standing as the table words it."""
        return self.relation.format(self.best) + (f" ({self.detail})" if self.detail else "")


def metric_name(results: Sequence[MethodRun]) -> str | None:
    """The held-out metric to compare by: one that every run has; an accuracy where there is one."""
    if not results:
        return None
    shared = [
        name for name in results[0].after if all(math.isfinite(result.after.get(name, math.nan)) for result in results)
    ]
    return headline(dict.fromkeys(shared))


def rows(comparison: MethodComparison) -> list[MethodRow]:
    """One row per method, in the order given; methods without a finished run too."""
    name = metric_name(comparison.results) or ""
    table = []
    for method in comparison.methods:
        results = tuple(result for result in comparison.results if result.method == method)
        # seeds of one comparison show their spread; a run on its own shows how far its eval prompts can be trusted
        size = results[0].eval_size if len(results) == 1 and name in ACCURACY_NAMES else 0
        table.append(
            MethodRow(
                method,
                results,
                _estimate([result.before.get(name) for result in results], size),
                _estimate(
                    [result.after.get(name) for result in results],
                    size,
                    tuple(results[0].scores.get(name, ())) if len(results) == 1 else (),
                ),
                _estimate([result.last_quarter for result in results]),
                _estimate([result.tokens for result in results]),
                _estimate([result.seconds for result in results]),
            )
        )
    return table


def _estimate(values: Sequence[float | None], eval_size: int = 0, scores: tuple[float, ...] = ()) -> Estimate:
    finite = tuple(float(value) for value in values if value is not None and math.isfinite(value))
    return Estimate(finite, eval_size if all(0 <= value <= 1 for value in finite) else 0, scores)


def compared_by(row: MethodRow, name: str | None) -> Estimate:
    """What a method is compared by: its final held-out metric, or the reward where nothing was held out."""
    return row.after if name is not None else row.reward


def best_row(table: Sequence[MethodRow], name: str | None) -> MethodRow | None:
    """The method that the others are compared with; None where nothing was measured."""
    rows_with_values = [row for row in table if compared_by(row, name).values]
    choose = min if name in LOWER_IS_BETTER else max
    return choose(rows_with_values, key=lambda row: compared_by(row, name).mean or 0.0) if rows_with_values else None


def standings(comparison: MethodComparison) -> dict[str, Standing]:
    """Every method against the best."""
    name, table = metric_name(comparison.results), rows(comparison)
    best = best_row(table, name)
    if best is None:
        return {row.method: Standing(NO_RUN) for row in table}
    if comparison.incomparable:
        return {row.method: Standing("not comparable" if row.results else NO_RUN) for row in table}
    top = compared_by(best, name).values
    others = {row.method: compared_by(row, name).values for row in table if row.method != best.method}
    raw = {
        row.method: p
        for row in table
        if row.method != best.method and (p := _p(compared_by(row, name), compared_by(best, name))) is not None
    }
    tested = dict(zip(raw, corrected(list(raw.values()), len(others)), strict=True))
    is_low = name in LOWER_IS_BETTER
    against_best = {
        method: standing(values, top, best.method, tested.get(method), "above" if is_low else "below")
        for method, values in others.items()
    }
    rivals = [against_best[method] for method, values in others.items() if values]
    relation = BEST[is_low] if rivals else "nothing to compare with"
    if rivals and all(row.p is not None and row.p >= BEYOND_NOISE for row in rivals):
        relation = f"{BEST[is_low]}, within noise"
    return {row.method: against_best.get(row.method, Standing(relation)) for row in table}


def _p(other: Estimate, best: Estimate) -> float | None:
    """The p-value against the best: over seeds where there are several, else over eval prompts of two single runs.

    Prompt by prompt where the runs say what each scored, else by Fisher's exact test on two shares.
    """
    if pairs := _pairs(other, best):
        return paired_test(("", [[score] for score, _ in pairs]), ("", [[score] for _, score in pairs])).p
    if other.interval is not None and best.interval is not None and other.eval_size == best.eval_size:
        right = sorted(round(estimate.values[0] * estimate.eval_size) for estimate in (other, best))
        return min(1.0, 2 * more_right_p(right[1], right[0], other.eval_size))
    return welch_p(other.values, best.values)


def _pairs(estimate: Estimate, best: Estimate) -> list[tuple[float, float]]:
    """What each prompt scored in two single runs; empty where it is not known of both."""
    if len(estimate.scores) != len(best.scores):
        return []
    both = zip(estimate.scores, best.scores, strict=True)
    return [pair for pair in both if all(map(math.isfinite, pair))]


def standing(
    values: Sequence[float], best_values: Sequence[float], best: str, p: float | None, side: str = "below"
) -> Standing:
    """One method against the best; `p` is None where Welch's test cannot be made, `side` is where worse ones are."""
    if not values:
        return Standing(NO_RUN)
    level = math.isclose(fmean(values), fmean(best_values), rel_tol=1e-12)
    if p is None and (len(values) < 2 or len(best_values) < 2):
        return Standing("level with {}, noise unknown" if level else f"{side} {{}}, noise unknown", best)
    if p is None and level:
        return Standing("within noise of {}", best, "equal in every seed", 1.0)
    if p is None:
        return Standing(f"{side} {{}} in every seed", best, "no spread to test against")
    return Standing(f"{side} {{}} beyond noise" if p < BEYOND_NOISE else "within noise of {}", best, p_text(p), p)


def p_text(p: float) -> str:
    """A p value as text."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def verdict(comparison: MethodComparison) -> str:
    """The comparison in a few short sentences."""
    name, table = metric_name(comparison.results), rows(comparison)
    best = best_row(table, name)
    if best is None and comparison.results:
        return "Nothing was evaluated on held-out data, and these runs have no reward: nothing can be compared."
    if best is None:
        return "No run has finished yet."
    what = f"held-out {name.replace('_', ' ')}" if name else f"mean {LAST_QUARTER}"
    reached = compared_by(best, name).text(name or "")
    if comparison.incomparable:
        return f"These runs cannot be ranked: {comparison.incomparable}."
    if len(comparison.methods) == 1:
        return f"{best.method} reached {what} {reached}. It ran alone: there is nothing to compare it with."
    others = [row for row in table if row.method != best.method and row.results]
    if others and all(
        math.isclose(compared_by(row, name).mean or 0.0, compared_by(best, name).mean or 0.0) for row in others
    ):
        return f"No method is ahead: each has {what} {metric_text(name or '', compared_by(best, name).mean)}."
    places = standings(comparison)
    alike: dict[str, list[str]] = {}
    for row in others:
        position = places[row.method]
        alike.setdefault(position.relation.format("it"), []).append(
            f"{row.method} ({position.detail})" if position.detail else row.method
        )
    sentences = [f"{relation[0].upper()}{relation[1:]}: {', '.join(names)}." for relation, names in alike.items()]
    return " ".join([f"{best.method} has the {BEST[name in LOWER_IS_BETTER]} {what}, {reached}.", *sentences])


def notes(comparison: MethodComparison) -> list[str]:
    """What a reader must know to trust the table."""
    name, table = metric_name(comparison.results), rows(comparison)
    sentences = list(comparison.remarks)
    if not any(run.after for run in comparison.results) and any(row.reward.values for row in table):
        sentences.append("Nothing was held out: methods are compared by the reward they were trained on.")
    if len(comparison.methods) > 1 and name in ACCURACY_NAMES and all(set(row.after.values) == {1.0} for row in table):
        sentences.append(
            "Every run reached the top: the task is too easy to tell the methods apart. Give fewer steps, or a harder "
            "task."
        )
    tested = [row.after for row in table if row.after.interval is not None]
    paired = " (prompt by prompt)" if tested and all(_pairs(estimate, tested[0]) for estimate in tested) else ""
    if comparison.incomparable:
        sentences.append("Numbers of runs that cannot be ranked stand side by side only to be looked at.")
    elif name and len(tested) == len(table) > 1 and len({row.eval_size for row in tested}) == 1:
        sentences.append(
            f"Each is a single run: intervals (95%) and p{paired} tell how far {tested[0].eval_size} eval prompts can "
            "be trusted. They say nothing of what another seed would change; for that, train several seeds."
        )
    elif comparison.results and best_row(table, name) is None:
        pass  # nothing was measured: the verdict says so, and noise is no question
    elif len(comparison.seeds) < 2:
        sentences.append("One seed: nothing can be said about noise. Train each with three seeds or more.")
    elif sum(len(compared_by(row, name).values) > 1 for row in table) < min(2, len(table)):
        sentences.append("Too few runs are finished: nothing can be said about noise yet.")
    elif len(comparison.methods) > 1:
        tests = len(comparison.methods) - 1
        several = f", corrected for {tests} tests (Holm)" if tests > 1 else ""
        sentences.append(
            f"Noise is what the seed changes: p is of Welch's t-test against the best over {len(comparison.seeds)} "
            f"seeds{several}, and p < {BEYOND_NOISE} is beyond noise. Within noise does not mean equal: few seeds "
            "show only large differences."
        )
    costs = sorted((row.tokens.mean, row.method) for row in table if row.tokens.mean)
    if len(costs) > 1 and costs[-1][0] > NOTEWORTHY_COST * costs[0][0]:
        equal = "The cost differs" if "steps" in comparison.unequal else "The steps are equal, the cost is not"
        verb = "generated" if any(row.reward.values for row in table) else "trained on"
        sentences.append(
            f"{equal}: {costs[-1][1]} {verb} {costs[-1][0] / costs[0][0]:.2g} times the tokens of {costs[0][1]}."
        )
    return sentences


def cells(comparison: MethodComparison) -> list[tuple[str, ...]]:
    """The table as text, without its head: one tuple of `COLUMNS` per method."""
    name, places = metric_name(comparison.results) or "", standings(comparison)
    return [
        (
            row.method,
            str(planned) if (done := len(row.results)) == planned else f"{done} of {planned}",
            row.before.text(name),
            row.after.text(name),
            row.reward.text(""),
            ABSENT if row.tokens.mean is None else quantity(row.tokens.mean),
            duration(row.seconds.mean),
            places[row.method].words,
        )
        for row in rows(comparison)
        for planned in (comparison.num_planned(row.method),)
    ]


def heads(comparison: MethodComparison) -> tuple[str, ...]:
    """`COLUMNS` with the name of the metric."""
    name = (metric_name(comparison.results) or "held out").replace("_", " ")
    return tuple(f"{name} {column}" if column in ("before", "after") else column for column in COLUMNS)


def table_text(comparison: MethodComparison, width: int = 78) -> str:
    """The table, the verdict, what was held equal and the notes, as plain lines."""
    # on a terminal the verdict stands below the table, and a legend instead of long heads: eighty columns are few
    lines = [SHORT_HEADS, *(line[: len(SHORT_HEADS)] for line in cells(comparison))]
    legend = (
        f"before, after: held-out {metric_name(comparison.results) or 'metric'}; reward: of the last quarter of steps; "
        "means over seeds ± standard deviation; tokens, time: per run"
    )
    blocks = [("", ["\n".join(aligned(lines)), "", *_folded(legend, width)]), ("", _folded(verdict(comparison), width))]
    for title, facts in (("Held equal", comparison.equal), ("Not equal, besides the method", comparison.unequal)):
        if facts:
            blocks.append((title, [line for fact in facts.items() for line in _folded(fact[1], width, fact[0])]))
    blocks.append(("", [line for note in notes(comparison) for line in _folded(note, width)]))
    texts = ["\n".join([title] * bool(title) + [indent(line, "  ") for line in body]) for title, body in blocks if body]
    return "\n\n".join(texts)


def _folded(text: str, width: int, name: str = "") -> list[str]:
    start = f"{name:<10} " if name else ""
    return wrap(f"{start}{text}", width - 2, subsequent_indent=" " * len(start), break_long_words=False)


def comparison_values(comparison: MethodComparison) -> dict[str, Any]:
    """compare.json: everything the page shows, as JSON holds it."""
    places, planned = standings(comparison), asdict(comparison)
    runs = [
        {**run, "steps": [step for step, _ in run["rewards"]], "rewards": [value for _, value in run["rewards"]]}
        for run in planned.pop("results")
    ]
    table = []
    for row in rows(comparison):
        estimates = {"before": row.before, "after": row.after, "reward_last_quarter": row.reward}
        estimates |= {"tokens": row.tokens, "seconds": row.seconds}
        numbers = {
            name: {"mean": e.mean, "spread": e.spread, "values": list(e.values)} for name, e in estimates.items()
        }
        standing = {"verdict": places[row.method].words, "p": places[row.method].p}
        table.append({"method": row.method, "runs": len(row.results), **numbers, **standing})
    answer = {"status": comparison.status, "metric": metric_name(comparison.results), "verdict": verdict(comparison)}
    values: dict[str, Any] = json_values({**planned, **answer, "notes": notes(comparison), "rows": table, "runs": runs})
    return values


def comparison_from(values: Mapping[str, Any]) -> MethodComparison:
    """The comparison that `comparison_values` wrote."""
    runs = [
        {
            **run,
            "rewards": zip(run["steps"], _with_nan(run["rewards"]), strict=True),
            "scores": {name: _with_nan(scores) for name, scores in run["scores"].items()},
        }
        for run in values["runs"]
    ]
    return TypeAdapter(MethodComparison).validate_python({**values, "results": runs})


def _with_nan(numbers: Sequence[float | None]) -> list[float]:
    return [math.nan if number is None else number for number in numbers]


def compare_page(comparison: MethodComparison) -> str:
    """The whole page for the folder of a comparison."""
    values = comparison_page_values(comparison, lambda run: f"{quote(run.folder)}/{REPORT}" if run.folder else "")
    return render_live("compare.html", **values)


def comparison_page_values(comparison: MethodComparison, address: Callable[[MethodRun], str]) -> dict[str, Any]:
    """What the page is filled in with; `address` is where the page of a run is, empty where it has none."""
    methods, seeds = len(comparison.methods), len(comparison.seeds)
    about = f"{methods} method{'s' if methods > 1 else ''} x {seeds} seed{'s' if seeds > 1 else ''}"
    return {
        "title": ", ".join(comparison.methods) if methods <= MOST_NAMES else f"{methods} methods",
        "eyebrow": "whet compare",
        "about": (f"{len(comparison.results)} finished runs" if comparison.planned else about,),
        "status": comparison.status,
        "verdict": _held_together(verdict(comparison)),
        "head": heads(comparison),
        "rows": table_rows(comparison, address),
        "notes": [_held_together(note) for note in notes(comparison)],
        "figure": reward_figure(comparison),
        "equal": dict(comparison.equal),
        "unequal": dict(comparison.unequal),
        "command": comparison.command,
    }


def table_rows(comparison: MethodComparison, address: Callable[[MethodRun], str]) -> list[dict[str, Any]]:
    """The table, with a link per seed."""
    best = standings(comparison)
    return [
        {
            "method": row.method,
            "is_best": best[row.method].relation.startswith(BEST),
            "links": [(run.seed, link) for run in row.results if (link := address(run))],
            "cells": [_held_together(text) for text in texts[1:]],
        }
        for row, texts in zip(rows(comparison), cells(comparison), strict=True)
    ]


def _held_together(text: str) -> str:
    """The text without a line break inside `p < 0.05`."""
    return re.sub(r"\bp ([=<]) (?=\d)", "p\u00a0\\1\u00a0", text)


def reward_bands(comparison: MethodComparison) -> list[ChartSeries]:
    """The mean reward of each method with finished runs; a step counts where every one of them has a reward."""
    series = []
    for tone, row in enumerate(rows(comparison)):
        by_seed = [{step: value for step, value in run.rewards if math.isfinite(value)} for run in row.results]
        steps = sorted(set.intersection(*map(set, by_seed))) if by_seed else []
        if not steps:
            continue
        values = [[seed[step] for seed in by_seed] for step in steps]
        means, lows, highs = (_calmed([of(at_step) for at_step in values]) for of in (fmean, min, max))
        points = list(zip(steps, means, strict=True))
        series.append(line(row.method, points, tone, low=lows, high=highs, dashed=tone // NUM_TONES % 2 == 1))
    return series


def _calmed(values: Sequence[float]) -> list[float]:
    """Long series are smoothed, the band like the line, so that the line stays inside it."""
    return smoothed(values) if len(values) >= LEAST_SMOOTHED else list(values)


def reward_figure(comparison: MethodComparison) -> Figure | None:
    """The mean reward of each method by step, with what its seeds differ in."""
    series = reward_bands(comparison)
    if not series:
        return None
    calm = ", smoothed" if any(len(trace["x"]) >= LEAST_SMOOTHED for trace in series) else ""
    seeds = "mean over seeds, band from the lowest to the highest" if len(comparison.seeds) > 1 else "one seed"
    spec = chart(series, smooth=False, named=True, height=320)
    return Figure("Mean reward", f"by step; {seeds}{calm}", spec, is_wide=True)
