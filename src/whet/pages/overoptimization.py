"""Overoptimization as text and JSON: a table, a sentence for each proxy, and the fitted laws. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whet.record.metrics.overoptimization import LAWS, Law, ProxyResult, ScorePoint
from whet.record.text import ABSENT, number

FALLEN = 0.1  # standard deviations below the peak from which a score is said to have fallen
HEADS = ("", "peak d", "gold there", "end d", "gold there", "proxy there", "alpha", "beta", "R^2", "law's peak d")


def cells(result: ProxyResult) -> list[str]:
    """One row of the table."""
    law = result.law
    fitted = [ABSENT] * 4 if law is None else [number(law.alpha), number(law.beta), number(law.r_squared), _turn(law)]
    measured = (result.peak.d, result.peak.gold, result.end.d, result.end.gold, result.end.proxy)
    return [result.name, *map(number, measured), *fitted]


def _turn(law: Law) -> str:
    if not law.fits:
        return "does not fit"
    if law.peak is None:
        return "none"
    if law.peak < law.nearest:
        return f"before {number(law.nearest)}"
    return number(law.peak) if law.peak <= law.reach else f"beyond {number(law.reach)}"


def sentence(result: ProxyResult) -> str:
    """What happened to the true score, in words."""
    peak, end = result.peak, result.end
    if result.lost < FALLEN:
        words = f"gold rose to {number(end.gold)} and did not fall" if end.gold >= FALLEN else "gold did not rise"
    elif peak.gold < FALLEN:
        words = f"gold only fell, to {number(end.gold)}"
    else:
        words = f"gold rose to {number(peak.gold)} at d = {number(peak.d)}, then fell to {number(end.gold)}"
    return f"{result.name}: {words}, while the proxy went to {number(end.proxy)}"


def table_text(results: Sequence[ProxyResult]) -> str:
    """The results of one group as an aligned table."""
    rows = [list(HEADS), *map(cells, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    lines = [
        "  ".join(text.ljust(width) if not column else text.rjust(width) for column, (text, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def result_values(result: ProxyResult) -> dict[str, Any]:
    """A result as JSON."""

    def listed(points: Sequence[ScorePoint]) -> list[dict[str, float]]:
        return [{"d": point.d, "gold": point.gold, "proxy": point.proxy} for point in points]

    law = result.law
    fitted = None
    if law is not None:
        fitted = {
            "law": LAWS[law.kind],
            "alpha": law.alpha,
            "beta": law.beta,
            "r_squared": law.r_squared,
            "fits": law.fits,
            "peak": law.peak,
            "points": law.num_points,
        }
    return {
        "name": result.name,
        "group": result.group,
        "peak": listed([result.peak])[0],
        "end": listed([result.end])[0],
        "fit": fitted,
        "mean": listed(result.mean),
        "seeds": {str(curve.seed): listed(curve.points) for curve in result.curves},
    }
