"""What a teacher says about the policy's own tokens: asked once per step, before the first update, without gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whet.data.distillation_target import behind, teacher_texts, with_text
from whet.model.causal_lm import CausalLM
from whet.model.reference import FrozenModel, ReferencePolicy
from whet.training.distributed.ranks import ALONE, Ranks
from whet.training.sections import TeacherSection
from whet.training.update import token_scores, top_scores
from whet.types import Group, Prompt, RunFailed, TokenBatch

if TYPE_CHECKING:
    from whet.rollout.logp_server import LogpServer


@dataclass(frozen=True)
class DistillationSettings:
    """How a teacher's distributions are compared, and what it reads besides the prompt."""

    section: TeacherSection = field(default_factory=TeacherSection)
    template: str = ""  # of a prompt with what is read besides it
    known: Mapping[str, str] = field(default_factory=dict)  # texts by prompt, that stand in no column
    encode: Callable[[Prompt], tuple[int, ...]] | None = None  # a prompt's tokens
    longest: int = 0  # tokens that the teacher can read


@dataclass(frozen=True)
class TaughtRows:
    """A batch as the teacher sees it: rows of the policy's batch after other prompts."""

    batch: TokenBatch
    rows: list[int]  # of the policy's batch
    places: Tensor  # bool [N, T], the actions of those rows in the policy's batch

    def back(self, values: Tensor) -> Tensor:
        """The teacher's values [n, S, ...] moved to the policy's tokens [N, T, ...]; 0 for rows it was not shown."""
        moved = values.new_zeros((*self.places.shape, *values.shape[2:]))
        moved[self.places] = values[self.batch.action]
        return moved

    def forth(self, values: Tensor) -> Tensor:
        """The policy's [N, T, ...] in the teacher's places."""
        moved = values.new_zeros((*self.batch.action.shape, *values.shape[2:]))
        moved[self.batch.action] = values[self.places]
        return moved


def taught_rows(batch: TokenBatch, groups: Sequence[Group], target: DistillationSettings) -> TaughtRows | None:
    """The samples that the teacher knows something about, after what it reads; None where there is not one.

    A sample is left out where there is no text about it, or where the text leaves it no room.
    """
    context = target.section.context
    assert context != "none" and target.encode is not None
    rows: list[int] = []
    tokens, actions = [], []
    samples = [(group, number) for group in groups for number in range(len(group.samples))]
    texts = [text for group in groups for text in teacher_texts(group, context, target.known)]
    for row, ((group, index), text) in enumerate(zip(samples, texts, strict=True)):
        sample = group.samples[index]
        if text is None or not bool(batch.action[row].any()):
            continue
        shown = target.encode(with_text(group.prompt, text, target.template))
        taught_tokens, action, _ = behind(shown, sample)
        if len(taught_tokens) <= target.longest:
            rows.append(row)
            tokens.append(taught_tokens)
            actions.append(action)
    if not rows:
        return None
    padded = pad_sequence(tokens, batch_first=True)
    action = pad_sequence(actions, batch_first=True)
    places = batch.action.clone()
    places[[row for row in range(batch.num_sequences) if row not in set(rows)]] = False
    support = None if batch.support is None else _moved_support(batch, rows, places, action)
    whole = TokenBatch(padded, action, torch.arange(len(rows)), batch.reward[rows], support=support)
    return TaughtRows(whole, rows, places)


def _moved_support(batch: TokenBatch, rows: list[int], places: Tensor, action: Tensor) -> Tensor:
    assert batch.support is not None
    moved = batch.support.new_full((*action.shape, batch.support.shape[-1]), -1)
    moved[action] = batch.support[places]
    return moved


class Teacher(Protocol):
    """Grades tokens it did not write."""

    @property
    def said(self) -> str:
        """The teacher in words, for the run's facts."""
        ...

    def logp(self, batch: TokenBatch) -> Tensor:
        """log-probability of every action [N, T], 0 elsewhere."""
        ...

    def top(self, batch: TokenBatch, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """int32 [N, T, K] and [N, T, K]: its likeliest tokens at each action, or the `chosen`, and their logp."""
        ...

    def open(self) -> AbstractContextManager[CausalLM | None]:
        """The teacher's model for a pass that compares whole distributions; None where there is none."""
        ...


@dataclass(frozen=True)
class ModelTeacher:
    """A model in this process, on the policy's device or on another; its logits are built chunk by chunk."""

    source: FrozenModel | ReferencePolicy
    temperature: float
    micro_batch_tokens: int
    ranks: Ranks = ALONE
    top_k: int = 0  # tokens that distributions are compared on; 0: all
    said: str = "a model"

    def logp(self, batch: TokenBatch) -> Tensor:
        with self.source.open() as lm:
            return token_scores(lm, batch, self.temperature, self.micro_batch_tokens, self.ranks).logp

    def top(self, batch: TokenBatch, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        with self.source.open() as lm:
            tokens = self.micro_batch_tokens
            return top_scores(lm, batch, self.temperature, tokens, self.top_k, chosen, self.ranks)

    def open(self) -> AbstractContextManager[CausalLM | None]:
        return self.source.open()


@dataclass(frozen=True)
class ServerTeacher:
    """A server that scores tokens it is given. Every rank gets what the first was shown."""

    server: LogpServer
    ranks: Ranks = ALONE
    top_k: int = 0
    said: str = "a server"

    def logp(self, batch: TokenBatch) -> Tensor:
        rows = [row_tokens(batch, row) for row in range(batch.num_sequences)]
        scored = self.ranks.first(lambda: self.server.logp(rows))
        scores = torch.zeros(batch.tokens.shape, dtype=torch.float32)
        for row, values in enumerate(scored):
            scores[row, : len(values)] = torch.tensor(values, dtype=torch.float32)
        return scores.masked_fill_(~batch.action, 0.0)

    def top(self, batch: TokenBatch, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """The server's likeliest tokens at each action; it cannot score those in `chosen`."""
        if chosen is not None:
            raise ValueError("a server names its own likeliest tokens, not those of others")
        rows = [row_tokens(batch, row) for row in range(batch.num_sequences)]
        scored = self.ranks.first(lambda: [table.likeliest for table in self.server.tables(rows, self.top_k)])
        ids = torch.zeros((*batch.tokens.shape, self.top_k), dtype=torch.int32)
        logp = torch.zeros(ids.shape, dtype=torch.float32)
        for row, tables in enumerate(scored):
            for position, likeliest in enumerate(tables):
                if bool(batch.action[row, position]):
                    if len(likeliest) < self.top_k:
                        raise RunFailed(f"the teacher gave {len(likeliest)} likeliest tokens, not {self.top_k}")
                    ids[row, position] = torch.tensor(list(likeliest), dtype=torch.int32)
                    logp[row, position] = torch.tensor(list(likeliest.values()), dtype=torch.float32)
        return ids, logp

    def open(self) -> AbstractContextManager[CausalLM | None]:
        return nullcontext()


def row_tokens(batch: TokenBatch, row: int) -> list[int]:
    """The tokens of a row up to its last action."""
    end = int(batch.action[row].nonzero().max()) + 1 if bool(batch.action[row].any()) else 0
    return [int(token) for token in batch.tokens[row, :end].tolist()]
