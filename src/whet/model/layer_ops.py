"""The small operations between a plain decoder's products, each with its gradient written out.

On a CUDA device with triton they are one kernel each (`whet.model.layer_kernels`); elsewhere, and as what the kernels
are tested against, plain torch. S tokens, W width of a row, H heads of size D, F width of the MLP.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
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
    return total, (total * _inverse_size(total, epsilon) * weight).to(dtype)


@dataclass(frozen=True)
class NormGrad:
    x: Tensor  # [S, W], with what was carried
    narrow: Tensor  # the same in the dtype of the products
    weight: Tensor | None  # [W]; None where there is no norm, or it does not learn
    normed: Tensor  # [S, W], the norm's result once more, in the dtype of the products


def norm_grad(
    x: Tensor, weight: Tensor, epsilon: float, grad: Tensor, carried: Tensor | None, learns: bool = True
) -> NormGrad:
    """The gradient of x, `carried` added, and of the weight where it learns, from the grad of the normed rows."""
    kernels = kernels_for(x)
    if kernels is not None:
        return NormGrad(*kernels.norm_grad(x, weight, epsilon, grad, carried, learns))
    dtype = grad.dtype
    grad = grad.to(torch.promote_types(x.dtype, torch.float32))
    scale = _inverse_size(x, epsilon)
    normed = x * scale
    weight_grad = torch.linalg.vecdot(grad, normed, dim=0).to(weight.dtype) if learns else None
    pulled = grad * weight
    along = torch.linalg.vecdot(pulled, normed)[:, None] / x.shape[1]
    found = torch.addcmul(pulled, normed, along, value=-1).mul_(scale)
    if carried is not None:
        found.add_(carried)
    found = found.to(x.dtype)
    return NormGrad(found, found.to(dtype), weight_grad, (normed * weight).to(dtype))


def _inverse_size(x: Tensor, epsilon: float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return torch.rsqrt(length.square_().div_(x.shape[-1]).add_(epsilon))


def rotated(heads: Tensor, turned: int, tables: Tables) -> Tensor:
    """The first heads of [S, H, D] turned by their position, the others as they are; in place where that is quicker."""
    kernels = kernels_for(heads)
    if kernels is not None and is_power(heads.shape[2]):
        kernels.rotate(heads, turned, tables)
        return heads
    cosine, sine = (each.unflatten(-1, (1, 2, -1)) for each in tables)  # [S, 1, 2 halves, D / 2]
    halves = heads[:, :turned].unflatten(-1, (2, -1))
    other = torch.stack((-halves[:, :, 1], halves[:, :, 0]), 2)
    found = torch.addcmul(halves * cosine, other, sine).flatten(-2).to(heads.dtype)
    heads[:, :turned] = found
    return heads


def turned_back(heads: Tensor, turned: int, tables: Tables) -> Tensor:
    """The transpose of `rotated`, for the grads of its heads; in place."""
    kernels = kernels_for(heads)
    if kernels is not None and is_power(heads.shape[2]):
        kernels.rotate(heads, turned, tables, back=True)
        return heads
    cosine, sine = (each.unflatten(-1, (1, 2, -1)) for each in tables)
    halves = heads[:, :turned].unflatten(-1, (2, -1))
    leaned = halves * sine
    found = torch.addcmul(torch.stack((leaned[:, :, 1], -leaned[:, :, 0]), 2), halves, cosine)
    heads[:, :turned] = found.flatten(-2).to(heads.dtype)
    return heads


def is_power(size: int) -> bool:
    return size & (size - 1) == 0


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: [S, 2 F] -> [S, F]."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        found: Tensor = kernels.gated(gate_up)
        return found
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gated_grad(gate_up: Tensor, grad: Tensor) -> Tables:
    """`gated` once more, and the gradient of what went into it."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        found: Tables = kernels.gated_grad(gate_up, grad)
        return found
    gate, up = gate_up.chunk(2, -1)
    opened = F.silu(gate)
    grads = torch.empty_like(gate_up)
    torch.mul(grad, opened, out=grads[:, gate.shape[1] :])
    grads[:, : gate.shape[1]] = torch.ops.aten.silu_backward(grad * up, gate)
    return opened.mul_(up), grads
