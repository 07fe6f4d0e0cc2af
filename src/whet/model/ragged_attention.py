"""Attention of a shared-prefix batch by kernels that take ragged lengths: no padding, mask or copies of keys.

Where triton is there, the size of a head is a power of two and no branch has branches, the kernels are our own: a
completion reads its prompt and itself in one softmax (`whet.model.prefix_attention_kernels`). Elsewhere they are
torch's flash kernels: one call for every node's attention to itself, and one for each level of the tree, in which all
that continues a node of that level attends to it. A token's parts are one softmax, joined by their normalisers:

    out = (e^a out_own + e^b out_above) / (e^a + e^b),  a, b the logarithms of the two normalisers

The gradient needs only the joined output and the joined normaliser, so the kernels' own backward passes give it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whet.data.prefix_tree import NO_PARENT
from whet.model.layer_ops import is_power, kernels_for
from whet.model.shared_prefix import Segments, long_tensor, shared_prefix_batch, to_device

# Prompts and completions that our kernels are tried on: shorter and longer than a block, one prompt without others.
TRIAL = ((150, (130, 70, 1)), (20, (200,)), (5, (40, 90)))
TOLERANCE = 2e-2  # half precision rounds by a few 1e-3; a mistake is 1e-1 and more


def ragged_works(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True where the kernels take these heads: [S, H, E] in half precision on a CUDA device."""
    size = query.shape[-1]
    halves = query.dtype in (torch.bfloat16, torch.float16) and query.dtype == key.dtype == value.dtype
    return query.is_cuda and halves and size % 8 == 0 and size <= 256 and value.shape[-1] == size


def _prefix_kernels(query: Tensor, key: Tensor) -> ModuleType | None:
    """Our own kernels, where they take these heads and have been shown to be right."""
    if kernels_for(query) is None or not is_power(query.shape[-1]) or query.shape[-1] < 16:
        return None
    if _kernels_refusal(query.device, query.dtype, query.shape[1], key.shape[1], query.shape[2]):
        return None
    from whet.model import prefix_attention_kernels

    return prefix_attention_kernels


@functools.cache
def _kernels_refusal(device: torch.device, dtype: torch.dtype, heads: int, key_heads: int, size: int) -> str:
    """Why our kernels are not used for such heads; empty where they are.

    Tried once: their output and every gradient must be those of torch's kernels, up to rounding.
    """
    from whet.model import prefix_attention_kernels as ours

    segments, counts, scale = _trial_segments(device), [heads, key_heads, key_heads], size**-0.5
    stream = torch.Generator(device).manual_seed(0)
    side_by_side = torch.randn(segments.own_bounds[-1], sum(counts), size, generator=stream, device=device).to(dtype)
    grad = torch.randn(segments.own_bounds[-1], heads, size, generator=stream, device=device).to(dtype)
    query, key, value = side_by_side.split(counts, 1)
    try:
        output, norm = ours.forward(query, key, value, segments, scale)
        grads = torch.empty_like(side_by_side)
        ours.backward(grad, (query, key, value, output, norm), segments, scale, grads.split(counts, 1))
        theirs, their_norm, noise = _flash_forward(query, key, value, segments, scale)
        their_grads = _flash_backward(grad, (query, key, value, theirs, their_norm), segments, noise, scale)
        pairs = [(output, theirs), *zip(grads.split(counts, 1), their_grads.split(counts, 1), strict=True)]
        gap = max(float((mine.float() - other.float()).norm() / other.float().norm()) for mine, other in pairs)
        refusal = "" if gap <= TOLERANCE else f"they differ from torch's by {gap:.1e}"
    except Exception as error:  # whatever stumbles here, torch's kernels are still right
        refusal = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if refusal:
        warnings.warn(f"attention runs on torch's kernels, whet's own are not used: {refusal}", stacklevel=2)
    return refusal


def _trial_segments(device: torch.device) -> Segments:
    width = max(prompt + max(completions) for prompt, completions in TRIAL)
    position, tokens, action = torch.arange(width), [], []
    for number, (prompt, completions) in enumerate(TRIAL):
        for length in completions:
            tokens.append(torch.where(position < prompt, number, position))
            action.append((position >= prompt) & (position < prompt + length))
    batch = shared_prefix_batch(torch.stack(tokens), torch.stack(action), device)
    assert batch is not None
    return batch.segments


def ragged_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """Attention [S, H, E] of the packed row, where each token sees its node's ancestors and itself."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    output: Tensor = _RaggedAttention.apply(query, key, value, segments, scale)
    return output


class _RaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        if _prefix_kernels(query, key) is not None:  # which read a row's heads behind one another
            query, key, value = (tensor.contiguous() for tensor in (query, key, value))
        output, norm, ctx.noise = ragged_forward(query, key, value, segments, scale)
        ctx.segments, ctx.scale = segments, scale
        ctx.save_for_backward(query, key, value, output, norm)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: a layer that is computed again refuses a second look
        query, key, *_ = saved
        grads = ragged_backward(grad.contiguous(), saved, ctx.segments, ctx.noise, ctx.scale)
        return (*grads.split([query.shape[1], key.shape[1], key.shape[1]], 1), None, None)


Noise = list[list[Tensor]]  # the state of a dropout that is not used


def ragged_forward(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float
) -> tuple[Tensor, Tensor, Noise]:
    """Output [S, H, E], the logarithm of its normaliser [H, S], and what the kernels want back.

    A row's heads lie behind one another; queries, keys and values may lie side by side in one tensor.
    """
    if not segments.is_deep and (ours := _prefix_kernels(query, key)) is not None:
        return (*ours.forward(query, key, value, segments, scale), [])
    return _flash_forward(query, key, value, segments, scale)


def _flash_forward(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float
) -> tuple[Tensor, Tensor, Noise]:
    output, norm, *noise = _forward(query, key, value, _own(segments), scale)
    noise_parts = [noise[:2]]
    for level in _levels(segments):
        below, above = level.queries, level.keys
        other, other_norm, *noise = _forward(query[below], key[above], value[above], level.lengths, scale)
        noise_parts.append(noise[:2])
        kernels = kernels_for(query) if isinstance(below, slice) else None
        if kernels is not None:
            kernels.join(output, norm, other, other_norm)
        else:
            joined = torch.logaddexp(norm[:, below], other_norm)
            ours, theirs = ((log_norm - joined).exp().T[:, :, None] for log_norm in (norm[:, below], other_norm))
            output[below] = (output[below] * ours + other * theirs).to(output.dtype)
            norm[:, below] = joined
    return output, norm, noise_parts


def ragged_backward(grad: Tensor, saved: Sequence[Tensor], segments: Segments, noise: Noise, scale: float) -> Tensor:
    """Grads of query, key and value side by side, [S, H + 2 K, E]; saved are these three, output and norm."""
    if noise:
        return _flash_backward(grad, saved, segments, noise, scale)
    from whet.model import prefix_attention_kernels

    query, key, value, *_ = saved
    counts = [query.shape[1], key.shape[1], value.shape[1]]
    grads = torch.empty(len(query), sum(counts), query.shape[2], dtype=query.dtype, device=query.device)
    prefix_attention_kernels.backward(grad, saved, segments, scale, grads.split(counts, 1))
    return grads


def _flash_backward(grad: Tensor, saved: Sequence[Tensor], segments: Segments, noise: Noise, scale: float) -> Tensor:
    query, key, value, output, norm = saved
    grads = _backward((grad, *saved), _own(segments), noise[0], scale)
    for level, level_noise in zip(_levels(segments), noise[1:], strict=True):
        below, above = level.queries, level.keys
        part = (grad[below], query[below], key[above], value[above], output[below], norm[:, below].contiguous())
        more = _backward(part, level.lengths, level_noise, scale)
        grads[0][below] += more[0]
        grads[1][above] += more[1]
        grads[2][above] += more[2]
    return torch.cat(grads, 1)


Lengths = tuple[Tensor, Tensor, int, int, float, bool]  # bounds and longest of queries and keys, dropout, causal


def _own(segments: Segments) -> Lengths:
    return segments.own, segments.own, segments.longest, segments.longest, 0.0, True


@dataclass(frozen=True)
class _Level:
    """The nodes of one depth as keys, and all that continues each of them as its queries. No token is there twice."""

    queries: slice | Tensor  # packed positions
    keys: slice | Tensor
    lengths: Lengths


def _levels(segments: Segments) -> list[_Level]:
    """Split the tree into levels from the roots down, as deep as nodes have branches; made once per batch."""
    if "levels" not in segments.tables:
        levels: list[_Level] = []
        if segments.longest_completions:
            longest = (segments.longest_completions, segments.longest_prompt)
            lengths = (segments.completions, segments.prompts, *longest, 0.0, False)
            whole = slice(segments.first_completion, None), slice(0, segments.end_of_prompts)
            levels.append(_Level(*whole, lengths))
        segments.tables["levels"] = levels + _deeper_levels(segments)
    known: list[_Level] = segments.tables["levels"]
    return known


def _deeper_levels(segments: Segments) -> list[_Level]:
    depth: list[int] = []
    spans: dict[int, list[tuple[range, range]]] = {}  # by depth: all that continues a node, and the node
    for parent, own, below in zip(segments.parents, pairwise(segments.own_bounds), segments.branches, strict=True):
        depth.append(0 if parent == NO_PARENT else depth[parent] + 1)
        if depth[-1] and below[0] < below[1]:
            spans.setdefault(depth[-1], []).append((range(*below), range(*own)))
    device = segments.own.device

    def bounds(parts: Sequence[range]) -> Tensor:
        return to_device(long_tensor([0, *accumulate(map(len, parts))]).int(), device)

    levels = []
    for _, pairs in sorted(spans.items()):
        readers, nodes = [branches for branches, _ in pairs], [node for _, node in pairs]
        queries, keys = (to_device(long_tensor(list(chain(*parts))), device) for parts in (readers, nodes))
        longest = (max(map(len, readers)), max(map(len, nodes)))
        levels.append(_Level(queries, keys, (bounds(readers), bounds(nodes), *longest, 0.0, False)))
    return levels


def _forward(query: Tensor, key: Tensor, value: Tensor, lengths: Lengths, scale: float | None) -> tuple[Tensor, ...]:
    """Output [S, H, E], the normaliser's logarithm [H, S], and the state of a dropout that is not used."""
    result = torch.ops.aten._flash_attention_forward(query, key, value, *lengths, False, scale=scale)
    return tuple(result)


def _backward(
    tensors: tuple[Tensor, ...], lengths: Lengths, noise: list[Tensor], scale: float | None
) -> tuple[Tensor, ...]:
    return tuple(torch.ops.aten._flash_attention_backward(*tensors, *lengths, *noise, scale=scale))
