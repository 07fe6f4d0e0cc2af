"""Choosing one of n completions by several scorers: expected outcomes over n, and what they cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from whet.record.metrics.intervals import estimate
from whet.record.metrics.selection import best_of, majority, sizes, vote_weights, weighted_vote

BEST, WEIGHTED, MAJORITY, CEILING = "best of n", "weighted vote", "majority vote", "best possible (pass@n)"


@dataclass(frozen=True)
class Pool:
    """The completions to one prompt, one entry per completion."""

    outcomes: tuple[float, ...]
    answers: tuple[str | None, ...]  # equal for completions that vote for the same
    written: tuple[int, ...]  # tokens of the completion
    read: tuple[int, ...]  # tokens of prompt and completion


@dataclass(frozen=True)
class RerankerScores:
    """The scores that one scorer gives to all completions of all pools."""

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
        """The way of choosing, with the scorer it uses."""
        by = f"{self.scorer} {self.aggregate}".strip()
        return f"{by}: {self.way}" if by else self.way


@dataclass(frozen=True)
class SearchResult:
    """A search over steps, and the best of as many whole completions as cost about the same to write."""

    scorer: str
    aggregate: str
    beams: int
    branches: int
    search: CostedValue
    best_of_n: CostedValue


def choice_curves(pools: Sequence[Pool], scorers: Sequence[RerankerScores]) -> tuple[ChoiceCurve, ...]:
    """Majority vote, best of n and weighted vote by each scorer, the ceiling; votes where any completion answers."""
    answers = any(answer is not None for pool in pools for answer in pool.answers)
    lines = []
    if answers:
        lines.append(_curve(MAJORITY, pools, lambda row, n: majority(pools[row].outcomes, pools[row].answers, n)))
    for scorer in scorers:
        lines.append(best_of_n_curve(pools, scorer))
        if answers:
            flat = iter(vote_weights([score for scores in scorer.scores for score in scores]))
            weights = [[next(flat) for _ in scores] for scores in scorer.scores]

            def vote(row: int, n: int, weights: list[list[float | None]] = weights) -> float:
                return weighted_vote(pools[row].outcomes, pools[row].answers, weights[row], n)

            lines.append(_curve(WEIGHTED, pools, vote, scorer))
    lines.append(_curve(CEILING, pools, lambda row, n: best_of(pools[row].outcomes, pools[row].outcomes, n)))
    return tuple(lines)


def best_of_n_curve(pools: Sequence[Pool], scores: RerankerScores, counts: Sequence[int] = ()) -> ChoiceCurve:
    """Best of n by one scorer, for n of `counts` or the usual ones."""

    def best(row: int, n: int) -> float:
        return best_of(pools[row].outcomes, scores.scores[row], n)

    return _curve(BEST, pools, best, scores, counts)


def _curve(
    way: str,
    pools: Sequence[Pool],
    value: Callable[[int, int], float],
    scores: RerankerScores | None = None,
    counts: Sequence[int] = (),
) -> ChoiceCurve:
    written, read = mean_tokens(pools)
    models = scores.models if scores else 0
    points = []
    for n in counts or sizes(len(pools[0].outcomes)):
        values = [value(row, n) for row in range(len(pools))]
        mean = estimate(values, len(pools[0].outcomes))
        points.append(CostedValue(n, mean.value, mean.low, mean.high, n * written, n * read * models))
    return ChoiceCurve(way, tuple(points), scores.scorer if scores else "", scores.aggregate if scores else "")


def mean_tokens(pools: Sequence[Pool]) -> tuple[float, float]:
    """Mean tokens of a completion, and of a prompt with its completion."""
    written = fmean(fmean(pool.written) for pool in pools)
    return written, fmean(fmean(pool.read) for pool in pools)


def search_result(
    pools: Sequence[Pool],
    scores: RerankerScores,
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
    mean = estimate(outcomes)
    search = CostedValue(1, mean.value, mean.low, mean.high, *tokens)
    return SearchResult(
        scores.scorer, scores.aggregate, *shape, search, best_of_n_curve(pools, scores, [n]).values_by_n[0]
    )
