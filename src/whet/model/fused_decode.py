"""The decode step of a described model, written out: a tenth of the Python, and fewer and larger products.

Weights that belong together are laid side by side once for each batch of completions: they change with every training
step. The logits are compared with the model's own before the first completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.model.block import (
    Block,
    BlockStack,
    NotDescribed,
    blocks_of,
    describe_blocks,
    has_bias,
    norm_weight,
    short_windows,
)
from whet.model.causal_lm import CausalLM
from whet.model.decode_state import BatchShape, DecodeState, StepHead
from whet.model.hooked_decode import HookedDecoder, attention_shape, disagreement
from whet.model.lora import UnmergedLinear
from whet.model.norms import unweighted_norm
from whet.model.ring_decode import RingDecoder, head_norms
from whet.model.trials import verdict

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class _StepWeights:
    """One layer's weights, ready for steps; those of the norms in front, and the scores' scale, are inside."""

    enter: Product  # queries, keys and values at once
    leave: Product
    widen: Product  # gate and up at once
    narrow: Product
    norm_before: tuple[bool, bool]  # whether a norm stands in front of attention and of the MLP
    norm_after: tuple[Tensor | None, Tensor | None]  # weights of those behind them, [width]
    head_norm: Tensor | None  # [heads of queries and keys, size]
    whole_heads: bool  # the norms of queries and keys act on all heads at once


_FusedWeights = tuple[list[_StepWeights], Product]  # of the layers, and of the last norm and the head


class FusedDecoder(HookedDecoder):
    """A `HookedDecoder` with a step of its own; prompts still go through the model's modules."""

    inference = True
    steps_in_modules = False

    def __init__(self, base: HookedDecoder, stack: BlockStack) -> None:
        super().__init__(base.lm, base.attended)
        self._stack = stack
        self._num_queries = stack.sizes.num_heads
        self._eps = torch.full((1,), stack.sizes.epsilon, device=base.lm.device)
        self._by_row: RingDecoder | None = None

    def use(self, by_row: RingDecoder) -> None:
        """Hand batches that suit it to another decoder of the same model."""
        self._by_row = by_row

    def suited(self, shape: BatchShape) -> HookedDecoder:
        return self._by_row if self._by_row is not None and self._by_row.suits(shape) else self

    def gathered(self, num_steps: int = 0) -> _FusedWeights:
        dtype, stack = self.attended.dtype, self._stack
        assert stack.head is not None
        layers = [self._gathered(block) for block in stack.blocks]
        # as it is: a copy of the largest matrix takes longer than it saves
        weight: Tensor = stack.head.weight.detach().to(dtype)
        bias = stack.head.bias.detach().to(dtype) if has_bias(stack.head) else None
        last_norm: Tensor = stack.last_norm.weight.detach()  # type: ignore[operator, assignment]
        if bias is None:
            head = StepHead(weight)
            return layers, lambda x: head((x * last_norm).to(dtype))
        return layers, lambda x: F.linear((x * last_norm).to(dtype), weight, bias)

    def _gathered(self, block: Block) -> _StepWeights:
        dtype, scale = self.attended.dtype, self._stack.sizes.scale
        head_norm, scales, whole = None, (scale, 1.0, 1.0), False
        if (norms := head_norms(block, self._stack.sizes)) is not None:
            queries, keys, whole = norms
            head_norm, scales = torch.cat([queries, keys]).detach(), (1.0, 1.0, 1.0)
        before, before_mlp = norm_weight(block.before_attention), norm_weight(block.before_mlp)
        after, after_mlp = norm_weight(block.after_attention), norm_weight(block.after_mlp)
        return _StepWeights(
            enter=_product([block.query, block.key, block.value], dtype, before, scales),
            leave=_product([block.output], dtype),
            widen=_product([block.gate, block.up], dtype, before_mlp),
            narrow=_product([block.down], dtype),
            norm_before=(before is not None, before_mlp is not None),
            norm_after=(None if after is None else after.detach(), None if after_mlp is None else after_mlp.detach()),
            head_norm=head_norm,
            whole_heads=whole,
        )

    def state(self, shape: BatchShape) -> DecodeState:
        positions = torch.arange(shape.prompt_width + shape.completion_width, device=self.lm.device)
        positions += self.first_position
        cosine, sine = self._stack.rotation(positions)
        # the half that a rotation subtracts carries its sign here; [positions, 2, 1, 2 halves, half a head]
        halves = torch.stack([cosine, sine], 1).unflatten(-1, (1, 2, -1))
        halves[:, 1, :, 0] *= -1
        state = super().state(shape)
        state.rotation = halves
        return state

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        state.begin_step()
        rows, size, queries = state.rows, self.attended.head_size, self._num_queries
        turned = queries + self.attended.num_heads
        cosine, sine = state.rotation.index_select(0, state.positions).unbind(1)
        hidden = F.embedding(tokens, self._stack.embedding.weight)
        weights: _FusedWeights = self._weights
        layers, head = weights
        for number, layer in enumerate(layers):
            (before, before_mlp), (after, after_mlp) = layer.norm_before, layer.norm_after
            mixed = layer.enter(self._normed(hidden) if before else hidden).view(rows, -1, size)
            heads, values = mixed.split([turned, mixed.shape[1] - turned], 1)
            if layer.head_norm is not None:
                if layer.whole_heads:
                    parts = heads.split([queries, turned - queries], 1)
                    heads = torch.cat([self._normed(part.flatten(1)).view_as(part) for part in parts], 1)
                else:
                    heads = self._normed(heads)
                heads = heads * layer.head_norm
            halves = heads.unflatten(2, (2, -1))
            heads = torch.addcmul(halves * cosine, halves.flip(2), sine).view(rows, turned, size)
            query, key = heads.split([queries, turned - queries], 1)
            mixture = state.attention(number, query, torch.cat([key, values.to(key.dtype)], 1), 1.0)
            hidden = hidden + self._left(layer.leave(mixture), after)
            gate, up = layer.widen(self._normed(hidden) if before_mlp else hidden).chunk(2, -1)
            hidden = hidden + self._left(layer.narrow(F.silu(gate) * up), after_mlp)
        return head(self._normed(hidden)).float()

    def _left(self, values: Tensor, weight: Tensor | None) -> Tensor:
        """What a sublayer adds: normed where it has a norm behind it."""
        return values if weight is None else (self._normed(values) * weight).to(values.dtype)

    def _normed(self, values: Tensor) -> Tensor:
        return unweighted_norm(values, self._eps)


@torch.no_grad()
def fused_decoder(base: HookedDecoder) -> FusedDecoder | NotDescribed:
    """The written-out decoder for a model that has a description and gives the same logits, or why there is none."""
    if base.attended.dtype == torch.float64:
        return NotDescribed("the weights are float64, and models compute their norms in float32")
    stack = describe_blocks(base.lm)
    if isinstance(stack, NotDescribed):
        return stack
    if stack.head is None:
        return NotDescribed("the model has no vocabulary head")
    if stack.embedding.weight.dtype.itemsize < 4 or any(
        isinstance(layer, UnmergedLinear) for block in stack.blocks for layer in block.products
    ):
        return NotDescribed("the written-out step would need a second copy of weights that are kept once")
    if gap := verdict("fused decoder", base.lm, lambda: _step_gap(base.lm)):
        return NotDescribed(f"the written-out step: {gap}")
    decoder = FusedDecoder(base, stack)
    if not RingDecoder.refusal(base, stack):
        by_row = RingDecoder(base, stack)
        if not verdict("row decoder", base.lm, lambda: _rows_gap(by_row)):
            decoder.use(by_row)
    return decoder


def _step_gap(lm: CausalLM) -> str:
    with short_windows(lm):
        return disagreement(FusedDecoder(HookedDecoder(lm, attention_shape(lm)), blocks_of(lm)))


def _rows_gap(by_row: RingDecoder) -> str:
    return next(filter(None, (disagreement(by_row, reads_on) for reads_on in (False, True))), "")


def _product(
    layers: Sequence[nn.Linear],
    dtype: torch.dtype,
    before: Tensor | None = None,
    scales: Sequence[float] = (1.0, 1.0, 1.0),
) -> Product:
    """x -> the outputs of several linear layers side by side, of x times `before`, each times its scale."""
    weight = torch.cat([layer.weight.detach() * scale for layer, scale in zip(layers, scales, strict=False)])
    weight = (weight if before is None else weight.mul_(before.detach())).to(dtype)
    bias = None
    if any(map(has_bias, layers)):
        biases = [
            layer.bias.detach() if has_bias(layer) else layer.weight.new_zeros(len(layer.weight)) for layer in layers
        ]
        bias = torch.cat([values * scale for values, scale in zip(biases, scales, strict=False)]).to(dtype)
    across = weight.t().contiguous() if weight.device.type == "cpu" else weight.t()
    if bias is None:
        return lambda x: torch.mm(x.to(dtype), across)
    return lambda x: torch.addmm(bias, x.to(dtype), across)
