"""Attention of a tree by flash kernels that take ragged lengths: no padding, no mask, no copy of a prompt's keys.

Every prompt and every reply attends to itself; then all replies to a prompt attend to it. Both halves of a reply are
one softmax, joined by their normalisers:

    out = (e^a out_own + e^b out_prompt) / (e^a + e^b),  a, b the logarithms of the two normalisers

The gradient needs only the joined output and the joined normaliser, so the kernels' own backward passes give it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from whet.model.tree import Segments


def ragged_works(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True where the kernels take these heads: [S, H, E] in half precision on a CUDA device."""
    size = query.shape[-1]
    halves = query.dtype in (torch.bfloat16, torch.float16) and query.dtype == key.dtype == value.dtype
    return query.is_cuda and halves and size % 8 == 0 and size <= 256 and value.shape[-1] == size


def ragged_attention(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
    """[S, H, E]."""
    found: Tensor = _RaggedAttention.apply(query, key, value, segments, scale)
    return found


class _RaggedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float | None) -> Tensor:
        output, norm, *noise = _forward(query, key, value, _own(segments), scale)
        ctx.noise = [noise[:2]]
        if segments.longest_replies:
            begin, end = segments.first_reply, segments.end_of_prompts
            other, other_norm, *noise = _forward(query[begin:], key[:end], value[:end], _across(segments), scale)
            ctx.noise.append(noise[:2])
            joined = torch.logaddexp(norm[:, begin:], other_norm)
            ours, theirs = ((each - joined).exp().T[:, :, None] for each in (norm[:, begin:], other_norm))
            output[begin:] = (output[begin:] * ours + other * theirs).to(output.dtype)
            norm[:, begin:] = joined
        ctx.segments, ctx.scale = segments, scale
        ctx.save_for_backward(query, key, value, output, norm)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, norm = ctx.saved_tensors
        segments = ctx.segments
        whole = (slope, query, key, value, output, norm)
        found = _backward(whole, _own(segments), ctx.noise[0], ctx.scale)
        if segments.longest_replies:
            begin, end = segments.first_reply, segments.end_of_prompts
            part = (slope[begin:], query[begin:], key[:end], value[:end], output[begin:], norm[:, begin:].contiguous())
            more = _backward(part, _across(segments), ctx.noise[1], ctx.scale)
            found[0][begin:] += more[0]
            found[1][:end] += more[1]
            found[2][:end] += more[2]
        return (*found, None, None)


Lengths = tuple[Tensor, Tensor, int, int, float, bool]  # bounds and longest of queries and keys, dropout, causal


def _own(segments: Segments) -> Lengths:
    return segments.own, segments.own, segments.longest, segments.longest, 0.0, True


def _across(segments: Segments) -> Lengths:
    return segments.replies, segments.prompts, segments.longest_replies, segments.longest_prompt, 0.0, False


def _forward(query: Tensor, key: Tensor, value: Tensor, lengths: Lengths, scale: float | None) -> tuple[Tensor, ...]:
    """Output [S, H, E], the normaliser's logarithm [H, S], and the state of a dropout that is not used."""
    found = torch.ops.aten._flash_attention_forward(query, key, value, *lengths, False, scale=scale)
    return tuple(found)


def _backward(
    tensors: tuple[Tensor, ...], lengths: Lengths, noise: list[Tensor], scale: float | None
) -> tuple[Tensor, ...]:
    return tuple(torch.ops.aten._flash_attention_backward(*tensors, *lengths, *noise, scale=scale))
