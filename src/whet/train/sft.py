"""Supervised fine-tuning: imitate the completions of demonstrations. Only their tokens carry loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.data.packing import padded_rows, row_passes
from whet.model.causal_lm import CausalLM
from whet.model.token_logp import Details, packs, token_logp
from whet.protocols import Engine
from whet.train.evaluate import Evaluator, eval_metrics
from whet.train.optimizer import OptimizerSettings
from whet.train.rows import RowTrainer
from whet.train.run import PhaseTimer
from whet.types import Encoded, Prompt, Sample, StepReport


@dataclass(frozen=True)
class SFTSettings:
    steps: int
    rows_per_step: int
    micro_batch_tokens: int  # memory only, never the gradient
    packed: bool  # rows behind one another; a model that cannot keep them apart gets padded ones
    seed: int


class SFTTrainer:
    """loss = - 1/M SUM logp over the M completion tokens of the step, however they are packed or cut into passes."""

    over: str | None = None

    def __init__(
        self,
        policy: CausalLM,
        tokenizer: Any,
        rows: Sequence[Encoded],
        settings: SFTSettings,
        optimizer: OptimizerSettings,
        held_out: Sequence[Encoded] = (),
        exam: tuple[Engine, Evaluator] | None = None,
    ) -> None:
        self.model, self.tokenizer, self._policy = policy.model, tokenizer, policy
        self._rows, self._held_out, self._exam = rows, held_out, exam
        self._settings, self._packed = settings, settings.packed and packs(policy)
        self._pace = RowTrainer(policy.model, optimizer, settings.steps, len(rows), settings.seed)

    def step(self, number: int, clock: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        rows = [self._rows[index] for index in self._pace.take(self._settings.rows_per_step)]
        counts = {"rows": len(rows), "tokens": sum(sum(row.action) for row in rows)}
        return self._pace.step(number, clock, lambda: {"loss": self._total_loss(rows, learn=True)}, counts), []

    def _total_loss(self, rows: Sequence[Encoded], learn: bool) -> float:
        trained = sum(sum(row.action) for row in rows)
        losses = []
        details = Details(packed=self._packed, coefficient=_alike)
        for part in row_passes(rows, self._settings.micro_batch_tokens, self._packed):
            batch = padded_rows(part)
            found = token_logp(self._policy, batch.tokens, batch.action, details=details)
            loss = -found.logp.double().sum() / max(trained, 1)
            if learn:
                loss.backward()
            losses.append(loss.detach())
        return float(sum(losses))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        result = {"loss": self._total_loss(self._held_out, learn=False)} if self._held_out else {}
        if self._exam is not None:
            engine, exam = self._exam
            result.update(eval_metrics(exam.evaluate(engine)))
        return result

    def state(self) -> dict[str, Any]:
        return self._pace.state()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return self._pace.tensors()

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._pace.restore(state, tensors)


def _alike(logp: Tensor, window: slice) -> Tensor:
    """Every completion token counts the same."""
    return torch.ones_like(logp)
