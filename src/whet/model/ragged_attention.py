"""Attention of a shared-prefix batch by kernels that take ragged lengths: no padding, mask or copies of keys.

Where triton is there and the size of a head is a power of two, the kernels are our own: a completion reads its prompt
and itself in one softmax (`whet.model.prefix_attention_kernels`). Elsewhere they are torch's flash kernels, in two
calls: every prompt and every completion attends to itself; then all completions to a prompt attend to it. Both halves
of a completion are one softmax, joined by their normalisers:

    out = (e^a out_own + e^b out_prompt) / (e^a + e^b),  a, b the logarithms of the two normalisers

The gradient needs only the joined output and the joined normaliser, so the kernels' own backward passes give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whet.model.layer_ops import is_power, kernels_for, layer_kernels
from whet.model.shared_prefix import Segments


def ragged_works(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True where the kernels take these heads: [S, H, E] in half precision on a CUDA device."""
    size = query.shape[-1]
    halves = query.dtype in (torch.bfloat16, torch.float16) and query.dtype == key.dtype == value.dtype
    return query.is_cuda and halves and size % 8 == 0 and size <= 256 and value.shape[-1] == size


def ragged_kernels(dtype: torch.dtype, size: int) -> ModuleType | None:
    """Our own kernels for heads of this size on a CUDA device, where they are."""
    if layer_kernels() is None or dtype not in (torch.bfloat16, torch.float16) or not is_power(size) or size < 16:
        return None
    from whet.model import prefix_attention_kernels

    return prefix_attention_kernels


def _prefix_kernels(query: Tensor) -> ModuleType | None:
    return ragged_kernels(query.dtype, query.shape[-1]) if query.is_cuda else None


def ragged_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """[S, H, E]."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    found: Tensor = _RaggedAttention.apply(query, key, value, segments, scale)
    return found


class _RaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
        if _prefix_kernels(query) is not None:  # which read a row's heads behind one another
            query, key, value = (each.contiguous() for each in (query, key, value))
        output, norm, ctx.noise = ragged_forward(query, key, value, segments, scale)
        ctx.segments, ctx.scale = segments, scale
        ctx.save_for_backward(query, key, value, output, norm)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, *_ = ctx.saved_tensors
        found = ragged_backward(grad.contiguous(), ctx.saved_tensors, ctx.segments, ctx.noise, ctx.scale)
        return (*found.split([query.shape[1], key.shape[1], key.shape[1]], 1), None, None)


Noise = list[list[Tensor]]  # the state of a dropout that is not used


def ragged_forward(
    query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float
) -> tuple[Tensor, Tensor, Noise]:
    """Output [S, H, E], the logarithm of its normaliser [H, S], and what the kernels want back.

    A row's heads lie behind one another; queries, keys and values may lie side by side in one tensor.
    """
    if (ours := _prefix_kernels(query)) is not None:
        return (*ours.forward(query, key, value, segments, scale), [])
    output, norm, *noise = _forward(query, key, value, _own(segments), scale)
    kept = [noise[:2]]
    if segments.longest_completions:
        begin, end = segments.first_completion, segments.end_of_prompts
        other, other_norm, *noise = _forward(query[begin:], key[:end], value[:end], _across(segments), scale)
        kept.append(noise[:2])
        kernels = kernels_for(query)
        if kernels is not None:
            kernels.join(output, norm, other, other_norm)
        else:
            joined = torch.logaddexp(norm[:, begin:], other_norm)
            ours_share, theirs = ((each - joined).exp().T[:, :, None] for each in (norm[:, begin:], other_norm))
            output[begin:] = (output[begin:] * ours_share + other * theirs).to(output.dtype)
            norm[:, begin:] = joined
    return output, norm, kept


def ragged_backward(grad: Tensor, saved: Sequence[Tensor], segments: Segments, noise: Noise, scale: float) -> Tensor:
    """Grads of query, key and value side by side, [S, H + 2 K, E]; saved are these three, output and norm."""
    query, key, value, output, norm = saved
    if not noise:
        from whet.model import prefix_attention_kernels

        counts = [query.shape[1], key.shape[1], value.shape[1]]
        grads = torch.empty(len(query), sum(counts), query.shape[2], dtype=query.dtype, device=query.device)
        prefix_attention_kernels.backward(grad, saved, segments, scale, grads.split(counts, 1))
        return grads
    found = _backward((grad, *saved), _own(segments), noise[0], scale)
    if segments.longest_completions:
        begin, end = segments.first_completion, segments.end_of_prompts
        part = (grad[begin:], query[begin:], key[:end], value[:end], output[begin:], norm[:, begin:].contiguous())
        more = _backward(part, _across(segments), noise[1], scale)
        found[0][begin:] += more[0]
        found[1][:end] += more[1]
        found[2][:end] += more[2]
    return torch.cat(found, 1)


Lengths = tuple[Tensor, Tensor, int, int, float, bool]  # bounds and longest of queries and keys, dropout, causal


def _own(segments: Segments) -> Lengths:
    return segments.own, segments.own, segments.longest, segments.longest, 0.0, True


def _across(segments: Segments) -> Lengths:
    return segments.completions, segments.prompts, segments.longest_completions, segments.longest_prompt, 0.0, False


def _forward(query: Tensor, key: Tensor, value: Tensor, lengths: Lengths, scale: float | None) -> tuple[Tensor, ...]:
    """Output [S, H, E], the normaliser's logarithm [H, S], and the state of a dropout that is not used."""
    found = torch.ops.aten._flash_attention_forward(query, key, value, *lengths, False, scale=scale)
    return tuple(found)


def _backward(
    tensors: tuple[Tensor, ...], lengths: Lengths, noise: list[Tensor], scale: float | None
) -> tuple[Tensor, ...]:
    return tuple(torch.ops.aten._flash_attention_backward(*tensors, *lengths, *noise, scale=scale))
