"""The laws of over-optimisation, their fit, and what is told of them."""

from __future__ import annotations

import math
import random
import re
from itertools import combinations
from statistics import fmean

import pytest

from tests.support.for_every import for_every
from whet.pages.overoptimization import cells, figure_svg, result_values, sentence
from whet.record.metrics.overoptimization import (
    Kind,
    Law,
    ProxyCurve,
    ScorePoint,
    best_of_n_kl,
    best_of_points,
    binned,
    fitted_law,
    from_start,
    proxy_results,
)

LEAST: dict[Kind, float] = {"best_of_n": 0.0, "rl": 0.0}


def on_law(kind: Kind, alpha: float, beta: float, distances: list[float]) -> list[ScorePoint]:
    law = Law(kind, alpha, beta, 1.0, len(distances), max(distances))
    return [ScorePoint(d, law(d), d) for d in distances]


def course(points: list[ScorePoint], name: str = "64 pairs", group: str = "rl", seed: int = 0) -> ProxyCurve:
    return ProxyCurve(name, "best_of_n" if group.startswith("best") else "rl", group, seed, tuple(points))


def test_laws_by_hand() -> None:
    assert Law("best_of_n", 2.0, 0.5, 1.0, 3, 3.0)(3.0) == pytest.approx(3 * (2 - 0.5 * 3))
    assert Law("rl", 2.0, 0.5, 1.0, 3, 3.0)(3.0) == pytest.approx(3 * (2 - 0.5 * math.log(3)))


@for_every(["best_of_n", "rl"], [(1.0, 0.3), (0.2, 0.9), (0.7, -0.1), (-0.5, 0.4)])
def test_fit_recovers_what_points_were_made_of(kind: Kind, alpha: float, beta: float) -> None:
    law = fitted_law(on_law(kind, alpha, beta, [0.5, 1.0, 2.0, 3.5, 6.0]), kind, 0.0)
    assert law is not None
    assert (law.alpha, law.beta) == pytest.approx((alpha, beta), abs=1e-9)
    assert law.r_squared == pytest.approx(1.0)


def test_fit_leaves_out_the_neighbourhood_of_the_start() -> None:
    points = on_law("rl", 1.0, 0.3, [1.0, 2.0, 3.0, 4.0])
    law = fitted_law([ScorePoint(0.1, 50.0, 0.0), *points], "rl", 0.5)
    assert law is not None
    assert law.alpha == pytest.approx(1.0)
    assert law.num_points == 4


def test_fit_is_the_least_square() -> None:
    stream = random.Random(3)
    points = [ScorePoint(d, stream.gauss(0.5, 1.0), 0.0) for d in (0.7, 1.1, 1.9, 2.4, 3.0, 4.1)]
    law = fitted_law(points, "rl", 0.0)
    assert law is not None

    def missed(alpha: float, beta: float) -> float:
        other = Law("rl", alpha, beta, 0.0, 0, 9.0)
        return sum((other(point.d) - point.gold) ** 2 for point in points)

    best = missed(law.alpha, law.beta)
    spread = sum((point.gold - fmean(each.gold for each in points)) ** 2 for point in points)
    assert law.r_squared == pytest.approx(1 - best / spread)
    for alpha, beta in ((0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01)):
        assert missed(law.alpha + alpha, law.beta + beta) > best


def test_no_fit_from_too_little() -> None:
    assert fitted_law(on_law("rl", 1.0, 0.3, [1.0, 2.0]), "rl", 0.0) is None
    assert fitted_law([ScorePoint(2.0, each, 0.0) for each in (0.1, 0.2, 0.3)], "rl", 0.0) is None


@pytest.mark.parametrize("kind", ["best_of_n", "rl"])
def test_peak_is_where_the_law_is_highest(kind: Kind) -> None:
    law = Law(kind, 1.0, 0.4, 1.0, 5, 9.0)
    assert law.peak is not None
    assert law(law.peak) > max(law(0.98 * law.peak), law(1.02 * law.peak))


def test_a_law_that_does_not_turn_down_has_no_peak() -> None:
    assert Law("rl", 1.0, -0.1, 1.0, 5, 9.0).peak is None
    assert Law("best_of_n", -1.0, 0.1, 1.0, 5, 9.0).peak is None


def test_distance_of_best_of_n() -> None:
    assert best_of_n_kl(1) == 0.0
    assert best_of_n_kl(4) == pytest.approx(math.log(4) - 0.75)


def test_best_of_points_against_every_subset() -> None:
    stream = random.Random(1)
    gold = [[stream.gauss(0, 1) for _ in range(6)] for _ in range(3)]
    proxy = [[round(stream.gauss(0, 1), 0) for _ in range(6)] for _ in range(3)]  # with ties
    found = best_of_points(gold, proxy, [1, 2, 4, 6])
    for point, n in zip(found, [1, 2, 4, 6], strict=True):
        true, claimed = [], []
        for mine, said in zip(gold, proxy, strict=True):
            chosen = []
            for rows in combinations(range(6), n):
                top = max(said[row] for row in rows)
                chosen.append((fmean(mine[row] for row in rows if said[row] == top), top))
            true.append(fmean(each for each, _ in chosen))
            claimed.append(fmean(each for _, each in chosen))
        assert point.gold == pytest.approx(fmean(true))
        assert point.proxy == pytest.approx(fmean(claimed))
        assert point.d == pytest.approx(math.sqrt(best_of_n_kl(n)))


def test_counted_from_the_start() -> None:
    found = from_start([ScorePoint(0.0, 0.5, -1.0), ScorePoint(1.0, 0.7, 2.0)])
    assert found[0] == ScorePoint(0.0, 0.0, 0.0)
    assert (found[1].gold, found[1].proxy) == pytest.approx((0.2, 3.0))


def test_steps_become_points() -> None:
    rows = [{"kl": float(step), "gold": 2.0 * step, "proxy": 3.0 * step} for step in range(9)]
    found = binned(rows, 4)
    assert [point.gold for point in found] == [3.0, 12.0]  # the ninth joins the second
    assert found[0].d == pytest.approx(math.sqrt(1.5))
    assert binned([{"kl": -0.1, "gold": 1.0, "proxy": 1.0}], 4)[0].d == 0.0


def test_seeds_are_told_together() -> None:
    one = [ScorePoint(0.5, 0.1, 0.2), ScorePoint(1.5, 0.9, 1.0), ScorePoint(3.0, -0.4, 2.0)]
    other = [ScorePoint(0.7, 0.3, 0.4), ScorePoint(1.7, 0.7, 1.2), ScorePoint(3.2, -0.6, 2.2)]
    (found,) = proxy_results([course(one, seed=0), course(other, seed=1)], LEAST)
    assert (found.peak.d, found.peak.gold) == pytest.approx((1.6, 0.8))
    assert (found.end.gold, found.end.proxy) == pytest.approx((-0.5, 2.1))
    assert found.law is not None and found.law.num_points == 6
    assert sentence(found) == (
        "64 pairs: gold rose to 0.800 at d = 1.60, then fell to -0.500, while the proxy went to 2.10"
    )
    assert list(result_values(found)["seeds"]) == ["0", "1"]


def test_sentences_say_what_was_seen() -> None:
    rising = [ScorePoint(1.0, 0.3, 0.3), ScorePoint(2.0, 0.6, 0.8)]
    falling = [ScorePoint(1.0, -0.1, 0.3), ScorePoint(2.0, -0.9, 0.8)]
    flat = [ScorePoint(1.0, 0.01, 0.3), ScorePoint(2.0, 0.0, 0.8)]
    courses = [course(points, str(place)) for place, points in enumerate((rising, falling, flat))]
    told = [sentence(each) for each in proxy_results(courses, LEAST)]
    assert "rose to 0.600 and did not fall" in told[0]
    assert "only fell, to -0.900" in told[1]
    assert "did not rise" in told[2]


def test_table_says_where_the_law_does_not_fit() -> None:
    jagged = [ScorePoint(d, gold, 0.0) for d, gold in ((1.0, 1.0), (2.0, -1.0), (3.0, 1.0), (4.0, -1.0), (5.0, 1.0))]
    good = on_law("rl", 1.5, 0.9, [1.0, 2.0, 3.0, 4.0])
    far = on_law("rl", 1.0, 0.2, [1.0, 2.0, 3.0, 4.0])
    near = on_law("rl", 0.1, 0.6, [1.0, 2.0, 3.0, 4.0])
    courses = [course(points, name) for points, name in ((jagged, "a"), (good, "b"), (far, "c"), (near, "d"))]
    lines = [cells(result) for result in proxy_results(courses, LEAST)]
    assert lines[0][0] == "learning, a" and lines[0][-1] == "does not fit"
    assert lines[1][-4:-1] == ["1.50", "0.900", "1.00"]
    assert float(lines[1][-1]) == pytest.approx(math.exp(1.5 / 0.9 - 1), rel=1e-2)
    assert (lines[2][-1], lines[3][-1]) == ("beyond 4.00", "before 1.00")


def test_the_figure_draws_every_course() -> None:
    points = on_law("rl", 1.0, 0.6, [0.5, 1.0, 2.0, 3.0, 4.0])
    shown = [("64 pairs", "best_of_n"), ("64 pairs", "rl"), ("KL penalty 0.1", "kl"), ("worst of 4", "ensemble")]
    found = proxy_results([course(points, name, group) for name, group in shown], LEAST)
    figure = figure_svg(found)
    for title in ("Best of n", "Learning", "Learning with a KL penalty", "Learning from an ensemble"):
        assert f">{title}</text>" in figure
    assert len(re.findall(r'class="line s0 dashed"', figure)) == 4  # the proxy of 64 pairs stands in every panel
    assert len(re.findall(r'class="line s1"', figure)) == len(re.findall(r'class="line s2"', figure)) == 2
