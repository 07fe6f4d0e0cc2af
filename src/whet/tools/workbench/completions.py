"""Completions to score without training: those a run saved, those in a file, or the gold ones of the data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from whet.data.foreign_rows import QUESTIONS, holds_pair, holds_ranking
from whet.data.pairs import preferences_from
from whet.data.prompts import PreferencePair, prompts_from, renamed
from whet.data.rows import Row
from whet.data.sections import DataSection
from whet.data.source import DataSource, parse_source, read_rows
from whet.data.usable import left_out_words
from whet.training.assembly.rows import read_usable
from whet.types import Prompt, Sample, StopReason, WhetError, did_you_mean

COMPLETION_COLUMNS = ("completion", "reply", "response")
SOLUTION_COLUMNS = ("solution", "completion", "canonical_solution", "code")
CODE_COLUMNS = ("canonical_solution", "code")
TASK_ROWS = 200  # questions of a task, which has no end, where no limit is given
CHARACTERS = 4  # of a token, where no tokenizer counts them

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class TrialCompletion:
    """A completion to a prompt, with the scores a run recorded for it."""

    prompt: Prompt
    sample: Sample
    where: str
    kind: str  # "gold answer", "gold solution", "chosen", "rejected", "completion" or the name of a wrong control
    step: int = 0
    parts: Mapping[str, float | None] = field(default_factory=dict)
    reward: float | None = None
    reward_hash: str = ""


@dataclass(frozen=True)
class TrialCompletions:
    """Completions, where they come from, and what was assumed to read them."""

    source: str
    items: tuple[TrialCompletion, ...]
    notes: tuple[str, ...] = ()


def estimated_tokens(text: str) -> list[int]:
    """The tokens that a text of this length usually has."""
    return [0] * math.ceil(len(text) / CHARACTERS)


def gold_completions(
    source: str,
    columns: Mapping[str, str],
    limit: int,
    encode: Encode = estimated_tokens,
    settings: Mapping[str, Any] | None = None,
) -> TrialCompletions:
    """The gold answer of each row in answer tags, and its gold solution as it stands; of a pair both completions.

    Rows are read as training reads them; `settings` are further keys of the config's data section.
    """
    parsed = parse_source(source)
    if parsed.is_task:
        return _task_completions(parsed, limit, encode)
    if parsed.is_gym:
        return _gym_completions(parsed, limit, encode)
    data = DataSection.model_validate({**(settings or {}), "source": source, "columns": dict(columns)})
    read = read_usable(data, source, _reader_of, limit)
    completions: list[TrialCompletion] = []
    for number, row in enumerate(read):
        prompt = row.prompt if isinstance(row, PreferencePair) else row
        where = read.places[number] if read.places else prompt.id
        for kind, completion in _completions_of(row):
            completions.append(TrialCompletion(prompt, sample_of(completion, encode), where, kind))
    if not completions:
        raise WhetError(
            f"{source}: no row has an `answer` or a solution ({', '.join(SOLUTION_COLUMNS)}) to score; "
            "give answers with --completions FILE, or rename a column with --set data.columns.YOURS=answer"
        )
    notes = [note for note in (read.notes, left_out_words(read.left_out)) if note]
    return TrialCompletions(source, tuple(completions), (*notes, *_encode_note(encode)))


def _reader_of(row: Row) -> Callable[..., list[Any]]:
    return preferences_from if holds_pair(row) or holds_ranking(row) else prompts_from


def _completions_of(row: Prompt | PreferencePair) -> Iterator[tuple[str, str]]:
    if isinstance(row, PreferencePair):
        yield from (("chosen", row.chosen), ("rejected", row.rejected))
    else:
        yield from _gold_completions(row)


def given_completions(
    completions: str, source: str | None, columns: Mapping[str, str], limit: int, encode: Encode = estimated_tokens
) -> TrialCompletions:
    """The completions of a file; their prompts stand in the same rows, or in `source` under the same id or text."""
    rows = read_rows(completions, limit or None)
    by_key: dict[str, Prompt] = {}
    notes: tuple[str, ...] = ()
    if source is not None:
        prompts = read_usable(DataSection(source=source, columns=dict(columns)), source, lambda _: prompts_from)
        notes = (prompts.notes,) if prompts.notes else ()
        by_key = {key: prompt for prompt in prompts for key in (prompt.question().strip(), prompt.id)}
    answers = []
    for row in rows:
        column = next((name for name in COMPLETION_COLUMNS if row.values.get(name) is not None), None)
        if column is None:
            raise WhetError(
                f"{row.where}: no completion; the row has {', '.join(map(repr, row.values))}; "
                f"name a column {' or '.join(COMPLETION_COLUMNS)}"
            )
        prompt = _joined(row, by_key, source) if by_key else _own_prompt(row, column, columns)
        answers.append(
            TrialCompletion(prompt, sample_of(_completion_text(row, column), encode), row.where, "completion")
        )
    return TrialCompletions(completions, tuple(answers), (*notes, *_encode_note(encode)))


def run_completions(folder: str | Path, limit: int = 0) -> TrialCompletions:
    """The samples a run saved; their prompts come from its data, or from the samples where that is gone."""
    from whet.record.log import read_samples
    from whet.training.assembly.prompts import load_prompts
    from whet.training.saved_config import read_config

    path = Path(folder)
    config = read_config(path)
    lines = read_samples(path)
    if not lines:
        raise WhetError(f"{path}: the run saved no samples; train with --set report.samples_per_step=1 or more")
    notes: list[str] = []
    prompts: dict[str, Prompt] = {}
    try:
        prompts = {prompt.id: prompt for prompt in load_prompts(config, evaluation=False)}
    except WhetError as error:
        notes.append(f"its prompts are read from the samples, without further columns: {error}")
    completions = []
    for number, line in enumerate(lines[: limit or None], start=1):
        stand_in = Prompt(str(line["prompt_id"]), (), str(line["question"]), line.get("answer"))
        sample = sample_of(str(line["completion"]), lambda _, count=line["tokens"]: [0] * int(count))  # type: ignore[misc]
        completions.append(
            TrialCompletion(
                prompt=prompts.get(stand_in.id, stand_in),
                sample=replace(sample, stop=StopReason(line["stop"])),
                where=f"samples.jsonl:{number}",
                kind="completion",
                step=int(line["step"]),
                parts=line.get("parts") or {},
                reward=line.get("reward"),
                reward_hash=str(line.get("reward_hash") or ""),
            )
        )
    missing = sum(answer.prompt.id not in prompts for answer in completions)
    if missing and not notes:
        notes.append(f"{missing} samples answer prompts that are no longer in {config.data.source}")
    return TrialCompletions(str(path), tuple(completions), tuple(notes))


def tokenizer_encode(model: str) -> Encode:
    """Tokens as this model counts them."""
    from whet.model.load import load_model

    tokenizer = load_model(model, torch.float32, "cpu").tokenizer
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


def _task_completions(source: DataSource, limit: int, encode: Encode) -> TrialCompletions:
    from whet.data.tasks import demonstrations

    completions = []
    tasks = source.tasks()
    for task in tasks:
        count = -(-(limit or TASK_ROWS) // len(tasks))
        for number, row in enumerate(demonstrations(task, count, 0, 3, 1.0), start=1):
            where = f"task:{task.name} {number}"
            completions.append(TrialCompletion(row.prompt, sample_of(row.completion, encode), where, "gold solution"))
    note = f"gold solutions are the task's own demonstrations, {len(completions)} of them"
    return TrialCompletions(str(source), tuple(completions), (note,))


def _gym_completions(source: DataSource, limit: int, encode: Encode) -> TrialCompletions:
    completions = [
        TrialCompletion(prompt, sample_of(completion, encode), prompt.id, kind)
        for prompt in source.prompts("train", limit or TASK_ROWS, 0)
        for kind, completion in _gold_completions(prompt)
    ]
    if not completions:
        raise WhetError(f"{source}: its entries have no gold answer to score; give answers with --completions FILE")
    return TrialCompletions(str(source), tuple(completions), _encode_note(encode))


def _gold_completions(prompt: Prompt) -> Iterator[tuple[str, str]]:
    if prompt.answer is not None:
        text = prompt.answer if isinstance(prompt.answer, str) else json.dumps(prompt.answer, ensure_ascii=False)
        yield "gold answer", f"<think>\nThis is the gold answer.\n</think>\n<answer>{text}</answer>"
    for column in SOLUTION_COLUMNS:
        solution = prompt.meta.get(column)
        if isinstance(solution, str) and solution.strip():
            if column in CODE_COLUMNS:
                # a reference solution may be the body of the function that the prompt begins
                start = prompt.question() if column == "canonical_solution" and "def " in prompt.question() else ""
                solution = f"```python\n{start}{solution}\n```"
            yield "gold solution", solution
            return


def _own_prompt(row: Row, column: str, columns: Mapping[str, str]) -> Prompt:
    values = {name: value for name, value in row.values.items() if name != column}
    # one by one: several completions to one prompt share its id
    (prompt,) = prompts_from(renamed([Row(values, row.where)], columns))
    return prompt


def _joined(row: Row, by_key: Mapping[str, Prompt], source: str | None) -> Prompt:
    keys = [str(row.values[name]) for name in ("prompt_id", "id", "prompt", *QUESTIONS, "text") if name in row.values]
    for key in keys:
        if key.strip() in by_key:
            return by_key[key.strip()]
    wanted = keys[0][:60] if keys else "nothing"
    raise WhetError(
        f"{row.where}: no row of {source} has the id or prompt {wanted!r}"
        f"{did_you_mean(wanted, by_key)}; give each completion the `prompt_id` or the `prompt` it answers"
    )


def _completion_text(row: Row, column: str) -> str:
    value = row.values[column]
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content")
    if not isinstance(value, str):
        raise WhetError(
            f"{row.where}: {column} is {str(value)[:40]!r}; expected text; write the completion as a string"
        )
    return value


def sample_of(completion: str, encode: Encode) -> Sample:
    """A finished sample of this text."""
    tokens = torch.tensor(list(encode(completion)), dtype=torch.long)
    action = torch.ones(len(tokens), dtype=torch.bool)
    return Sample(tokens, action, torch.zeros(len(tokens)), (0, 0), StopReason.END, completion)


def _encode_note(encode: Encode) -> tuple[str, ...]:
    if encode is not estimated_tokens:
        return ()
    return (f"lengths are estimates, {CHARACTERS} characters per token; --model NAME counts with its tokenizer",)


def described(value: Any) -> str:
    """A gold answer as text; nothing where there is none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
