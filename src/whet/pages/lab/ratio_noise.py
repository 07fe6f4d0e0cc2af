"""Noise of token and completion ratios as completions grow: the real ratios of random log-ratios."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES, PRESETS
from whet.pages.lab import experiment as lab
from whet.types import TokenBatch

LENGTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
COMPLETIONS = 160
SEED = 20


def ratio_names() -> list[str]:
    """The ratios to the policy before the updates that need no cut of the completion."""
    return [name for name, kind in AXES["ratio"].items() if not lab.asks(kind)]


@lru_cache(maxsize=4)
def _noise() -> Tensor:
    """Standard normal numbers, one per token, the same at every length and for every spread."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(COMPLETIONS, LENGTHS[-1], generator=generator, dtype=torch.float64)


def ratios(name: str, spread: float, drift: float, length: int) -> Tensor:
    """[COMPLETIONS, length]: the ratio on each token, log-ratios being independent normal numbers."""
    log_ratio = drift + spread * _noise()[:, :length]
    action = torch.ones(log_ratio.shape, dtype=torch.bool)
    empty = torch.zeros(COMPLETIONS, dtype=torch.float64)
    batch = TokenBatch(torch.zeros_like(action).long(), action, torch.arange(COMPLETIONS), empty)
    kind: Any = AXES["ratio"][name]
    return kind()(log_ratio, batch)


def _table(settings: lab.LabSettings) -> lab.LabTable:
    spread, drift, width = (lab.number(settings, name) for name in ("spread", "drift", "width"))
    clip: Any = AXES["clip"]["ppo_clip"]
    rule = clip(min(width, 1.0), width)
    bands, outside = [], []
    for tone, name in enumerate(ratio_names()):
        low, middle, high, cut = (list[float]() for _ in range(4))
        for length in LENGTHS:
            ratio = ratios(name, spread, drift, length)
            some = ratio if length == 1 else ratio[:, : min(length, 64)]
            quantiles = torch.quantile(some.reshape(-1), torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
            for series, value in zip((low, middle, high), quantiles.tolist(), strict=True):
                series.append(value)
            action, logp = torch.ones_like(ratio, dtype=torch.bool), torch.zeros_like(ratio)
            sides = [rule(ratio, torch.full_like(ratio, side), action, logp) for side in (1.0, -1.0)]
            cut.append(float(sum((weight == 0).double().mean() for weight in sides) / 2))
        bands.append(lab.line(name, LENGTHS, middle, tone, band=(low, high)))
        outside.append(lab.line(name, LENGTHS, cut, tone, marked=True))
    spans = lab.chart_spec("tokens of a completion", "ratio", bands, x_log=True, y_log=True, height=300)
    shares = lab.chart_spec(
        "tokens of a completion", "", outside, x_log=True, percent=True, y_range=(0, None), height=300
    )
    used = sorted(
        {
            (preset.objective.ratio.name, f"{preset.objective.clip.low:g} / {preset.objective.clip.high:g}")  # type: ignore[attr-defined]
            for preset in PRESETS.values()
            if preset.objective.clip.name == rule.name and preset.objective.ratio.name in ratio_names()
        }
    )
    facts = tuple(
        (f"edges that presets give {name}", ", ".join(edges for ratio, edges in used if ratio == name) or "none")
        for name in ratio_names()
    )
    return lab.LabTable(
        (
            lab.LabChart("The ratio, from its 5th to its 95th percentile", spans, f"of {COMPLETIONS} completions"),
            lab.LabChart("Share of tokens that the clip cuts off", shares, "half of them good, half bad"),
        ),
        facts,
        f"log r_t = {drift:g} + {spread:g} * normal, independent from token to token",
    )


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "noise",
        "Noise of the ratios",
        "Which ratio can be trusted as completions grow?",
        "A token's ratio is as noisy in a long completion as in a short one. The geometric mean over the completion "
        "calms down with the square root of its length, which is why its clip edges are a thousand times narrower: set "
        "the width to 0.0004. The product of all ratios explodes or vanishes; whet caps its logarithm at 10. A drift "
        "of 0.01 a token is invisible token by token and plain in the sequence ratio.",
        (("Zheng et al. 2025, eq. 7", "2507.18071"), ("Schulman et al. 2017, section 3", "1707.06347")),
        (
            lab.Slider("spread", "noise of a token's log-ratio", (0.003, 0.01, 0.03, 0.1, 0.3), 0.1, log=True),
            lab.Slider("drift", "drift of every log-ratio", (-0.01, -0.003, 0, 0.003, 0.01), 0),
            lab.Slider("width", "half width of the clip", (0.0004, 0.002, 0.01, 0.05, 0.2, 0.4), 0.2, log=True),
        ),
        _table,
    )
