"""A smaller model out of a larger one: some of its layers, or its shape with new weights."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from whet.model.load import load_model
from whet.model.pretrained import quiet_transformers
from whet.types import WhetError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PER_LAYER = ("layer_types", "no_rope_layers")  # lists in a config with an entry for each layer


def kept_layers(total: int, count: int) -> list[int]:
    """`count` of `total` layers, evenly spread, the first and the last among them (as in Sanh 2019, 1910.01108)."""
    if not 1 <= count <= total:
        raise WhetError(f"student.layers is {count}; the teacher has {total} layers: give 1 to {total}")
    if count == 1:
        return [0]
    return [round(number * (total - 1) / (count - 1)) for number in range(count)]


def fewer_layers(model: PreTrainedModel, layers: list[int]) -> PreTrainedModel:
    """A model of these layers of `model`, with its embeddings and head; the weights are copies."""
    own = model.state_dict()
    smaller = new_weights(model, len(layers), seed=0, keep=layers)
    names = {f".layers.{old}.": f".layers.{new}." for new, old in enumerate(layers)}
    renamed = {}
    for name, weight in own.items():
        layer_path = next((old_path for old_path in names if old_path in f".{name}"), None)
        if layer_path is not None:
            renamed[f".{name}".replace(layer_path, names[layer_path], 1)[1:]] = weight
        elif ".layers." not in f".{name}":
            renamed[name] = weight
    smaller.load_state_dict(renamed)
    return smaller


def new_weights(model: PreTrainedModel, layers: int, seed: int, keep: list[int] | None = None) -> PreTrainedModel:
    """A model of the same shape with fewer layers, its weights drawn anew."""
    config = copy.deepcopy(model.config)
    total = getattr(config, "num_hidden_layers", None)
    if not isinstance(total, int) or f"layers.{total - 1}." not in " ".join(model.state_dict()):
        raise WhetError(f"student: a {config.model_type} model has no plain list of layers; give student.name instead")
    places = kept_layers(total, layers) if keep is None else keep
    for name in PER_LAYER:
        if isinstance(per_layer := getattr(config, name, None), list):
            setattr(config, name, [per_layer[layer] for layer in places])
    config.num_hidden_layers = len(places)
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        smaller = type(model)(config)
    return smaller.to(model.dtype).eval()  # type: ignore[arg-type,no-any-return]


def save_smaller(source: str, folder: Path, layers: int, from_scratch: bool = False, seed: int = 0) -> tuple[int, int]:
    """Write the smaller model and its tokenizer to a folder, all or nothing; weights before and after.

    0 layers are all of them.
    """
    loaded = load_model(source)
    model = loaded.model
    layers = layers or model.config.num_hidden_layers
    chosen = kept_layers(model.config.num_hidden_layers, layers)
    smaller = new_weights(model, layers, seed) if from_scratch else fewer_layers(model, chosen)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with quiet_transformers():
        smaller.save_pretrained(partial)
        loaded.tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return model.num_parameters(), smaller.num_parameters()


def count_weights(source: str) -> int:
    """The number of weights of a model, by name or folder."""
    return load_model(source).model.num_parameters()
