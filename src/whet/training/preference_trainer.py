"""Learning from preferences: pairs of completions, or completions with labels, under any
objective of `whet.objective.preference`.

The completions of a prompt share it in one packed micro-batch. What a loss needs of the whole step (counts, the anchor)
is taken before the first one, so that how a step is cut into micro-batches never changes its gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from whet.data.families import (
    IDLE,
    Family,
    completion_families,
    family_cost,
    family_micro_batches,
    fitting,
    mismatched_family,
)
from whet.data.prompts import LabelledCompletion, PreferencePair
from whet.model.causal_lm import CausalLM
from whet.model.reference import CopiedReference
from whet.model.shared_prefix import to_device
from whet.model.token_logp import packs
from whet.objective.policy import Loss
from whet.objective.preference.batch import PairBatch, PairExtras, PairTotals, mismatched_rows, pair_totals
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.pair_terms import Zero
from whet.record.metrics.distribution import length_correlation
from whet.record.metrics.timer import PhaseTimer
from whet.training.completion_logp import CompletionScores, LiveReference, ReferenceLogp, score_completions
from whet.training.evaluator import Evaluator
from whet.training.row_trainer import RowRun, RowTrainer, rank_batches, sum_micro_batches
from whet.types import Prompt, Sample, StepReport, WhetError

# names of the metrics on eval rows: "accuracy" is that of completions to eval prompts
EVAL_METRICS = {"loss": "loss", "accuracy": "pair_accuracy", "margin": "margin", "chosen_logp": "chosen_logp"} | {
    name: name for name in ("rejected_logp", "chosen_reward", "rejected_reward", "length_correlation")
}


@dataclass(frozen=True)
class PreferenceRow:
    """The completions to one prompt as the model reads them, and how they compare."""

    family: Family  # chosen and rejected, or one completion
    label: int = 0  # of a single completion: +1 good, -1 bad; 0 for a pair
    margin: float = 0.0
    preference: float = 1.0


@dataclass(frozen=True)
class PreferenceDataset:
    """Rows to train on and rows held out for evaluation."""

    rows: Sequence[PreferenceRow]
    eval_rows: Sequence[PreferenceRow] = ()


@dataclass(frozen=True)
class PreferenceModels:
    """The policy, and the reference it is compared with."""

    policy: CausalLM
    tokenizer: Any
    reference: ReferenceLogp | None = None


def preference_rows(
    tokenizer: Any, rows: Sequence[PreferencePair | LabelledCompletion], context: int
) -> tuple[list[PreferenceRow], int]:
    """The rows as tokens, and how many were left out since a completion outgrows the context."""
    questions = (
        (row.prompt, (row.chosen, row.rejected) if isinstance(row, PreferencePair) else (row.completion,))
        for row in rows
    )
    encoded = [
        PreferenceRow(family, 0, row.margin, row.preference)
        if isinstance(row, PreferencePair)
        else PreferenceRow(family, label=1 if row.label else -1)
        for row, family in zip(rows, completion_families(tokenizer, questions), strict=True)
    ]
    fitting_numbers, dropped = fitting([row.family for row in encoded], context)
    return [encoded[number] for number in fitting_numbers], dropped


class PreferenceTrainer(RowTrainer):
    """One optimizer step per step, on `rows_per_step` rows."""

    def __init__(
        self,
        models: PreferenceModels,
        objective: PairObjective,
        dataset: PreferenceDataset,
        evaluator: Evaluator | None = None,
        online: bool = False,
        **how: Unpack[RowRun],
    ) -> None:
        """`online`: the dataset is empty, and rows are given step by step, by `learn`."""
        _check(objective, models, dataset, online)
        super().__init__(models.policy.model, models.tokenizer, max(len(dataset.rows), 1), evaluator, **how)
        self._models, self._objective, self._dataset = models, objective, dataset
        self._packed = self._batch_section.packed and packs(models.policy)
        self._has_margins = any(row.margin for row in dataset.rows)
        self._is_soft = any(row.preference < 1 for row in dataset.rows)
        self._memory: dict[str, Any] = {}
        self._reference_moved = False

    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        numbers = self.take_rows(self._batch_section.rows_per_step)
        return self.learn([self._dataset.rows[index] for index in numbers], number, timer), []

    def learn(self, rows: Sequence[PreferenceRow], number: int, timer: PhaseTimer) -> StepReport:
        """One optimizer step on these rows."""
        context = self._step_context(rows, (number - 1) / self._steps, timer)
        counts = {"rows": len(rows), "tokens": sum(sum(completion.action) for row in rows for completion in row.family)}
        report = self.optimize(number, timer, lambda: self._total_loss(context, number, learn=True), counts)
        self._memory = dict(context.memory)
        self._move_reference(number)
        return report

    def _step_context(self, rows: Sequence[PreferenceRow], progress: float, timer: PhaseTimer) -> _StepContext:
        """What the step's losses need of all its rows."""
        objective = self._objective.tuned(progress)
        reference: list[tuple[Tensor, ...]] | None = None
        if self._models.reference is not None:
            with timer.phase("reference"):
                reference = self._models.reference.logp([row.family for row in rows])
        lengths = torch.tensor([[sum(completion.action) for completion in row.family] for row in rows])
        totals = pair_totals(PairBatch(lengths, label=_labels(rows)))
        memory: Mapping[str, Any] = self._memory
        if not isinstance(objective.anchor, Zero):
            with timer.phase("train"), torch.no_grad():
                sums = self._anchor_sums(objective, rows, reference)
            totals, memory = objective.anchored(totals, sums, memory)
        return _StepContext(objective, rows, reference, totals, memory)

    def _anchor_sums(
        self, objective: PairObjective, rows: Sequence[PreferenceRow], reference: list[tuple[Tensor, ...]] | None
    ) -> Tensor:
        if "mismatched_logp" in objective.needs():
            rows = _mismatched(rows)
            known = self._models.reference
            reference = known.logp([row.family for row in rows]) if known is not None else None
        context = _StepContext(objective, rows, reference, PairTotals(0, 0, 0, 0, 0), {})
        sums = torch.zeros(4, dtype=torch.float64)
        for numbers in self._micro_batches(rows):
            scores = self._scores(context, numbers, frozenset(), 0)
            if numbers:
                batch, logp, _ = self._batch(context, numbers, scores)
                sums += objective.anchor_sums(batch, logp).cpu()
        return self._ranks.sum_tensor(sums)

    def _total_loss(self, context: _StepContext, step: int, learn: bool) -> dict[str, float]:
        """The loss and the metrics of all rows; the gradient is accumulated where `learn`."""
        done: list[Loss] = []
        needs = context.objective.needs()
        for numbers in self._micro_batches(context.rows):
            scores = self._scores(context, numbers, needs, step)
            if not numbers:
                if learn:
                    (0.0 * scores.logp.sum()).backward()
                continue
            batch, logp, extras = self._batch(context, numbers, scores)
            loss = context.objective.loss(batch, logp, context.totals, extras)
            if learn:
                loss.value.backward()
            done.append(Loss(loss.value.detach(), loss.sums))
        metrics = sum_micro_batches(done, self._ranks)
        correlation = length_correlation(metrics)
        return metrics if correlation is None else {**metrics, "length_correlation": correlation}

    def _micro_batches(self, rows: Sequence[PreferenceRow]) -> list[list[int]]:
        def cut(some: Sequence[PreferenceRow]) -> list[list[int]]:
            return family_micro_batches(
                [row.family for row in some], self._batch_section.micro_batch_tokens, self._packed
            )

        return rank_batches(self._ranks, rows, lambda row: family_cost(row.family), cut)

    def _scores(
        self, context: _StepContext, numbers: Sequence[int], wanted: frozenset[str], step: int
    ) -> CompletionScores:
        if not numbers:
            return score_completions(self._models.policy, [IDLE], self._packed, frozenset())
        families = [context.rows[number].family for number in numbers]
        seeds = [_seed(self._seed, step, number) for number in numbers]
        return score_completions(self._models.policy, families, self._packed, wanted, seeds)

    def _batch(
        self, context: _StepContext, numbers: Sequence[int], scores: CompletionScores
    ) -> tuple[PairBatch, Tensor, PairExtras]:
        """The rows of a micro-batch side by side: [B, S, T]. Nothing here waits for the device."""
        rows = [context.rows[number] for number in numbers]
        device, shape = scores.logp.device, (len(rows), len(rows[0].family), -1)
        action = to_device(scores.rows.action, device)
        reference = None
        if context.reference is not None:
            values = to_device(torch.cat([logp for number in numbers for logp in context.reference[number]]), device)
            table = torch.zeros(action.shape, dtype=values.dtype, device=device)
            reference = table.masked_scatter(action, values).double().reshape(shape)
        labels = _labels(rows)
        margin = to_device(torch.tensor([row.margin for row in rows]), device) if self._has_margins else None
        batch = PairBatch(
            lengths=action.sum(-1).reshape(shape[:2]),
            ref_logp=reference,
            label=None if labels is None else to_device(labels, device),
            action=action.reshape(shape),
            margin=margin,
            preference=to_device(torch.tensor([row.preference for row in rows]), device) if self._is_soft else None,
        )
        extras = PairExtras(
            *(None if extra is None else extra.reshape(shape) for extra in (scores.log_square, scores.rival_logp))
        )
        return batch, scores.logp.double().reshape(shape), extras

    def _move_reference(self, step: int) -> None:
        kept_share = self._objective.reference.kept_after(step)
        if kept_share < 1 and isinstance(self._models.reference, LiveReference):
            self._models.reference.follow(self._models.policy, kept_share)
            self._reference_moved = True

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        result: dict[str, float] = {}
        if self._dataset.eval_rows:
            context = self._step_context(self._dataset.eval_rows, 1.0, PhaseTimer())
            metrics = self._total_loss(context, 0, learn=False)
            result = {shown: metrics[name] for name, shown in EVAL_METRICS.items() if name in metrics}
        return {**result, **self.measured()}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "memory": dict(self._memory), "moved": self._reference_moved}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        tensors = super().tensors()
        held = self._held_reference()
        return {**tensors, "reference": held.tensors()} if self._reference_moved and held is not None else tensors

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().restore(state, tensors)
        self._memory, self._reference_moved = dict(state["memory"]), state["moved"]
        held = self._held_reference()
        if held is not None and "reference" in tensors:
            held.restore(tensors["reference"])

    def _held_reference(self) -> CopiedReference | None:
        known = self._models.reference
        live = known.reference if isinstance(known, LiveReference) else None
        return live if isinstance(live, CopiedReference) else None


@dataclass(frozen=True)
class _StepContext:
    """The rows of a step with what is known of all of them."""

    objective: PairObjective
    rows: Sequence[PreferenceRow]
    reference: list[tuple[Tensor, ...]] | None
    totals: PairTotals
    memory: Mapping[str, Any]


def _check(objective: PairObjective, models: PreferenceModels, dataset: PreferenceDataset, online: bool) -> None:
    needs = objective.needs()
    if not dataset.rows and not online:
        raise WhetError(
            "there are no rows to learn from; give data.source with at least one pair or labelled completion"
        )
    kinds = {(len(row.family), row.label == 0) for row in (*dataset.rows, *dataset.eval_rows)}
    if len(kinds) > 1:
        raise WhetError("pairs and single completions with labels are mixed; give data of one kind")
    paired = kinds == {(2, True)} or online
    if "pairs" in needs and not paired:
        raise WhetError(
            f"{objective.name} compares two completions and the data has single ones; give chosen and rejected"
        )
    if not paired and len({row.label for row in dataset.rows}) == 1:
        raise WhetError("all completions have the same label; a loss on labelled completions needs good and bad ones")
    if "ref_logp" in needs and models.reference is None:
        raise WhetError(f"{objective.name} compares with a reference and there is none; give model.reference=memory")
    moves = any(objective.reference.kept_after(step) < 1 for step in range(1, 10_001))
    live = isinstance(models.reference, LiveReference)
    if moves and not (live and isinstance(getattr(models.reference, "reference", None), CopiedReference)):
        raise WhetError(f"the reference of {objective.name} moves with the policy; give preference.reference_logp=live")
    if "mismatched_logp" in needs and not live:
        raise WhetError(f"{objective.name} scores new completions in every step; give preference.reference_logp=live")


def _labels(rows: Sequence[PreferenceRow]) -> Tensor | None:
    return None if rows[0].label == 0 else torch.tensor([[row.label] for row in rows])


def _mismatched(rows: Sequence[PreferenceRow]) -> list[PreferenceRow]:
    """The rows with each prompt paired with completions to another prompt of the step."""
    groups: dict[tuple[int, ...], int] = {}
    prompts = [row.family[0].tokens[: row.family[0].action.index(True)] for row in rows]
    numbers = torch.tensor([groups.setdefault(prompt, len(groups)) for prompt in prompts])
    return [
        replace(row, family=mismatched_family(row.family, rows[other].family))
        for row, other in zip(rows, mismatched_rows(numbers).tolist(), strict=True)
        if other >= 0
    ]


def _seed(*names: int) -> int:
    return int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:7], "little")
