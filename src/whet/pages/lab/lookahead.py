"""GAE against lambda: bias and variance on a chain whose true values are known, and the trace of one episode."""

from __future__ import annotations

import random
from functools import lru_cache
from itertools import product
from math import comb
from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES
from whet.pages.lab import experiment as lab
from whet.types import TokenBatch

TOKENS = 10
WANTED = 6  # good tokens of TOKENS earn the reward; a token is good or bad with equal chance
SEED = 7
LAMBDAS = lab.evenly(0.0, 1.0, 21)
CRITICS = 8
SHOWN = "1101001101"  # the tokens of the episode whose trace is drawn, 1 is good


@lru_cache(maxsize=1)
def true_values() -> Tensor:
    """[TOKENS + 1, TOKENS + 1]: the chance of the reward with k good tokens among the first t, at [t, k]."""
    chances = [
        [
            sum(comb(TOKENS - t, more) for more in range(max(0, WANTED - k), TOKENS - t + 1)) / 2 ** (TOKENS - t)
            for k in range(TOKENS + 1)
        ]
        for t in range(TOKENS + 1)
    ]
    return torch.tensor(chances, dtype=torch.float64)


@lru_cache(maxsize=1)
def _misjudged() -> Tensor:
    """[CRITICS, ...]: how wrong each of several critics is about each state, in units of its error."""
    draw = random.Random(SEED)
    mistakes = [[[draw.gauss(0, 1) for _ in range(TOKENS + 1)] for _ in range(TOKENS + 1)] for _ in range(CRITICS)]
    return torch.tensor(mistakes, dtype=torch.float64)


def all_tokens() -> Tensor:
    """Every possible episode, all equally likely; the first half begins with a good token."""
    return torch.tensor(list(product((1, 0), repeat=TOKENS)))


def episodes(error: float, tokens: Tensor, critic: int = 0) -> TokenBatch:
    """Episodes with what a critic said before each token: the truth, and a mistake about each state."""
    before = tokens.cumsum(1) - tokens
    earned = (tokens.sum(1) >= WANTED).double()
    value = (true_values() + error * _misjudged()[critic])[torch.arange(TOKENS), before]
    action = torch.ones(tokens.shape, dtype=torch.bool)
    return TokenBatch(tokens, action, torch.arange(len(tokens)), earned, value=value)


def estimates(batch: TokenBatch, lam: float, gamma: float) -> Tensor:
    """[N, TOKENS]: the advantage of each token."""
    kind: Any = AXES["baseline"]["gae"]
    return kind(gamma=gamma, lam=lam).centred(batch, {})


def bias_and_scatter(batch: TokenBatch, lam: float, gamma: float) -> tuple[float, float]:
    """How wrong, for the first token, the advantage of a good choice over a bad one is on average, and how much an
    advantage scatters around its mean.

    The truth is what the choice adds to the chance of the reward. What both choices share moves no gradient.
    """
    good, bad = estimates(batch, lam, gamma)[:, 0].chunk(2)
    truth = true_values()[1, 1] - true_values()[1, 0]
    scatter = ((good.var(correction=0) + bad.var(correction=0)) / 2).sqrt()
    return float((good.mean() - bad.mean() - truth).abs()), float(scatter)


@lru_cache(maxsize=256)
def by_lambda(error: float, gamma: float) -> tuple[tuple[float, float], ...]:
    """Bias and scatter at each of LAMBDAS: root mean squares over the critics."""
    batches = [episodes(error, all_tokens(), critic) for critic in range(CRITICS if error else 1)]
    measures = []
    for lam in LAMBDAS:
        errors = torch.tensor([bias_and_scatter(batch, lam, gamma) for batch in batches], dtype=torch.float64)
        bias, scatter = errors.square().mean(0).sqrt().tolist()
        measures.append((bias, scatter))
    return tuple(measures)


def _table(settings: lab.LabSettings) -> lab.LabTable:
    lam, gamma, error = (lab.number(settings, name) for name in ("lam", "gamma", "error"))
    drawn = lab.number(settings, "episodes")
    measures = by_lambda(error, gamma)
    bias, scatter = [point for point, _ in measures], [point / drawn**0.5 for _, point in measures]
    total = [(b**2 + s**2) ** 0.5 for b, s in zip(bias, scatter, strict=True)]
    series = [
        lab.line("bias", LAMBDAS, bias, 1),
        lab.line("scatter of the mean", LAMBDAS, scatter, 2),
        lab.line("both", LAMBDAS, total, 0),
    ]
    tokens = torch.tensor([[int(token) for token in SHOWN]])
    batch = episodes(error, tokens)
    places = list(range(1, TOKENS + 1))
    ends = [(lam, 0), (0.0, 1), (1.0, 2)]
    traces = [
        lab.line(
            f"lambda {end:g}",
            places,
            estimates(batch, end, gamma)[0].tolist(),
            tone,
            dashed=tone > 0,
            marked=not tone,
        )
        for end, tone in ends
    ]
    critic_value, truth = (
        played.value[0].tolist() for played in (batch, episodes(0.0, tokens)) if played.value is not None
    )
    critic = [lab.line("the critic", places, critic_value, 3), lab.line("the truth", places, truth, 7, dashed=True)]
    best = min(zip(total, LAMBDAS, strict=True))[1]
    return lab.LabTable(
        (
            lab.LabChart(
                "Error of the first token's advantage",
                lab.chart_spec(
                    "lambda", "", series, y_range=(0, None), lines=[{"x": lam, "label": "lambda", "rests": True}]
                ),
                f"all {2**TOKENS} episodes of {TOKENS} tokens, {CRITICS} critics",
            ),
            lab.LabChart(
                "One episode: advantages", lab.chart_spec("token", "advantage", traces, steps=True), f"it wins: {SHOWN}"
            ),
            lab.LabChart("One episode: values", lab.chart_spec("token", "chance to win", critic, steps=True)),
        ),
        (("smallest error of both at lambda", f"{best:g}"),),
        AXES["baseline"]["gae"](gamma=gamma, lam=lam).symbols(),
    )


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "gae",
        "GAE",
        "How far ahead should an advantage look?",
        "At lambda 1 the advantage is the return less the value: right on average whatever the critic says, and noisy. "
        "At lambda 0 it is one step of the critic: quiet, and as wrong as the critic. Turn the critic's error down to "
        "0 and lambda 0 wins; turn it up, or average more episodes, and the best lambda moves to 1. A gamma below 1 "
        "forgets an early token's merit.",
        (("Schulman et al. 2015, eq. 16", "1506.02438"), ("Yue et al. 2025", "2504.05118")),
        (
            lab.Slider("lam", "lambda", tuple(lab.evenly(0.0, 1.0, 11)), 0.9),
            lab.Slider("gamma", "gamma", (0.8, 0.9, 0.95, 0.99, 1.0), 1.0),
            lab.Slider("error", "error of the critic", (0.0, 0.03, 0.1, 0.2, 0.4), 0.2),
            lab.Slider("episodes", "episodes averaged", (1, 8, 64, 512), 64, whole=True, log=True),
        ),
        _table,
    )
