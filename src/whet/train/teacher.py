"""What a teacher says about the policy's own tokens: asked once per step, before the first update, without gradient."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from whet.dist.ranks import ALONE, Ranks
from whet.model.causal_lm import CausalLM
from whet.rollout.logp_server import LogpServer
from whet.train.update import token_scores
from whet.types import TokenBatch


class Teacher(Protocol):
    """Grades tokens it did not write."""

    def logp(self, batch: TokenBatch) -> Tensor:
        """log-probability of every action [N, T], 0 elsewhere."""
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

    def logp(self, batch: TokenBatch) -> Tensor:
        with self.source.open() as lm:
            return token_scores(lm, batch, self.temperature, self.micro_batch_tokens, self.ranks).logp


@dataclass(frozen=True)
class ServerTeacher:
    """A server that scores tokens it is given. Every rank gets what the first was told."""

    server: LogpServer
    ranks: Ranks = ALONE

    def logp(self, batch: TokenBatch) -> Tensor:
        rows = [row_tokens(batch, row) for row in range(batch.num_sequences)]
        scored = self.ranks.first(lambda: self.server.logp(rows))
        found = torch.zeros(batch.tokens.shape, dtype=torch.float32)
        for row, values in enumerate(scored):
            found[row, : len(values)] = torch.tensor(values, dtype=torch.float32)
        return found.masked_fill_(~batch.action, 0.0)


def row_tokens(batch: TokenBatch, row: int) -> list[int]:
    """The tokens of a row up to its last action."""
    end = int(batch.action[row].nonzero().max()) + 1 if bool(batch.action[row].any()) else 0
    return [int(each) for each in batch.tokens[row, :end].tolist()]
