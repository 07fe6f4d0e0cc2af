"""Whether every weight of a model is a number. One reduction over the weights and one wait for the device."""

from __future__ import annotations

import torch
from torch import nn


@torch.no_grad()
def non_finite_weight(model: nn.Module) -> str | None:
    """The name of a weight that holds NaN or infinity, or None."""
    weights = [
        (name, parameter)
        for name, parameter in model.named_parameters()
        if parameter.is_floating_point() and parameter.numel()
    ]
    norm = torch.nn.utils.get_total_norm([weight.detach() for _, weight in weights])
    if bool(torch.isfinite(norm)):
        return None
    # huge weights overflow the norm too: look at each, which takes ten times as long
    return next((name for name, weight in weights if not bool(torch.isfinite(weight).all())), None)
