"""A copy of a described model's merged adapters, laid side by side for few products in the dtype they run in.

Products whose outputs lie side by side (queries, keys and values; gate and up) share their input. So do their adapters:
their `down` factors lie below one another, and their `up` factors lie in one matrix, each in its own rows and columns
with zeros elsewhere. The gradients of all of them then take four products instead of four for each.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from whet.model.block import BlockStack
from whet.model.fused_weights import NO_FACTORS, BlockFactors, GroupFactors, is_current
from whet.model.lora import AdaptedLinear


class AdapterCopies:
    """The copy. `refresh` takes over the factors as they are now."""

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
        spans: list[tuple[slice, slice] | None] = []
        row = column = 0
        for layer, rank in zip(layers, ranks, strict=True):
            span = slice(row, row + len(layer.weight)), slice(column, column + rank)
            if rank:
                self._copies += [down[span[1]], up[span]]
            spans.append(span if rank else None)
            row, column = span[0].stop, span[1].stop
        return GroupFactors(down, up, tuple(spans))


_COPIES: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, AdapterCopies]] = weakref.WeakKeyDictionary()


def block_factors(stack: BlockStack, dtype: torch.dtype) -> list[BlockFactors]:
    """The adapters of each block as they are now; None in place of a group without."""
    adapted = [layer for block in stack.blocks for layer in block.products if isinstance(layer, AdaptedLinear)]
    if not adapted:
        return [NO_FACTORS] * len(stack.blocks)
    factors = [factor for layer in adapted for factor in (layer.down, layer.up)]
    copies = _COPIES.setdefault(stack.embedding, {})
    if dtype not in copies or not copies[dtype].is_of(factors):
        copies[dtype] = AdapterCopies(stack, dtype, factors)
    elif not is_current(copies[dtype]):
        copies[dtype].refresh()
    return copies[dtype].blocks
