"""The vocabulary head: from hidden states to the log-probability of one token each, a chunk of logits at a time.

The softmax's gradient is written out, so that no graph of a chunk is kept and no [A, V] tensor lives beyond one chunk:

    d logp_i / d logits_iv = [v = target_i] - p_iv

A chunk's logits are built in the forward pass and again in the backward pass: four large products, where a graph that
keeps them needs three. A caller who knows before the backward pass how much each token will count gives `coefficient`;
then the gradient is taken while the logits are there, three products with the memory of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.model.layer_ops import kernels_for

# Logits of a chunk. The whole weight and its gradient are read once a chunk, so that small chunks starve the products.
CHUNK_ELEMENTS = 1 << 23
DEVICE_CHUNKS = 8  # times as many on a device, whose products starve sooner
KERNEL_CHUNKS = 3  # times as many again where kernels work on a chunk in place: it is all that is held
# float16 has three bits more than bfloat16, which rounds a logit of 25 by up to 0.06. States are made smaller first, by
# a power of two, so that no model's leave its range.
SHRINK = 2.0**-5

# logp of some tokens, and which -> d loss / d logp, up to one factor
Coefficient = Callable[[Tensor, slice | Tensor], Tensor]


@dataclass(frozen=True)
class VocabularyHead:
    """[M, D] -> [M, V], as the model itself would."""

    layer: nn.Module  # weight [V, D], bias [V] or None
    factor: float = 1.0
    softcap: float | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.weight, self.bias)
        if self.factor != 1.0:
            logits = logits * self.factor
        return torch.tanh(logits / self.softcap) * self.softcap if self.softcap else logits

    @property
    def weight(self) -> Tensor:
        """The head's weight [V, W]."""
        return self.layer.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """The head's bias [V], or None."""
        return getattr(self.layer, "bias", None)


def chunk_rows(vocabulary: int, device: torch.device) -> int:
    """How many tokens a chunk of logits holds."""
    return max(1, CHUNK_ELEMENTS * (1 if device.type == "cpu" else DEVICE_CHUNKS) // vocabulary)


@dataclass(frozen=True)
class _HeadPlan:
    scale: float  # of the logits
    dtype: torch.dtype  # of the products
    fine: bool  # logits of half precision are float16
    rows: int  # of a chunk
    coefficient: Coefficient | None


def chunked_logp(
    head: VocabularyHead,
    states: Tensor,  # [A, D]
    targets: Tensor,  # int64 [A]
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float32,
    coefficient: Coefficient | None = None,
) -> tuple[Tensor, Tensor]:
    """logp of the targets, with gradient, and the entropy, without: both [A], at least float32.

    `dtype` below float32 is that of the products alone. With a `coefficient` the loss must depend on logp as promised:
    a backward pass that finds another gradient raises, or on a GPU gives NaN.
    """
    if head.softcap:
        raise ValueError("a softcapped head has another gradient")
    products = dtype if dtype in (torch.bfloat16, torch.float16) else states.dtype
    kernels = _kernels(states) is not None
    rows = chunk_rows(len(head.weight), states.device) * (KERNEL_CHUNKS if kernels else 1)
    fine = kernels and products == torch.bfloat16
    learns = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (states, head.weight, head.bias)
    )
    plan = _HeadPlan(head.factor / temperature, products, fine, rows, coefficient if learns else None)
    logp_and_entropy: tuple[Tensor, Tensor] = _ChunkedLogp.apply(states, head.weight, head.bias, targets, plan)
    return logp_and_entropy


def _kernels(states: Tensor) -> ModuleType | None:
    return kernels_for(states, "head_kernels")


class _ChunkedLogp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, plan: _HeadPlan
    ) -> tuple[Tensor, Tensor]:
        chunks = _Chunks(states, weight, bias, plan)
        norm, logp, entropy = (chunks.wide.new_empty(len(states)) for _ in range(3))
        gradients = _Gradients(ctx.needs_input_grad, states, weight, bias) if plan.coefficient else None
        promised = torch.empty_like(norm) if plan.coefficient else None
        kernels = _kernels(states)
        for window in chunks.windows:
            mean_row: Tensor | None = None
            if kernels is not None:
                shares = chunks.raw(window)
                norm[window], logp[window], entropy[window] = kernels.scored(shares, targets[window], chunks.late)
                if gradients is not None:
                    shares = kernels.to_shares(shares, norm[window], chunks.late, plan.dtype)
            else:
                logits = chunks.logits(window)
                chosen = logits.gather(1, targets[window, None])[:, 0]
                shares = chunks.shares(logits)
                # the largest share is at least 1 / V: its logarithm is exact where that of the target's may underflow
                norm[window] = logits.amax(1) - shares.amax(1).log()
                logp[window] = chosen - norm[window]
            if gradients is not None and promised is not None and plan.coefficient is not None:
                promised[window] = plan.coefficient(logp[window], window).to(norm.dtype)
                mean_row = gradients.add(chunks, shares, targets[window], promised[window], window)
            if kernels is None:
                entropy[window] = norm[window] - chunks.mean_logit(logits, shares, mean_row, window)
        ctx.mark_non_differentiable(entropy)
        ctx.plan, ctx.gradients = plan, gradients
        # a single chunk is small enough to be kept
        small = len(chunks.windows) == 1 and gradients is None and kernels is None
        single_shares = shares if small and any(ctx.needs_input_grad) else None
        ctx.save_for_backward(states, weight, bias, targets, norm, promised, single_shares)
        return logp, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets, norm, promised, single_shares = ctx.saved_tensors
        if promised is not None:
            # whoever holds the loss would hold these, as large as the weight
            gradients, ctx.gradients = ctx.gradients, None
            return (*gradients.scaled(common_factor(grad, promised)), None, None)
        chunks = _Chunks(states, weight, bias, ctx.plan)
        gradients = _Gradients(ctx.needs_input_grad, states, weight, bias)
        kernels = _kernels(states)
        for window in chunks.windows:
            if kernels is not None:
                shares = kernels.to_shares(chunks.raw(window), norm[window], chunks.late, chunks.plan.dtype)
            else:
                shares = (
                    chunks.logits(window).sub_(norm[window, None]).exp_() if single_shares is None else single_shares
                )
            gradients.add(chunks, shares, targets[window], grad[window], window)
        return (*gradients.scaled(1.0), None, None)


class _Chunks:
    """The logits of a window of tokens at a time, in memory that is used again."""

    def __init__(self, states: Tensor, weight: Tensor, bias: Tensor | None, plan: _HeadPlan) -> None:
        self.plan = plan
        self.wide = torch.empty(0, dtype=torch.promote_types(plan.dtype, torch.float32), device=states.device)
        self.windows = [slice(start, start + plan.rows) for start in range(0, len(states), plan.rows)]
        # the scale is applied to the states, which are few, unless rounding them would show
        self.late = plan.scale if self.wide.dtype != plan.dtype else 1.0
        early = plan.scale / self.late
        kind = torch.float16 if plan.fine else plan.dtype
        if plan.fine:
            early, self.late = early * SHRINK, self.late / SHRINK
        self._own = states, weight
        self._states = (states * early if early != 1.0 else states).to(kind)
        self._weight = weight.to(kind)
        self._bias = None if bias is None else (bias * early).to(kind)
        size = (min(plan.rows, len(states)), len(weight))
        self._logits = torch.empty(size, dtype=kind, device=states.device)
        self._shares: Tensor | None = None

    @cached_property
    def states(self) -> Tensor:
        """The hidden states in the dtype of the products, with their scale kept apart in `remaining`."""
        return self._own[0].to(self.plan.dtype) if self.plan.fine else self._states

    @cached_property
    def weight(self) -> Tensor:
        return self._own[1].to(self.plan.dtype) if self.plan.fine else self._weight

    @property
    def remaining(self) -> float:
        return self.plan.scale if self.plan.fine else self.late

    def logits(self, window: slice) -> Tensor:
        logits = self.raw(window).to(self.wide.dtype)
        return logits if self.late == 1.0 else logits.mul_(self.late)

    def raw(self, window: slice) -> Tensor:
        """The logits before the late part of their scale, as they come out of the product."""
        states = self._states[window]
        logits = self._logits[: len(states)]
        if self._bias is None:
            torch.mm(states, self._weight.T, out=logits)
        else:
            torch.addmm(self._bias, states, self._weight.T, out=logits)
        return logits

    def shares(self, logits: Tensor) -> Tensor:
        if self._shares is None:
            self._shares = torch.empty_like(logits)
        return torch.softmax(logits, 1, out=self._shares[: len(logits)])

    def mean_logit(self, logits: Tensor, shares: Tensor, mean_row: Tensor | None, window: slice) -> Tensor:
        """[rows], sum_v p_v logit_v, also where the gradient of the states has found sum_v p_v weight_v, [rows, W].

        Then nothing as wide as the logits is read again: on a CPU that takes half as long as their product.
        """
        if mean_row is None or self.wide.dtype != self.plan.dtype or not logits.is_cpu:
            return torch.linalg.vecdot(shares, logits)
        mean = torch.linalg.vecdot(self._states[window], mean_row)
        return mean if self._bias is None else mean.add_(shares @ self._bias)


class _Gradients:
    """Sums over the chunks of grad_i ([v = target_i] - p_iv), carried to states, weight and bias."""

    def __init__(self, needed: tuple[bool, ...], states: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self._states = torch.empty_like(states) if needed[0] else None
        self._weight = torch.zeros_like(weight, dtype=wide) if needed[1] else None
        self._bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needed[2] else None
        self._dtypes = states.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype

    def add(self, chunks: _Chunks, shares: Tensor, targets: Tensor, grad: Tensor, window: slice) -> Tensor | None:
        """Rows are weighted at their narrow side, [rows, D]: the [rows, V] shares stay as they are.

        The mean row of the weight under each row's shares; None where the states need no gradient.
        """
        plan, mean_row = chunks.plan, None
        narrow = shares.to(plan.dtype)
        weighted = grad.to(plan.dtype)[:, None]
        if self._states is not None:
            mean_row = narrow @ chunks.weight
            pulled = chunks.weight[targets].sub_(mean_row)
            self._states[window] = pulled.mul_(weighted * plan.scale)
        if self._weight is not None:
            states = chunks.states[window] * (weighted * chunks.remaining)
            if self._weight.dtype == plan.dtype:
                self._weight.addmm_(narrow.T, states, alpha=-1)
            else:
                self._weight.sub_(narrow.T @ states)
            self._weight.index_add_(0, targets, states.to(self._weight.dtype))
        if self._bias is not None:
            grads = grad * plan.scale
            self._bias.addmv_(shares.T.to(self._bias.dtype), grads.to(self._bias.dtype), alpha=-1)
            self._bias.index_add_(0, targets, grads.to(self._bias.dtype))
        return mean_row

    def scaled(self, factor: float | Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        scaled = []
        for gradient, dtype in zip((self._states, self._weight, self._bias), self._dtypes, strict=True):
            if gradient is not None and not (isinstance(factor, float) and factor == 1.0):
                gradient = gradient * factor
            scaled.append(None if gradient is None else gradient.to(dtype))
        return scaled[0], scaled[1], scaled[2]


def common_factor(grad: Tensor, promised: Tensor) -> Tensor:
    """What a promised gradient is multiplied with; an error, or on a GPU NaN, where it is another gradient."""
    square = (promised * promised).sum()
    factor = (grad * promised).sum() / torch.where(square > 0, square, 1.0)
    broken = (grad - factor * promised).abs().max() > 1e-4 * grad.abs().max()  # never where something is NaN already
    if grad.is_cuda:  # to look would be to wait: a broken promise shows as a gradient that is not a number
        return torch.where(broken, float("nan"), factor)
    if broken:
        raise ValueError("the loss does not weigh the tokens as its coefficient promised")
    return factor
