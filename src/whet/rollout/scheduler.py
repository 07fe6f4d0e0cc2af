"""Requests in, completions out, on any backend: rows that finish leave, requests that wait take their places.

The scheduler knows who sits where: the request of each row, the prompt in each slot. A backend knows how to compute:
keys and values, logits, a step. Three exist: whet's buffers (`buffer_decode`), CUDA graphs (`cuda_decode`) and the
model's own forward and cache (`own_cache`). What a row draws depends on its own request alone: its prompt, and the
random numbers of its seed by position.

Either all requests are known (`run`), or they come while others are written (`add`, `advance`). Then a row is a
conversation: it keeps its seat when its turn ends, and reads on from there when it is continued.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from whet.model.decode_state import TokenRows
from whet.model.shared_prefix import long_tensor, to_device
from whet.rollout.prompt_beginnings import Beginning, shared_beginnings
from whet.rollout.sampling import Draw, draw, uniforms
from whet.types import Request, Sampling, StopReason, Support, WhetError

LARGEST_SUPPORT = 4096  # ids kept for one token; past it, storing the support costs more than the run
PREFILL_TOKENS = 1 << 14  # of one pass over prompts
LEAST_FORKED = 16  # tokens behind its prompt that a request must have in common with a row before they are copied


@dataclass(frozen=True)
class DrawnCompletion:
    """One completion."""

    number: int
    request: Request
    tokens: Tensor  # int64 [count]
    logp: Tensor  # float32 [count]
    stop: StopReason
    support: Support | None
    token_versions: Tensor | None = None  # int32 [count]; None: one policy version wrote all of it
    experts: Tensor | None = None  # [prompt and count, layers, k]


@dataclass(frozen=True)
class UnfinishedRow:
    """A request that is not finished, and what it has written so far."""

    number: int
    request: Request
    prompt_length: int  # of the prompt that its row shares with others; the rest of its tokens is its own
    tokens: Tensor  # int64 [count]; empty where it waited for a row
    logp: Tensor  # float32 [count]
    support: Support | None


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
                if any(stop in text for stop in sampling.stop):
                    return count
        return None

    def _has_last_letter(self, token: int, stop: tuple[str, ...]) -> bool:
        """False where this token cannot complete a text: most texts need not be decoded.

        Alone, a token may lose the space in front of it, or be part of a character.
        """
        known = self._may_complete.get((token, stop))
        if known is None:
            text = self.text_of([token])
            known = (
                not text
                or "\ufffd" in text
                or any(stop_text[-1].isspace() or stop_text[-1] in text for stop_text in stop)
            )
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

    @property
    def budget(self) -> int:
        """Tokens of the longest completion that is asked for."""
        default = self.sampling.max_new_tokens
        return max((request.max_new_tokens or default for request in self.requests), default=default)


def decode_job(
    requests: Sequence[Request], sampling: Sampling, stop: StopRule, most_members: int | None = None
) -> DecodeJob:
    """Requests with equal prompts together, wherever they stand, at most `most_members` to a prompt."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for number, request in enumerate(requests):
        by_prompt.setdefault(request.tokens, []).append(number)
    step = most_members or max(1, len(requests))
    parts = [
        (tokens, numbers[start : start + step])
        for tokens, numbers in by_prompt.items()
        for start in range(0, len(numbers), step)
    ]
    return DecodeJob(requests, sampling, stop, [tokens for tokens, _ in parts], [numbers for _, numbers in parts])


class DecodeBackend(ABC):
    """Computes what the scheduler arranges. Rows and slots are numbered from 0, without gaps behind the last.

    Prompts are read whole, and nothing outlasts the requests of a job.
    """

    num_rows: int  # at most
    num_slots: int  # prompts that it holds at once
    steps_per_look = 1  # between two looks at who has finished
    looks_behind = 0  # a device that runs ahead is given the next steps before the last look is read
    prefills_ahead = False  # also prompts whose rows are not free yet
    most_members: int | None = None  # rows that may share a slot; None: any number
    log: TokenLog

    def running(self) -> AbstractContextManager[None]:
        """Inside, everything below works."""
        return torch.no_grad()

    @abstractmethod
    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        """Whether it is worth the while to seat requests now."""

    @abstractmethod
    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        """Read prompts into slots."""

    @abstractmethod
    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Rows begin to answer the prompts in these slots: logits [rows, V] of their first token."""

    def seat(self, slots: Sequence[int | None]) -> None:
        """The slot of each row for the coming steps; None for a free row, or one that waits to read on.

        The steps compute the first `len(slots)` rows. What a waiting row holds in front of the `starts` of its next
        `extend` stays as it is, in front of that length or behind it.
        """
        return None

    @abstractmethod
    def step(self) -> Draw | None:
        """One token for every row, drawn and logged; None where `take_kept` tells what could have been drawn."""

    def take_kept(self, rows: int) -> KeptTokens | None:
        """What the first rows could have drawn since the last time, where `step` does not say."""
        return None

    def experts(self, row: int, slot: int, prompt: int, own: int) -> Tensor | None:
        """[prompt + own, layers, k], on the host: the experts of a row with so many tokens, -1 for its last, which it
        has drawn and not read; None where they are not noted."""
        return None

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        """How many rows to go on with: fewer than `num_rows` if moving those that are busy together pays."""
        return num_busy

    @abstractmethod
    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Row n is from now on what row `rows[n]` was, and so for slots. The log is moved already.

        Rows may change places with each other, those that wait to read on included, so a row is taken before it is
        written over. Rows and slots behind those that are named are gone.
        """


class SessionBackend(DecodeBackend):
    """One on which sessions are opened as well: rows read on behind what they hold, and the weights may change."""

    forks = True  # whether rows can be copied

    @abstractmethod
    def may_extend(self, num_ready: int, num_busy: int, turn_tokens: float) -> bool:
        """Whether it is worth the while to read on in rows that have something to read, `num_busy` others writing.

        `turn_tokens`: what a turn took so far, on average.
        """

    @abstractmethod
    def extend(
        self, rows: Sequence[int], slots: Sequence[int], starts: Sequence[int], chunks: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Rows read on behind what they hold: float32 logits [rows, V] behind the last token of each chunk.

        Chunk n, at least one token, goes to the own places `starts[n]`, `starts[n] + 1`, ... of row `rows[n]`: place p
        is the position (length of the prompt in `slots[n]`) + p. Its tokens see the prompt, the places in front of
        `starts[n]` and each other causally; whatever stands at `starts[n]` or behind is written over, never read. The
        row has entered that slot before. The next step reads `log.last` at the place behind the chunk.
        """

    @abstractmethod
    def fork(self, sources: Sequence[int], targets: Sequence[int], widths: Sequence[int]) -> None:
        """Copy the first own places of rows, so many of each, to rows that have just entered a slot with the same
        prompt; they read on behind that."""

    @abstractmethod
    def renew(self) -> None:
        """The model has other weights: whatever rows and slots hold counts no more."""


class ResumingBackend(SessionBackend):
    """One on which prompts, too, are read behind what others have in common with them, where rows can be copied."""

    @abstractmethod
    def resume_prompts(
        self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]], held: Sequence[HeldBeginning]
    ) -> None:
        """Read prompts into slots, each behind a beginning that is copied; all are copied before one is read."""


@dataclass(frozen=True)
class HeldBeginning:
    """The first tokens of what stands in a slot and, where they are more than its prompt, in a row behind it."""

    slot: int
    row: int | None
    length: int


@dataclass(frozen=True)
class KeptTokens:
    """The tokens that could be drawn at some positions, where sampling truncates."""

    row: Tensor  # int64 [n], which row drew
    position: Tensor  # int64 [n], grows with the tokens of a row
    counts: Tensor  # int64 [n]
    ids: Tensor  # int32 [sum of counts]


class OnTheWay:
    """Values on their way from the device; reading them waits for it, sending them does not."""

    def __init__(self, *values: Tensor) -> None:
        self._event: Any = None
        self._values = values
        if values[0].is_cuda:
            self._values = tuple(torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for value in values)
            for here, there in zip(self._values, values, strict=True):
                here.copy_(there, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> tuple[Tensor, ...]:
        """The values on the host; waits until they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


class Look:
    """What the batch was like when it was taken."""

    def __init__(self, values: Tensor) -> None:
        self._values = OnTheWay(values)  # int64 [rows, 2 + fresh]: done, count, tokens since the last look

    def read(self) -> tuple[list[bool], list[int], np.ndarray]:
        """By row: done or not, tokens drawn in all, and the tokens since the last look; waits for the device."""
        values = self._values.read()[0].numpy()
        return values[:, 0].astype(bool).tolist(), values[:, 1].tolist(), values[:, 2:]


def numbers_on(device: torch.device, values: Sequence[Any]) -> Tensor:
    """The values as an int64 tensor on the device, without waiting for what it computes."""
    return to_device(long_tensor(values), device)


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
        self.allowed: Tensor | None = (
            None  # bool [rows, V]: what the next step may draw, where something is constrained
        )
        self.last = torch.zeros(rows, dtype=torch.long, device=device)  # the token each row drew last
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self._cursor = self._base + budget  # the place of its next token
        self._looked = self._base.clone()  # the first that no look has told

    def look(self, num_rows: int, fresh: int) -> Look:
        """A look at the first rows: done or not, tokens drawn, and the first `fresh` tokens since the last look."""
        values = [self.done[:num_rows, None].long(), self.counts(num_rows)[:, None]]
        if fresh:
            position = self._looked[:num_rows, None] + torch.arange(fresh, device=self.device)
            values.append(self._tokens[position.clamp_(max=len(self._tokens) - 1)])
            self._looked[:num_rows] = self._cursor[:num_rows]
        return Look(torch.cat(values, 1))

    @property
    def moving(self) -> tuple[Tensor, ...]:
        """What a step changes that the next step reads."""
        return self.last, self.done, self._cursor

    @property
    def state(self) -> TokenRows:
        """All of it, for a step that is one kernel behind another."""
        ends = self._base[:0] if self._end_tokens is None else self._end_tokens[0]
        place = (self._cursor, self._base, self._final)
        return TokenRows(self.last, self.done, *place, self._random, self._tokens, self._logp, ends)

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
        self.done[rows] = self.done.new_zeros(())

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

    def written(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The first tokens [rows, width], and their log-probabilities, that these rows wrote."""
        tokens, logp = (buffer.view(-1, self._stride)[:, :width] for buffer in (self._tokens, self._logp))
        return tokens.index_select(0, rows), logp.index_select(0, rows)

    def keep(self, rows: Sequence[int]) -> None:
        """Row n becomes what row `rows[n]` was; the rows behind are closed."""
        moved = [position for position, row in enumerate(rows) if position != row]
        if moved:
            target = numbers_on(self.device, moved)
            source = numbers_on(self.device, [rows[position] for position in moved])
            base = self._base[source]
            counts, unseen, final = self._cursor[source] - base, self._looked[source] - base, self._final[source] - base
            for buffer in (self._random, self._tokens, self._logp):
                view = buffer.view(-1, self._stride)
                view[target] = view[source]
            self.last[target], self.done[target] = self.last[source], self.done[source]
            self._cursor[target] = self._base[target] + counts
            self._looked[target] = self._base[target] + unseen
            self._final[target] = self._base[target] + final
        self.close(range(len(rows), len(self.last)))


@dataclass(eq=False)
class _HeldPrompt:
    """A prompt that requests wait for or rows answer."""

    tokens: tuple[int, ...]
    slot: int | None = None
    users: int = 0  # requests that wait for it, and rows, those included that wait to read on


@dataclass(eq=False)
class _Occupant:
    """A request that waits for a row of the batch, is written there, or has been and keeps the row."""

    number: int
    request: Request
    prompt: _HeldPrompt  # what the request's tokens begin with
    budget: int
    start: int = 0  # own places, behind the prompt, that are in the row when the request comes in
    place: int = -1  # its row
    drawn: int = 0  # tokens, those included that the device has yet to draw
    left: bool = False
    sampling: Sampling = field(default_factory=Sampling)  # the job's, with what the request stops at
    tokens: list[int] = field(default_factory=list)  # kept only where stops are looked for
    count: int = 0  # tokens of the completion, when it has left
    stopped_early: bool = False  # by something besides an end token
    first_part: int = 0  # of what was kept of the support, the first that may be its own
    conversation: tuple[int, ...] = ()  # prompt and completion, when they have been handed out
    experts: Tensor | None = None  # of prompt and completion, when it has left

    @property
    def is_writing(self) -> bool:
        return self.drawn > 0 and not self.left

    @property
    def held(self) -> tuple[int, ...]:
        """What the row is known to have read: of what it draws, nothing before it has been handed out."""
        if self.conversation:
            return self.conversation[:-1]
        return self.request.tokens[: None if self.drawn else len(self.prompt.tokens) + self.start]

    @property
    def unread(self) -> tuple[int, ...]:
        """What the row must read before it draws, behind the prompt and the places that it holds."""
        return self.request.tokens[len(self.prompt.tokens) + self.start :]


@dataclass(frozen=True)
class _Taken:
    """A look that is on its way, and who was writing in the rows then."""

    look: Look
    rows: Sequence[_Occupant | None]


@dataclass(frozen=True)
class _HandedIn:
    """What rows have written when they left."""

    rows: list[_Occupant]
    sent: OnTheWay  # their tokens, int64 [rows, width], and log-probabilities
    support: Sequence[Support | None]


@dataclass
class DecodeCounts:
    """Tokens that were computed, and what became of conversations."""

    prefilled: int = 0  # tokens of prompts
    extended: int = 0  # tokens that rows read on
    stepped: int = 0  # tokens read one by one, by rows that were writing
    continued: int = 0  # turns that went on with the keys and values of the turn before
    evicted: int = 0  # conversations that lost their row to another one
    recomputed: int = 0  # turns of a conversation that had to be read from its beginning
    forked: int = 0  # tokens whose keys and values were copied from another row, or another prompt

    def __sub__(self, other: DecodeCounts) -> DecodeCounts:
        return DecodeCounts(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))


class DecodeScheduler:
    """Requests on their way. With `room`, (tokens of a prompt, tokens behind it), rows are kept to be continued."""

    @overload
    def __init__(self, backend: DecodeBackend, job: DecodeJob) -> None: ...

    @overload
    def __init__(self, backend: SessionBackend, job: DecodeJob, room: tuple[int, int]) -> None: ...

    def __init__(self, backend: DecodeBackend, job: DecodeJob, room: tuple[int, int] | None = None) -> None:
        self._backend, self._job, self._log, self._room = backend, job, backend.log, room
        # what a session does with it, beyond what is done for a job
        self._session = backend if room is not None and isinstance(backend, SessionBackend) else None
        self._forking = self._session if self._session is not None and self._session.forks else None
        self._resuming = self._forking if isinstance(self._forking, ResumingBackend) else None
        self.counts = DecodeCounts()
        self._vocabulary = 0  # known with the first logits
        self._stops_early = job.sampling.stops_early or any(each.stop or each.stop_tokens for each in job.requests)
        self._waiting: deque[_Occupant] = deque()  # for a row
        self._ready: list[_Occupant] = []  # to read on, in the row of their conversation
        self._rows: list[_Occupant | None] = []  # None is free
        self._writing: list[_Occupant | None] = []  # the rows that steps compute; None is not written
        self._num_writing = 0
        self._num_left, self._left_tokens = 0, 0  # turns that have ended, and their tokens
        self._prompts: dict[tuple[int, ...], _HeldPrompt] = {}
        self._slots: list[_HeldPrompt | None] = [None] * backend.num_slots
        self._stale: dict[int, tuple[int, ...]] = {}  # what stands in slots that are free
        self._kept_rows: dict[int, _Occupant] = {}  # by request, the one that left first in front
        self._prompt_lengths: dict[int, int] = {}  # of requests that lost their rows
        self._looks: deque[_Taken] = deque()
        self._handed_in: deque[_HandedIn] = deque()
        self._support: list[KeptTokens] = []  # rows are requests here
        self._forgotten_parts = 0  # of the support, in front of these

    def run(self) -> list[DrawnCompletion]:
        """Write all requests of the job."""
        written: list[DrawnCompletion] = []
        self.stream(written.extend)
        return sorted(written, key=lambda drawn: drawn.number)

    def stream(self, ended: Callable[[list[DrawnCompletion]], None]) -> None:
        """Write all requests of the job, and tell those that have ended while the others are written."""
        self._wait_for_all()
        with self._backend.running():
            while self._waiting or self._num_writing or self._handed_in:
                if written := self.advance():
                    ended(written)

    def _wait_for_all(self) -> None:
        for tokens, members in zip(self._job.prompts, self._job.members, strict=True):
            prompt = _HeldPrompt(tokens)
            for number in members:
                self._wait(number, self._job.requests[number], prompt)

    def add(self, number: int, request: Request) -> None:
        """One more request. One that `continues` another keeps its row, where there still is one and it has room."""
        assert self._room is not None
        before = None if request.continues is None else self._kept_rows.get(request.continues)
        if before is not None:
            known, room = before.conversation, len(before.prompt.tokens) + self._room[1]
            fits = len(request.tokens) + self._budget_of(request) <= room
            if fits and known and request.tokens[: len(known)] == known:
                self._continue(number, request, before)
                return
        length = len(request.tokens) - request.drawn
        if request.continues is not None:
            self.counts.recomputed += 1
            length = self._prompt_lengths.get(request.continues, length)
        self._begin(number, request, self._forked_prompt(request, length))

    def _forked_prompt(self, request: Request, length: int) -> int:
        """The length of a prompt behind which rows hold more of what the request has to read; else as it was."""
        if self._forking is None or request.tokens[:length] in self._prompts:
            return length
        if self._resuming is not None and self._room is not None and length <= self._room[0]:
            return length  # as a prompt it is read once for all that ask for it, behind whatever is held
        tokens = request.tokens[:-1]
        held = [(_num_common(tokens, row), len(row.prompt.tokens)) for row in self._rows if row is not None]
        common, prompt = max(held, default=(0, 0))
        return prompt if common else length

    def _fork(self, seated: Sequence[_Occupant]) -> None:
        """Rows that have just entered take over what other rows hold of their tokens."""
        reading = [row for row in seated if row.unread]
        if self._forking is None or not reading:
            return
        new = set(seated)
        others = [row for row in self._rows if row is not None and row not in new]
        forked: list[tuple[_Occupant, int]] = []
        for row in reading:
            same = [other for other in others if other.prompt.tokens == row.prompt.tokens]
            tokens = row.request.tokens[:-1]
            common, place = max(((_num_common(tokens, other), other.place) for other in same), default=(0, 0))
            if common:
                row.start = common - len(row.prompt.tokens)
                forked.append((row, place))
        if forked:
            widths = [row.start for row, _ in forked]
            self._forking.fork([place for _, place in forked], [row.place for row, _ in forked], widths)
            self.counts.forked += sum(widths)

    def _begin(self, number: int, request: Request, length: int) -> None:
        """Let a request wait for a row; the first `length` of its tokens are the prompt that rows may share."""
        assert self._room is not None
        prompt, own = self._room
        if length > prompt or len(request.tokens) - length + self._budget_of(request) > own:
            length = min(len(request.tokens), prompt)
        if len(request.tokens) - length + self._budget_of(request) > own:
            raise WhetError(
                f"a conversation of {len(request.tokens)} tokens and {self._budget_of(request)} new ones exceed the "
                f"session's room of {prompt} and {own}; open it with a larger growth, or lower max_new_tokens"
            )
        self._wait(number, request, self._prompt(request.tokens[:length]))

    def interrupt(self) -> tuple[list[DrawnCompletion], list[UnfinishedRow]]:
        """What is finished and was not handed out, and all that is not, in the order in which it shall go on.

        Nothing is held afterwards: the next `resume` or `add` begins anew, with whatever weights there are then.
        """
        while self._looks:
            self._leave(self._looks.popleft())
        if self._num_writing:
            self._leave(self._take_look(0))
        finished = [written for part in self._handed_in for written in self._hand_out(part)]
        self._handed_in.clear()
        stopped = self._stop_writing()
        for row in self._ready:
            if row.request.continues is not None:
                self._prompt_lengths[row.request.continues] = len(row.prompt.tokens)
        for number, row in self._kept_rows.items():
            self._prompt_lengths[number] = len(row.prompt.tokens)
        nothing = torch.empty(0, dtype=torch.long), torch.empty(0), None
        waiting = [
            UnfinishedRow(row.number, row.request, len(row.prompt.tokens), *nothing)
            for row in (*self._ready, *self._waiting)
        ]
        self._waiting.clear()
        self._ready, self._rows, self._writing, self._num_writing = [], [], [], 0
        self._prompts.clear()
        self._kept_rows.clear()
        self._slots = [None] * self._backend.num_slots
        self._stale.clear()
        return finished, stopped + waiting

    def resume(self, interrupted: Sequence[UnfinishedRow]) -> None:
        """Go on with what was interrupted: rows read what they had written, and draw from there."""
        for unfinished in interrupted:
            count = len(unfinished.tokens)
            request = unfinished.request
            if count:
                request = replace(
                    request,
                    tokens=request.tokens + tuple(unfinished.tokens.tolist()),
                    max_new_tokens=self._budget_of(request) - count,
                    continues=None,
                    drawn=request.drawn + count,
                )
            self._begin(unfinished.number, request, unfinished.prompt_length)

    def progress(self) -> dict[int, list[int]]:
        """What the requests that are being written have so far, by number; waits for the device."""
        rows = [row for row in self._writing if row is not None and row.is_writing]
        if not rows:
            return {}
        places = numbers_on(self._log.device, [row.place for row in rows])
        counts = self._log.counts(places).tolist()
        tokens, _ = self._log.written(places, max(counts))
        return {row.number: written[:count] for row, written, count in zip(rows, tokens.tolist(), counts, strict=True)}

    def _stop_writing(self) -> list[UnfinishedRow]:
        """The rows that are written, with what they have so far."""
        rows = [row for row in self._writing if row is not None and row.is_writing]
        if not rows:
            return []
        places = numbers_on(self._log.device, [row.place for row in rows])
        counts = self._log.counts(places).tolist()
        tokens, logp = (values.cpu() for values in self._log.written(places, max(counts)))
        for row, count in zip(rows, counts, strict=True):
            row.count, row.left = count, True
        return [
            UnfinishedRow(
                row.number,
                row.request,
                len(row.prompt.tokens),
                tokens[position, : row.count].clone(),
                logp[position, : row.count].clone(),
                support,
            )
            for position, (row, support) in enumerate(zip(rows, self._supports_of(rows), strict=True))
        ]

    def release(self, number: int) -> None:
        """Nobody will continue this request: its row is free."""
        self._prompt_lengths.pop(number, None)
        row = self._kept_rows.pop(number, None)
        if row is not None:
            self._vacate(row)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._ready or self._num_writing or self._handed_in)

    def advance(self) -> list[DrawnCompletion]:
        """Up to one look further; what is finished, and has come from the device."""
        before = len(self._handed_in)
        steps = self._go_on()
        # what left just now is on its way: waiting for it would let the device stand still
        ready = before if steps and self._backend.looks_behind else len(self._handed_in)
        return [written for _ in range(ready) for written in self._hand_out(self._handed_in.popleft())]

    def read_ahead(self) -> None:
        """Let rows that are continued read on, where they are; nobody writes on."""
        self._read_on()

    def _go_on(self) -> int:
        self._enter()
        steps = self._next_steps()
        for _ in range(steps):
            if self._job.sampling.constrained:
                self._log.allowed = self._allowed(self._writing)
            self._note(self._backend.step(), self._writing)
        self.counts.stepped += steps * self._num_writing
        if steps or (self._num_writing and not self._looks):
            self._looks.append(self._take_look(steps))
        while len(self._looks) > (self._backend.looks_behind if steps else 0):
            self._leave(self._looks.popleft())
        return steps

    def _budget_of(self, request: Request) -> int:
        return request.max_new_tokens or self._job.sampling.max_new_tokens

    def _wait(self, number: int, request: Request, prompt: _HeldPrompt) -> None:
        prompt.users += 1
        sampling = self._sampling_of(request)
        self._waiting.append(_Occupant(number, request, prompt, self._budget_of(request), sampling=sampling))

    def _sampling_of(self, request: Request) -> Sampling:
        if request.constraint is not None and not self._job.sampling.constrained:
            raise WhetError("a request has a constraint and its session none; open it with constrained=True")
        sampling = self._job.sampling.of(request)
        self._stops_early = self._stops_early or sampling.stops_early
        return sampling

    def _allowed(self, rows: Sequence[_Occupant | None]) -> Tensor | None:
        """bool [rows, V] of what each row may draw next; None: anything."""
        constraints = [None if row is None or row.left else row.request.constraint for row in rows]
        masks = {number: each.allowed() for number, each in enumerate(constraints) if each is not None}
        if not masks:
            return None
        allowed = torch.ones(len(rows), self._vocabulary, dtype=torch.bool)
        for number, mask in masks.items():
            allowed[number, : len(mask)] = mask[: allowed.shape[1]]
            allowed[number, len(mask) :] = False
        return to_device(allowed, self._log.device)

    def _prompt(self, tokens: tuple[int, ...]) -> _HeldPrompt:
        """The prompt that is held already, as long as one more row may share it, or a new one."""
        held, most = self._prompts.get(tokens), self._backend.most_members
        if held is None or (most is not None and held.users >= most):
            held = self._prompts[tokens] = _HeldPrompt(tokens)
        return held

    def _continue(self, number: int, request: Request, before: _Occupant) -> None:
        del self._kept_rows[before.number]
        # the last token of the turn before was drawn and never read
        start = len(before.conversation) - len(before.prompt.tokens) - 1
        sampling = self._sampling_of(request)
        row = _Occupant(
            number, request, before.prompt, self._budget_of(request), start, before.place, sampling=sampling
        )
        self._rows[row.place] = row
        self._ready.append(row)
        self.counts.continued += 1

    def _vacate(self, row: _Occupant) -> None:
        self._rows[row.place] = None
        row.prompt.users -= 1
        if not row.prompt.users:
            if row.prompt.slot is not None:
                self._free(row.prompt.slot, row.prompt)
            if self._prompts.get(row.prompt.tokens) is row.prompt:
                del self._prompts[row.prompt.tokens]

    def _free(self, slot: int, prompt: _HeldPrompt) -> None:
        self._slots[slot] = None
        self._stale[slot] = prompt.tokens

    def _make_room(self) -> bool:
        """For the first that waits: a slot whose prompt no row answers, or the row that has waited longest to go on.

        A row is taken only while fewer than half of them are written: with more, the device has enough to do, and a
        conversation that loses its row is read once more.
        """
        if self._room is None:
            return False
        if self._waiting[0].prompt.slot is None and None not in self._slots:
            answered = {row.prompt for row in self._rows if row is not None}
            for slot, prompt in enumerate(self._slots):
                if prompt is not None and prompt not in answered:
                    self._free(slot, prompt)
                    prompt.slot = None
                    return True
        handed_out = (row for row in self._kept_rows.values() if row.conversation)
        row = next(handed_out, None) if 2 * self._num_writing <= self._backend.num_rows else None
        if row is None:
            return False
        del self._kept_rows[row.number]
        self._prompt_lengths[row.number] = len(row.prompt.tokens)
        self._vacate(row)
        self.counts.evicted += 1
        return True

    def _next_steps(self) -> int:
        """No more than the rows that are busy can use."""
        left = max((row.budget - row.drawn for row in self._writing if row is not None), default=0)
        return min(self._backend.steps_per_look, left)

    def _take_look(self, steps: int) -> _Taken:
        for row in self._writing:
            if row is not None:
                row.drawn = min(row.budget, row.drawn + steps)
        if self._job.sampling.keeps_support and (drawn_from := self._backend.take_kept(len(self._writing))) is not None:
            self._keep(drawn_from, self._writing)
        # the token that a row drew when it came in is told with its first look
        fresh = self._backend.steps_per_look + 1 if self._stops_early else 0
        return _Taken(self._log.look(len(self._writing), fresh), self._writing)

    def _stop_of(self, row: _Occupant, last: int) -> StopReason:
        if row.stopped_early:
            return StopReason.TEXT
        return StopReason.END if last in self._log.ends else StopReason.LENGTH

    def _hand_out(self, part: _HandedIn) -> list[DrawnCompletion]:
        tokens, logp = part.sent.read()
        completions = []
        for number, row in enumerate(part.rows):
            # copies: a part of the whole would hold the whole
            completion, scores = tokens[number, : row.count].clone(), logp[number, : row.count].clone()
            row.conversation = row.request.tokens + tuple(completion.tolist())
            stop = self._stop_of(row, row.conversation[-1])
            support = part.support[number]
            drawn = DrawnCompletion(row.number, row.request, completion, scores, stop, support, experts=row.experts)
            completions.append(drawn)
        return completions

    def _note(self, drawn: Draw | None, rows: Sequence[_Occupant | None]) -> None:
        """Tell constraints what was drawn; keep what could have been, where sampling truncates."""
        if drawn is not None and self._job.sampling.constrained:
            for drawer, token in zip(rows, drawn.token.tolist(), strict=False):
                if drawer is not None and not drawer.left and drawer.request.constraint is not None:
                    drawer.request.constraint.accept(token)
        if drawn is not None and drawn.kept is not None:
            kept, by_grammar = drawn.kept.cpu(), not self._job.sampling.truncates
            most = (kept.sum(-1) > kept.shape[-1] // 2) & by_grammar  # then the others are fewer: those are named
            named = kept ^ most[:, None]
            too_many = (named.sum(-1) > LARGEST_SUPPORT) & by_grammar  # such a token is not trained on
            named[too_many] = torch.arange(kept.shape[-1]) == 0
            row, ids = named.nonzero(as_tuple=True)
            counts = torch.bincount(row, minlength=len(kept))
            numbers = torch.arange(len(counts))
            ids = torch.where(most[row], -2 - ids, ids).masked_fill(too_many[row], -1).to(torch.int32)
            self._keep(KeptTokens(numbers, torch.zeros_like(numbers), counts, ids), rows)

    def _keep(self, kept: KeptTokens, rows: Sequence[_Occupant | None]) -> None:
        most = int(kept.counts.max()) if len(kept.counts) else 0
        if most > LARGEST_SUPPORT:
            sampling = self._job.sampling
            raise WhetError(
                f"top_p={sampling.top_p}, min_p={sampling.min_p} keep {most} tokens at one position; the "
                f"trainer must renormalise on all of them: add top_k={LARGEST_SUPPORT // 4}, or switch truncation off"
            )
        requests = torch.tensor([row.number if row is not None and self._has_support(row) else -1 for row in rows])
        # positions of one part come before those of the next
        position = kept.position + self._num_parts * (self._backend.steps_per_look + self._log.budget)
        self._support.append(KeptTokens(requests[kept.row], position, kept.counts, kept.ids))

    @property
    def _num_parts(self) -> int:
        return self._forgotten_parts + len(self._support)

    def _has_support(self, row: _Occupant) -> bool:
        return self._job.sampling.truncates or row.request.constraint is not None

    def _supports_of(self, gone: Sequence[_Occupant]) -> list[Support | None]:
        """What could be drawn in the rows that leave, None where that was anything; what no row needs any more is
        forgotten."""
        if not self._support:
            return [None] * len(gone)
        parts = self._support[min(row.first_part for row in gone) - self._forgotten_parts :]
        noted = [row for row in gone if self._has_support(row)]
        known = dict(zip((row.number for row in noted), _supports(parts, noted), strict=True)) if noted else {}
        still = [row.first_part for row in self._writing if row is not None and not row.left]
        first = min(still, default=self._num_parts)
        del self._support[: first - self._forgotten_parts]
        self._forgotten_parts = first
        return [known.get(row.number) for row in gone]

    def _read_on(self, moves: bool = False) -> None:
        """Let rows that are continued read on and draw a token, once it is worth it; `moves`: together with others."""
        if self._session is None or not self._ready:
            return
        turn_tokens = self._num_left and self._left_tokens / self._num_left
        # prompts that are read now may begin with what a row is about to read
        sooner = self._resuming is not None and bool(self._waiting)
        if sooner or self._session.may_extend(len(self._ready), self._num_writing, turn_tokens):
            rows, self._ready = self._ready, []
            if moves:
                self._move_together(rows)
            self._draw_first(rows, self._opened(rows), self._extend(rows))

    def _enter(self) -> None:
        """Let rows that are continued read on, give free rows to requests that wait, and let each draw a token."""
        self._read_on(moves=True)
        while self._waiting:
            free = [position for position, row in enumerate(self._rows) if row is None]
            free += range(len(self._rows), self._backend.num_rows)
            may_enter = self._backend.may_enter(len(free), len(self._waiting))
            if self._room is not None and free:  # rows that are kept may not come free for long
                may_enter = may_enter or not self._num_writing or len(free) >= len(self._waiting)
            seated = self._seat_requests(free) if may_enter else []
            if seated:
                rows_at = self._opened(seated)
                logits = self._backend.enter([row.place for row in seated], [_slot(row) for row in seated])
                self._fork(seated)
                reading = [number for number, row in enumerate(seated) if row.unread]
                if reading:
                    read = self._extend([seated[number] for number in reading])
                    logits = logits.index_copy(0, numbers_on(self._log.device, reading), read)
                self._draw_first(seated, rows_at, logits)
            elif not self._make_room():
                return

    def _opened(self, rows: Sequence[_Occupant]) -> Tensor:
        """The log's rows, ready for what these requests draw."""
        device = self._log.device
        places = numbers_on(device, [row.place for row in rows])
        budgets = [row.budget for row in rows]
        requests = [row.request for row in rows]
        skipped = [request.drawn for request in requests] if any(request.drawn for request in requests) else None
        streams = to_device(uniforms([request.seed for request in requests], max(budgets), skipped), device)
        self._log.open(places, streams, numbers_on(device, budgets))
        return places

    def _draw_first(self, rows: Sequence[_Occupant], places: Tensor, logits: Tensor) -> None:
        for row in rows:
            row.first_part = self._num_parts
        self._vocabulary = logits.shape[-1]
        allowed = self._allowed(rows) if self._job.sampling.constrained else None
        drawn = draw(logits, self._log.uniform(places), self._job.sampling, spend=True, allowed=allowed)
        self._log.record(places, drawn)
        self._note(drawn, rows)
        for row in rows:
            row.drawn = 1
        self._num_writing += len(rows)
        self._seat()
        if not self._backend.looks_behind:
            self._leave(self._take_look(0))

    def _extend(self, rows: Sequence[_Occupant]) -> Tensor:
        """Logits [rows, V] behind what the rows have yet to read; those with about as much together."""
        assert self._session is not None
        chunks = [row.unread for row in rows]
        order = sorted(range(len(rows)), key=lambda number: len(chunks[number]))
        parts = []
        for part in passes(order, [len(chunk) for chunk in chunks]):
            members = [rows[number] for number in part]
            parts.append(
                self._session.extend(
                    [row.place for row in members],
                    [_slot(row) for row in members],
                    [row.start for row in members],
                    [chunks[number] for number in part],
                )
            )
        self.counts.extended += sum(map(len, chunks))
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(parts).index_select(0, numbers_on(self._log.device, inverse))

    def _seat_requests(self, free: Sequence[int]) -> list[_Occupant]:
        """Seat as many waiting requests as have a row and a slot."""
        empty = deque(slot for slot, prompt in enumerate(self._slots) if prompt is None)
        seated: list[_Occupant] = []
        new: list[_HeldPrompt] = []
        for position in free:
            if not self._waiting:
                break
            row = self._waiting[0]
            if row.prompt.slot is None:
                if not empty:
                    break
                row.prompt.slot = empty.popleft()
                new.append(row.prompt)
            self._waiting.popleft()
            self._rows += [None] * (position + 1 - len(self._rows))
            self._rows[position], row.place = row, position
            seated.append(row)
        if new and self._backend.prefills_ahead:
            for prompt in dict.fromkeys(row.prompt for row in self._waiting):
                if empty and prompt.slot is None:
                    prompt.slot = empty.popleft()
                    new.append(prompt)
        if new:
            self._fill(new)
        return seated

    def _fill(self, new: Sequence[_HeldPrompt]) -> None:
        """Read prompts into their slots, what they have in common with others once."""
        slots, shares = [prompt.slot or 0 for prompt in new], self._resuming is not None
        held = self._held_beginnings() if shares else {}
        for slot, prompt in zip(slots, new, strict=True):
            self._slots[slot] = prompt
            self._stale.pop(slot, None)
        tokens = [prompt.tokens for prompt in new]
        beginnings = shared_beginnings(list(held), tokens) if shares else [Beginning()] * len(new)
        sources = [*held.values(), *((slot, None) for slot in slots)]
        unread = [len(prompt.tokens) - beginning.length for prompt, beginning in zip(new, beginnings, strict=True)]
        for number in range(max(beginning.passes for beginning in beginnings) + 1):
            turn = [prompt for prompt, beginning in enumerate(beginnings) if beginning.passes == number]
            # what is copied may stand in a slot that is read over: copies come first
            self._resume([prompt for prompt in turn if beginnings[prompt].length], new, beginnings, sources)
            whole = [prompt for prompt in turn if not beginnings[prompt].length]
            for part in passes(whole, unread):
                self._backend.prefill([slots[prompt] for prompt in part], [new[prompt].tokens for prompt in part])
        self.counts.prefilled += sum(unread)
        self.counts.forked += sum(beginning.length for beginning in beginnings)

    def _resume(
        self,
        numbers: Sequence[int],
        new: Sequence[_HeldPrompt],
        beginnings: Sequence[Beginning],
        sources: Sequence[tuple[int, int | None]],
    ) -> None:
        if numbers and self._resuming is not None:
            chosen = [beginnings[number] for number in numbers]
            self._resuming.resume_prompts(
                [new[number].slot or 0 for number in numbers],
                [new[number].tokens for number in numbers],
                [HeldBeginning(*sources[beginning.source], beginning.length) for beginning in chosen],
            )

    def _held_beginnings(self) -> dict[tuple[int, ...], tuple[int, int | None]]:
        """Tokens whose keys and values are there, by slot, and by row where one has read on."""
        held: dict[tuple[int, ...], tuple[int, int | None]] = {
            tokens: (slot, None) for slot, tokens in self._stale.items()
        }
        held |= {prompt.tokens: (slot, None) for slot, prompt in enumerate(self._slots) if prompt is not None}
        for row in self._rows:
            if row is not None and (row.drawn or row.start):
                held[row.held] = (_slot(row), row.place)
        return held

    def _leave(self, taken: _Taken) -> None:
        """Rows that are done hand in what they wrote."""
        done, counts, fresh = taken.look.read()
        gone: list[_Occupant] = []
        cut: list[int] = []  # rows that something besides an end token stopped
        for position, row in enumerate(taken.rows):
            if row is None or row.left:  # an earlier look saw it leave
                continue
            count, ends = counts[position], done[position]
            if row.sampling.stops_early:
                stopped_at = self._stopped_at(row, fresh[position], count)
                if stopped_at is not None:
                    cut.append(row.place)
                    row.stopped_early = True
                    count, ends = stopped_at, True
            if ends:
                row.count, row.left = count, True
                gone.append(row)
        if not gone:
            return
        for row in gone:
            prompt = len(row.prompt.tokens)
            own = len(row.request.tokens) - prompt + row.count
            row.experts = self._backend.experts(row.place, _slot(row), prompt, own)
        self._num_writing -= len(gone)
        self._num_left += len(gone)
        self._left_tokens += sum(row.count for row in gone)
        rows = numbers_on(self._log.device, [row.place for row in gone])
        written = self._log.written(rows, max(row.count for row in gone))
        self._handed_in.append(_HandedIn(gone, OnTheWay(*written), self._supports_of(gone)))
        for row in gone:
            if self._room is None:
                self._vacate(row)
            else:
                self._kept_rows[row.number] = row
        self._log.close(cut)
        if self._num_writing:
            self._move_together()
        self._seat()

    def _stopped_at(self, row: _Occupant, fresh: np.ndarray, count: int) -> int | None:
        """How many of a row's tokens stand when a text or a sequence stops it, its newest tokens added."""
        before = row.request.drawn  # a stop may have begun in what an interrupted request had written
        if before and not row.tokens:
            row.tokens = list(row.request.tokens[-before:])
        known = len(row.tokens)
        row.tokens += fresh[: before + count - known].tolist()
        stopped_at = self._job.stop.stopped_at(row.tokens, known, row.sampling)
        by_token = stopped_at is not None and row.tokens[stopped_at - 1] in self._log.ends
        return None if by_token or stopped_at is None else stopped_at - before

    def _move_together(self, more: Sequence[_Occupant] = ()) -> None:
        """Those that are writing, and `more` that will, to the front, where computing the others costs too much."""
        busy = [row.place for row in self._rows if row is not None and row.is_writing] + [row.place for row in more]
        if self._room is None:
            num_rows, num_waiting = len(self._rows), len(self._waiting)
            slots = [slot for slot, prompt in enumerate(self._slots) if prompt is not None]
        else:
            num_rows = max(busy) + 1
            num_free = self._backend.num_rows - sum(row is not None for row in self._rows)
            num_waiting = min(len(self._waiting), num_free)
            slots = sorted({_slot(row) for occupied in busy if (row := self._rows[occupied]) is not None})
        if self._backend.rows_after(len(busy), num_rows, num_waiting) >= num_rows:
            return
        order = _in_front(busy, self._rows)
        if self._room is not None and 4 * (slots[-1] + 1) <= 5 * (len(slots) + 1):
            slots = list(range(len(self._slots)))  # near enough: a step computes all of them up to the last
        slot_order = _in_front(slots, self._slots)
        if slot_order != list(range(len(self._slots))):
            self._stale.clear()
        self._log.keep(order)
        self._backend.keep(order, slot_order)
        self._rows = [self._rows[old] for old in order]
        for position, row in enumerate(self._rows):
            if row is not None:
                row.place = position
        prompts = [self._slots[slot] for slot in slot_order]
        for slot, prompt in enumerate(prompts):
            if prompt is not None:
                prompt.slot = slot
        self._slots = prompts + [None] * (len(self._slots) - len(prompts))

    def _seat(self) -> None:
        writing = [row if row is not None and row.is_writing else None for row in self._rows]
        while self._room is not None and writing and writing[-1] is None:
            writing.pop()
        self._writing = writing
        if self._num_writing:
            self._backend.seat([None if row is None else row.prompt.slot for row in writing])


def _num_common(tokens: tuple[int, ...], row: _Occupant) -> int:
    """How many of its first tokens a request would find in a row; 0: too few to copy."""
    prompt = len(row.prompt.tokens)
    least = prompt + LEAST_FORKED
    if len(tokens) < least or tokens[prompt:least] != (row.conversation or row.request.tokens)[prompt:least]:
        return 0
    held = row.held
    if tokens[:least] != held[:least]:
        return 0
    low, high = least, min(len(tokens), len(held))
    while low < high:  # slices are compared faster than their tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tokens[low:middle] == held[low:middle] else (low, middle - 1)
    return low


def _slot(row: _Occupant) -> int:
    assert row.prompt.slot is not None
    return row.prompt.slot


def _in_front(wanted: Sequence[int], held: Sequence[object | None]) -> list[int]:
    """An order of places with the wanted ones in front that moves the fewest: who is in the way changes places.

    What is not held has no place behind the last.
    """
    order, stays = list(range(len(held))), set(wanted)
    late = iter(sorted(late_row for late_row in wanted if late_row >= len(wanted)))
    for position in range(len(wanted)):
        if position not in stays:
            source = next(late)
            order[position], order[source] = source, position
    while held[order[-1]] is None:
        order.pop()
    return order


def passes(numbers: Iterable[int], lengths: Sequence[int]) -> list[list[int]]:
    """Numbers of what has these lengths, as many at a time as one padded pass over them may hold."""
    passes: list[list[int]] = []
    widest = 0
    for number in numbers:
        width = max(widest, lengths[number])
        if not passes or width * (len(passes[-1]) + 1) > PREFILL_TOKENS:
            passes.append([])
            width = lengths[number]
        passes[-1].append(number)
        widest = width
    return passes


def joined_support(parts: Sequence[tuple[Support | None, int]]) -> Support | None:
    """What could be drawn in parts of so many tokens, one after the other."""
    if all(support is None for support, _ in parts):
        return None
    nothing = torch.zeros(0, dtype=torch.int32)
    known = [support or Support(nothing, torch.zeros(count, dtype=torch.int32)) for support, count in parts]
    return Support(torch.cat([support.ids for support in known]), torch.cat([support.counts for support in known]))


def _supports(kept: Sequence[KeptTokens], rows: Sequence[_Occupant]) -> list[Support]:
    """What could be drawn in these rows, position after position; `row` of the parts is the request."""
    requests, count = [row.number for row in rows], [row.count for row in rows]
    request, position, counts, ids = (
        torch.cat([getattr(tokens, name) for tokens in kept]).numpy() for name in ("row", "position", "counts", "ids")
    )
    by_number = np.argsort(requests)
    known = np.array(requests)[by_number]
    index = np.searchsorted(known, request).clip(max=len(known) - 1)
    request = np.where(known[index] == request, by_number[index], -1)  # its place among the requests
    start = counts.cumsum() - counts
    order = np.lexsort((position, request))
    order = order[request[order] >= 0]  # without those that nobody sat in
    first = np.searchsorted(request[order], np.arange(len(count)))
    rank = np.arange(len(order)) - first[request[order]]
    order = order[rank < np.array(count)[request[order]]]  # a row that has ended draws on until it is seen
    sizes = counts[order]
    index = np.repeat(start[order] - (sizes.cumsum() - sizes), sizes) + np.arange(sizes.sum())
    flat, lengths = torch.from_numpy(ids[index]), torch.from_numpy(sizes.astype(np.int32))
    ends = np.cumsum(np.bincount(request[order], weights=sizes, minlength=len(count))).astype(int)
    return [
        Support(flat[begin:end], request_lengths)
        for begin, end, request_lengths in zip((0, *ends[:-1]), ends, lengths.split(list(count)), strict=True)
    ]
