"""Tensors whole or in shards: a value laid out as the one that it replaces."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def model_copy(model: Model, shares_weights: bool = False) -> Model:
    """A deep copy of a model. `shares_weights`: in the memory of the first, as long as neither is written to.

    That is enough for a model that is cut into shards next: they get memory of their own.
    """
    known = {}
    if shares_weights:
        known = {
            id(parameter): nn.Parameter(parameter.detach(), parameter.requires_grad) for parameter in model.parameters()
        }
    return copy.deepcopy(model, known)


def laid_out_like(value: Tensor, target: Tensor) -> Tensor:
    """`value` as `target` lies: whole, or this rank's part of it. Where it comes in other parts, for all ranks at once.

    A single number has no parts and stays as it is.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    value = value.detach()
    if isinstance(target, DTensor):
        if not value.ndim:
            return value.to(target.device)
        if isinstance(value, DTensor):
            moved = value.redistribute(target.device_mesh, target.placements)
        else:  # every rank has the whole: it takes its part without asking the others
            moved = distribute_tensor(
                value.to(target.device), target.device_mesh, target.placements, src_data_rank=None
            )
        local = moved.to_local().to(target.to_local().device)
        return DTensor.from_local(
            local, target.device_mesh, target.placements, run_check=False, shape=value.shape, stride=target.stride()
        )
    return (value.full_tensor() if isinstance(value, DTensor) else value).to(target.device)


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy into a tensor that is whole or in shards."""
    from torch.distributed.tensor import DTensor

    placed = laid_out_like(value, target)
    if isinstance(target, DTensor) and isinstance(placed, DTensor):
        target.to_local().copy_(placed.to_local())
    else:
        target.copy_(placed)
