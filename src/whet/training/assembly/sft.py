"""Supervised fine-tuning: from a config to its demonstrations and trainer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from whet.data.chat import check_context, tokens_of_demonstrations
from whet.data.foreign_rows import demonstration_rows, holds_pair
from whet.data.prompts import demonstrations_from
from whet.data.rows import Row
from whet.data.tasks import Task, demonstrations
from whet.data.usable import count_words, evenly
from whet.model.load import LoadedModel
from whet.training.assembly.forms import prompt_form
from whet.training.assembly.prompts import data_summary
from whet.training.assembly.rows import (
    Read,
    column_facts,
    encodable,
    left_out_phrases,
    method_for,
    overlap_facts,
    read_usable,
    row_training,
)
from whet.training.assembly.runtime import Runtime, rows_fact
from whet.training.config import SFTConfig
from whet.training.distributed.shard import sharded
from whet.training.evaluator import Evaluator
from whet.training.sft_trainer import SFTTrainer
from whet.types import Demonstration, Encoded, Prompt, WhetError


def load_demonstrations(config: SFTConfig) -> tuple[list[Demonstration], list[Demonstration]]:
    """Rows to learn from, and held-out rows to measure the loss on."""
    data = config.data
    data.parsed_source.require_completions(config.method)
    if not data.parsed_source.is_task:

        def read(source: str, limit: int = 0) -> list[Demonstration]:
            return read_usable(data, source, _reader_for, limit, prompt_form(config, source))

        held_out = read(config.eval.source) if config.eval.source else []
        return read(data.source, data.limit), evenly(held_out, config.eval.prompts)

    def draw(task: Task, count: int, difficulty: int) -> list[Demonstration]:
        return demonstrations(task, count, config.seed, difficulty, data.share_worked)

    return data.parsed_source.from_tasks(draw, data.count, data.difficulty), []


def _reader_for(row: Row) -> Read:
    """The reader for rows like this one: nobody said which of two completions is to be learned."""
    known = next(demonstration_rows(row)).values
    if not holds_pair(row) or any(known.get(name) for name in ("completion", "messages", "text")):
        return demonstrations_from
    column = "messages" if isinstance(row.values.get("chosen"), list) and not known.get("prompt") else "completion"
    chosen = f", or learn the chosen ones with data.columns.chosen={column}" if "chosen" in row.values else ""
    raise WhetError(
        f"{row.where}: the row is a pair of completions; sft learns from single ones; train a method that compares two "
        f"(dpo, ipo, simpo, orpo, ...: `whet algorithms`) or {method_for('rankings')}{chosen}"
    )


def describe_sft() -> tuple[str, list[str]]:
    """Title and objective, in words and symbols."""
    return "SFT", [
        "Supervised fine-tuning",
        "  J = 1/M SUM log pi(completion token)",
        "  - every completion token counts the same",
    ]


def build_sft(
    config: SFTConfig, runtime: Runtime, eval_prompts: Sequence[Prompt], evaluator: Evaluator | None
) -> tuple[SFTTrainer, dict[str, str]]:
    """The trainer, and the facts of its data."""
    loaded = runtime.loaded
    rows: Sequence[Demonstration]
    eval_rows: Sequence[Demonstration]
    rows, eval_rows = load_demonstrations(config)
    encode = partial(tokens_of_demonstrations, loaded.tokenizer, every_completion=config.data.every_completion)
    rows, written = encodable(rows, encode, config.data)
    encoded, too_long = _fitting(config, rows, written, loaded)
    eval_rows, written = encodable(eval_rows, encode, config.data)
    eval_encoded, eval_too_long = _fitting(config, eval_rows, written, loaded)
    dropped = too_long + eval_too_long
    trainer = SFTTrainer(
        runtime.policy if runtime.shards is None else sharded(runtime.policy, runtime.shards),
        loaded.tokenizer,
        encoded,
        eval_encoded,
        evaluator,
        **row_training(config, runtime.ranks),
    )
    phrases = [data_summary(config, (), () if eval_rows else eval_prompts)]
    phrases += [f"{count_words(eval_rows, len(eval_encoded))} held out"] if eval_rows else []
    phrases += left_out_phrases(rows, eval_rows)
    phrases += [f"{dropped} left out: too long for the context"] if dropped else []
    lengths = rows_fact([row.tokens for row in encoded])
    overlap = overlap_facts(rows, eval_rows or eval_prompts)
    return trainer, {"data": ", ".join(phrases), **column_facts(rows, eval_rows), **overlap, **lengths}


def _fitting(
    config: SFTConfig, rows: Sequence[Demonstration], encoded: Sequence[Encoded], loaded: LoadedModel
) -> tuple[list[Encoded], int]:
    """The rows that fit into the context, and how many do not; those are an error unless they may be left out."""
    fitting = [row for row in encoded if len(row.tokens) <= loaded.context]
    if len(fitting) < len(encoded) and (config.data.unusable == "stop" or not fitting):
        lengths = [len(row.tokens) for row in encoded]
        prompts, context = [row.prompt for row in rows], loaded.context
        check_context(prompts, lengths, max_new_tokens=0, context=context, reason=loaded.context_reason)
    return fitting, len(encoded) - len(fitting)
