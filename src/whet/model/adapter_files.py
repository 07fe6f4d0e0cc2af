"""Adapters on disk, in the format of the peft library: a folder of two files beside a checkpoint's merged model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whet.model.lora import AdaptedLinear, UnmergedLinear, adapted_layers
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FOLDER = "adapter"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
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
    file = checkpoint / FOLDER / WEIGHTS
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
    file = checkpoint / FOLDER / WEIGHTS
    if not layers:
        return
    if not file.is_file():
        raise WhetError(f"checkpoint {checkpoint} has no {FOLDER}/{WEIGHTS}; it was saved without model.lora")
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
