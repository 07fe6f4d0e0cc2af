"""AdamW, its schedule, and its state as named tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.placement import laid_out_like
from whet.training.low_precision_adamw import LowPrecisionAdamW
from whet.training.sections import OptimizerSection
from whet.types import WhetError


def scheduled_rate(settings: OptimizerSection, step: int, total_steps: int) -> float:
    """The learning rate of a step (the first is 1): a linear warm-up, then the schedule down to the last step."""
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / (settings.warmup_steps + 1)
    done = (step - settings.warmup_steps - 1) / max(total_steps - settings.warmup_steps, 1)
    share = {"constant": 1.0, "linear": 1.0 - done, "cosine": 0.5 * (1.0 + math.cos(math.pi * done))}[settings.schedule]
    return settings.learning_rate * share


def adamw(model: nn.Module, settings: OptimizerSection) -> torch.optim.Optimizer:
    """Weight decay on matrices only: decaying norms and biases shrinks what is not a weight."""
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    matrices = [parameter for _, parameter in trained if parameter.ndim >= 2]
    others = [parameter for _, parameter in trained if parameter.ndim < 2]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    rate, betas, epsilon = settings.learning_rate, (settings.beta1, settings.beta2), settings.epsilon
    if settings.states == "int8" or any(parameter.dtype.itemsize < 4 for _, parameter in trained):
        return LowPrecisionAdamW(groups, rate, betas, epsilon, settings.states == "int8")
    return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon, fused=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's own state by parameter name, where it lies."""
    return {
        f"{name}/{key}": torch.as_tensor(value).detach()
        for name, parameter in model.named_parameters()
        for key, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, bit for bit."""
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters[name]
        if isinstance(optimizer, LowPrecisionAdamW):  # its moments are flat, and it reads the step count
            optimizer.state[parameter][key] = value.reshape(-1).to(parameter.device).clone() if value.ndim else value
            continue
        if value.dtype == torch.uint8 or (value.ndim and value.numel() != parameter.numel()):
            raise WhetError("the checkpoint's moments are of 8 bits; resume it with optimizer.states=int8")
        # the fused optimizer keeps even the step count where the parameter is
        placed = value.reshape(parameter.shape) if value.ndim else value
        optimizer.state[parameter][key] = laid_out_like(placed, parameter).clone()


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
