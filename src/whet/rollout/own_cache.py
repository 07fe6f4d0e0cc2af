"""Decoding through a model's own forward and transformers' own cache: slower, and right for every model.

The backend of models whose attention whet does not know how to run on its own buffers. The cache has one length for all
rows, so new ones come in only when all are gone. What a model's cache can do is tried out first (`own_forward`): most
take prompts of different lengths side by side, some (layers of linear attention, chunks) only those of one length, and
a few keep what they have read where no cache reaches it; these read their rows again for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whet.model.block import short_windows
from whet.model.causal_lm import CausalLM
from whet.rollout.sampling import Draw, draw
from whet.rollout.scheduler import DecodeBackend, DecodeJob, TokenLog

# Of the largest logit, in float32. Rounding alone must not cost a model its cache: without it nothing is quick.
LOGIT_TOLERANCE, LAST_LOGIT_TOLERANCE, HALF_LOGIT_TOLERANCE = 1e-4, 1e-3, 5e-2


class CachedRows:
    """Reads rows token by token, with transformers' cache; prompts are padded on the left."""

    def __init__(self, lm: CausalLM, budget: int) -> None:
        self._lm, self._budget = lm, budget
        self._cache: Any = None
        self._lengths = torch.zeros(0, dtype=torch.long)  # of each row's prompt
        self._mask: Tensor | None = None  # [rows, width + budget], where prompts differ in length
        self._width = self._step = 0

    def begin(self, prompts: Sequence[tuple[int, ...]], prompt_of_row: Tensor) -> Tensor:
        """Read prompts, and give each row its own: logits [rows, V] of the first completion token."""
        device = self._lm.device
        self._cache, logits = prefill(self._lm, prompts)
        self._cache.reorder_cache(prompt_of_row)
        self._width, self._step = max(map(len, prompts)), 0
        self._lengths = torch.tensor([len(prompts[number]) for number in prompt_of_row.tolist()], device=device)
        self._mask = None
        if int(self._lengths.min()) < self._width:
            shape = (len(prompt_of_row), self._width + self._budget)
            self._mask = torch.ones(shape, dtype=torch.long, device=device)
            column = torch.arange(self._width, device=device)[None]
            self._mask[:, : self._width] = column >= self._width - self._lengths[:, None]
        return logits[prompt_of_row]

    def step(self, tokens: Tensor) -> Tensor:
        """Read one token per row, int64 [rows]; logits [rows, V] of the next."""
        self._step += 1
        hidden = self._lm.hidden(
            tokens[:, None],
            None if self._mask is None else self._mask[:, : self._width + self._step],
            (self._lengths + self._step - 1)[:, None],
            self._cache,
        )
        return self._lm.logits(hidden[:, -1])

    def keep(self, rows: Tensor) -> None:
        """Row n is from now on what row `rows[n]` was."""
        self._cache.reorder_cache(rows)
        self._lengths = self._lengths[rows]
        self._mask = None if self._mask is None else self._mask[rows]


class WholeRows:
    """Decodes without a cache: for every token, all rows are computed from their beginning, padded on the right."""

    def __init__(self, lm: CausalLM, budget: int) -> None:
        self._lm, self._budget = lm, budget
        self._rows = torch.zeros(0, 0, dtype=torch.long)
        self._lengths = torch.zeros(0, dtype=torch.long)

    def begin(self, prompts: Sequence[tuple[int, ...]], prompt_of_row: Tensor) -> Tensor:
        """Take in the prompts and return the logits of each row's first token."""
        device = self._lm.device
        width = max(map(len, prompts)) + self._budget
        padded = torch.tensor([prompt + (0,) * (width - len(prompt)) for prompt in prompts], device=device)
        self._rows = padded[prompt_of_row]
        self._lengths = torch.tensor(list(map(len, prompts)), device=device)[prompt_of_row]
        return self._logits()

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row and return the logits of the next."""
        self._rows.scatter_(1, self._lengths[:, None], tokens[:, None])
        self._lengths = self._lengths + 1
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order."""
        self._rows, self._lengths = self._rows[rows], self._lengths[rows]

    def _logits(self) -> Tensor:
        hidden = self._lm.hidden(self._rows[:, : int(self._lengths.max())])
        return self._lm.logits(hidden[torch.arange(len(hidden), device=hidden.device), self._lengths - 1])


@dataclass(frozen=True)
class OwnForward:
    """How a model's own forward writes completions, and why not better."""

    reader: type[CachedRows] | type[WholeRows] = CachedRows
    mixes_lengths: bool = True  # prompts of different lengths side by side
    reason: str = ""

    @property
    def kind(self) -> str:
        """The way this model is decoded, in words for the run's facts."""
        if self.reader is WholeRows:
            return "the model's own forward over whole rows, without a cache"
        return OWN_CACHE if self.mixes_lengths else f"{OWN_CACHE}, prompts of one length at a time"


OWN_CACHE = "the model's own forward and cache"


@torch.no_grad()
def own_forward(lm: CausalLM) -> OwnForward:
    """The quickest way that gives the logits of the model's plain forward pass."""
    single = replace(lm, dtype=lm.finest)  # half precision is too coarse to show a small mistake
    exact = single.dtype.itemsize >= 4
    with short_windows(lm):
        if not (refusal := _cache_refusal(single, (20, 3), LOGIT_TOLERANCE if exact else HALF_LOGIT_TOLERANCE)):
            return OwnForward()
        mixed = f"with prompts of different lengths, {refusal}"
        if not (refusal := _cache_refusal(single, (20, 20), LAST_LOGIT_TOLERANCE if exact else HALF_LOGIT_TOLERANCE)):
            return OwnForward(mixes_lengths=False, reason=mixed)
        return OwnForward(WholeRows, reason=f"with its cache, {refusal}")


def _cache_refusal(lm: CausalLM, lengths: tuple[int, int], tolerance: float) -> str:
    """What goes wrong with three completions of four tokens to two prompts; empty where nothing does."""
    steps, prompt_of_row = 4, torch.tensor([0, 0, 1], device=lm.device)
    tokens = torch.arange(2, 2 + 3 * (max(lengths) + steps), device=lm.device).view(3, -1) * 7 % lm.vocabulary
    tokens[1, : lengths[0]] = tokens[0, : lengths[0]]
    prompts = [tuple(tokens[row, :length].tolist()) for row, length in zip((0, 2), lengths, strict=True)]
    starts = [lengths[number] for number in prompt_of_row.tolist()]
    try:
        reader = CachedRows(lm, steps)
        ours = [reader.begin(prompts, prompt_of_row)]
        for step in range(steps):
            if step == 2:  # rows that are gone make room
                reader.keep(torch.tensor([2, 0, 1], device=lm.device))
                tokens, starts = tokens[[2, 0, 1]], [starts[2], starts[0], starts[1]]
                ours = [logits[[2, 0, 1]] for logits in ours]
            read = torch.stack([tokens[row, start + step] for row, start in enumerate(starts)])
            ours.append(reader.step(read))
        worst = 0.0
        for row, start in enumerate(starts):
            theirs = lm.logits(lm.hidden(tokens[row : row + 1, : start + steps])[0, start - 1 :])
            gap = (torch.stack([logits[row] for logits in ours]) - theirs).abs().max() / theirs.abs().max()
            worst = max(worst, float(gap.nan_to_num(torch.inf)))
    except Exception as error:  # whatever a model stumbles over with a cache, its plain forward pass is still there
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return "" if worst <= tolerance else f"the logits differ from its plain forward's by {worst:.1e} of the largest"


class OwnCacheBackend(DecodeBackend):
    """Decodes with the model's own cache, which has one length for all rows; every turn reads its conversation anew."""

    def __init__(
        self, lm: CausalLM, job: DecodeJob, rows: int, reader: type[CachedRows] | type[WholeRows] = CachedRows
    ) -> None:
        self._lm, self._sampling = lm, job.sampling
        self.num_rows = self.num_slots = min(rows, len(job.requests))
        self.log = TokenLog(self.num_rows, job.budget, job.stop.tokens, lm.device)
        self._prompts: dict[int, tuple[int, ...]] = {}  # by slot
        self._reader = reader(lm, job.budget)
        self._num_busy = 0

    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        return num_free == self.num_rows

    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        """Only noted: one cache holds all prompts, so they are read together when their rows come in."""
        self._prompts.update(zip(slots, prompts, strict=True))

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        index_of_slot = {slot: number for number, slot in enumerate(dict.fromkeys(slots))}
        self._num_busy = len(rows)
        prompt_of_row = torch.tensor([index_of_slot[slot] for slot in slots], device=self._lm.device)
        return self._reader.begin([self._prompts[slot] for slot in index_of_slot], prompt_of_row)

    def step(self) -> Draw:
        rows = slice(0, self._num_busy)
        logits = self._reader.step(self.log.last[rows])
        drawn = draw(logits, self.log.uniform(rows), self._sampling, allowed=self.log.allowed)
        self.log.record(rows, drawn)
        return drawn

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self._reader.keep(torch.tensor(rows, device=self._lm.device))
        self._num_busy = len(rows)
        self._prompts = {position: self._prompts[slot] for position, slot in enumerate(slots)}


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
