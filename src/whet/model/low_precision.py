"""Weights of 16 bits, and the float32 that must stay around them.

Matrices are kept as they are read. Vectors (norms, biases) are few and are kept in float32; so is the residual stream,
which would otherwise take the type of the embedding and lose eight bits in every layer. Products run in 16 bits anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.lora import unmerged_layers


def stochastically_rounded(values: Tensor, noise: Tensor) -> Tensor:
    """float32 to bfloat16, up or down so that the mean is right; `noise` is int32, uniform from 0 to 65535.

    The lower 16 bits of a float32 are what bfloat16 has not: adding the noise carries into the upper ones as often as
    they say. Sign and size are apart in a float, so that this rounds away from zero or towards it.
    """
    bits = values.view(torch.int32)
    rounded = ((bits + noise) & -65536).view(torch.float32)
    return torch.where(torch.isfinite(values), rounded, values).to(torch.bfloat16)


class WideEmbedding(nn.Embedding):
    """An embedding of 16 bits whose rows come out in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """The embeddings of token ids, in float32."""
        return super().forward(input).float()


@torch.no_grad()
def widen_vectors(model: nn.Module) -> None:
    """Put float32 around matrices of 16 bits, in place."""
    for parameter in model.parameters():
        if parameter.ndim < 2 and parameter.dtype.itemsize < 4:
            parameter.data = parameter.data.float()
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.__class__ = WideEmbedding
        elif isinstance(module, nn.Embedding) and not isinstance(module, WideEmbedding):
            module.register_forward_hook(_widened)  # one that computes: a class in its place would lose that


def _widened(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output.float()


@torch.no_grad()
def saved_weights(model: nn.Module, copy: Callable[[str, Tensor], Tensor]) -> dict[str, Tensor]:
    """What a checkpoint holds, as copies: adapters merged, and no two weights in one memory unless they are tied."""
    apart = {f"{name}.weight": layer for name, layer in unmerged_layers(model).items()}
    held: dict[tuple[int, torch.Size], Tensor] = {}
    saved = {}
    for name, value in model.state_dict().items():
        if name in apart:
            saved[name] = copy(name, apart[name].merged())
            continue
        memory = (value.data_ptr(), value.shape)
        if memory not in held:
            held[memory] = copy(name, value)
        saved[name] = held[memory]
    return saved
