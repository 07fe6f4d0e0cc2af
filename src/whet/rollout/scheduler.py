"""Requests in, completions out, on a decoder's buffers: rows that finish leave, requests that wait take their places.

What a row draws depends on its own request alone: its prompt, and the numbers of its seed by position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from whet.model.decode_state import BatchShape
from whet.model.hooked_decode import HookedDecoder
from whet.rollout.sampling import Draw, draw, uniforms
from whet.types import Request, Sampling, StopReason, WhetError

LARGEST_SUPPORT = 4096  # ids kept for one token; past it, storing the support costs more than the run
PREFILL_TOKENS = 1 << 14  # of one pass over prompts
STEPS_PER_LOOK = 16  # between two looks at a device that has to be waited for; rows that ended meanwhile are cut
# Rows are taken in, and the rest moved together, when at least one in so many is free: each costs about a step
FREE_BEFORE_ENTRY = 8
FREE_BEFORE_MOVE = 8


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

    def said(self, completion: Sequence[int], stop: Sequence[str]) -> bool:
        # a token adds at least one byte, and a character takes at most four
        text = self.text_of(list(completion[-(4 * max(map(len, stop)) + 4) :]))
        return any(each in text for each in stop)


def shares(requests: Sequence[Request]) -> list[tuple[tuple[int, ...], list[int]]]:
    """Neighbouring requests with equal prompts: (prompt, numbers of the requests)."""
    numbered = groupby(range(len(requests)), key=lambda number: requests[number].tokens)
    return [(tokens, list(numbers)) for tokens, numbers in numbered]


def supports(kept: Tensor, sampling: Sampling) -> list[Tensor]:
    """The ids that could be drawn in each row of `kept` [B, V]."""
    row, ids = kept.cpu().nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(kept))
    if int(counts.max()) > LARGEST_SUPPORT:
        raise WhetError(
            f"top_p={sampling.top_p}, min_p={sampling.min_p} keep {int(counts.max())} tokens at one position; the "
            f"trainer must renormalise on all of them: add top_k={LARGEST_SUPPORT // 4}, or switch truncation off"
        )
    return list(ids.to(torch.int32).split(counts.tolist()))


@dataclass
class _Row:
    """Who sits in a row."""

    request: int
    slot: int
    start: int  # the step it came in at
    said: list[int] = field(default_factory=list)  # its tokens; kept only where stop strings are looked for


class DecodeScheduler:
    """One batch of requests on its way."""

    def __init__(
        self, decoder: HookedDecoder, requests: Sequence[Request], sampling: Sampling, ending: StopRule, rows: int
    ) -> None:
        self._sampling, self._ending = sampling, ending
        self._device, self._budget = decoder.split.device, sampling.max_new_tokens
        prompts = shares(requests)
        self._prompts = [tokens for tokens, _ in prompts]
        self._waiting = [(place, number) for place, (_, numbers) in enumerate(prompts) for number in numbers][::-1]
        self._most_rows = min(rows, len(requests))
        self._num_steps = self._budget * -(-len(requests) // self._most_rows)
        # stragglers keep a prompt in its slot when most of its rows are gone already
        smallest = min(len(numbers) for _, numbers in prompts)
        num_slots = min(len(prompts), self._most_rows, 2 * -(-self._most_rows // smallest) + 1)
        width = max(map(len, self._prompts))
        shape = BatchShape(self._most_rows, num_slots, width, self._budget)
        self._decoder = decoder.suited(shape)
        self._state = self._decoder.state(shape)
        self._rows: list[_Row | None] = []  # as in the state; None is free
        self._slots: list[int | None] = [None] * num_slots  # the prompt in each
        self._step, self._oldest = 0, 0  # steps so far; the step at which the oldest row came in
        self._ledger = _TokenLog(requests, self._most_rows, self._budget, ending.tokens, self._device)
        self._stopped_by_text: set[int] = set()
        self._count = [0] * len(requests)
        self._support: list[list[Tensor]] = [[] for _ in requests]
        # a device of its own runs ahead of us; texts and supports are looked at token by token
        looks = self._device.type == "cpu" or bool(sampling.stop) or sampling.truncates
        self._stride = 1 if looks else STEPS_PER_LOOK

    def run(self) -> Completions:
        with self._decoder.running(self._num_steps):
            while self._waiting or any(self._rows):
                self._enter()
                if any(self._rows):
                    for _ in range(self._stride):
                        self._advance()
                    self._leave()
        return self._ledger.completions(self._count, self._stopped_by_text, self._support)

    def _advance(self) -> None:
        state = self._state
        state.completion_width = min(self._step - self._oldest + 1, self._budget)
        logits = self._decoder.step(self._ledger.last[: state.rows], state)
        state.count[: state.rows].add_(1).clamp_(max=self._budget - 1)
        self._step += 1
        self._note(self._ledger.draw(logits, slice(0, state.rows), self._sampling), range(state.rows))

    def _note(self, drawn: Draw, places: Sequence[int]) -> None:
        if drawn.kept is None:
            return
        for place, ids in zip(places, supports(drawn.kept, self._sampling), strict=True):
            if (row := self._rows[place]) is not None:
                self._support[row.request].append(ids)

    def _enter(self) -> None:
        """Give free rows to requests that wait, and let each draw its first token."""
        while self._waiting:
            free = [place for place, row in enumerate(self._rows) if row is None]
            free += range(len(self._rows), self._most_rows)
            if len(free) < self._most_rows and len(free) < max(1, self._most_rows // FREE_BEFORE_ENTRY):
                return
            taken = self._seats(free)
            if not taken:
                return
            places = torch.tensor(taken, device=self._device)
            slots = [row.slot for place in taken if (row := self._rows[place])]
            self._state.enter(taken, slots)
            self._ledger.open(places, [row.request for place in taken if (row := self._rows[place])])
            logits = self._decoder.first_logits(torch.tensor(slots, device=self._device), self._state)
            self._note(self._ledger.draw(logits, places, self._sampling), taken)
            self._seat()
            self._leave(taken)

    def _seats(self, free: Sequence[int]) -> list[int]:
        """Seat as many waiting requests as have a row and a slot; the rows they took."""
        taken: list[int] = []
        new: list[tuple[int, int]] = []  # (slot, prompt)
        for place in free:
            if not self._waiting:
                break
            prompt, request = self._waiting[-1]
            if prompt in self._slots:
                slot = self._slots.index(prompt)
            elif None in self._slots:
                slot = self._slots.index(None)
                self._slots[slot] = prompt
                new.append((slot, prompt))
            else:
                break
            self._waiting.pop()
            self._rows += [None] * (place + 1 - len(self._rows))
            self._rows[place] = _Row(request, slot, self._step)
            taken.append(place)
        for part in _parts(new, self._prompts):
            width = max(len(self._prompts[prompt]) for _, prompt in part)
            tokens = torch.tensor(
                [self._prompts[prompt] + (0,) * (width - len(self._prompts[prompt])) for _, prompt in part]
            )
            lengths = [len(self._prompts[prompt]) for _, prompt in part]
            self._decoder.prefill(tokens, lengths, [slot for slot, _ in part], self._state)
        return taken

    def _leave(self, places: Sequence[int] | None = None) -> None:
        """Free the rows that are done; without anyone to take their places, move the rest together."""
        ledger = self._ledger
        done = ledger.done[: len(self._rows)].tolist()
        if self._sampling.stop:
            last = ledger.last[: len(self._rows)].tolist()
            for place in range(len(self._rows)) if places is None else places:
                if (row := self._rows[place]) is not None:
                    row.said.append(last[place])
                    if last[place] not in ledger.ends and self._ending.said(row.said, self._sampling.stop):
                        self._stopped_by_text.add(row.request)
                        done[place] = True
        if not any(gone := [row is not None and done[place] for place, row in enumerate(self._rows)]):
            return
        count = ledger.counts(len(self._rows))
        for place, row in enumerate(self._rows):
            if row is not None and gone[place]:
                self._count[row.request] = count[place]
                self._rows[place] = None
        needed = {row.slot for row in self._rows if row is not None}
        if self._waiting:
            # the requests of a prompt come in one after the other, and the next may want the same prompt
            needed |= {slot for slot, prompt in enumerate(self._slots) if prompt == self._waiting[-1][0]}
        self._slots = [prompt if slot in needed else None for slot, prompt in enumerate(self._slots)]
        if needed and not self._waiting:
            self._close_ranks()
        ledger.close([place for place, row in enumerate(self._rows) if row is None])
        if any(self._rows):
            self._seat()

    def _close_ranks(self) -> None:
        holders = [place for place, row in enumerate(self._rows) if row is not None]
        if len(self._rows) - len(holders) < max(1, len(self._rows) // FREE_BEFORE_MOVE):
            return
        sources, targets = _moves(holders)
        if sources:
            self._state.move_rows(sources, targets)
            self._ledger.move(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self._rows[target] = self._rows[source]
        del self._rows[len(holders) :]
        used = [slot for slot, prompt in enumerate(self._slots) if prompt is not None]
        sources, targets = _moves(used)
        if sources:
            self._state.move_slots(sources, targets)
            for source, target in zip(sources, targets, strict=True):
                self._slots[target], self._slots[source] = self._slots[source], None
                for row in self._rows:
                    if row is not None and row.slot == source:
                        row.slot = target

    def _seat(self) -> None:
        state = self._state
        rows = [row for row in self._rows if row is not None]
        lengths = {len(self._prompts[self._slots[row.slot] or 0]) for row in rows}
        state.seat([None if row is None else row.slot for row in self._rows], max(lengths))
        starts = {row.start for row in rows}
        self._oldest = min(starts)
        state.ragged = len(lengths) > 1 or len(starts) > 1


class _TokenLog:
    """What each row has drawn, kept where the model runs: nothing here waits for the device."""

    def __init__(self, requests: Sequence[Request], rows: int, budget: int, ends: Tensor, device: torch.device) -> None:
        def numbers(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.long, device=device)

        # a place more than a completion has tokens, for rows that have ended but still sit there; one more for free rows
        self._stride, total = budget + 1, len(requests) * (budget + 1)
        random = uniforms([request.seed for request in requests], self._stride)
        self._random = torch.cat([random.view(-1), torch.zeros(1)]).to(device)
        self._tokens = numbers(total + 1)
        self._logp = torch.zeros(total + 1, device=device)
        self._dump = total
        self._end_tokens = ends.to(device)[None] if len(ends) else None
        self.ends = frozenset(ends.tolist())
        self.last = numbers(rows)  # the token each row drew last
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self._cursor = torch.full_like(self.last, total)  # the place of its next token
        self._final = numbers(rows)  # the place of the last token that its budget allows

    def open(self, places: Tensor, requests: Sequence[int]) -> None:
        start = torch.tensor(requests, device=places.device) * self._stride
        self._cursor[places], self._final[places] = start, start + (self._stride - 2)
        self.done[places] = False

    def close(self, places: Sequence[int]) -> None:
        if places:
            where = torch.tensor(places, device=self.done.device)
            self.done[where], self._cursor[where] = True, self._dump

    def counts(self, rows: int) -> list[int]:
        """How many tokens each of the first rows has drawn; of a free row, any number."""
        return (self._cursor[:rows] - self._final[:rows] + (self._stride - 2)).tolist()

    def draw(self, logits: Tensor, places: slice | Tensor, sampling: Sampling) -> Draw:
        """Draw a token for these rows and note it; rows that are done stay as they are."""
        cursor, done = self._cursor[places], self.done[places]
        drawn = draw(logits, self._random.index_select(0, cursor), sampling, spend=True)
        self._tokens.index_copy_(0, cursor, drawn.token)
        self._logp.index_copy_(0, cursor, drawn.logp)
        self.last[places] = drawn.token
        ended = cursor >= self._final[places]
        if self._end_tokens is not None:
            ended |= (drawn.token[:, None] == self._end_tokens).any(-1)
        cursor += ~done
        done |= ended
        if isinstance(places, Tensor):  # then these are copies
            self._cursor[places], self.done[places] = cursor, done
        return drawn

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = (torch.tensor(each, device=self.done.device) for each in (sources, targets))
        for values in (self.last, self.done, self._cursor, self._final):
            values[target] = values[source]

    def completions(self, count: list[int], by_text: set[int], support: list[list[Tensor]]) -> Completions:
        tokens, logp = (each[:-1].view(-1, self._stride)[:, :-1].cpu() for each in (self._tokens, self._logp))
        final = tokens[torch.arange(len(tokens)), torch.tensor(count) - 1].tolist()
        stop = [
            StopReason.TEXT if number in by_text else StopReason.END if token in self.ends else StopReason.LENGTH
            for number, token in enumerate(final)
        ]
        return Completions(tokens, logp, count, stop, support)


def _parts(new: list[tuple[int, int]], prompts: Sequence[tuple[int, ...]]) -> list[list[tuple[int, int]]]:
    """New prompts, as many at a time as one pass over them may hold."""
    parts: list[list[tuple[int, int]]] = []
    widest = 0
    for each in new:
        width = max(widest, len(prompts[each[1]]))
        if not parts or width * (len(parts[-1]) + 1) > PREFILL_TOKENS:
            parts.append([])
            width = len(prompts[each[1]])
        parts[-1].append(each)
        widest = width
    return parts


def _moves(held: Sequence[int]) -> tuple[list[int], list[int]]:
    """(from, to): the fewest moves after which the held places are the first ones."""
    holes = sorted(set(range(len(held))) - set(held))
    return [place for place in held if place >= len(held)], holes
