"""Training reward models: rankings and pairs, right or wrong outcomes, and labelled steps.

A row of a ranking is scored at its last token, as the saved classifier will do; a solution in steps at the last token
of each. Replies of one prompt share it in one packed pass, and every count is that of the whole step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.data.cursor import Cursor
from whet.data.families import Judged, family_passes, fitting, judged_family, judged_rows, stepped_row
from whet.data.pairs import Preference, Ranked
from whet.data.prompts import Labelled
from whet.data.step_rows import Stepped
from whet.model.scalar_head import Kind, ScalarModel, scalar_model
from whet.model.split import SplitModel
from whet.model.token_logp import packs
from whet.objective.policy import Loss
from whet.objective.preference import LabelBatch, LabelLoss, RankBatch, RankLoss, RewardTotals, reward_totals
from whet.train.judge_marks import outcome_marks, pair_marks, step_marks
from whet.train.optimizer import OptimizerSettings, adamw, optimizer_tensors, restore_optimizer, scheduled_rate
from whet.train.run import Clock, RunFailed
from whet.train.update import NotFinite, stepped
from whet.types import Prompt, Sample, StepReport, WhetError


@dataclass(frozen=True)
class Verdict:
    """Rows to be scored, and how they were judged: by their order, or by labels."""

    rows: tuple[Judged, ...]  # the replies to one prompt, or a single row
    lengths: tuple[int, ...]  # tokens of each reply
    ranks: tuple[int, ...] = ()  # of each reply, 0 is the best
    labels: tuple[float | None, ...] = ()  # of each place of a single row
    margin: float = 0.0


@dataclass(frozen=True)
class Verdicts:
    rows: Sequence[Verdict]
    held_out: Sequence[Verdict] = ()


@dataclass(frozen=True)
class RewardModelSettings:
    steps: int
    rows_per_step: int
    tokens_per_pass: int  # memory only, never the gradient
    packed: bool
    seed: int


def verdicts(
    tokenizer: Any, rows: Sequence[Preference | Ranked | Labelled | Stepped], context: int, separator: str = "\n\n"
) -> tuple[list[Verdict], int]:
    """The rows as tokens, and how many were left out since one outgrows the context. `separator` ends a step."""
    found = [_verdict(tokenizer, row, separator) for row in rows]
    kept, dropped = fitting([row.rows for row in found], context)
    return [found[number] for number in kept], dropped


def _verdict(tokenizer: Any, row: Preference | Ranked | Labelled | Stepped, separator: str) -> Verdict:
    if isinstance(row, Stepped):
        one = stepped_row(tokenizer, row.prompt, row.steps, separator)
        return Verdict((one,), (len(one.tokens) - one.shared,), labels=row.labels)
    if isinstance(row, Labelled):
        replies: tuple[str, ...] = (row.reply,)
        judged: dict[str, Any] = {"labels": (float(row.label),)}
    elif isinstance(row, Ranked):
        replies, judged = row.replies, {"ranks": row.ranks}
    else:
        replies, judged = (row.chosen, row.rejected), {"ranks": (0, 1), "margin": row.margin}
    lengths = tuple(len(tokenizer(reply, add_special_tokens=False)["input_ids"]) for reply in replies)
    return Verdict(judged_family(tokenizer, row.prompt, replies), lengths, **judged)


def reward_model_on(
    language: SplitModel, tokenizer: Any, rows: Sequence[Verdict], kind: Kind, seed: int
) -> ScalarModel:
    """A reward model for these rows: `sequence` for whole replies, `token` for steps.

    The tokenizer gets a padding that no row ends in: a saved classifier reads its score at the last token before it.
    """
    ends = {each.tokens[-1] for row in rows for each in row.rows} | {tokenizer.eos_token_id}
    paddings = (tokenizer.pad_token_id, tokenizer.unk_token_id, *tokenizer.all_special_ids)
    made = scalar_model(language, kind, seed, ends, paddings)
    named = tokenizer.convert_ids_to_tokens(made.model.config.pad_token_id)
    if named is not None:
        tokenizer.pad_token = named
    return made


class RewardModelCourse:
    """One optimizer step a step, on `rows_per_step` rows. What is saved is a classifier of transformers."""

    def __init__(
        self,
        judge: ScalarModel,
        tokenizer: Any,
        objective: RankLoss | LabelLoss,
        lessons: Verdicts,
        settings: RewardModelSettings,
        optimizer: OptimizerSettings,
    ) -> None:
        _check(objective, lessons)
        self._judge, self._tokenizer, self._objective, self._lessons = judge, tokenizer, objective, lessons
        self._settings, self._rates = settings, optimizer
        self._packed = settings.packed and packs(judge.split)
        self._margins = any(row.margin for row in lessons.rows)
        self._optimizer = adamw(judge.model, optimizer)
        self._cursor = Cursor(len(lessons.rows), settings.seed)
        judge.model.train()

    @property
    def model(self) -> Any:
        return self._judge.model

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    @property
    def over(self) -> str | None:
        return None

    def step(self, number: int, clock: Clock) -> tuple[StepReport, list[tuple[Prompt, Sample]]]:
        taken, self._cursor = self._cursor.take(self._settings.rows_per_step)
        rows = [self._lessons.rows[index] for index in taken]
        rate = scheduled_rate(self._rates, number, self._settings.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with clock.phase("train"):
            self._optimizer.zero_grad(set_to_none=True)
            try:
                metrics, _ = self._studied(rows, learn=True)
                if not math.isfinite(metrics["loss"]):
                    raise NotFinite("the loss is not finite", "the weights diverged; lower optimizer.learning_rate")
                norm = stepped(self.model, self._optimizer, self._rates.max_gradient_norm)
            except NotFinite as error:
                raise RunFailed(f"step {number}: {error}; the weights of the last checkpoint are untouched") from error
        counts = {"rows": len(rows), "tokens": sum(sum(row.lengths) for row in rows)}
        told = {**metrics, "gradient_norm": norm, "learning_rate": rate}
        return StepReport(number, number - 1, counts, {}, told), []

    def _studied(self, rows: Sequence[Verdict], learn: bool) -> tuple[dict[str, float], list[list[float]]]:
        """Loss and metrics of all rows, and the scores of each; the gradient is accumulated where `learn`."""
        totals = reward_totals(_ranks(rows, self._margins) if rows[0].ranks else _labels(rows))
        done: list[tuple[Loss, list[int], Tensor]] = []
        families = [row.rows for row in rows]
        for numbers in family_passes(families, self._settings.tokens_per_pass, self._packed):
            part = [rows[number] for number in numbers]
            batch = judged_rows([row.rows for row in part])
            scores = self._judge.scores(batch.tokens, batch.scored, batch.shared)
            loss = self._loss(part, scores, totals)
            if learn:
                loss.value.backward()
            done.append((Loss(loss.value.detach(), loss.sums), numbers, scores.detach()))
        metrics: dict[str, float] = {}
        found: dict[int, list[float]] = {}
        for loss, numbers, scores in done:
            for name, number in {**loss.sums, "loss": loss.value}.items():
                metrics[name] = metrics.get(name, 0.0) + float(number)
            sizes = [sum(len(each.places) for each in rows[number].rows) for number in numbers]
            for each, values in zip(numbers, scores.cpu().split(sizes), strict=True):
                found[each] = values.tolist()
        return metrics, [found[number] for number in range(len(rows))]

    def _loss(self, rows: Sequence[Verdict], scores: Tensor, totals: RewardTotals) -> Loss:
        device = scores.device
        if isinstance(self._objective, RankLoss):
            ranks = _moved(_ranks(rows, self._margins), device)
            there = ranks.rank >= 0
            table = torch.zeros(there.shape, dtype=scores.dtype, device=device).masked_scatter(there, scores)
            return self._objective.loss(ranks, table, totals)
        labels = _moved(_labels(rows), device)
        places = torch.tensor([len(row.labels) for row in rows], device=device)
        there = torch.arange(labels.label.shape[1], device=device) < places[:, None]
        table = torch.zeros(there.shape, dtype=scores.dtype, device=device).masked_scatter(there, scores)
        return self._objective.loss(labels, table, totals)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        rows = self._lessons.held_out
        if not rows:
            return {}
        metrics, scores = self._studied(rows, learn=False)
        return {"loss": metrics["loss"], **verdict_marks(rows, scores)}

    def state(self) -> dict[str, Any]:
        return {"position": self._cursor.position}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"optimizer": optimizer_tensors(self.model, self._optimizer)}

    def restore(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._cursor = replace(self._cursor, position=state["position"])
        restore_optimizer(self.model, self._optimizer, tensors["optimizer"])


def verdict_marks(rows: Sequence[Verdict], scores: Sequence[Sequence[float]]) -> dict[str, float]:
    """The marks that fit the kind of the rows; of rankings, those of all their pairs."""
    if rows[0].ranks:
        pairs = [
            (given[better], given[worse], row.lengths[better], row.lengths[worse])
            for row, given in zip(rows, scores, strict=True)
            for better in range(len(given))
            for worse in range(len(given))
            if row.ranks[better] < row.ranks[worse]
        ]
        return pair_marks(*map(list, zip(*pairs, strict=True)))  # type: ignore[arg-type]
    if any(len(row.labels) > 1 for row in rows):
        return step_marks(scores, [row.labels for row in rows])
    return outcome_marks([given[0] for given in scores], [row.labels[0] or 0.0 for row in rows])


def _check(objective: RankLoss | LabelLoss, lessons: Verdicts) -> None:
    if not lessons.rows:
        raise WhetError("there are no rows to learn from; give data.source with at least one")
    ranked = {bool(row.ranks) for row in (*lessons.rows, *lessons.held_out)}
    if len(ranked) > 1:
        raise WhetError("rankings and labels are mixed; give data of one kind")
    if ranked != {isinstance(objective, RankLoss)}:
        wanted, given = ("rankings or pairs", "labels") if isinstance(objective, RankLoss) else ("labels", "rankings")
        raise WhetError(f"the loss learns from {wanted} and the data has {given}; give the other loss or other data")
    labels = {label > 0.5 for row in lessons.rows for label in row.labels if label is not None}
    if ranked == {False} and len(labels) < 2:
        raise WhetError("all labels of the data say the same; give right and wrong ones, else there is nothing to tell")


def _ranks(rows: Sequence[Verdict], margins: bool) -> RankBatch:
    most = max(len(row.ranks) for row in rows)
    rank = torch.tensor([[*row.ranks, *[-1] * (most - len(row.ranks))] for row in rows])
    if not margins:
        return RankBatch(rank)
    apart = torch.tensor([row.margin for row in rows])[:, None, None]
    return RankBatch(rank, apart.expand(-1, most, most))


def _labels(rows: Sequence[Verdict]) -> LabelBatch:
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
    return replace(batch, **{name: value.to(device) for name, value in values.items() if value is not None})
