"""The trunk of a plain decoder on a packed tree, forward and backward written out.

A framework's graph of such a layer has some fifty small operations and keeps most of their results. Here a layer is six
products, an attention and five small operations (`whet.model.layer_ops`) each way. Kept for the backward pass are the
residual stream, queries, keys, values and what attention found; norms are computed again, since they cost a read.

`split.recompute` says what else is computed again: nothing, the wide rows of the MLP ("wide": half the memory for one
product in six), or whole layers ("layers": only the residual stream is kept).

Of a layer with an adapter only the factors get a gradient, from thin products; its weight carries the adapter already.

Where products run below float32, the copy of the weights that the sampler uses is used here too, and the gradients of
the weights are summed in float32.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.model.causal_lm import CausalLM
from whet.model.fused_weights import fused_weights, is_plain, plain_shape, rotation_tables
from whet.model.layer_ops import Tables, added_and_normed, gated, gated_grad, norm_grad, rotated, turned_back
from whet.model.lora import adapter_scale, layer_factors
from whet.model.ragged_attention import ragged_backward, ragged_forward, ragged_works
from whet.model.shared_prefix import SharedPrefixBatch, shared_prefix_batch
from whet.model.shared_prefix_attention import attended, trial_rows

Keep = Callable[[int, Tensor, Tensor], None]  # number of a layer, its keys and values [S, K, D]

_CHECKED: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, bool]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _LayerPlan:
    """What a layer needs besides its inputs and parameters."""

    heads: int
    key_heads: int
    size: int
    epsilon: float
    dtype: torch.dtype  # of the products
    tables: Tables
    tree: SharedPrefixBatch
    scale: float  # of the scores
    keep_wide: bool
    enter: tuple[Tensor, ...]  # weights as the products take them: side by side in one tensor, or several
    leave: Tensor
    widen: tuple[Tensor, ...]
    narrow: Tensor
    adapter_scale: float = 0.0
    keep: Callable[[Tensor, Tensor], None] | None = None  # is given keys and values

    @property
    def split(self) -> list[int]:
        """Heads of queries, keys and values."""
        return [self.heads, self.key_heads, self.key_heads]


def fused_states(split: CausalLM, tree: SharedPrefixBatch, keep: Keep | None = None) -> Tensor:
    """The hidden state before each action, in row order: [A, W]."""
    model: Any = split.model
    trunk, shape = model.model, plain_shape(split)
    tables = rotation_tables(split, tree.position_ids[0])
    x = F.embedding(tree.tokens[0], trunk.embed_tokens.weight)
    copies = fused_weights(split, split.dtype).layers if split.dtype.itemsize < x.dtype.itemsize else None
    base = _LayerPlan(
        shape.heads, shape.key_heads, shape.size, shape.epsilon, split.dtype if copies else x.dtype, tables,
        tree, shape.scale, split.recompute == "none", (), x, (), x, adapter_scale(trunk),
    )  # fmt: skip
    residual: tuple[Tensor, Tensor | None] = (x, None)
    for number, layer in enumerate(trunk.layers):
        attention, mlp = layer.self_attn, layer.mlp
        if copies is None:
            plan = replace(
                base,
                enter=tuple(each.weight.detach() for each in (attention.q_proj, attention.k_proj, attention.v_proj)),
                leave=attention.o_proj.weight.detach(),
                widen=(mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()),
                narrow=mlp.down_proj.weight.detach(),
            )
        else:
            mine = copies[number]
            plan = replace(base, enter=(mine.qkv,), leave=mine.mix, widen=(mine.gate_up,), narrow=mine.down)
        if keep is not None:
            plan = replace(plan, keep=partial(keep, number))
        residual = _run_layer(residual, layer, plan, split.recompute == "layers" and torch.is_grad_enabled())
    x = residual[0] if residual[1] is None else residual[0] + residual[1]
    # several completions read the last state of their prompt: a lookup, whose backward pass sums in a fixed order
    found: Tensor = _Norm.apply(F.embedding(tree.states, x), trunk.norm.weight, shape.epsilon)
    return found


def _run_layer(
    residual: tuple[Tensor, Tensor | None], layer: Any, plan: _LayerPlan, again: bool
) -> tuple[Tensor, Tensor | None]:
    attention, mlp = layer.self_attn, layer.mlp
    entering = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else (None, None)
    inputs = (
        *residual, layer.input_layernorm.weight, *(each.weight for each in entering),
        *(each.bias for each in entering), *norms, attention.o_proj.weight, layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight,
        *layer_factors(*entering, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj), plan,
    )  # fmt: skip
    found: tuple[Tensor, Tensor | None]
    if again:
        from torch.utils.checkpoint import checkpoint

        found = checkpoint(_FusedLayer.apply, *inputs, use_reentrant=False, preserve_rng_state=False)
    else:
        found = _FusedLayer.apply(*inputs)
    return found


def fused_works(split: CausalLM) -> bool:
    """True where the written-out trunk gives the states of the model's own: tried out once a model and precision.

    In float64 it does not: models compute their norms in float32.
    """
    known = _CHECKED.setdefault(split.trunk, {})
    if split.dtype not in known:
        narrow = next(split.model.parameters()).dtype != torch.float64
        # half precision is too coarse to show a small mistake
        trials = [replace(split, dtype=each) for each in {torch.float32, split.dtype}]
        known[split.dtype] = narrow and is_plain(split) and all(_agrees(each) for each in trials)
    return known[split.dtype]


@torch.no_grad()
def _agrees(split: CausalLM) -> bool:
    tokens, action = trial_rows(split.vocabulary, split.device)
    tree = shared_prefix_batch(tokens, action)
    assert tree is not None
    try:
        ours = fused_states(split, tree)
        theirs = split.hidden(tokens)[:, :-1][action[:, 1:]]
    except Exception:  # whatever stumbles here, the model's own trunk is still right
        return False
    error, size = (ours - theirs).float().abs().amax(-1), theirs.float().abs().amax(-1)
    exact = split.dtype.itemsize >= 4 and torch.finfo(theirs.dtype).eps < 1e-6
    return bool((error <= (1e-5 if exact else 5e-2) * size.max()).all())


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
        for part, each in zip(parts, bias, strict=True):
            part.add_(each)
    return out


def _input_grad(grad: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Of what went into `_product`."""
    parts = grad.split([len(weight) for weight in weights], 1)
    found = torch.mm(parts[0], weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        found.addmm_(part, weight)
    return found


def _weight_grads(grad: Tensor, x: Tensor, parameters: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Of the parameters whose products lie side by side in `grad`, in their own precision."""
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
    grad: Tensor, x: Tensor, parameters: Sequence[Tensor], factors: Sequence[Tensor | None], scale: float
) -> list[Tensor | None]:
    """Of down and up of each of the parameters whose products lie side by side in `grad`."""
    if all(each is None for each in factors):
        return [None] * len(factors)
    found: list[Tensor | None] = []
    pieces = grad.split([len(parameter) for parameter in parameters], 1)
    for piece, down, up in zip(pieces, factors[::2], factors[1::2], strict=True):
        if down is None or up is None:
            found += [None, None]
            continue
        # the scale is applied to the thin rows: they are the smallest
        lowered = torch.mm(piece, up.to(piece.dtype)).mul_(scale)
        raised = torch.mm(x, down.to(x.dtype).t()).mul_(scale)
        found += [_summed(lowered, x, down.dtype), _summed(piece, raised, up.dtype)]
    return found


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return added_and_normed(x, None, weight, epsilon, x.dtype)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        found = norm_grad(x, weight, ctx.epsilon, grad.contiguous(), None)
        return found.x, found.weight, None


class _FusedLayer(torch.autograd.Function):
    """(x, y) -> (x', y'): the residual stream is their sum, added where it is read next.

    Parameters: norm, q, k, v, their biases, norms of query and key heads, o, norm, gate, up, down; then the factors of
    the adapters of q, k, v, o, gate, up, down.
    """

    PARAMETERS = 14

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
        *inputs, plan = rest
        parameters = inputs[: _FusedLayer.PARAMETERS]
        before, _, _, _, *biases, query_norm, key_norm, _, after, _, _, _ = parameters
        total, normed = added_and_normed(x, y, before, plan.epsilon, plan.dtype)
        bias = biases if len(plan.enter) > 1 or biases[0] is None else [torch.cat(biases).to(plan.dtype)]
        heads = _product(normed, plan.enter, bias).view(len(x), -1, plan.size)
        unnormed = None
        if query_norm is not None:
            unnormed, heads = heads, _head_norms(heads, (query_norm, key_norm), plan)
        query, key, value = rotated(heads, plan.heads + plan.key_heads, plan.tables).split(plan.split, 1)
        if plan.keep is not None:
            plan.keep(key, value)
        mixed, kept, attention = _attended(query, key, value, plan, any(ctx.needs_input_grad))
        between, normed = added_and_normed(
            total, torch.mm(mixed.flatten(1), plan.leave.t()), after, plan.epsilon, plan.dtype
        )
        gate_up = _product(normed, plan.widen)
        found = torch.mm(gated(gate_up), plan.narrow.t())
        ctx.plan, ctx.attention = plan, attention
        wide = gate_up if plan.keep_wide else None
        ctx.save_for_backward(total, unnormed, mixed, between, wide, *kept, *inputs)
        ctx.num_kept = len(kept)
        return between, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, narrow: Tensor) -> tuple[Tensor | None, ...]:
        total, unnormed, mixed, between, gate_up, *saved = ctx.saved_tensors
        kept, inputs = saved[: ctx.num_kept], saved[ctx.num_kept :]
        parameters, factors = inputs[: _FusedLayer.PARAMETERS], inputs[_FusedLayer.PARAMETERS :]
        before, q, k, v, *biases, query_norm, key_norm, mix, after, gate, up, down = parameters
        plan, needed, scale = ctx.plan, ctx.needs_input_grad, ctx.plan.adapter_scale
        if gate_up is None:
            gate_up = _product(added_and_normed(between, None, after, plan.epsilon, plan.dtype)[1], plan.widen)
        narrow = narrow.contiguous()
        opened, gate_grad = gated_grad(gate_up, torch.mm(narrow, plan.narrow))
        found_down = _weight_grads(narrow, opened, [down], needed[15:16])
        down_factors = _factor_grads(narrow, opened, [down], factors[12:], scale)
        later = norm_grad(between, after, plan.epsilon, _input_grad(gate_grad, plan.widen), grad.contiguous())
        found_wide = _weight_grads(gate_grad, later.normed, [gate, up], needed[13:15])
        wide_factors = _factor_grads(gate_grad, later.normed, [gate, up], factors[8:12], scale)
        found_mix = _weight_grads(later.narrow, mixed.flatten(1), [mix], needed[11:12])
        mix_factors = _factor_grads(later.narrow, mixed.flatten(1), [mix], factors[6:8], scale)
        mixed_grad = torch.mm(later.narrow, plan.leave).view(mixed.shape)
        query, key, value = ctx.attention(mixed_grad, mixed, kept)
        heads = turned_back(query, key, value, plan.tables)
        norm_grads: tuple[Tensor | None, Tensor | None] = (None, None)
        if unnormed is not None:
            heads, norm_grads = _head_norm_grads(unnormed, (query_norm, key_norm), heads, plan)
        entered = heads.flatten(1)
        first = norm_grad(total, before, plan.epsilon, _input_grad(entered, plan.enter), later.x)
        found_enter = _weight_grads(entered, first.normed, [q, k, v], needed[3:6])
        enter_factors = _factor_grads(entered, first.normed, [q, k, v], factors[:6], scale)
        found_bias: Sequence[Tensor | None] = (None, None, None)
        if biases[0] is not None:
            found_bias = entered.sum(0, dtype=biases[0].dtype).split([len(each) for each in biases])
        return (
            first.x, first.narrow if needed[1] else None, first.weight, *found_enter, *found_bias, *norm_grads,
            *found_mix, later.weight, *found_wide, *found_down,
            *enter_factors, *mix_factors, *wide_factors, *down_factors, None,
        )  # fmt: skip


Backward = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
"""(grad of attention's output, the output, what was kept) -> grads of queries, keys and values."""


def _attended(
    query: Tensor, key: Tensor, value: Tensor, plan: _LayerPlan, learns: bool
) -> tuple[Tensor, tuple[Tensor, ...], Backward]:
    """Attention's output, what to keep for its gradient, and how to find that."""
    tree, scale = plan.tree, plan.scale
    if ragged_works(query, key, value):
        output, norm, noise = ragged_forward(query, key, value, tree.segments, scale)

        def backward(grad: Tensor, output: Tensor, kept: Sequence[Tensor]) -> tuple[Tensor, ...]:
            query, key, value, norm = kept
            return ragged_backward(grad, (query, key, value, output, norm), tree.segments, noise, scale)

        return output, (query, key, value, norm), backward
    query, key, value = (each.detach().requires_grad_(learns) for each in (query, key, value))
    with torch.set_grad_enabled(learns):
        output = attended(tree, query, key, value, scale)

    def through_graph(grad: Tensor, _: Tensor, __: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, (query, key, value), grad)

    return output.detach(), (), through_graph


def _head_norms(heads: Tensor, norms: Sequence[Tensor], plan: _LayerPlan) -> Tensor:
    """Queries and keys normed head by head; values as they are."""
    *parts, value = heads.split(plan.split, 1)
    found = [
        added_and_normed(part.reshape(-1, plan.size), None, weight, plan.epsilon, plan.dtype)[1].view(part.shape)
        for part, weight in zip(parts, norms, strict=True)
    ]
    return torch.cat((*found, value), 1)


def _head_norm_grads(
    heads: Tensor, norms: Sequence[Tensor], grad: Tensor, plan: _LayerPlan
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    query, key, value = grad.split(plan.split, 1)
    found = [
        norm_grad(part.reshape(-1, plan.size), weight, plan.epsilon, pull.reshape(-1, plan.size), None)
        for part, weight, pull in zip(heads.split(plan.split, 1)[:2], norms, (query, key), strict=True)
    ]
    grads = [each.x.view(len(heads), -1, plan.size) for each in found]
    return torch.cat((*grads, value), 1), (found[0].weight, found[1].weight)
