"""Low-rank adapters: a few small matrices learn, the model they stand on stays as it was.

An adapted layer counts as `base + scale * up @ down`. In float32 it keeps three things: its weight as loaded, the
two factors that learn, and in `weight`, where everybody reads it, the sum, written anew after every optimizer step.
Samplers, written-out layers and checkpoints therefore work on one matrix and need not know of adapters. The gradient of
the factors is taken from what goes in and out of the layer, at their rank: the gradient of the full matrix is never
built.

A base of 16 bits is kept once and nothing is written into it (`UnmergedLinear`): a step of an adapter is mostly smaller
than half a unit in the last place of such a weight, and would be rounded away.

Hu et al. 2021, LoRA, arXiv 2106.09685. `up` starts at zero: before the first step the model is the base, exactly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from whet.types import WhetError, did_you_mean

FACTORS = ("down", "up")
EXACT = (torch.bfloat16, torch.float16)  # types that many published weights fit into without loss


@dataclass(frozen=True)
class LowRank:
    """What to adapt, and how."""

    rank: int
    alpha: float
    matrices: tuple[str, ...] = ()  # last names of linear layers; empty: every one of the trunk
    seed: int = 0

    @property
    def scale(self) -> float:
        """alpha / rank, the factor of the adapter's product."""
        return self.alpha / self.rank


@runtime_checkable
class _Slices(Protocol):
    """A tensor of which this rank has some rows (torch's DTensor, whose import costs a second)."""

    def to_local(self) -> Tensor: ...

    def full_tensor(self) -> Tensor: ...


class AdaptedLinear(nn.Linear):
    """A linear layer whose weight is the base's plus the product of two factors; only the factors learn."""

    base: Tensor  # [out, in], as loaded, in the smallest type that holds it exactly
    down: nn.Parameter  # [rank, in]
    up: nn.Parameter  # [out, rank]
    scale: float

    def forward(self, input: Tensor) -> Tensor:
        output = F.linear(input, self.weight, self.bias)
        if not torch.is_grad_enabled():
            return output
        # the input's own gradient comes through `output`, whose weight has the adapter in it already
        return _GradientToBoth.apply(output, F.linear(F.linear(input.detach(), self.down), self.up) * self.scale)

    @torch.no_grad()
    def merge(self) -> None:
        """Write the factors' product into the weight."""
        self.weight.copy_(self.base)
        if isinstance(self.weight, _Slices):  # rows of weight and `up` lie on the same rank
            self.weight.to_local().addmm_(self.up.to_local(), self.down.full_tensor(), alpha=self.scale)  # type: ignore
        else:
            self.weight.addmm_(self.up, self.down, alpha=self.scale)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Write the base alone into the weight."""
        self.weight.copy_(self.base)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save the merged weight without the factors, as a model that anybody can load."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in FACTORS:
            del destination[prefix + name]


class UnmergedLinear(AdaptedLinear):
    """The same layer with one copy of its weight: `weight` is the base, and the factors work beside it.

        y = x weight' + scale (x down') up'

    Switched off, it is the base's own layer.
    """

    on: bool

    def forward(self, input: Tensor) -> Tensor:
        output = self.base_output(input)
        return output + F.linear(F.linear(input, self.down), self.up) * self.scale if self.on else output

    def base_output(self, input: Tensor) -> Tensor:
        """The base's own output, without the adapter."""
        return F.linear(input, self.weight, self.bias)

    def whole_base(self) -> Tensor:
        """The base's weight [out, in], as it enters the product."""
        return self.weight.detach()

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Base and adapter in one new matrix, rounded once to the dtype of the base."""
        base = self.whole_base()
        return base.to(self.down.dtype, copy=True).addmm_(self.up, self.down, alpha=self.scale).to(base.dtype)

    def merge(self) -> None:
        """Apply the adapter again after `unmerge`."""
        self.on = True

    def unmerge(self) -> None:
        """Compute with the base weights alone, as the reference model does."""
        self.on = False


class _GradientToBoth(torch.autograd.Function):
    """The first tensor itself; the gradient goes to both. A view of it could not be added to in place."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, through: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


def is_linear(module: nn.Module) -> bool:
    """A linear layer that nothing is wrapped around: x times `weight`, plus `bias`, and the adapter it may have."""
    return type(module) in (nn.Linear, AdaptedLinear, UnmergedLinear)


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLinear]:
    """The adapted layers by name; empty for a model that is trained in full."""
    return {name: module for name, module in model.named_modules() if isinstance(module, AdaptedLinear)}


def unmerged_layers(model: nn.Module) -> dict[str, UnmergedLinear]:
    """The adapted layers whose weight is the base alone."""
    return {name: layer for name, layer in adapted_layers(model).items() if isinstance(layer, UnmergedLinear)}


def add_adapters(
    model: Any, low_rank: LowRank, merged: bool = True, pack: Callable[[UnmergedLinear], None] | None = None
) -> dict[str, AdaptedLinear]:
    """Freeze the model and put adapters on the linear layers of its trunk, in place.

    `merged=False` keeps base and adapters apart; `pack` may then put another form of the base in its place.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    named = model.base_model.named_modules()
    linears = {name: module for name, module in named if type(module) is nn.Linear and module is not head}
    chosen = _chosen(linears, low_rank.matrices, type(model).__name__, uncalled_layers(model))
    for name, module in chosen.items():
        if low_rank.rank > min(module.weight.shape):
            shape, most = " x ".join(map(str, module.weight.shape)), min(module.weight.shape)
            raise WhetError(
                f"model.lora.rank is {low_rank.rank} but {name} is a matrix of {shape}; "
                f"give at most {most}, or train in full with model.lora=0"
            )
    model.requires_grad_(False)
    stream = torch.Generator().manual_seed(low_rank.seed)
    for module in chosen.values():
        _adapt(module, low_rank, stream, merged)
        if pack is not None and isinstance(module, UnmergedLinear):
            pack(module)
    return adapted_layers(model)


def uncalled_layers(model: Any) -> set[str]:
    """Last names of linear layers whose weight is read by the module around them, and which it never calls: an adapter
    beside such a weight would get no gradient. Mamba's dt_proj is one."""
    kinds: dict[type, set[str]] = {}  # one search per kind: its source is parsed to be found
    for module in model.base_model.modules():
        names = {name for name, layer in module.named_children() if type(layer) is nn.Linear}
        if names:
            kinds.setdefault(type(module), set()).update(names)
    return {name for kind, names in kinds.items() for name in _uncalled(kind, names)}


def _uncalled(kind: type, names: Collection[str]) -> list[str]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # written in a notebook, or compiled
        return []
    return [name for name in names if f"self.{name}(" not in source and f"self.{name}.weight" in source]


def _chosen(
    linears: Mapping[str, nn.Linear], wanted: Sequence[str], kind: str, uncalled: Collection[str]
) -> dict[str, nn.Linear]:
    known = sorted({name.rpartition(".")[2] for name in linears})
    if not known:
        raise WhetError(f"model.lora: {kind} has no linear layers in its trunk; train it in full with model.lora=0")
    for target in wanted:
        if target not in known:
            hint = did_you_mean(target, known)
            layers = ", ".join(known)
            raise WhetError(f"model.lora.target_modules names {target!r}{hint}; the linear layers are {layers}")
        if target in uncalled:
            raise WhetError(
                f"model.lora.target_modules names {target!r}, which {kind} never calls: it reads the weight, and an "
                "adapter would get no gradient; leave it out, or train in full with model.lora=0"
            )
    if wanted:
        return {name: module for name, module in linears.items() if name.rpartition(".")[2] in wanted}
    # a gate of one number is as small as its adapter would be
    learns = {name: module for name, module in linears.items() if module.out_features > 1}
    return {name: module for name, module in learns.items() if name.rpartition(".")[2] not in uncalled}


def unadapted_experts(model: Any) -> int:
    """How many weights lie in tensors of all experts, or of convolutions: these are no linear layers, and stay."""
    return sum(weight.numel() for weight in model.base_model.parameters() if weight.ndim > 2)


def _adapt(module: nn.Linear, low_rank: LowRank, stream: torch.Generator, merged: bool) -> None:
    weight = module.weight.detach()
    outputs, inputs = weight.shape
    # drawn as a linear layer's own weights would be, on the CPU: the same on every device
    drawn = (torch.rand(low_rank.rank, inputs, generator=stream) * 2 - 1) / math.sqrt(inputs)
    module.__class__ = AdaptedLinear if merged else UnmergedLinear
    assert isinstance(module, AdaptedLinear)
    if isinstance(module, UnmergedLinear):
        module.on = True
    else:
        module.register_buffer("base", smallest_exact(weight), persistent=False)
    learns = torch.promote_types(weight.dtype, torch.float32)  # what learns is never kept in less
    module.down = nn.Parameter(drawn.to(weight.device, learns))
    module.up = nn.Parameter(torch.zeros(outputs, low_rank.rank, dtype=learns, device=weight.device))
    module.scale = low_rank.scale


def smallest_exact(weight: Tensor) -> Tensor:
    """A copy with memory of its own, in half the bytes where that loses nothing."""
    for dtype in EXACT:
        narrow = weight.to(dtype)
        if dtype.itemsize < weight.dtype.itemsize and torch.equal(narrow.to(weight.dtype), weight):
            return narrow
    return weight.clone()


def merge_adapters(model: nn.Module) -> None:
    """Merge adapters into their layers again after an optimizer step changed the factors."""
    for layer in adapted_layers(model).values():
        layer.merge()


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model is the one it was before training, bit for bit. Not for a pass that is to be learned from."""
    layers = list(adapted_layers(model).values())
    for layer in layers:
        layer.unmerge()
    try:
        yield
    finally:
        for layer in layers:
            layer.merge()


def adapter_factors(model: nn.Module) -> dict[str, nn.Parameter]:
    """What learns, by the names of the parameters."""
    return {
        f"{name}.{factor}": getattr(layer, factor)
        for name, layer in adapted_layers(model).items()
        for factor in FACTORS
    }


def layer_factors(*layers: nn.Module) -> list[nn.Parameter | None]:
    """down and up of each layer in turn; None twice for one without."""
    factors: list[nn.Parameter | None] = []
    for layer in layers:
        factors += [layer.down, layer.up] if isinstance(layer, AdaptedLinear) else [None, None]
    return factors
