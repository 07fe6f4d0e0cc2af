"""One pool of completions under several scorers, as text and JSON. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import comb
from typing import Any

from whet.metrics.reranking import ChoiceCurve, CostedValue, SearchResult
from whet.metrics.selection import MOST_SUBSETS, sizes
from whet.report.text import number


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


def reranking_record(found: Reranking) -> dict[str, Any]:
    """As JSON."""
    return asdict(found)


def reranking_text(found: Reranking) -> str:
    """A table of lines over n with intervals, and the searches below it."""
    counts = [mark.n for mark in found.lines[0].values_by_n]
    unit = " in %" if found.measure == "accuracy" else ""
    rows = [["", *(f"n = {n}" for n in counts)]]
    rows += [[line.name, *(value_text(mark, found.measure) for mark in line.values_by_n)] for line in found.lines]
    rows.append(["tokens written per prompt", *(number(mark.written) for mark in found.lines[0].values_by_n)])
    reading = {line.scorer: line for line in found.lines if line.values_by_n[0].read}
    rows += [
        [f"tokens read by {name}", *(number(mark.read) for mark in line.values_by_n)] for name, line in reading.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"Choosing one of n completions, drawn at temperature {found.temperature:g}: {found.measure}{unit} "
        f"(95% interval over {found.num_prompts} prompts)",
        "",
    ]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
    for each in found.searches:
        lines += ["", *search_text(each, found)]
    return "\n".join(lines)


def search_text(each: SearchResult, found: Reranking) -> list[str]:
    by = f"{each.scorer} {each.aggregate}".strip()
    searched, rival = each.search, each.best_of_n
    short = (
        "" if searched.written <= 1.2 * rival.written else f", and more --samples than {found.samples} would cost more"
    )
    return [
        f"Search over steps by {by}, {each.beams} x {each.branches} (beams x branches): "
        f"{value_text(searched, found.measure)}, {number(searched.written)} tokens per prompt written, "
        f"{number(searched.read)} read",
        f"Best of {rival.n} by the same scores: {value_text(rival, found.measure)}, {number(rival.written)} "
        f"written and {number(rival.read)} read{short}",
    ]


def value_text(mark: CostedValue, measure: str) -> str:
    if measure == "accuracy":
        return f"{100 * mark.value:.1f} ({100 * mark.low:.0f}-{100 * mark.high:.0f})"
    return f"{number(mark.value)} ({number(mark.low)} to {number(mark.high)})"
