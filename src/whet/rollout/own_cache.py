"""Decoding through a model's own forward and transformers' own cache: slower, and right for every model.

The backend of models whose attention whet does not know how to run on its own buffers. The cache has one length for all
rows, so new ones come in only when all are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from whet.model.causal_lm import CausalLM
from whet.rollout.sampling import Draw, draw
from whet.rollout.scheduler import DecodeJob, TokenLog


class OwnCacheBackend:
    """A `DecodeBackend` on the model itself."""

    steps_per_look = 1
    looks_behind = 0
    prefills_ahead = False

    def __init__(self, lm: CausalLM, job: DecodeJob, rows: int) -> None:
        self._lm, self._sampling = lm, job.sampling
        self._budget = job.sampling.max_new_tokens
        self.num_rows = self.num_slots = min(rows, len(job.requests))
        self.log = TokenLog(self.num_rows, self._budget, job.stop.tokens, lm.device)
        self._prompts: dict[int, tuple[int, ...]] = {}  # by slot
        self._cache: Any = None
        self._lengths = torch.zeros(0, dtype=torch.long)  # of each row's prompt
        self._mask: Tensor | None = None  # [rows, width + budget], where prompts differ in length
        self._width = self._step = 0

    def running(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        return num_free == self.num_rows

    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        """Only noted: one cache holds all prompts, so they are read together when their rows come in."""
        self._prompts.update(zip(slots, prompts, strict=True))

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        place = {slot: number for number, slot in enumerate(dict.fromkeys(slots))}
        prompts = [self._prompts[slot] for slot in place]
        device = self._lm.device
        self._cache, logits = prefill(self._lm, prompts)
        spread = torch.tensor([place[slot] for slot in slots], device=device)
        self._cache.batch_select_indices(spread)
        self._width, self._step = max(map(len, prompts)), 0
        self._lengths = torch.tensor([len(prompts[number]) for number in spread.tolist()], device=device)
        self._mask = None
        if int(self._lengths.min()) < self._width:
            self._mask = torch.ones(len(rows), self._width + self._budget, dtype=torch.long, device=device)
            column = torch.arange(self._width, device=device)[None]
            self._mask[:, : self._width] = column >= self._width - self._lengths[:, None]
        return logits[spread]

    def seat(self, slots: Sequence[int | None]) -> None:
        """Every row has its prompt's keys in the cache."""

    def step(self) -> Draw:
        rows = slice(0, len(self._lengths))
        self._step += 1
        hidden = self._lm.hidden(
            self.log.last[rows, None],
            None if self._mask is None else self._mask[:, : self._width + self._step],
            (self._lengths + self._step - 1)[:, None],
            self._cache,
        )
        drawn = draw(self._lm.logits(hidden[:, -1]), self.log.uniform(rows), self._sampling)
        self.log.record(rows, drawn)
        return drawn

    def take_kept(self, rows: int) -> None:
        """Every step says it itself."""

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        return num_busy

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        order = torch.tensor(rows, device=self._lm.device)
        self._cache.batch_select_indices(order)
        self._lengths = self._lengths[order]
        self._mask = None if self._mask is None else self._mask[order]
        self._prompts = {place: self._prompts[slot] for place, slot in enumerate(slots)}


def prefill(lm: CausalLM, prompts: Sequence[tuple[int, ...]]) -> tuple[Any, Tensor]:
    """Each prompt once, padded on the left: the cache and the logits [P, V] of the first completion token."""
    from transformers import DynamicCache

    device = lm.device
    width = max(map(len, prompts))
    tokens = torch.tensor([(0,) * (width - len(prompt)) + prompt for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    column = torch.arange(width)[None]
    mask = None
    if int(lengths.min()) < width:
        mask = (column >= width - lengths[:, None]).long().to(device)
    positions = (column - (width - lengths[:, None])).clamp(min=0)
    cache = DynamicCache(config=lm.model.config)  # type: ignore[arg-type]
    hidden = lm.hidden(tokens.to(device), mask, positions.to(device), cache)
    return cache, lm.logits(hidden[:, -1])
