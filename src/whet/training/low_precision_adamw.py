"""AdamW for one small GPU: weights of 16 bits that are rounded at random, moments of 8 bits, or both.

A weight of bfloat16 has eight bits, and most steps are smaller than half a unit in its last place: rounded to the
nearest they would all be lost. Rounded up with the probability of what is cut off, they are right on average. The step
itself is computed in float32, a slice of a weight at a time.

Gupta et al. 2015, arXiv 1502.02551. The random numbers belong to the step and the weight: a resumed run draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from whet.model.low_precision import stochastically_rounded
from whet.model.quantized import BLOCK, int8_codes, int8_values

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
