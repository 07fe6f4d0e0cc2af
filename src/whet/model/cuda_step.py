"""The decode step of a plain decoder as few, large operations on preallocated buffers: made to be a CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from whet.model.fused_weights import FusedWeights


@dataclass(frozen=True)
class Caches:
    """Keys and values: of prompts, once each, and of what rows have written. A list entry a layer."""

    tables: tuple[Tensor, Tensor]  # cosine and sine of every position, float32 [context, D]
    prompt_k: list[Tensor]  # [P, K, L, D]
    prompt_v: list[Tensor]
    lengths: Tensor  # int32 [P], tokens of each prompt
    members: Tensor  # int32 [P, M], the rows of each prompt, -1 where none
    own_k: list[Tensor]  # [B, K, budget, D]
    own_v: list[Tensor]


@dataclass(frozen=True)
class Workspace:
    """What a step writes on its way, for B rows."""

    residual: Tensor  # float32 [B, W]
    normed: Tensor  # [B, W]
    qkv: Tensor
    query: Tensor  # [B, H, D]
    top: Tensor  # float32 [B, H]
    total: Tensor
    partial: Tensor  # float32 [B, H, D]
    mixed: Tensor  # [B, H D]
    added: Tensor  # [B, W]
    gate_up: Tensor
    opened: Tensor
    logits: Tensor  # [B, V]


def workspace(layers: FusedWeights, rows: int) -> Workspace:
    shape, dtype, device = layers.shape, layers.dtype, layers.embedding.device

    def empty(*sizes: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(rows, *sizes, dtype=kind, device=device)

    wide = torch.float32
    heads, size = shape.heads, shape.size
    return Workspace(
        empty(shape.width, kind=wide), empty(shape.width), empty((heads + 2 * shape.key_heads) * size),
        empty(heads, size), empty(heads, kind=wide), empty(heads, kind=wide), empty(heads, size, kind=wide),
        empty(heads * size), empty(shape.width), empty(2 * shape.inner), empty(shape.inner), empty(shape.vocabulary),
    )  # fmt: skip


def decode_step(
    layers: FusedWeights, caches: Caches, work: Workspace, token: Tensor, position: Tensor, written: Tensor
) -> Tensor:
    """Logits [B, V] behind `token` [B]; its keys and values go to slot `written` [B] of each row's own cache."""
    from whet.model import decode_kernels, layer_kernels

    shape, rows = layers.shape, (position, written)
    scratch = (work.top, work.total, work.partial, work.mixed.view(-1, shape.heads, shape.size))
    work.residual.copy_(layers.embedding[token])
    added: Tensor | None = None
    for number, layer in enumerate(layers.layers):
        own = (caches.own_k[number], caches.own_v[number])
        prompts = (caches.prompt_k[number], caches.prompt_v[number], caches.lengths, caches.members)
        layer_kernels.add_norm(work.residual, added, layer.before, shape.epsilon, work.normed)
        if layer.qkv_bias is None:
            torch.mm(work.normed, layer.qkv.t(), out=work.qkv)
        else:
            torch.addmm(layer.qkv_bias, work.normed, layer.qkv.t(), out=work.qkv)
        decode_kernels.rotate(work.qkv, caches.tables, (layer.norms, shape.epsilon), rows, work.query, own)
        decode_kernels.attention(work.query, prompts, own, written, scratch, shape.scale)
        torch.mm(work.mixed, layer.mix.t(), out=work.added)
        layer_kernels.add_norm(work.residual, work.added, layer.after, shape.epsilon, work.normed)
        torch.mm(work.normed, layer.gate_up.t(), out=work.gate_up)
        layer_kernels.gated(work.gate_up, work.opened)
        torch.mm(work.opened, layer.down.t(), out=work.added)
        added = work.added
    layer_kernels.add_norm(work.residual, added, layers.last, shape.epsilon, work.normed)
    torch.mm(work.normed, layers.head.t(), out=work.logits)
    return work.logits
