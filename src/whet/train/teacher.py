"""What a teacher says about the policy's own tokens: asked once per step, before the first update, without gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from whet.dist.ranks import ALONE, Ranks
from whet.model.causal_lm import CausalLM
from whet.rollout.logp_server import LogpServer
from whet.train.update import token_scores, top_scores
from whet.types import RunFailed, TokenBatch


@dataclass(frozen=True)
class LessonSettings:
    """How distributions are compared, where they are."""

    top_k: int = 0  # tokens, and all others together; 0: token by token over the whole vocabulary
    of_policy: bool = False  # the policy's likeliest tokens before the first update, not the teacher's
    temperature: float = 1.0  # of the teacher


class Teacher(Protocol):
    """Grades tokens it did not write."""

    def logp(self, batch: TokenBatch) -> Tensor:
        """log-probability of every action [N, T], 0 elsewhere."""
        ...

    def top(self, batch: TokenBatch, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        """int32 [N, T, K] and [N, T, K]: its likeliest tokens at each action, or the `chosen`, and their logp."""
        ...

    def open(self) -> AbstractContextManager[CausalLM | None]:
        """The model, for a pass that compares whole distributions; None where there is none to be had."""
        ...


class Openable(Protocol):
    """Where a model is had for as long as it is needed: `whet.model.reference` has several."""

    def open(self) -> AbstractContextManager[CausalLM]: ...


@dataclass(frozen=True)
class ModelTeacher:
    """A model in this process, on the policy's device or on another; its logits are built chunk by chunk."""

    source: Openable
    temperature: float
    micro_batch_tokens: int
    ranks: Ranks = ALONE
    top_k: int = 0  # tokens that distributions are compared on; 0: all

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
    """A server that scores tokens it is given. Every rank gets what the first was told."""

    server: LogpServer
    ranks: Ranks = ALONE
    top_k: int = 0

    def logp(self, batch: TokenBatch) -> Tensor:
        rows = [row_tokens(batch, row) for row in range(batch.num_sequences)]
        scored = self.ranks.first(lambda: self.server.logp(rows))
        found = torch.zeros(batch.tokens.shape, dtype=torch.float32)
        for row, values in enumerate(scored):
            found[row, : len(values)] = torch.tensor(values, dtype=torch.float32)
        return found.masked_fill_(~batch.action, 0.0)

    def top(self, batch: TokenBatch, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        if chosen is not None:
            raise ValueError("a server names its own likeliest tokens, not those of others")
        rows = [row_tokens(batch, row) for row in range(batch.num_sequences)]
        scored = self.ranks.first(lambda: [each.likeliest for each in self.server.tables(rows, self.top_k)])
        ids = torch.zeros((*batch.tokens.shape, self.top_k), dtype=torch.int32)
        logp = torch.zeros(ids.shape, dtype=torch.float32)
        for row, tables in enumerate(scored):
            for place, likeliest in enumerate(tables):
                if bool(batch.action[row, place]):
                    if len(likeliest) < self.top_k:
                        raise RunFailed(f"the teacher gave {len(likeliest)} likeliest tokens, not {self.top_k}")
                    ids[row, place] = torch.tensor(list(likeliest), dtype=torch.int32)
                    logp[row, place] = torch.tensor(list(likeliest.values()), dtype=torch.float32)
        return ids, logp

    def open(self) -> AbstractContextManager[CausalLM | None]:
        return nullcontext()


def row_tokens(batch: TokenBatch, row: int) -> list[int]:
    """The tokens of a row up to its last action."""
    end = int(batch.action[row].nonzero().max()) + 1 if bool(batch.action[row].any()) else 0
    return [int(each) for each in batch.tokens[row, :end].tolist()]
