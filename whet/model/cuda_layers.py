"""The decode step of a plain decoder as few, large operations on preallocated buffers: made to be a CUDA graph.

Plain means: RMS norms before attention and MLP, rotary positions, grouped queries, a gated SiLU MLP, nothing else
(Llama, Mistral without a window, Qwen2, Qwen3 and their like). `plain_layers` finds that structure by name and shape;
whoever uses it checks the logits against the model's own first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whet.model.split import SplitModel


@dataclass(frozen=True)
class Layer:
    """Weights in the dtype of the products; norms in float32."""

    before: Tensor  # [W]
    qkv: Tensor  # [(H + 2 K) D, W]
    qkv_bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None  # of query and key heads, [D]
    mix: Tensor  # [W, H D]
    after: Tensor  # [W]
    gate_up: Tensor  # [2 F, W]
    down: Tensor  # [W, F]


@dataclass(frozen=True)
class Shape:
    heads: int
    key_heads: int
    size: int  # of a head
    width: int
    inner: int  # of the MLP
    vocabulary: int
    epsilon: float
    scale: float


class PlainLayers:
    """A copy of the model's weights, products fused, in the dtype its products run in."""

    def __init__(self, split: SplitModel, dtype: torch.dtype, longest: int) -> None:
        model: Any = split.model
        self._model, self.dtype = model, dtype
        config = model.config
        attention = model.model.layers[0].self_attn
        heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        self.shape = Shape(
            heads, key_heads, attention.head_dim, config.hidden_size, config.intermediate_size,
            split.vocabulary, config.rms_norm_eps, attention.scaling,
        )  # fmt: skip
        device = split.device
        with torch.no_grad():
            place = torch.arange(longest, device=device)[None]
            probe = torch.zeros(1, 1, dtype=torch.float32, device=device)
            cosine, sine = model.model.rotary_emb(probe, place)
        self.tables = (cosine[0].float().contiguous(), sine[0].float().contiguous())
        self.layers = [self._empty(layer) for layer in model.model.layers]
        self.embedding = torch.empty_like(model.model.embed_tokens.weight, dtype=dtype)
        tied = model.lm_head.weight is model.model.embed_tokens.weight
        self.head = self.embedding if tied else torch.empty_like(model.lm_head.weight, dtype=dtype)
        self.last = torch.empty_like(model.model.norm.weight, dtype=torch.float32)
        self.refresh()

    def _empty(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        device = attention.q_proj.weight.device

        def like(*parts: Any) -> Tensor:
            rows = sum(part.weight.shape[0] for part in parts)
            return torch.empty(rows, parts[0].weight.shape[1], dtype=self.dtype, device=device)

        norm = torch.empty_like(layer.input_layernorm.weight, dtype=torch.float32)
        qkv = like(attention.q_proj, attention.k_proj, attention.v_proj)
        bias = torch.empty(len(qkv), dtype=self.dtype, device=device) if attention.q_proj.bias is not None else None
        norms = None
        if hasattr(attention, "q_norm"):
            norms = (torch.empty_like(attention.q_norm.weight, dtype=torch.float32),) * 2
            norms = (norms[0], torch.empty_like(norms[0]))
        return Layer(
            norm, qkv, bias, norms, like(attention.o_proj), torch.empty_like(norm),
            like(mlp.gate_proj, mlp.up_proj), like(mlp.down_proj),
        )  # fmt: skip

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the policy's weights as they are now, in place."""
        model = self._model
        for mine, layer in zip(self.layers, model.model.layers, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            torch.cat([each.weight.to(self.dtype) for each in projections], out=mine.qkv)
            if mine.qkv_bias is not None:
                torch.cat([each.bias.to(self.dtype) for each in projections], out=mine.qkv_bias)
            if mine.norms is not None:
                mine.norms[0].copy_(attention.q_norm.weight)
                mine.norms[1].copy_(attention.k_norm.weight)
            mine.before.copy_(layer.input_layernorm.weight)
            mine.after.copy_(layer.post_attention_layernorm.weight)
            mine.mix.copy_(attention.o_proj.weight)
            torch.cat([mlp.gate_proj.weight.to(self.dtype), mlp.up_proj.weight.to(self.dtype)], out=mine.gate_up)
            mine.down.copy_(mlp.down_proj.weight)
        self.embedding.copy_(model.model.embed_tokens.weight)
        if self.head is not self.embedding:
            self.head.copy_(model.lm_head.weight)
        self.last.copy_(model.model.norm.weight)


@dataclass(frozen=True)
class Caches:
    """Keys and values: of prompts, once each, and of what rows have written. A list entry a layer."""

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


def workspace(layers: PlainLayers, rows: int) -> Workspace:
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
    layers: PlainLayers, caches: Caches, work: Workspace, token: Tensor, position: Tensor, written: Tensor
) -> Tensor:
    """Logits [B, V] behind `token` [B]; its keys and values go to slot `written` [B] of each row's own cache."""
    from whet.model import kernels

    shape, rows = layers.shape, (position, written)
    scratch = (work.top, work.total, work.partial, work.mixed.view(-1, shape.heads, shape.size))
    work.residual.copy_(layers.embedding[token])
    added: Tensor | None = None
    for number, layer in enumerate(layers.layers):
        own = (caches.own_k[number], caches.own_v[number])
        prompts = (caches.prompt_k[number], caches.prompt_v[number], caches.lengths, caches.members)
        kernels.add_norm(work.residual, added, layer.before, shape.epsilon, work.normed)
        if layer.qkv_bias is None:
            torch.mm(work.normed, layer.qkv.t(), out=work.qkv)
        else:
            torch.addmm(layer.qkv_bias, work.normed, layer.qkv.t(), out=work.qkv)
        kernels.rotate(work.qkv, layers, layer.norms, rows, work.query, own)
        kernels.attention(work.query, prompts, own, written, scratch, shape.scale)
        torch.mm(work.mixed, layer.mix.t(), out=work.added)
        kernels.add_norm(work.residual, work.added, layer.after, shape.epsilon, work.normed)
        torch.mm(work.normed, layer.gate_up.t(), out=work.gate_up)
        kernels.gated(work.gate_up, work.opened)
        torch.mm(work.opened, layer.down.t(), out=work.added)
        added = work.added
    kernels.add_norm(work.residual, added, layers.last, shape.epsilon, work.normed)
    torch.mm(work.normed, layers.head.t(), out=work.logits)
    return work.logits


def is_plain(split: SplitModel) -> bool:
    """Does the model look like a plain decoder? Its logits still have to agree."""
    model: Any = split.model
    config = model.config
    layers = getattr(getattr(model, "model", None), "layers", None)
    if split.whole or layers is None or not hasattr(model.model, "rotary_emb") or not hasattr(model, "lm_head"):
        return False
    windowed = getattr(config, "use_sliding_window", None)
    if getattr(config, "sliding_window", None) and (windowed or config.model_type == "mistral"):
        return False
    size = getattr(layers[0].self_attn, "head_dim", 0)
    return all(_is_plain_layer(layer) for layer in layers) and config.hidden_act == "silu" and size in (32, 64, 128)


def _is_plain_layer(layer: Any) -> bool:
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    parts = {name for name, _ in layer.named_children()}
    if parts != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    inside = {name for name, _ in attention.named_children()} - {"q_norm", "k_norm"}
    if inside != {"q_proj", "k_proj", "v_proj", "o_proj"}:
        return False
    if {name for name, _ in mlp.named_children()} - {"act_fn"} != {"gate_proj", "up_proj", "down_proj"}:
        return False
    quiet = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return (
        all(each.bias is None for each in quiet) and attention.q_proj.weight.shape[1] == mlp.down_proj.weight.shape[0]
    )
