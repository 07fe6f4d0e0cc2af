"""Many new tokens of each row at once, behind the keys and values that the row has: the later turns of a conversation.

Rows are those of `whet.model.cuda_step`: a prompt that a group shares, then what the row has of its own. The new tokens
of all rows lie one after the other without gaps, so that the products see no padding. Plain torch on any device; on
CUDA the attention is a kernel that reads both caches where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.model.cuda_step import Caches
from whet.model.fused_weights import DecodeWeights, FusedBlock, continued
from whet.model.layer_ops import gated, kernels_for, rotated
from whet.model.norms import entered, heads_normed, left
from whet.model.shared_prefix import long_tensor, to_device


@dataclass(frozen=True)
class Chunk:
    """New tokens of R rows, T in all."""

    longest: int  # tokens of one row
    tokens: Tensor  # int64 [T]
    owner: Tensor  # int64 [T], which of the R each belongs to
    position: Tensor  # int64 [T], in the row's own cache
    rows: Tensor  # int64 [R]
    slots: Tensor  # int64 [R], of their prompts
    first: Tensor  # int64 [R], where a row's tokens begin in `tokens`
    sizes: Tensor  # int64 [R]
    num_cached: Tensor  # int64 [R], own keys and values that stand in front of the new ones

    @property
    def spans(self) -> tuple[Tensor, ...]:
        """What the attention kernel is told of each row."""
        return self.rows, self.slots, self.first, self.sizes, self.num_cached


def chunk_of(
    rows: Sequence[int],
    slots: Sequence[int],
    num_cached: Sequence[int],
    tokens: Sequence[Sequence[int]],
    device: torch.device,
) -> Chunk:
    """The tokens go to the device in one piece, without waiting for it."""
    sizes = long_tensor([len(row_tokens) for row_tokens in tokens])
    ends = sizes.cumsum(0)
    first, before = ends - sizes, long_tensor(num_cached)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    position = torch.arange(len(owner)) - first[owner] + before[owner]
    flat = long_tensor([token for row_tokens in tokens for token in row_tokens])
    parts = (flat, owner, position, long_tensor(rows), long_tensor(slots), first, sizes, before)
    moved = to_device(torch.cat(parts), device).split([len(part) for part in parts])
    return Chunk(int(sizes.max()), *moved)


def chunk_step(weights: DecodeWeights, caches: Caches, chunk: Chunk) -> Tensor:
    """Logits [R, V] behind each row's last token; keys and values of all go into the rows' own caches."""
    sizes, how = weights.sizes, (weights.sizes.epsilon, weights.dtype)
    position = caches.lengths[chunk.slots][chunk.owner] + chunk.position
    tables = (caches.tables[0][position], caches.tables[1][position])
    row_of_token = chunk.rows[chunk.owner]
    x = weights.embedding[chunk.tokens].float()
    y: Tensor | None = None
    for number, block in enumerate(weights.blocks):
        x, normed = entered(x, y, block.before_attention, *how)
        heads = _heads(normed, block, weights)
        heads = rotated(heads, sizes.num_heads + sizes.num_key_heads, tables)
        query, key, value = heads.split([sizes.num_heads, sizes.num_key_heads, sizes.num_key_heads], 1)
        caches.own_k[number][row_of_token, :, chunk.position] = key
        caches.own_v[number][row_of_token, :, chunk.position] = value
        _, leaving, widening, narrowing = block.factors
        mixed = continued(_attended(query, caches, number, chunk, sizes.scale).flatten(1), leaving)
        added = left(mixed @ block.output.t(), block.after_attention, *how)
        x, normed = entered(x, added, block.before_mlp, *how)
        opened = gated(continued(normed, widening) @ block.gate_up.t())
        y = left(continued(opened, narrowing) @ block.down.t(), block.after_mlp, *how)
    last = chunk.first + chunk.sizes - 1
    assert y is not None
    final = entered(x[last], y[last], weights.last_norm, sizes.epsilon, weights.head.dtype)[1]
    return final @ weights.head.t()


def _heads(normed: Tensor, block: FusedBlock, weights: DecodeWeights) -> Tensor:
    """Queries, keys and values [T, H + 2 K, D], not yet rotated."""
    sizes = weights.sizes
    normed = continued(normed, block.factors[0])
    qkv = normed @ block.qkv.t() if block.qkv_bias is None else torch.addmm(block.qkv_bias, normed, block.qkv.t())
    heads = qkv.view(len(qkv), -1, sizes.head_size)
    if block.head_norms is None:
        return heads
    counts = (sizes.num_heads, sizes.num_key_heads, sizes.num_key_heads)
    return heads_normed(heads, block.head_norms, counts, sizes.epsilon, qkv.dtype)


def _attended(query: Tensor, caches: Caches, number: int, chunk: Chunk, scale: float) -> Tensor:
    """Queries [T, H, D] over the prompt of their row and its own keys up to themselves."""
    prompts, own = (caches.prompt_k[number], caches.prompt_v[number]), (caches.own_k[number], caches.own_v[number])
    if kernels_for(query) is not None:
        from whet.model import decode_kernels

        return decode_kernels.chunk_attention(query, prompts, caches.lengths, own, chunk.spans, chunk.longest, scale)
    return plain_chunk_attention(query, prompts, caches.lengths, own, chunk.spans, scale)


def plain_chunk_attention(
    query: Tensor,
    prompts: tuple[Tensor, Tensor],  # keys and values [P, K, L, D]
    lengths: Tensor,
    own: tuple[Tensor, Tensor],  # keys and values [B, K, budget, D], the new ones among them
    spans: tuple[Tensor, ...],
    scale: float,
) -> Tensor:
    """Row by row: where no kernel runs, and what the kernel is tested against."""
    output = torch.empty_like(query)
    for row, slot, first, size, num_cached in torch.stack(spans, 1).tolist():
        length, shared = int(lengths[slot]), query.shape[1] // own[0].shape[1]
        key, value = (
            torch.cat([prompt[slot, :, :length], mine[row, :, : num_cached + size]], 1).repeat_interleave(shared, 0)
            for prompt, mine in zip(prompts, own, strict=True)
        )
        sees = torch.arange(key.shape[1], device=query.device) <= length + num_cached + torch.arange(
            size, device=query.device
        ).unsqueeze(1)
        rows = query[first : first + size].transpose(0, 1)
        mixed = F.scaled_dot_product_attention(rows, key, value, attn_mask=sees, scale=scale)
        output[first : first + size] = mixed.transpose(0, 1)
    return output
