"""What choosing among completions is worth at what price, on one page: a figure per reward model, and every number
with its interval. Pure."""

from __future__ import annotations

from whet.pages.charts import CostSeries, Interval, cost_chart
from whet.pages.render import Figure, LegendEntry, PageTable, render
from whet.pages.rerank import Reranking, search_text, value_text
from whet.record.metrics.reranking import CEILING, MAJORITY, ChoiceCurve, CostedValue
from whet.record.text import number

TONES = 6  # the last two of eight are for what reward models are compared with
QUIET = {MAJORITY: 7, CEILING: 6}


def reranking_page(reranking: Reranking) -> str:
    title = f"{reranking.model}: one of {reranking.samples} completions"
    drawn = "; weighted votes over 4,096 of them where there are more than 20,000" if reranking.drawn_votes else ""
    return render(
        "rerank.html",
        title=title,
        eyebrow="whet eval --rerank",
        about=(reranking.data,),
        verdict=_verdict(reranking),
        figures=[
            _figure(name, reranking) for name in dict.fromkeys(line.scorer for line in reranking.lines if line.scorer)
        ],
        measure=reranking.measure,
        unit=" in %" if reranking.measure == "accuracy" else "",
        counts=[value.n for value in reranking.lines[0].values_by_n],
        searches=[f"{'. '.join(search_text(each, reranking))}." for each in reranking.searches],
        table=_table(reranking),
        foot=f"{reranking.num_prompts} prompts, {reranking.samples} completions each at temperature "
        f"{reranking.temperature:g}. Every number is the mean over all ways to draw n of the "
        f"{reranking.samples}{drawn}.",
    )


def _verdict(reranking: Reranking) -> str:
    best = max((line for line in reranking.lines if line.way != CEILING), key=lambda line: line.values_by_n[-1].value)
    alone, ceiling = reranking.lines[-1].values_by_n[0], reranking.lines[-1].values_by_n[-1]
    measure = reranking.measure
    return (
        f"A single completion has {measure} {value_text(alone, measure)}. Of {reranking.samples} completions, the "
        f"choice that does best is {best.name}: {value_text(best.values_by_n[-1], measure)}. No choice can pass "
        f"{value_text(ceiling, measure)}."
    )


def _figure(scorer: str, reranking: Reranking) -> Figure:
    mine = [line for line in reranking.lines if line.scorer == scorer]
    if len({line.aggregate for line in mine}) > 1:
        # eight lines would be a thicket: the votes of each aggregate stand in the table
        mine = [line for line in mine if line.way == mine[0].way]
    drawn = [(line, place % TONES, line.aggregate or line.way) for place, line in enumerate(mine)]
    drawn += [(line, QUIET[line.way], line.way) for line in reranking.lines if line.way in QUIET]
    tone = {line.aggregate: place % TONES for place, line in enumerate(mine)}
    searches = [each for each in reranking.searches if each.scorer == scorer]
    diamonds = [
        (_interval(each.search, f"search: {value_text(each.search, reranking.measure)}"), tone.get(each.aggregate, 0))
        for each in searches
    ]
    series = [CostSeries(_intervals(line, reranking.measure), place, line.way in QUIET) for line, place, _ in drawn]
    about = "best of n by the aggregate of its steps" if mine[0].aggregate else ""
    about += ", and the search over steps (diamond)" if searches else ""
    chart = cost_chart(series, diamonds, f"{reranking.measure} against tokens", reranking.measure == "accuracy")
    legend = tuple(LegendEntry(label, f"s{place}") for _, place, label in drawn)
    return Figure(scorer, about, chart, legend=legend)


def _intervals(line: ChoiceCurve, measure: str) -> tuple[Interval, ...]:
    return tuple(
        _interval(value, f"{line.name}, n = {value.n}: {value_text(value, measure)}") for value in line.values_by_n
    )


def _interval(value: CostedValue, title: str) -> Interval:
    cost = value.written + value.read
    return Interval(cost, value.value, value.low, value.high, f"{title}, {number(cost)} tokens")


def _table(reranking: Reranking) -> PageTable:
    first = reranking.lines[0].values_by_n
    rows = [
        (line.name, *(value_text(value, reranking.measure) for value in line.values_by_n)) for line in reranking.lines
    ]
    rows.append(("tokens written per prompt", *(number(value.written) for value in first)))
    reading = {line.scorer: line for line in reranking.lines if line.values_by_n[0].read}
    rows += [
        (f"tokens read by {name}", *(number(value.read) for value in line.values_by_n))
        for name, line in reading.items()
    ]
    return PageTable(("", *(f"n = {value.n}" for value in first)), tuple(rows))
