"""The trunk of a described model on a shared-prefix batch, forward and backward written out.

A framework's graph of such a layer has some fifty small operations and keeps most of their results. Here a layer is six
products, an attention and five small operations (`layer_ops`, `norms`) each way. Kept for the backward pass are the
residual stream, queries, keys, values and the output of attention; norms are computed again, since they cost a read.

`lm.recompute` says what else is computed again: nothing, the wide rows of the MLP ("wide": half the memory for one
product in six), or whole layers ("layers": only the residual stream is kept).

Of a layer with an adapter only the factors get a gradient, from thin products; its weight carries the adapter already,
or the adapter continues it (`whet.model.fused_weights`).

Where products run below float32, the weights that the sampler uses are used here too, and the gradients of the weights
are summed in float32.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.model.block import (
    Block,
    BlockSizes,
    BlockStack,
    NotDescribed,
    blocks_of,
    describe_blocks,
    far_position,
    norm_weight,
    short_windows,
)
from whet.model.causal_lm import CausalLM, Gathering
from whet.model.fused_weights import (
    NO_FACTORS,
    BlockFactors,
    FusedBlock,
    GroupFactors,
    block_factors,
    continued,
    layer_weights,
)
from whet.model.layer_ops import Tables, gated, gated_grad, rotated, rotated_back
from whet.model.lora import UnmergedLinear, adapted_layers, layer_factors
from whet.model.norms import entered, entered_grad, heads_normed, heads_normed_grad, left, left_grad, norm_grad
from whet.model.ragged_attention import ragged_backward, ragged_forward, ragged_works
from whet.model.shared_prefix import SharedPrefixBatch, shared_prefix_batch
from whet.model.shared_prefix_attention import (
    HALF_TOLERANCE,
    STATES_TOLERANCE,
    AttentionOptions,
    LayerValues,
    attended,
    layer_agrees,
    trial_rows,
)
from whet.model.trials import verdict

TWIN_TOKENS, TWIN_LAYERS = 512, 2  # of the float32 copy that a trial of weights of 16 bits makes
Keep = Callable[[int, Tensor, Tensor], None]  # number of a layer, its keys and values [S, K, D]

_REFUSALS: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, str]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _LayerPlan:
    """What a layer needs besides its inputs and parameters."""

    sizes: BlockSizes
    dtype: torch.dtype  # of the products
    tables: Tables
    batch: SharedPrefixBatch
    window: int | None
    keep_wide: bool
    enter: tuple[Tensor, ...]  # weights as the products take them: side by side in one tensor, or several
    leave: Tensor
    widen: tuple[Tensor, ...]
    narrow: Tensor
    factors: BlockFactors
    keep: Callable[[Tensor, Tensor], None] | None = None  # is given keys and values

    @property
    def head_counts(self) -> list[int]:
        """Heads of queries, keys and values."""
        return [self.sizes.num_heads, self.sizes.num_key_heads, self.sizes.num_key_heads]


def fused_states(lm: CausalLM, batch: SharedPrefixBatch, keep: Keep | None = None) -> Tensor:
    """The hidden state before each action, in row order: [A, W].

    `keep` is a sampler's: its prompts are read with the weights that it writes with, as it has them.
    """
    stack = blocks_of(lm)
    x = F.embedding(batch.tokens[0], stack.embedding.weight)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    residual: tuple[Tensor, Tensor | None] = (x, None)
    again = lm.recompute == "layers" and torch.is_grad_enabled()
    if lm.gathering is not None:
        residual = _gathered_states(lm, lm.gathering, stack, batch, x)
    else:
        plans = _plans(lm, stack, batch, x.dtype, refresh=keep is None)
        for number, (block, plan) in enumerate(zip(stack.blocks, plans, strict=True)):
            if keep is not None:
                plan = replace(plan, keep=partial(keep, number))
            residual = _run_layer(residual, block, plan, again)
    x = residual[0] if residual[1] is None else residual[0] + residual[1]
    # several completions read the last state of their prompt: a lookup, whose backward pass sums in a fixed order
    states: Tensor = _Norm.apply(F.embedding(batch.states, x), stack.last_norm.weight, stack.sizes.epsilon)
    return states


def _gathered_layer(
    lm: CausalLM, block: Block, plan: Callable[..., _LayerPlan], x: Tensor, y: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A layer whose weights were just gathered, in the precision of the products: they are used as they lie."""
    again = lm.recompute == "layers" and torch.is_grad_enabled()
    return _run_layer((x, y), block, plan(window=block.window, **_own_weights(block)), again)


def _own_weights(block: Block) -> dict[str, Any]:
    """The block's weights as they lie, under the names of a plan."""
    query, key, value, output, gate, up, down = (layer.weight.detach() for layer in block.products)
    return {"enter": (query, key, value), "leave": output, "widen": (gate, up), "narrow": down}


def _gathered_states(lm: CausalLM, gathering: Gathering, stack: BlockStack, batch: SharedPrefixBatch, x: Tensor) -> Any:
    """The residual stream behind the last layer, in two parts."""
    dtype = min(gathering.dtype, x.dtype, key=lambda dtype: dtype.itemsize)
    tables, keep_wide = stack.rotation(batch.position_ids[0]), lm.recompute == "none"
    plan = partial(_LayerPlan, stack.sizes, dtype, tables, batch, keep_wide=keep_wide, factors=NO_FACTORS)
    residual: tuple[Tensor, Tensor | None] = (x, None)
    for block in stack.blocks:
        residual = gathering.one_layer(block.module, partial(_gathered_layer, lm, block, plan), *residual)
    return residual


def _plans(
    lm: CausalLM, stack: BlockStack, batch: SharedPrefixBatch, dtype: torch.dtype, refresh: bool = True
) -> Iterator[_LayerPlan]:
    """Yield the plan of each layer in turn; `dtype` is that of the residual stream."""
    tables, keep_wide = stack.rotation(batch.position_ids[0]), lm.recompute == "none"
    copies: Sequence[FusedBlock | None] = [None] * len(stack.blocks)
    apart = any(isinstance(layer, UnmergedLinear) for block in stack.blocks for layer in block.products)
    every_factor: Sequence[BlockFactors] = [NO_FACTORS] * len(stack.blocks)
    if lm.dtype.itemsize < dtype.itemsize or apart:
        of_sampler = lm.follows_sampler or not refresh
        (copies, every_factor), dtype = layer_weights(stack, lm.dtype, of_sampler, refresh), lm.dtype
    if not apart and torch.is_grad_enabled():
        every_factor = block_factors(stack, dtype)
    for block, copy, factors in zip(stack.blocks, copies, every_factor, strict=True):
        if copy is None:
            weights = _own_weights(block)
        else:
            weights = {"enter": (copy.qkv,), "leave": copy.output, "widen": (copy.gate_up,), "narrow": copy.down}
        yield _LayerPlan(stack.sizes, dtype, tables, batch, block.window, keep_wide, **weights, factors=factors)


def _run_layer(
    residual: tuple[Tensor, Tensor | None], block: Block, plan: _LayerPlan, again: bool
) -> tuple[Tensor, Tensor | None]:
    entering = (block.query, block.key, block.value)
    norms = (
        block.before_attention, block.query_norm, block.key_norm, block.after_attention, block.before_mlp,
        block.after_mlp,
    )  # fmt: skip
    inputs = (
        *residual, *(norm_weight(norm) for norm in norms), *(layer.weight for layer in block.products),
        *(layer.bias for layer in entering), *layer_factors(*block.products), plan,
    )  # fmt: skip
    after: tuple[Tensor, Tensor | None]
    if again:
        from torch.utils.checkpoint import checkpoint

        after = checkpoint(_FusedLayer.apply, *inputs, use_reentrant=False, preserve_rng_state=False)
    else:
        after = _FusedLayer.apply(*inputs)
    return after


def fused_refusal(lm: CausalLM) -> str:
    """Why the trunk is not computed by the written-out layers; empty where it is. Tried once per model and precision.

    A description is only a claim: each layer alone, and the whole trunk, must give what the model's own modules give.
    """
    known = _REFUSALS.setdefault(lm.trunk, {})
    if lm.dtype not in known:
        known[lm.dtype] = verdict("fused trunk", lm, lambda: _refusal(lm))
    if lm.gathering is not None and not known[lm.dtype] and adapted_layers(lm.trunk):
        return "adapters in shards are computed by the model's own layers"
    return known[lm.dtype]


def fused_works(lm: CausalLM) -> bool:
    """Whether training takes the written-out layers."""
    return not fused_refusal(lm)


@torch.no_grad()
def _refusal(lm: CausalLM) -> str:
    stack = describe_blocks(lm)
    if isinstance(stack, NotDescribed):
        return stack.reason
    weights = stack.blocks[0].query.weight.dtype  # an embedding may be kept in another one
    if stack.bias_refusal:
        return stack.bias_refusal
    if weights == torch.float64:
        return "the weights are float64, and models compute their norms in float32"
    try:
        if weights == torch.float32:  # half precision is too coarse to show a small mistake
            single = replace(lm, dtype=torch.float32)
            if refusal := _layers_refusal(single) or _states_refusal(single, STATES_TOLERANCE):
                return refusal
        elif refusal := _layers_refusal(_wide_twin(lm)):
            return refusal
        exact = weights == torch.float32 and lm.dtype.itemsize >= 4
        return "" if exact else _states_refusal(lm, HALF_TOLERANCE)
    except Exception as error:  # whatever stumbles here, the model's own trunk is still right
        return f"the written-out layers failed on this model: {type(error).__name__}: {error}"


def _wide_twin(lm: CausalLM) -> CausalLM:
    """The first layers of a model of 16 bits once more in float32, behind a small embedding: enough for a trial."""
    trunk: Any = lm.trunk
    config = deepcopy(trunk.config)
    config.vocab_size, config.num_hidden_layers = (
        min(lm.vocabulary, TWIN_TOKENS),
        min(len(trunk.layers), TWIN_LAYERS),
    )
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, name, None)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    with torch.device(lm.device):
        twin: Any = type(trunk)(config).float().eval()
    for mine, theirs in zip(twin.layers, trunk.layers, strict=False):
        mine.load_state_dict(theirs.state_dict())
    return CausalLM(twin, twin, nn.Identity(), False, lm.takes_positions)


def _trial(lm: CausalLM) -> tuple[Tensor, Tensor, SharedPrefixBatch]:
    tokens, action = trial_rows(lm.vocabulary, lm.device)
    batch = shared_prefix_batch(tokens, action)
    assert batch is not None
    return tokens, action, batch


def _states_refusal(lm: CausalLM, tolerance: float) -> str:
    tokens, action, batch = _trial(lm)
    ours, theirs = fused_states(lm, batch), lm.hidden(tokens)[:, :-1][action[:, 1:]]
    error, size = (ours - theirs).float(), theirs.float()
    # half precision: over all states, since the largest error of millions grows with their number; layers were exact
    gap = float(error.abs().max() / size.abs().max() if lm.dtype.itemsize >= 4 else error.norm() / size.norm())
    return "" if gap <= tolerance else f"the written-out states differ from the model's own by {gap:.1e} in {lm.dtype}"


def _layers_refusal(lm: CausalLM) -> str:
    """Each layer on the input that the model gives it: a mistake shows in full, rounding has no depth to grow in.

    The rows end with the last position of the context, and windows are shorter than they are.
    """
    tokens, _, batch = _trial(lm)
    source = batch.sources(tokens.shape[1])
    start = far_position(lm, tokens.shape[1])
    batch = replace(batch, position_ids=batch.position_ids + start)
    positions = torch.arange(start, start + tokens.shape[1], device=tokens.device).expand(tokens.shape)
    with short_windows(lm):
        return _layers_gap(lm, blocks_of(lm), (tokens, positions), batch, source)


def _layers_gap(
    lm: CausalLM, stack: BlockStack, rows: tuple[Tensor, Tensor], batch: SharedPrefixBatch, source: Tensor
) -> str:
    values = LayerValues()
    with values.noted([block.module for block in stack.blocks]):
        lm.hidden(rows[0], position_ids=rows[1])
    for number, (block, plan) in enumerate(zip(stack.blocks, _plans(lm, stack, batch, torch.float32), strict=True)):
        before, after = (states[number].flatten(0, 1)[source] for states in (values.entered, values.left))
        x, y = _run_layer((before, None), block, plan, False)
        states = x if y is None else x + y
        if not layer_agrees(before, states, after):
            worst = float((states - after).abs().max() / (after - before).abs().amax(-1).median())
            return f"the written-out layer {number} differs from the model's own by {worst:.1e}"
    return ""


def _product(x: Tensor, weights: Sequence[Tensor], bias: Sequence[Tensor | None] = (None,)) -> Tensor:
    """x times each weight, side by side."""
    if len(weights) == 1:
        first = bias[0]
        return torch.mm(x, weights[0].t()) if first is None else torch.addmm(first, x, weights[0].t())
    out = x.new_empty(len(x), sum(len(weight) for weight in weights))
    parts = out.split([len(weight) for weight in weights], 1)
    for part, weight in zip(parts, weights, strict=True):
        torch.mm(x, weight.t(), out=part)
    if bias[0] is not None:
        for part, part_bias in zip(parts, bias, strict=True):
            part.add_(part_bias)
    return out


def _input_grad(
    grad: Tensor, weights: Sequence[Tensor], factors: GroupFactors | None = None
) -> tuple[Tensor, Tensor | None]:
    """The gradient of the input to `_product`; also grad times `up`, or None where that is not a by-product."""
    parts = grad.split([len(weight) for weight in weights], 1)
    product = torch.mm(parts[0], weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        product.addmm_(part, weight)
    if factors is None or not factors.apart:
        return product, None
    inputs = factors.down.shape[1]
    lowered = product[:, inputs:].contiguous()  # a view would keep the rest alive
    return torch.addmm(product[:, :inputs], lowered, factors.down), lowered


def _weight_grads(grad: Tensor, x: Tensor, parameters: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of the parameters whose products lie side by side in `grad`, each in its own precision."""
    if not any(needed):
        return [None] * len(parameters)
    sizes = [len(parameter) for parameter in parameters]
    kind = parameters[0].dtype
    if grad.dtype == kind and len(sizes) > 1:
        pieces = grad.split(sizes, 1)
        return [torch.mm(piece.t(), x) if need else None for piece, need in zip(pieces, needed, strict=True)]
    whole = _summed(grad, x, kind)
    return [piece if need else None for piece, need in zip(whole.split(sizes), needed, strict=True)]


def _summed(grad: Tensor, x: Tensor, kind: torch.dtype) -> Tensor:
    """grad' x, its sums in the given precision where the device can."""
    if grad.is_cuda and kind == torch.float32 and grad.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(grad.t(), x, out_dtype=kind)
    return torch.mm(grad.t(), x).to(kind)


def _factor_grads(
    grad: Tensor, x: Tensor, factors: GroupFactors | None, lowered: Tensor | None, kind: torch.dtype
) -> list[Tensor | None]:
    """Gradients of `down` and `up` for each product that lies side by side in `grad`; `lowered` is grad times `up`."""
    if factors is None:
        return []
    lowered = torch.mm(grad, factors.up) if lowered is None else lowered
    down, up = _summed(lowered, x, kind), _summed(grad, torch.mm(x, factors.down.t()), kind)
    if factors.up_scale != 1.0:
        up = up.mul_(factors.up_scale)
    grads: list[Tensor | None] = []
    for span in factors.spans:
        grads += [None, None] if span is None else [down[span[1]], up[span]]
    return grads


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return entered(x, None, weight, epsilon, x.dtype)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grads = norm_grad(x, weight, ctx.epsilon, grad.contiguous(), None, ctx.needs_input_grad[1])
        return grads.x, grads.weight, None


class _FusedLayer(torch.autograd.Function):
    """(x, y) -> (x', y'): the residual stream is their sum, added where it is read next.

    Parameters: the six norms (before attention, of queries, of keys, after attention, before the MLP, after the MLP),
    the seven products (q, k, v, o, gate, up, down), the biases of q, k, v, then the factors of the products' adapters.
    """

    NORMS, PRODUCTS = slice(0, 6), slice(6, 13)
    PARAMETERS = 16

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
        *inputs, plan = rest
        how = (plan.sizes.epsilon, plan.dtype)
        before, query_norm, key_norm, after, before_mlp, after_mlp = inputs[_FusedLayer.NORMS]
        biases = inputs[13 : _FusedLayer.PARAMETERS]
        total, normed = entered(x, y, before, *how)
        bias = biases if len(plan.enter) > 1 or biases[0] is None else [torch.cat(biases).to(plan.dtype)]
        entering, leaving, widening, narrowing = plan.factors
        heads = _product(continued(normed, entering), plan.enter, bias).view(len(x), -1, plan.sizes.head_size)
        unnormed = None
        if query_norm is not None:
            unnormed, heads = heads, heads_normed(heads, (query_norm, key_norm), plan.head_counts, *how)
        query, key, value = rotated(heads, sum(plan.head_counts[:2]), plan.tables).split(plan.head_counts, 1)
        if plan.keep is not None:
            plan.keep(key, value)
        mixed, attention_state, attention = _attended(query, key, value, plan, any(ctx.needs_input_grad))
        attention_output = torch.mm(continued(mixed.flatten(1), leaving), plan.leave.t())
        between, normed = entered(total, left(attention_output, after, *how), before_mlp, *how)
        gate_up = _product(continued(normed, widening), plan.widen)
        mlp_output = torch.mm(continued(gated(gate_up), narrowing), plan.narrow.t())
        ctx.plan, ctx.attention, ctx.num_kept = plan, attention, len(attention_state)
        wide = gate_up if plan.keep_wide else None
        outputs = (attention_output if after is not None else None, mlp_output if after_mlp is not None else None)
        ctx.save_for_backward(
            total, unnormed, mixed, between, wide, *outputs, *attention_state, *inputs[: _FusedLayer.PARAMETERS]
        )
        return between, left(mlp_output, after_mlp, *how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, narrow: Tensor) -> tuple[Tensor | None, ...]:
        total, unnormed, mixed, between, gate_up, attention_output, mlp_output, *saved = ctx.saved_tensors
        inputs = saved[ctx.num_kept :]
        before, query_norm, key_norm, after, before_mlp, after_mlp = inputs[_FusedLayer.NORMS]
        q, k, v, output, gate, up, down = inputs[_FusedLayer.PRODUCTS]
        biases = inputs[13:]
        plan = ctx.plan
        norms_learn = ctx.needs_input_grad[2:][_FusedLayer.NORMS]
        needed = ctx.needs_input_grad[2:][_FusedLayer.PRODUCTS]
        entering, leaving, widening, narrowing = plan.factors
        learned = torch.promote_types(down.dtype, torch.float32)  # as factors are kept
        if gate_up is None:
            gate_up = _product(
                continued(entered(between, None, before_mlp, plan.sizes.epsilon, plan.dtype)[1], widening), plan.widen
            )
        narrow, after_mlp_grad = left_grad(mlp_output, after_mlp, plan.sizes.epsilon, narrow.contiguous())
        opened_grad, lowered = _input_grad(narrow, [plan.narrow], narrowing)
        opened, gate_grad = gated_grad(gate_up, opened_grad)
        down_grad = _weight_grads(narrow, opened, [down], needed[6:])
        down_factors = _factor_grads(narrow, opened, narrowing, lowered, learned)
        pulled, lowered = _input_grad(gate_grad, plan.widen, widening)
        later = entered_grad(between, before_mlp, plan.sizes.epsilon, pulled, grad.contiguous(), norms_learn[4])
        wide_grads = _weight_grads(gate_grad, later.normed, [gate, up], needed[4:6])
        wide_factors = _factor_grads(gate_grad, later.normed, widening, lowered, learned)
        left_values, after_grad = left_grad(attention_output, after, plan.sizes.epsilon, later.narrow)
        mixed_grad, lowered = _input_grad(left_values, [plan.leave], leaving)
        output_grad = _weight_grads(left_values, mixed.flatten(1), [output], needed[3:4])
        output_factors = _factor_grads(left_values, mixed.flatten(1), leaving, lowered, learned)
        heads = ctx.attention(mixed_grad.view(mixed.shape), mixed, saved[: ctx.num_kept])
        heads = rotated_back(heads, sum(plan.head_counts[:2]), plan.tables)
        head_grads: tuple[Tensor | None, Tensor | None] = (None, None)
        if unnormed is not None:
            heads, head_grads = heads_normed_grad(
                unnormed, (query_norm, key_norm), plan.head_counts, plan.sizes.epsilon, heads
            )
        entered_heads = heads.flatten(1)
        pulled, lowered = _input_grad(entered_heads, plan.enter, entering)
        first = entered_grad(total, before, plan.sizes.epsilon, pulled, later.x, norms_learn[0])
        enter_grads = _weight_grads(entered_heads, first.normed, [q, k, v], needed[:3])
        enter_factors = _factor_grads(entered_heads, first.normed, entering, lowered, learned)
        bias_grads: Sequence[Tensor | None] = (None, None, None)
        if biases[0] is not None:
            bias_grads = entered_heads.sum(0, dtype=biases[0].dtype).split([len(bias) for bias in biases])
        return (
            first.x, first.narrow if ctx.needs_input_grad[1] else None,
            first.weight, *head_grads, after_grad, later.weight, after_mlp_grad,
            *enter_grads, *output_grad, *wide_grads, *down_grad, *bias_grads,
            *(enter_factors or [None] * 6), *(output_factors or [None] * 2), *(wide_factors or [None] * 4),
            *(down_factors or [None] * 2), None,
        )  # fmt: skip


Backward = Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor]
"""(grad of attention's output, the output, what was kept) -> grads of queries, keys and values side by side."""


def _attended(
    query: Tensor, key: Tensor, value: Tensor, plan: _LayerPlan, learns: bool
) -> tuple[Tensor, tuple[Tensor, ...], Backward]:
    """Attention's output, what to keep for its gradient, and how to find that."""
    batch, scale = plan.batch, plan.sizes.scale
    sees_all = plan.window is None or plan.window >= batch.longest_row
    if sees_all and ragged_works(query, key, value):
        output, norm, noise = ragged_forward(query, key, value, batch.segments, scale)

        def backward(grad: Tensor, output: Tensor, attention_state: Sequence[Tensor]) -> Tensor:
            query, key, value, norm = attention_state
            return ragged_backward(grad, (query, key, value, output, norm), batch.segments, noise, scale)

        return output, (query, key, value, norm), backward
    query, key, value = (heads.detach().requires_grad_(learns) for heads in (query, key, value))
    with torch.set_grad_enabled(learns):
        output = attended(batch, query, key, value, scale, AttentionOptions(plan.window, masks=batch.masks))

    def through_graph(grad: Tensor, _: Tensor, __: Sequence[Tensor]) -> Tensor:
        return torch.cat(torch.autograd.grad(output, (query, key, value), grad), 1)

    return output.detach(), (), through_graph
