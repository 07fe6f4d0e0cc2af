"""Triton kernels of the vocabulary head: what a chunk of logits is needed for, in one read and one write of it.

Imported only where CUDA and triton are there; `whet.model.head` has the same in torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _scored(logits, targets, norm, logp, entropy, width, scale, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, block)
    base = logits + row * width
    best = float("-inf")
    mass = 0.0
    mean = 0.0  # of the logits, times the mass
    for start in range(0, width, block):
        column = start + lane
        inside = column < width
        value = tl.load(base + column, mask=inside, other=float("-inf")).to(tl.float32) * scale
        higher = tl.maximum(best, tl.max(value, axis=0))
        share = tl.exp(value - higher)
        shrink = tl.exp(best - higher)
        mass = mass * shrink + tl.sum(share, axis=0)
        mean = mean * shrink + tl.sum(tl.where(share > 0, share * value, 0.0), axis=0)
        best = higher
    log_norm = best + tl.log(mass)
    chosen = tl.load(base + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(norm + row, log_norm)
    tl.store(logp + row, chosen - log_norm)
    tl.store(entropy + row, log_norm - mean / mass)


def scored(logits: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The logarithm of the normaliser, the targets' log-probability and the entropy of scale * logits [R, V]."""
    rows, width = logits.shape
    norm, logp, entropy = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
    _scored[(rows,)](logits, targets, norm, logp, entropy, width, scale, BLOCK, num_warps=8)
    return norm, logp, entropy


@triton.jit
def _to_shares(logits, norm, shares, width, scale, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    offset = row * width + column
    inside = column < width
    value = tl.load(logits + offset, mask=inside, other=0.0).to(tl.float32) * scale
    tl.store(shares + offset, tl.exp(value - tl.load(norm + row)).to(shares.dtype.element_ty), mask=inside)


def to_shares(logits: Tensor, norm: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """exp(scale * logits - norm) in a dtype of the same size, where the logits were."""
    rows, width = logits.shape
    shares = logits.view(dtype)
    _to_shares[(rows, triton.cdiv(width, BLOCK))](logits, norm, shares, width, scale, BLOCK, num_warps=8)
    return shares
