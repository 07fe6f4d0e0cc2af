"""The decode step of Llama-type models, written out: a tenth of the Python, and fewer and larger products.

Only for models whose layers have exactly the parts named here, with no hooks and nothing wrapped around a product, and
only after their logits were compared with the model's own. Weights that belong together are laid side by side once
for each batch of completions (they change with every training step).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM
from whet.model.decode_state import BatchShape, DecodeState
from whet.model.hooked_decode import HookedDecoder, agrees
from whet.model.lora import is_linear
from whet.model.ring_decode import RingDecoder

FAMILIES = frozenset(("llama", "mistral", "qwen2", "qwen3"))
FIXED_ROTATIONS = frozenset(("default", "linear", "llama3", "yarn"))  # the others depend on the length of the text
LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
FEEDFORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _StepWeights:
    """One layer's weights, ready for steps; those of its norms, and the scores' scale, are inside the products."""

    enter: Product  # queries, keys and values at once
    leave: Product
    widen: Product  # gate and up at once
    narrow: Product
    head_norm: Tensor | None  # [heads of queries and keys, size]


class FusedDecoder(HookedDecoder):
    """`HookedDecoder` with a step of its own; prompts still go through the model's modules."""

    inference = True

    def __init__(self, base: HookedDecoder) -> None:
        super().__init__(base.split, base.attended)
        config: Any = base.split.model.config
        self._trunk: Any = base.split.trunk
        self._num_queries = int(config.num_attention_heads)
        self._layers: list[_StepWeights] = []
        self._head: Product = base.split.logits
        self._eps = torch.full((1,), float(config.rms_norm_eps), device=base.split.device)
        self._rotation = torch.empty(0)
        self._by_row: RingDecoder | None = None

    def use(self, by_row: RingDecoder) -> None:
        """Hand batches that suit it to another decoder of the same model."""
        self._by_row = by_row

    def suited(self, shape: BatchShape) -> HookedDecoder:
        return self._by_row if self._by_row is not None and self._by_row.suits(shape) else self

    @contextmanager
    def running(self, num_steps: int = 0) -> Iterator[None]:
        dtype = self.attended.dtype
        try:
            self._layers = [self._gathered(layer) for layer in self._trunk.layers]
            head: Any = self.split.model.get_output_embeddings()  # type: ignore[operator]
            # as it is: a copy of the largest matrix takes longer than it saves
            weight: Tensor = head.weight.detach().to(dtype)
            bias: Tensor | None = None if head.bias is None else head.bias.detach().to(dtype)
            last_norm = self._trunk.norm.weight.detach()
            self._head = lambda x: F.linear((x * last_norm).to(dtype), weight, bias)
            with super().running(num_steps):
                yield
        finally:
            self._layers, self._head = [], self.split.logits

    def _gathered(self, layer: Any) -> _StepWeights:
        attention, feedforward, dtype = layer.self_attn, layer.mlp, self.attended.dtype
        scale = float(attention.scaling)
        head_norm, scales = None, (scale, 1.0, 1.0)
        if hasattr(attention, "q_norm"):
            queries = (attention.q_norm.weight * scale).expand(self._num_queries, -1)
            keys = attention.k_norm.weight.expand(self.attended.num_heads, -1)
            head_norm, scales = torch.cat([queries, keys]).detach(), (1.0, 1.0, 1.0)
        entering = [attention.q_proj, attention.k_proj, attention.v_proj]
        return _StepWeights(
            _product(entering, dtype, layer.input_layernorm.weight, scales),
            _product([attention.o_proj], dtype),
            _product([feedforward.gate_proj, feedforward.up_proj], dtype, layer.post_attention_layernorm.weight),
            _product([feedforward.down_proj], dtype),
            head_norm,
        )

    def state(self, shape: BatchShape) -> DecodeState:
        positions = torch.arange(shape.prompt_width + shape.completion_width, device=self.split.device)
        cosine, sine = self._trunk.rotary_emb(self._trunk.embed_tokens.weight, positions[None])
        # the half that a rotation subtracts carries its sign here; [positions, 2, 1, 2 halves, half a head]
        halves = torch.stack([cosine[0], sine[0]], 1).unflatten(-1, (1, 2, -1))
        halves[:, 1, :, 0] *= -1
        self._rotation = halves
        return super().state(shape)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        state.begin_step()
        rows, size, queries = state.rows, self.attended.head_size, self._num_queries
        turned = queries + self.attended.num_heads
        cosine, sine = self._rotation.index_select(0, state.positions).unbind(1)
        hidden = F.embedding(tokens, self._trunk.embed_tokens.weight)
        for number, layer in enumerate(self._layers):
            mixed = layer.enter(self._normed(hidden)).view(rows, -1, size)
            heads, values = mixed.split([turned, mixed.shape[1] - turned], 1)
            if layer.head_norm is not None:
                heads = self._normed(heads) * layer.head_norm
            halves = heads.unflatten(2, (2, -1))
            heads = torch.addcmul(halves * cosine, halves.flip(2), sine).view(rows, turned, size)
            query, key = heads.split([queries, turned - queries], 1)
            found = state.attention(number, query, torch.cat([key, values.to(key.dtype)], 1), 1.0)
            hidden = hidden + layer.leave(found)
            gate, up = layer.widen(self._normed(hidden)).chunk(2, -1)
            hidden = hidden + layer.narrow(F.silu(gate) * up)
        return self._head(self._normed(hidden)).float()

    def _normed(self, values: Tensor) -> Tensor:
        """Divided by the root of the mean square, in float32 whatever comes in."""
        length = torch.linalg.vector_norm(values, dim=-1, keepdim=True, dtype=torch.float32)
        return values * torch.rsqrt(torch.addcmul(self._eps, length, length, value=1 / values.shape[-1]))


@torch.no_grad()
def fused_decoder(base: HookedDecoder) -> FusedDecoder | None:
    """The written-out decoder for a model that is built like a Llama and gives the same logits; None otherwise."""
    if base.split.whole or base.attended.dtype == torch.float64 or not _is_llama(base.split):
        return None
    decoder = FusedDecoder(base)
    if not agrees(decoder):
        return None
    if RingDecoder.serves(base) and agrees(by_row := RingDecoder(base)):
        decoder.use(by_row)
    return decoder


def _is_llama(split: CausalLM) -> bool:
    config: Any = split.model.config
    trunk: Any = split.trunk
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if config.model_type not in FAMILIES or config.hidden_act != "silu" or rotation not in FIXED_ROTATIONS:
        return False
    if any(module._forward_hooks or module._forward_pre_hooks for module in split.model.modules()):
        return False
    return all(_is_llama_layer(layer) for layer in trunk.layers)


def _is_llama_layer(layer: Any) -> bool:
    def parts(module: nn.Module) -> set[str]:
        return {name for name, _ in module.named_children()}

    if parts(layer) != LAYER or parts(layer.mlp) != FEEDFORWARD:
        return False
    if parts(layer.self_attn) not in (ATTENTION, ATTENTION | {"q_norm", "k_norm"}):
        return False
    products = [getattr(layer.self_attn, name) for name in ATTENTION]
    products += [getattr(layer.mlp, name) for name in FEEDFORWARD - {"act_fn"}]
    return all(is_linear(product) for product in products)


def _product(
    layers: Sequence[nn.Linear],
    dtype: torch.dtype,
    before: Tensor | None = None,
    scales: Sequence[float] = (1.0, 1.0, 1.0),
) -> Product:
    """x -> the outputs of several linear layers side by side, of x times `before`, each times its scale."""
    weight = torch.cat([layer.weight.detach() * scale for layer, scale in zip(layers, scales, strict=False)])
    weight = (weight if before is None else weight.mul_(before.detach())).to(dtype)
    biases = [layer.bias.detach() * scale for layer, scale in zip(layers, scales, strict=False) if _has_bias(layer)]
    bias = torch.cat(biases).to(dtype) if biases else None
    across = weight.t().contiguous() if weight.device.type == "cpu" else weight.t()
    if bias is None:
        return lambda x: torch.mm(x.to(dtype), across)
    return lambda x: torch.addmm(bias, x.to(dtype), across)


def _has_bias(layer: nn.Linear) -> bool:
    return layer.bias is not None
