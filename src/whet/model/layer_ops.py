"""Rotation and activation between a block's products, each with its gradient written out; `norms` has the norms.

On a CUDA device with triton they are one kernel each (`whet.model.layer_kernels`); elsewhere, and as what the kernels
are tested against, plain torch. S tokens, H heads of size D, F width of the MLP.
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


def rotated(heads: Tensor, turned: int, tables: Tables) -> Tensor:
    """The first heads of [S, H, D] turned by their position, the others as they are; in place where that is quicker."""
    kernels = kernels_for(heads)
    if kernels is not None and is_power(heads.shape[2]):
        kernels.rotate(heads, turned, tables)
        return heads
    cosine, sine = (table.unflatten(-1, (1, 2, -1)) for table in tables)  # [S, 1, 2 halves, D / 2]
    halves = heads[:, :turned].unflatten(-1, (2, -1))
    other = torch.stack((-halves[:, :, 1], halves[:, :, 0]), 2)
    rotated_heads = torch.addcmul(halves * cosine, other, sine).flatten(-2).to(heads.dtype)
    heads[:, :turned] = rotated_heads
    return heads


def turned_back(heads: Tensor, turned: int, tables: Tables) -> Tensor:
    """The transpose of `rotated`, for the grads of its heads; in place."""
    kernels = kernels_for(heads)
    if kernels is not None and is_power(heads.shape[2]):
        kernels.rotate(heads, turned, tables, back=True)
        return heads
    cosine, sine = (table.unflatten(-1, (1, 2, -1)) for table in tables)
    halves = heads[:, :turned].unflatten(-1, (2, -1))
    leaned = halves * sine
    rotated_heads = torch.addcmul(torch.stack((leaned[:, :, 1], -leaned[:, :, 0]), 2), halves, cosine)
    heads[:, :turned] = rotated_heads.flatten(-2).to(heads.dtype)
    return heads


def is_power(size: int) -> bool:
    """Whether the size is a power of two, which the kernels need."""
    return size & (size - 1) == 0


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: [S, 2 F] -> [S, F]."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        opened: Tensor = kernels.gated(gate_up)
        return opened
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate).mul_(up)


def gated_grad(gate_up: Tensor, grad: Tensor) -> Tables:
    """`gated` once more, and the gradient of what went into it."""
    kernels = kernels_for(gate_up)
    if kernels is not None:
        opened_and_grads: Tables = kernels.gated_grad(gate_up, grad)
        return opened_and_grads
    gate, up = gate_up.chunk(2, -1)
    opened = F.silu(gate)
    grads = torch.empty_like(gate_up)
    torch.mul(grad, opened, out=grads[:, gate.shape[1] :])
    grads[:, : gate.shape[1]] = torch.ops.aten.silu_backward(grad * up, gate)
    return opened.mul_(up), grads
