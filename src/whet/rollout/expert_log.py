"""Which experts the routers of a mixture chose for every token that was read, beside the keys and values of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whet.model.experts import UNKNOWN, Routers
from whet.rollout.scheduler import numbers_on
from whet.types import WhetError


class ExpertLog:
    """Tables as wide as the buffers of keys and values: prompts by slot, what rows read after them by row."""

    def __init__(self, of: Routers, rows: int, slots: int, widths: tuple[int, int], device: torch.device) -> None:
        """`widths` of a prompt, and of what a row reads after it."""
        self._device = device
        self._prompts = of.unknown(slots, widths[0], device=device)
        self._own = of.unknown(rows, widths[1], device=device)

    def prefill(self, slots: Sequence[int], chosen: Tensor) -> None:
        """Prompts, padded on the right, went through these experts [P * L, layers, k]."""
        table = chosen.unflatten(0, (len(slots), -1))
        self._prompts[numbers_on(self._device, slots), : table.shape[1]] = table

    def extend(self, rows: Sequence[int], starts: Sequence[int], lengths: Sequence[int], chosen: Tensor) -> None:
        """Chunks of so many tokens, padded on the right, were read into the rows' places from `starts` on."""
        table = chosen.unflatten(0, (len(rows), -1))
        for number, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
            self._own[row, start : start + length] = table[number, :length]

    def step(self, places: Tensor, chosen: Tensor) -> None:
        """The first rows read one token each into these places, int64 [rows]."""
        self._own[torch.arange(len(places), device=self._device), places] = chosen

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Row n becomes what row `rows[n]` was, and so for slots."""
        for table, order in ((self._own, rows), (self._prompts, slots)):
            moved = [target for target, held in enumerate(order) if target != held]
            if moved:
                source = numbers_on(self._device, [order[target] for target in moved])
                table[numbers_on(self._device, moved)] = table[source]

    def sample(self, row: int, slot: int, prompt: int, own: int) -> Tensor:
        """[prompt + own, layers, k] of a row with so many tokens; the last one was drawn and never read."""
        table = torch.cat([self._prompts[slot, :prompt], self._own[row, :own]]).cpu()
        table[-1] = UNKNOWN
        return table


def experts_of_engine(returned: Any, length: int, of: Routers) -> Tensor:
    """[length, layers, k] of what another engine returns for a sample of so many tokens: [tokens, all layers, k].

    vLLM (`CompletionOutput.routed_experts`, 0.32) numbers all layers of the model, those without experts included, and
    leaves out the last token, which was never read. One of another shape is an error: experts of other tokens or layers
    would be replayed.
    """
    table = torch.as_tensor(returned).to(of.dtype)
    if table.ndim != 3 or len(table) not in (length - 1, length) or table.shape[2] != of.experts_per_token:
        raise WhetError(
            f"the engine returned experts of shape {tuple(table.shape)} for a sample of {length} tokens; expected "
            f"[{length - 1}, layers, {of.experts_per_token}]: give batch.routing_replay=trainer"
        )
    if table.shape[1] != of.num_layers:
        if max(of.layer_numbers) >= table.shape[1] or min(of.layer_numbers) < 0:
            raise WhetError(
                f"the engine returned experts of {table.shape[1]} layers and the model has routers in "
                f"{of.num_layers}; give batch.routing_replay=trainer"
            )
        table = table[:, list(of.layer_numbers)]
    experts = of.unknown(length)
    experts[: length - 1] = table[: length - 1]
    return experts


def joined_experts(tables: Sequence[Tensor | None]) -> Tensor | None:
    """The experts of a whole conversation, from one table per turn; None where a turn has no table.

    Each table starts at the conversation's beginning; a token's experts are those of the turn that read it first.
    """
    known = [turn_table for turn_table in tables if turn_table is not None]
    if not known or len(known) < len(tables):
        return None
    joined = known[-1].clone()
    for table in reversed(known[:-1]):
        joined[: len(table) - 1] = table[:-1]
    return joined
