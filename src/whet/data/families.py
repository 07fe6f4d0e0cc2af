"""Completions to one prompt as token rows that stay in one micro-batch: pairs, rankings, or a single completion.

For a language model the prompt's own tokens are shared and the completion's carry the loss, as in a demonstration.
For a classifier a row is what `whet.reward.learned` will read later, and all that the completions begin with is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from whet.data.chat import (
    ROWS_TOGETHER,
    prompt_tokens,
    templated,
    text_tokens,
    tokens_of_demonstrations,
    tokens_of_texts,
)
from whet.data.packing import BlockSize, PaddedRows, micro_batches, padded_rows
from whet.types import Demonstration, Encoded, Prompt, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Family = tuple[Encoded, ...]  # S completions to one prompt
IDLE: Family = (Encoded((0, 0), (False, True)),)  # for a pass that counts for nothing


@dataclass(frozen=True)
class ClassifierRow:
    """A row that a classifier scores at some of its tokens."""

    tokens: tuple[int, ...]  # [L]
    shared: int  # leading tokens that all rows of the family have
    places: tuple[int, ...]  # positions of the scored tokens, ascending


@dataclass(frozen=True)
class ClassifierBatch:
    """Rows of a classifier as tensors, right-padded."""

    tokens: Tensor  # int64 [N, T]
    shared: Tensor  # int64 [N]
    scored: Tensor  # bool [N, T]


def completion_family(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, completions: Sequence[str]) -> Family:
    """Each completion after the prompt's own tokens."""
    (family,) = completion_families(tokenizer, [(prompt, completions)])
    return family


def completion_families(
    tokenizer: PreTrainedTokenizerBase, questions: Iterable[tuple[Prompt, Sequence[str]]]
) -> Iterator[Family]:
    """`completion_family` of each; the completions to a few hundred prompts at a time are tokenized together."""
    left = iter(questions)
    while some := list(islice(left, ROWS_TOGETHER)):
        shown = (Demonstration(prompt, completion) for prompt, completions in some for completion in completions)
        rows = iter(tokens_of_demonstrations(tokenizer, shown))
        for _, completions in some:
            yield tuple(islice(rows, len(completions)))


def mismatched_family(family: Family, other: Family) -> Family:
    """The prompt of one family with the completions of another."""
    start = family[0].action.index(True)
    completions = [row.tokens[row.action.index(True) :] for row in other]
    opening = family[0].tokens[:start]
    return tuple(
        Encoded(opening + completion, (False,) * start + (True,) * len(completion)) for completion in completions
    )


def classifier_family(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, completions: Sequence[str]
) -> tuple[ClassifierRow, ...]:
    """Prompt and completion as a classifier reads them, scored at the last token."""
    (family,) = classifier_families(tokenizer, [(prompt, completions)])
    return family


def classifier_families(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[tuple[Prompt, Sequence[str]]]
) -> list[tuple[ClassifierRow, ...]]:
    """`classifier_family` of each, tokenized together."""
    shown = [(prompt, completion) for prompt, completions in questions for completion in completions]
    tokens = iter(_conversations_tokens(tokenizer, shown))
    families = [list(islice(tokens, len(completions))) for _, completions in questions]
    return [classifier_rows(rows, [(len(row) - 1,) for row in rows]) for rows in families]


def classifier_rows(rows: Sequence[tuple[int, ...]], places: Sequence[Sequence[int]]) -> tuple[ClassifierRow, ...]:
    """Rows of one family, each scored at its places."""
    shared = _common(rows)
    return tuple(ClassifierRow(row, shared, tuple(at)) for row, at in zip(rows, places, strict=True))


def stepped_row(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, steps: Sequence[str], separator: str
) -> ClassifierRow:
    """The steps in order, each closed by the separator and scored at its last token."""
    if not separator:
        raise WhetError("the separator of steps is empty; give a text that ends a step, such as a line break")
    tokens = list(prompt_tokens(tokenizer, prompt))
    shared, places = len(tokens), []
    separator_tokens = text_tokens(tokenizer, separator)
    for step in steps:
        # one by one: no token may run across the end of a step
        tokens += [*text_tokens(tokenizer, step.strip()), *separator_tokens]
        places.append(len(tokens) - 1)
    return ClassifierRow(tuple(tokens), shared, tuple(places))


def family_micro_batches(
    families: Sequence[Sequence[Encoded | ClassifierRow]], micro_batch_tokens: int, packed: bool
) -> list[list[int]]:
    """The numbers of the families in each micro-batch, whole ones only: at most `micro_batch_tokens` tokens computed.

    Packed, a prompt is computed once per family and padding never; else every row is as wide as the widest.
    """
    sizes = [BlockSize(len(family), _widest(family), family_cost(family)) for family in families]
    return micro_batches(sizes, micro_batch_tokens, packed)


def family_rows(families: Sequence[Family]) -> PaddedRows:
    """All rows of the families, family after family."""
    return padded_rows([row for family in families for row in family])


def classifier_batch(families: Sequence[Sequence[ClassifierRow]]) -> ClassifierBatch:
    """All rows of the families, family after family."""
    rows = [row for family in families for row in family]
    width = max(len(row.tokens) for row in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    scored = np.zeros((len(rows), width), np.bool_)
    for number, row in enumerate(rows):
        tokens[number, : len(row.tokens)] = row.tokens
        scored[number, list(row.places)] = True
    shared = torch.tensor([row.shared for row in rows])
    return ClassifierBatch(torch.from_numpy(tokens), shared, torch.from_numpy(scored))


def fitting(families: Sequence[Sequence[Encoded | ClassifierRow]], context: int) -> tuple[list[int], int]:
    """The numbers of the families whose rows all fit into the context, and how many do not.

    A completion is never cut: the end of one would be taken for the end of the other.
    """
    fit_indices = [number for number, family in enumerate(families) if _widest(family) <= context]
    if families and not fit_indices:
        shortest = min(_widest(family) for family in families)
        raise WhetError(
            f"no row fits: the shortest has {shortest} tokens; expected at most the model's context of {context}; "
            "shorten the prompts or use a model with a longer context"
        )
    return fit_indices, len(families) - len(fit_indices)


def _common(rows: Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all rows have in common."""
    together = zip(*rows, strict=False)
    return next((at for at, column in enumerate(together) if len(set(column)) > 1), min(map(len, rows)))


def _widest(family: Sequence[Encoded | ClassifierRow]) -> int:
    return max(len(row.tokens) for row in family)


def family_cost(family: Sequence[Encoded | ClassifierRow]) -> int:
    """Tokens that are computed where a prompt is computed once."""
    first = family[0]
    shared = first.shared if isinstance(first, ClassifierRow) else first.action.index(True)
    return shared + sum(len(row.tokens) - shared for row in family)


def _conversations_tokens(
    tokenizer: PreTrainedTokenizerBase, shown: Sequence[tuple[Prompt, str]]
) -> list[tuple[int, ...]]:
    """Prompts and completions, with all that the template writes after these: a scorer reads that too."""
    texts = [
        templated(tokenizer, (*prompt.messages, {"role": "assistant", "content": completion}), prompt.id)
        for prompt, completion in shown
        if prompt.text is None
    ]
    written = iter(tokens_of_texts(tokenizer, texts))
    return [
        next(written) if prompt.text is None else tuple(tokenizer(prompt.text + completion)["input_ids"])
        for prompt, completion in shown
    ]
