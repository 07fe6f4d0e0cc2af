"""Requests in, completions out, on any backend: rows that finish leave, requests that wait take their places.

The scheduler knows who sits where: the request of each row, the prompt in each slot. A backend knows how to compute:
keys and values, logits, a step. Three exist: whet's buffers (`buffer_decode`), CUDA graphs (`cuda_decode`) and the
model's own forward and cache (`own_cache`). What a row draws depends on its own request alone: its prompt, and the
random numbers of its seed by position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from whet.rollout.sampling import Draw, draw, uniforms
from whet.types import Request, Sampling, StopReason, WhetError

LARGEST_SUPPORT = 4096  # ids kept for one token; past it, storing the support costs more than the run
PREFILL_TOKENS = 1 << 14  # of one pass over prompts


@dataclass
class Completions:
    """What was written, by request."""

    tokens: Tensor  # int64 [N, max_new_tokens]
    logp: Tensor  # float32 [N, max_new_tokens]
    count: list[int]
    stop: list[StopReason]
    support: list[list[Tensor]]


@dataclass(frozen=True)
class StopRule:
    """What ends a completion: a token, or a text that `text_of` some tokens contains."""

    tokens: Tensor  # int64
    text_of: Callable[[list[int]], str]

    def ends_in_text(self, completion: Sequence[int], stop: Sequence[str]) -> bool:
        # a token adds at least one byte, and a character takes at most four
        text = self.text_of(list(completion[-(4 * max(map(len, stop)) + 4) :]))
        return any(each in text for each in stop)


@dataclass(frozen=True)
class DecodeJob:
    """What is to be written: every prompt once, with the requests that it answers."""

    requests: Sequence[Request]
    sampling: Sampling
    stop: StopRule
    prompts: list[tuple[int, ...]]
    members: list[list[int]]  # requests of each prompt


def decode_job(
    requests: Sequence[Request], sampling: Sampling, stop: StopRule, most_members: int | None = None
) -> DecodeJob:
    """Requests with equal prompts together, wherever they stand, at most `most_members` to a prompt."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        by_prompt.setdefault(request.tokens, []).append(number)
    step = most_members or len(requests)
    parts = [
        (tokens, numbers[start : start + step])
        for tokens, numbers in by_prompt.items()
        for start in range(0, len(numbers), step)
    ]
    return DecodeJob(requests, sampling, stop, [tokens for tokens, _ in parts], [numbers for _, numbers in parts])


class DecodeBackend(Protocol):
    """Computes what the scheduler arranges. Rows and slots are numbered from 0, without gaps behind the last."""

    num_rows: int  # at most
    num_slots: int  # prompts that it holds at once
    steps_per_look: int  # between two looks at who has finished
    prefills_ahead: bool  # also prompts whose rows are not free yet
    log: TokenLog

    def running(self) -> AbstractContextManager[None]:
        """Inside, everything below works."""
        ...

    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        """Whether it is worth the while to seat requests now."""
        ...

    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        """Read prompts into slots."""
        ...

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Rows begin to answer the prompts in these slots: logits [rows, V] of their first token."""
        ...

    def seat(self, slots: Sequence[int | None]) -> None:
        """The slot of each row for the coming steps; None for a free row."""
        ...

    def step(self) -> Draw | None:
        """One token for every row, drawn and logged; None where nobody can be told what could have been drawn."""
        ...

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        """How many rows to go on with: fewer than `num_rows` if moving those that are busy together pays."""
        ...

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Move together: row n is from now on what row `rows[n]` was, and so for slots. The log is moved already."""
        ...


class TokenLog:
    """What each row has drawn, kept where the model runs: nothing here waits for the device.

    A row has one place more than a completion has tokens: there a row that has ended writes what nobody reads.
    """

    def __init__(self, rows: int, budget: int, ends: Tensor, device: torch.device) -> None:
        self._stride = budget + 1
        self._base = torch.arange(rows, device=device) * self._stride  # the place of each row's first token
        self._final = self._base + (budget - 1)  # and of the last that its budget allows
        self._random = torch.zeros(rows * self._stride, device=device)
        self._tokens = torch.zeros(rows * self._stride, dtype=torch.long, device=device)
        self._logp = torch.zeros(rows * self._stride, device=device)
        self._end_tokens = ends.to(device)[None] if len(ends) else None
        self.ends = frozenset(ends.tolist())
        self.last = torch.zeros(rows, dtype=torch.long, device=device)  # the token each row drew last
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self._cursor = self._base + budget  # the place of its next token

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """What a step changes that the next step reads."""
        return self.last, self.done, self._cursor

    def counts(self, rows: int | Tensor) -> Tensor:
        """int64: how many tokens the first rows, or these, have drawn; of a free row, any number."""
        if isinstance(rows, Tensor):
            return self._cursor[rows] - self._base[rows]
        return self._cursor[:rows] - self._base[:rows]

    def open(self, rows: Tensor, streams: Tensor) -> None:
        """Rows begin, each with its random numbers [rows, budget]."""
        self._cursor[rows] = self._base[rows]
        self._random.view(-1, self._stride)[rows, :-1] = streams
        self.done[rows] = False

    def close(self, rows: Sequence[int]) -> None:
        """End rows that no token has ended."""
        if rows:
            where = torch.tensor(rows, device=self.done.device)
            self.done[where], self._cursor[where] = True, self._base[where] + self._stride - 1

    def uniform(self, rows: slice | Tensor) -> Tensor:
        """The random number of each row's next token."""
        return self._random.index_select(0, self._cursor[rows])

    def record(self, rows: slice | Tensor, drawn: Draw) -> None:
        """Note what these rows drew; rows that are done stay as they are."""
        cursor, done = self._cursor[rows], self.done[rows]
        self._tokens.index_copy_(0, cursor, drawn.token)
        self._logp.index_copy_(0, cursor, drawn.logp)
        self.last[rows] = drawn.token
        ended = cursor >= self._final[rows]
        if self._end_tokens is not None:
            ended |= (drawn.token[:, None] == self._end_tokens).any(-1)
        cursor += ~done
        done |= ended
        if isinstance(rows, Tensor):  # then these are copies
            self._cursor[rows], self.done[rows] = cursor, done

    def written(self, rows: Sequence[int]) -> tuple[list[int], Tensor, Tensor]:
        """Counts, tokens [rows, budget] and log-probabilities of what these rows wrote, on the CPU."""
        where = torch.tensor(rows, device=self.done.device)
        tokens, logp = (each.view(-1, self._stride).index_select(0, where) for each in (self._tokens, self._logp))
        return self.counts(where).tolist(), tokens[:, :-1].cpu(), logp[:, :-1].cpu()

    def keep(self, rows: Sequence[int]) -> None:
        """Row n becomes what row `rows[n]` was; the rows behind are closed."""
        moved = [place for place, row in enumerate(rows) if place != row]
        if moved:
            target = torch.tensor(moved, device=self.done.device)
            source = torch.tensor([rows[place] for place in moved], device=self.done.device)
            counts = self.counts(source)
            for each in (self._random, self._tokens, self._logp):
                view = each.view(-1, self._stride)
                view[target] = view[source]
            self.last[target], self.done[target] = self.last[source], self.done[source]
            self._cursor[target] = self._base[target] + counts
        self.close(range(len(rows), len(self.last)))


@dataclass
class _Occupant:
    """The request that occupies a row of the batch."""

    request: int
    prompt: int
    slot: int
    tokens: list[int] = field(default_factory=list)  # kept only where stop strings are looked for


class DecodeScheduler:
    """One batch of requests on its way."""

    def __init__(self, backend: DecodeBackend, job: DecodeJob) -> None:
        self._backend, self._job, self._log = backend, job, backend.log
        self._waiting = deque((prompt, request) for prompt, each in enumerate(job.members) for request in each)
        self._unfinished = [len(each) for each in job.members]
        self._rows: list[_Occupant | None] = []  # None is free
        self._slots: list[int | None] = [None] * backend.num_slots  # the prompt in each
        budget = job.sampling.max_new_tokens
        seeds = [request.seed for request in job.requests]
        self._streams = uniforms(seeds, budget).to(backend.log.last.device)
        self._tokens = torch.zeros(len(seeds), budget, dtype=torch.long)
        self._logp = torch.zeros(len(seeds), budget)
        self._count = [0] * len(seeds)
        self._stopped_by_text: set[int] = set()  # requests
        self._support: list[list[Tensor]] = [[] for _ in seeds]
        # texts and supports are looked at token by token
        every_token = bool(job.sampling.stop) or job.sampling.truncates
        self._steps_per_look = 1 if every_token else backend.steps_per_look

    def run(self) -> Completions:
        with self._backend.running():
            while self._waiting or any(self._rows):
                self._enter()
                if any(self._rows):
                    for _ in range(self._steps_per_look):
                        self._note(self._backend.step(), range(len(self._rows)))
                    self._leave(range(len(self._rows)))
        return self._completions()

    def _completions(self) -> Completions:
        count = torch.tensor(self._count)
        final = self._tokens[torch.arange(len(count)), count - 1].tolist()
        stop = [
            StopReason.TEXT if request in self._stopped_by_text
            else StopReason.END if token in self._log.ends
            else StopReason.LENGTH
            for request, token in enumerate(final)
        ]  # fmt: skip
        behind = torch.arange(self._tokens.shape[1])[None] >= count[:, None]
        tokens, logp = self._tokens.masked_fill_(behind, 0), self._logp.masked_fill_(behind, 0)
        return Completions(tokens, logp, self._count, stop, self._support)

    def _note(self, drawn: Draw | None, rows: Sequence[int]) -> None:
        """Keep what could have been drawn, where sampling truncates."""
        if drawn is None or drawn.kept is None:
            return
        for place, ids in zip(rows, _supports(drawn.kept, self._job.sampling), strict=True):
            if (row := self._rows[place]) is not None:
                self._support[row.request].append(ids)

    def _enter(self) -> None:
        """Give free rows to requests that wait, and let each draw its first token."""
        while self._waiting:
            free = [place for place, row in enumerate(self._rows) if row is None]
            free += range(len(self._rows), self._backend.num_rows)
            if not self._backend.may_enter(len(free), len(self._waiting)):
                return
            taken = self._seat_requests(free)
            if not taken:
                return
            seated = [row for place in taken if (row := self._rows[place])]
            rows = torch.tensor(taken, device=self._log.last.device)
            requests = torch.tensor([row.request for row in seated], device=rows.device)
            self._log.open(rows, self._streams.index_select(0, requests))
            logits = self._backend.enter(taken, [row.slot for row in seated])
            drawn = draw(logits, self._log.uniform(rows), self._job.sampling, spend=True)
            self._log.record(rows, drawn)
            self._note(drawn, taken)
            self._seat()
            self._leave(taken)

    def _seat_requests(self, free: Sequence[int]) -> list[int]:
        """Seat as many waiting requests as have a row and a slot; the rows they took."""
        slot_of = {prompt: slot for slot, prompt in enumerate(self._slots) if prompt is not None}
        empty = deque(slot for slot, prompt in enumerate(self._slots) if prompt is None)
        taken: list[int] = []
        new: list[int] = []
        for place in free:
            if not self._waiting:
                break
            prompt, request = self._waiting[0]
            if prompt not in slot_of:
                if not empty:
                    break
                slot_of[prompt] = empty.popleft()
                new.append(prompt)
            self._waiting.popleft()
            self._rows += [None] * (place + 1 - len(self._rows))
            self._rows[place] = _Occupant(request, prompt, slot_of[prompt])
            taken.append(place)
        if new and self._backend.prefills_ahead:
            for prompt in dict.fromkeys(prompt for prompt, _ in self._waiting):
                if empty and prompt not in slot_of:
                    slot_of[prompt] = empty.popleft()
                    new.append(prompt)
        for prompt in new:
            self._slots[slot_of[prompt]] = prompt
        for part in _prefill_passes(new, self._job.prompts):
            slots = [slot_of[prompt] for prompt in part]
            self._backend.prefill(slots, [self._job.prompts[prompt] for prompt in part])
        return taken

    def _leave(self, rows: Sequence[int]) -> None:
        """Rows that are done hand in what they wrote; `rows` are those that drew a token since the last look."""
        done = self._log.done[: len(self._rows)].tolist()
        by_text = self._rows_stopped_by_text(rows) if self._job.sampling.stop else set()
        gone = [place for place, row in enumerate(self._rows) if row is not None and (done[place] or place in by_text)]
        if not gone:
            return
        leaving = [row for place in gone if (row := self._rows[place])]
        counts, tokens, logp = self._log.written(gone)
        where = torch.tensor([row.request for row in leaving])
        self._tokens.index_copy_(0, where, tokens)
        self._logp.index_copy_(0, where, logp)
        for place, row, count in zip(gone, leaving, counts, strict=True):
            self._count[row.request] = count
            self._unfinished[row.prompt] -= 1
            if not self._unfinished[row.prompt]:
                self._slots[row.slot] = None
            self._rows[place] = None
        if by_text:
            self._stopped_by_text.update(
                row.request for place, row in zip(gone, leaving, strict=True) if place in by_text
            )
            self._log.close(sorted(by_text))
        if any(self._rows):
            self._move_together()
            self._seat()

    def _rows_stopped_by_text(self, rows: Sequence[int]) -> set[int]:
        last = self._log.last[: len(self._rows)].tolist()
        stopped = set()
        for place in rows:
            if (row := self._rows[place]) is not None:
                row.tokens.append(last[place])
                by_token = last[place] in self._log.ends
                if not by_token and self._job.stop.ends_in_text(row.tokens, self._job.sampling.stop):
                    stopped.add(place)
        return stopped

    def _move_together(self) -> None:
        busy = [place for place, row in enumerate(self._rows) if row is not None]
        if self._backend.rows_after(len(busy), len(self._rows), len(self._waiting)) >= len(self._rows):
            return
        rows = _front(busy)
        slots = _front([slot for slot, prompt in enumerate(self._slots) if prompt is not None])
        self._log.keep(rows)
        self._backend.keep(rows, slots)
        self._rows = [self._rows[place] for place in rows]
        moved = {slot: place for place, slot in enumerate(slots)}
        for row in self._rows:
            assert row is not None
            row.slot = moved[row.slot]
        kept = [self._slots[slot] for slot in slots]
        self._slots = kept + [None] * (len(self._slots) - len(kept))

    def _seat(self) -> None:
        self._backend.seat([None if row is None else row.slot for row in self._rows])


def _front(held: Sequence[int]) -> list[int]:
    """The held places in an order that moves the fewest: those in front stay, the others fill the holes."""
    late = iter(place for place in held if place >= len(held))
    stays = set(held)
    return [place if place in stays else next(late) for place in range(len(held))]


def _prefill_passes(new: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """New prompts, as many at a time as one padded pass over them may hold."""
    passes: list[list[int]] = []
    widest = 0
    for prompt in new:
        width = max(widest, len(prompts[prompt]))
        if not passes or width * (len(passes[-1]) + 1) > PREFILL_TOKENS:
            passes.append([])
            width = len(prompts[prompt])
        passes[-1].append(prompt)
        widest = width
    return passes


def _supports(kept: Tensor, sampling: Sampling) -> list[Tensor]:
    """The ids that could be drawn in each row of `kept` [B, V]."""
    row, ids = kept.cpu().nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(kept))
    if int(counts.max()) > LARGEST_SUPPORT:
        raise WhetError(
            f"top_p={sampling.top_p}, min_p={sampling.min_p} keep {int(counts.max())} tokens at one position; the "
            f"trainer must renormalise on all of them: add top_k={LARGEST_SUPPORT // 4}, or switch truncation off"
        )
    return list(ids.to(torch.int32).split(counts.tolist()))
