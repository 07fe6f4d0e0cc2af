"""What a plain decoder is, and its weights laid out for few, large products.

Plain means: RMS norms before attention and MLP, rotary positions, grouped queries, a gated SiLU MLP, nothing else
(Llama, Mistral without a window, Qwen2, Qwen3 and their like). `is_plain` finds that structure by name and shape;
whoever relies on it compares its results with the model's own first.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM
from whet.model.lora import is_linear

LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
FEEDFORWARD = {"gate_proj", "up_proj", "down_proj"}


@dataclass(frozen=True)
class Shape:
    heads: int
    key_heads: int
    size: int  # of a head
    width: int
    inner: int  # of the MLP
    vocabulary: int
    epsilon: float
    scale: float  # of the scores


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


def plain_shape(split: CausalLM) -> Shape:
    model: Any = split.model
    config, attention = model.config, model.model.layers[0].self_attn
    return Shape(
        config.num_attention_heads, config.num_key_value_heads, attention.head_dim, config.hidden_size,
        config.intermediate_size, split.vocabulary, config.rms_norm_eps, attention.scaling,
    )  # fmt: skip


def is_plain(split: CausalLM) -> bool:
    """Does the model look like a plain decoder? Its results still have to agree."""
    model: Any = split.model
    config = model.config
    layers = getattr(getattr(model, "model", None), "layers", None)
    if split.whole or layers is None or not hasattr(model.model, "rotary_emb") or not hasattr(model, "lm_head"):
        return False
    windowed = getattr(config, "use_sliding_window", None)
    if getattr(config, "sliding_window", None) and (windowed or config.model_type == "mistral"):
        return False
    if getattr(config, "attention_dropout", 0.0) or getattr(config, "hidden_act", None) != "silu":
        return False
    if any(module._forward_hooks or module._forward_pre_hooks for module in split.trunk.modules()):
        return False
    return all(_is_plain_layer(layer) for layer in layers)


def _is_plain_layer(layer: Any) -> bool:
    def parts(module: nn.Module) -> set[str]:
        return {name for name, _ in module.named_children()}

    if parts(layer) != LAYER or parts(layer.self_attn) - {"q_norm", "k_norm"} != ATTENTION:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if parts(mlp) - {"act_fn"} != FEEDFORWARD or hasattr(attention, "q_norm") != hasattr(attention, "k_norm"):
        return False
    products = [getattr(attention, name) for name in ATTENTION] + [getattr(mlp, name) for name in FEEDFORWARD]
    if not all(is_linear(each) for each in products):
        return False
    biased = {each.bias is not None for each in (attention.q_proj, attention.k_proj, attention.v_proj)}
    quiet = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    return len(biased) == 1 and all(each.bias is None for each in quiet)


def rotation_tables(split: CausalLM, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine at int64 [S] positions, float32 [S, D] each, as the model makes them."""
    model: Any = split.model
    probe = torch.zeros(1, 1, dtype=torch.promote_types(split.dtype, torch.float32), device=positions.device)
    with torch.no_grad():
        cosine, sine = model.model.rotary_emb(probe, positions[None])
    return cosine[0].to(probe.dtype).contiguous(), sine[0].to(probe.dtype).contiguous()


class FusedWeights:
    """A copy of the model's weights, products fused, in the dtype its products run in."""

    def __init__(self, split: CausalLM, dtype: torch.dtype) -> None:
        model: Any = split.model
        self.dtype = dtype
        self.shape = plain_shape(split)
        self.layers = [self._empty(layer) for layer in model.model.layers]
        self.embedding = torch.empty_like(model.model.embed_tokens.weight, dtype=dtype)
        tied = model.lm_head.weight is model.model.embed_tokens.weight
        self.head = self.embedding if tied else torch.empty_like(model.lm_head.weight, dtype=dtype)
        self.last = torch.empty_like(model.model.norm.weight, dtype=torch.float32)
        pairs = self._pairs(model)
        self._mine, self._theirs = [mine for mine, _ in pairs], [theirs for _, theirs in pairs]
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
        """Take over the policy's weights as they are now, in place.

        Always, since no cheap sign tells that they changed: a fused optimizer leaves their version counters alone.
        """
        torch._foreach_copy_(self._mine, self._theirs)

    def _pairs(self, model: Any) -> list[tuple[Tensor, Tensor]]:
        """(copy, parameter)."""
        pairs = [(self.embedding, model.model.embed_tokens.weight), (self.last, model.model.norm.weight)]
        if self.head is not self.embedding:
            pairs.append((self.head, model.lm_head.weight))
        for mine, layer in zip(self.layers, model.model.layers, strict=True):
            attention, mlp = layer.self_attn, layer.mlp
            entering = (attention.q_proj, attention.k_proj, attention.v_proj)
            pairs += _side_by_side(mine.qkv, *(each.weight for each in entering))
            if mine.qkv_bias is not None:
                pairs += _side_by_side(mine.qkv_bias, *(each.bias for each in entering))
            if mine.norms is not None:
                pairs += [(mine.norms[0], attention.q_norm.weight), (mine.norms[1], attention.k_norm.weight)]
            pairs += [(mine.before, layer.input_layernorm.weight), (mine.after, layer.post_attention_layernorm.weight)]
            pairs += _side_by_side(mine.gate_up, mlp.gate_proj.weight, mlp.up_proj.weight)
            pairs += [(mine.mix, attention.o_proj.weight), (mine.down, mlp.down_proj.weight)]
        return pairs


def _side_by_side(target: Tensor, *parts: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(target.split([len(part) for part in parts]), parts, strict=True))


_COPIES: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, FusedWeights]] = weakref.WeakKeyDictionary()


def fused_weights(split: CausalLM, dtype: torch.dtype) -> FusedWeights:
    """The copy that everybody who works in this dtype shares, with the policy's weights as they are now."""
    copies = _COPIES.setdefault(split.model, {})
    if dtype in copies:
        copies[dtype].refresh()
    else:
        copies[dtype] = FusedWeights(split, dtype)
    return copies[dtype]
