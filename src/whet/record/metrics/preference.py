"""What a preference run's metrics say together. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from whet.record.metrics.correlation import pearson_from_moments

MOMENTS = ("margin", "longer", "margin_square", "longer_square", "longer_margin")


def length_correlation(metrics: Mapping[str, float]) -> float | None:
    """The correlation of (n_w - n_l) with the margin over the pairs of a step; None without a spread."""
    if any(name not in metrics for name in MOMENTS):
        return None
    return pearson_from_moments(*(metrics[name] for name in MOMENTS))
