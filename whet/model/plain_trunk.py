"""The trunk of a plain decoder on a packed tree, forward and backward written out.

A framework's graph of such a layer has some fifty small operations and keeps most of their results. Here a layer is six
products, an attention and five small operations (`whet.model.pieces`) each way. Kept for the backward pass are the
residual stream, queries, keys, values and what attention found; norms are computed again, since they cost a read.

`split.recompute` says what else is computed again: nothing, the wide rows of the MLP ("wide": half the memory for one
product in six), or whole layers ("layers": only the residual stream is kept).

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

from whet.model.pieces import Tables, added_and_normed, gated, gated_slope, norm_slope, rotated
from whet.model.plain import is_plain, plain_layers, plain_shape, rotation_tables
from whet.model.split import SplitModel
from whet.model.tree import Tree, tree_of
from whet.model.tree_attention import attended, trial_rows

Keep = Callable[[int, Tensor, Tensor], None]  # number of a layer, its keys and values [S, K, D]

_CHECKED: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, bool]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _Plan:
    """What a layer needs besides its inputs and parameters."""

    heads: int
    key_heads: int
    size: int
    epsilon: float
    dtype: torch.dtype  # of the products
    tables: Tables
    keep_wide: bool
    enter: tuple[Tensor, ...]  # weights as the products take them: side by side in one tensor, or several
    leave: Tensor
    widen: tuple[Tensor, ...]
    narrow: Tensor


def plain_states(split: SplitModel, tree: Tree, keep: Keep | None = None) -> Tensor:
    """The hidden state before each action, in row order: [A, W]."""
    model: Any = split.model
    trunk, shape = model.model, plain_shape(split)
    tables = rotation_tables(split, tree.position_ids[0])
    x = F.embedding(tree.tokens[0], trunk.embed_tokens.weight)
    copies = plain_layers(split, split.dtype).layers if split.dtype.itemsize < x.dtype.itemsize else None
    base = _Plan(
        shape.heads, shape.key_heads, shape.size, shape.epsilon, split.dtype if copies else x.dtype, tables,
        split.recompute == "none", (), x, (), x,
    )  # fmt: skip
    for number, layer in enumerate(trunk.layers):
        attention, mlp = layer.self_attn, layer.mlp
        if copies is None:
            plan = replace(
                base,
                enter=(
                    attention.q_proj.weight.detach(),
                    attention.k_proj.weight.detach(),
                    attention.v_proj.weight.detach(),
                ),
                leave=attention.o_proj.weight.detach(),
                widen=(mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()),
                narrow=mlp.down_proj.weight.detach(),
            )
        else:
            mine = copies[number]
            plan = replace(base, enter=(mine.qkv,), leave=mine.mix, widen=(mine.gate_up,), narrow=mine.down)
        run = partial(
            _layer, layer=layer, plan=plan, tree=tree, scale=shape.scale, keep=partial(keep, number) if keep else None
        )
        if split.recompute == "layers" and torch.is_grad_enabled():
            from torch.utils.checkpoint import checkpoint

            x = checkpoint(run, x, use_reentrant=False, preserve_rng_state=False)
        else:
            x = run(x)
    # several replies read the last state of their prompt: a lookup, whose backward pass sums in a fixed order
    found: Tensor = _Norm.apply(F.embedding(tree.states, x), trunk.norm.weight, shape.epsilon)
    return found


def _layer(
    x: Tensor, layer: Any, plan: _Plan, tree: Tree, scale: float, keep: Callable[[Tensor, Tensor], None] | None
) -> Tensor:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = (attention.q_norm.weight, attention.k_norm.weight) if hasattr(attention, "q_norm") else (None, None)
    query, key, value = _Enter.apply(
        x, layer.input_layernorm.weight, *(each.weight for each in projections), *(each.bias for each in projections),
        *norms, plan,
    )  # fmt: skip
    if keep is not None:
        keep(key, value)
    mixed = attended(tree, query, key, value, scale)
    found: Tensor = _Leave.apply(
        x, mixed.flatten(1), attention.o_proj.weight, layer.post_attention_layernorm.weight, mlp.gate_proj.weight,
        mlp.up_proj.weight, mlp.down_proj.weight, plan,
    )  # fmt: skip
    return found


def plain_works(split: SplitModel) -> bool:
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
def _agrees(split: SplitModel) -> bool:
    tokens, action = trial_rows(split.vocabulary, split.device)
    tree = tree_of(tokens, action)
    assert tree is not None
    try:
        ours = plain_states(split, tree)
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


def _input_slope(slope: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Of what went into `_product`."""
    parts = slope.split([len(weight) for weight in weights], 1)
    found = torch.mm(parts[0], weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        found.addmm_(part, weight)
    return found


def _weight_slopes(
    slope: Tensor, x: Tensor, parameters: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """Of the parameters whose products lie side by side in `slope`, in their own precision."""
    if not any(needed):
        return [None] * len(parameters)
    sizes = [len(parameter) for parameter in parameters]
    kind = parameters[0].dtype
    if slope.dtype == kind and len(sizes) > 1:
        pieces = slope.split(sizes, 1)
        return [torch.mm(piece.t(), x) if need else None for piece, need in zip(pieces, needed, strict=True)]
    if slope.is_cuda and kind == torch.float32 and slope.dtype in (torch.bfloat16, torch.float16):
        whole = torch.mm(slope.t(), x, out_dtype=kind)
    else:
        whole = torch.mm(slope.t(), x).to(kind)
    return [piece if need else None for piece, need in zip(whole.split(sizes), needed, strict=True)]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return added_and_normed(x, None, weight, epsilon, x.dtype)[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return (*norm_slope(x, weight, ctx.epsilon, slope.contiguous(), None), None)


class _Enter(torch.autograd.Function):
    """The residual stream -> queries [S, H, D], keys and values [S, K, D]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        *parameters, plan = rest
        biases, norms = parameters[3:6], parameters[6:8]
        normed = added_and_normed(x, None, weight, plan.epsilon, plan.dtype)[1]
        bias = biases if len(plan.enter) > 1 or biases[0] is None else [torch.cat(biases).to(plan.dtype)]
        mixed = _product(normed, plan.enter, bias)
        heads = mixed.view(len(x), -1, plan.size)
        turning, value = heads.split([plan.heads + plan.key_heads, plan.key_heads], 1)
        kept = None
        if norms[0] is not None:
            kept, turning = turning, _head_norms(turning, norms, plan)
        turned = rotated(turning, plan.tables)
        query, key = turned.split([plan.heads, plan.key_heads], 1)
        ctx.plan = plan
        ctx.save_for_backward(x, weight, *parameters[:3], *biases, *norms, kept)
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, *parameters, kept = ctx.saved_tensors
        plan, needed = ctx.plan, ctx.needs_input_grad
        turning = torch.cat((rotated(query, plan.tables, back=True), rotated(key, plan.tables, back=True)), 1)
        norm_slopes: tuple[Tensor | None, Tensor | None] = (None, None)
        if kept is not None:
            turning, norm_slopes = _head_norm_slopes(kept, parameters[6:8], turning, plan)
        slope = torch.cat((turning.flatten(1), value.to(turning.dtype).flatten(1)), 1)
        normed = added_and_normed(x, None, weight, plan.epsilon, plan.dtype)[1]
        slopes = _weight_slopes(slope, normed, parameters[:3], needed[2:5])
        biases: list[Tensor | None] = [None] * 3
        if parameters[3] is not None:
            summed = slope.sum(0, dtype=parameters[3].dtype)
            biases = list(summed.split([len(each) for each in parameters[3:6]]))
        pulled = _input_slope(slope, plan.enter)
        x_slope, weight_slope = norm_slope(x, weight, plan.epsilon, pulled, None)
        return x_slope, weight_slope, *slopes, *biases, *norm_slopes, None


def _head_norms(heads: Tensor, norms: Sequence[Tensor], plan: _Plan) -> Tensor:
    parts = heads.split([plan.heads, plan.key_heads], 1)
    found = [
        added_and_normed(part.reshape(-1, plan.size), None, weight, plan.epsilon, plan.dtype)[1].view(part.shape)
        for part, weight in zip(parts, norms, strict=True)
    ]
    return torch.cat(found, 1)


def _head_norm_slopes(
    heads: Tensor, norms: Sequence[Tensor], slope: Tensor, plan: _Plan
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    sizes = [plan.heads, plan.key_heads]
    found = [
        norm_slope(part.reshape(-1, plan.size), weight, plan.epsilon, pull.reshape(-1, plan.size), None)
        for part, weight, pull in zip(heads.split(sizes, 1), norms, slope.split(sizes, 1), strict=True)
    ]
    slopes = [each.view(len(heads), -1, plan.size) for each, _ in found]
    return torch.cat(slopes, 1), (found[0][1], found[1][1])


class _Leave(torch.autograd.Function):
    """The residual stream and what attention found [S, H D] -> the residual stream behind the layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mixed: Tensor, mix: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        *wide, plan = rest
        total, normed = added_and_normed(x, torch.mm(mixed, plan.leave.t()), weight, plan.epsilon, plan.dtype)
        gate_up = _product(normed, plan.widen)
        found = total + torch.mm(gated(gate_up), plan.narrow.t())
        ctx.plan = plan
        ctx.save_for_backward(mixed, total, gate_up if plan.keep_wide else None, mix, weight, *wide)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        mixed, total, gate_up, mix, weight, *wide = ctx.saved_tensors
        plan, needed = ctx.plan, ctx.needs_input_grad
        slope = slope.contiguous()
        narrow_slope = slope.to(plan.dtype)
        normed = added_and_normed(total, None, weight, plan.epsilon, plan.dtype)[1]
        if gate_up is None:
            gate_up = _product(normed, plan.widen)
        opened, gate_slope = gated_slope(gate_up, torch.mm(narrow_slope, plan.narrow))
        (down,) = _weight_slopes(narrow_slope, opened, wide[2:], needed[6:7])
        widen = _weight_slopes(gate_slope, normed, wide[:2], needed[4:6])
        pulled = _input_slope(gate_slope, plan.widen)
        x_slope, weight_slope = norm_slope(total, weight, plan.epsilon, pulled, slope)
        narrow_slope = x_slope.to(plan.dtype)
        (leave,) = _weight_slopes(narrow_slope, mixed, [mix], needed[2:3])
        return x_slope, torch.mm(narrow_slope, plan.leave), leave, weight_slope, *widen, down, None
