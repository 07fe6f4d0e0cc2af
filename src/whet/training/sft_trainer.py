"""Supervised fine-tuning: imitate the completions of demonstrations. Only their tokens carry loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from whet.data.families import IDLE
from whet.data.packing import padded_rows, row_micro_batches
from whet.model.causal_lm import CausalLM
from whet.model.token_logp import Details, packs, token_logp
from whet.record.metrics.timer import PhaseTimer
from whet.training.evaluator import Evaluator
from whet.training.row_trainer import RowRun, RowTrainer, rank_batches
from whet.types import Encoded, Prompt, Sample, StepReport


class SFTTrainer(RowTrainer):
    """loss = - 1/M SUM logp over the M completion tokens of the step, whatever the packing and the micro-batches."""

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Any,
        rows: Sequence[Encoded],
        eval_rows: Sequence[Encoded] = (),
        evaluator: Evaluator | None = None,
        **how: Unpack[RowRun],
    ) -> None:
        super().__init__(policy.model, tokenizer, len(rows), evaluator, **how)
        self._policy, self._rows, self._eval_rows = policy, rows, eval_rows
        self._packed = self._batch_section.packed and packs(policy)

    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        rows = [self._rows[index] for index in self.take_rows(self._batch_section.rows_per_step)]
        counts = {"rows": len(rows), "tokens": sum(sum(row.action) for row in rows)}
        return self.optimize(number, timer, lambda: {"loss": self._total_loss(rows, learn=True)}, counts), []

    def _total_loss(self, rows: Sequence[Encoded], learn: bool) -> float:
        trained = sum(sum(row.action) for row in rows)
        losses = []
        details = Details(packed=self._packed, coefficient=_equal_weights)

        def cut(some: Sequence[Encoded]) -> list[list[int]]:
            return row_micro_batches(some, self._batch_section.micro_batch_tokens, self._packed)

        for numbers in rank_batches(self._ranks, rows, lambda row: len(row.tokens), cut):
            batch = padded_rows([rows[number] for number in numbers] or IDLE)
            scores = token_logp(self._policy, batch.tokens, batch.action, details=details)
            loss = -scores.logp.double().sum() / max(trained, 1) * (1.0 if numbers else 0.0)
            if learn:
                loss.backward()
            losses.append(loss.detach())
        return self._ranks.sum({"loss": float(sum(losses))})["loss"]

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        metrics = {"loss": self._total_loss(self._eval_rows, learn=False)} if self._eval_rows else {}
        return {**metrics, **self.measured()}


def _equal_weights(logp: Tensor, window: slice | Tensor) -> Tensor:
    """Every completion token counts the same."""
    return torch.ones_like(logp)
