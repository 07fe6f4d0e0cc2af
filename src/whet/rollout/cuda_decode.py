"""Rollouts as replays of one CUDA graph: no Python and no host round trip between tokens.

The backend of described models (`whet.model.block`) on a CUDA device. A prompt is prefilled and kept once for all its
rows. When nothing waits any more, the rows that are left move together into a smaller graph. In a session a row is a
conversation: between its turns it keeps its keys and values and costs the graph next to nothing, and what follows a
turn is read in one pass (`whet.model.chunk_step`). The samples are those of the other backends: a row's random numbers
belong to its request.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.model.block import blocks_of, has_bias
from whet.model.causal_lm import CausalLM
from whet.model.chunk_step import chunk_of, chunk_step
from whet.model.cuda_graphs import captured
from whet.model.cuda_step import Caches, Workspace, decode_step, prompt_parts, workspace
from whet.model.fused_trunk import fused_refusal, fused_states
from whet.model.fused_weights import decode_weights, fused_weights
from whet.model.shared_prefix import prompt_batch, to_device
from whet.model.token_logp import token_logp
from whet.model.trials import verdict
from whet.rollout.scheduler import (
    LARGEST_SUPPORT,
    DecodeJob,
    DecodeScheduler,
    KeptTokens,
    SessionBackend,
    StopRule,
    TokenLog,
    decode_job,
    numbers_on,
)
from whet.types import Request, Sampling, SessionShape

STEPS_PER_LOOK = 8  # replays between two looks at who has finished
SMALLEST = 16  # rows of the smallest graph
KEPT_SHARE = 1 / 16  # of the device's memory, for caches between two rollouts: larger ones make room for training
USED_SHARE = 0.6  # of the memory that is free, for the caches of a rollout: fewer rows are written side by side
MERGED_SHARE = 1 / 16  # of the device's memory, for a copy of the matrices with adapters in them: a quarter less time
HEAD_SIZES = (32, 64, 128)  # that the kernels are made for
MOST_MEMBERS = 32  # rows that one program reads a prompt for; a larger group is kept as several
SESSION_MEMBERS = 8  # the same in a session, which does not know how large groups will be
MOST_EXPECTED = 1024  # tokens of the longest prompt to come that every batch has room for: more would be read in vain
FIRST_GROWTH = 1024  # tokens that conversations have room for at first; buffers grow when one becomes longer
READY_SHARE = 6  # conversations that wait to be read on are gathered until they are one in so many of those that write


@dataclass(frozen=True)
class _Room:
    """What the buffers are made for."""

    rows: int
    prompts: int
    longest: int  # prompt
    budget: int  # tokens that a row may write in one go
    own: int  # tokens of a row behind its prompt
    members: int
    support: bool

    @property
    def cache_tokens(self) -> int:
        return self.rows * self.own + self.prompts * self.longest

    def holds(self, other: _Room) -> bool:
        return self.joined(other) == self

    def joined(self, other: _Room) -> _Room:
        """Room for both: batches of a run differ a little, and graphs made anew each time would cost more."""
        return _Room(
            max(self.rows, other.rows), max(self.prompts, other.prompts), max(self.longest, other.longest),
            max(self.budget, other.budget), max(self.own, other.own), max(self.members, other.members),
            self.support or other.support,
        )  # fmt: skip


class _GraphLog(TokenLog):
    """A log that knows the largest budget of a turn so far."""

    longest_turn = 0

    def open(self, rows: Tensor, streams: Tensor, budgets: Tensor) -> None:
        self.longest_turn = max(self.longest_turn, streams.shape[1])
        super().open(rows, streams, budgets)


def _constraint_refusal(sampling: Sampling) -> str:
    return "a graph draws without asking what may be drawn" if sampling.constrained else ""


class GraphBackend(SessionBackend):
    """With fused copies of the policy's weights, and graphs that outlast a rollout."""

    steps_per_look = STEPS_PER_LOOK
    looks_behind = 1
    prefills_ahead = True  # computing many prompts at once is cheap
    most_members = MOST_MEMBERS

    num_rows = num_slots = 0

    def __init__(self, lm: CausalLM, stop: StopRule, context: int) -> None:
        self._lm, self._stop = lm, stop
        stack = blocks_of(lm)
        self._weights = decode_weights(fused_weights(stack, lm.dtype), MERGED_SHARE * _memory_of(lm.device))
        self._windows = stack.windows
        self._tables = stack.rotation(torch.arange(context, device=lm.device))
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Workspace]] = {}
        self._caches: Caches | None = None
        self._room: _Room | None = None
        self._ring: Any = None  # what could be drawn since the last look
        self._warm: set[tuple[Any, ...]] = set()  # shapes whose kernels are compiled
        self._sampling = Sampling()
        self._active = 0  # rows of the graph in use
        self._in_session = False
        self._growth = 0  # the most tokens that a conversation of the session may have behind its prompt
        self._parts = 0  # see `prompt_parts`
        self._expected = 0  # tokens of the longest prompt to come

    def expect(self, longest_prompt: int) -> None:
        """Prompts of so many tokens will come: buffers have room for them from the first batch on, where they are not
        very long, since graphs made anew for a longer prompt cost seconds."""
        self._expected = min(longest_prompt, MOST_EXPECTED)

    def refusal(self, longest_prompt: int, sampling: Sampling) -> str:
        """Why prompts of so many tokens are left to another backend; empty where they are taken."""
        return self._window_refusal(longest_prompt + sampling.max_new_tokens) or _constraint_refusal(sampling)

    def session_refusal(self, sampling: Sampling, shape: SessionShape) -> str:
        """Why a session is left to another backend; empty where it is taken."""
        return self._window_refusal(shape.prompt_tokens + shape.growth) or _constraint_refusal(sampling)

    def _window_refusal(self, longest: int) -> str:
        if any(window is not None and window < longest for window in self._windows):
            return f"the kernels read every key, and {longest} tokens exceed a layer's sliding window"
        return ""

    @contextmanager
    def prepared(
        self, requests: Sequence[Request], sampling: Sampling, rows_per_batch: int
    ) -> Iterator[DecodeScheduler]:
        """Who writes all requests with the policy's present weights; large caches are freed afterwards."""
        with torch.no_grad():
            self._weights.refresh()
            rows = min(max(rows_per_batch, SMALLEST), _rounded(len(requests)))
            job = decode_job(requests, sampling, self._stop, min(rows, MOST_MEMBERS))
            self._prepare(sampling, self._room_for(job, rows))
            yield DecodeScheduler(self, job)
            self._release_large()

    def _room_for(self, job: DecodeJob, rows: int) -> _Room:
        budget, most = job.sampling.max_new_tokens, max(map(len, job.members))
        longest = max(self._expected, *map(len, job.prompts))
        share = longest / most
        prompt = max(_slots_per_prompt(most) * share, min(8 * share, budget))
        rows = self._rows_that_fit(rows, budget + prompt)
        longest = _whole_blocks(longest)
        # many prompts at once, as long as they take no more room than the completions
        at_once = -(-rows // most)
        least = int(_slots_per_prompt(most) * at_once) + 1
        num_prompts = min(len(job.prompts), max(least, min(8 * at_once, rows * budget // longest)))
        self._parts = prompt_parts(self._weights, longest, at_once)
        return _Room(rows, num_prompts, longest, budget, budget, -(-most // 8) * 8, _notes_support(job.sampling))

    @torch.no_grad()
    def open_session(self, sampling: Sampling, shape: SessionShape, rows_per_batch: int) -> None:
        """Buffers for conversations of this shape, as many at once as the memory has room for."""
        self._weights.refresh()
        growth, longest = _whole_blocks(shape.growth), _whole_blocks(shape.prompt_tokens)
        rows = min(max(rows_per_batch, SMALLEST), _rounded(shape.conversations))
        # prompts take no more room than what the rows write, unless groups of eight would not fit
        slots_per_row = min(1.0, max(0.25, growth / longest))
        rows = self._rows_that_fit(rows, growth + slots_per_row * longest)
        self._parts = prompt_parts(self._weights, longest, -(-rows // SESSION_MEMBERS))
        num_prompts = max(1, int(slots_per_row * rows))
        own = min(growth, _whole_blocks(max(FIRST_GROWTH, 2 * sampling.max_new_tokens)))
        self._prepare(
            sampling, _Room(rows, num_prompts, longest, growth, own, SESSION_MEMBERS, _notes_support(sampling))
        )
        self._in_session, self.most_members, self._growth = True, SESSION_MEMBERS, growth
        self._turns.longest_turn = 0

    @torch.no_grad()
    def renew(self) -> None:
        self._weights.refresh()
        self.log.close(range(len(self.log.last)))

    def close_session(self) -> None:
        """Leave session mode; caches are kept for the next rollout unless they are large."""
        self._in_session, self.most_members = False, MOST_MEMBERS
        self._release_large()

    def _release_large(self) -> None:
        if self.cache_bytes > self._kept_bytes:
            self.release()

    def _rows_that_fit(self, rows: int, tokens_per_row: float) -> int:
        """At most `rows`, or as many as memory has room for: their keys, values and logits."""
        logits = 2 * self._weights.sizes.vocabulary * self._weights.dtype.itemsize
        return rows_that_fit(rows, self._bytes_per_token * tokens_per_row + logits, self._free_bytes())

    @property
    def _bytes_per_token(self) -> int:
        sizes = self._weights.sizes
        return 2 * len(self._weights.blocks) * sizes.num_key_heads * sizes.head_size * self._weights.dtype.itemsize

    @property
    def _kept_bytes(self) -> float:
        """The most bytes of caches that may stay allocated between two rollouts."""
        return KEPT_SHARE * _memory_of(self._lm.device)

    def _free_bytes(self) -> int:
        """What the device has free, with what the allocator holds for reuse and the caches that may be made anew."""
        device = self._lm.device
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held + self.cache_bytes

    @property
    def cache_bytes(self) -> int:
        """The bytes that the keys and values occupy now."""
        return 0 if self._caches is None else self._caches.num_bytes

    def release(self) -> None:
        """Give the caches and graphs back: training needs the memory."""
        self._graphs.clear()
        self._caches = self._room = self._ring = None

    def _prepare(self, sampling: Sampling, room: _Room) -> None:
        """Buffers that fit; graphs are thrown away with the buffers they were made on."""
        if self._in_session:
            raise RuntimeError("a session is open on this engine, and its buffers are in use: close it first")
        self._sampling, self._active = sampling, room.rows
        self.num_rows, self.num_slots = room.rows, room.prompts
        if self._room is not None and self._room.holds(room):
            self.log.close(range(self._room.rows))
            return
        joined = room if self._room is None else self._room.joined(room)
        if self._bytes_per_token * joined.cache_tokens <= self._kept_bytes:
            room = joined
        self.release()
        sizes, device, dtype = self._weights.sizes, self._weights.embedding.device, self._weights.dtype

        def cache(count: int, length: int) -> list[Tensor]:
            shape = (count, sizes.num_key_heads, length, sizes.head_size)
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in self._weights.blocks]

        self._caches = Caches(
            tables=self._tables,
            prompt_k=cache(room.prompts, room.longest),
            prompt_v=cache(room.prompts, room.longest),
            lengths=torch.ones(room.prompts, dtype=torch.int32, device=device),
            members=torch.full((room.prompts, room.members), -1, dtype=torch.int32, device=device),
            slot=torch.full((room.rows,), -1, dtype=torch.int32, device=device),
            own_k=cache(room.rows, room.own),
            own_v=cache(room.rows, room.own),
        )
        self._prompt_logits = torch.zeros(room.prompts, sizes.vocabulary, device=device)
        self._starts = torch.zeros(room.rows, dtype=torch.long, device=device)  # the length of each row's prompt
        self._read = torch.zeros(room.rows, dtype=torch.long, device=device)  # own tokens that earlier turns left
        self._noted = torch.zeros(room.rows, dtype=torch.long, device=device)  # tokens whose support was taken
        self.log = self._turns = _GraphLog(room.rows, room.budget, self._stop.tokens, device)
        if room.support:
            from whet.model.decode_kernels import SupportRing

            ids = torch.zeros(room.rows, STEPS_PER_LOOK, LARGEST_SUPPORT, dtype=torch.int32, device=device)
            self._ring = SupportRing(ids, ids.new_zeros(room.rows, STEPS_PER_LOOK))
        self._room = room

    def _grow(self, read: int) -> None:
        """Room for a turn behind so many own tokens. Graphs are made anew: the caches lie elsewhere."""
        assert self._room is not None and self._caches is not None
        needed = min(self._growth, read + self._turns.longest_turn)
        if not self._in_session or needed <= self._room.own:
            return
        own = min(self._growth, max(_whole_blocks(needed), 2 * self._room.own))
        if self._tables[0].is_cuda:  # nothing that a graph uses may go before it has run
            torch.cuda.synchronize()
        self._graphs.clear()
        for caches in (self._caches.own_k, self._caches.own_v):
            for number, before in enumerate(caches):
                caches[number] = before.new_zeros(*before.shape[:2], own, before.shape[3])
                caches[number][:, :, : before.shape[2]] = before
        self._room = replace(self._room, own=own)

    def may_enter(self, num_free: int, num_waiting: int) -> bool:
        return num_free >= min(num_waiting, max(1, self.num_rows // 32))

    def prefill(self, slots: Sequence[int], prompts: Sequence[tuple[int, ...]]) -> None:
        """Keys, values and the logits behind each prompt, into its slot."""
        assert self._caches is not None
        caches, device = self._caches, self._lm.device
        at = numbers_on(device, slots)
        caches.lengths[at] = numbers_on(device, [len(prompt) for prompt in prompts]).int()
        batch = prompt_batch(prompts, device)
        # equal prompts are computed once: each takes the place of the one it equals
        index = batch.layout.prompt_index[numbers_on(device, batch.prompt_of_row)]
        longest = index.shape[1]

        def keep(number: int, key: Tensor, value: Tensor) -> None:
            for mine, theirs in ((caches.prompt_k[number], key), (caches.prompt_v[number], value)):
                mine[at, :, :longest] = theirs[index].transpose(1, 2).to(mine.dtype)

        self._prompt_logits[at] = self._lm.logits(fused_states(self._lm, batch, keep))

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> Tensor:
        where = numbers_on(self._lm.device, rows)
        self._noted[where] = self._noted.new_ones(())
        self._read[where] = self._read.new_zeros(())
        self._grow(0)
        return self._prompt_logits[numbers_on(self._lm.device, slots)]

    def may_extend(self, num_ready: int, num_busy: int, turn_tokens: float) -> bool:
        return num_ready >= num_busy // READY_SHARE

    def extend(
        self, rows: Sequence[int], slots: Sequence[int], starts: Sequence[int], chunks: Sequence[tuple[int, ...]]
    ) -> Tensor:
        assert self._caches is not None
        self._grow(max(start + len(piece) for start, piece in zip(starts, chunks, strict=True)))
        chunk = chunk_of(rows, slots, starts, chunks, self._lm.device)
        self._noted[chunk.rows] = self._noted.new_ones(())
        self._read[chunk.rows] = chunk.num_cached + chunk.sizes
        return chunk_step(self._weights, self._caches, chunk).float()

    def fork(self, sources: Sequence[int], targets: Sequence[int], widths: Sequence[int]) -> None:
        assert self._caches is not None
        source, target = (numbers_on(self._lm.device, rows) for rows in (sources, targets))
        for cache in (*self._caches.own_k, *self._caches.own_v):
            cache[target, :, : max(widths)] = cache[source, :, : max(widths)]

    def seat(self, slots: Sequence[int | None]) -> None:
        """Which rows read which prompt. A row belongs to one prompt only: two would write over each other."""
        assert self._caches is not None
        caches = self._caches
        device = self._lm.device
        listed = np.full(caches.members.shape, -1, np.int32)
        filled = [0] * len(listed)
        for row, slot in enumerate(slots):
            if slot is not None:
                listed[slot, filled[slot]] = row
                filled[slot] += 1
        caches.members.copy_(to_device(torch.from_numpy(listed), device))
        held = numbers_on(device, [-1 if slot is None else slot for slot in slots])
        caches.slot[: len(slots)] = held.int()
        if self._in_session:
            caches.slot[len(slots) :] = -1
            self._active = min(self.num_rows, _doubled(len(slots)))
        self._starts[: len(slots)] = caches.lengths[held.clamp(min=0)].long()

    def step(self) -> None:
        self._graph().replay()

    def take_kept(self, rows: int) -> KeptTokens | None:
        """Waits for the device: how many ids there are is not known before."""
        if self._ring is None or not self._sampling.truncates:
            return None
        counts, seen = self.log.counts(rows), self._noted[:rows]
        position = seen[:, None] + torch.arange(STEPS_PER_LOOK, device=seen.device)
        order = position % STEPS_PER_LOOK
        sizes = torch.where(position < counts[:, None], self._ring.counts[:rows].gather(1, order), 0)
        lane = torch.arange(LARGEST_SUPPORT, device=seen.device)
        by_slot = torch.zeros_like(sizes).scatter_(1, order, sizes)
        ids = self._ring.ids[:rows][lane < by_slot[:, :, None]]
        at = torch.zeros_like(position).scatter_(1, order, position)  # positions in the ring's order, as the ids are
        sizes, at, ids = by_slot.cpu(), at.cpu(), ids.cpu()
        self._noted[:rows] = torch.maximum(seen, counts)
        row, slot = sizes.nonzero(as_tuple=True)
        return KeptTokens(row, at[row, slot], sizes[row, slot].long(), ids)

    def rows_after(self, num_busy: int, num_rows: int, num_waiting: int) -> int:
        pays = not num_waiting and num_busy <= self._active // 2 and self._active > SMALLEST
        return min(num_rows, _doubled(num_busy)) if pays else num_rows

    def keep(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        assert self._caches is not None
        caches, device = self._caches, self._starts.device
        for order, values in (
            (rows, (*caches.own_k, *caches.own_v, self._starts, self._read, self._noted)),
            (slots, (*caches.prompt_k, *caches.prompt_v, caches.lengths, self._prompt_logits)),
        ):
            targets = [position for position, held in enumerate(order) if position != held]
            if targets:
                target = numbers_on(device, targets)
                source = numbers_on(device, [order[position] for position in targets])
                for value in values:
                    value[target] = value[source]
        if not self._in_session:
            self._active = min(self._active, _doubled(len(rows)))

    def _graph(self) -> torch.cuda.CUDAGraph:
        assert self._room is not None
        active, parts, sampling = self._active, self._parts, self._sampling
        how = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.keeps_support)
        if (active, parts, how) not in self._graphs:
            work = workspace(self._weights, active, parts)
            saved = [value.clone() for value in self.log.moving]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            if (active, parts, how, self._room) not in self._warm:
                with torch.cuda.stream(side):  # kernels compile on their first call, which a capture cannot hold
                    for _ in range(2):
                        self._step(work)
                self._warm.add((active, parts, how, self._room))
            torch.cuda.current_stream().wait_stream(side)
            graph = captured(lambda: self._step(work), side)
            for value, before in zip(self.log.moving, saved, strict=True):
                value.copy_(before)
            self._graphs[active, parts, how] = (graph, work)
        return self._graphs[active, parts, how][0]

    def _step(self, work: Workspace) -> None:
        """Draw one token for every row of `work`; rows that are done keep nothing of it and count no further."""
        assert self._caches is not None
        from whet.model import decode_kernels

        rows = self.log.state
        logits = decode_step(self._weights, self._caches, work, rows, self._starts, self._read)
        ring = self._ring if self._sampling.keeps_support and self._sampling.truncates else None
        decode_kernels.sample(logits, work.uniform, self._sampling, rows, ring)


def _memory_of(device: torch.device) -> int:
    """Bytes of a device; of one without a figure, none."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def graph_backend(lm: CausalLM, stop: StopRule, context: int) -> GraphBackend | str:
    """The backend for a described model on a CUDA device, tried out; or the reason why there is none."""
    if lm.device.type != "cuda":
        return "the device is no CUDA device"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if refusal := fused_refusal(lm):
        return refusal
    stack = blocks_of(lm)
    if stack.head is None:
        return "the model has no vocabulary head"
    if has_bias(stack.head):
        return "the vocabulary head has a bias"
    if stack.sizes.head_size not in HEAD_SIZES:
        return f"the kernels take heads of {', '.join(map(str, HEAD_SIZES))} numbers, not {stack.sizes.head_size}"
    backend = GraphBackend(lm, stop, context)
    return verdict("CUDA graphs", lm, lambda: _refusal(backend, lm, context)) or backend


def _refusal(backend: GraphBackend, lm: CausalLM, context: int) -> str:
    """How far the graphs' log-probabilities are from the model's own, where that is too far; else empty."""
    gap = _logp_gap(backend, lm, context)
    backend.release()
    tolerance = 1e-3 if lm.dtype == torch.float32 else 0.1
    if gap < tolerance:
        return ""
    return f"the graph's log-probabilities differ from the model's own by {gap:.1e} per token"


def _logp_gap(backend: GraphBackend, lm: CausalLM, context: int) -> float:
    """Between completions' log-probabilities as drawn and as the trainer finds them, mean per token."""
    spans = ((3, 5), (40, 9))
    prompts = [tuple(token % lm.vocabulary for token in range(first, first + size)) for first, size in spans]
    requests = [Request(prompt, seed) for prompt in prompts for seed in (1, 2)]
    sampling = Sampling(max_new_tokens=min(12, context - 9))
    with backend.prepared(requests, sampling, SMALLEST) as scheduler:
        completions = scheduler.run()
    gaps = []
    for request, drawn in zip(requests, completions, strict=True):
        row = torch.tensor([*request.tokens, *drawn.tokens.tolist()], device=lm.device)[None]
        action = torch.arange(row.shape[1], device=lm.device)[None] >= len(request.tokens)
        logp = token_logp(lm, row, action).logp[action].cpu()
        gaps.append((logp - drawn.logp).abs())
    return float(torch.cat(gaps).mean())


def rows_that_fit(rows: int, bytes_per_row: float, free_bytes: int) -> int:
    """At most `rows`, as many as the free memory has room for, and never less than the smallest graph has."""
    fitting = int(USED_SHARE * free_bytes / bytes_per_row) // SMALLEST * SMALLEST
    return max(SMALLEST, min(rows, fitting))


def _notes_support(sampling: Sampling) -> bool:
    return sampling.keeps_support and sampling.truncates


def _whole_blocks(length: int) -> int:
    """Up to a length that prompts are kept in: batches of a run differ a little."""
    return max(1, -(-length // 64)) * 64


def _slots_per_prompt(most: int) -> float:
    """Slots for each prompt that rows answer at once: a straggler holds its group's while the next ones have begun."""
    return 2 if most > 1 else 1.125


def _rounded(rows: int) -> int:
    """Up to a number of rows that a rollout may begin with."""
    return max(1, -(-rows // SMALLEST)) * SMALLEST


def _doubled(rows: int) -> int:
    """Up to a number of rows that graphs are made for while rows come and go: few, since each graph takes time."""
    size = SMALLEST
    while size < rows:
        size *= 2
    return size
