"""Triton kernels of a block's small operations, one pass over memory each; in torch: `whet.model.layer_ops`.

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


def _grad_warps(block: int, learns: bool) -> int:
    """Two hold more of a long row each, and wait less for one another; the sums of a very long one need more room."""
    return 4 if block <= 1024 else 8 if learns and block > 2048 else 2


@triton.jit
def _added_and_normed(  # type: ignore[no-untyped-def]
    x, y, weight, total, out, width, out_stride, epsilon, has_y: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, block)
    inside = column < width
    value = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
    if has_y:
        value += tl.load(y + row * width + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row * width + column, value.to(total.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + epsilon)
    normed = value * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, normed.to(out.dtype.element_ty), mask=inside)


def added_and_normed(
    x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x + y and its RMS norm, in one kernel; y may be None."""
    rows, width = x.shape
    total = x if y is None else torch.empty_like(x)
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    block = triton.next_power_of_2(width)
    tensors = (x, x if y is None else y, weight, total, out)
    _added_and_normed[(rows,)](*tensors, width, width, epsilon, y is not None, block, num_warps=_warps(block))
    return total, out


def add_norm(x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, out: Tensor) -> None:
    """x [B, W] += y in place, out = rmsnorm(x) * weight. Rows of `out` may lie further apart than they are long."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    tensors = (x, x if y is None else y, weight, x, out)
    _added_and_normed[(rows,)](*tensors, width, out.stride(0), epsilon, y is not None, block, num_warps=_warps(block))


@triton.jit
def _norm_grad(  # type: ignore[no-untyped-def]
    x, weight, grad, carried, out, narrow, normed_out, partial, rows, width, epsilon,
    has_carried: tl.constexpr, learns: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, block)
    inside = column < width
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    summed = tl.zeros((block,), tl.float32)
    for number in range(program, rows, tl.num_programs(0)):
        row = tl.cast(number, tl.int64) * width
        value = tl.load(x + row + column, mask=inside, other=0.0).to(tl.float32)
        pull = tl.load(grad + row + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value, axis=0) / width + epsilon)
        normed = value * scale
        if learns:
            summed += pull * normed
        pull = pull * factor
        grad_in = (pull - normed * (tl.sum(pull * normed, axis=0) / width)) * scale
        if has_carried:
            grad_in += tl.load(carried + row + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row + column, grad_in.to(out.dtype.element_ty), mask=inside)
        tl.store(narrow + row + column, grad_in.to(narrow.dtype.element_ty), mask=inside)
        tl.store(normed_out + row + column, (normed * factor).to(normed_out.dtype.element_ty), mask=inside)
    if learns:
        tl.store(partial + program * width + column, summed, mask=inside)


def norm_grad(
    x: Tensor, weight: Tensor, epsilon: float, grad: Tensor, carried: Tensor | None, learns: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The gradient of `added_and_normed`; `carried` is what reaches the sum by another way."""
    rows, width = x.shape
    programs = min(rows, PROGRAMS)
    out, normed = torch.empty_like(x), torch.empty_like(grad)
    narrow = out if x.dtype == grad.dtype else torch.empty_like(grad)
    partial = torch.empty(programs, width, dtype=torch.float32, device=x.device) if learns else out
    block = triton.next_power_of_2(width)
    tensors = (x, weight, grad, x if carried is None else carried, out, narrow, normed, partial)
    _norm_grad[(programs,)](
        *tensors, rows, width, epsilon, carried is not None, learns, block, num_warps=_grad_warps(block, learns)
    )
    return out, narrow, partial.sum(0).to(weight.dtype) if learns else None, normed


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    heads, cosine, sine, row_stride, turned, size: tl.constexpr, many: tl.constexpr, back: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = size // 2
    head = tl.arange(0, many)
    low = tl.arange(0, half)
    inside = (head < turned)[:, None]
    address = heads + row * row_stride + head[:, None] * size + low[None, :]
    first = tl.load(address, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(address + half, mask=inside, other=0.0).to(tl.float32)
    turn = row * size + low
    cosine_low, cosine_high = tl.load(cosine + turn)[None, :], tl.load(cosine + turn + half)[None, :]
    sine_low, sine_high = tl.load(sine + turn)[None, :], tl.load(sine + turn + half)[None, :]
    if back:
        leaned = first * cosine_low + second * sine_high
        second = second * cosine_high - first * sine_low
    else:
        leaned = first * cosine_low - second * sine_low
        second = second * cosine_high + first * sine_high
    tl.store(address, leaned.to(heads.dtype.element_ty), mask=inside)
    tl.store(address + half, second.to(heads.dtype.element_ty), mask=inside)


def rotate(heads: Tensor, turned: int, tables: tuple[Tensor, Tensor], back: bool = False) -> None:
    """The first heads of [S, H, D] in place; back: the transpose of that."""
    rows, _, size = heads.shape
    many = triton.next_power_of_2(turned)
    warps = 1 if many * size <= 1024 else 4
    _rotate[(rows,)](heads, *tables, heads.stride(0), turned, size, many, back, num_warps=warps)


@triton.jit
def _joined(  # type: ignore[no-untyped-def]
    out, norm, other, other_norm, first, norm_stride, other_stride,
    heads: tl.constexpr, size: tl.constexpr, many: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, many)
    inside = head < heads
    ours = tl.load(norm + head * norm_stride + first + row, mask=inside, other=0.0)
    theirs = tl.load(other_norm + head * other_stride + row, mask=inside, other=0.0)
    top = tl.maximum(ours, theirs)
    together = top + tl.log(tl.exp(ours - top) + tl.exp(theirs - top))
    tl.store(norm + head * norm_stride + first + row, together, mask=inside)
    lane = tl.arange(0, lanes)[None, :]
    within = inside[:, None] & (lane < size)
    offset = head[:, None] * size + lane
    target = out + (first + row) * heads * size + offset
    mixed = tl.load(target, mask=within, other=0.0).to(tl.float32) * tl.exp(ours - together)[:, None]
    mixed += (
        tl.load(other + row * heads * size + offset, mask=within, other=0.0).to(tl.float32)
        * tl.exp(theirs - together)[:, None]
    )
    tl.store(target, mixed.to(out.dtype.element_ty), mask=within)


def join(out: Tensor, norm: Tensor, other: Tensor, other_norm: Tensor) -> None:
    """Two halves of one softmax, the second for the last rows: out [S, H, E] and norm [H, S] become the whole."""
    rows, heads, size = other.shape
    many, lanes = triton.next_power_of_2(heads), triton.next_power_of_2(size)
    _joined[(rows,)](
        out, norm, other, other_norm, len(out) - rows, norm.stride(0), other_norm.stride(0), heads, size, many, lanes,
        num_warps=1 if many * lanes <= 1024 else 4,
    )  # fmt: skip


@triton.jit
def _gated(x, out, width, out_stride, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0)
    opened = (gate * tl.sigmoid(gate)).to(x.dtype.element_ty)
    tl.store(out + row * out_stride + column, opened * up, mask=inside)


def _block(width: int) -> int:
    return min(1024, triton.next_power_of_2(width))


def gated(gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """silu(gate) * up of rows [gate, up]; rows of `out` may lie further apart than they are long."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = _block(width)
    _gated[(rows, triton.cdiv(width, block))](gate_up, out, width, out.stride(0), block, num_warps=4)
    return out


@triton.jit
def _gated_grad(x, grad, opened_out, grads, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < width
    gate = tl.load(x + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + column, mask=inside, other=0.0)
    pull = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
    share = tl.sigmoid(gate)
    opened = gate * share
    kind = x.dtype.element_ty
    tl.store(opened_out + row * width + column, opened.to(kind) * up, mask=inside)
    up = up.to(tl.float32)
    tl.store(grads + row * 2 * width + column, (pull * up * (share + opened * (1 - share))).to(kind), mask=inside)
    tl.store(grads + row * 2 * width + width + column, (pull * opened).to(kind), mask=inside)


def gated_grad(gate_up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """`gated` once more, and the gradient of what went into it."""
    rows, width = grad.shape
    opened, grads = torch.empty_like(grad), torch.empty_like(gate_up)
    block = _block(width)
    _gated_grad[(rows, triton.cdiv(width, block))](gate_up, grad, opened, grads, width, block, num_warps=4)
    return opened, grads


@triton.jit
def _merged(  # type: ignore[no-untyped-def]
    base, up, down, out, seed, rows, columns, base_stride, up_stride, num_ranks,
    ranks: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * height + tl.arange(0, height)
    column = tl.program_id(1) * width + tl.arange(0, width)
    rank = tl.arange(0, ranks)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    held = rank < num_ranks
    at_row, at_column = (row < rows)[:, None] & held[None, :], held[:, None] & (column < columns)[None, :]
    left = tl.load(up + row[:, None] * up_stride + rank[None, :], mask=at_row, other=0.0)
    right = tl.load(down + rank[:, None] * columns + column[None, :], mask=at_column, other=0.0)
    wide = row.to(tl.int64)[:, None]
    total = tl.load(base + wide * base_stride + column[None, :], mask=inside, other=0.0).to(tl.float32)
    total += tl.dot(left, right, input_precision="ieee")
    noise = tl.randint(seed, row[:, None] * columns + column[None, :]) & 0xFFFF
    bits = total.to(tl.uint32, bitcast=True)
    is_finite = (bits & 0x7F800000) != 0x7F800000
    total = tl.where(is_finite, (bits + noise) & 0xFFFF0000, bits).to(tl.float32, bitcast=True)
    tl.store(out + wide * columns + column[None, :], total.to(out.dtype.element_ty), mask=inside)


def merged(base: Tensor, up: Tensor, down: Tensor, seed: int, out: Tensor) -> None:
    """out = base + up @ down in bfloat16, rounded at random: up or down so that the mean is right.

    The random numbers are those of the seed, always the same.
    """
    rows, columns = out.shape
    ranks = max(16, triton.next_power_of_2(len(down)))
    _merged[(triton.cdiv(rows, 64), triton.cdiv(columns, 64))](
        base, up, down, out, seed, rows, columns, base.stride(0), up.stride(0), len(down), ranks, 64, 64, num_warps=4
    )
