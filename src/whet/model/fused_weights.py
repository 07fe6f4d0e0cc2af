"""A described model's weights, laid side by side for few, large products in the dtype they run in.

Weights of another dtype are copied. Those that have it already are not: they are moved side by side, and the model's
own parameters become views of that place, so that there is one copy for everybody.

An adapter that is kept apart from its base lies beside it. Its `up` (times its scale) continues the rows of the weight,
so that one product gives both; what goes in is continued by what `down` makes of it:

    y = [x, x down'] [weight, scale up]'

A decode step is many small products, and four more in each layer cost it a quarter of its time: where there is memory
for a second copy of the matrices, it reads one with the adapters in it (`MergedWeights`). Training on what
was just written reads the same copy; then only the factors' gradients take products of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from whet.model.block import Block, BlockStack, norm_weight
from whet.model.cuda_graphs import Recording
from whet.model.layer_ops import kernels_for
from whet.model.lora import AdaptedLinear, UnmergedLinear
from whet.model.low_precision import stochastically_rounded

ALIGNED = 8  # numbers of two bytes: rows that begin at a multiple of 16 bytes are read faster


@dataclass(frozen=True)
class GroupFactors:
    """The adapters of products that lie side by side, in the dtype of the products; R ranks together.

    Each has its own rows and columns of `up`, with zeros elsewhere. The gradient of the factors takes four products.
    """

    down: Tensor  # [R, in]
    up: Tensor  # [out, R], times the scale
    spans: tuple[tuple[slice, slice] | None, ...]  # of each product: its rows and columns of `up`; None without adapter
    up_scale: float = 1.0  # what the gradient of `up` lacks, where `down` has no scale
    apart: bool = False  # the weight is the base alone


BlockFactors = tuple[GroupFactors | None, ...]  # of q, k, v; of o; of gate, up; of down
NO_FACTORS: BlockFactors = (None, None, None, None)


@dataclass(frozen=True)
class FusedBlock:
    """Weights in the dtype of the products; norms in float32. With `factors` R columns more than said here."""

    before_attention: Tensor | None  # [W]
    qkv: Tensor  # [(H + 2 K) D, W]
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None  # of queries and keys: [D] each, or [H D] and [K D]
    output: Tensor  # [W, H D]
    after_attention: Tensor | None
    before_mlp: Tensor | None
    gate_up: Tensor  # [2 F, W]
    down: Tensor  # [W, F]
    after_mlp: Tensor | None
    factors: BlockFactors = NO_FACTORS  # of adapters that are kept apart


def continued(x: Tensor, factors: GroupFactors | None) -> Tensor:
    """What goes into a product with a weight that its adapter continues."""
    if factors is None or not factors.apart:
        return x
    return torch.cat((x, torch.mm(x, factors.down.t())), 1)


class FusedWeights:
    """The weights side by side. `refresh` takes over what is a copy as it is now."""

    def __init__(self, stack: BlockStack, dtype: torch.dtype) -> None:
        self.sizes, self.dtype = stack.sizes, dtype  # not the modules: a copy must not keep a model alive
        self._pairs: list[tuple[Tensor, Tensor]] = []  # (copy, parameter)
        self._ups: list[tuple[Tensor, UnmergedLinear]] = []  # columns of a weight, and whose they are
        self.merged: Callable[[], MergedWeights | None] = _no_copy  # what a sampler made of it, while that is there
        self.blocks = [self._fused(block) for block in stack.blocks]
        # of the products only the logits' show how they are rounded: they are large, and differences between them count
        fine = (
            torch.float16
            if dtype == torch.bfloat16 and stack.embedding.weight.is_cuda and _fits_float16(stack)
            else dtype
        )
        narrow = stack.embedding.weight.dtype == dtype and dtype.itemsize < 4
        self.embedding = stack.embedding.weight.detach() if narrow else self._copy(stack.embedding.weight, fine)
        self.head = self.embedding
        if stack.head is not None and (narrow or stack.head.weight is not stack.embedding.weight):
            same = narrow and fine == dtype
            self.head = stack.head.weight.detach() if same else self._copy(stack.head.weight, fine)
        self.last_norm = self._copy(stack.last_norm.weight, torch.float32)  # type: ignore[arg-type]
        self._copies, self._parameters = [mine for mine, _ in self._pairs], [theirs for _, theirs in self._pairs]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights as they are now, in place.

        Always, since no cheap sign tells that they changed: a fused optimizer leaves their version counters alone.
        """
        torch._foreach_copy_(self._copies, self._parameters)
        on = [(columns, layer) for columns, layer in self._ups if layer.on]
        if on:
            ups = torch._foreach_mul([layer.up for _, layer in on], on[0][1].scale)
            torch._foreach_copy_([columns for columns, _ in on], ups)
        for columns, layer in self._ups:
            if not layer.on:
                columns.zero_()

    @property
    def sources(self) -> list[Tensor]:
        """All that is copied, adapters included."""
        return [*self._parameters, *(layer.up for _, layer in self._ups)]

    @property
    def adapters_are_on(self) -> bool:
        """Whether every adapter that is kept apart counts at the moment."""
        return all(layer.on for _, layer in self._ups)

    def _copy(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        copy = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        self._pairs.append((copy, parameter))
        return copy

    def _norm(self, module: nn.Module | None) -> Tensor | None:
        weight = norm_weight(module)
        return None if weight is None else self._copy(weight, torch.float32)

    def _side_by_side(self, *parameters: Tensor) -> Tensor:
        rows = [len(parameter) for parameter in parameters]
        sizes = (sum(rows), *parameters[0].shape[1:])
        copy = torch.empty(sizes, dtype=self.dtype, device=parameters[0].device)
        self._pairs += zip(copy.split(rows), parameters, strict=True)
        return copy

    def _products(self, *layers: nn.Linear) -> tuple[Tensor, GroupFactors | None]:
        """The weights of layers that read the same input, and their adapters where these are kept apart."""
        apart = [isinstance(layer, UnmergedLinear) for layer in layers]
        owned = any(apart) or self.dtype.itemsize < 4
        if not owned or any(
            type(layer.weight.data) is not Tensor or layer.weight.dtype != self.dtype for layer in layers
        ):
            return self._side_by_side(*(layer.weight for layer in layers)), None
        ranks = [len(layer.down) if isinstance(layer, UnmergedLinear) else 0 for layer in layers]
        padded = -(-sum(ranks) // ALIGNED) * ALIGNED
        outputs, inputs = [len(layer.weight) for layer in layers], layers[0].weight.shape[1]
        device = layers[0].weight.device
        whole = torch.empty(sum(outputs), inputs + padded, dtype=self.dtype, device=device)
        whole[:, inputs:] = 0
        for layer, rows in zip(layers, whole[:, :inputs].split(outputs), strict=True):
            rows.copy_(layer.weight.detach())
            layer.weight.data = rows
        if not any(apart):
            return whole, None
        down = torch.zeros(padded, inputs, dtype=self.dtype, device=device)
        spans = _spans(layers, ranks)
        for layer, span in zip(layers, spans, strict=True):
            if isinstance(layer, UnmergedLinear) and span is not None:
                self._pairs.append((down[span[1]], layer.down))
                self._ups.append((whole[:, inputs:][span], layer))
        scale = next(layer.scale for layer in layers if isinstance(layer, AdaptedLinear))
        return whole, GroupFactors(down, whole[:, inputs:], spans, scale, True)

    def _fused(self, block: Block) -> FusedBlock:
        entering = (block.query, block.key, block.value)
        query_norm, key_norm = self._norm(block.query_norm), self._norm(block.key_norm)
        qkv, enter = self._products(*entering)
        output, leave = self._products(block.output)
        gate_up, widen = self._products(block.gate, block.up)
        down, narrow = self._products(block.down)
        return FusedBlock(
            before_attention=self._norm(block.before_attention),
            qkv=qkv,
            qkv_bias=None if block.query.bias is None else self._side_by_side(*(layer.bias for layer in entering)),
            head_norms=None if query_norm is None or key_norm is None else (query_norm, key_norm),
            output=output,
            after_attention=self._norm(block.after_attention),
            before_mlp=self._norm(block.before_mlp),
            gate_up=gate_up,
            down=down,
            after_mlp=self._norm(block.after_mlp),
            factors=(enter, leave, widen, narrow),
        )


class MergedWeights:
    """The same weights with adapters that were kept apart merged into copies of the matrices. `refresh` merges anew.

    A step of an adapter is mostly smaller than half a unit in the last place of the base: rounded to the nearest, the
    copies would stay the base. They are rounded at random, which is right on average, and always with the same random
    numbers: the copies hang on the weights alone, whoever makes them and when.
    """

    def __init__(self, apart: FusedWeights) -> None:
        self._apart = apart
        self.sizes, self.dtype = apart.sizes, apart.dtype
        self.embedding, self.head, self.last_norm = apart.embedding, apart.head, apart.last_norm
        self._merged: list[tuple[Tensor, Tensor, GroupFactors]] = []  # (copy, matrix and `up` side by side, adapters)
        self.blocks = [self._block(block) for block in apart.blocks]
        self.factors = [
            tuple(group and replace(group, apart=False) for group in block.factors) for block in apart.blocks
        ]
        apart.merged = weakref.ref(self)
        self._recording = Recording([*apart.sources, *(copy for copy, _, _ in self._merged)])
        self.refresh()

    def _block(self, block: FusedBlock) -> FusedBlock:
        matrices = (block.qkv, block.output, block.gate_up, block.down)
        qkv, output, gate_up, down = map(self._matrix, matrices, block.factors)
        return replace(block, qkv=qkv, output=output, gate_up=gate_up, down=down, factors=NO_FACTORS)

    def _matrix(self, whole: Tensor, factors: GroupFactors | None) -> Tensor:
        if factors is None:
            return whole
        copy = torch.empty(len(whole), factors.down.shape[1], dtype=self.dtype, device=whole.device)
        self._merged.append((copy, whole, factors))
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights and adapters as they are now, in place."""
        if self._apart.adapters_are_on:
            self._recording.play(self._refresh)
        else:
            self._refresh()

    def _refresh(self) -> None:
        self._apart.refresh()
        if (kernels := kernels_for(self.embedding)) is not None:
            for number, (copy, whole, factors) in enumerate(self._merged):
                kernels.merged(whole, factors.up, factors.down, number, copy)
            return
        stream = torch.Generator(self.embedding.device).manual_seed(0)
        for copy, whole, factors in self._merged:
            exact = whole[:, : copy.shape[1]].float().addmm_(factors.up.float(), factors.down.float())
            noise = torch.randint(1 << 16, copy.shape, generator=stream, dtype=torch.int32, device=copy.device)
            copy.copy_(stochastically_rounded(exact, noise))


DecodeWeights = FusedWeights | MergedWeights


def decode_weights(weights: FusedWeights, most_bytes: float) -> DecodeWeights:
    """What a decode step reads: with adapters merged where copies of their matrices take at most so much."""
    return MergedWeights(weights) if 0 < _merged_bytes(weights) <= most_bytes else weights


def _merged_bytes(weights: FusedWeights) -> int:
    """What copies with the adapters in them would take; 0 where none is kept apart from a matrix of bfloat16."""
    if weights.dtype != torch.bfloat16:
        return 0
    return sum(
        len(whole) * factors.down.shape[1] * weights.dtype.itemsize
        for block in weights.blocks
        for whole, factors in zip((block.qkv, block.output, block.gate_up, block.down), block.factors, strict=True)
        if factors is not None
    )


def _spans(layers: Sequence[nn.Linear], ranks: Sequence[int]) -> tuple[tuple[slice, slice] | None, ...]:
    """Each layer's rows and columns in the common `up`; None for a layer without an adapter."""
    spans: list[tuple[slice, slice] | None] = []
    row = column = 0
    for layer, rank in zip(layers, ranks, strict=True):
        rows, columns = slice(row, row + len(layer.weight)), slice(column, column + rank)
        spans.append((rows, columns) if rank else None)
        row, column = rows.stop, columns.stop
    return tuple(spans)


def _fits_float16(stack: BlockStack) -> bool:
    """Whether embeddings, the states that the last norm can give and the logits stay far inside its range."""
    largest = float(stack.last_norm.weight.detach().abs().max()) * stack.sizes.width**0.5  # type: ignore[operator]
    matrices = [stack.embedding.weight] + ([] if stack.head is None else [stack.head.weight])
    return max(largest, *(float(matrix.detach().abs().max()) for matrix in matrices)) < 1e4


_COPIES: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, FusedWeights]] = weakref.WeakKeyDictionary()


def _no_copy() -> None:
    return None


_UNCHANGED: ContextVar[set[int] | None] = ContextVar("whet_unchanged_weights", default=None)  # copies that are current


@contextmanager
def unchanged_weights() -> Iterator[None]:
    """Inside, nobody changes a weight: a copy is refreshed once, not once for each pass."""
    token = _UNCHANGED.set(set())
    try:
        yield
    finally:
        _UNCHANGED.reset(token)


def is_current(copy: object) -> bool:
    """True where the copy has been refreshed since `unchanged_weights` began; from now on it counts as that."""
    current = _UNCHANGED.get()
    if current is None or id(copy) in current:
        return current is not None
    current.add(id(copy))
    return False


def fused_weights(stack: BlockStack, dtype: torch.dtype, refresh: bool = True) -> FusedWeights:
    """The copy that everybody who works in this dtype shares, with the policy's weights as they are now."""
    copies = _COPIES.setdefault(stack.embedding, {})
    if dtype not in copies:
        copies[dtype] = FusedWeights(stack, dtype)
    elif refresh and not is_current(copies[dtype]):
        copies[dtype].refresh()
    return copies[dtype]


def layer_weights(
    stack: BlockStack, dtype: torch.dtype, of_sampler: bool, refresh: bool
) -> tuple[Sequence[FusedBlock], Sequence[BlockFactors]]:
    """The blocks that whole passes multiply with, and the adapters whose gradients training takes.

    `of_sampler`: with the adapters in them, where a sampler reads such a copy and they are switched on. Without
    `refresh` as they were when the sampler began.
    """
    weights = fused_weights(stack, dtype, refresh=False)
    merged = weights.merged() if of_sampler and weights.adapters_are_on else None
    if merged is None:
        weights = fused_weights(stack, dtype, refresh)
        return weights.blocks, [block.factors for block in weights.blocks]
    if refresh and not is_current(merged):
        merged.refresh()
    return merged.blocks, merged.factors


class AdapterCopies:
    """A copy of merged adapters, for their gradients. `refresh` takes over the factors as they are now.

    Products whose outputs lie side by side share their input, and so do their adapters: the `down` factors lie below
    one another, the `up` factors in one matrix. All their gradients take four products instead of four for each.
    """

    def __init__(self, stack: BlockStack, dtype: torch.dtype, factors: Sequence[Tensor]) -> None:
        self._dtype, self._factors = dtype, list(factors)
        self._copies: list[Tensor] = []  # in the order of the factors
        self.blocks: list[BlockFactors] = []
        for block in stack.blocks:
            groups = ((block.query, block.key, block.value), (block.output,), (block.gate, block.up), (block.down,))
            self.blocks.append(tuple(self._group(layers) for layers in groups))
        self._scale = next(
            layer.scale for block in stack.blocks for layer in block.products if isinstance(layer, AdaptedLinear)
        )
        self.refresh()

    def is_of(self, factors: Sequence[Tensor]) -> bool:
        """Whether these very factors were copied: a model may have been given others since."""
        return len(factors) == len(self._factors) and all(a is b for a, b in zip(factors, self._factors, strict=True))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the factors as they are now, times the scale."""
        torch._foreach_copy_(self._copies, self._factors)
        torch._foreach_mul_(self._copies, self._scale)

    def _group(self, layers: Sequence[nn.Linear]) -> GroupFactors | None:
        ranks = [len(layer.down) if isinstance(layer, AdaptedLinear) else 0 for layer in layers]
        if not any(ranks):
            return None
        weight = layers[0].weight
        down = torch.empty(sum(ranks), weight.shape[1], dtype=self._dtype, device=weight.device)
        up = torch.zeros(
            sum(len(layer.weight) for layer in layers), sum(ranks), dtype=self._dtype, device=weight.device
        )
        spans = _spans(layers, ranks)
        for span in spans:
            if span is not None:
                self._copies += [down[span[1]], up[span]]
        return GroupFactors(down, up, spans)


_ADAPTER_COPIES: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, AdapterCopies]] = weakref.WeakKeyDictionary()


def block_factors(stack: BlockStack, dtype: torch.dtype) -> list[BlockFactors]:
    """The adapters of each block as they are now; None in place of a group without."""
    adapted = [layer for block in stack.blocks for layer in block.products if isinstance(layer, AdaptedLinear)]
    if not adapted:
        return [NO_FACTORS] * len(stack.blocks)
    factors = [factor for layer in adapted for factor in (layer.down, layer.up)]
    copies = _ADAPTER_COPIES.setdefault(stack.embedding, {})
    if dtype not in copies or not copies[dtype].is_of(factors):
        copies[dtype] = AdapterCopies(stack, dtype, factors)
    elif not is_current(copies[dtype]):
        copies[dtype].refresh()
    return copies[dtype].blocks
