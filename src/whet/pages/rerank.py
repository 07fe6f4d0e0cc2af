"""One pool of completions under several scorers, as text and JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from whet.record.metrics.reranking import ChoiceCurve, CostedValue, SearchResult
from whet.record.metrics.selection import MOST_SUBSETS, sizes
from whet.record.text import number


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

    @property
    def drawn_votes(self) -> bool:
        """True where weighted votes looked at some subsets only."""
        return any(comb(self.samples, n) > MOST_SUBSETS for n in sizes(self.samples))


def reranking_record(reranking: Reranking) -> dict[str, Any]:
    """As JSON."""
    return asdict(reranking)


def reranking_text(reranking: Reranking) -> str:
    """A table of lines over n with intervals, and the searches below it."""
    counts = [value.n for value in reranking.lines[0].values_by_n]
    unit = " in %" if reranking.measure == "accuracy" else ""
    rows = [["", *(f"n = {n}" for n in counts)]]
    rows += [
        [line.name, *(value_text(value, reranking.measure) for value in line.values_by_n)] for line in reranking.lines
    ]
    rows.append(["tokens written per prompt", *(number(value.written) for value in reranking.lines[0].values_by_n)])
    reading = {line.scorer: line for line in reranking.lines if line.values_by_n[0].read}
    rows += [
        [f"tokens read by {name}", *(number(value.read) for value in line.values_by_n)]
        for name, line in reading.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"Choosing one of n completions, drawn at temperature {reranking.temperature:g}: {reranking.measure}{unit} "
        f"(95% interval over {reranking.num_prompts} prompts)",
        "",
    ]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    for each in reranking.searches:
        lines += ["", *search_text(each, reranking)]
    return "\n".join(lines)


def search_text(each: SearchResult, reranking: Reranking) -> list[str]:
    by = f"{each.scorer} {each.aggregate}".strip()
    searched, rival = each.search, each.best_of_n
    short = (
        ""
        if searched.written <= 1.2 * rival.written
        else f", and more --samples than {reranking.samples} would cost more"
    )
    return [
        f"Search over steps by {by}, {each.beams} x {each.branches} (beams x branches): "
        f"{value_text(searched, reranking.measure)}, {number(searched.written)} tokens per prompt written, "
        f"{number(searched.read)} read",
        f"Best of {rival.n} by the same scores: {value_text(rival, reranking.measure)}, {number(rival.written)} "
        f"written and {number(rival.read)} read{short}",
    ]


def value_text(costed: CostedValue, measure: str) -> str:
    if measure == "accuracy":
        return f"{100 * costed.value:.1f} ({100 * costed.low:.0f}-{100 * costed.high:.0f})"
    return f"{number(costed.value)} ({number(costed.low)} to {number(costed.high)})"
