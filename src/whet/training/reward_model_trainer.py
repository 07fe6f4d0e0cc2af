"""Training reward models: rankings and pairs, right or wrong outcomes, and labelled steps.

A row of a ranking is scored at its last token, as the saved classifier will do; a solution in steps at the last token
of each. Completions of one prompt share it in one packed micro-batch, and every count is that of the whole step.
Several heads learn side by side, each from its own draw of the rows; the loss is the mean of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from whet.data.chat import ROWS_TOGETHER, prompt_tokens
from whet.data.families import (
    ClassifierRow,
    classifier_batch,
    classifier_families,
    family_cost,
    family_micro_batches,
    fitting,
    stepped_row,
)
from whet.data.pairs import RankedCompletions
from whet.data.prompts import LabelledCompletion, PreferencePair
from whet.data.step_rows import LabelledSteps
from whet.model.causal_lm import CausalLM
from whet.model.scalar_head import Kind, ScalarModel, scalar_model
from whet.model.shared_prefix import to_device
from whet.model.token_logp import packs
from whet.objective.policy import Loss
from whet.objective.preference.reward_model_losses import (
    LabelBatch,
    LabelLoss,
    RankBatch,
    RankLoss,
    RewardTotals,
    reward_totals,
)
from whet.record.metrics.reward_model import (
    label_ensemble_metrics,
    member_scales,
    outcome_metrics,
    pair_ensemble_metrics,
    pair_metrics,
    standardized,
    step_metrics,
)
from whet.record.metrics.timer import PhaseTimer
from whet.training.row_trainer import RowRun, RowTrainer, rank_batches, sum_micro_batches
from whet.types import Prompt, Sample, StepReport, WhetError


def bootstrap_counts(num_rows: int, num_members: int, seed: int) -> NDArray[np.int64]:
    """[num_rows, num_members]: each column counts `num_rows` draws of that member alone. Efron 1979.

    A pass over all rows, each weighed by its count, is a pass over the member's own sample of them.
    """
    if num_rows < 1 or num_members < 1:
        raise WhetError(f"a bootstrap of {num_rows} rows for {num_members} members; give at least one of each")
    # the raw stream is the same in every version of numpy; the bias of the remainder is below 2**-30 here
    raw = np.random.Philox(key=np.array([seed, 0x626F6F74], dtype=np.uint64)).random_raw(num_rows * num_members)
    drawn = (raw.reshape(num_members, num_rows) % np.uint64(num_rows)).astype(np.int64)
    return np.stack([np.bincount(row, minlength=num_rows) for row in drawn], axis=1)


# tokens, which of them is scored, how many are shared: for a pass that counts for nothing
IDLE_SCORED = (torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[False, True]]), torch.tensor([1]))
HeadScores = Sequence[Sequence[Sequence[float]]]  # of each row, of each of its places, of each head


JudgedRow = PreferencePair | RankedCompletions | LabelledCompletion | LabelledSteps


@dataclass(frozen=True)
class RewardModelRow:
    """Completions to be scored, and how they were judged: by their order, or by labels."""

    rows: tuple[ClassifierRow, ...]  # the completions to one prompt, or a single row
    lengths: tuple[int, ...]  # tokens of each completion
    ranks: tuple[int, ...] = ()  # of each completion, 0 is the best
    labels: tuple[float | None, ...] = ()  # of each place of a single row
    margin: float = 0.0
    preference: float = 1.0
    counts: tuple[float, ...] = ()  # how much the row counts for each head; (): once


@dataclass(frozen=True)
class RewardModelDataset:
    """Rows to train on and rows held out for evaluation."""

    rows: Sequence[RewardModelRow]
    eval_rows: Sequence[RewardModelRow] = ()


def reward_model_rows(
    tokenizer: Any,
    rows: Sequence[JudgedRow],
    context: int,
    separator: str = "\n\n",
    every_token: bool = False,
) -> tuple[list[RewardModelRow], int]:
    """The rows as tokens, and how many were left out since one outgrows the context. `separator` ends a step.

    With `every_token` the outcome of a single completion stands on each of its tokens, not only on the last.
    """
    left, encoded = iter(rows), list[RewardModelRow]()
    while some := list(islice(left, ROWS_TOGETHER)):
        try:
            encoded += _rows_together(tokenizer, some, separator)
        except WhetError:  # one by one, it is said of the first row that cannot be used
            encoded += [encoded_row for row in some for encoded_row in _rows_together(tokenizer, [row], separator)]
    if every_token:
        encoded = [
            _outcome_everywhere(tokenizer, row.prompt, encoded_row)
            for row, encoded_row in zip(rows, encoded, strict=True)
        ]
    fitting_numbers, dropped = fitting([row.rows for row in encoded], context)
    return [encoded[number] for number in fitting_numbers], dropped


def _rows_together(tokenizer: Any, rows: Sequence[JudgedRow], separator: str) -> list[RewardModelRow]:
    """The rows as tokens; conversations and completions are tokenized together."""
    questions = [(row.prompt, _completions(row)) for row in rows if not isinstance(row, LabelledSteps)]
    families = iter(classifier_families(tokenizer, questions))
    texts = [completion for _, completions in questions for completion in completions]
    lengths = map(len, tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else [])
    encoded = []
    for row in rows:
        if isinstance(row, LabelledSteps):
            stepped = stepped_row(tokenizer, row.prompt, row.steps, separator)
            encoded.append(RewardModelRow((stepped,), (len(stepped.tokens) - stepped.shared,), labels=row.labels))
            continue
        if isinstance(row, LabelledCompletion):
            judged: dict[str, Any] = {"labels": (float(row.label),)}
        elif isinstance(row, RankedCompletions):
            judged = {"ranks": row.ranks}
        else:
            judged = {"ranks": (0, 1), "margin": row.margin, "preference": row.preference}
        family = next(families)
        encoded.append(RewardModelRow(family, tuple(islice(lengths, len(family))), **judged))
    return encoded


def _completions(row: PreferencePair | RankedCompletions | LabelledCompletion) -> tuple[str, ...]:
    if isinstance(row, LabelledCompletion):
        return (row.completion,)
    return tuple(row.completions) if isinstance(row, RankedCompletions) else (row.chosen, row.rejected)


def _outcome_everywhere(tokenizer: Any, prompt: Prompt, judged: RewardModelRow) -> RewardModelRow:
    """Cobbe 2021 (2110.14168): a prediction after every token of the completion, all with its outcome."""
    (row,) = judged.rows
    opening = prompt_tokens(tokenizer, prompt)
    # where the completion's first token swallowed the end of the prompt, it counts as the completion's
    start = next((at for at, pair in enumerate(zip(opening, row.tokens, strict=False)) if len(set(pair)) > 1), None)
    start = min(len(opening) if start is None else start, len(row.tokens) - 1)
    places = tuple(range(start, len(row.tokens)))
    return replace(judged, rows=(ClassifierRow(row.tokens, start, places),), labels=judged.labels * len(places))


def bootstrap_rows(rows: Sequence[RewardModelRow], heads: int, seed: int) -> list[RewardModelRow]:
    """The rows with what they count for each head: as often as its own draw with replacement has them."""
    counts = bootstrap_counts(len(rows), heads, seed)
    return [replace(row, counts=tuple(map(float, row_counts))) for row, row_counts in zip(rows, counts, strict=True)]


def build_reward_model(
    language: CausalLM, tokenizer: Any, rows: Sequence[RewardModelRow], kind: Kind, seed: int, heads: int = 1
) -> ScalarModel:
    """A reward model for these rows: `sequence` for whole completions, `token` for steps.

    The tokenizer gets a padding that no row ends in: a saved classifier reads its score at the last token before it.
    """
    ends = {completion.tokens[-1] for row in rows for completion in row.rows} | {tokenizer.eos_token_id}
    paddings = (tokenizer.pad_token_id, tokenizer.unk_token_id, *tokenizer.all_special_ids)
    made = scalar_model(language, kind, seed, ends, paddings, heads)
    named = tokenizer.convert_ids_to_tokens(made.model.config.pad_token_id)
    if named is not None:
        tokenizer.pad_token = named
    return made


class RewardModelTrainer(RowTrainer):
    """One optimizer step per step, on `rows_per_step` rows. What is saved is a classifier of transformers."""

    def __init__(
        self,
        reward_model: ScalarModel,
        tokenizer: Any,
        objective: RankLoss | LabelLoss,
        dataset: RewardModelDataset,
        **how: Unpack[RowRun],
    ) -> None:
        _check(objective, dataset)
        super().__init__(reward_model.model, tokenizer, len(dataset.rows), **how)
        self._reward_model, self._objective, self._dataset = reward_model, objective, dataset
        self._packed = self._batch_section.packed and packs(reward_model.lm)
        self._has_margins = any(row.margin for row in dataset.rows)
        self._is_soft = any(row.preference < 1 for row in dataset.rows)

    def step(self, number: int, timer: PhaseTimer) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        rows = [self._dataset.rows[index] for index in self.take_rows(self._batch_section.rows_per_step)]
        counts = {"rows": len(rows), "tokens": sum(sum(row.lengths) for row in rows)}
        self._reward_model.note_scales(None)
        return self.optimize(number, timer, lambda: self._total_loss(rows, learn=True)[0], counts), []

    def _total_loss(self, rows: Sequence[RewardModelRow], learn: bool) -> tuple[dict[str, float], HeadScores]:
        """Loss and metrics of all rows, and the scores of each; the gradient is accumulated where `learn`."""
        totals = reward_totals(self._targets(rows))
        done: list[tuple[Loss, list[int], Tensor]] = []

        def cut(some: Sequence[RewardModelRow]) -> list[list[int]]:
            return family_micro_batches(
                [row.rows for row in some], self._batch_section.micro_batch_tokens, self._packed
            )

        for numbers in rank_batches(self._ranks, rows, lambda row: family_cost(row.rows), cut):
            if not numbers:
                idle = 0.0 * self._reward_model.scores(*IDLE_SCORED).sum()
                if learn:
                    idle.backward()
                continue
            part = [rows[number] for number in numbers]
            batch = classifier_batch([row.rows for row in part])
            scores = self._reward_model.scores(batch.tokens, batch.scored, batch.shared)
            loss = self._loss(part, scores, totals)
            if learn:
                loss.value.backward()
            done.append((Loss(loss.value.detach(), loss.sums), numbers, scores.detach()))
        metrics = sum_micro_batches([loss for loss, _, _ in done], self._ranks)
        by_row: dict[int, list[list[float]]] = {}
        for _, numbers, scores in done:
            sizes = [sum(len(completion.places) for completion in rows[number].rows) for number in numbers]
            for row, values in zip(numbers, scores.cpu().split(sizes), strict=True):
                by_row[row] = values.tolist()
        by_row = {number: values for part in self._ranks.gather(by_row) for number, values in part.items()}
        return metrics, [by_row[number] for number in range(len(rows))]

    def _targets(self, rows: Sequence[RewardModelRow]) -> RankBatch | LabelBatch:
        return _ranks(rows, self._has_margins, self._is_soft) if rows[0].ranks else _labels(rows)

    def _loss(self, rows: Sequence[RewardModelRow], scores: Tensor, totals: RewardTotals) -> Loss:
        """The mean of the heads' losses; `scores` [A, K]."""
        device = scores.device
        batch: Any = _moved(self._targets(rows), device)
        if rows[0].ranks:
            there = batch.rank >= 0
        else:
            places = to_device(torch.tensor([len(row.labels) for row in rows]), device)
            there = torch.arange(batch.label.shape[1], device=device) < places[:, None]
        counts = to_device(torch.tensor([row.counts for row in rows]), device) if rows[0].counts else None
        losses = []
        for head in range(scores.shape[1]):
            table = torch.zeros(there.shape, dtype=scores.dtype, device=device).masked_scatter(there, scores[:, head])
            own = batch if counts is None else replace(batch, weight=counts[:, head])
            losses.append(self._objective.loss(own, table, totals))
        sums = {name: torch.stack([loss.sums[name] for loss in losses]).mean() for name in losses[0].sums}
        return Loss(torch.stack([loss.value for loss in losses]).mean(), sums)

    @property
    def eval_rows(self) -> Sequence[RewardModelRow]:
        """The rows held out for evaluation."""
        return self._dataset.eval_rows

    @torch.no_grad()
    def eval_scores(self) -> tuple[float, HeadScores]:
        """The loss on the eval rows, and each head's score of every place of them."""
        metrics, scores = self._total_loss(self.eval_rows, learn=False)
        return metrics["loss"], scores

    def evaluate(self) -> dict[str, float]:
        if not self.eval_rows:
            return {}
        loss, scores = self.eval_scores()
        self._reward_model.note_scales(member_scales([place_scores for row in scores for place_scores in row]))
        return {"loss": loss, **members_metrics(self.eval_rows, scores)}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "scales": self._reward_model.noted_scales}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        super().restore(state, tensors)
        self._reward_model.note_scales(state.get("scales"))  # older checkpoints have none


def members_metrics(rows: Sequence[RewardModelRow], scores: HeadScores) -> dict[str, float]:
    """The metrics of the mean of the members and, where there are several, what they know of their own mistakes.

    Scores of rankings are put on one scale, and the mean back on that of the members; those of labels have their
    zero in common and stay.
    """
    several = len(scores[0][0]) > 1
    scales = (
        member_scales([place_scores for row in scores for place_scores in row]) if rows[0].ranks and several else None
    )
    even = [[standardized(place_scores, scales) for place_scores in row] for row in scores]
    stretch = 1.0 if scales is None else sum(scale for _, scale in scales) / len(scales)
    shift = 0.0 if scales is None else sum(centre for centre, _ in scales) / len(scales)
    means = [[shift + stretch * sum(place_scores) / len(place_scores) for place_scores in row] for row in even]
    metrics = row_metrics(rows, means)
    if not several:
        return metrics
    if rows[0].ranks:
        pairs = [
            (row_scores[one], row_scores[two])
            for row, row_scores in zip(rows, even, strict=True)
            for one, two in _pairs(row)
        ]
        return {**metrics, **pair_ensemble_metrics(*zip(*pairs, strict=True))}
    known = [
        (place_scores, label)
        for row, places in zip(rows, even, strict=True)
        for place_scores, label in zip(places, row.labels, strict=True)
        if label is not None
    ]
    return {**metrics, **label_ensemble_metrics(*zip(*known, strict=True))}


def _pairs(row: RewardModelRow) -> list[tuple[int, int]]:
    """(better, worse) of all completions that differ in rank."""
    ranks = list(enumerate(row.ranks))
    return [(one, two) for one, rank in ranks for two, other in ranks if rank < other]


def row_metrics(rows: Sequence[RewardModelRow], scores: Sequence[Sequence[float]]) -> dict[str, float]:
    """The metrics that fit the kind of the rows; of rankings, those of all their pairs."""
    if rows[0].ranks:
        pairs = [
            (row_scores[better], row_scores[worse], row.lengths[better], row.lengths[worse])
            for row, row_scores in zip(rows, scores, strict=True)
            for better, worse in _pairs(row)
        ]
        return pair_metrics(*map(list, zip(*pairs, strict=True)))  # type: ignore[arg-type]
    if any(len(row.labels) > 1 for row in rows):
        return step_metrics(scores, [row.labels for row in rows])
    return outcome_metrics([row_scores[0] for row_scores in scores], [row.labels[0] or 0.0 for row in rows])


def _check(objective: RankLoss | LabelLoss, dataset: RewardModelDataset) -> None:
    if not dataset.rows:
        raise WhetError("there are no rows to learn from; give data.source with at least one")
    ranked = {bool(row.ranks) for row in (*dataset.rows, *dataset.eval_rows)}
    if len(ranked) > 1:
        raise WhetError("rankings and labels are mixed; give data of one kind")
    if ranked != {isinstance(objective, RankLoss)}:
        wanted, present = ("rankings or pairs", "labels") if isinstance(objective, RankLoss) else ("labels", "rankings")
        raise WhetError(f"the loss learns from {wanted} and the data has {present}; give the other loss or other data")
    labels = {label > 0.5 for row in dataset.rows for label in row.labels if label is not None}
    if ranked == {False} and len(labels) < 2:
        raise WhetError("all labels of the data say the same; give right and wrong ones, else there is nothing to tell")


def _ranks(rows: Sequence[RewardModelRow], has_margins: bool, is_soft: bool) -> RankBatch:
    most = max(len(row.ranks) for row in rows)
    rank = torch.tensor([[*row.ranks, *[-1] * (most - len(row.ranks))] for row in rows])

    def every(values: list[float]) -> Tensor:
        return torch.tensor(values)[:, None, None].expand(-1, most, most)

    return RankBatch(
        rank,
        every([row.margin for row in rows]) if has_margins else None,
        preference=every([row.preference for row in rows]) if is_soft else None,
    )


def _labels(rows: Sequence[RewardModelRow]) -> LabelBatch:
    most = max(len(row.labels) for row in rows)
    label = torch.zeros(len(rows), most)
    judged = torch.zeros(len(rows), most, dtype=torch.bool)
    for number, row in enumerate(rows):
        for at, value in enumerate(row.labels):
            if value is not None:
                label[number, at], judged[number, at] = value, True
    return LabelBatch(label, judged)


def _moved(batch: Any, device: torch.device) -> Any:
    values = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    return replace(batch, **{name: to_device(value, device) for name, value in values.items() if value is not None})
