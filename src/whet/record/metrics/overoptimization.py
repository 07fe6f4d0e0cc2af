"""What becomes of the true score while a learned one is optimised: the points, the laws and their fit. Pure.

Distances are d = sqrt(KL) of the optimised policy from the start, KL in nats per completion. Scores are in standard
deviations of the start's completions, around their mean: the start is at 0.
Gao et al. 2022 (2210.10760).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from whet.record.metrics.selection import best_of

Kind = Literal["best_of_n", "rl"]
LAWS: dict[Kind, str] = {"best_of_n": "R = d (alpha - beta d)", "rl": "R = d (alpha - beta log d)"}
FITTING = 0.8  # R^2 from which a law is said to fit


@dataclass(frozen=True)
class ScorePoint:
    """The scores of proxy and gold reward at one evaluation."""

    d: float  # sqrt of the KL to the start
    gold: float
    proxy: float


@dataclass(frozen=True)
class ProxyCurve:
    """What optimising one proxy did: the points of one seed, from the start on."""

    name: str  # "256 pairs", "beta 0.1", "worst of 4"
    kind: Kind
    group: str  # the panel: "best_of_n", "rl", "kl", "ensemble"
    seed: int
    points: tuple[ScorePoint, ...]


@dataclass(frozen=True)
class Law:
    """A fitted law; `peak` is None where it does not turn down."""

    kind: Kind
    alpha: float
    beta: float
    r_squared: float  # on the points it was fitted to
    num_points: int
    reach: float  # the largest d it was fitted to
    nearest: float = 0.0  # the smallest

    def __call__(self, d: float) -> float:
        return d * (self.alpha - self.beta * _bend(self.kind, d)) if d > 0 else 0.0

    @property
    def peak(self) -> float | None:
        """alpha / (2 beta), or exp(alpha / beta - 1): where the law is highest."""
        if self.beta <= 0 or (self.kind == "best_of_n" and self.alpha <= 0):
            return None
        exponent = self.alpha / self.beta - 1
        return self.alpha / (2 * self.beta) if self.kind == "best_of_n" else math.exp(min(exponent, 50.0))

    @property
    def fits(self) -> bool:
        """Whether the law explains the points well enough to be drawn."""
        return self.r_squared >= FITTING


@dataclass(frozen=True)
class ProxyResult:
    """All seeds of one proxy reward together."""

    name: str
    kind: Kind
    group: str
    mean: tuple[ScorePoint, ...]  # over the seeds, evaluation by evaluation
    curves: tuple[ProxyCurve, ...]
    law: Law | None  # None: too few points beyond the least distance
    peak: ScorePoint  # of the mean curve, measured
    end: ScorePoint

    @property
    def lost(self) -> float:
        """How far the true score is below its peak in the end."""
        return self.peak.gold - self.end.gold


def best_of_n_kl(n: int) -> float:
    """KL(best of n, start) = log n - (n - 1) / n. Exact for scores without ties, else the most it can be."""
    return math.log(n) - (n - 1) / n


def best_of_points(
    gold: Sequence[Sequence[float]], proxy: Sequence[Sequence[float]], sizes: Sequence[int]
) -> tuple[ScorePoint, ...]:
    """The best of n by the proxy, for each n: means over prompts, each over every subset of its pool."""
    points = []
    for n in sizes:
        chosen = [best_of(true, proxy_scores, n) for true, proxy_scores in zip(gold, proxy, strict=True)]
        claimed = [best_of(proxy_scores, proxy_scores, n) for proxy_scores in proxy]
        points.append(ScorePoint(math.sqrt(best_of_n_kl(n)), fmean(chosen), fmean(claimed)))
    return tuple(points)


def from_start(points: Sequence[ScorePoint]) -> tuple[ScorePoint, ...]:
    """The same points with both scores counted from the first: other questions, another mean."""
    first = points[0]
    return tuple(ScorePoint(point.d, point.gold - first.gold, point.proxy - first.proxy) for point in points)


def binned(rows: Sequence[Mapping[str, float]], width: int) -> tuple[ScorePoint, ...]:
    """Means of `width` rows of {kl, gold, proxy} after one another; a remainder of less than half joins the last."""
    edges = list(range(0, len(rows), width))
    if len(edges) > 1 and len(rows) - edges[-1] < width / 2:
        edges.pop()
    stretches = [rows[start:stop] for start, stop in zip(edges, [*edges[1:], len(rows)], strict=True)]
    return tuple(
        ScorePoint(math.sqrt(max(0.0, _mean(part, "kl"))), _mean(part, "gold"), _mean(part, "proxy"))
        for part in stretches
    )


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    return fmean(row[name] for row in rows)


def _bend(kind: Kind, d: float) -> float:
    return d if kind == "best_of_n" else math.log(d)


def fitted_law(points: Sequence[ScorePoint], kind: Kind, least: float) -> Law | None:
    """alpha and beta by least squares on the points with d > `least`; None for fewer than three, or all at one d.

    Near the start the law is poor: its slope for learning grows without bound as d goes to 0.
    """
    used = [point for point in points if point.d > max(least, 0.0)]
    if len(used) < 3:
        return None
    first = [point.d for point in used]
    second = [-point.d * _bend(kind, point.d) for point in used]
    gold = [point.gold for point in used]
    aa, ab, bb = _product(first, first), _product(first, second), _product(second, second)
    ag, bg = _product(first, gold), _product(second, gold)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        return None
    alpha, beta = (ag * bb - bg * ab) / determinant, (bg * aa - ag * ab) / determinant
    law = Law(kind, alpha, beta, 0.0, len(used), max(first), min(first))
    middle = fmean(gold)
    spread = sum((score - middle) ** 2 for score in gold)
    missed = sum((law(point.d) - point.gold) ** 2 for point in used)
    return replace(law, r_squared=1 - missed / spread if spread > 0 else 0.0)


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def mean_curve(curves: Sequence[ProxyCurve]) -> tuple[ScorePoint, ...]:
    """The mean over the curves, evaluation by evaluation, as far as all of them go."""
    return tuple(
        ScorePoint(*(fmean(getattr(point, part) for point in points) for part in ("d", "gold", "proxy")))
        for points in zip(*(curve.points for curve in curves), strict=False)
    )


def proxy_results(curves: Sequence[ProxyCurve], least: Mapping[Kind, float]) -> list[ProxyResult]:
    """One per name and group, in the order in which they come; each kind's law is fitted beyond its least distance."""
    together: dict[tuple[str, str], list[ProxyCurve]] = {}
    for curve in curves:
        together.setdefault((curve.group, curve.name), []).append(curve)
    results = []
    for (group, name), mine in together.items():
        kind = mine[0].kind
        mean = mean_curve(mine)
        law = fitted_law([point for curve in mine for point in curve.points], kind, least[kind])
        peak = max(mean, key=lambda point: point.gold)
        results.append(
            ProxyResult(
                name=name, kind=kind, group=group, mean=mean, curves=tuple(mine), law=law, peak=peak, end=mean[-1]
            )
        )
    return results
