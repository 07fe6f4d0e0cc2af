"""Reward models: from a config to rankings, outcomes or labelled steps, the model with its head, and the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from whet.data.foreign_rows import holds_completion, holds_pair, holds_ranking, holds_steps
from whet.data.pairs import RankedCompletions, labelled_completions_from, preferences_from, rankings_from
from whet.data.prompts import LabelledCompletion, PreferencePair
from whet.data.rows import Row
from whet.data.step_rows import LABELS, LabelledSteps, common_separator, outcomes_from, stepped_from
from whet.data.tasks.contrast import STEP, task_labelled, task_rankings, task_stepped
from whet.data.usable import count_words
from whet.model.scalar_head import Kind
from whet.objective.preference.reward_model_losses import AllPairs, LabelLoss, PlackettLuce, RankLoss
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.reward.learned.process import EMPTY_LINE, SEPARATOR
from whet.training.assembly.rows import (
    Read,
    column_facts,
    encodable,
    file_rows,
    left_out_phrases,
    method_for,
    naming_source,
    overlap_facts,
    refuse_too_long,
    row_training,
    rows_summary,
    task_rows,
    too_long_note,
)
from whet.training.assembly.runtime import Runtime, rows_fact
from whet.training.config import RewardModelConfig
from whet.training.distributed.shard import sharded_scalar_model
from whet.training.reward_model_trainer import (
    RewardModelDataset,
    RewardModelTrainer,
    bootstrap_rows,
    build_reward_model,
    reward_model_rows,
)
from whet.types import WhetError


def describe_reward_model(config: RewardModelConfig) -> tuple[str, list[str]]:
    """Title and objective, in words and symbols."""
    preset = REWARD_MODELS[config.method]
    loss = _loss(config)
    if isinstance(loss, RankLoss):
        formula = (
            "  L = mean -log sigma(r_better - r_worse)"
            if config.reward_model.cost == "all_pairs"
            else "  L = Plackett-Luce"
        )
        formula += f" + {config.reward_model.centre:g} (r_better + r_worse)^2" if config.reward_model.centre else ""
    else:
        formula = "  L = -mean [ y log p + (1 - y) log(1 - p) ], p = sigma(r)"
    lines = [f"{preset.title}  ({preset.paper})", formula, f"  - {preset.objective.words}", f"  - {_scored_at(config)}"]
    if config.reward_model.heads > 1:
        draw = "its own draw of the rows" if config.reward_model.bootstrap else "the same rows"
        lines.append(f"  - {config.reward_model.heads} heads on one trunk, each from {draw}; L is the mean of theirs")
    return preset.title, lines


def _scored_at(config: RewardModelConfig) -> str:
    """Which token is scored."""
    if REWARD_MODELS[config.method].objective.learns == "steps":
        return "scored at the last token of each step"
    if config.reward_model.outcome_at == "every_token":
        return "learned at every token of a completion, scored at the last token of the conversation"
    return "scored at the last token of the conversation"


def build_reward_model_run(
    config: RewardModelConfig, runtime: Runtime
) -> tuple[RewardModelTrainer, dict[str, str], int]:
    """The trainer, the facts of its data, and on how many rows it is evaluated."""
    learns, source = REWARD_MODELS[config.method].objective.learns, config.data.source
    policy, tokenizer, context = runtime.policy, runtime.tokenizer, runtime.loaded.context
    train, evaluation = _load_rows(config, learns)
    separator = _separator(config, train)
    heads, everywhere = config.reward_model.heads, config.reward_model.outcome_at == "every_token"
    encode = partial(reward_model_rows, tokenizer, context=context, separator=separator)
    with naming_source(source):
        train, (rows, dropped) = encodable(train, partial(encode, every_token=everywhere), config.data)
        refuse_too_long(config.data, dropped, context)
    with naming_source(config.eval.source):
        evaluation, (eval_rows, too_long) = encodable(evaluation, encode, config.data)
        refuse_too_long(config.data, too_long, context)
    kind: Kind = "token" if learns == "steps" else "sequence"
    reward_model = build_reward_model(policy, tokenizer, [*rows, *eval_rows], kind, config.seed, heads)
    if learns == "steps":
        setattr(reward_model.model.config, SEPARATOR, separator)
    if runtime.shards is not None:
        reward_model = sharded_scalar_model(reward_model, runtime.shards)
    rows = bootstrap_rows(rows, heads, config.seed) if heads > 1 and config.reward_model.bootstrap else rows
    with naming_source(source, too_long_note(dropped) if dropped else ""):
        dataset = RewardModelDataset(rows, eval_rows)
        trainer = RewardModelTrainer(
            reward_model, tokenizer, _loss(config), dataset, **row_training(config, runtime.ranks)
        )
    left_out = left_out_phrases(train, evaluation)
    held_out = count_words(evaluation, len(eval_rows)) if eval_rows else ""
    data = rows_summary(source, len(rows), held_out, dropped + too_long, left_out)
    lengths = rows_fact([completion.tokens for row in rows for completion in row.rows])
    facts = {**column_facts(train, evaluation), **overlap_facts(train, evaluation)}
    return trainer, {"data": data, **facts, **lengths}, len(eval_rows)


def _separator(config: RewardModelConfig, rows: Sequence[Any]) -> str:
    """What ends a step: as told, else as the data has it."""
    if config.reward_model.separator or REWARD_MODELS[config.method].objective.learns != "steps":
        return config.reward_model.separator or EMPTY_LINE
    return (STEP if config.data.parsed_source.is_task else common_separator(rows)) or EMPTY_LINE


def _loss(config: RewardModelConfig) -> RankLoss | LabelLoss:
    settings = config.reward_model
    if REWARD_MODELS[config.method].objective.learns == "rankings":
        return RankLoss(AllPairs() if settings.cost == "all_pairs" else PlackettLuce(), settings.centre)
    return LabelLoss(settings.even_completions, settings.positive_weight)


def _load_rows(
    config: RewardModelConfig, learns: str
) -> tuple[
    Sequence[PreferencePair | RankedCompletions | LabelledCompletion | LabelledSteps],
    Sequence[PreferencePair | RankedCompletions | LabelledCompletion | LabelledSteps],
]:
    of_task: Any = {"rankings": task_rankings, "outcomes": task_labelled, "steps": task_stepped}[learns]
    is_task, labels = config.data.parsed_source.is_task, config.reward_model.labels
    if labels != LABELS and (is_task or learns != "steps"):
        raise WhetError(f"reward_model.labels={labels} has no effect: it names a column of a file with steps; drop it")
    if is_task:
        return task_rows(config, of_task)
    return file_rows(config, partial(_reader_for, config.method, learns, labels), of_task)


def _reader_for(method: str, learns: str, labels: str, row: Row) -> Read:
    """The function that reads rows like this one."""
    if learns == "steps":
        return partial(stepped_from, labels_in=labels)
    if learns == "outcomes":
        if holds_pair(row) or holds_ranking(row):
            raise WhetError(
                f"{row.where}: the row compares completions; {method} learns from single ones, with 'completion' and "
                f"'label'; train {method_for('rankings')}, or give labelled completions"
            )
        return outcomes_from if holds_steps(row) else labelled_completions_from
    if holds_steps(row) or holds_completion(row):
        kind, other = (
            ("a solution in steps", "steps") if holds_steps(row) else ("one completion with a label", "outcomes")
        )
        raise WhetError(
            f"{row.where}: the row is {kind}; {method} compares completions to one prompt, 'chosen' and 'rejected' or "
            f"'completions' and 'scores'; train {method_for(other)}, or give comparisons"
        )
    return rankings_from if holds_ranking(row) else preferences_from
