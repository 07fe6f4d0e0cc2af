"""The norms of a block, on every path: in front of a sublayer, after it, and on queries and keys.

`whet.model.block.Block` names them: before_attention, query_norm, key_norm, after_attention, before_mlp, after_mlp. All
are RMS norms, x / sqrt(mean(x^2) + epsilon) * weight, and any may be absent: its weight is None then. On a CUDA device
with triton each is one kernel (`whet.model.layer_kernels`); elsewhere, and as what the kernels are tested against,
plain torch. Only `ring_decode` has its own form of them, on buffers that are cut in halves, and `decode_kernels` norms
single heads inside its attention. S tokens, W width of a row, H heads of size D.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from whet.model.layer_ops import kernels_for


def added_and_normed(
    x: Tensor, y: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(x + y, its RMS norm times weight in `dtype`), both [S, W]; x as it is where y is None."""
    kernels = kernels_for(x)
    if kernels is not None:
        result: tuple[Tensor, Tensor] = kernels.added_and_normed(x, y, weight, epsilon, dtype)
        return result
    total = x if y is None else x + y
    return total, (total * _inverse_size(total, epsilon) * weight).to(dtype)


@dataclass(frozen=True)
class NormGrad:
    """What comes back through a norm."""

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
    x_grad = torch.addcmul(pulled, normed, along, value=-1).mul_(scale)
    if carried is not None:
        x_grad.add_(carried)
    x_grad = x_grad.to(x.dtype)
    return NormGrad(x_grad, x_grad.to(dtype), weight_grad, (normed * weight).to(dtype))


def _inverse_size(x: Tensor, epsilon: float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide)
    return torch.rsqrt(length.square_().div_(x.shape[-1]).add_(epsilon))


def entered(
    x: Tensor, y: Tensor | None, weight: Tensor | None, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The residual stream x + y, and what a sublayer reads of it: normed where it has a norm in front."""
    if weight is not None:
        return added_and_normed(x, y, weight, epsilon, dtype)
    total = x if y is None else x + y
    return total, total.to(dtype)


def entered_grad(
    x: Tensor, weight: Tensor | None, epsilon: float, grad: Tensor, carried: Tensor, learns: bool
) -> NormGrad:
    """`entered` backwards; `carried` is the gradient that reaches the residual stream directly."""
    if weight is not None:
        return norm_grad(x, weight, epsilon, grad, carried, learns)
    total = carried + grad
    return NormGrad(total, total.to(grad.dtype), None, x.to(grad.dtype))


def left(values: Tensor, weight: Tensor | None, epsilon: float, dtype: torch.dtype) -> Tensor:
    """What a sublayer adds: normed where it has a norm after it."""
    return values if weight is None else added_and_normed(values, None, weight, epsilon, dtype)[1]


def left_grad(
    values: Tensor | None, weight: Tensor | None, epsilon: float, grad: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`left` backwards: the gradients of the values and of the weight."""
    if weight is None or values is None:
        return grad, None
    grads = norm_grad(values, weight, epsilon, grad, None)
    return grads.narrow, grads.weight


def heads_normed(
    heads: Tensor, norms: Sequence[Tensor], counts: Sequence[int], epsilon: float, dtype: torch.dtype
) -> Tensor:
    """Queries and keys of [S, H, D] normed, values as they are; `counts` are the heads of the three.

    A weight as long as a head norms head by head, a longer one all heads at once.
    """
    *parts, value = heads.split(list(counts), 1)
    normed = [
        added_and_normed(_norm_rows(part, weight), None, weight, epsilon, dtype)[1].view(part.shape)
        for part, weight in zip(parts, norms, strict=True)
    ]
    return torch.cat((*normed, value), 1)


def heads_normed_grad(
    heads: Tensor, norms: Sequence[Tensor], counts: Sequence[int], epsilon: float, grad: Tensor
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """`heads_normed` backwards: the gradient of the heads, and of both weights."""
    *pulls, value = grad.split(list(counts), 1)
    parts = heads.split(list(counts), 1)[:2]
    query, key = (
        norm_grad(_norm_rows(part, weight), weight, epsilon, _norm_rows(pull, weight), None)
        for part, weight, pull in zip(parts, norms, pulls, strict=True)
    )
    grads = [part.x.view(len(heads), -1, heads.shape[2]) for part in (query, key)]
    return torch.cat((*grads, value), 1), (query.weight, key.weight)


def _norm_rows(heads: Tensor, weight: Tensor) -> Tensor:
    """[S, H, D] as rows that are as long as the weight, without gaps between them: the kernels read them so."""
    return heads.reshape(-1, len(weight)).contiguous()


def enter_in_place(residual: Tensor, added: Tensor | None, weight: Tensor | None, epsilon: float, out: Tensor) -> None:
    """`entered` on the buffers of a CUDA graph: residual += added, and `out` is what the sublayer reads."""
    if weight is not None:
        from whet.model import layer_kernels

        layer_kernels.add_norm(residual, added, weight, epsilon, out)
        return
    if added is not None:
        residual.add_(added)
    out.copy_(residual)


def leave_in_place(added: Tensor, weight: Tensor | None, epsilon: float) -> None:
    """`left` on a buffer of a CUDA graph; a program of the kernel reads its whole row before it writes."""
    if weight is not None:
        from whet.model import layer_kernels

        layer_kernels.add_norm(added, None, weight, epsilon, added)


def norm_whole_heads(qkv: Tensor, norms: Sequence[Tensor], epsilon: float) -> None:
    """Queries and keys at the front of [S, (H + 2 K) D] normed in place, all heads of a row at once."""
    start = 0
    for weight in norms:
        part = qkv[:, start : start + len(weight)]
        wide = part.float()
        part.copy_(wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon) * weight)
        start += len(weight)


def unweighted_norm(values: Tensor, epsilon: Tensor) -> Tensor:
    """The values over their root mean square, in float32 whatever comes in; the next product has the norm's weight."""
    length = torch.linalg.vector_norm(values, dim=-1, keepdim=True, dtype=torch.float32)
    return values * torch.rsqrt(torch.addcmul(epsilon, length, length, value=1 / values.shape[-1]))
