"""A Llama-type decoder, described once: the weights, norms, rotation and windows that every fast path reads.

`describe_blocks` is the one predicate. It finds the parts of a model by name and gives either the description or the
reason why the model has none. A new family is one entry in `FAMILIES`, which says where its norms stand. A description
is a claim: whoever computes from it compares its results with the model's own first. `short_windows` and
`far_position` let a trial of a few tokens show what happens beyond a window and at the end of the context.

    h = x + after_attention(o(attention(rotate(norm(q(n))), rotate(norm(k(n))), v(n))))    n = before_attention(x)
    y = h + after_mlp(down(silu(gate(m)) * up(m)))                                        m = before_mlp(h)

Every product may have a bias. Every norm is an RMS norm, and each may be absent. Those of queries and keys act on each
head or on all heads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.causal_lm import CausalLM
from whet.model.lora import is_linear
from whet.model.low_precision import WideEmbedding

FIXED_ROTATIONS = frozenset(("default", "linear", "llama3", "yarn"))  # the others depend on the length of the text
TRIAL_WINDOW = 4  # tokens: shorter than the rows of every trial
WINDOW_SETTINGS = ("sliding_window", "attention_chunk_size", "floor_scale")  # lengths past which a model changes
FAR = 4096  # a position for trials of models that name no last one
PRODUCTS = {"self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj")}
# settings of a config that change the scores or the residual stream in a way that no block here has
UNKNOWN_SETTINGS = ("attn_logit_softcapping", "attention_chunk_size", "residual_multiplier", "embedding_multiplier")


@dataclass(frozen=True)
class BlockFamily:
    """The names of a layer's norms; None where there is none."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None

    @property
    def norms(self) -> set[str]:
        """The names of its norm modules."""
        return {name for name in vars(self).values() if name is not None}


LLAMA = BlockFamily(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
FAMILIES = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "qwen2": LLAMA,
    "qwen3": LLAMA,
    "olmo2": BlockFamily(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm"),
}  # a family that is not named here is taken to be built like Llama, if its parts have Llama's names


@dataclass(frozen=True)
class Block:
    """The parts of one layer, as modules of the model itself, so that their weights are always current."""

    module: nn.Module
    before_attention: nn.Module | None
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    output: nn.Linear
    after_attention: nn.Module | None
    before_mlp: nn.Module | None
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    after_mlp: nn.Module | None
    window: int | None  # how many keys a token sees, its own included; None: all

    @property
    def products(self) -> tuple[nn.Linear, ...]:
        """The block's seven linear layers, attention first."""
        return self.query, self.key, self.value, self.output, self.gate, self.up, self.down

    @property
    def biased(self) -> tuple[str, ...]:
        """The names of the products that have a bias."""
        names = [f"{part}.{name}" for part, modules in PRODUCTS.items() for name in modules]
        return tuple(name for name, layer in zip(names, self.products, strict=True) if has_bias(layer))


@dataclass(frozen=True)
class BlockSizes:
    """The numbers of a model's blocks: the same for all of them."""

    num_heads: int
    num_key_heads: int
    head_size: int
    width: int
    inner: int  # width of the MLP
    vocabulary: int
    epsilon: float
    scale: float  # of the scores


@dataclass(frozen=True)
class BlockStack:
    """All blocks of a model with its embedding, last norm and head."""

    embedding: nn.Embedding
    blocks: tuple[Block, ...]
    last_norm: nn.Module
    head: nn.Linear | None  # None for a trunk without a vocabulary head, such as a critic's
    rotary: nn.Module
    sizes: BlockSizes

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention window of each block; None where it sees everything."""
        return tuple(block.window for block in self.blocks)

    @property
    def bias_refusal(self) -> str:
        """Why a path that takes a bias on queries, keys and values together cannot run this block; empty if it can."""
        entering = {f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj")}
        for number, block in enumerate(self.blocks):
            biased = set(block.biased)
            if more := [name for name in block.biased if name not in entering]:
                return f"model.layers.{number}.{more[0]} has a bias"
            if biased and biased != entering:
                return f"model.layers.{number}.self_attn has a bias on some of queries, keys and values only"
        return ""

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine at int64 [S] positions, [S, head size] each, at least float32, as the model makes them."""
        wide = torch.promote_types(self.embedding.weight.dtype, torch.float32)
        probe = torch.zeros(1, 1, dtype=wide, device=positions.device)
        with torch.no_grad():
            cosine, sine = self.rotary(probe, positions[None])
        return cosine[0].to(wide).contiguous(), sine[0].to(wide).contiguous()


@dataclass(frozen=True)
class NotDescribed:
    """Why a model is none of these."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class UnsupportedBlock(ValueError):
    """Something that no block has."""


def describe_blocks(lm: CausalLM) -> BlockStack | NotDescribed:
    """The description, or the reason why there is none."""
    try:
        _check(lm)
        return blocks_of(lm)
    except UnsupportedBlock as other:
        return NotDescribed(str(other))


def blocks_of(lm: CausalLM) -> BlockStack:
    """The description of a model that is known to have one: nothing is checked again."""
    model: Any = lm.model
    config, trunk = model.config, lm.trunk
    parts: Any = trunk
    family = FAMILIES.get(config.model_type, LLAMA)
    windows = layer_windows(config, len(parts.layers))
    attention: Any = parts.layers[0].self_attn
    sizes = BlockSizes(
        num_heads=config.num_attention_heads,
        num_key_heads=config.num_key_value_heads,
        head_size=int(attention.head_dim),
        width=config.hidden_size,
        inner=parts.layers[0].mlp.gate_proj.out_features,
        vocabulary=lm.vocabulary,
        epsilon=float(config.rms_norm_eps),
        scale=float(attention.scaling),
    )
    return BlockStack(
        embedding=parts.embed_tokens,
        blocks=tuple(_block(layer, family, window) for layer, window in zip(parts.layers, windows, strict=True)),
        last_norm=parts.norm,
        head=_vocabulary_head(model),
        rotary=parts.rotary_emb,
        sizes=sizes,
    )


def _vocabulary_head(model: Any) -> Any:
    return model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None


def _check(lm: CausalLM) -> None:
    model: Any = lm.model
    config, trunk = model.config, lm.trunk
    kind = getattr(config, "model_type", type(model).__name__)
    if lm.whole:
        raise UnsupportedBlock(f"{kind}: the trunk cannot be told from the vocabulary head")
    names = ("embed_tokens", "layers", "norm", "rotary_emb")
    missing = [name for name in names if not hasattr(trunk, name)]
    if missing:
        raise UnsupportedBlock(f"{kind}: the trunk has no {missing[0]}")
    _check_settings(config)
    hooked = [name for name, module in model.named_modules() if module._forward_hooks or module._forward_pre_hooks]
    if hooked:
        raise UnsupportedBlock(f"{hooked[0] or 'the model'} has a forward hook")
    parts: Any = trunk
    if type(parts.embed_tokens) not in (nn.Embedding, WideEmbedding):
        raise UnsupportedBlock(f"the embedding is a {type(parts.embed_tokens).__name__}")
    _check_norm("the last norm", parts.norm)
    head = _vocabulary_head(model)
    if head is not None and type(head) is not nn.Linear:
        raise UnsupportedBlock(f"the vocabulary head is a {type(head).__name__}, not a linear layer")
    layer_windows(config, len(parts.layers))
    for number, layer in enumerate(parts.layers):
        _check_block(f"model.layers.{number}", layer, FAMILIES.get(kind, LLAMA))


def _check_settings(config: Any) -> None:
    activation = getattr(config, "hidden_act", None) or getattr(config, "hidden_activation", None)
    if activation != "silu":
        raise UnsupportedBlock(f"the activation is {activation}, not silu")
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotation not in FIXED_ROTATIONS:
        raise UnsupportedBlock(f"the rotary embedding is of type {rotation}, which depends on the length of the text")
    if beta := (getattr(config, "rope_parameters", None) or {}).get("llama_4_scaling_beta"):
        raise UnsupportedBlock(f"queries are scaled by their position (llama_4_scaling_beta is {beta})")
    for name in UNKNOWN_SETTINGS:
        if getattr(config, name, None) not in (None, 1.0):
            raise UnsupportedBlock(f"{name} is {getattr(config, name)}")
    for name in ("rms_norm_eps", "num_key_value_heads", "num_attention_heads", "hidden_size"):
        if not isinstance(getattr(config, name, None), int | float):
            raise UnsupportedBlock(f"the config has no {name}")


def layer_windows(config: Any, num_layers: int) -> tuple[int | None, ...]:
    """The sliding window of each layer, as the config names it."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if getattr(config, "attention_chunk_size", None) or unknown:
        kinds_named = ", ".join(sorted(unknown)) or "chunked_attention"
        raise UnsupportedBlock(f"the config names attention that is neither full nor a sliding window: {kinds_named}")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


@contextmanager
def short_windows(lm: CausalLM) -> Iterator[None]:
    """Inside, windows, chunks and steps of a query scale are `TRIAL_WINDOW` tokens: short rows show what they do."""
    modules: list[Any] = list(lm.model.modules())
    configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}
    shortened = [
        (vars(owner), name, vars(owner)[name])
        for owner in (*modules, *configs.values())
        for name in WINDOW_SETTINGS
        if isinstance(vars(owner).get(name), int | float)
    ]
    try:
        for values, name, window in shortened:
            values[name] = min(window, TRIAL_WINDOW)
        yield
    finally:
        for values, name, window in shortened:
            values[name] = window


def far_position(lm: CausalLM, length: int) -> int:
    """Where a row of so many tokens begins that ends with the last position of the model's context."""
    last = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)  # type: ignore[union-attr,operator]
    return max(last - length, 0) if isinstance(last, int) else FAR


def _check_block(path: str, layer: Any, family: BlockFamily) -> None:
    _check_parts(path, layer, {"self_attn", "mlp", *family.norms})
    attention, mlp = layer.self_attn, layer.mlp
    normed = {"q_norm", "k_norm"} if hasattr(attention, "q_norm") else set()
    _check_parts(f"{path}.self_attn", attention, {*PRODUCTS["self_attn"], *normed})
    if dropout := getattr(attention, "attention_dropout", 0.0):
        raise UnsupportedBlock(f"{path}.self_attn.attention_dropout is {dropout}")
    _check_parts(f"{path}.mlp", mlp, set(PRODUCTS["mlp"]), optional={"act_fn"})
    for part, names in PRODUCTS.items():
        for name in names:
            module = getattr(getattr(layer, part), name)
            if not is_linear(module):
                raise UnsupportedBlock(f"{path}.{part}.{name} is a {type(module).__name__}, not a linear layer")
    for name in family.norms:
        _check_norm(f"{path}.{name}", getattr(layer, name))
    for name in normed:
        _check_norm(f"{path}.self_attn.{name}", getattr(attention, name))


def _block(layer: Any, family: BlockFamily, window: int | None) -> Block:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(name: str | None) -> nn.Module | None:
        return None if name is None else getattr(layer, name)

    return Block(
        module=layer,
        before_attention=norm(family.before_attention),
        query=attention.q_proj,
        key=attention.k_proj,
        value=attention.v_proj,
        query_norm=getattr(attention, "q_norm", None),
        key_norm=getattr(attention, "k_norm", None),
        output=attention.o_proj,
        after_attention=norm(family.after_attention),
        before_mlp=norm(family.before_mlp),
        gate=mlp.gate_proj,
        up=mlp.up_proj,
        down=mlp.down_proj,
        after_mlp=norm(family.after_mlp),
        window=window,
    )


def _check_parts(path: str, module: nn.Module, expected: set[str], optional: set[str] | None = None) -> None:
    parts = {name for name, _ in module.named_children()} - (optional or set())
    if path.endswith(".mlp") and parts & {"experts", "router"}:
        raise UnsupportedBlock(f"{path} is a mixture of experts")
    if more := sorted(parts - expected):
        raise UnsupportedBlock(f"{path} has a part of its own: {more[0]}")
    if less := sorted(expected - parts):
        raise UnsupportedBlock(f"{path} has no {less[0]}")


def _check_norm(path: str, module: nn.Module) -> None:
    name = type(module).__name__
    if "RMSNorm" not in name:
        raise UnsupportedBlock(f"{path} is a {name}, not an RMS norm")
    if {parameter_name for parameter_name, _ in module.named_parameters()} != {"weight"}:
        raise UnsupportedBlock(f"{path} is a {name} with other parameters than a weight")


def has_bias(layer: nn.Linear) -> bool:
    """Whether the layer adds a bias."""
    return layer.bias is not None  # which torch's annotations deny


def norm_weight(norm: nn.Module | None) -> Tensor | None:
    """The weight itself, with its gradient; None where there is no norm."""
    weight: Tensor | None = None if norm is None else norm.weight  # type: ignore[assignment]
    return weight
