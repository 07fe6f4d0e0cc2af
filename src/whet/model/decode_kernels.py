"""Triton kernels of the decode step. Each is tested against plain torch in `tests/gpu`.

Imported only where CUDA and triton are there. Shapes: B rows, H query heads, K key heads, D head size, P prompts.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    qkv, cosine, sine, position, written, q_norm, k_norm, q_out, own_k, own_v, budget, epsilon,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, normed: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = size // 2
    low = tl.arange(0, half)
    base = qkv + row * (heads + 2 * key_heads) * size + head * size
    first = tl.load(base + low).to(tl.float32)
    second = tl.load(base + half + low).to(tl.float32)
    if head < heads + key_heads:
        if normed:
            scale = tl.rsqrt((tl.sum(first * first, axis=0) + tl.sum(second * second, axis=0)) / size + epsilon)
            weight = q_norm
            if head >= heads:
                weight = k_norm
            first = first * scale * tl.load(weight + low).to(tl.float32)
            second = second * scale * tl.load(weight + half + low).to(tl.float32)
            first = first.to(qkv.dtype.element_ty).to(tl.float32)
            second = second.to(qkv.dtype.element_ty).to(tl.float32)
        place = tl.load(position + row) * size
        turned = first * tl.load(cosine + place + low) - second * tl.load(sine + place + low)
        second = second * tl.load(cosine + place + half + low) + first * tl.load(sine + place + half + low)
        first = turned
    if head < heads:
        target = q_out + (row * heads + head) * size
    else:
        slot = tl.load(written + row)
        if head < heads + key_heads:
            target = own_k + ((row * key_heads + head - heads) * budget + slot) * size
        else:
            target = own_v + ((row * key_heads + head - heads - key_heads) * budget + slot) * size
    tl.store(target + low, first.to(q_out.dtype.element_ty))
    tl.store(target + half + low, second.to(q_out.dtype.element_ty))


def rotate(qkv: Tensor, tables: Any, normed: Any, rows: Any, q_out: Tensor, own: Any) -> None:
    """Query and key heads normed where asked and rotated by position; keys and values written to their slots."""
    (cosine, sine), (norms, epsilon) = tables, normed
    (position, written), (own_k, own_v) = rows, own
    batch, heads, size = q_out.shape
    key_heads, budget = own_k.shape[1], own_k.shape[2]
    q_norm, k_norm = norms if norms is not None else (qkv, qkv)
    _rotate[(batch, heads + 2 * key_heads)](
        qkv, cosine, sine, position, written, q_norm, k_norm, q_out, own_k, own_v, budget, epsilon,
        heads, key_heads, size, norms is not None, num_warps=1,
    )  # fmt: skip


@triton.jit
def _prompt_part(  # type: ignore[no-untyped-def]
    q, prompt_k, prompt_v, lengths, members, top, total, partial, longest, num_members, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    shared: tl.constexpr = heads // key_heads
    index = tl.arange(0, tile)
    member = index // shared
    row = tl.load(members + prompt * num_members + member, mask=member < num_members, other=-1).to(tl.int64)
    inside = row >= 0
    lane = tl.arange(0, size)
    head = key_head * shared + index % shared
    place = (tl.where(inside, row, 0) * heads + head) * size
    queries = tl.load(q + place[:, None] + lane[None, :], mask=inside[:, None], other=0.0)
    best = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mixed = tl.zeros((tile, size), tl.float32)
    length = tl.load(lengths + prompt)
    base = (prompt * key_heads + key_head) * longest * size
    for start in range(0, length, block):
        key = start + tl.arange(0, block)
        keys = tl.load(prompt_k + base + key[None, :] * size + lane[:, None], mask=key[None, :] < length, other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(key[None, :] < length, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        values = tl.load(prompt_v + base + key[:, None] * size + lane[None, :], mask=key[:, None] < length, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    spot = tl.where(inside, row, 0) * heads + head
    tl.store(top + spot, best, mask=inside)
    tl.store(total + spot, mass, mask=inside)
    tl.store(partial + place[:, None] + lane[None, :], mixed, mask=inside[:, None])


@triton.jit
def _own_part(  # type: ignore[no-untyped-def]
    q, own_k, own_v, written, top, total, partial, out, budget, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    shared: tl.constexpr = heads // key_heads
    tile: tl.constexpr = 16
    index = tl.arange(0, tile)
    inside = index < shared
    lane = tl.arange(0, size)
    head = key_head * shared + tl.where(inside, index, 0)
    spot = row * heads + head
    queries = tl.load(q + spot[:, None] * size + lane[None, :], mask=inside[:, None], other=0.0)
    best = tl.load(top + spot, mask=inside, other=0.0)
    mass = tl.load(total + spot, mask=inside, other=1.0)
    mixed = tl.load(partial + spot[:, None] * size + lane[None, :], mask=inside[:, None], other=0.0)
    length = tl.load(written + row) + 1
    base = (row * key_heads + key_head) * budget * size
    for start in range(0, length, block):
        key = start + tl.arange(0, block)
        keys = tl.load(own_k + base + key[None, :] * size + lane[:, None], mask=key[None, :] < length, other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(key[None, :] < length, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        values = tl.load(own_v + base + key[:, None] * size + lane[None, :], mask=key[:, None] < length, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    mixed = mixed / mass[:, None]
    tl.store(out + spot[:, None] * size + lane[None, :], mixed.to(out.dtype.element_ty), mask=inside[:, None])


def attention(q: Tensor, prompts: Any, own: Any, written: Tensor, scratch: Any, scale: float) -> None:
    """Each row over its prompt, read once for all rows of it, and over its own tokens, `written` included.

    prompts = (k [P, K, L, D], v, lengths [P], members [P, M] rows of each prompt, -1 where none); own = (k, v); the
    result goes to the last of scratch = (largest score, mass, unfinished mixture, out [B, H, D]).
    """
    (prompt_k, prompt_v, lengths, members), (own_k, own_v), (top, total, partial, out) = prompts, own, scratch
    batch, heads, size = q.shape
    key_heads, budget, longest = own_k.shape[1], own_k.shape[2], prompt_k.shape[2]
    num_members = members.shape[1]
    tile = max(16, triton.next_power_of_2(num_members * (heads // key_heads)))
    exact = q.dtype == torch.float32
    _prompt_part[(members.shape[0], key_heads)](
        q, prompt_k, prompt_v, lengths, members, top, total, partial, longest, num_members, scale,
        heads, key_heads, size, tile, 64 if size <= 64 and not exact else 32, exact, num_warps=4, num_stages=2,
    )  # fmt: skip
    _own_part[(batch, key_heads)](
        q, own_k, own_v, written, top, total, partial, out, budget, scale,
        heads, key_heads, size, 64 if not exact else 32, exact, num_warps=4, num_stages=3,
    )  # fmt: skip


@triton.jit
def _sample(logits, uniform, token_out, logp_out, width, inverse_temperature, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    base = logits + row * width
    best = float("-inf")
    mass = 0.0
    likeliest = 0
    for start in range(0, width, block):
        column = start + lane
        value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32) * inverse_temperature
        top = tl.max(value, axis=0)
        likeliest = tl.where(top > best, start + tl.argmax(value, axis=0), likeliest)
        higher = tl.maximum(best, top)
        mass = mass * tl.exp(best - higher) + tl.sum(tl.exp(value - higher), axis=0)
        best = higher
    target = tl.load(uniform + row) * mass
    before = 0.0
    chosen = width
    for start in range(0, width, block):
        column = start + lane
        value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32) * inverse_temperature
        share = tl.exp(value - best)
        reached = (before + tl.cumsum(share, axis=0) > target) & (share > 0)
        chosen = tl.minimum(chosen, tl.min(tl.where(reached, column, width), axis=0))
        before += tl.sum(share, axis=0)
    chosen = tl.where(chosen == width, likeliest, chosen)  # rounding at the very end of the sum
    value = tl.load(base + chosen).to(tl.float32) * inverse_temperature
    tl.store(token_out + row, chosen.to(tl.int64))
    tl.store(logp_out + row, value - best - tl.log(mass))


def sample(logits: Tensor, uniform: Tensor, temperature: float, token: Tensor, logp: Tensor) -> None:
    """Draw one token per row by inverting the cumulative distribution at `uniform` [B]; its log-probability too."""
    rows, width = logits.shape
    _sample[(rows,)](logits, uniform, token, logp, width, 1.0 / temperature, 4096, num_warps=8)
