"""Rollouts as replays of one CUDA graph: no Python and no host round trip between tokens.

Rows are slots. A row that has finished is taken out every few steps and a waiting request takes its place; a prompt is
prefilled and kept once for all its rows. When nothing waits any more, the rows that are left move together into a
smaller graph. The samples are those of the plain engine: a row's random numbers belong to its request.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.model.causal_lm import CausalLM
from whet.model.cuda_step import Caches, Workspace, decode_step, workspace
from whet.model.fused_trunk import fused_states, fused_works
from whet.model.fused_weights import fused_weights, is_plain, plain_shape, rotation_tables
from whet.model.shared_prefix import prompt_batch
from whet.model.token_logp import token_logp
from whet.rollout.sampling import Draw, draw, uniforms
from whet.rollout.scheduler import Completions, shares
from whet.types import Request, Sampling, StopReason

STRIDE = 16  # steps between two looks at who has finished
SMALLEST = 16  # rows of the smallest graph
KEPT_BYTES = 1 << 29  # of caches between two rollouts: making larger ones anew is cheaper than to train beside them
HEAD_SIZES = (32, 64, 128)  # that the kernels are made for
MOST_MEMBERS = 32  # rows that one program reads a prompt for; a larger group is kept as several


@dataclass(frozen=True)
class Written:
    """A finished completion."""

    tokens: Tensor  # int64 [n], on the CPU
    logp: Tensor  # float32 [n]
    ended: bool  # by a stop token


@dataclass
class _Rows:
    """The slots, on the device."""

    token: Tensor  # int64 [B], the newest token
    position: Tensor  # int64 [B], its place in the sequence
    count: Tensor  # int64 [B], tokens drawn so far
    done: Tensor  # bool [B]
    random: Tensor  # float32 [B, budget]
    tokens: Tensor  # int64 [B, budget]
    logp: Tensor  # float32 [B, budget]


@dataclass(frozen=True)
class _Job:
    """What is to be written."""

    groups: list[tuple[tuple[int, ...], list[int]]]  # tokens of a prompt, its requests
    waiting: deque[tuple[int, int]]  # (group, request)
    random: Tensor  # float32 [requests, budget]
    sampling: Sampling


@dataclass
class _SlotTable:
    """Who sits where, on the host."""

    request: list[int]  # of each slot, -1 where free
    prompt: list[int]  # prompt slot of each slot
    left: dict[int, int]  # requests of a group that have not finished
    place: dict[int, int]  # prompt slot of each group that is computed
    free_prompts: list[int]


class CudaDecoder:
    """Decodes with fused copies of the policy's weights."""

    def __init__(self, split: CausalLM, end_tokens: Tensor, context: int) -> None:
        self._split, self._end_tokens = split, end_tokens.to(split.device)
        self._layers = fused_weights(split, split.dtype)
        self._tables = rotation_tables(split, torch.arange(context, device=split.device))
        self._graphs: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Workspace]] = {}
        self._caches: Caches | None = None
        self._rows: _Rows | None = None
        self._key: tuple[int, ...] = ()
        self._warm: set[tuple[int, ...]] = set()  # shapes whose kernels are compiled

    def refresh(self) -> None:
        self._layers.refresh()

    @property
    def cache_bytes(self) -> int:
        caches = self._caches
        return 0 if caches is None else 2 * sum(each.nbytes for each in (*caches.own_k, *caches.prompt_k))

    def release(self) -> None:
        """Give the caches and graphs back: training needs the memory."""
        self._graphs.clear()
        self._caches = self._rows = None
        self._key = ()

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling, rows_per_batch: int) -> list[Written]:
        rows = min(max(rows_per_batch, SMALLEST), -(-len(requests) // SMALLEST) * SMALLEST)
        groups = _grouped(requests, min(rows, MOST_MEMBERS))
        budget, most = sampling.max_new_tokens, max(len(members) for _, members in groups)
        longest = -(-max(len(tokens) for tokens, _ in groups) // 64) * 64
        # computing many prompts at once is cheap, as long as they take no more room than the completions
        at_once = -(-rows // most)
        num_prompts = min(len(groups), max(2 * at_once + 1, min(8 * at_once, rows * budget // longest)))
        self._prepare(rows, most, num_prompts, longest, budget)
        random = uniforms([request.seed for request in requests], budget).to(self._layers.embedding.device)
        left = {number: len(members) for number, (_, members) in enumerate(groups)}
        book = _SlotTable([-1] * rows, [-1] * rows, left, {}, list(range(num_prompts)))
        waiting = deque((number, request) for number, (_, members) in enumerate(groups) for request in members)
        owner = {request: number for number, request in waiting}
        found: dict[int, Written] = {}
        active, job = rows, _Job(groups, waiting, random, sampling)
        while len(found) < len(requests):
            self._enter(job, book, active)
            self._run(active, sampling)
            self._leave(found, book, owner, active)
            busy = sum(each >= 0 for each in book.request)
            if not waiting and 0 < busy <= active // 2 and active > SMALLEST:
                active = self._gathered(book, max(SMALLEST, -(-busy // SMALLEST) * SMALLEST))
        return [found[number] for number in range(len(requests))]

    def _prepare(self, rows: int, most: int, num_prompts: int, longest: int, budget: int) -> None:
        """Buffers that fit; graphs are thrown away with the buffers they were made on."""
        key = (rows, most, num_prompts, longest, budget)
        if self._key == key:
            return
        self.release()
        shape, device, dtype = self._layers.shape, self._layers.embedding.device, self._layers.dtype

        def cache(count: int, length: int) -> list[Tensor]:
            sizes = (count, shape.key_heads, length, shape.size)
            return [torch.zeros(sizes, dtype=dtype, device=device) for _ in self._layers.layers]

        self._caches = Caches(
            self._tables,
            cache(num_prompts, longest),
            cache(num_prompts, longest),
            torch.ones(num_prompts, dtype=torch.int32, device=device),
            torch.full((num_prompts, most), -1, dtype=torch.int32, device=device),
            cache(rows, budget),
            cache(rows, budget),
        )

        def zeros(*sizes: int, kind: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(sizes, dtype=kind, device=device)

        wide = torch.float32
        self._prompt_logits = zeros(num_prompts, shape.vocabulary, kind=wide)
        self._rows = _Rows(
            zeros(rows), zeros(rows), torch.ones(rows, dtype=torch.long, device=device),
            torch.ones(rows, dtype=torch.bool, device=device), zeros(rows, budget, kind=wide),
            zeros(rows, budget), zeros(rows, budget, kind=wide),
        )  # fmt: skip
        self._key = key

    def _enter(self, job: _Job, book: _SlotTable, active: int) -> None:
        """Waiting requests take free slots."""
        assert self._rows is not None and self._caches is not None
        rows, caches, waiting, sampling = self._rows, self._caches, job.waiting, job.sampling
        free = [slot for slot in range(active) if book.request[slot] < 0]
        if not waiting or len(free) < min(len(waiting), max(1, active // 16)):
            return
        coming: list[tuple[int, int, int]] = []  # slot, group, request
        while waiting and free:
            if waiting[0][0] not in book.place:
                self._admit_prompts(job, book)
            if waiting[0][0] not in book.place:
                break  # every prompt slot is in use
            coming.append((free.pop(0), *waiting.popleft()))
        if not coming:
            return
        device = rows.token.device

        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, device=device)

        at = tensor([slot for slot, _, _ in coming])
        prompts = tensor([book.place[number] for _, number, _ in coming])
        streams = job.random[tensor([request for _, _, request in coming])]
        drawn = draw(self._prompt_logits[prompts], streams[:, 0], sampling)
        rows.random[at] = streams
        rows.token[at], rows.tokens[at, 0], rows.logp[at, 0] = drawn.token, drawn.token, drawn.logp
        rows.position[at] = caches.lengths[prompts].long()
        rows.count[at] = 1
        rows.done[at] = self._ends(drawn.token) | (sampling.max_new_tokens == 1)
        for slot, number, request in coming:
            book.request[slot], book.prompt[slot] = request, book.place[number]
        self._note_members(book)

    def _note_members(self, book: _SlotTable) -> None:
        """Which rows read which prompt. A slot belongs to one prompt only: two would write over each other."""
        assert self._caches is not None
        listed: list[list[int]] = [[] for _ in range(len(self._caches.lengths))]
        for slot, request in enumerate(book.request):
            if request >= 0:
                listed[book.prompt[slot]].append(slot)
        width = self._caches.members.shape[1]
        padded = [each + [-1] * (width - len(each)) for each in listed]
        self._caches.members.copy_(torch.tensor(padded, dtype=torch.int32))

    def _admit_prompts(self, job: _Job, book: _SlotTable) -> None:
        """The next prompts in the queue, as many as there is room for, in one pass."""
        numbers = list(dict.fromkeys(number for number, _ in job.waiting if number not in book.place))
        chosen = numbers[: len(book.free_prompts)]
        if not chosen:
            return
        slots = [book.free_prompts.pop(0) for _ in chosen]
        self._prefill([job.groups[number][0] for number in chosen], slots)
        book.place.update(zip(chosen, slots, strict=True))

    def _prefill(self, prompts: Sequence[tuple[int, ...]], slots: Sequence[int]) -> None:
        """Keys, values and the logits behind each prompt, into its slot."""
        assert self._caches is not None
        caches, device = self._caches, self._split.device
        at = torch.tensor(slots, device=device)
        caches.lengths[at] = torch.tensor([len(each) for each in prompts], dtype=torch.int32, device=device)
        tree = prompt_batch(prompts, device)
        index, longest = tree.layout.prompt_index, tree.layout.prompt_index.shape[1]

        def keep(number: int, key: Tensor, value: Tensor) -> None:
            for mine, theirs in ((caches.prompt_k[number], key), (caches.prompt_v[number], value)):
                mine[at, :, :longest] = theirs[index].transpose(1, 2).to(mine.dtype)

        self._prompt_logits[at] = self._split.logits(fused_states(self._split, tree, keep))

    def _run(self, active: int, sampling: Sampling) -> None:
        graph = self._graph(active, sampling)
        for _ in range(STRIDE):
            graph.replay()

    def _graph(self, active: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        key = (active, sampling.temperature)
        if key not in self._graphs:
            work = workspace(self._layers, active)
            saved = self._snapshot()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            if (active, *self._key) not in self._warm:
                with torch.cuda.stream(side):  # kernels compile on their first call, which a capture cannot hold
                    for _ in range(2):
                        self._step(active, work, sampling)
                self._warm.add((active, *self._key))
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step(active, work, sampling)
            self._restore(saved)
            self._graphs[key] = (graph, work)
        return self._graphs[key][0]

    def _snapshot(self) -> list[Tensor]:
        assert self._rows is not None
        return [value.clone() for value in vars(self._rows).values()]

    def _restore(self, saved: Sequence[Tensor]) -> None:
        assert self._rows is not None
        for value, before in zip(vars(self._rows).values(), saved, strict=True):
            value.copy_(before)

    def _step(self, active: int, work: Workspace, sampling: Sampling) -> None:
        """One token for every row; rows that are done write over their last slot and count no further."""
        assert self._rows is not None and self._caches is not None
        rows, budget = self._rows, sampling.max_new_tokens
        token, position, count = rows.token[:active], rows.position[:active], rows.count[:active]
        done, tokens, logp = rows.done[:active], rows.tokens[:active], rows.logp[:active]
        logits = decode_step(self._layers, self._caches, work, token, position, count - 1)
        place = count.clamp(max=budget - 1)[:, None]
        drawn = self._drawn(logits, rows.random[:active].gather(1, place)[:, 0], sampling)
        going = ~done
        tokens.scatter_(1, place, torch.where(going, drawn.token, tokens.gather(1, place)[:, 0])[:, None])
        logp.scatter_(1, place, torch.where(going, drawn.logp, logp.gather(1, place)[:, 0])[:, None])
        token.copy_(torch.where(going, drawn.token, token))
        count.add_(going.long())
        position.add_(going.long())
        ended = self._ends(drawn.token)
        done.logical_or_((going & ended) | (count >= budget))

    def _drawn(self, logits: Tensor, uniform: Tensor, sampling: Sampling) -> Draw:
        if sampling.temperature == 0:
            return draw(logits, uniform, sampling)
        from whet.model import decode_kernels

        token = torch.empty(len(logits), dtype=torch.long, device=logits.device)
        logp = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        decode_kernels.sample(logits, uniform, sampling.temperature, token, logp)
        return Draw(token, logp, None)

    def _ends(self, token: Tensor) -> Tensor:
        return (token[:, None] == self._end_tokens).any(-1)

    def _leave(self, found: dict[int, Written], book: _SlotTable, owner: Mapping[int, int], active: int) -> None:
        """Finished rows hand in what they wrote."""
        assert self._rows is not None
        rows = self._rows
        done = rows.done[:active].tolist()
        slots = [slot for slot in range(active) if done[slot] and book.request[slot] >= 0]
        if not slots:
            return
        at = torch.tensor(slots, device=rows.token.device)
        counts, ends = rows.count[at].tolist(), self._ends(rows.token[at]).tolist()
        tokens, logp = rows.tokens[at].cpu(), rows.logp[at].cpu()
        for place, slot in enumerate(slots):
            count, request = counts[place], book.request[slot]
            found[request] = Written(tokens[place, :count].clone(), logp[place, :count].clone(), ends[place])
            book.request[slot] = -1
            number = owner[request]
            book.left[number] -= 1
            if not book.left[number]:
                book.free_prompts.append(book.place.pop(number))

    def _gathered(self, book: _SlotTable, smaller: int) -> int:
        """Move the rows that still write to the front."""
        assert self._rows is not None and self._caches is not None
        rows, caches = self._rows, self._caches
        busy = [slot for slot, request in enumerate(book.request) if request >= 0]
        at = torch.tensor(busy, device=rows.token.device)
        for value in vars(rows).values():
            value[: len(busy)] = value[at]
        rows.done[len(busy) :] = True
        for cache in (*caches.own_k, *caches.own_v):
            cache[: len(busy)] = cache[at]
        book.request = [book.request[slot] for slot in busy] + [-1] * (len(book.request) - len(busy))
        book.prompt = [book.prompt[slot] for slot in busy] + [-1] * (len(book.prompt) - len(busy))
        self._note_members(book)
        return smaller


def graph_decoder(split: CausalLM, end_tokens: Tensor, context: int) -> CudaDecoder | None:
    """A decoder for a plain model on a CUDA device whose completions have the log-probabilities the model gives them."""
    if split.device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    if not is_plain(split) or plain_shape(split).size not in HEAD_SIZES or not fused_works(split):
        return None
    decoder = CudaDecoder(split, end_tokens, context)
    tokens = [
        tuple(each % split.vocabulary for each in range(first, first + size)) for first, size in ((3, 5), (40, 9))
    ]
    requests = [Request(each, seed) for each in tokens for seed in (1, 2)]
    budget = min(12, context - 9)
    written = decoder.generate(requests, Sampling(max_new_tokens=budget), SMALLEST)
    gaps = []
    for request, completion in zip(requests, written, strict=True):
        row = torch.tensor([*request.tokens, *completion.tokens.tolist()], device=split.device)[None]
        action = torch.arange(row.shape[1], device=split.device)[None] >= len(request.tokens)
        found = token_logp(split, row, action).logp[action].cpu()
        gaps.append((found - completion.logp).abs())
    decoder.release()
    tolerance = 1e-3 if split.dtype == torch.float32 else 0.1
    return decoder if float(torch.cat(gaps).mean()) < tolerance else None


def written_by_graphs(
    decoder: CudaDecoder, requests: Sequence[Request], sampling: Sampling, rows_per_batch: int
) -> Completions:
    written = decoder.generate(requests, sampling, rows_per_batch)
    if decoder.cache_bytes > KEPT_BYTES:
        decoder.release()
    tokens = torch.zeros(len(requests), sampling.max_new_tokens, dtype=torch.long)
    logp = torch.zeros(len(requests), sampling.max_new_tokens)
    for row, completion in enumerate(written):
        tokens[row, : len(completion.tokens)] = completion.tokens
        logp[row, : len(completion.tokens)] = completion.logp
    stops = [StopReason.END if completion.ended else StopReason.LENGTH for completion in written]
    return Completions(tokens, logp, [len(completion.tokens) for completion in written], stops, [[] for _ in written])


def _grouped(requests: Sequence[Request], most: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """(tokens of the prompt, numbers of its requests), at most `most` of them each."""
    return [
        (tokens, members[start : start + most])
        for tokens, members in shares(requests)
        for start in range(0, len(members), most)
    ]
