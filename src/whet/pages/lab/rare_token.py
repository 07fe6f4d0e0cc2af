"""How a higher upper edge lifts a rare token over steps: real updates of a small softmax through the real loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.objective import AXES, Objective, step_totals
from whet.objective.clip import ClipRule
from whet.pages.clip_plots import remembered
from whet.pages.lab import experiment as lab
from whet.types import TokenBatch

TOKENS = 8  # of the vocabulary: one rare, seven common
STEPS = 24
LOW = 0.2


@dataclass(frozen=True)
class Lift:
    """What a run did to the rare token."""

    probability: tuple[float, ...]  # before each step, and after the last
    entropy: tuple[float, ...]
    ratio: tuple[float, ...]  # after each update of the first step


@remembered
def lifted(clip: ClipRule, start: float, updates: int, rate: float, steps: int = STEPS) -> Lift:
    """Train the softmax on groups in which the rare token, which is right, occurs once, and so does each common one.

    What a real run would add is the luck of drawing the rare token at all.
    """
    usual: dict[str, Any] = {axis: AXES[axis][name]() for axis, name in _COMPONENTS.items()}
    objective = Objective("lab", clip=clip, **usual)
    rest = math.log((1 - start) / (TOKENS - 1))
    logits = torch.tensor([math.log(start)] + [rest] * (TOKENS - 1), dtype=torch.float64, requires_grad=True)
    action = torch.ones(TOKENS, 1, dtype=torch.bool)
    reward = torch.zeros(TOKENS, dtype=torch.float64)
    reward[0] = 1.0
    batch = TokenBatch(torch.arange(TOKENS)[:, None], action, torch.zeros(TOKENS, dtype=torch.long), reward)
    batch, _ = objective.advantage(batch, {})
    totals = step_totals(batch, 1)
    probability, entropy, ratio = [], [], []
    for step in range(steps):
        old = _logp(logits).detach()
        probability.append(float(old[0].exp()))
        entropy.append(float(-(old.exp() * old).sum()))
        updated = TokenBatch(**{**vars(batch), "old_logp": old[:, None]})
        for _ in range(updates):
            value = objective.loss(updated, _logp(logits)[:, None], totals).value
            (gradient,) = torch.autograd.grad(value, logits)
            logits = (logits - rate * gradient).detach().requires_grad_()
            if step == 0:
                ratio.append(float((_logp(logits).detach()[0] - old[0]).exp()))
    last = _logp(logits).detach()
    probability.append(float(last[0].exp()))
    entropy.append(float(-(last.exp() * last).sum()))
    return Lift(tuple(probability), tuple(entropy), tuple(ratio))


_COMPONENTS = {
    "baseline": "group_mean",
    "scale": "group_std",
    "ratio": "token",
    "aggregate": "token_mean",
    "kl": "none",
}


def _logp(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1)


def _table(settings: lab.LabSettings) -> lab.LabTable:
    high, start = lab.number(settings, "high"), lab.number(settings, "start")
    updates, rate = int(lab.number(settings, "updates")), lab.number(settings, "rate")
    clip: Any = AXES["clip"]["ppo_clip"]
    rules: dict[str, ClipRule] = {
        f"high {high:g}": clip(LOW, high),
        f"high {LOW:g}, as low": clip(LOW, LOW),
        "no edge": AXES["clip"]["unclipped"](),
    }
    runs = {name: lifted(rule, start, updates, rate) for name, rule in rules.items()}
    steps, counts = list(range(STEPS + 1)), list(range(1, updates + 1))

    def curves(field: str, x: list[int]) -> list[dict[str, Any]]:
        return [
            lab.line(name, x, getattr(run, field), tone, dashed=tone == 2)
            for tone, (name, run) in enumerate(runs.items())
        ]

    probability = lab.chart_spec("step", "probability", curves("probability", steps), y_log=True, steps=True)
    edges = [{"y": 1 + high, "label": "upper edge"}]
    ratio = lab.chart_spec("update of the first step", "ratio", curves("ratio", counts), steps=True, lines=edges)
    entropy = lab.chart_spec("step", "nats", curves("entropy", steps), steps=True)
    facts = [(f"steps until it is likelier than not, {name}", _until(run.probability)) for name, run in runs.items()]
    return lab.LabTable(
        (
            lab.LabChart("Probability of the rare token", probability, "the scale is logarithmic"),
            lab.LabChart("Its ratio within one batch", ratio),
            lab.LabChart("Entropy of the policy", entropy),
        ),
        tuple(facts),
        f"weight = r [not (A > 0 and r > 1 + high)] [not (A < 0 and r < {1 - LOW:g})]",
    )


def _until(probability: tuple[float, ...]) -> str:
    crossing = next((step for step, chance in enumerate(probability) if chance > 0.5), None)
    return f"more than {STEPS}" if crossing is None else str(crossing)


def experiment() -> lab.Experiment:
    """What the lab shows of it."""
    return lab.Experiment(
        "rare",
        "A rare token and the upper edge",
        "Why raise the upper edge of the clip and not the lower?",
        "A token of probability p may rise to (1 + high) p before its gradient stops: from 0.01 that is hardly a step, "
        "from 0.9 it is no limit at all. With high 0.28 instead of 0.2 the rare token takes off steps earlier, and the "
        "entropy rises while it gains. With one update per step the ratio is always 1 and no edge matters; a large "
        "learning rate jumps over any edge within one update.",
        (("Yu et al. 2025, section 3.1", "2503.14476"), ("Schulman et al. 2017, eq. 7", "1707.06347")),
        (
            lab.Slider("high", "upper edge, high", (0.1, 0.2, 0.24, 0.28, 0.35, 0.5, 1.0), 0.28, reach=(0.0, 2.0)),
            lab.Slider("start", "probability at the start", (0.001, 0.003, 0.01, 0.03, 0.1), 0.01, log=True),
            lab.Slider("updates", "updates per step", (1, 2, 4, 6), 6, whole=True),
            lab.Slider("rate", "learning rate", (0.05, 0.1, 0.2, 0.5), 0.2, log=True),
        ),
        _table,
        plays=True,
    )
