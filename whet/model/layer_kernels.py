"""Triton kernels of a plain layer's small operations, one pass over memory each: `whet.model.pieces` has them in torch.

Imported only where CUDA and triton are there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1056  # that share the rows of a norm's gradient: eight on each of an H100's multiprocessors


def _warps(block: int) -> int:
    return 2 if block <= 512 else 4 if block <= 2048 else 8


@triton.jit
def _added_and_normed(x, y, weight, total, out, width, epsilon, has_y: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if has_y:
        value += tl.load(y + row * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + column, value.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + epsilon)
    normed = value * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, normed.to(out.dtype.element_ty), mask=inside)


def added_and_normed(
    x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    total = x if y is None else torch.empty_like(x)
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    block = triton.next_power_of_2(width)
    _added_and_normed[(rows,)](
        x, x if y is None else y, weight, total, out, width, epsilon, y is not None, block, num_warps=_warps(block)
    )
    return total, out


def add_norm(x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, out: Tensor) -> None:
    """x [B, W] += y in place, out = rmsnorm(x) * weight."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _added_and_normed[(rows,)](
        x, x if y is None else y, weight, x, out, width, epsilon, y is not None, block, num_warps=_warps(block)
    )


@triton.jit
def _norm_slope(  # type: ignore[no-untyped-def]
    x, weight, slope, carried, out, partial, rows, width, epsilon, has_carried: tl.constexpr, block: tl.constexpr
):
    program = tl.program_id(0)
    column = tl.arange(0, block)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((block,), tl.float32)
    for number in range(program, rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64) * width
        value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
        pull = tl.load(slope + row + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + epsilon)
        normed = value * scale
        summed += pull * normed
        pull = pull * factor
        found = (pull - normed * (tl.sum(pull * normed, axis=0) / width)) * scale
        if has_carried:
            found += tl.load(carried + row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row + column, found.to(out.dtype.element_ty), mask=inside)
    tl.store(partial + program * width + column, summed, mask=inside)


def norm_slope(
    x: Tensor, weight: Tensor, epsilon: float, slope: Tensor, carried: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    programs = min(rows, PROGRAMS)
    out = torch.empty_like(x)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(width)
    _norm_slope[(programs,)](
        x, weight, slope, x if carried is None else carried, out, partial, rows, width, epsilon,
        carried is not None, block, num_warps=_warps(block),
    )  # fmt: skip
    return out, partial.sum(0).to(weight.dtype)


@triton.jit
def _rotated(  # type: ignore[no-untyped-def]
    source, target, cosine, sine, row_stride, heads,
    size: tl.constexpr, many: tl.constexpr, back: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = size // 2
    head = tl.arange(0, many)
    low = tl.arange(0, half)
    inside = (head < heads)[:, None]
    place = head[:, None] * size + low[None, :]
    first = tl.load(source + row * row_stride + place, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + row * row_stride + place + half, mask=inside, other=0.0).to(tl.float32)
    cosine_low = tl.load(cosine + row * size + low)[None, :]
    cosine_high = tl.load(cosine + row * size + half + low)[None, :]
    sine_low = tl.load(sine + row * size + low)[None, :]
    sine_high = tl.load(sine + row * size + half + low)[None, :]
    if back:
        turned_first = first * cosine_low + second * sine_high
        turned_second = second * cosine_high - first * sine_low
    else:
        turned_first = first * cosine_low - second * sine_low
        turned_second = second * cosine_high + first * sine_high
    base = target + row * heads * size + place
    tl.store(base, turned_first.to(target.dtype.element_ty), mask=inside)
    tl.store(base + half, turned_second.to(target.dtype.element_ty), mask=inside)


def rotated(heads: Tensor, tables: tuple[Tensor, Tensor], back: bool) -> Tensor:
    rows, count, size = heads.shape
    if heads.stride(1) != size or heads.stride(2) != 1:
        heads = heads.contiguous()
    target = torch.empty(rows, count, size, dtype=heads.dtype, device=heads.device)
    many = triton.next_power_of_2(count)
    _rotated[(rows,)](
        heads, target, *tables, heads.stride(0), count, size, many, back, num_warps=1 if many * size <= 1024 else 4
    )
    return target


@triton.jit
def _gated(x, out, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0)
    opened = (gate * tl.sigmoid(gate)).to(x.dtype.element_ty)
    tl.store(out + row * width + column, opened * up, mask=inside)


def _block(width: int) -> int:
    return min(1024, triton.next_power_of_2(width))


def gated(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = _block(width)
    _gated[(rows, triton.cdiv(width, block))](gate_up, out, width, block, num_warps=4)
    return out


@triton.jit
def _gated_slope(x, slope, opened_out, slopes, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0)
    pull = tl.load(slope + row * width + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    opened = gate * share
    kind = x.dtype.element_ty
    tl.store(opened_out + row * width + column, opened.to(kind) * up, mask=inside)
    up = up.to(tl.float32)
    tl.store(slopes + row * 2 * width + column, (pull * up * (share + opened * (1 - share))).to(kind), mask=inside)
    tl.store(slopes + row * 2 * width + width + column, (pull * opened).to(kind), mask=inside)


def gated_slope(gate_up: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    rows, width = slope.shape
    opened, slopes = torch.empty_like(slope), torch.empty_like(gate_up)
    block = _block(width)
    _gated_slope[(rows, triton.cdiv(width, block))](gate_up, slope, opened, slopes, width, block, num_warps=4)
    return opened, slopes
