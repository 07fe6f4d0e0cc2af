"""One pool of completions under several scorers: the curves over n, what they cost, and their text and record. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import comb
from statistics import fmean
from typing import Any

from whet.metrics.selection import (
    MOST_SUBSETS,
    best_of,
    interval,
    majority,
    sizes,
    vote_weights,
    weighted_vote,
)
from whet.report.text import number

BEST, WEIGHTED, MAJORITY, CEILING = "best of n", "weighted vote", "majority vote", "best possible (pass@n)"


@dataclass(frozen=True)
class Pool:
    """The completions to one prompt, one entry per completion."""

    outcomes: tuple[float, ...]
    answers: tuple[str | None, ...]  # equal for completions that vote for the same
    written: tuple[int, ...]  # tokens of the completion
    read: tuple[int, ...]  # tokens of prompt and completion


@dataclass(frozen=True)
class Opinions:
    """What one scorer says of all completions of all pools."""

    scorer: str
    scores: tuple[tuple[float | None, ...], ...]  # [prompts][completions]
    models: int = 1  # that read every completion; 0 for a rule
    aggregate: str = ""  # how the scores of steps were put together


@dataclass(frozen=True)
class CostedValue:
    """Expected outcome of one choice among n completions, and the tokens per prompt that it takes."""

    n: int
    value: float
    low: float
    high: float
    written: float  # by the policy
    read: float  # by the scorer, prompts included


@dataclass(frozen=True)
class ChoiceCurve:
    """One way of choosing over n."""

    way: str
    values_by_n: tuple[CostedValue, ...]
    scorer: str = ""
    aggregate: str = ""

    @property
    def name(self) -> str:
        by = f"{self.scorer} {self.aggregate}".strip()
        return f"{by}: {self.way}" if by else self.way


@dataclass(frozen=True)
class SearchResult:
    """A search over steps, and the best of as many whole completions as cost about the same to write."""

    scorer: str
    aggregate: str
    beams: int
    branches: int
    mark: CostedValue
    rival: CostedValue


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


def choice_lines(pools: Sequence[Pool], opinions: Sequence[Opinions]) -> tuple[ChoiceCurve, ...]:
    """Majority vote, best of n and weighted vote by each scorer, the ceiling; votes where any completion answers."""
    answers = any(answer is not None for pool in pools for answer in pool.answers)
    lines = []
    if answers:
        lines.append(_line(MAJORITY, pools, lambda row, n: majority(pools[row].outcomes, pools[row].answers, n)))
    for each in opinions:
        lines.append(best_line(pools, each))
        if answers:
            flat = iter(vote_weights([score for scores in each.scores for score in scores]))
            weights = [[next(flat) for _ in scores] for scores in each.scores]

            def vote(row: int, n: int, weights: list[list[float | None]] = weights) -> float:
                return weighted_vote(pools[row].outcomes, pools[row].answers, weights[row], n)

            lines.append(_line(WEIGHTED, pools, vote, each))
    lines.append(_line(CEILING, pools, lambda row, n: best_of(pools[row].outcomes, pools[row].outcomes, n)))
    return tuple(lines)


def best_line(pools: Sequence[Pool], opinions: Opinions, counts: Sequence[int] = ()) -> ChoiceCurve:
    """Best of n by one scorer, for n of `counts` or the usual ones."""

    def best(row: int, n: int) -> float:
        return best_of(pools[row].outcomes, opinions.scores[row], n)

    return _line(BEST, pools, best, opinions, counts)


def _line(
    way: str,
    pools: Sequence[Pool],
    value: Callable[[int, int], float],
    opinions: Opinions | None = None,
    counts: Sequence[int] = (),
) -> ChoiceCurve:
    written, read = mean_tokens(pools)
    models = opinions.models if opinions else 0
    points = []
    for n in counts or sizes(len(pools[0].outcomes)):
        values = [value(row, n) for row in range(len(pools))]
        points.append(CostedValue(n, fmean(values), *interval(values), n * written, n * read * models))
    return ChoiceCurve(way, tuple(points), opinions.scorer if opinions else "", opinions.aggregate if opinions else "")


def mean_tokens(pools: Sequence[Pool]) -> tuple[float, float]:
    """Of a completion, and of a prompt with its completion."""
    written = fmean(fmean(pool.written) for pool in pools)
    return written, fmean(fmean(pool.read) for pool in pools)


def search_result(
    pools: Sequence[Pool],
    opinions: Opinions,
    outcomes: Sequence[float],
    tokens: tuple[float, float],
    shape: tuple[int, int],
) -> SearchResult:
    """Outcomes of a search beside the best of n whole completions, n being what the same written tokens pay for.

    `tokens` are the means per prompt, written and read; `shape` is beams and branches. A pool that is too small for the
    price gives all it has.
    """
    written = mean_tokens(pools)[0]
    n = min(max(round(tokens[0] / written), 1), len(pools[0].outcomes))
    mark = CostedValue(1, fmean(outcomes), *interval(outcomes), *tokens)
    return SearchResult(
        opinions.scorer, opinions.aggregate, *shape, mark, best_line(pools, opinions, [n]).values_by_n[0]
    )


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
    mark, rival = each.mark, each.rival
    short = "" if mark.written <= 1.2 * rival.written else f", and more --samples than {found.samples} would cost more"
    return [
        f"Search over steps by {by}, {each.beams} x {each.branches} (beams x branches): "
        f"{value_text(mark, found.measure)}, {number(mark.written)} tokens per prompt written, "
        f"{number(mark.read)} read",
        f"Best of {rival.n} by the same scores: {value_text(rival, found.measure)}, {number(rival.written)} "
        f"written and {number(rival.read)} read{short}",
    ]


def value_text(mark: CostedValue, measure: str) -> str:
    if measure == "accuracy":
        return f"{100 * mark.value:.1f} ({100 * mark.low:.0f}-{100 * mark.high:.0f})"
    return f"{number(mark.value)} ({number(mark.low)} to {number(mark.high)})"
