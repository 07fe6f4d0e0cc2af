"""The small operations between a plain decoder's products, each with its gradient written out.

On a CUDA device with triton they are one kernel each (`whet.model.layer_kernels`); elsewhere, and as what the kernels
are tested against, plain torch. S tokens, W width of a row, H heads of size D, F width of the MLP.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

Tables = tuple[Tensor, Tensor]  # cosine and sine, [S, D]


@functools.cache
def _triton() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from whet.model import layer_kernels

    return layer_kernels


def kernels_for(values: Tensor) -> ModuleType | None:
    """The kernels, where they run: on CUDA, below float64."""
    return _triton() if values.is_cuda and values.dtype != torch.float64 else None


def added_and_normed(x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tables:
    """(x + y, its RMS norm times weight in `dtype`), both [S, W]; x as it is where y is None."""
    kernels = kernels_for(x)
    if kernels is not None:
        found: Tables = kernels.added_and_normed(x, y, weight, epsilon, dtype)
        return found
    total = x if y is None else x + y
    return total, (_scaled(total, epsilon) * weight).to(dtype)


def norm_slope(x: Tensor, weight: Tensor, epsilon: float, slope: Tensor, carried: Tensor | None) -> Tables:
    """The gradient of x, `carried` added, and that of the weight, from the slope of the normed rows."""
    kernels = kernels_for(x)
    if kernels is not None:
        found: Tables = kernels.norm_slope(x, weight, epsilon, slope, carried)
        return found
    slope = slope.to(torch.promote_types(x.dtype, torch.float32))
    scale = _inverse_size(x, epsilon)
    normed = x * scale
    weight_slope = torch.linalg.vecdot(slope, normed, dim=0)
    pulled = slope * weight
    along = torch.linalg.vecdot(pulled, normed)[:, None] / x.shape[1]
    found_slope = torch.addcmul(pulled, normed, along, value=-1).mul_(scale)
    if carried is not None:
        found_slope.add_(carried)
    return found_slope.to(x.dtype), weight_slope.to(weight.dtype)


def _scaled(x: Tensor, epsilon: float) -> Tensor:
    return x * _inverse_size(x, epsilon)


def _inverse_size(x: Tensor, epsilon: float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return torch.rsqrt(length.square_().div_(x.shape[-1]).add_(epsilon))


def rotated(heads: Tensor, tables: Tables, back: bool = False) -> Tensor:
    """Heads [S, H, D] turned by their position; `back` is the transpose, for gradients."""
    kernels = kernels_for(heads)
    if kernels is not None and heads.shape[2] & (heads.shape[2] - 1) == 0:
        found: Tensor = kernels.rotated(heads, tables, back)
        return found
    cosine, sine = (each.unflatten(-1, (1, 2, -1)) for each in tables)  # [S, 1, 2 halves, D / 2]
    halves = heads.unflatten(-1, (2, -1))
    other = torch.stack((-halves[:, :, 1], halves[:, :, 0]), 2) if not back else None
    if other is not None:
        return torch.addcmul(halves * cosine, other, sine).flatten(-2).to(heads.dtype)
    leaned = halves * sine
    turned = torch.addcmul(torch.stack((leaned[:, :, 1], -leaned[:, :, 0]), 2), halves, cosine)
    return turned.flatten(-2).to(heads.dtype)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: [S, 2 F] -> [S, F]."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        found: Tensor = kernels.gated(gate_up)
        return found
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gated_slope(gate_up: Tensor, slope: Tensor) -> Tables:
    """`gated` once more, and the gradient of what went into it."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        found: Tables = kernels.gated_slope(gate_up, slope)
        return found
    gate, up = gate_up.chunk(2, -1)
    opened = F.silu(gate)
    slopes = torch.empty_like(gate_up)
    torch.mul(slope, opened, out=slopes[:, gate.shape[1] :])
    slopes[:, : gate.shape[1]] = torch.ops.aten.silu_backward(slope * up, gate)
    return opened.mul_(up), slopes
