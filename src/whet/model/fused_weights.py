"""A copy of a described model's weights, laid side by side for few, large products in the dtype they run in."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from whet.model.block import Block, BlockStack, norm_weight


@dataclass(frozen=True)
class FusedBlock:
    """Weights in the dtype of the products; norms in float32."""

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


class FusedWeights:
    """The copy. `refresh` takes over the weights as they are now."""

    def __init__(self, stack: BlockStack, dtype: torch.dtype) -> None:
        self.sizes, self.dtype = stack.sizes, dtype  # not the modules: a copy must not keep a model alive
        self._pairs: list[tuple[Tensor, Tensor]] = []  # (copy, parameter)
        self.blocks = [self._fused(block) for block in stack.blocks]
        # of the products only the logits' show how they are rounded: they are large, and differences between them count
        fine = torch.float16 if dtype == torch.bfloat16 and _fits_float16(stack) else dtype
        self.embedding = self._copy(stack.embedding.weight, fine)
        self.head = self.embedding
        if stack.head is not None and stack.head.weight is not stack.embedding.weight:
            self.head = self._copy(stack.head.weight, fine)
        self.last_norm = self._copy(stack.last_norm.weight, torch.float32)  # type: ignore[arg-type]
        self._copies, self._parameters = [mine for mine, _ in self._pairs], [theirs for _, theirs in self._pairs]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights as they are now, in place.

        Always, since no cheap sign tells that they changed: a fused optimizer leaves their version counters alone.
        """
        torch._foreach_copy_(self._copies, self._parameters)

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

    def _fused(self, block: Block) -> FusedBlock:
        entering = (block.query, block.key, block.value)
        query_norm, key_norm = self._norm(block.query_norm), self._norm(block.key_norm)
        return FusedBlock(
            before_attention=self._norm(block.before_attention),
            qkv=self._side_by_side(*(each.weight for each in entering)),
            qkv_bias=None if block.query.bias is None else self._side_by_side(*(each.bias for each in entering)),
            head_norms=None if query_norm is None or key_norm is None else (query_norm, key_norm),
            output=self._side_by_side(block.output.weight),
            after_attention=self._norm(block.after_attention),
            before_mlp=self._norm(block.before_mlp),
            gate_up=self._side_by_side(block.gate.weight, block.up.weight),
            down=self._side_by_side(block.down.weight),
            after_mlp=self._norm(block.after_mlp),
        )


def _fits_float16(stack: BlockStack) -> bool:
    """On CUDA, where embeddings, the states that the last norm can give and the logits stay far inside its range."""
    if not stack.embedding.weight.is_cuda:
        return False
    largest = float(stack.last_norm.weight.detach().abs().max()) * stack.sizes.width**0.5  # type: ignore[operator]
    matrices = [stack.embedding.weight] + ([] if stack.head is None else [stack.head.weight])
    return max(largest, *(float(each.detach().abs().max()) for each in matrices)) < 1e4


_COPIES: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, FusedWeights]] = weakref.WeakKeyDictionary()


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


def fused_weights(stack: BlockStack, dtype: torch.dtype) -> FusedWeights:
    """The copy that everybody who works in this dtype shares, with the policy's weights as they are now."""
    copies = _COPIES.setdefault(stack.embedding, {})
    if dtype not in copies:
        copies[dtype] = FusedWeights(stack, dtype)
    elif not is_current(copies[dtype]):
        copies[dtype].refresh()
    return copies[dtype]
