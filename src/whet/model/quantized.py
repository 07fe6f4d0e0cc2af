"""Fewer bits than 16, by the bitsandbytes library: a frozen base in 4 bits, an optimizer's moments in 8.

Both are blocks of numbers that share one scale, with codes for values that lie closer together near zero (Dettmers et
al. 2021, 8-bit Optimizers, arXiv 2110.02861; 2023, QLoRA, arXiv 2305.14314). Only here is the library imported.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.model.lora import UnmergedLinear
from whet.types import WhetError

BLOCK = 256  # numbers of a moment that share a scale
BASE_BLOCK = 64  # of a weight


@functools.cache
def _library() -> Any:
    try:
        from bitsandbytes import functional
    except ImportError as error:
        raise WhetError(
            "model.lora.base=4bit and optimizer.states=int8 need bitsandbytes; run pip install 'whet[bits]'"
        ) from error
    return functional


def require_library() -> None:
    """`WhetError` where bitsandbytes is not installed."""
    _library()


@functools.cache
def _code(signed: bool, device: torch.device) -> Tensor:
    """The 256 values of an 8-bit code, ascending."""
    values: Tensor = _library().create_dynamic_map(signed=signed)
    return values.to(device)


def int8_codes(values: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """float32 [n] as uint8 [n] codes and the float32 largest value of each block."""
    codes, state = _library().quantize_blockwise(values, code=_code(signed, values.device), blocksize=BLOCK)
    return codes, state.absmax


def int8_values(codes: Tensor, largest: Tensor, signed: bool) -> Tensor:
    """The other way: float32 [n]."""
    values: Tensor = _library().dequantize_blockwise(
        codes, absmax=largest, code=_code(signed, codes.device), blocksize=BLOCK
    )
    return values


class FourBitLinear(UnmergedLinear):
    """A base in the 4 bits of NF4, unpacked to bfloat16 for every product; adapters of float32 beside it."""

    largest: Tensor  # of each block of the base
    shape: tuple[int, int]

    def base_output(self, input: Tensor) -> Tensor:
        kind = torch.get_autocast_dtype(input.device.type) if torch.is_autocast_enabled(input.device.type) else None
        output: Tensor = _Unpacked.apply(input if kind is None else input.to(kind), self)
        return output if self.bias is None else output + self.bias.to(output.dtype)

    def whole_base(self) -> Tensor:
        # blocks run over the ends of rows, which the library's reader for AVX-512 takes for ends of blocks
        is_aligned = self.shape[1] % BASE_BLOCK == 0
        state = _library().QuantState(
            absmax=self.largest, shape=torch.Size(self.shape if is_aligned else [self.shape[0] * self.shape[1]]),
            code=_four_bit_code(self.weight.device), blocksize=BASE_BLOCK, quant_type="nf4", dtype=torch.bfloat16,
        )  # fmt: skip
        base: Tensor = _library().dequantize_4bit(self.weight, state)
        return base.view(self.shape)


class _Unpacked(torch.autograd.Function):
    """x times the base, which is unpacked again for the gradient of x: it is never kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: FourBitLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(x, layer.whole_base().to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.whole_base().to(grad.dtype), None


@functools.cache
def _four_bit_code(device: torch.device) -> Tensor:
    code: Tensor = _library().get_4bit_type("nf4", device=str(device))
    return code


@torch.no_grad()
def pack_four_bits(layer: UnmergedLinear) -> None:
    """Put the base of an adapted layer into 4 bits, in place."""
    packed, state = _library().quantize_4bit(
        layer.weight.detach().to(torch.bfloat16).contiguous(), blocksize=BASE_BLOCK, quant_type="nf4"
    )
    layer.__class__ = FourBitLinear
    assert isinstance(layer, FourBitLinear)
    layer.shape = (layer.out_features, layer.in_features)
    layer.weight = nn.Parameter(packed, requires_grad=False)
    layer.register_buffer("largest", state.absmax, persistent=False)
