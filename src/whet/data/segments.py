"""The turns of an episode and the sentences of a completion, counted on its tokens, and which of them start alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.types import Sample, Turn

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


@dataclass(frozen=True)
class PolicyTurn:
    """A turn that the policy wrote, and its first and last action in the tokens of the sample."""

    turn: Turn
    first: int
    last: int


def policy_turns(sample: Sample) -> list[PolicyTurn]:
    """The turns with at least one action, in order."""
    turns = []
    for turn in sample.turns:
        actions = sample.action[turn.start : turn.stop].nonzero()[:, 0]
        if len(actions):
            turns.append(PolicyTurn(turn, turn.start + int(actions[0]), turn.start + int(actions[-1])))
    return turns


def with_turns(segment: Tensor, samples: Sequence[Sample]) -> Tensor:
    """int64 [N, T]: the rows of episodes have the number of the turn instead of the sentence."""
    numbered = segment.clone()
    for row, sample in zip(numbered, samples, strict=True):
        turns = policy_turns(sample)
        if turns:
            starts = torch.zeros(len(row), dtype=torch.long)
            for turn in turns[1:]:
                starts[turn.first] = 1
            row[:] = torch.where(row >= 0, starts.cumsum(0), -1)
    return numbered


def with_states(anchor: Tensor, samples: Sequence[Sample]) -> Tensor:
    """int64 [N, T]: turns whose state the environment names have that name's number instead of the text's."""
    anchored = anchor.clone()
    for row, sample in zip(anchored, samples, strict=True):
        for turn in policy_turns(sample):
            if turn.turn.state is not None:
                inside = torch.zeros(len(row), dtype=torch.bool)
                inside[turn.first : turn.last + 1] = sample.action[turn.first : turn.last + 1]
                row[inside] = number_of(turn.turn.state)
    return anchored


def number_of(name: str) -> int:
    """A number of its own for each name, the same in every process."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little")


def anchors(tokens: Tensor, group: Tensor, segment: Tensor) -> Tensor:
    """int64 [N, T]: equal where sentences of one group start behind the same tokens; 0 where there is no sentence."""
    # int64 arithmetic wraps: a running hash of all tokens before each position
    position = torch.arange(1, tokens.shape[1] + 1)
    # scrambled one by one before they are added: a sum of small multiples would meet itself
    scrambled = _scrambled(tokens * 0x100003 + position * 0x5851F42D4C957F2D)
    mixed = scrambled.cumsum(-1)
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
