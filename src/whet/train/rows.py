"""The frame of a step on given rows: which come next, at what rate, and what is told of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whet.data.cursor import Cursor
from whet.objective.policy import Loss
from whet.train.optimizer import OptimizerSettings, adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.train.run import PhaseTimer, RunFailed
from whet.train.update import NotFinite, optimizer_step
from whet.types import StepReport


def sum_micro_batches(done: Sequence[Loss]) -> dict[str, float]:
    """Loss and metrics of a step from those of its passes, read from the device at once."""
    named = [pair for loss in done for pair in {**loss.sums, "loss": loss.value}.items()]
    found: dict[str, float] = {}
    for (name, _), number in zip(named, torch.stack([value.detach() for _, value in named]).tolist(), strict=True):
        found[name] = found.get(name, 0.0) + number
    return found


class RowTrainer:
    """The optimizer of a model, and how far it got through its rows."""

    def __init__(self, model: nn.Module, rates: OptimizerSettings, steps: int, num_rows: int, seed: int) -> None:
        self._model, self._rates, self._steps = model, rates, steps
        self._optimizer = adamw(model, rates)
        self._cursor = Cursor(num_rows, seed)
        model.train()

    def take(self, count: int) -> list[int]:
        """The numbers of the next rows."""
        taken, self._cursor = self._cursor.take(count)
        return taken

    def step(
        self, number: int, clock: PhaseTimer, study: Callable[[], Mapping[str, float]], counts: Mapping[str, int]
    ) -> StepReport:
        """One optimizer step. `study` accumulates the gradient and tells the loss and what else it saw."""
        rate = scheduled_rate(self._rates, number, self._steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with clock.phase("train"):
            self._optimizer.zero_grad(set_to_none=True)
            try:
                metrics = study()
                if not math.isfinite(metrics["loss"]):
                    raise NotFinite("the loss is not finite", "the weights diverged; lower optimizer.learning_rate")
                norm = optimizer_step(self._model, self._optimizer, self._rates.max_gradient_norm)
            except NotFinite as error:
                raise RunFailed(f"step {number}: {error}; the weights of the last checkpoint are untouched") from error
        told = {**metrics, "gradient_norm": norm, "learning_rate": rate}
        return StepReport(number, number - 1, dict(counts), {}, told)

    def state(self) -> dict[str, Any]:
        return {"position": self._cursor.position}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": optimizer_tensors(self._model, self._optimizer)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        restore_optimizer(self._model, self._optimizer, tensors["optimizer"])
