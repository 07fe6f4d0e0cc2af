"""Choosing one of n completions: what each way of choosing is expected to score, from a pool of m per prompt.

All are means over every subset of n of the m completions, so that a curve over n needs one pool and no resampling.
Completions that a rule cannot tell apart share its choice evenly. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import comb, exp, inf

import numpy as np

MOST_SUBSETS = 20_000  # looked at one by one; above it a weighted vote draws some of them
DRAWN_SUBSETS = 4_096
TIE = 1e-9  # relative: sums of the same weights in another order


def sizes(pool: int) -> list[int]:
    """1, 2, 4, ... and the pool itself."""
    powers = [2**power for power in range(pool.bit_length()) if 2**power <= pool]
    return sorted({*powers, pool})


def best_of(outcomes: Sequence[float], scores: Sequence[float | None], n: int) -> float:
    """E[outcome of the best scored of n] = SUM_s (C(#<=s, n) - C(#<s, n)) / C(m, n) * mean outcome of score s.

    Without ties the completion of rank j, worst first, has weight C(j - 1, n - 1) / C(m, n). A score of None is
    below all others. With the outcomes as scores this is pass@n, the most that any choice can reach.
    """
    _check(outcomes, scores, n)
    levels: dict[float, list[float]] = {}
    for outcome, score in zip(outcomes, scores, strict=True):
        levels.setdefault(-inf if score is None else score, []).append(outcome)
    total, below = 0.0, 0
    for _, level in sorted(levels.items()):
        ways = comb(below + len(level), n) - comb(below, n)
        total += ways / comb(len(outcomes), n) * (sum(level) / len(level))
        below += len(level)
    return total


def majority(outcomes: Sequence[float], answers: Sequence[str | None], n: int) -> float:
    """E[outcome of the most frequent answer among n]; a completion without an answer has no vote, and no vote scores 0.

    The ways in which an answer has k votes and t others have as many, the rest fewer, are a coefficient of
    PROD_b (SUM_{j < k} C(c_b, j) x^j + C(c_b, k) x^k y); each of the t + 1 leaders is chosen equally often.
    """
    _check(outcomes, answers, n)
    counts = Counter(answer for answer in answers if answer is not None)
    silent = len(answers) - sum(counts.values())
    expected = 0.0
    for answer, worth in _worth(outcomes, answers).items():
        if worth == 0.0:
            continue
        others = [count for other, count in counts.items() if other != answer]
        wins = 0.0
        for votes in range(1, min(counts[answer], n) + 1):
            ways = _ways_below(others, silent, votes, n - votes)
            shared = sum(number / (ties + 1) for ties, number in enumerate(ways))
            wins += comb(counts[answer], votes) * shared
        expected += worth * wins / comb(len(outcomes), n)
    return expected


def _ways_below(others: Sequence[int], silent: int, votes: int, rest: int) -> list[int]:
    """How many ways to choose `rest` completions so that no answer of `others` has more than `votes`, by how many have
    exactly as many."""
    # table[t][r]: ways to have chosen r completions with t answers at `votes`
    table = [[comb(silent, chosen) for chosen in range(rest + 1)]]
    for count in others:
        after = [[0] * (rest + 1) for _ in range(len(table) + 1)]
        for ties, row in enumerate(table):
            for chosen, ways in enumerate(row):
                if ways:
                    for more in range(min(votes, count, rest - chosen) + 1):
                        after[ties + (more == votes)][chosen + more] += ways * comb(count, more)
        table = after
    return [row[rest] for row in table]


def weighted_vote(
    outcomes: Sequence[float], answers: Sequence[str | None], weights: Sequence[float | None], n: int, seed: int = 0
) -> float:
    """E[outcome of argmax_a SUM_i [a_i = a] weight_i] among n. Math-Shepherd, Wang 2024 (2312.08935).

    Exact while there are at most 20,000 subsets, as for n of 16; above that the mean over 4,096 drawn ones, which is
    unbiased too. A weight of None is 0.
    """
    _check(outcomes, answers, n)
    worth = _worth(outcomes, answers)
    if not worth:
        return 0.0
    options = list(worth)
    ballots = np.zeros((len(answers), len(options)))
    present = np.zeros_like(ballots)
    for row, (answer, weight) in enumerate(zip(answers, weights, strict=True)):
        if answer is not None:
            ballots[row, options.index(answer)] = weight or 0.0
            present[row, options.index(answer)] = 1.0
    members = _subsets(len(answers), n, seed)
    totals = np.where(members @ present > 0, members @ ballots, -inf)
    top = totals.max(-1, keepdims=True)
    voted = np.isfinite(top[:, 0])
    leaders = totals[voted] >= top[voted] - TIE * np.abs(top[voted])
    chosen = leaders @ np.array([worth[answer] for answer in options]) / leaders.sum(-1)
    return float(chosen.sum() / len(members))


@lru_cache(maxsize=16)
def _subsets(pool: int, n: int, seed: int) -> np.ndarray:
    """Which completions are in each subset: [subsets, pool] of 0 and 1."""
    if comb(pool, n) <= MOST_SUBSETS:
        chosen = np.array(list(combinations(range(pool), n)))
    else:
        stream = np.random.default_rng(seed)
        chosen = stream.random((DRAWN_SUBSETS, pool)).argsort(-1)[:, :n]
    members = np.zeros((len(chosen), pool))
    np.put_along_axis(members, chosen, 1.0, -1)
    members.setflags(write=False)
    return members


def _worth(outcomes: Sequence[float], answers: Sequence[str | None]) -> dict[str, float]:
    """The mean outcome of the completions that give each answer: completions of one answer are chosen equally often."""
    outcomes_by_answer: dict[str, list[float]] = {}
    for outcome, answer in zip(outcomes, answers, strict=True):
        if answer is not None:
            outcomes_by_answer.setdefault(answer, []).append(outcome)
    return {answer: sum(values) / len(values) for answer, values in outcomes_by_answer.items()}


def _check(outcomes: Sequence[float], others: Sequence[object], n: int) -> None:
    if not 1 <= n <= len(outcomes) or len(others) != len(outcomes):
        raise ValueError(f"{n} of {len(outcomes)} outcomes with {len(others)} scores or answers")


def vote_weights(scores: Sequence[float | None]) -> list[float | None]:
    """What a score counts in a vote: itself where all are shares in [0, 1], else sigma(score), so that none counts
    against its own answer."""
    known = [score for score in scores if score is not None]
    if all(0 <= score <= 1 for score in known):
        return list(scores)
    return [None if score is None else 1 / (1 + exp(-max(-700.0, score))) for score in scores]
