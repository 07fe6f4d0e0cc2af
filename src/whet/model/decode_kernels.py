"""Triton kernels of the decode step. Each is tested against plain torch in `tests/gpu`.

Imported only where CUDA and triton are there. Shapes: B rows, H query heads, K key heads, D head size, P prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from whet.model.decode_state import TokenRows
from whet.types import Sampling

BLOCK, WIDE_BLOCK = 4096, 8192  # of the vocabulary, in one pass of a program over its row
UNUSED_BITS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}  # of a float32 that holds such a number


@dataclass(frozen=True)
class Heads:
    """How queries, keys and values of a row lie side by side, and what is done to them before they meet."""

    num_heads: int
    num_key_heads: int
    size: int
    scale: float
    epsilon: float
    tables: tuple[Tensor, Tensor]  # cosine and sine of every position, float32 [context, D]
    norms: tuple[Tensor, Tensor] | None  # of single query and key heads, [D] each


@dataclass(frozen=True)
class PromptCache:
    """Keys and values of prompts, and who reads them."""

    keys: Tensor  # [P, K, L, D]
    values: Tensor
    lengths: Tensor  # int32 [P]
    members: Tensor  # int32 [P, M], the rows of each prompt, -1 where none
    slot: Tensor  # int32 [B], the prompt of each row, -1 where none


@dataclass(frozen=True)
class PromptShares:
    """What the rows took from parts of their prompts: softmaxes that `attention` joins."""

    top: Tensor  # float32 [parts, B, H], the largest score
    mass: Tensor
    mixed: Tensor  # float32 [parts, B, H, D]


@triton.jit
def _turned(base, weight, cosine, sine, inside, lane, epsilon, size: tl.constexpr, normed: tl.constexpr):  # type: ignore[no-untyped-def]
    """Heads [N, D] at `base` [N, 1], normed where asked and rotated; `cosine` and `sine` are [N or 1, D]."""
    half: tl.constexpr = size // 2
    other = tl.where(lane < half, lane + half, lane - half)
    kind = base.dtype.element_ty
    value = tl.load(base + lane[None, :], mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(base + other[None, :], mask=inside, other=0.0).to(tl.float32)
    if normed:
        factor = tl.rsqrt(tl.sum(value * value, axis=1) / size + epsilon)[:, None]
        value = (value * factor * tl.load(weight + lane)[None, :].to(tl.float32)).to(kind).to(tl.float32)
        partner = (partner * factor * tl.load(weight + other)[None, :].to(tl.float32)).to(kind).to(tl.float32)
    partner = tl.where((lane < half)[None, :], -partner, partner)
    return (value * cosine + partner * sine).to(kind)


@triton.jit
def _prompt_part(  # type: ignore[no-untyped-def]
    qkv, cosine, sine, position, q_norm, prompt_k, prompt_v, lengths, members, top, total, partial,
    batch, longest, num_members, parts, scale, epsilon,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    normed: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    prompt = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    part = tl.program_id(2)
    shared: tl.constexpr = heads // key_heads
    index = tl.arange(0, tile)
    member = index // shared
    row = tl.load(members + prompt * num_members + member, mask=member < num_members, other=-1).to(tl.int64)
    inside = row >= 0
    length = tl.where(tl.max(row, axis=0) < 0, 0, tl.load(lengths + prompt))
    row = tl.where(inside, row, 0)
    lane = tl.arange(0, size)
    head = key_head * shared + index % shared
    offset = tl.load(position + row, mask=inside, other=0)[:, None] * size + lane[None, :]
    base = qkv + (row * (heads + 2 * key_heads) + head)[:, None] * size
    queries = _turned(
        base, q_norm, tl.load(cosine + offset), tl.load(sine + offset), inside[:, None], lane, epsilon, size, normed
    )
    best = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mixed = tl.zeros((tile, size), tl.float32)
    step = tl.cdiv(tl.cdiv(length, parts), block) * block
    held = (prompt * key_heads + key_head) * longest * size
    for start in range(part * step, tl.minimum(length, (part + 1) * step), block):
        key = start + tl.arange(0, block)
        keys = tl.load(prompt_k + held + key[None, :] * size + lane[:, None], mask=key[None, :] < length, other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(key[None, :] < length, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        values = tl.load(prompt_v + held + key[:, None] * size + lane[None, :], mask=key[:, None] < length, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    spot = (part * batch + row) * heads + head
    tl.store(top + spot, best, mask=inside)
    tl.store(total + spot, mass, mask=inside)
    tl.store(partial + spot[:, None] * size + lane[None, :], mixed, mask=inside[:, None])


def prompt_shares(qkv: Tensor, position: Tensor, heads: Heads, prompts: PromptCache, out: PromptShares) -> None:
    """Each row over its prompt, which is read once for all rows of it, in as many parts as `out` has room for."""
    num_members = prompts.members.shape[1]
    tile = max(16, triton.next_power_of_2(num_members * (heads.num_heads // heads.num_key_heads)))
    exact = qkv.dtype == torch.float32
    parts, batch = out.top.shape[:2]
    q_norm = qkv if heads.norms is None else heads.norms[0]
    _prompt_part[(len(prompts.members), heads.num_key_heads, parts)](
        qkv, *heads.tables, position, q_norm, prompts.keys, prompts.values, prompts.lengths, prompts.members,
        out.top, out.mass, out.mixed, batch, prompts.keys.shape[2], num_members, parts, heads.scale, heads.epsilon,
        heads.num_heads, heads.num_key_heads, heads.size, tile, 64 if heads.size <= 64 and not exact else 32,
        heads.norms is not None, exact, num_warps=4, num_stages=2,
    )  # fmt: skip


@triton.jit
def _seen(  # type: ignore[no-untyped-def]
    queries, k, v, length, lane, scale, best, mass, mixed, size: tl.constexpr, block: tl.constexpr, exact: tl.constexpr
):  # fmt: skip
    """Keys and values [length, D] joined to the softmax so far."""
    for start in range(0, length, block):
        key = start + tl.arange(0, block)
        keys = tl.load(k + key[None, :] * size + lane[:, None], mask=key[None, :] < length, other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(key[None, :] < length, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        values = tl.load(v + key[:, None] * size + lane[None, :], mask=key[:, None] < length, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    return best, mass, mixed


@triton.jit
def _attention(  # type: ignore[no-untyped-def]
    qkv, cosine, sine, position, written, q_norm, k_norm, prompt_k, prompt_v, lengths, slots, own_k, own_v,
    top, total, partial, out, out_stride, batch, longest, budget, parts, scale, epsilon,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, block: tl.constexpr, normed: tl.constexpr,
    apart: tl.constexpr, exact: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    key_head = tl.program_id(1)
    log2e: tl.constexpr = 1.4426950408889634
    scale *= log2e
    shared: tl.constexpr = heads // key_heads
    tile: tl.constexpr = 16
    index = tl.arange(0, tile)
    inside = index < shared
    lane = tl.arange(0, size)
    head = key_head * shared + tl.where(inside, index, 0)
    here = qkv + row * (heads + 2 * key_heads) * size
    offset = tl.load(position + row) * size + lane
    turn, lean = tl.load(cosine + offset)[None, :], tl.load(sine + offset)[None, :]
    queries = _turned(here + head[:, None] * size, q_norm, turn, lean, inside[:, None], lane, epsilon, size, normed)
    one = tl.arange(0, 1)[:, None] >= 0
    newest = here + (heads + key_head + tl.zeros((1, 1), tl.int32)) * size
    key = _turned(newest, k_norm, turn, lean, one, lane, epsilon, size, normed)
    value = tl.load(newest + key_heads * size + lane[None, :])
    count = tl.load(written + row)  # -1: the row is done
    base = (row * key_heads + key_head) * budget * size
    writes = (lane[None, :] >= 0) & (count >= 0)
    tl.store(own_k + base + count * size + lane[None, :], key, mask=writes)
    tl.store(own_v + base + count * size + lane[None, :], value, mask=writes)
    # the newest key first, from where it is: the cache need not be read for it
    best = tl.sum(queries.to(tl.float32) * key.to(tl.float32), axis=1) * scale
    mass = tl.full((tile,), 1.0, tl.float32)
    mixed = tl.zeros((tile, size), tl.float32) + value.to(tl.float32)
    ahead = 0  # blocks of the prompt
    length = 0
    held = base
    if apart:
        for part in range(0, parts):
            spot = (part * batch + row) * heads + head
            theirs = tl.load(top + spot, mask=inside, other=0.0) * log2e
            higher = tl.maximum(best, theirs)
            shrink, grow = tl.exp2(best - higher), tl.exp2(theirs - higher)
            mass = mass * shrink + tl.load(total + spot, mask=inside, other=0.0) * grow
            more = tl.load(partial + spot[:, None] * size + lane[None, :], mask=inside[:, None], other=0.0)
            mixed = mixed * shrink[:, None] + more * grow[:, None]
            best = higher
    else:
        slot = tl.load(slots + row).to(tl.int64)
        length = tl.where(slot < 0, 0, tl.load(lengths + tl.maximum(slot, 0)))
        held = (tl.maximum(slot, 0) * key_heads + key_head) * longest * size
        ahead = tl.cdiv(length, block)
    # the prompt and what the row wrote in one loop: reading never pauses between them
    column = tl.arange(0, block)
    for number in range(0, ahead + tl.cdiv(tl.maximum(count, 0), block)):
        of_prompt = number < ahead
        start = tl.where(of_prompt, number, number - ahead) * block
        limit = tl.where(of_prompt, length, count) - start
        from_keys = tl.where(of_prompt, prompt_k + held, own_k + base) + start * size
        from_values = tl.where(of_prompt, prompt_v + held, own_v + base) + start * size
        seen = column < limit
        keys = tl.load(from_keys + column[None, :] * size + lane[:, None], mask=seen[None, :], other=0.0)
        values = tl.load(from_values + column[:, None] * size + lane[None, :], mask=seen[:, None], other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(best - higher)
        mixed = tl.dot(
            weight.to(values.dtype), values, mixed * shrink[:, None], input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    target = out + row * out_stride + head[:, None] * size + lane[None, :]
    tl.store(target, (mixed / mass[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


def attention(
    qkv: Tensor,  # [B, (H + 2 K) D]
    # int64 [B]: the position of each row's newest token, and its place in the own cache; -1: nothing is kept of it
    rows: tuple[Tensor, Tensor],
    heads: Heads,
    prompts: PromptCache,
    own: tuple[Tensor, Tensor],  # keys and values [B, K, budget, D]; the newest are written to their place
    shares: PromptShares | None,  # what `prompt_shares` found; None: each row reads its prompt itself
    out: Tensor,  # [B, H D]; rows may lie further apart than they are long
) -> None:
    """Each row over its prompt, over what it has written, and over its newest token."""
    (position, written), (own_k, own_v) = rows, own
    exact = qkv.dtype == torch.float32
    q_norm, k_norm = (qkv, qkv) if heads.norms is None else heads.norms
    top, mass, mixed = (qkv, qkv, qkv) if shares is None else (shares.top, shares.mass, shares.mixed)
    parts, batch = (1, len(qkv)) if shares is None else shares.top.shape[:2]
    # measured on an H200: with many rows small programs read as fast as memory gives, with few each has to be quick
    block, warps = (32, 1) if len(qkv) * heads.num_key_heads >= 512 else (64, 4)
    _attention[(len(qkv), heads.num_key_heads)](
        qkv, *heads.tables, position, written, q_norm, k_norm, prompts.keys, prompts.values, prompts.lengths,
        prompts.slot, own_k, own_v, top, mass, mixed, out, out.stride(0), batch, prompts.keys.shape[2], own_k.shape[2],
        parts, heads.scale, heads.epsilon, heads.num_heads, heads.num_key_heads, heads.size,
        32 if exact else block, heads.norms is not None, shares is not None, exact,
        num_warps=4 if exact else warps, num_stages=4 if warps == 1 and heads.size <= 64 else 3,
    )  # fmt: skip


@triton.jit
def _chunk_attention(  # type: ignore[no-untyped-def]
    query, out, first, sizes, num_cached, rows, slots, prompt_k, prompt_v, lengths, own_k, own_v,
    stride, longest, budget, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    exact: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    key_head = tl.program_id(1)
    shared: tl.constexpr = heads // key_heads
    tokens: tl.constexpr = tile // shared  # of one program
    begin = tl.program_id(2) * tokens
    new = tl.load(sizes + number)
    index = tl.arange(0, tile)
    token = begin + index // shared
    inside = (index < tokens * shared) & (token < new)
    lane = tl.arange(0, size)
    head = key_head * shared + index % shared
    spot = tl.where(inside, tl.load(first + number) + token, 0).to(tl.int64)
    queries = tl.load(query + (spot * stride + head * size)[:, None] + lane[None, :], mask=inside[:, None], other=0.0)
    row, slot = tl.load(rows + number), tl.load(slots + number)
    before = tl.load(num_cached + number)
    # past the row's last token there is nothing to do
    length = tl.where(begin < new, tl.load(lengths + slot), 0)
    limit = tl.where(begin < new, before + tl.minimum(begin + tokens, new), 0)
    best = tl.full((tile,), float("-inf"), tl.float32)
    mass = tl.zeros((tile,), tl.float32)
    mixed = tl.zeros((tile, size), tl.float32)
    held = (slot * key_heads + key_head) * longest * size
    best, mass, mixed = _seen(
        queries, prompt_k + held, prompt_v + held, length, lane, scale, best, mass, mixed, size, block, exact
    )
    base = (row * key_heads + key_head) * budget * size
    for start in range(0, limit, block):
        key = start + tl.arange(0, block)
        keys = tl.load(own_k + base + key[None, :] * size + lane[:, None], mask=key[None, :] < limit, other=0.0)
        score = tl.dot(queries, keys, input_precision="ieee" if exact else "tf32") * scale
        score = tl.where(key[None, :] <= (before + token)[:, None], score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        values = tl.load(own_v + base + key[:, None] * size + lane[None, :], mask=key[:, None] < limit, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(
            weight.to(values.dtype), values, input_precision="ieee" if exact else "tf32"
        )
        mass = mass * shrink + tl.sum(weight, axis=1)
        best = higher
    target = out + (spot * heads + head)[:, None] * size + lane[None, :]
    tl.store(target, (mixed / mass[:, None]).to(out.dtype.element_ty), mask=inside[:, None])


def chunk_attention(
    query: Tensor,  # [T, H, D], rotated; the tokens of a row without gaps
    prompts: tuple[Tensor, Tensor],  # keys and values [P, K, L, D], at least one key of each
    lengths: Tensor,  # int32 [P]
    own: tuple[Tensor, Tensor],  # keys and values [B, K, budget, D], the new ones among them
    spans: tuple[Tensor, ...],  # int64 [R] each: rows, their prompts, first tokens, numbers of tokens, own keys before
    longest: int,  # span
    scale: float,
) -> Tensor:
    """Each token over the prompt of its row and the row's own keys up to itself: [T, H, D]."""
    (prompt_k, prompt_v), (own_k, own_v), (rows, slots, first, sizes, num_cached) = prompts, own, spans
    num_heads, size = query.shape[1:]
    num_key_heads = own_k.shape[1]
    shared, exact = num_heads // num_key_heads, query.dtype == torch.float32
    tile = max(16 if exact else 64, triton.next_power_of_2(shared))
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    _chunk_attention[(len(rows), num_key_heads, triton.cdiv(longest, tile // shared))](
        query, out, first, sizes, num_cached, rows, slots, prompt_k, prompt_v, lengths, own_k, own_v,
        query.stride(0), prompt_k.shape[2], own_k.shape[2], scale,
        num_heads, num_key_heads, size, tile, 32 if exact else 64, exact, num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _scanned(base, width, inverse_temperature, block: tl.constexpr, blocks: tl.constexpr):  # type: ignore[no-untyped-def]
    """The largest value of each block of a row, and the mass of the block relative to it."""
    lane = tl.arange(0, block)
    number = tl.arange(0, blocks)
    tops = tl.full((blocks,), float("-inf"), tl.float32)
    masses = tl.zeros((blocks,), tl.float32)
    for current in range(0, tl.cdiv(width, block)):
        column = current * block + lane
        value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32) * inverse_temperature
        top = tl.max(value, axis=0)
        mass = tl.sum(tl.exp(value - tl.maximum(top, -3e38)), axis=0)  # of a block that has nothing: none
        tops = tl.where(number == current, top, tops)
        masses = tl.where(number == current, mass, masses)
    return tops, masses


@triton.jit
def _ordered(value, unused: tl.constexpr):  # type: ignore[no-untyped-def]
    """uint32 in the order of float32 `value`, without the low bits that its narrower kind leaves unused."""
    bits = (value + 0.0).to(tl.uint32, bitcast=True)  # -0 becomes 0
    key = bits ^ tl.where((bits >> 31) != 0, 0xFFFFFFFF, 0x80000000).to(tl.uint32)
    return key >> unused


@triton.jit
def _threshold(  # type: ignore[no-untyped-def]
    base, width, best, inverse_temperature, wanted, by_mass: tl.constexpr, unused: tl.constexpr, block: tl.constexpr
):
    """The largest key that as many tokens, or as much mass, reach as `wanted`: two bits of it per pass over the row."""
    lane = tl.arange(0, block)
    bits: tl.constexpr = (33 - unused) // 2 * 2  # even: two are found per pass
    low = tl.full((), 0, tl.uint32)
    step = tl.full((), 1 << (bits - 2), tl.uint32)
    for _ in range(0, bits // 2):
        first, second, third = low + step, low + 2 * step, low + 3 * step
        reach_first = tl.zeros((block,), tl.float32)
        reach_second = tl.zeros((block,), tl.float32)
        reach_third = tl.zeros((block,), tl.float32)
        for start in range(0, width, block):
            column = start + lane
            value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32)
            share = (column < width).to(tl.float32)
            if by_mass:
                share = tl.exp(value * inverse_temperature - best)
            key = _ordered(value, unused)
            reach_first += tl.where(key >= first, share, 0.0)
            reach_second += tl.where(key >= second, share, 0.0)
            reach_third += tl.where(key >= third, share, 0.0)
        low = tl.where(tl.sum(reach_first, axis=0) >= wanted, first, low)
        low = tl.where(tl.sum(reach_second, axis=0) >= wanted, second, low)
        low = tl.where(tl.sum(reach_third, axis=0) >= wanted, third, low)
        step = step >> 2
    return low


@triton.jit
def _in_support(value, column, width, best, low, inverse_temperature, min_p, unused: tl.constexpr):  # type: ignore[no-untyped-def]
    share = tl.exp(value * inverse_temperature - best)
    in_support = (column < width) & (_ordered(value, unused) >= low) & (share >= min_p)
    return in_support, tl.where(in_support, share, 0.0)


@triton.jit
def _sample(  # type: ignore[no-untyped-def]
    logits, uniform, last, done, cursor, first, final, tokens, logp, ends, ids_out, num_out,
    width, num_ends, inverse_temperature, top_k, top_p, min_p, room,
    ring: tl.constexpr, greedy: tl.constexpr, by_count: tl.constexpr, by_mass: tl.constexpr, by_share: tl.constexpr,
    unused: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    number = tl.arange(0, blocks)
    base = logits + row * width
    tops, masses = _scanned(base, width, inverse_temperature, block, blocks)
    best = tl.max(tops, axis=0)
    shares = masses * tl.exp(tops - best)
    mass = tl.sum(shares, axis=0)
    truncated: tl.constexpr = by_count or by_mass or by_share
    if greedy:
        here = tl.argmax(tops, axis=0) * block + lane
        value = tl.load(base + here, mask=here < width, other=float("-inf")).to(tl.float32)
        chosen = tl.minimum(tl.argmax(tops, axis=0) * block + tl.argmax(value, axis=0), width - 1)
    else:
        low = tl.full((), 0, tl.uint32)
        if by_count:
            low = _threshold(base, width, best, inverse_temperature, top_k, False, unused, block)
        if by_mass:
            whole = mass
            if by_count:
                whole = 0.0
                for start in range(0, width, block):
                    column = start + lane
                    value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32)
                    _, share = _in_support(value, column, width, best, low, inverse_temperature, 0.0, unused)
                    whole += tl.sum(share, axis=0)
            low = tl.maximum(
                low, _threshold(base, width, best, inverse_temperature, top_p * whole, True, unused, block)
            )
        if truncated:
            num = 0
            offset = row * ring
            if ring > 0:
                offset += (tl.load(cursor + row) - tl.load(first + row)) % ring
            for current in range(0, tl.cdiv(width, block)):
                column = current * block + lane
                value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32)
                in_support, share = _in_support(value, column, width, best, low, inverse_temperature, min_p, unused)
                shares = tl.where(number == current, tl.sum(share, axis=0), shares)
                if ring > 0:
                    spot = num + tl.cumsum(in_support.to(tl.int32), axis=0) - 1
                    tl.store(ids_out + offset * room + spot, column, mask=in_support & (spot < room))
                    num += tl.sum(in_support.to(tl.int32), axis=0)
            if ring > 0:
                tl.store(num_out + offset, num)
            mass = tl.sum(shares, axis=0)
        # the block in which the mass reaches the target, then the token; rounding at an end: the last that has any
        target = tl.load(uniform + row) * mass
        reached = (tl.cumsum(shares, axis=0) > target) & (shares > 0)
        current = tl.min(tl.where(reached, number, blocks), axis=0)
        current = tl.where(current == blocks, tl.max(tl.where(shares > 0, number, 0), axis=0), current)
        before = tl.sum(tl.where(number < current, shares, 0.0), axis=0)
        column = current * block + lane
        value = tl.load(base + column, mask=column < width, other=float("-inf")).to(tl.float32)
        _, share = _in_support(value, column, width, best, low, inverse_temperature, min_p, unused)
        found = (before + tl.cumsum(share, axis=0) > target) & (share > 0)
        chosen = tl.min(tl.where(found, column, width), axis=0)
        last_one = tl.max(tl.where(share > 0, column, current * block), axis=0)
        chosen = tl.where(chosen == width, last_one, chosen)
    value = tl.load(base + chosen).to(tl.float32) * inverse_temperature
    chosen = chosen.to(tl.int64)
    place, was = tl.load(cursor + row), tl.load(done + row) != 0
    ended = was | (place >= tl.load(final + row))
    for number in range(num_ends):
        ended |= chosen == tl.load(ends + number)
    tl.store(tokens + place, chosen)
    tl.store(logp + place, value - best - tl.log(mass))
    tl.store(last + row, chosen)
    tl.store(cursor + row, tl.where(was, place, place + 1))
    tl.store(done + row, ended.to(tl.uint8))


@dataclass(frozen=True)
class SupportRing:
    """The last few supports of each row: which tokens could be drawn, at most so many of them."""

    ids: Tensor  # int32 [B, ring, room]
    counts: Tensor  # int32 [B, ring]


def sample(
    logits: Tensor, uniform: Tensor, sampling: Sampling, rows: TokenRows, ring: SupportRing | None = None
) -> None:
    """Draw one token per row by inverting the cumulative distribution at `uniform` [B], and note it with its log-prob.

    What is kept is what `whet.rollout.sampling.kept_tokens` keeps: all that reaches a threshold.
    """
    count, width = logits.shape
    greedy = sampling.temperature == 0
    ids, num = (rows.last, rows.last) if ring is None else (ring.ids, ring.counts)
    places, room = (0, 0) if ring is None else ring.ids.shape[1:]
    truncates = sampling.truncates
    block = BLOCK if truncates else WIDE_BLOCK  # the search for a threshold holds more of each
    _sample[(count,)](
        logits, uniform, rows.last, rows.done.view(torch.uint8), rows.cursor, rows.first, rows.final, rows.tokens,
        rows.logp, rows.ends, ids, num, width, len(rows.ends), 1.0 if greedy else 1.0 / sampling.temperature,
        float(sampling.top_k), sampling.top_p, sampling.min_p, room, places, greedy,
        truncates and 0 < sampling.top_k < width, truncates and sampling.top_p < 1, truncates and sampling.min_p > 0,
        UNUSED_BITS[logits.dtype], block, triton.next_power_of_2(triton.cdiv(width, block)), num_warps=8,
    )  # fmt: skip


@triton.jit
def _begin(  # type: ignore[no-untyped-def]
    last, done, cursor, first, random, starts, read, embedding, position_out, written_out, uniform_out, residual,
    context, width, stride, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(cursor + row)
    written = tl.load(read + row) + place - tl.load(first + row) - 1
    written = tl.where(tl.load(done + row) != 0, -1, written)
    position = tl.minimum(tl.maximum(tl.load(starts + row) + written, 0), context - 1)
    tl.store(written_out + row, written)
    tl.store(position_out + row, position)
    tl.store(uniform_out + row, tl.load(random + place))
    column = tl.arange(0, block)
    inside = column < width
    value = tl.load(embedding + tl.load(last + row) * stride + column, mask=inside, other=0.0)
    tl.store(residual + row * width + column, value.to(tl.float32), mask=inside)


def begin(
    rows: TokenRows,
    starts: Tensor,  # int64 [B], the length of each row's prompt
    read: Tensor,  # int64 [B], own tokens that earlier turns left
    embedding: Tensor,  # [V, W]
    context: int,
    out: tuple[Tensor, Tensor, Tensor, Tensor],  # position, place in the own cache, random number; residual [B, W]
) -> None:
    """Where each row's newest token stands and goes, -1 for a row that is done; its random number; its embedding."""
    width, (position, written, uniform, residual) = embedding.shape[1], out
    block = triton.next_power_of_2(width)
    _begin[(len(residual),)](
        rows.last, rows.done.view(torch.uint8), rows.cursor, rows.first, rows.random, starts, read, embedding,
        position, written, uniform, residual, context, width, embedding.stride(0), block, num_warps=4,
    )  # fmt: skip
