"""From a config's files to values: columns are renamed, and rows that cannot be used stop the run or are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from whet.data.benchmarks import bare_question
from whet.data.prompts import renamed, with_system_prompt
from whet.data.rows import BadRow, Row
from whet.data.sections import DataSection
from whet.data.source import EVAL, EVAL_SEED, TRAIN, parse_source, read_rows
from whet.data.usable import Usable, evenly, left_out_words, usable, without
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.record.text import count_of
from whet.training.assembly.forms import PromptForm, prompt_form, stated_form
from whet.training.config import PreferenceConfig, RewardModelConfig, SFTConfig
from whet.training.distributed.ranks import Ranks
from whet.training.row_trainer import RowRun
from whet.types import Prompt, WhetError

Read = Callable[..., list[Any]]
Encodings = TypeVar("Encodings")


def read_usable(
    data: DataSection, source: str, reader: Callable[[Row], Read], limit: int = 0, form: PromptForm | None = None
) -> Usable[Any]:
    """The values of a file; `reader` says by its first row who reads it. At most `limit` rows, 0 is all.

    `form` is that of the model that is asked; where there is none, the data section's own.
    """
    form = form or stated_form(data)
    rows = renamed(read_rows(source, limit or None, faulty=True, for_chat=form.says_answer_form), data.columns)
    first = next((row for row in rows if row.fault is None), None)
    read: Read = partial(reader(first), as_chat=form.as_chat) if first else list  # then each row has its fault
    values = usable(rows, read, drop=data.unusable == "drop")
    if data.system_prompt:
        values[:] = with_system_prompt(values, data.system_prompt)
    return values


def encodable(
    values: Sequence[Any], encode: Callable[[Sequence[Any]], Encodings], data: DataSection
) -> tuple[Sequence[Any], Encodings]:
    """The values that `encode` takes, and what it makes of them.

    One that a chat template refuses stops the run, or is left out and counted.
    """
    try:
        return values, encode(values)
    except BadRow as error:
        if data.unusable == "stop" or not data.parsed_source.is_stored:
            raise WhetError(f"{error}; or leave such rows out with data.unusable=drop") from error
    usable_numbers, refused = [], []
    for number, value in enumerate(values):
        try:
            encode([value])
            usable_numbers.append(number)
        except BadRow as error:
            refused.append(error)
    if 2 * len(refused) > len(values):
        raise WhetError(
            f"{refused[0]}; {len(refused)} of {len(values)} rows cannot be used, and data.unusable=drop leaves out at "
            "most half"
        )
    usable_values = without(values, usable_numbers, Counter(error.reason for error in refused))
    return usable_values, encode(usable_values)


def left_out_phrases(*values: Sequence[Any]) -> list[str]:
    """What the summary of a run says of the rows that were left out: one phrase, or none."""
    total: Counter[str] = sum((value.left_out for value in values if isinstance(value, Usable)), Counter())
    return [left_out_words(total)] if total else []


def column_facts(*values: Sequence[Any]) -> dict[str, str]:
    """What was found under which name, for the run's facts; nothing where the data has whet's own columns."""
    notes = dict.fromkeys(value.notes for value in values if isinstance(value, Usable) and value.notes)
    return {"columns": "; ".join(notes)} if notes else {}


def overlap_facts(train: Sequence[Any], evaluation: Sequence[Any]) -> dict[str, str]:
    """How many eval prompts are also trained on, for the run's facts; white space does not count. Empty for none."""
    known = {prompt_words(value) for value in train} if evaluation else set()
    both = sum(prompt_words(value) in known for value in evaluation)
    if not both:
        return {}
    are = "is" if both == 1 else "are"
    return {
        "overlap": f"{both} of {count_of(len(evaluation), 'eval prompt')} {are} also trained on; "
        "what is measured there may be memory (`whet data contamination` finds near copies too)"
    }


def prompt_words(value: Any) -> tuple[str, ...]:
    """The words of a prompt, or of a row's, by which two are the same: white space does not count, nor whether it is
    plain text or a message, nor the sentence on a benchmark's form of an answer. A row without a word is a task of its
    environment, and has its name."""
    prompt: Prompt = getattr(value, "prompt", value)
    plain = prompt.text or ""
    if not (any(str(message["content"]).strip() for message in prompt.messages) or plain.strip()):
        return (prompt.id,)
    texts = (plain, *(str(message["content"]) for message in prompt.messages))
    return tuple(" ".join(map(bare_question, texts)).split())


def task_rows(config: PreferenceConfig | RewardModelConfig, write: Read) -> tuple[list[Any], list[Any]]:
    """Training and eval rows that a task writes."""
    data = config.data

    def rows(split: str, seed: int, count: int) -> list[Any]:
        return data.parsed_source.from_tasks(
            lambda task, share, difficulty: write(task, split, share, seed, difficulty), count, data.difficulty
        )

    return rows(TRAIN, config.seed, data.count), rows(EVAL, EVAL_SEED, config.eval.prompts)


def file_rows(
    config: PreferenceConfig | RewardModelConfig, reader: Callable[[Row], Read], of_task: Read | None = None
) -> tuple[list[Any], list[Any]]:
    """`of_task` writes the rows of a task that a file is measured on."""
    data = config.data
    data.parsed_source.require_completions(config.method)
    train = read_usable(data, data.source, reader, data.limit, prompt_form(config, data.source))
    if of_task is not None and parse_source(config.eval.source).is_task:
        asked = data.model_copy(update={"source": config.eval.source})
        return train, task_rows(config.model_copy(update={"data": asked}), of_task)[1]
    if not config.eval.source:
        return train, []
    held_out = read_usable(data, config.eval.source, reader, form=prompt_form(config, config.eval.source))
    return train, evenly(held_out, config.eval.prompts)


def row_training(config: SFTConfig | PreferenceConfig | RewardModelConfig, ranks: Ranks) -> RowRun:
    """How the run trains on its rows."""
    return {
        "batch": config.batch,
        "optimizer": config.optimizer,
        "steps": config.steps,
        "seed": config.seed,
        "ranks": ranks,
    }


@contextmanager
def naming_source(source: str, after: str = "") -> Iterator[None]:
    """Mistakes of the data as a whole name the source."""
    try:
        yield
    except WhetError as error:
        raise WhetError(f"{source}: {error}{after}") from error


def refuse_too_long(data: DataSection, dropped: int, context: int) -> None:
    """Raise where rows do not fit and nobody said that they may be left out."""
    if dropped and data.unusable == "stop" and data.parsed_source.is_stored:
        rows = f"{dropped} row{'s are' if dropped > 1 else ' is'}"
        raise WhetError(
            f"{rows} longer than the model's context of {context} tokens; leave them out with data.unusable=drop, "
            "shorten them, or use a model with a longer context"
        )


def too_long_note(dropped: int) -> str:
    """The remark that some rows are too long for the model."""
    return f" ({dropped} more rows are too long for the model: shorten them, or use a model with a longer context)"


def rows_summary(source: str, count: int, held_out: str, dropped: int, left_out: list[str]) -> str:
    """The rows of a run in one line."""
    parts = [f"{count} row{'s' if count != 1 else ''}", *([f"{held_out} held out"] if held_out else [])]
    parts += [f"{dropped} left out: too long for the context"] if dropped else []
    parts += left_out
    return f"{source} ({', '.join(parts)})"


def method_for(learns: str) -> str:
    """The reward-model method that learns from such rows."""
    return next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == learns)
