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
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whet.model.shared_prefix import to_device
from whet.rollout.sampling import Draw, draw, uniforms
from whet.types import Request, Sampling, StopReason, Support, WhetError

LARGEST_SUPPORT = 4096  # ids kept for one token; past it, storing the support costs more than the run
PREFILL_TOKENS = 1 << 14  # of one pass over prompts


@dataclass
class Completions:
    """What was written, by request."""

    tokens: Tensor  # int64 [N, max_new_tokens]
    logp: Tensor  # float32 [N, max_new_tokens]
    count: list[int]
    stop: list[StopReason]
    support: list[Support | None]


@dataclass(frozen=True)
class StopRule:
    """What ends a completion: a token, and what `Sampling` names: a text that its tokens contain, or a sequence."""

    tokens: Tensor  # int64
    text_of: Callable[[list[int]], str]
    _may_complete: dict[tuple[int, tuple[str, ...]], bool] = field(default_factory=dict)  # (token, stop)

    def stopped_at(self, completion: Sequence[int], start: int, sampling: Sampling) -> int | None:
        """How many tokens there are when the first stop is complete, of those from `start` on; None: not yet."""
        for count in range(start + 1, len(completion) + 1):
            for sequence in sampling.stop_tokens:
                if tuple(completion[max(0, count - len(sequence)) : count]) == sequence:
                    return count
            if sampling.stop and self._has_last_letter(completion[count - 1], sampling.stop):
                # a token adds at least one byte, and a character takes at most four
                first = max(0, count - (4 * max(map(len, sampling.stop)) + 4))
                text = self.text_of(list(completion[first:count]))
                if any(each in text for each in sampling.stop):
                    return count
        return None

    def _has_last_letter(self, token: int, stop: tuple[str, ...]) -> bool:
        """False where this token cannot complete a text: most texts need not be decoded.

        Alone, a token may lose the space in front of it, or be part of a character.
        """
        known = self._may_complete.get((token, stop))
        if known is None:
            text = self.text_of([token])
            known = not text or "\ufffd" in text or any(each[-1].isspace() or each[-1] in text for each in stop)
            self._may_complete[token, stop] = known
        return known


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
    looks_behind: int  # a device that runs ahead is given the next steps before the last look is read
    prefills_ahead: bool  # also prompts whose rows are not free yet
    most_members: int | None  # rows that may share a slot; None: any number
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

    def may_extend(self, num_ready: int, num_busy: int) -> bool:
        """Whether it is worth the while to read on in rows that have something to read, `num_busy` others writing."""
        ...

    def extend(
        self, rows: Sequence[int], slots: Sequence[int], starts: Sequence[int], chunks: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Rows read on behind what they hold: float32 logits [rows, V] behind the last token of each chunk.

        Chunk n, at least one token, goes to the own places `starts[n]`, `starts[n] + 1`, ... of row `rows[n]`: place p
        is the position (length of the prompt in `slots[n]`) + p. Its tokens see the prompt, the places in front of
        `starts[n]` and each other causally; whatever stands at `starts[n]` or behind is written over, never read. The
        row has entered that slot before. The next step reads `log.last` at the place behind the chunk.
        """
        ...

    def seat(self, slots: Sequence[int | None]) -> None:
        """The slot of each row for the coming steps; None for a free row, or one that waits to read on.

        The steps compute the first `len(slots)` rows. What a waiting row holds in front of the `starts` of its next
        `extend` stays as it is, in front of that length or behind it.
        """
        ...

    def step(self) -> Draw | None:
        """One token for every row, drawn and logged; None where `take_kept` tells what could have been drawn."""
        ...

    def take_kept(self, rows: int) -> KeptTokens | None:
        """What the first rows could have drawn since the last time, where `step` does not say."""
        ...

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        """How many rows to go on with: fewer than `num_rows` if moving those that are busy together pays."""
        ...

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Row n is from now on what row `rows[n]` was, and so for slots. The log is moved already.

        Rows may change places with each other, those that wait to read on included, so a row is taken before it is
        written over. Rows and slots behind those that are named are gone.
        """
        ...


@dataclass(frozen=True)
class KeptTokens:
    """The tokens that could be drawn at some positions, where sampling truncates."""

    row: Tensor  # int64 [n], which row drew
    position: Tensor  # int64 [n], grows with the tokens of a row
    counts: Tensor  # int64 [n]
    ids: Tensor  # int32 [sum of counts]


class Look:
    """What the batch was like when it was taken; reading it waits for the device, taking it does not."""

    def __init__(self, values: Tensor) -> None:
        self._event: Any = None
        self._values = values  # int64 [rows, 2 + fresh]: done, count, tokens since the last look
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> tuple[list[bool], list[int], np.ndarray]:
        if self._event is not None:
            self._event.synchronize()
        values = self._values.numpy()
        return values[:, 0].astype(bool).tolist(), values[:, 1].tolist(), values[:, 2:]


def numbers_on(device: torch.device, values: Sequence[Any]) -> Tensor:
    """The values as an int64 tensor on the device, without waiting for what it computes."""
    return to_device(torch.tensor(values, dtype=torch.long), device)


class TokenLog:
    """What each row has drawn, kept where the model runs: nothing here waits for the device.

    A row has one place more than a completion has tokens: there a row that has ended writes what nobody reads.
    """

    def __init__(self, rows: int, budget: int, ends: Tensor, device: torch.device) -> None:
        self.budget, self.device = budget, device
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
        self._looked = self._base.clone()  # the first that no look has told

    def look(self, num_rows: int, fresh: int) -> Look:
        """Of the first rows: done or not, tokens drawn, and the first `fresh` tokens since the last look."""
        values = [self.done[:num_rows, None].long(), self.counts(num_rows)[:, None]]
        if fresh:
            place = self._looked[:num_rows, None] + torch.arange(fresh, device=self.device)
            values.append(self._tokens[place.clamp_(max=len(self._tokens) - 1)])
            self._looked[:num_rows] = self._cursor[:num_rows]
        return Look(torch.cat(values, 1))

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """What a step changes that the next step reads."""
        return self.last, self.done, self._cursor

    def counts(self, rows: int | Tensor) -> Tensor:
        """int64: how many tokens the first rows, or these, have drawn; of a free row, any number."""
        if isinstance(rows, Tensor):
            return self._cursor[rows] - self._base[rows]
        return self._cursor[:rows] - self._base[:rows]

    def open(self, rows: Tensor, streams: Tensor, budgets: Tensor) -> None:
        """Rows begin, each with its random numbers [rows, tokens] and its budget, at most what there is room for."""
        base = self._base[rows]
        self._cursor[rows] = self._looked[rows] = base
        self._final[rows] = base + budgets - 1
        self._random.view(-1, self._stride)[rows, : streams.shape[1]] = streams
        self.done[rows] = False

    def close(self, rows: Sequence[int]) -> None:
        """End rows that no token has ended."""
        if rows:
            where = numbers_on(self.device, rows)
            self.done[where] = self.done.new_ones(())
            self._cursor[where] = self._base[where] + self._stride - 1

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

    def written(self, rows: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows, budget] and log-probabilities of what these rows wrote."""
        tokens, logp = (each.view(-1, self._stride).index_select(0, rows) for each in (self._tokens, self._logp))
        return tokens[:, :budget], logp[:, :budget]

    def keep(self, rows: Sequence[int]) -> None:
        """Row n becomes what row `rows[n]` was; the rows behind are closed."""
        moved = [place for place, row in enumerate(rows) if place != row]
        if moved:
            target = numbers_on(self.device, moved)
            source = numbers_on(self.device, [rows[place] for place in moved])
            base = self._base[source]
            counts, unseen, final = self._cursor[source] - base, self._looked[source] - base, self._final[source] - base
            for each in (self._random, self._tokens, self._logp):
                view = each.view(-1, self._stride)
                view[target] = view[source]
            self.last[target], self.done[target] = self.last[source], self.done[source]
            self._cursor[target] = self._base[target] + counts
            self._looked[target] = self._base[target] + unseen
            self._final[target] = self._base[target] + final
        self.close(range(len(rows), len(self.last)))


@dataclass(eq=False)
class _Occupant:
    """The request that occupies a row of the batch."""

    request: int
    prompt: int
    slot: int
    place: int  # its row
    drawn: int = 0  # tokens, those included that the device has yet to draw
    left: bool = False
    tokens: list[int] = field(default_factory=list)  # kept only where stops are looked for


@dataclass(frozen=True)
class _Taken:
    """A look that is on its way, and who sat in the rows then."""

    look: Look
    rows: list[_Occupant | None]


class DecodeScheduler:
    """One batch of requests on its way."""

    def __init__(self, backend: DecodeBackend, job: DecodeJob) -> None:
        self._backend, self._job, self._log = backend, job, backend.log
        self._waiting = deque((prompt, request) for prompt, each in enumerate(job.members) for request in each)
        self._unfinished = [len(each) for each in job.members]
        self._rows: list[_Occupant | None] = []  # None is free
        self._slots: list[int | None] = [None] * backend.num_slots  # the prompt in each
        self._budget = job.sampling.max_new_tokens
        seeds = [request.seed for request in job.requests]
        device = backend.log.device
        self._streams = uniforms(seeds, self._budget).to(device)
        # where the model runs: handing in must not wait for it
        self._tokens = torch.zeros(len(seeds), self._budget, dtype=torch.long, device=device)
        self._logp = torch.zeros(len(seeds), self._budget, device=device)
        self._count = [0] * len(seeds)
        self._stopped_early: set[int] = set()  # requests
        self._kept: list[KeptTokens] = []  # rows are requests here

    def run(self) -> Completions:
        looks: deque[_Taken] = deque()
        with self._backend.running():
            while self._waiting or any(self._rows):
                self._enter()
                steps = self._next_steps()
                for _ in range(steps):
                    self._note(self._backend.step(), self._rows)
                if steps:
                    looks.append(self._take_look(steps))
                while len(looks) > (self._backend.looks_behind if steps else 0):
                    self._leave(looks.popleft())
        return self._completions()

    def _next_steps(self) -> int:
        """No more than the rows that are busy can use."""
        left = max((self._budget - row.drawn for row in self._rows if row is not None), default=0)
        return min(self._backend.steps_per_look, left)

    def _take_look(self, steps: int) -> _Taken:
        for row in self._rows:
            if row is not None:
                row.drawn = min(self._budget, row.drawn + steps)
        if self._job.sampling.keeps_support and (kept := self._backend.take_kept(len(self._rows))) is not None:
            self._keep(kept, self._rows)
        # the token that a row drew when it came in is told with its first look
        fresh = self._backend.steps_per_look + 1 if self._job.sampling.stops_early else 0
        return _Taken(self._log.look(len(self._rows), fresh), list(self._rows))

    def _completions(self) -> Completions:
        tokens, logp = self._tokens.cpu(), self._logp.cpu()
        count = torch.tensor(self._count)
        final = tokens[torch.arange(len(count)), count - 1].tolist()
        stop = [
            StopReason.TEXT if request in self._stopped_early
            else StopReason.END if token in self._log.ends
            else StopReason.LENGTH
            for request, token in enumerate(final)
        ]  # fmt: skip
        behind = torch.arange(self._budget)[None] >= count[:, None]
        tokens, logp = tokens.masked_fill_(behind, 0), logp.masked_fill_(behind, 0)
        return Completions(tokens, logp, self._count, stop, _supports(self._kept, self._count))

    def _note(self, drawn: Draw | None, rows: Sequence[_Occupant | None]) -> None:
        """Keep what could have been drawn, where sampling truncates."""
        if drawn is not None and drawn.kept is not None:
            row, ids = drawn.kept.cpu().nonzero(as_tuple=True)
            counts = torch.bincount(row, minlength=len(drawn.kept))
            numbers = torch.arange(len(counts))
            self._keep(KeptTokens(numbers, torch.zeros_like(numbers), counts, ids.to(torch.int32)), rows)

    def _keep(self, kept: KeptTokens, rows: Sequence[_Occupant | None]) -> None:
        most = int(kept.counts.max()) if len(kept.counts) else 0
        if most > LARGEST_SUPPORT:
            sampling = self._job.sampling
            raise WhetError(
                f"top_p={sampling.top_p}, min_p={sampling.min_p} keep {most} tokens at one position; the "
                f"trainer must renormalise on all of them: add top_k={LARGEST_SUPPORT // 4}, or switch truncation off"
            )
        requests = torch.tensor([-1 if row is None else row.request for row in rows])
        # positions of one part come before those of the next
        position = kept.position + len(self._kept) * (self._backend.steps_per_look + self._budget)
        self._kept.append(KeptTokens(requests[kept.row], position, kept.counts, kept.ids))

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
            rows = numbers_on(self._log.device, taken)
            requests = numbers_on(self._log.device, [row.request for row in seated])
            self._log.open(rows, self._streams.index_select(0, requests), torch.full_like(rows, self._budget))
            logits = self._backend.enter(taken, [row.slot for row in seated])
            drawn = draw(logits, self._log.uniform(rows), self._job.sampling, spend=True)
            self._log.record(rows, drawn)
            self._note(drawn, seated)
            for row in seated:
                row.drawn = 1
            self._seat()
            if self._budget == 1 or not self._backend.looks_behind:
                self._leave(self._take_look(0))

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
            self._rows[place] = _Occupant(request, prompt, slot_of[prompt], place)
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

    def _leave(self, taken: _Taken) -> None:
        """Rows that are done hand in what they wrote."""
        done, counts, fresh = taken.look.read()
        gone: list[_Occupant] = []
        cut: list[int] = []  # rows that something besides an end token stopped
        for place, row in enumerate(taken.rows):
            if row is None or row.left:  # an earlier look saw it leave
                continue
            count, ends = counts[place], done[place]
            if self._job.sampling.stops_early:
                stopped_at = self._stopped_at(row, fresh[place], count)
                if stopped_at is not None:
                    cut.append(row.place)
                    self._stopped_early.add(row.request)
                    count, ends = stopped_at, True
            if ends:
                self._count[row.request] = count
                gone.append(row)
        if not gone:
            return
        rows = numbers_on(self._log.device, [row.place for row in gone])
        requests = numbers_on(self._log.device, [row.request for row in gone])
        tokens, logp = self._log.written(rows, self._budget)
        self._tokens.index_copy_(0, requests, tokens)
        self._logp.index_copy_(0, requests, logp)
        for row in gone:
            self._unfinished[row.prompt] -= 1
            if not self._unfinished[row.prompt]:
                self._slots[row.slot] = None
            self._rows[row.place], row.left = None, True
        self._log.close(cut)
        if any(self._rows):
            self._move_together()
            self._seat()

    def _stopped_at(self, row: _Occupant, fresh: np.ndarray, count: int) -> int | None:
        """How many of a row's tokens stand when a text or a sequence stops it, its newest tokens added."""
        known = len(row.tokens)
        row.tokens += fresh[: count - known].tolist()
        stopped_at = self._job.stop.stopped_at(row.tokens, known, self._job.sampling)
        by_token = stopped_at is not None and row.tokens[stopped_at - 1] in self._log.ends
        return None if by_token else stopped_at

    def _move_together(self) -> None:
        busy = [place for place, row in enumerate(self._rows) if row is not None]
        if self._backend.rows_after(len(busy), len(self._rows), len(self._waiting)) >= len(self._rows):
            return
        rows = _front(busy)
        slots = _front([slot for slot, prompt in enumerate(self._slots) if prompt is not None])
        self._log.keep(rows)
        self._backend.keep(rows, slots)
        self._rows = [self._rows[place] for place in rows]
        for place, row in enumerate(self._rows):
            assert row is not None
            row.place = place
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


def _supports(kept: Sequence[KeptTokens], count: Sequence[int]) -> list[Support | None]:
    """What could be drawn for each request, position after position; `row` of the parts is the request."""
    if not kept:
        return [None] * len(count)
    request, position, counts, ids = (
        torch.cat([getattr(each, name) for each in kept]).numpy() for name in ("row", "position", "counts", "ids")
    )
    start = counts.cumsum() - counts
    order = np.lexsort((position, request))
    order = order[request[order] >= 0]  # without those that nobody sat in
    first = np.searchsorted(request[order], np.arange(len(count)))
    rank = np.arange(len(order)) - first[request[order]]
    order = order[rank < np.array(count)[request[order]]]  # a row that has ended draws on until it is seen
    sizes = counts[order]
    place = np.repeat(start[order] - (sizes.cumsum() - sizes), sizes) + np.arange(sizes.sum())
    flat, lengths = torch.from_numpy(ids[place]), torch.from_numpy(sizes.astype(np.int32))
    ends = np.cumsum(np.bincount(request[order], weights=sizes, minlength=len(count))).astype(int)
    return [
        Support(flat[begin:end], each)
        for begin, end, each in zip((0, *ends[:-1]), ends, lengths.split(list(count)), strict=True)
    ]
