"""Triton kernels of attention on a shared-prefix batch: a completion reads its prompt and itself in one softmax.

Forward one kernel. Backward two: one over blocks of queries, one over blocks of keys. The keys of a prompt are read by
all its completions; those queries are shared out among several programs, whose sums a third kernel adds up, always in
the same order. Which rows a block works on stands in small tables that are made once per batch.

Imported only where triton is there; `whet.model.shared_prefix_attention` has the same in torch. Shapes: S tokens, H
query heads, K key heads, D head size. Queries, keys and values may lie side by side in one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from whet.model.attention_tables import attention_tables
from whet.model.shared_prefix import Segments

LOG2E = 1.4426950408889634
SUMMED_ROWS = 8  # of a block of keys, that one program adds up


@dataclass(frozen=True)
class Tiles:
    """Rows of queries and keys that a program holds at a time, its warps and its stages."""

    queries: int
    keys: int
    warps: int
    stages: int


def _tiles(size: int) -> tuple[Tiles, Tiles, Tiles]:
    """Tile sizes for the forward pass, for the gradient of queries, and for that of keys and values."""
    if size <= 64:
        return Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2)
    if size <= 128:
        return Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2)
    return Tiles(64, 32, 8, 2), Tiles(32, 32, 8, 2), Tiles(32, 32, 8, 2)


@triton.jit
def _scores_of(  # type: ignore[no-untyped-def]
    query, key, value, best, mass, mixed, at, key_stride, value_stride, scale, inside, valid, column, lane,
    masked: tl.constexpr,
):  # fmt: skip
    """One block of keys into the running softmax."""
    # a block's place is one wide number, and within it narrow ones do
    at = tl.cast(at, tl.int64)
    from_keys = key + at * key_stride + (column[:, None] * key_stride + lane[None, :])
    from_values = value + at * value_stride + (column[:, None] * value_stride + lane[None, :])
    if masked:
        keys = tl.load(from_keys, mask=valid[:, None], other=0.0)
        values = tl.load(from_values, mask=valid[:, None], other=0.0)
    else:
        keys = tl.load(from_keys)
        values = tl.load(from_values)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if masked:
        score = tl.where(inside, score, float("-inf"))
    higher = tl.maximum(best, tl.max(score, axis=1))
    weight = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(best - higher)
    mixed = mixed * shrink[:, None]
    mixed = tl.dot(weight.to(values.dtype), values, mixed, input_precision="ieee")
    return higher, mass * shrink + tl.sum(weight, axis=1), mixed


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, out, norm, table, query_stride, key_stride, value_stride, rows, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    entry = table + tl.program_id(0) * 5
    head = tl.program_id(1)
    start, first, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    above, length = tl.load(entry + 3), tl.load(entry + 4)
    key = k + (head // (heads // key_heads)) * size
    value = v + (head // (heads // key_heads)) * size
    row = start + tl.arange(0, block_q)
    there = row < end
    lane = tl.arange(0, size)
    column = tl.arange(0, block_k)
    wide = row.to(tl.int64)
    query = tl.load(q + wide[:, None] * query_stride + head * size + lane[None, :], mask=there[:, None], other=0.0)
    best = tl.full((block_q,), -1e30, tl.float32)
    mass = tl.zeros((block_q,), tl.float32)
    mixed = tl.zeros((block_q, size), tl.float32)
    whole = length // block_k * block_k
    for at in range(0, whole, block_k):
        best, mass, mixed = _scores_of(
            query, key, value, best, mass, mixed, above + at, key_stride, value_stride, scale, there,
            there, column, lane, False,
        )  # fmt: skip
    if whole < length:
        inside = (whole + column < length)[None, :] & (row[:, None] >= 0)
        best, mass, mixed = _scores_of(
            query, key, value, best, mass, mixed, above + whole, key_stride, value_stride, scale, inside,
            whole + column < length, column, lane, True,
        )  # fmt: skip
    for at in range(first, start, block_k):
        best, mass, mixed = _scores_of(
            query, key, value, best, mass, mixed, at, key_stride, value_stride, scale, there, there, column, lane,
            False,
        )  # fmt: skip
    for at in range(start, tl.minimum(start + block_q, end), block_k):
        own = at + column
        inside = (own[None, :] <= row[:, None]) & (own < end)[None, :]
        best, mass, mixed = _scores_of(
            query,
            key,
            value,
            best,
            mass,
            mixed,
            at,
            key_stride,
            value_stride,
            scale,
            inside,
            own < end,
            column,
            lane,
            True,
        )
    mixed = mixed / mass[:, None]
    tl.store(norm + head * rows + row, best + tl.log2(mass), mask=there)
    offset = (wide[:, None] * heads + head) * size + lane[None, :]
    tl.store(out + offset, mixed.to(out.dtype.element_ty), mask=there[:, None])


@triton.jit
def _query_pull(  # type: ignore[no-untyped-def]
    query, pull, grad_query, norm, along, key, value, at, key_stride, value_stride, scale, inside, valid, column, lane,
    masked: tl.constexpr,
):  # fmt: skip
    """What one block of keys adds to the gradient of the queries."""
    # a block's place is one wide number, and within it narrow ones do
    at = tl.cast(at, tl.int64)
    from_keys = key + at * key_stride + (column[:, None] * key_stride + lane[None, :])
    from_values = value + at * value_stride + (column[:, None] * value_stride + lane[None, :])
    if masked:
        keys = tl.load(from_keys, mask=valid[:, None], other=0.0)
        values = tl.load(from_values, mask=valid[:, None], other=0.0)
    else:
        keys = tl.load(from_keys)
        values = tl.load(from_values)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    share = tl.exp2(score - norm[:, None])
    if masked:
        share = tl.where(inside, share, 0.0)
    pulled = tl.dot(pull, tl.trans(values), input_precision="ieee")
    lean = share * (pulled - along[:, None])
    return tl.dot(lean.to(keys.dtype), keys, grad_query, input_precision="ieee")


@triton.jit
def _query_grad(  # type: ignore[no-untyped-def]
    q, k, v, out, grad, norm, target, product, table,
    query_stride, key_stride, value_stride, target_stride, rows, scale, late,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    entry = table + tl.program_id(0) * 5
    head = tl.program_id(1)
    start, first, end = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    above, length = tl.load(entry + 3), tl.load(entry + 4)
    key = k + (head // (heads // key_heads)) * size
    value = v + (head // (heads // key_heads)) * size
    row = start + tl.arange(0, block_q)
    there = row < end
    lane = tl.arange(0, size)
    column = tl.arange(0, block_k)
    wide = row.to(tl.int64)
    query = tl.load(q + wide[:, None] * query_stride + head * size + lane[None, :], mask=there[:, None], other=0.0)
    offset = (wide[:, None] * heads + head) * size + lane[None, :]
    pull = tl.load(grad + offset, mask=there[:, None], other=0.0)
    mixed = tl.load(out + offset, mask=there[:, None], other=0.0)
    along = tl.sum(pull.to(tl.float32) * mixed.to(tl.float32), axis=1)
    tl.store(product + head * rows + row, along, mask=there)
    total = tl.load(norm + head * rows + row, mask=there, other=0.0)
    grad_query = tl.zeros((block_q, size), tl.float32)
    whole = length // block_k * block_k
    for at in range(0, whole, block_k):
        grad_query = _query_pull(
            query, pull, grad_query, total, along, key, value, above + at, key_stride, value_stride, scale, there,
            there, column, lane, False,
        )  # fmt: skip
    if whole < length:
        inside = (whole + column < length)[None, :] & (row[:, None] >= 0)
        grad_query = _query_pull(
            query, pull, grad_query, total, along, key, value, above + whole, key_stride, value_stride, scale,
            inside, whole + column < length, column, lane, True,
        )  # fmt: skip
    for at in range(first, start, block_k):
        grad_query = _query_pull(
            query, pull, grad_query, total, along, key, value, at, key_stride, value_stride, scale, there, there,
            column, lane, False,
        )  # fmt: skip
    for at in range(start, tl.minimum(start + block_q, end), block_k):
        own = at + column
        inside = (own[None, :] <= row[:, None]) & (own < end)[None, :]
        grad_query = _query_pull(
            query, pull, grad_query, total, along, key, value, at, key_stride, value_stride, scale, inside, own < end,
            column, lane, True,
        )  # fmt: skip
    spot = target + wide[:, None] * target_stride + head * size + lane[None, :]
    tl.store(spot, (grad_query * late).to(target.dtype.element_ty), mask=there[:, None])


@triton.jit
def _key_pull(  # type: ignore[no-untyped-def]
    keys, values, key_found, value_found, query, grad, norm, product, at, last, sees, query_stride, grad_stride, scale,
    column, lane,
):  # fmt: skip
    """What one block of queries adds to the gradients of keys and values."""
    other = at + column
    there = other < last
    start = tl.cast(at, tl.int64)
    from_queries = query + start * query_stride + (column[:, None] * query_stride + lane[None, :])
    queries = tl.load(from_queries, mask=there[:, None], other=0.0)
    from_grad = grad + start * grad_stride + (column[:, None] * grad_stride + lane[None, :])
    pull = tl.load(from_grad, mask=there[:, None], other=0.0)
    # where there is no query the norm is infinite: its share is 0
    total = tl.load(norm + other, mask=there, other=float("inf"))
    along = tl.load(product + other, mask=there, other=0.0)
    score = tl.dot(keys, tl.trans(queries), input_precision="ieee") * scale
    share = tl.where(sees[:, None] <= other[None, :], tl.exp2(score - total[None, :]), 0.0)
    value_found = tl.dot(share.to(pull.dtype), pull, value_found, input_precision="ieee")
    pulled = tl.dot(values, tl.trans(pull), input_precision="ieee")
    lean = share * (pulled - along[None, :])
    key_found = tl.dot(lean.to(queries.dtype), queries, key_found, input_precision="ieee")
    return key_found, value_found


@triton.jit
def _key_grad(  # type: ignore[no-untyped-def]
    q, k, v, grad, norm, product, key_target, value_target, partial, table,
    query_stride, key_stride, value_stride, key_target_stride, value_target_stride, rows, scale, late,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    entry = table + tl.program_id(0) * 6
    key_head = tl.program_id(1)
    start, end = tl.load(entry), tl.load(entry + 1)
    first, last = tl.load(entry + 2), tl.load(entry + 3)
    causal, slot = tl.load(entry + 4), tl.load(entry + 5)
    shared: tl.constexpr = heads // key_heads
    row = start + tl.arange(0, block_k)
    there = row < end
    lane = tl.arange(0, size)
    column = tl.arange(0, block_q)
    wide = row.to(tl.int64)
    keys = tl.load(k + wide[:, None] * key_stride + key_head * size + lane[None, :], mask=there[:, None], other=0.0)
    values = tl.load(v + wide[:, None] * value_stride + key_head * size + lane[None, :], mask=there[:, None], other=0.0)
    key_found = tl.zeros((block_k, size), tl.float32)
    value_found = tl.zeros((block_k, size), tl.float32)
    sees = tl.where(causal > 0, row, 0)  # the first query that a key is seen by
    for member in range(shared):
        head = key_head * shared + member
        for at in range(first, last, block_q):
            key_found, value_found = _key_pull(
                keys, values, key_found, value_found, q + head * size, grad + head * size, norm + head * rows,
                product + head * rows, at, last, sees, query_stride, heads * size, scale, column, lane,
            )  # fmt: skip
    key_found = key_found * late
    if slot == 0:
        spot = wide[:, None] * key_target_stride + key_head * size + lane[None, :]
        tl.store(key_target + spot, key_found.to(key_target.dtype.element_ty), mask=there[:, None])
        spot = wide[:, None] * value_target_stride + key_head * size + lane[None, :]
        tl.store(value_target + spot, value_found.to(value_target.dtype.element_ty), mask=there[:, None])
    else:
        area: tl.constexpr = block_k * size
        base = partial + ((slot.to(tl.int64) - 1) * key_heads + key_head) * 2 * area
        cell = tl.arange(0, block_k)[:, None] * size + lane[None, :]
        tl.store(base + cell, key_found)
        tl.store(base + area + cell, value_found)


@triton.jit
def _summed(  # type: ignore[no-untyped-def]
    partial, key_target, value_target, table, key_target_stride, value_target_stride,
    key_heads: tl.constexpr, size: tl.constexpr, block_k: tl.constexpr, part: tl.constexpr,
):  # fmt: skip
    entry = table + tl.program_id(0) * 4
    key_head = tl.program_id(1)
    start, end, slot, count = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    area: tl.constexpr = block_k * size
    lane = tl.arange(0, size)
    inner = tl.program_id(2) * part + tl.arange(0, part)
    there = start + inner < end
    cell = inner[:, None] * size + lane[None, :]
    key_found = tl.zeros((part, size), tl.float32)
    value_found = tl.zeros((part, size), tl.float32)
    for number in range(slot, slot + count):
        base = partial + (tl.cast(number, tl.int64) * key_heads + key_head) * 2 * area
        key_found += tl.load(base + cell)
        value_found += tl.load(base + area + cell)
    wide = (start + inner).to(tl.int64)
    offset = wide[:, None] * key_target_stride + key_head * size + lane[None, :]
    tl.store(key_target + offset, key_found.to(key_target.dtype.element_ty), mask=there[:, None])
    offset = wide[:, None] * value_target_stride + key_head * size + lane[None, :]
    tl.store(value_target + offset, value_found.to(value_target.dtype.element_ty), mask=there[:, None])


def forward(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> tuple[Tensor, Tensor]:
    """Output [S, H, D], and the logarithm to base 2 of its normaliser [H, S]."""
    rows, heads, size = query.shape
    tiles = _tiles(size)[0]
    tables = _tables(segments, key)
    out = torch.empty(rows, heads, size, dtype=query.dtype, device=query.device)
    norm = torch.empty(heads, rows, dtype=torch.float32, device=query.device)
    _forward[(len(tables[0]), heads)](
        query, key, value, out, norm, tables[0], query.stride(0), key.stride(0), value.stride(0), rows, scale * LOG2E,
        heads, key.shape[1], size, tiles.queries, tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, norm


def backward(
    grad: Tensor, saved: Sequence[Tensor], segments: Segments, scale: float, targets: Sequence[Tensor]
) -> None:
    """Grads of queries, keys and values into `targets`; saved are these three, output and norm."""
    query, key, value, out, norm = saved
    rows, heads, size = query.shape
    key_heads = key.shape[1]
    _, of_query, of_key = _tiles(size)
    _, query_table, key_table, sum_table, num_slots = _tables(segments, key)
    product = torch.empty_like(norm)
    strides = (query.stride(0), key.stride(0), value.stride(0))
    _query_grad[(len(query_table), heads)](
        query, key, value, out, grad, norm, targets[0], product, query_table, *strides, targets[0].stride(0), rows,
        scale * LOG2E, scale, heads, key_heads, size, of_query.queries, of_query.keys,
        num_warps=of_query.warps, num_stages=of_query.stages,
    )  # fmt: skip
    area = of_key.keys * size
    partial = torch.empty(max(num_slots, 1) * key_heads * 2 * area, dtype=torch.float32, device=query.device)
    ends = (targets[1].stride(0), targets[2].stride(0))
    _key_grad[(len(key_table), key_heads)](
        query, key, value, grad, norm, product, targets[1], targets[2], partial, key_table, *strides, *ends, rows,
        scale * LOG2E, scale, heads, key_heads, size, of_key.queries, of_key.keys,
        num_warps=of_key.warps, num_stages=of_key.stages,
    )  # fmt: skip
    if num_slots:
        _summed[(len(sum_table), key_heads, of_key.keys // SUMMED_ROWS)](
            partial, targets[1], targets[2], sum_table, *ends, key_heads, size, of_key.keys, SUMMED_ROWS, num_warps=2
        )


def _tables(segments: Segments, key: Tensor) -> tuple[Any, ...]:
    """Tables for the forward pass, for the gradients of queries and of keys, for the sums; and the number of slots."""
    _, key_heads, size = key.shape
    known = segments.tables.get((size, key_heads))
    if known is None:
        ahead, of_query, of_key = _tiles(size)
        one = other = attention_tables(segments, ahead.queries, of_key.keys, key_heads, key.device)
        if of_query.queries != ahead.queries:
            other = attention_tables(segments, of_query.queries, of_key.keys, key_heads, key.device)
        known = segments.tables[(size, key_heads)] = (one.queries, other.queries, one.keys, one.sums, one.num_slots)
    return known
