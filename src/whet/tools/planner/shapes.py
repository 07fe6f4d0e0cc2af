"""The shape of a model, from a name, from sizes or from its config.json: all that memory and time depend on."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from whet.record.speed import Anatomy
from whet.types import WhetError, did_you_mean

LEAST_BILLIONS, MOST_BILLIONS = 0.01, 10_000.0


@dataclass(frozen=True)
class ModelShape:
    """A decoder: W hidden, F inner, H heads and K key heads of size D, V vocabulary."""

    name: str
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    inner: int  # of the MLP; of one expert in a mixture
    vocabulary: int
    tied: bool = True  # the head is the embedding
    bias: bool = False  # of queries, keys and values
    head_norms: bool = False  # of queries and keys
    gated: bool = True  # three matrices in the MLP, else two
    experts: int = 0  # 0: no mixture
    experts_used: int = 0  # by a token
    shared_inner: int = 0  # width of the experts that every token uses
    context: int = 0  # the longest row; 0: not stated
    stored: int | None = None  # weights counted in the model's files, where they are there
    family: str = ""  # model_type of config.json

    def __post_init__(self) -> None:
        for field in ("hidden", "layers", "heads", "key_heads", "head_size", "inner", "vocabulary"):
            if getattr(self, field) < 1:
                raise WhetError(f"model shape {self.name}: {field} is {getattr(self, field)}; give 1 or more")
        if self.heads % self.key_heads:
            raise WhetError(
                f"model shape {self.name}: {self.heads} heads cannot share {self.key_heads} key heads; give a divisor"
            )

    @property
    def attention_weights(self) -> int:
        """Attention weights of one layer."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        return self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys if self.bias else 0)

    @property
    def mlp_weights(self) -> int:
        """MLP weights of one layer, every expert counted."""
        matrices = 3 if self.gated else 2
        experts = max(1, self.experts) * self.inner + self.shared_inner
        return matrices * self.hidden * experts + self.hidden * self.experts

    @property
    def layer_weights(self) -> int:
        """The number of weights in one layer."""
        return self.attention_weights + self.mlp_weights + 2 * self.hidden

    @property
    def vocabulary_weights(self) -> int:
        """Weights of the embedding, or of the head: V W."""
        return self.vocabulary * self.hidden

    @cached_property
    def weights(self) -> int:
        """The number of weights, each counted once."""
        return self.stored or self.trunk_weights + (1 if self.tied else 2) * self.vocabulary_weights

    @property
    def trunk_weights(self) -> int:
        """Weights of all layers and the last norm."""
        if self.stored is not None:
            return self.stored - (1 if self.tied else 2) * self.vocabulary_weights
        return self.layers * self.layer_weights + self.hidden

    @property
    def cache_width(self) -> int:
        """Numbers that the sampler keeps of a token: keys and values of every layer."""
        return 2 * self.layers * self.key_heads * self.head_size

    @property
    def anatomy(self) -> Anatomy:
        """What costs operations and bytes; of experts, those that a token uses."""
        matrices = 3 if self.gated else 2
        used = (self.experts_used or 1) * self.inner + self.shared_inner
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        trunk = self.layers * self.hidden * (2 * queries + 2 * keys + matrices * used)
        return Anatomy(trunk, self.vocabulary_weights, self.layers * queries, self.cache_width)

    def adapter_weights(self, rank: int) -> int:
        """Adapters on every linear layer of the trunk: rank (in + out) each; tensors of all experts get none."""
        queries, keys = self.heads * self.head_size, self.key_heads * self.head_size
        ends = 2 * (self.hidden + queries) + 2 * (self.hidden + keys)
        if not self.experts:
            ends += (3 if self.gated else 2) * (self.hidden + self.inner)
        return rank * self.layers * ends

    @property
    def adapted_weights(self) -> int:
        """Weights of the layers that adapters stand on."""
        mlp = 0 if self.experts else self.mlp_weights
        return self.layers * (self.attention_weights + mlp)

    def __str__(self) -> str:
        experts = f", {self.experts} experts of which a token uses {self.experts_used}" if self.experts else ""
        return (
            f"{self.name}: {self.weights / 1e6:,.1f}M weights ({self.layers} layers of width {self.hidden}, MLP "
            f"{self.inner}{experts}, {self.heads} heads and {self.key_heads} for keys of size {self.head_size}, "
            f"vocabulary {self.vocabulary}{'' if self.tied else ', a head of its own'})"
        )


def _named(
    name: str,
    sizes: tuple[int, int, int, int, int, int, int],
    *,
    tied: bool = True,
    bias: bool = False,
    context: int = 0,
) -> ModelShape:
    """`sizes`: hidden, layers, heads, key heads, head size, inner, vocabulary."""
    normed = name.startswith("qwen3")
    return ModelShape(name, *sizes, tied=tied, bias=bias, head_norms=normed, context=context)


# As the models' own config.json say.
NAMED: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _named("smollm2-135m", (576, 30, 9, 3, 64, 1536, 49152), context=8192),
        _named("smollm2-360m", (960, 32, 15, 5, 64, 2560, 49152), context=8192),
        _named("smollm2-1.7b", (2048, 24, 32, 32, 64, 8192, 49152), context=8192),
        _named("qwen2.5-0.5b", (896, 24, 14, 2, 64, 4864, 151936), bias=True, context=32768),
        _named("qwen2.5-1.5b", (1536, 28, 12, 2, 128, 8960, 151936), bias=True, context=32768),
        _named("qwen2.5-3b", (2048, 36, 16, 2, 128, 11008, 151936), bias=True, context=32768),
        _named("qwen2.5-7b", (3584, 28, 28, 4, 128, 18944, 152064), tied=False, bias=True, context=32768),
        _named("qwen2.5-14b", (5120, 48, 40, 8, 128, 13824, 152064), tied=False, bias=True, context=32768),
        _named("qwen2.5-32b", (5120, 64, 40, 8, 128, 27648, 152064), tied=False, bias=True, context=32768),
        _named("qwen2.5-72b", (8192, 80, 64, 8, 128, 29568, 152064), tied=False, bias=True, context=32768),
        _named("qwen3-0.6b", (1024, 28, 16, 8, 128, 3072, 151936), context=40960),
        _named("qwen3-1.7b", (2048, 28, 16, 8, 128, 6144, 151936), context=40960),
        _named("qwen3-4b", (2560, 36, 32, 8, 128, 9728, 151936), context=40960),
        _named("qwen3-8b", (4096, 36, 32, 8, 128, 12288, 151936), tied=False, context=40960),
        _named("qwen3-14b", (5120, 40, 40, 8, 128, 17408, 151936), tied=False, context=40960),
        _named("qwen3-32b", (5120, 64, 64, 8, 128, 25600, 151936), tied=False, context=40960),
        _named("llama-3.2-1b", (2048, 16, 32, 8, 64, 8192, 128256), context=131072),
        _named("llama-3.2-3b", (3072, 28, 24, 8, 128, 8192, 128256), context=131072),
        _named("llama-3.1-8b", (4096, 32, 32, 8, 128, 14336, 128256), tied=False, context=131072),
        _named("llama-3.1-70b", (8192, 80, 64, 8, 128, 28672, 128256), tied=False, context=131072),
        _named("llama-7b", (4096, 32, 32, 32, 128, 11008, 32000), tied=False, context=2048),
        _named("llama-13b", (5120, 40, 40, 40, 128, 13824, 32000), tied=False, context=2048),
        _named("mistral-7b", (4096, 32, 32, 8, 128, 14336, 32768), tied=False, context=32768),
        replace(
            _named("qwen3-30b-a3b", (2048, 48, 32, 4, 128, 768, 151936), tied=False, context=40960),
            experts=128,
            experts_used=8,
        ),
    )
}
# A bare size is the model of that name in the family that most recipes use.
BY_SIZE = {
    **{"135m": "smollm2-135m", "360m": "smollm2-360m", "0.5b": "qwen2.5-0.5b", "0.6b": "qwen3-0.6b"},
    **{"1b": "llama-3.2-1b", "1.5b": "qwen2.5-1.5b", "1.7b": "qwen3-1.7b", "3b": "qwen2.5-3b", "4b": "qwen3-4b"},
    **{"7b": "qwen2.5-7b", "8b": "llama-3.1-8b", "13b": "llama-13b", "14b": "qwen2.5-14b", "32b": "qwen2.5-32b"},
    **{"70b": "llama-3.1-70b", "72b": "qwen2.5-72b"},
}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([mb])", re.IGNORECASE)
# what a shape may be written as, and the field that it is
WRITTEN = {
    **{field.name: field.name for field in fields(ModelShape) if field.name not in ("name", "stored", "family")},
    **{"kv_heads": "key_heads", "head_dim": "head_size", "intermediate": "inner", "vocab": "vocabulary"},
}
REQUIRED = ("hidden", "layers")


def named_shape(text: str) -> ModelShape | None:
    """The shape that a text spells: a known name, a size (7B, 350M), or `hidden=4096,layers=32,...`; else None."""
    plain = text.strip().lower()
    if plain in NAMED:
        return NAMED[plain]
    if plain in BY_SIZE:
        return NAMED[BY_SIZE[plain]]
    written = SIZE.fullmatch(plain)
    if written:
        return shape_of_size(float(written[1]) * (1e-3 if written[2] == "m" else 1.0))
    return _written_shape(plain) if "=" in plain else None


def shape_of_size(billions: float) -> ModelShape:
    """A dense model of so many weights: the nearest known one of the usual sizes, its MLP made wider or narrower."""
    if not LEAST_BILLIONS <= billions <= MOST_BILLIONS:
        raise WhetError(f"a model of {billions:g} billion weights; give a size from 10M to {MOST_BILLIONS:g}B")
    usual = [NAMED[name] for name in dict.fromkeys(BY_SIZE.values())]
    near = min(usual, key=lambda shape: abs(math.log(shape.weights / (billions * 1e9))))
    fixed = near.weights - near.layers * near.mlp_weights
    inner = (billions * 1e9 - fixed) / (near.layers * 3 * near.hidden)
    if inner < near.hidden / 4:  # far from all of them: layers and vocabulary shrink with the width
        near = _narrower(near, billions)
        inner = near.inner
    return replace(near, name=f"{billions:g}B", inner=max(1, round(inner)), stored=None)


def _narrower(shape: ModelShape, billions: float) -> ModelShape:
    factor = (billions * 1e9 / shape.weights) ** (1 / 3)
    hidden = max(8, round(shape.hidden * factor / 8) * 8)
    shrunk = replace(
        shape, hidden=hidden, heads=1, key_heads=1, head_size=hidden, layers=max(1, round(shape.layers * factor)),
        vocabulary=max(256, round(shape.vocabulary * factor)),
    )  # fmt: skip
    fixed = shrunk.weights - shrunk.layers * shrunk.mlp_weights
    inner = (billions * 1e9 - fixed) / (shrunk.layers * 3 * hidden)
    return replace(shrunk, inner=max(1, round(inner)))


def _written_shape(text: str) -> ModelShape:
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in WRITTEN:
            hint = did_you_mean(key, WRITTEN)
            raise WhetError(f"model shape: {part.strip()!r} is none of its sizes{hint}; give {', '.join(WRITTEN)}")
        if value in ("true", "false"):
            values[WRITTEN[key]] = value == "true"
        elif value.isdigit():
            values[WRITTEN[key]] = int(value)
        else:
            raise WhetError(f"model shape: {key} is {value!r}; give a whole number, or true or false")
    for key in REQUIRED:
        if key not in values:
            raise WhetError(f"model shape {text!r} has no {key}; give at least hidden=4096,layers=32")
    hidden = values["hidden"]
    if not 1 <= hidden <= 2**20 or not 1 <= values["layers"] <= 10_000:
        raise WhetError(f"model shape {text!r}: give hidden from 1 to {2**20} and layers from 1 to 10000")
    size = values.setdefault("head_size", 128 if hidden % 128 == 0 and hidden >= 1024 else min(64, hidden))
    values.setdefault("heads", max(1, hidden // max(1, size)))
    values.setdefault("key_heads", values["heads"])
    values.setdefault("inner", 4 * hidden)
    values.setdefault("vocabulary", 152064)
    return ModelShape(text, **values)


# The names that configs of different families have for a size.
STATED: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "key_heads": ("num_key_value_heads", "num_kv_heads"),
    "inner": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"),
    "vocabulary": ("vocab_size",),
    "context": ("max_position_embeddings", "n_positions", "n_ctx"),
}
UNGATED = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "bloom", "falcon", "starcoder2")
HEAD_NORMS = ("qwen3", "qwen3_moe", "gemma3_text", "olmo2", "olmo3")
TIED_UNLESS_SAID = ("gpt2", "gpt_neo", "gemma", "gemma2", "gemma3_text", "opt", "bloom", "falcon")


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """The shape in a parsed config.json of transformers."""
    inner_config = config.get("text_config")
    values = {**config, **inner_config} if isinstance(inner_config, Mapping) else dict(config)

    def stated(field: str) -> int | None:
        for key in STATED[field]:
            value = values.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    hidden, layers, heads, vocabulary = (stated(field) for field in ("hidden", "layers", "heads", "vocabulary"))
    if hidden is None or layers is None or heads is None or vocabulary is None:
        missing = [field for field in ("hidden", "layers", "heads", "vocabulary") if stated(field) is None]
        raise WhetError(
            f"model {name}: its config.json does not say {' or '.join(missing)}; give the shape as "
            "hidden=...,layers=...,heads=...,inner=...,vocabulary=..."
        )
    kind = str(values.get("model_type", ""))
    size = values.get("head_dim")
    experts = next(
        (values[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if values.get(key)), 0
    )
    inner = stated("inner") or 4 * hidden
    if experts and isinstance(values.get("moe_intermediate_size"), int):
        inner = int(values["moe_intermediate_size"])
    shared = values.get("shared_expert_intermediate_size") or 0
    tied = values.get("tie_word_embeddings")
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        key_heads=stated("key_heads") or heads,
        head_size=size if isinstance(size, int) and size > 0 else max(1, hidden // heads),
        inner=inner,
        vocabulary=vocabulary,
        tied=bool(tied) if tied is not None else kind in TIED_UNLESS_SAID,
        bias=bool(values.get("attention_bias", kind in ("qwen2", "gpt2"))),
        head_norms=kind in HEAD_NORMS,
        gated=kind not in UNGATED,
        experts=int(experts),
        experts_used=int(values.get("num_experts_per_tok") or 0) if experts else 0,
        shared_inner=int(shared) if experts else 0,
        context=stated("context") or 0,
        family=kind,
    )


def folder_shape(folder: Path, name: str) -> ModelShape:
    """The shape of a model folder: its config.json, and the weights counted in the heads of its safetensors files."""
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WhetError(f"model {name}: {file} cannot be read; give a folder with config.json, or a shape") from error
    except (ValueError, RecursionError) as error:
        raise WhetError(f"model {name}: {file} is not JSON; save or download the folder again") from error
    if not isinstance(config, Mapping):
        raise WhetError(f"model {name}: {file} holds no table; save or download the folder again")
    shape = shape_from_config(config, name)
    counted = stored_weights(folder)
    least = (1 if shape.tied else 2) * shape.vocabulary_weights
    return replace(shape, stored=counted) if counted is not None and counted > least else shape


def stored_weights(folder: Path) -> int | None:
    """Numbers in the safetensors files of a folder, by their heads alone; None where there are none to be read."""
    files = sorted(folder.glob("*.safetensors"))
    total = 0
    for file in files:
        if file.name.startswith(("optimizer", "critic", "reference", "rollouts", "adapter")):
            continue
        try:
            with open(file, "rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                head = json.loads(stream.read(min(length, os.path.getsize(file))))
            total += sum(math.prod(tensor["shape"]) for key, tensor in head.items() if key != "__metadata__")
        except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError):
            return None
    return total or None
