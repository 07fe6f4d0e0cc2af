"""Weights and samples as they travel: plain arrays, which are sent without being copied into a pickle."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.types import Sample, Support


@dataclass(frozen=True)
class PackedWeights:
    """Named tensors as bytes. Tensors that share their memory, such as a tied head, are sent once."""

    arrays: tuple[Any, ...]  # uint8 [bytes], read-only where they arrive
    names: Mapping[str, tuple[int, str, tuple[int, ...]]]  # name -> (array, dtype, shape)

    @property
    def num_bytes(self) -> int:
        """The size of all arrays in bytes."""
        return sum(int(array.nbytes) for array in self.arrays)

    def tensors(self) -> dict[str, Tensor]:
        """Views of the arrays: to be copied from, never written to."""
        tensors = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the arrays are read-only, and so are these tensors, by agreement
            flat = [torch.from_numpy(values) for values in self.arrays]
        for name, (array, dtype, shape) in self.names.items():
            tensors[name] = flat[array].view(getattr(torch, dtype)).reshape(shape)
        return tensors


def packed_weights(weights: Mapping[str, Tensor], leave_out: Container[str] = ()) -> PackedWeights:
    """Weights on their way; `leave_out` are names that the receiver has already."""
    arrays: list[Any] = []
    known: dict[tuple[int, torch.Size, torch.dtype], int] = {}
    names = {}
    for name, tensor in weights.items():
        if name in leave_out:
            continue
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype)
        if not tensor.numel() or key not in known:
            known[key] = len(arrays)
            arrays.append(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        names[name] = (known[key], str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return PackedWeights(tuple(arrays), names)


def load_weights(module: torch.nn.Module, packed: PackedWeights) -> None:
    """Copy weights into a module, in place; a name or shape that it does not have is an error."""
    own = module.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in packed.tensors().items():
            if name not in own or own[name].shape != tensor.shape:
                has = "no such weight" if name not in own else f"one of shape {tuple(own[name].shape)}"
                raise ValueError(f"the weight {name} of shape {tuple(tensor.shape)} came, and the model has {has}")
            own[name].copy_(tensor)


def packed_sample(sample: Sample) -> tuple[dict[str, Any], Sample]:
    """The sample's arrays, and the rest of it."""
    arrays: dict[str, Any] = {}
    for field in fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, Tensor):
            arrays[field.name] = value.detach().cpu().numpy()
        elif isinstance(value, Support):
            arrays[field.name] = (value.ids.cpu().numpy(), value.counts.cpu().numpy())
    rest: dict[str, Any] = dict.fromkeys(arrays)
    return arrays, replace(sample, **rest)


def unpacked_sample(packed: tuple[dict[str, Any], Sample]) -> Sample:
    """The sample that `packed_sample` packed."""
    tensors: dict[str, Any] = {
        name: Support(*map(_tensor, value)) if isinstance(value, tuple) else _tensor(value)
        for name, value in packed[0].items()
    }
    return replace(packed[1], **tensors)


def packed_samples(samples: Sequence[Sample]) -> list[tuple[dict[str, Any], Sample]]:
    """`packed_sample` of each."""
    return [packed_sample(sample) for sample in samples]


def unpacked_samples(packed: Sequence[tuple[dict[str, Any], Sample]]) -> list[Sample]:
    """`unpacked_sample` of each."""
    return [unpacked_sample(sample) for sample in packed]


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array))  # a copy: what was sent is read-only, and holds the store's memory
