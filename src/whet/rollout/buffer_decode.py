"""Decoding on whet's own buffers: the backend of models whose attention whet can run (`whet.model.hooked_decode`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from whet.model.decode_state import BatchShape
from whet.model.experts import RoutingPass, routers, routing
from whet.model.hooked_decode import HookedDecoder
from whet.model.shared_prefix import long_tensor
from whet.rollout.expert_log import ExpertLog
from whet.rollout.sampling import Draw, draw
from whet.rollout.scheduler import DecodeJob, HeldBeginning, ResumingBackend, TokenLog, passes
from whet.types import SessionShape

STEPS_PER_LOOK = 16  # at a device that has to be waited for; rows that ended meanwhile are cut
# Rows are taken in, and the rest moved together, when at least one in so many is free: each costs about a step
FREE_BEFORE_ENTRY = 8
FREE_BEFORE_MOVE = 8
EXTENSION_STEPS = 2  # that a pass over answers costs, besides their tokens


class BufferBackend(ResumingBackend):
    """On a decoder and its state: for the requests of a job, or for a session."""

    def __init__(self, decoder: HookedDecoder, job: DecodeJob, rows: int, session: SessionShape | None = None) -> None:
        """Allocate the state of a batch; for a mixture of experts, each token's experts are recorded too."""
        self._sampling, self._device = job.sampling, decoder.lm.device
        if session is not None:
            self._budget, longest = session.growth, session.prompt_tokens
            self.num_rows = self.num_slots = min(rows, session.conversations)
            num_steps = self._budget
        else:
            self._budget, longest = job.budget, max(map(len, job.prompts))
            self.num_rows = min(rows, len(job.requests))
            num_steps = self._budget * -(-len(job.requests) // self.num_rows)
            # stragglers keep a prompt in its slot when most of its rows are gone already
            smallest = min(map(len, job.members))
            self.num_slots = min(len(job.prompts), self.num_rows, 2 * -(-self.num_rows // smallest) + 1)
        # a device of its own runs ahead of us
        self.steps_per_look = 1 if self._device.type == "cpu" else STEPS_PER_LOOK
        shape = BatchShape(self.num_rows, self.num_slots, longest, self._budget, session is not None)
        self._decoder, self._num_steps = decoder.suited(shape), num_steps
        self._weights = self._decoder.gathered(num_steps)
        self._state = self._decoder.state(shape)
        self.log = TokenLog(self.num_rows, self._budget, job.stop.tokens, self._device)
        of = routers(decoder.lm)
        widths = (longest, self._budget)
        self._experts = None if of is None else ExpertLog(of, self.num_rows, self.num_slots, widths, self._device)
        self._routing: RoutingPass | None = None
        self.forks = self._experts is None  # they are noted by row, and stay where they were
        self._forget()

    def renew(self) -> None:
        self._weights = self._decoder.gathered(self._num_steps)
        self.log.close(range(self.num_rows))
        self._forget()

    def _forget(self) -> None:
        """No row and no slot holds anything."""
        self._lengths = [0] * self.num_slots  # of the prompts in the slots
        # the step at which each row came in; of one that has read on, as if it had read token by token
        self._starts = [0] * self.num_rows
        self._waits_with: dict[int, int] = {}  # rows that were written and are not any more: own places that they hold
        self._step, self._oldest = 0, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        watched = nullcontext() if self._experts is None else routing(self._decoder.lm)
        with self._decoder.running(self._weights), watched as self._routing:
            yield

    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        return num_free == self.num_rows or num_free >= max(1, self.num_rows // FREE_BEFORE_ENTRY)

    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        width = max(map(len, prompts))
        tokens = long_tensor([prompt + (0,) * (width - len(prompt)) for prompt in prompts])
        lengths = list(map(len, prompts))
        self._decoder.prefill(tokens, lengths, slots, self._state)
        if self._experts is not None and self._routing is not None:
            self._experts.prefill(slots, self._routing.chosen)
        for slot, length in zip(slots, lengths, strict=True):
            self._lengths[slot] = length

    def resume_prompts(
        self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]], held: Sequence[HeldBeginning]
    ) -> None:
        starts = [beginning.length for beginning in held]
        sources = [(beginning.slot, beginning.row, self._lengths[beginning.slot]) for beginning in held]
        self._state.begin_slots(slots, sources, starts)
        rests = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
        for slot, prompt in zip(slots, prompts, strict=True):
            self._lengths[slot] = len(prompt)
        lengths = list(map(len, rests))
        for part in passes(sorted(range(len(rests)), key=lengths.__getitem__), lengths):
            width = max(lengths[number] for number in part)
            tokens = long_tensor([rests[number] + (0,) * (width - lengths[number]) for number in part])
            first, size, where = ([values[number] for number in part] for values in (starts, lengths, slots))
            self._decoder.prefill_rest(tokens, first, size, where, self._state)

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        for row in rows:
            self._starts[row] = self._step
            self._waits_with.pop(row, None)
        self._state.enter(rows, slots)
        return self._decoder.first_logits(torch.tensor(slots, device=self._device), self._state)

    def may_extend(self, num_ready: int, num_busy: int, turn_tokens: float) -> bool:
        # k rows of N gathered: N / k passes in the time of a turn of T steps, and k T / 2N steps more for everybody
        return num_ready >= min(1.0, (2 * EXTENSION_STEPS / max(turn_tokens, 1.0)) ** 0.5) * num_busy

    def extend(
        self, rows: Sequence[int], slots: Sequence[int], starts: Sequence[int], chunks: Sequence[tuple[int, ...]]
    ) -> Tensor:
        lengths = list(map(len, chunks))
        width = max(lengths)
        for row, start, length in zip(rows, starts, lengths, strict=True):
            self._starts[row] = self._step - start - length
            self._waits_with.pop(row, None)
        prompt_width = max(self._lengths[slot] for slot in slots)
        extension = self._state.begin_extension(rows, slots, starts, lengths, prompt_width)
        tokens = long_tensor([chunk + (0,) * (width - len(chunk)) for chunk in chunks])
        logits = self._decoder.extend(tokens, extension, self._state)
        if self._experts is not None and self._routing is not None:
            self._experts.extend(rows, starts, lengths, self._routing.chosen)
        return logits

    def fork(self, sources: Sequence[int], targets: Sequence[int], widths: Sequence[int]) -> None:
        for width in sorted(set(widths)):  # behind it nothing may be seen
            rows = [number for number, own in enumerate(widths) if own == width]
            self._state.move_rows([sources[row] for row in rows], [targets[row] for row in rows], width)

    def seat(self, slots: Sequence[int | None]) -> None:
        lengths = {self._lengths[slot] for slot in slots if slot is not None}
        starts = {self._starts[row] for row, slot in enumerate(slots) if slot is not None}
        self._state.seat(slots, max(lengths))
        self._oldest = min(starts)
        for row in range(self.num_rows):
            if row >= len(slots) or slots[row] is None:
                self._waits_with.setdefault(row, self._places(row))
        self._state.ragged = len(lengths) > 1 or len(starts) > 1

    def step(self) -> Draw:
        state = self._state
        state.completion_width = min(self._step - self._oldest + 1, self._budget)
        rows = slice(0, state.rows)
        logits = self._decoder.step(self.log.last[rows], state)
        if self._experts is not None and self._routing is not None:
            self._experts.step(state.count[rows], self._routing.chosen)
        state.count[rows].add_(1).clamp_(max=self._budget - 1)
        self._step += 1
        drawn = draw(logits, self.log.uniform(rows), self._sampling, spend=True, allowed=self.log.allowed)
        self.log.record(rows, drawn)
        return drawn

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        if num_waiting:
            return num_rows
        return num_busy if num_rows - num_busy >= max(1, num_rows // FREE_BEFORE_MOVE) else num_rows

    def _places(self, row: int) -> int:
        """Own places of a row that hold something, at most."""
        return self._waits_with.get(row, min(self._step - self._starts[row], self._budget))

    def experts(self, row: int, slot: int, prompt: int, own: int) -> Tensor | None:
        return None if self._experts is None else self._experts.sample(row, slot, prompt, own)

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        if self._experts is not None:
            self._experts.keep(rows, slots)
        moved = [target for target, held in enumerate(rows) if target != held]
        if moved:
            width = max(self._places(rows[target]) for target in moved)
            self._state.move_rows([rows[target] for target in moved], moved, width)
            waiting = {target: self._waits_with[row] for target, row in enumerate(rows) if row in self._waits_with}
            self._waits_with = waiting | dict.fromkeys(range(len(rows), self.num_rows), 0)
            self._starts = [self._starts[row] for row in rows] + self._starts[len(rows) :]
        moved = [target for target, held in enumerate(slots) if target != held]
        if moved:
            self._state.move_slots([slots[target] for target in moved], moved)
            self._lengths = [self._lengths[slot] for slot in slots] + self._lengths[len(slots) :]
