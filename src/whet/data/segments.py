"""Sentences of a completion, counted on its tokens: where they end, and which of them start from the same text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SENTENCE_ENDS = (".", "!", "?", ";", "\n", *"\u3002\uff01\uff1f\uff1b")  # the last four: full-width marks


def sentence_ends(tokenizer: Any, vocabulary: int) -> Tensor:
    """bool [V]: tokens whose text ends a sentence."""
    known = min(vocabulary, len(tokenizer))
    texts = tokenizer.batch_decode([[token] for token in range(known)], skip_special_tokens=False)
    ends = torch.zeros(vocabulary, dtype=torch.bool)
    ends[:known] = torch.tensor([text.rstrip(" ").endswith(SENTENCE_ENDS) for text in texts])
    return ends


def segments(tokens: Tensor, action: Tensor, ends: Tensor) -> Tensor:
    """int64 [N, T]: the number of the sentence each action belongs to, from 0; -1 elsewhere.

    A token that ends a sentence belongs to it. What is not an action (a tool's answer) ends one too: a turn is over.
    """
    closing = action & ends[tokens]
    resumed = action.clone()
    resumed[:, 1:] &= ~action[:, :-1]
    first = action & (action.cumsum(-1) == 1)
    after_close = torch.zeros_like(closing)
    after_close[:, 1:] = closing[:, :-1]
    opening = action & (after_close | resumed) & ~first
    return torch.where(action, opening.cumsum(-1), -1)


def anchors(tokens: Tensor, group: Tensor, segment: Tensor) -> Tensor:
    """int64 [N, T]: equal where sentences of one group start behind the same tokens; 0 where there is no sentence."""
    # int64 arithmetic wraps: a running hash of all tokens before each position
    position = torch.arange(1, tokens.shape[1] + 1)
    # scrambled one by one before they are added: a sum of small multiples would meet itself
    each = _scrambled(tokens * 0x100003 + position * 0x5851F42D4C957F2D)
    mixed = each.cumsum(-1)
    before = torch.zeros_like(mixed)
    before[:, 1:] = mixed[:, :-1]
    before = _scrambled(before + group[:, None] * 0x14057B7EF767814F)
    starts = torch.ones_like(segment, dtype=torch.bool)
    starts[:, 1:] = segment[:, 1:] != segment[:, :-1]
    column = torch.where(starts, torch.arange(tokens.shape[1])[None].expand_as(tokens), 0).cummax(-1).values
    return torch.where(segment >= 0, before.gather(1, column), 0)


def _scrambled(values: Tensor) -> Tensor:
    """Each int64 as another one that looks random: two rounds of shift and multiply."""
    for shift, factor in ((33, 0x2545F4914F6CDD1D), (29, 0x14057B7EF767814F)):
        values = (values ^ (values >> shift)) * factor
    return values ^ (values >> 32)
