"""The log-likelihood of choices behind a question, by the trainer's forward pass: a question is read once for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from whet.data.chat import prompt_tokens
from whet.data.packing import BlockSize, micro_batches, padded_rows
from whet.model.causal_lm import CausalLM
from whet.model.fused_weights import unchanged_weights
from whet.model.token_logp import packs, token_logp
from whet.types import Encoded, Prompt, WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MICRO_BATCH_TOKENS = 16_384


def choice_logp(
    policy: CausalLM, tokenizer: PreTrainedTokenizerBase, questions: Sequence[Prompt], context: int
) -> list[list[float]]:
    """[questions][choices]: the log-probability of each choice after the question and a space."""
    rows = [_encoded(tokenizer, question, context) for question in questions]
    packed = packs(policy)
    sizes = [_size(choices) for choices in rows]
    scores: list[list[float]] = [[] for _ in questions]
    with torch.no_grad(), unchanged_weights():
        for numbers in micro_batches(sizes, MICRO_BATCH_TOKENS, packed):
            batch = padded_rows([row for number in numbers for row in rows[number]])
            logp = token_logp(policy, batch.tokens, batch.action).logp.double().sum(-1).tolist()
            for number in numbers:
                scores[number], logp = logp[: len(rows[number])], logp[len(rows[number]) :]
    return scores


def _encoded(tokenizer: PreTrainedTokenizerBase, question: Prompt, context: int) -> list[Encoded]:
    """For each choice the question's own tokens, then what the choice adds to them.

    A question that is too long loses its beginning.
    """
    text, rows = question.text or "", []
    before = prompt_tokens(tokenizer, Prompt(question.id, (), text.rstrip()))  # blanks at its end belong to the choice
    for choice in question.meta["choices"]:
        added = prompt_tokens(tokenizer, Prompt(question.id, (), f"{text} {choice}"))[len(before) :]
        if not added or len(added) >= context:
            raise WhetError(
                f"{question.id}: the choice {choice[:40]!r} has {len(added)} tokens; expected 1 to {context - 1}; use "
                "a model with a longer context"
            )
        fitting = before[-(context - len(added)) :]
        rows.append(Encoded(fitting + added, (False,) * len(fitting) + (True,) * len(added)))
    return rows


def _size(rows: Sequence[Encoded]) -> BlockSize:
    """The choices of a question stay together: what they share is computed once."""
    added = [sum(row.action) for row in rows]
    width = max(len(row.tokens) for row in rows)
    return BlockSize(len(rows), width, width - max(added) + sum(added))
