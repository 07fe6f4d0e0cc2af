"""Who turns the KL's coefficient? Controllers read the step's metrics and write the method's memory.

`kl_completion` is the mean of SUM_t log(pi/ref) over completions (k1, in nats), `kl_old` the mean over tokens of
(r - 1) - log r in the last update of the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from whet.objective.advantage import Memory
from whet.objective.component import Component, number


class Control(Component):
    """The rule that adjusts the KL's coefficient after a step, and may end a batch's updates or the run."""

    turns_beta: ClassVar[bool] = False

    def adjusted(self, memory: Memory, beta: float, metrics: Mapping[str, float], num_completions: int) -> Memory:
        """The memory after a step; `beta` is the method's own, where the memory has none yet."""
        return memory

    def ends_updates(self, metrics: Mapping[str, float]) -> bool:
        """True when the batch has moved the policy far enough: the update at hand is dropped, and those left."""
        return False

    def ends_run(self, memory: Memory) -> str | None:
        """Why the run is over, or None."""
        return None


class FixedCoefficient(Control):
    """beta stays what it is."""

    name = "fixed"


@dataclass(frozen=True)
class Proportional(Control):
    """beta *= 1 + clip(KL / target - 1, -0.2, 0.2) * n / horizon, for n completions per step.

    Ziegler 2019 (1909.08593), 2.2.

    KL is that of a whole completion to the reference, in nats.
    """

    target: float = number(6.0, above=0)
    horizon: float = number(10_000.0, above=0)
    name = "proportional"
    needs = frozenset({"ref_logp"})
    turns_beta = True
    in_words = "turn the KL's coefficient so that a completion strays {0.target:g} nats"

    def adjusted(self, memory: Memory, beta: float, metrics: Mapping[str, float], num_completions: int) -> Memory:
        error = min(max(metrics["kl_completion"] / self.target - 1, -0.2), 0.2)
        return {**memory, "beta": memory.get("beta", beta) * (1 + error * num_completions / self.horizon)}


@dataclass(frozen=True)
class Doubling(Control):
    """beta / 2 when KL(old, pi) < target / 1.5, beta * 2 when it is > 1.5 target. Schulman 2017 (1707.06347).

    Section 4. The constants are quoted from memory of the paper, not read in it.
    """

    target: float = number(0.01, above=0)
    name = "doubling"
    needs = frozenset({"old_logp"})
    turns_beta = True
    in_words = "halve or double the KL's coefficient so that a batch moves the policy {0.target:g} nats a token"

    def adjusted(self, memory: Memory, beta: float, metrics: Mapping[str, float], num_completions: int) -> Memory:
        now, moved = memory.get("beta", beta), metrics["kl_old"]
        if moved < self.target / 1.5:
            now /= 2
        elif moved > 1.5 * self.target:
            now *= 2
        return {**memory, "beta": min(max(now, 1e-6), 1e6)}


@dataclass(frozen=True)
class KLBudget(Control):
    """The run ends when the moving average of a completion's KL to the reference passes `nats`.

    Gao 2022 (2210.10760): a penalty walks along the same frontier of gold reward against KL, so it acts like stopping.
    """

    nats: float = number(20.0, above=0)
    decay: float = number(0.5, least=0, below=1)
    name = "budget"
    needs = frozenset({"ref_logp"})
    in_words = "stop when completions stray {0.nats:g} nats from the reference"

    def adjusted(self, memory: Memory, beta: float, metrics: Mapping[str, float], num_completions: int) -> Memory:
        mass = self.decay * memory.get("kl_mass", 0.0) + 1 - self.decay
        total = self.decay * memory.get("kl_sum", 0.0) + (1 - self.decay) * metrics["kl_completion"]
        return {**memory, "kl_mass": mass, "kl_sum": total}

    def ends_run(self, memory: Memory) -> str | None:
        if not memory.get("kl_mass"):
            return None
        spent = memory["kl_sum"] / memory["kl_mass"]
        if spent <= self.nats:
            return None
        return (
            f"the KL budget is spent: completions stray {spent:.3g} nats from the reference, {self.nats:g} are allowed"
        )


@dataclass(frozen=True)
class EndUpdates(Control):
    """The remaining updates of a batch are dropped once KL(old, pi) > limit. After Schulman 2015 (1502.05477).

    A check, not an update rule: with one update per batch it is 0 by construction.
    """

    limit: float = number(0.015, above=0)
    name = "end_updates"
    needs = frozenset({"old_logp"})
    in_words = "leave a batch once it has moved the policy by {0.limit:g} nats a token"

    def ends_updates(self, metrics: Mapping[str, float]) -> bool:
        return metrics["kl_old"] > self.limit
