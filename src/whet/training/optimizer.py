"""AdamW, its schedule, and its state as named tensors.

AdamW for one small GPU: weights of 16 bits that are rounded at random, moments of 8 bits, or both.

A weight of bfloat16 has eight bits, and most steps are smaller than half a unit in its last place: rounded to the
nearest they would all be lost. Rounded up with the probability of what is cut off, they are right on average. The step
itself is computed in float32, a slice of a weight at a time.

Gupta et al. 2015, arXiv 1502.02551. The random numbers belong to the step and the weight: a resumed run draws the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.low_precision import stochastically_rounded
from whet.model.placement import laid_out_like
from whet.model.quantized import BLOCK, int8_codes, int8_values
from whet.training.sections import OptimizerSection
from whet.types import WhetError

SLICE = 1 << 24  # numbers that are in float32 at a time; a multiple of a block
KINDS = {"exp_avg": True, "exp_avg_sq": False}  # of moments, and whether they have a sign
LARGEST = "largest"  # of each block


class LowPrecisionAdamW(torch.optim.Optimizer):
    """AdamW by Loshchilov and Hutter, as torch has it, on weights of any type; `int8` keeps the moments in 8 bits."""

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, int8: bool
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self._int8 = int8

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        number = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                number += 1
                if parameter.grad is not None:
                    self._step(parameter, group, number)

    def _step(self, parameter: Tensor, group: dict[str, Any], number: int) -> None:
        state = self.state[parameter]
        if not state:
            self._begin(parameter, state)
        state["step"] += 1
        count = int(state["step"])
        stream = torch.Generator(parameter.device).manual_seed((count << 20) + number)
        # a weight may be a view of a larger place: what is written is copied back to it
        weight = parameter.detach() if parameter.is_contiguous() else parameter.detach().contiguous()
        flat, grad = weight.view(-1), parameter.grad.reshape(-1)  # type: ignore[union-attr]
        for window in _windows(len(flat)):
            values = flat[window].float()
            moments = self._moments(state, grad[window].float(), group, window)
            values.mul_(1 - group["lr"] * group["weight_decay"])
            _descend(values, moments, group, count)
            if parameter.dtype == torch.bfloat16:
                noise = torch.randint(
                    0, 1 << 16, values.shape, generator=stream, device=values.device, dtype=torch.int32
                )
                flat[window] = stochastically_rounded(values, noise)
            else:
                flat[window] = values
        if weight.data_ptr() != parameter.data_ptr():
            parameter.copy_(weight)

    def _begin(self, parameter: Tensor, state: dict[str, Any]) -> None:
        state["step"] = torch.zeros((), dtype=torch.float32)
        size, device = parameter.numel(), parameter.device
        for name, signed in KINDS.items():
            if not self._packed(size):
                state[name] = torch.zeros(size, dtype=torch.float32, device=device)
                continue
            state[name], state[f"{name}_{LARGEST}"] = int8_codes(torch.zeros(size, device=device), signed)

    def _packed(self, size: int) -> bool:
        """Vectors are few and matter: they keep float32."""
        return self._int8 and size >= 16 * BLOCK

    def _moments(
        self, state: dict[str, Any], grad: Tensor, group: dict[str, Any], window: slice
    ) -> tuple[Tensor, Tensor]:
        """The moments of a slice after this gradient, written back."""
        moments = []
        blocks = slice(window.start // BLOCK, -(-window.stop // BLOCK))
        for (name, signed), beta, value in zip(KINDS.items(), group["betas"], (grad, grad.square()), strict=True):
            largest = state.get(f"{name}_{LARGEST}")
            if largest is None:
                moment = state[name][window].lerp_(value, 1 - beta)
            else:
                moment = int8_values(state[name][window], largest[blocks], signed).lerp_(value, 1 - beta)
                state[name][window], largest[blocks] = int8_codes(moment, signed)
            moments.append(moment)
        return moments[0], moments[1]


def _windows(size: int) -> Iterator[slice]:
    for start in range(0, size, SLICE):
        yield slice(start, min(start + SLICE, size))


def _descend(values: Tensor, moments: tuple[Tensor, Tensor], group: dict[str, Any], count: int) -> None:
    mean, square = moments
    (beta1, beta2), rate = group["betas"], group["lr"]
    size = square.sqrt().div_((1 - beta2**count) ** 0.5).add_(group["eps"])
    values.addcdiv_(mean, size, value=-rate / (1 - beta1**count))


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
    """The optimizer's own state tensors by parameter name, not copied."""
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
