"""Launches of triton kernels without the cost of binding their arguments anew each time.

A launch through triton's own interface costs the host some 40 us, most of it to find the compiled kernel that fits the
arguments. Here it is found by a key of our own: what triton specialises on, and no more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    tensors: tuple[Tensor, ...],
    numbers: tuple[int | float, ...],
    constants: tuple[Any, ...],
    warps: int,
    stages: int = 3,
) -> None:
    """kernel[grid](*tensors, *numbers, *constants): pointers, then values, then compile-time constants."""
    key = (
        kernel, tensors[0].device, warps, stages, constants,
        *[(each.dtype, each.data_ptr() % 16) for each in tensors],
        *[_special(each) for each in numbers],
    )  # fmt: skip
    found = _COMPILED.get(key)
    if found is not None:
        stream = torch._C._cuda_getCurrentRawStream(tensors[0].device.index)
        found[(*grid, *(1,) * (3 - len(grid)))](*tensors, *numbers, *constants, stream=stream)
        return
    compiled = kernel[grid](*tensors, *numbers, *constants, num_warps=warps, num_stages=stages)
    if compiled is not None and type(compiled).__name__ == "CompiledKernel":
        _COMPILED[key] = compiled


def _special(number: int | float) -> tuple[Any, ...]:
    """What a kernel is compiled for of a number: its kind, whether it is 1, whether 16 divides it, and its width."""
    if isinstance(number, float):
        return (float,)
    return (int, number == 1, number % 16 == 0, -(2**31) <= number < 2**31)
