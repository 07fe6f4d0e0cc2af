"""The one loss of every policy method.

    loss = - SUM_it share_it (weight_it A_it - kl_weight_it) logp_it

Only `logp` carries gradient. A method is a row of pieces, one an axis; nothing here knows a method by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from whet.objective.advantage import Baseline, Memory, Scale
from whet.objective.aggregate import Aggregate
from whet.objective.clip import Clip
from whet.objective.kl import KL
from whet.objective.ratio import Ratio
from whet.types import TokenBatch, Totals


@dataclass(frozen=True)
class Loss:
    """`value` is differentiable. `metrics` are sums over this pass: added over passes and ranks they are the step's."""

    value: Tensor  # []
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Objective:
    """A method as a row of orthogonal pieces."""

    name: str
    baseline: Baseline
    scale: Scale
    ratio: Ratio
    clip: Clip
    aggregate: Aggregate
    kl: KL

    def needs(self) -> frozenset[str]:
        """What the loop must annotate beyond rewards; `old_logp` only matters once the policy has moved."""
        wanted = {"old_logp": self.clip.uses_ratio, "ref_logp": self.kl.needs_reference}
        return frozenset(name for name, needed in wanted.items() if needed)

    def advantage(self, batch: TokenBatch, memory: Memory) -> tuple[TokenBatch, Memory]:
        """The batch with A = scale(R - b) on its action tokens, and what to remember for the next step."""
        paid = replace(batch, reward=batch.reward - self.kl.cost(batch))
        scaled = self.scale(paid.reward - self.baseline(paid, memory), paid)
        each = torch.where(batch.reward.isnan(), 0.0, scaled)
        spread = torch.where(batch.action, each[:, None], 0.0)
        return replace(batch, advantage=spread), self.baseline.remembered(paid, memory)

    def loss(self, batch: TokenBatch, logp: Tensor, totals: Totals) -> Loss:
        """The step's loss restricted to the rows of this pass. `logp` [N, T] carries the gradient."""
        if batch.advantage is None:
            raise ValueError("the batch has no advantage yet: call Objective.advantage on the whole step first")
        action, advantage = batch.action, batch.advantage.to(logp.dtype)
        current = logp.detach().masked_fill(~action, 0.0)
        old = current if batch.old_logp is None else batch.old_logp.masked_fill(~action, 0.0)
        ratio = self.ratio(current - old, action)
        weight = self.clip(ratio, advantage, action)
        share = self.aggregate(action, totals).to(logp.dtype)
        pull = weight * advantage
        metrics = {
            "surrogate": (share * self.clip.surrogate(ratio, advantage, action)).sum(),
            "reweighted": ((weight != ratio) & action).sum() / max(totals.tokens, 1),
            "ratio": torch.where(action, ratio, 0.0).sum() / max(totals.tokens, 1),
        }
        if self.kl.needs_reference:
            if batch.ref_logp is None:
                raise ValueError(f"the {self.kl.name} term needs ref_logp and the batch has none")
            u = current - batch.ref_logp.masked_fill(~action, 0.0)
            pull = pull - self.kl.weight(u)
            metrics["kl"] = torch.where(action, self.kl.value(u), 0.0).sum() / max(totals.tokens, 1)
        coefficient = torch.where(action, share * pull, 0.0)
        value = -(coefficient * logp.masked_fill(~action, 0.0)).sum()
        return Loss(value, {name: float(number) for name, number in metrics.items()})
