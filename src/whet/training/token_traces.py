"""What became of the tokens of the samples that a run records: their advantage, weight and log-probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from whet.objective import Objective
from whet.types import Prompt, Sample, TokenBatch, TokenTrace


class TokenTraces:
    """The token traces of some rows of a step's batch, gathered over its updates. It changes no value of the batch."""

    def __init__(self, batch: TokenBatch, rows: Sequence[int]) -> None:
        """`batch` as `Objective.advantage` left it; `rows` are places of its samples."""
        self._rows = list(rows)
        self._advantage = self._old = None
        if self._rows:
            chosen = torch.tensor(self._rows)
            self._advantage = None if batch.advantage is None else batch.advantage[chosen].float()
            self._old = None if batch.old_logp is None else batch.old_logp[chosen].float()
        self._weight: dict[int, Tensor] = {}
        self._logp: dict[int, Tensor] = {}

    def add(
        self, objective: Objective, batch: TokenBatch, rows: Sequence[int], logp: Tensor, only_critic: bool = False
    ) -> None:
        """An update on these rows of the step, `batch` and the `logp` it saw; in a critic's warm-up no token counts."""
        number_of = {row: number for number, row in enumerate(rows)}
        concerned = [row for row in self._rows if row in number_of]
        if not concerned or batch.advantage is None:
            return
        chosen = torch.tensor([number_of[row] for row in concerned])
        light = replace(batch, support=None, routed_experts=None, old_experts=None)  # wide, and no rule looks at them
        part, seen = light.select(chosen), logp[chosen]
        weight = torch.zeros_like(seen) if only_critic else objective.token_weight(part, seen)
        for row, row_weight, row_logp in zip(concerned, weight.float(), seen.float(), strict=True):
            self._weight[row] = row_weight
            self._logp.setdefault(row, row_logp)

    def on(self, samples: Sequence[tuple[Prompt, Sample]]) -> list[tuple[Prompt, Sample]]:
        """The step's samples, those with a trace carrying it."""
        traced = list(samples)
        if self._advantage is None:
            return traced
        for number, row in enumerate(self._rows):
            if row not in self._weight:
                continue
            prompt, sample = traced[row]
            logp = self._logp[row] if self._old is None else self._old[number]
            known = [
                torch.where(sample.action, values[: len(sample.tokens)], 0.0)
                for values in (self._advantage[number], self._weight[row], logp)
            ]
            traced[row] = (prompt, replace(sample, trace=TokenTrace(*known)))
        return traced
