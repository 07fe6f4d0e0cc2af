"""Forward and backward pass of a micro-batch as replays of one CUDA graph, for models whose launches cost more than
their products.

A graph fixes every shape. So a micro-batch is padded to one of a few shapes: tokens that nobody looks at, blocks of
attention without rows, actions that count 0. They add nothing to any gradient. A shape is captured when it comes for
the second time. All graphs share one pool of memory, and add to the same gradients, which they keep between steps.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.model.block import blocks_of
from whet.model.causal_lm import CausalLM
from whet.model.fused_trunk import fused_states, fused_works, refresh_copies
from whet.model.fused_weights import is_current, unchanged_weights
from whet.model.head import VocabularyHead, chunked_logp
from whet.model.pretrained import first_line
from whet.model.ragged_attention import ragged_kernels
from whet.model.shared_prefix import Segments, SharedPrefixBatch, shared_prefix_batch, to_device

# Launches of a pass take as long as its products where weights times tokens are about 6e12: 1.5 billion weights and
# 4,096 tokens. Far beyond that a graph gains nothing.
MOST_WORK = 2e13
MOST_LEARNED = 1_000_000_000  # weights whose gradients may stay in memory between steps
ROWS = 512  # tokens and actions are padded to a multiple
PAD_ROWS = 128  # tokens of padding that attend to one another
MOST_GRAPHS = 16
SEEN = 2  # times that a shape must come before it is captured


@dataclass(frozen=True)
class _Shape:
    known: bool  # what each action counts is known before the pass
    tokens: int
    actions: int
    blocks: tuple[int, ...]  # rows of each of the attention's tables
    slots: int
    temperature: float


@dataclass(frozen=True)
class _Inputs:
    """What a graph reads, as tensors on the host or on the device."""

    tokens: Tensor  # int64 [S]
    positions: Tensor
    states: Tensor  # int64 [A]
    targets: Tensor
    tables: tuple[Tensor, ...]  # int32

    @property
    def all(self) -> tuple[Tensor, ...]:
        return self.tokens, self.positions, self.states, self.targets, *self.tables


@dataclass(frozen=True)
class _Pass:
    forward: torch.cuda.CUDAGraph
    backward: torch.cuda.CUDAGraph | None  # None: the forward graph finds the gradient too
    inputs: _Inputs
    coefficient: Tensor  # [A], the gradient of logp
    logp: Tensor
    entropy: Tensor

    def count(self, coefficient: Tensor) -> None:
        self.coefficient.zero_()
        self.coefficient[: len(coefficient)].copy_(coefficient)


class GraphedPasses:
    """The graphs of one model."""

    def __init__(self, lm: CausalLM) -> None:
        self._parameters = _trained(lm)
        self._num_weights = sum(each.numel() for each in lm.model.parameters())
        self._gradients: list[Tensor] = []  # made with the first graph
        self._pool = torch.cuda.graph_pool_handle()
        self._passes: dict[_Shape, _Pass] = {}
        self._seen: Counter[_Shape] = Counter()
        self._replays = 0
        self._failed = _too_large(lm)

    def is_of(self, lm: CausalLM) -> bool:
        """False where other parameters learn than those the graphs were made for."""
        now = _trained(lm)
        return len(now) == len(self._parameters) and all(a is b for a, b in zip(now, self._parameters, strict=True))

    def scores(
        self, lm: CausalLM, tokens: Tensor, action: Tensor, temperature: float, coefficient: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """logp and entropy of every action, [A] each; None where the shape has no graph yet. Rows are on the host.

        With a `coefficient` [A] the gradient of SUM coefficient logp is added to the weights' at once; without one, in
        the backward pass of logp, which must come before the next call.
        """
        batch = shared_prefix_batch(tokens, action)
        if batch is None or self._failed or batch.size * self._num_weights > MOST_WORK:
            return None
        targets = tokens[:, 1:][action[:, 1:]]
        shape, inputs = _padded(lm, batch, targets, temperature, coefficient is not None)
        self._seen[shape] += 1
        if shape not in self._passes:
            if self._seen[shape] < SEEN:
                return None
            self._keep_gradients()
            try:
                self._capture(lm, shape, inputs)
            except RuntimeError as error:  # the pass without a graph is right too, only slower
                self._failed = True
                warnings.warn(f"no CUDA graphs of training passes: {first_line(error)}", stacklevel=2)
                return None
        found = self._passes[shape]
        self._keep_gradients()
        refresh_copies(lm)
        for mine, theirs in zip(found.inputs.all, inputs.all, strict=True):
            mine.copy_(to_device(theirs, mine.device), non_blocking=True)
        if coefficient is not None:
            found.count(coefficient)
        found.forward.replay()
        self._replays += 1
        logp, entropy = (each[: len(targets)].clone() for each in (found.logp, found.entropy))
        if coefficient is None and torch.is_grad_enabled():
            logp = _Replayed.apply(torch.zeros((), requires_grad=True), logp, self, found)
        return logp, entropy

    def backward(self, found: _Pass, grad: Tensor, number: int) -> None:
        if number != self._replays:
            raise RuntimeError("another pass has overwritten what the gradient of this one needs")
        assert found.backward is not None
        self._keep_gradients()
        found.count(grad)
        found.backward.replay()

    @property
    def replays(self) -> int:
        return self._replays

    def _keep_gradients(self) -> None:
        """The gradients that the graphs add to are the parameters' own."""
        self._gradients = self._gradients or [torch.empty_like(each) for each in self._parameters]
        fresh = []
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if parameter.grad is gradient:
                continue
            if parameter.grad is None:
                fresh.append(gradient)
            else:
                gradient.copy_(parameter.grad)
            parameter.grad = gradient
        if fresh:
            torch._foreach_zero_(fresh)

    def _capture(self, lm: CausalLM, shape: _Shape, inputs: _Inputs) -> None:
        while len(self._passes) >= MOST_GRAPHS:
            rarest = min(self._passes, key=lambda each: self._seen[each])
            del self._passes[rarest]
        device = lm.device
        own = [to_device(each, device).clone() for each in inputs.all]
        static = _Inputs(own[0], own[1], own[2], own[3], tuple(own[4:]))
        coefficient = torch.zeros(shape.actions, device=device)
        batch = _static_batch(lm, shape, static)

        def ahead() -> tuple[Tensor, Tensor]:
            states = fused_states(lm, batch)
            assert isinstance(lm.head, VocabularyHead)
            known = (lambda _, window: coefficient[window]) if shape.known else None
            return chunked_logp(lm.head, states, static.targets, shape.temperature, lm.dtype, known)

        with unchanged_weights():
            refresh_copies(lm)
            side = torch.cuda.Stream(device)
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):  # counts 0; kernels are compiled
                ahead()[0].backward(coefficient)
            torch.cuda.current_stream(device).wait_stream(side)
            graphs = torch.cuda.CUDAGraph(), None if shape.known else torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[0], pool=self._pool):
                logp, entropy = ahead()
                if graphs[1] is None:
                    logp.backward(coefficient)
            if graphs[1] is not None:
                with torch.cuda.graph(graphs[1], pool=self._pool):
                    logp.backward(coefficient)
        torch.cuda.empty_cache()
        self._passes[shape] = _Pass(*graphs, static, coefficient, logp.detach(), entropy)


class _Replayed(torch.autograd.Function):
    """logp whose gradient is found by a graph."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, logp: Tensor, passes: GraphedPasses, found: _Pass) -> Tensor:
        ctx.passes, ctx.found, ctx.number = passes, found, passes.replays
        return logp.view_as(logp)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, ...]:
        ctx.passes.backward(ctx.found, grad, ctx.number)
        return None, None, None, None


_GRAPHED: weakref.WeakKeyDictionary[nn.Module, GraphedPasses] = weakref.WeakKeyDictionary()
_REFUSALS: weakref.WeakKeyDictionary[nn.Module, dict[Any, str]] = weakref.WeakKeyDictionary()


def _trained(lm: CausalLM) -> list[nn.Parameter]:
    return [each for each in lm.model.parameters() if each.requires_grad]


def graphed_refusal(lm: CausalLM) -> str:
    """Why a model's passes are not graphs; empty where they are."""
    if refusal := _known_refusal(lm):
        return refusal
    return "its gradients are too large to be kept between steps" if _too_large(lm) else ""


def _too_large(lm: CausalLM) -> bool:
    return sum(each.numel() for each in _trained(lm)) > MOST_LEARNED


def _known_refusal(lm: CausalLM) -> str:
    known = _REFUSALS.setdefault(lm.trunk, {})
    key = (lm.device, lm.dtype, lm.recompute)
    if key not in known:
        known[key] = _refusal(lm)
    return known[key]


def _refusal(lm: CausalLM) -> str:
    if lm.device.type != "cuda":
        return "no CUDA device"
    if not fused_works(lm) or lm.recompute == "layers" or not isinstance(lm.head, VocabularyHead) or lm.head.softcap:
        return "its layers are not written out"
    stack = blocks_of(lm)
    if any(window is not None for window in stack.windows):
        return "a sliding window"
    if ragged_kernels(lm.dtype, stack.sizes.head_size) is None:
        return "no kernels for its attention"
    return ""


def graphed_scores(
    lm: CausalLM, tokens: Tensor, action: Tensor, temperature: float, coefficient: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """As `GraphedPasses.scores`; None also where the model has no graphs."""
    if _known_refusal(lm):
        return None
    passes = _GRAPHED.get(lm.trunk)
    if passes is None or (not is_current(passes) and not passes.is_of(lm)):
        _GRAPHED[lm.trunk] = GraphedPasses(lm)
    return _GRAPHED[lm.trunk].scores(lm, tokens, action, temperature, coefficient)


def _padded(
    lm: CausalLM, batch: SharedPrefixBatch, targets: Tensor, temperature: float, known: bool
) -> tuple[_Shape, _Inputs]:
    from whet.model import prefix_attention_kernels as kernels

    sizes = blocks_of(lm).sizes
    num_tokens, num_actions = _rounded(batch.size, ROWS), _rounded(len(targets), ROWS)
    bounds = [*batch.segments.own_bounds, *range(batch.size + PAD_ROWS, num_tokens, PAD_ROWS)]
    if num_tokens > batch.size:
        bounds.append(num_tokens)
    segments = replace(batch.segments, own_bounds=tuple(bounds), tables={})
    *tables, num_slots = kernels.tables_for(segments, sizes.head_size, sizes.num_key_heads, torch.device("cpu"))
    counts = tuple(_rounded_up(len(each)) for each in tables)
    shape = _Shape(known, num_tokens, num_actions, counts, _rounded_up(num_slots), temperature)
    tokens = _filled(batch.tokens[0], num_tokens)
    positions = _filled(batch.position_ids[0], num_tokens)
    inputs = _Inputs(
        tokens,
        positions,
        _filled(batch.states, num_actions),
        _filled(targets, num_actions),
        tuple(_filled(each, count) for each, count in zip(tables, counts, strict=True)),
    )
    return shape, inputs


def _static_batch(lm: CausalLM, shape: _Shape, inputs: _Inputs) -> SharedPrefixBatch:
    sizes = blocks_of(lm).sizes
    nothing = torch.zeros(1, dtype=torch.int32, device=lm.device)
    key = (sizes.head_size, sizes.num_key_heads)
    segments = Segments(
        nothing, 0, nothing, 0, nothing, 0, 0, 0, (), (), (), {key: (*inputs.tables, shape.slots)}
    )  # fmt: skip
    return SharedPrefixBatch(inputs.tokens[None], inputs.positions[None], inputs.states, segments, 0, ())


def _filled(values: Tensor, count: int) -> Tensor:
    """With zeros behind: as a row of a table, a block without rows."""
    found = values.new_zeros(count, *values.shape[1:])
    found[: len(values)] = values
    return found


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _rounded_up(number: int) -> int:
    """To one of four steps from one power of two to the next: few shapes, little waste."""
    step = max(16, 1 << max(number - 1, 1).bit_length() >> 3)
    return _rounded(number, step)
