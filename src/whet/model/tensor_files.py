"""Files of tensors in the safetensors format, written beside a training that goes on.

The library's own writer holds the interpreter's lock from the first byte to the last, so a step would wait for the
disk. Here the bytes are the same, writing and hashing release the lock, and both run side by side.

Adapters on disk, in the format of the peft library: a folder of two files beside a checkpoint's merged model.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whet.model.lora import AdaptedLinear, UnmergedLinear, adapted_layers
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ADAPTER = "adapter"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
NAMES = {"down": "lora_A.weight", "up": "lora_B.weight"}
TASKS = {"SequenceClassification": "SEQ_CLS", "TokenClassification": "TOKEN_CLS"}
HEAD = "score"  # of a reward model: trained in full, so it travels with the adapter


def adapter_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The factors of an adapted model, and of a reward model its head, by their names in a file."""
    layers = adapted_layers(model)
    if not layers:
        return {}
    tensors: dict[str, Tensor] = {
        f"{PREFIX}{name}.{saved}": getattr(layer, factor)
        for name, layer in layers.items()
        for factor, saved in NAMES.items()
    }
    head = getattr(model, HEAD, None)
    if head is not None:
        tensors |= {f"{PREFIX}{HEAD}.{name}": value for name, value in head.state_dict().items()}
    return tensors


def adapter_config(model: PreTrainedModel) -> bytes | None:
    """The text that describes an adapted model's adapter; None for a model without."""
    layers = adapted_layers(model)
    if not layers:
        return None
    return (json.dumps(_description(model, layers), indent=1, sort_keys=True) + "\n").encode()


def _description(model: PreTrainedModel, layers: dict[str, AdaptedLinear]) -> dict[str, Any]:
    first = next(iter(layers.values()))
    rank = len(first.down)
    alpha = first.scale * rank
    kind = type(model).__name__
    return {
        "peft_type": "LORA",
        "task_type": next((task for ending, task in TASKS.items() if kind.endswith(ending)), "CAUSAL_LM"),
        "base_model_name_or_path": None,  # a path would make equal runs differ
        "r": rank,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
        "modules_to_save": [HEAD] if hasattr(model, HEAD) else None,
        "inference_mode": True,
    }


def stored_factors(model: PreTrainedModel, checkpoint: Path) -> dict[str, Tensor]:
    """A checkpoint's factors by the names of the model's parameters; none for a model without adapters."""
    from safetensors.torch import load_file

    layers = adapted_layers(model)
    file = checkpoint / ADAPTER / ADAPTER_WEIGHTS
    if not layers or not file.is_file():
        return {}
    stored = load_file(str(file))
    stored_names = {f"{name}.{factor}": f"{PREFIX}{name}.{saved}" for name in layers for factor, saved in NAMES.items()}
    return {name: stored[stored_name] for name, stored_name in stored_names.items() if stored_name in stored}


@torch.no_grad()
def load_adapter(model: PreTrainedModel, checkpoint: Path, weights: Mapping[str, Tensor]) -> None:
    """Put a checkpoint's factors into a model; `weights` are the checkpoint's, and in the model where it merges them.

    The base is not in a checkpoint: it was loaded from where the run found it, and must still be the same.
    """
    from safetensors.torch import load_file

    layers = adapted_layers(model)
    file = checkpoint / ADAPTER / ADAPTER_WEIGHTS
    if not layers:
        return
    if not file.is_file():
        raise WhetError(f"checkpoint {checkpoint} has no {ADAPTER}/{ADAPTER_WEIGHTS}; it was saved without model.lora")
    stored = load_file(str(file))
    for name, layer in layers.items():
        for factor, saved in NAMES.items():
            value, parameter = stored.get(f"{PREFIX}{name}.{saved}"), getattr(layer, factor)
            if value is None or value.shape != parameter.shape:
                shape = "nothing" if value is None else list(value.shape)
                raise WhetError(
                    f"{file} has {shape} for {name}, where the run has {list(parameter.shape)}; "
                    "give the run's own model.lora"
                )
            parameter.copy_(value)
        layer.merge()
        apart = isinstance(layer, UnmergedLinear)
        merged = weights[f"{name}.weight"].to(parameter.device)
        expected = layer.merged() if isinstance(layer, UnmergedLinear) else layer.weight
        # another machine may round the product otherwise, another base differs at once
        near = 2 * torch.finfo(merged.dtype).eps if apart else 1e-4
        if not torch.allclose(merged, expected.to(merged), rtol=near, atol=1e-4 * float(merged.abs().max())):
            raise WhetError(
                f"{checkpoint}: {name} is not the model the run began with plus its adapter; "
                "put the first model back where model.name says, or go on from this checkpoint as the model"
            )
        if not apart:
            layer.weight.copy_(merged)


CHUNK = 1 << 24  # bytes between two looks at whether to go on
# in the order in which the format lays tensors out: every offset is then a multiple of its tensor's item size
KINDS = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ORDER = {dtype: position for position, dtype in enumerate(KINDS)}
Written = tuple[int, str]  # bytes, sha256
Job = Callable[[], Any]


class Abandoned(Exception):
    """The file is no longer wanted."""


def always() -> bool:
    """Go on to the end."""
    return True


def tensor_bytes(values: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[memoryview]:
    """The bytes of a safetensors file as parts in memory: its header, then each tensor without a copy."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[memoryview] = []
    end = 0
    for name, value in sorted(values.items(), key=lambda item: (ORDER[item[1].dtype], item[0])):
        plain = value.detach().contiguous()
        part: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
        header[name] = {
            "dtype": KINDS[plain.dtype],
            "shape": list(plain.shape),
            "data_offsets": [end, end + part.nbytes],
        }
        parts.append(part)
        end += part.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(struct.pack("<Q", len(text)) + text), *parts]


def write_file(parts: Sequence[memoryview], file: Path, wanted: Callable[[], bool] = always) -> list[Job]:
    """Two jobs, for two threads: to write the parts onto the disk, which gives their size, and to hash them."""
    return [lambda: _write(parts, file, wanted), lambda: _digest(parts, wanted)]


def hash_file(file: Path, wanted: Callable[[], bool] = always) -> Written:
    """Hash a file that somebody else wrote, and force it onto the disk."""
    with file.open("rb") as stream:
        total = hashlib.sha256()
        while chunk := stream.read(CHUNK):
            _go_on(wanted)
            total.update(chunk)
        os.fsync(stream.fileno())
        return stream.tell(), total.hexdigest()


def _write(parts: Sequence[memoryview], file: Path, wanted: Callable[[], bool]) -> int:
    size = 0
    with file.open("wb", buffering=0) as stream:
        for chunk in _chunks(parts):
            _go_on(wanted)
            begun = 0
            while begun < len(chunk):
                begun += stream.write(chunk[begun:]) or 0
            size += len(chunk)
        os.fsync(stream.fileno())
    return size


def _digest(parts: Sequence[memoryview], wanted: Callable[[], bool]) -> str:
    total = hashlib.sha256()
    for chunk in _chunks(parts):
        _go_on(wanted)
        total.update(chunk)
    return total.hexdigest()


def _chunks(parts: Sequence[memoryview]) -> list[memoryview]:
    return [part[start : start + CHUNK] for part in parts for start in range(0, len(part), CHUNK)]


def _go_on(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Abandoned
