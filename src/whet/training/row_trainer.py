"""What trainers on given rows have in common: the optimizer, the schedule, which rows come next, and what is saved."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from whet.data.cursor import Cursor
from whet.objective.policy import Loss
from whet.record.metrics.timer import PhaseTimer
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.evaluator import Evaluator
from whet.training.optimizer import (
    adamw,
    optimizer_tensors,
    restore_optimizer,
    scheduled_rate,
    set_learning_rate,
)
from whet.training.run_loop import Trainer
from whet.training.sections import OptimizerSection, RowsSection
from whet.training.update import NoGradient, NotFinite, UpdateRefused, optimizer_step
from whet.types import RunFailed, StepReport

Row = TypeVar("Row")


def rank_batches(
    ranks: Ranks,
    rows: Sequence[Row],
    cost: Callable[[Row], float],
    cut: Callable[[Sequence[Row]], list[list[int]]],
) -> list[list[int]]:
    """The row numbers of this rank's micro-batches; `cut` makes them of rows. Empty ones follow where another rank has
    more: a sharded model makes the same passes everywhere."""
    if ranks.size == 1:
        return cut(rows)
    mine = ranks.shares([cost(row) for row in rows])[ranks.rank]
    batches = [[mine[number] for number in numbers] for numbers in cut([rows[row] for row in mine])] if mine else []
    return batches + [[]] * (ranks.most(len(batches)) - len(batches))


def sum_micro_batches(losses: Sequence[Loss], ranks: Ranks = ALONE) -> dict[str, float]:
    """Loss and metrics of a step from those of its micro-batches, read from the device at once."""
    if not losses:
        return ranks.sum({})
    named = [pair for loss in losses for pair in {**loss.sums, "loss": loss.value}.items()]
    totals: dict[str, float] = {}
    for (name, _), number in zip(named, torch.stack([value.detach() for _, value in named]).tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + number
    return ranks.sum(totals)


class RowRun(TypedDict):
    """How a trainer on rows trains, whatever it learns from them."""

    batch: RowsSection
    optimizer: OptimizerSection
    steps: int
    seed: int
    ranks: NotRequired[Ranks]


class RowTrainer(Trainer):
    """A model that learns from rows of data, one optimizer step per step. A trainer adds `step` and `evaluate`."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        num_rows: int,
        evaluator: Evaluator | None = None,
        **how: Unpack[RowRun],
    ) -> None:
        self.model, self.tokenizer, self._evaluator, self._ranks = model, tokenizer, evaluator, how.get("ranks", ALONE)
        self._batch_section, self._optimizer_section = how["batch"], how["optimizer"]
        self._steps, self._seed = how["steps"], how["seed"]
        self._optimizer = adamw(model, self._optimizer_section)
        self._cursor = Cursor(num_rows, self._seed)
        self._version = 0  # of the weights: the steps taken
        model.train()

    def take_rows(self, count: int) -> list[int]:
        """The numbers of the next rows."""
        numbers, self._cursor = self._cursor.take(count)
        return numbers

    def optimize(
        self,
        number: int,
        timer: PhaseTimer,
        accumulate: Callable[[], Mapping[str, float]],
        counts: Mapping[str, int],
    ) -> StepReport:
        """One optimizer step. `accumulate` adds up the gradient and returns the loss and other metrics."""
        rate = self.rate_factor * scheduled_rate(self._optimizer_section, number, self._steps)
        set_learning_rate(self._optimizer, rate)
        with timer.phase("train"):
            self._optimizer.zero_grad(set_to_none=True)
            try:
                # a mode that somebody switched off for the whole process is not the training's
                with torch.inference_mode(False), torch.enable_grad():
                    metrics = accumulate()
                if not math.isfinite(metrics["loss"]):
                    raise NotFinite("the loss is not finite", "the weights diverged; lower optimizer.learning_rate")
                norm = optimizer_step(
                    self.model,
                    self._optimizer,
                    self._optimizer_section.max_gradient_norm,
                    self._check_gradients,
                    self._ranks,
                )
            except UpdateRefused as error:
                raise RunFailed(f"step {number}: {error}; the weights of the last checkpoint are untouched") from error
        self._version = number
        metrics = {**metrics, "gradient_norm": norm, "learning_rate": rate}
        metrics |= {"skipped_updates": 1.0} if norm == 0 else {}
        return StepReport(number, number - 1, dict(counts), {}, metrics)

    def _check_gradients(self) -> None:
        """A loss at its end gives gradients of zero; none at all means that it does not depend on the weights."""
        if not any(parameter.grad is not None for parameter in self.model.parameters()):
            raise NoGradient(
                "no weight received a gradient", "the loss does not depend on the weights that are trained"
            )

    def measured(self) -> dict[str, float]:
        """What completions to eval prompts say of the weights as they are; empty where there are none."""
        if self._evaluator is None:
            return {}
        self._evaluator.load_weights(self.model.state_dict(), self._version)
        metrics, self.prompt_scores = self._evaluator.measure()
        return metrics

    def state(self) -> dict[str, Any]:
        return {"position": self._cursor.position, "version": self._version}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": optimizer_tensors(self.model, self._optimizer)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        self._version = state["version"]
        restore_optimizer(self.model, self._optimizer, tensors.get("optimizer", {}))
