"""A model in shards: torch's FSDP2, one unit per layer and one for everything around the layers.

Each rank keeps a slice of every weight in the precision it was loaded in, and gathers a layer while it is computed. On
a GPU layers are gathered and computed in bfloat16; embedding, last norm and head stay as they are, so that the
residual stream and the logits are what one process has. Gradients are summed over the ranks, in float32 at least, never
averaged: a loss has the totals of the whole step in it already.

The vocabulary head's weight is read directly, chunk by chunk, and so are those of written-out layers. Such code runs
inside a forward method of its own (`register_fsdp_forward_method`), which gathers what it reads.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from whet.model.causal_lm import CausalLM
from whet.model.critic import Critic
from whet.model.fused_trunk import fused_refusal
from whet.model.lora import adapted_layers
from whet.model.reference import AdapterFreeReference, CopiedReference, ReferencePolicy, ReloadedReference
from whet.model.scalar_head import ScalarModel
from whet.model.token_logp import packs
from whet.training.distributed.ranks import Ranks
from whet.types import WhetError

T = TypeVar("T")


@dataclass(frozen=True)
class Sharding:
    """The devices over which weights are sharded, and how they are gathered."""

    mesh: DeviceMesh
    offload: bool = False  # shards and the optimizer's state in CPU memory

    def wrap(self, module: nn.Module, dtype: torch.dtype | None, keep: bool) -> None:
        """Shard a module in place. `dtype` is what it is gathered in; `keep`: until its backward pass."""
        policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False) if dtype is not None else None
        fully_shard(
            module,
            mesh=self.mesh,
            reshard_after_forward=not keep,
            mp_policy=policy or MixedPrecisionPolicy(),
            offload_policy=CPUOffloadPolicy() if self.offload else OffloadPolicy(),
        )
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def sharding(ranks: Ranks, device: torch.device, offload: bool = False) -> Sharding:
    """Sharding over all ranks, one device each."""
    if offload and device.type == "cpu":
        raise WhetError("scale.offload has no effect on a CPU: shards lie in its memory already; drop it")
    return Sharding(init_device_mesh(device.type, (ranks.size,)), offload)


class ShardedPasses:
    """`Gathering` of one model: `root` holds every weight that its passes read."""

    def __init__(self, root: nn.Module, device: torch.device, dtype: torch.dtype, wraps: bool) -> None:
        """`wraps`: a pass is more than a call of the root itself."""
        self.device, self.dtype = device, dtype
        self._root, self._wraps, self._inside = root, wraps, False

    def one_pass(self, work: Callable[[], T]) -> T:
        if self._inside:
            return work()
        result = self.hold(work)
        if not torch.is_grad_enabled():  # no backward pass will
            self.release()
        return result

    def hold(self, work: Callable[[], T]) -> T:
        if self._inside or not self._wraps:
            return work()
        self._inside = True
        try:
            result: T = self._root.whet_pass(work)  # type: ignore[operator]
            return result
        finally:
            self._inside = False

    def release(self) -> None:
        self._root.reshard()  # type: ignore[operator]

    def one_layer(self, layer: nn.Module, work: Callable[..., T], *inputs: Tensor | None) -> T:
        # inputs are handed through the layer: it is there that FSDP learns when the layer's backward pass is over
        result: T = layer.whet_layer(work, *inputs)  # type: ignore[operator]
        return result


def _pass(module: nn.Module, work: Callable[[], Any]) -> Any:
    return work()


def _layer(module: nn.Module, work: Callable[..., Any], *inputs: Tensor | None) -> Any:
    return work(*inputs)


def _add_method(module: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(module, name, types.MethodType(function, module))
    register_fsdp_forward_method(module, name)


def layers_of(trunk: nn.Module) -> list[nn.Module]:
    """The trunk's layers: of its lists of equal modules the one with the most weights. Empty where there is none."""
    lists = [
        list(module)
        for module in trunk.modules()
        if isinstance(module, nn.ModuleList) and len(module) and len({type(layer) for layer in module}) == 1
    ]
    return max(lists, key=_size, default=[])


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())


def gathered_dtype(lm: CausalLM) -> torch.dtype | None:
    """What layers are gathered in, where that is not how their weights are kept: half precision, on a GPU."""
    return lm.dtype if lm.device.type == "cuda" and lm.dtype.itemsize < 4 else None


def sharded(lm: CausalLM, sharding: Sharding, root: nn.Module | None = None) -> CausalLM:
    """The model in shards, in place. `root` is the module that holds all that is trained; None: the whole model.

    Which fast paths the model takes is tried out first, while its weights are whole.
    """
    packs(lm)
    device = lm.device
    half = gathered_dtype(lm)
    root = lm.model if root is None else root
    _shard_bases(lm.model, sharding.mesh)
    for layer in layers_of(lm.trunk):
        sharding.wrap(layer, half, keep=False)
        _add_method(layer, "whet_layer", _layer)
    sharding.wrap(root, None, keep=True)
    wraps = root is not lm.trunk
    if wraps:
        _add_method(root, "whet_pass", _pass)
    kind = half or next(lm.model.parameters()).dtype
    made = replace(lm, gathering=ShardedPasses(root, device, kind, wraps))
    if lm.recompute != "none" and fused_refusal(made) and getattr(lm.model, "supports_gradient_checkpointing", False):
        # written-out layers compute again what they are told to; the model's own know whole layers only
        lm.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})  # type: ignore
    return made


def _shard_bases(model: nn.Module, mesh: DeviceMesh) -> None:
    """What adapters stand on is sliced like the weights it is merged into."""
    for layer in adapted_layers(model).values():
        layer.base = distribute_tensor(layer.base, mesh)


class _TrunkAndHead(nn.Module):
    """A critic as one module: a dictionary of modules has no forward to hook into."""

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head

    def forward(self, work: Callable[[], Any]) -> Any:
        return work()


def sharded_critic(critic: Critic, sharding: Sharding) -> Critic:
    """A trunk of its own with its head, or the head alone."""
    if critic.trunk is None:
        sharding.wrap(critic.head, None, keep=True)
        return critic
    return replace(critic, trunk=sharded(critic.trunk, sharding, _TrunkAndHead(critic.trunk.trunk, critic.head)))


def sharded_scalar_model(made: ScalarModel, sharding: Sharding) -> ScalarModel:
    """The scalar model with its weights in shards."""
    return replace(made, lm=sharded(made.lm, sharding, made.model))


def sharded_reference(reference: ReferencePolicy, policy: CausalLM, sharding: Sharding) -> ReferencePolicy:
    """The reference of a policy that is in shards already."""
    if isinstance(reference, CopiedReference):
        reference.place(lambda lm: sharded(lm, sharding))
        return reference
    if isinstance(reference, AdapterFreeReference):
        return AdapterFreeReference(policy)
    load = reference.load
    return ReloadedReference(lambda: sharded(load(), sharding))


def whole(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A weight in one piece, gathered in `dtype`. For all ranks at once."""
    value = value.detach()
    value = value if dtype is None else value.to(dtype)
    return value.full_tensor() if isinstance(value, DTensor) else value
