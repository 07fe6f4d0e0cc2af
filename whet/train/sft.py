"""Supervised fine-tuning: imitate the replies of demonstrations. Only their tokens carry loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.data.cursor import Cursor
from whet.data.packing import padded_rows, row_passes
from whet.model.split import SplitModel
from whet.model.token_logp import Details, packs, token_logp
from whet.protocols import Engine
from whet.train.evaluate import Exam, marks
from whet.train.optimizer import OptimizerSettings, adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.train.run import Clock, RunFailed
from whet.train.update import NotFinite, stepped
from whet.types import Encoded, Prompt, Sample, StepReport


@dataclass(frozen=True)
class SFTSettings:
    steps: int
    rows_per_step: int
    tokens_per_pass: int  # memory only, never the gradient
    packed: bool  # rows behind one another; a model that cannot keep them apart gets padded ones
    seed: int


class SFTCourse:
    """loss = - 1/M SUM logp over the M reply tokens of the step, however they are packed or cut into passes."""

    def __init__(
        self,
        policy: SplitModel,
        tokenizer: Any,
        rows: Sequence[Encoded],
        settings: SFTSettings,
        optimizer: OptimizerSettings,
        held_out: Sequence[Encoded] = (),
        exam: tuple[Engine, Exam] | None = None,
    ) -> None:
        self._policy, self._tokenizer = policy, tokenizer
        self._rows, self._held_out, self._exam = rows, held_out, exam
        self._settings, self._rates = settings, optimizer
        self._packed = settings.packed and packs(policy)
        self._optimizer = adamw(policy.model, optimizer)
        self._cursor = Cursor(len(rows), settings.seed)
        policy.model.train()

    @property
    def model(self) -> Any:
        return self._policy.model

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def over(self) -> str | None:
        return None

    def step(self, number: int, clock: Clock) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        chosen, self._cursor = self._cursor.take(self._settings.rows_per_step)
        rows = [self._rows[index] for index in chosen]
        rate = scheduled_rate(self._rates, number, self._settings.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with clock.phase("train"):
            self._optimizer.zero_grad(set_to_none=True)
            try:
                loss = self._total_loss(rows, learn=True)
                if not torch.isfinite(torch.tensor(loss)):
                    raise NotFinite("the loss is not finite", "the weights diverged; lower optimizer.learning_rate")
                norm = stepped(self._policy.model, self._optimizer, self._rates.max_gradient_norm)
            except NotFinite as error:
                raise RunFailed(f"step {number}: {error}; the weights of the last checkpoint are untouched") from error
        report = StepReport(
            step=number,
            policy_version=number - 1,
            counts={"rows": len(rows), "tokens": sum(sum(row.action) for row in rows)},
            reward={},
            metrics={"loss": loss, "gradient_norm": norm, "learning_rate": rate},
        )
        return report, []

    def _total_loss(self, rows: Sequence[Encoded], learn: bool) -> float:
        trained = sum(sum(row.action) for row in rows)
        losses = []
        details = Details(packed=self._packed, coefficient=_alike)
        for part in row_passes(rows, self._settings.tokens_per_pass, self._packed):
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
            result.update(marks(exam.sat(engine)))
        return result

    def state(self) -> dict[str, Any]:
        return {"position": self._cursor.position}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": optimizer_tensors(self._policy.model, self._optimizer)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        restore_optimizer(self._policy.model, self._optimizer, tensors["optimizer"])


def _alike(logp: Tensor, window: slice) -> Tensor:
    """Every reply token counts the same."""
    return torch.ones_like(logp)
