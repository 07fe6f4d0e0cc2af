"""One pool of completions under several scorers: what choosing among them is worth at what price. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from whet.pages.chart_specs import cost_chart, cost_line
from whet.pages.render import Figure
from whet.record.metrics.choice_curves import CEILING, MAJORITY, ChoiceCurve, CostedValue, SearchResult
from whet.record.text import aligned, number

TONES = 6  # the last two of eight are for what reward models are compared with
COMPARED_WITH = {MAJORITY: 7, CEILING: 6}


@dataclass(frozen=True)
class Reranking:
    """Everything that one pool shows."""

    model: str
    data: str
    measure: str  # accuracy, or reward where outcomes are not 0 or 1
    num_prompts: int
    samples: int
    temperature: float
    lines: tuple[ChoiceCurve, ...]
    searches: tuple[SearchResult, ...] = ()


def reranking_text(reranking: Reranking) -> str:
    """A table of lines over n with intervals, and the searches below it."""
    unit = " in %" if reranking.measure == "accuracy" else ""
    lines = [
        f"Choosing one of n completions, drawn at temperature {reranking.temperature:g}: {reranking.measure}{unit} "
        f"(95% interval over {reranking.num_prompts} prompts)",
        "",
    ]
    lines += aligned(value_rows(reranking))
    for search in reranking.searches:
        lines += ["", *search_text(search, reranking)]
    return "\n".join(lines)


def value_rows(reranking: Reranking) -> list[tuple[str, ...]]:
    """The table of both: a head, the lines over n, and what they cost."""
    first = reranking.lines[0].values_by_n
    rows = [("", *(f"n = {value.n}" for value in first))]
    rows += [
        (curve.name, *(value_text(value, reranking.measure) for value in curve.values_by_n))
        for curve in reranking.lines
    ]
    rows.append(("tokens written per prompt", *(number(value.written) for value in first)))
    reading = {curve.scorer: curve for curve in reranking.lines if curve.values_by_n[0].read}
    rows += [
        (f"tokens read by {name}", *(number(value.read) for value in curve.values_by_n))
        for name, curve in reading.items()
    ]
    return rows


def search_text(search: SearchResult, reranking: Reranking) -> list[str]:
    """A search over steps, and what its tokens would have paid for."""
    by = f"{search.scorer} {search.aggregate}".strip()
    searched, rival = search.search, search.best_of_n
    short = (
        ""
        if searched.written <= 1.2 * rival.written
        else f", and more --samples than {reranking.samples} would cost more"
    )
    return [
        f"Search over steps by {by}, {search.beams} x {search.branches} (beams x branches): "
        f"{value_text(searched, reranking.measure)}, {number(searched.written)} tokens per prompt written, "
        f"{number(searched.read)} read",
        f"Best of {rival.n} by the same scores: {value_text(rival, reranking.measure)}, {number(rival.written)} "
        f"written and {number(rival.read)} read{short}",
    ]


def value_text(costed: CostedValue, measure: str) -> str:
    """A value with its interval; an accuracy in percent."""
    if measure == "accuracy":
        return f"{100 * costed.value:.1f} ({100 * costed.low:.0f}-{100 * costed.high:.0f})"
    return f"{number(costed.value)} ({number(costed.low)} to {number(costed.high)})"


def rerank_figures(reranking: Reranking) -> list[Figure]:
    """Every scorer's lines against the tokens per prompt."""
    return [_figure(name, reranking) for name in dict.fromkeys(line.scorer for line in reranking.lines if line.scorer)]


def _figure(scorer: str, reranking: Reranking) -> Figure:
    mine = [line for line in reranking.lines if line.scorer == scorer]
    if len({line.aggregate for line in mine}) > 1:
        # eight lines would be a thicket: the votes of each aggregate stand in the table
        mine = [line for line in mine if line.way == mine[0].way]
    drawn = [(curve, index % TONES, curve.aggregate or curve.way) for index, curve in enumerate(mine)]
    drawn += [(curve, COMPARED_WITH[curve.way], curve.way) for curve in reranking.lines if curve.way in COMPARED_WITH]
    tones = {curve.aggregate: index % TONES for index, curve in enumerate(mine)}
    searches = [search for search in reranking.searches if search.scorer == scorer]
    series = [
        cost_line(
            label,
            [_costed(value, f"{curve.name}, n = {value.n}", reranking.measure) for value in curve.values_by_n],
            tone,
            dashed=curve.way in COMPARED_WITH,
        )
        for curve, tone, label in drawn
    ]
    series += [
        cost_line(
            "", [_costed(search.search, "search", reranking.measure)], tones.get(search.aggregate, 0), diamond=True
        )
        for search in searches
    ]
    about = "best of n by the aggregate of its steps, by" if mine[0].aggregate else "best of n, by"
    about += " tokens per prompt, written and read" + ("; the search over steps is the diamond" if searches else "")
    return Figure(scorer, about, cost_chart(series, reranking.measure == "accuracy"))


def _costed(value: CostedValue, name: str, measure: str) -> tuple[float, CostedValue, str]:
    cost = value.written + value.read
    return cost, value, f"{name}: {value_text(value, measure)}, {number(cost)} tokens"
