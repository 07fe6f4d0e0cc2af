"""A model run on a `SharedPrefixBatch`: completions see their prompt and themselves, whatever lies beside them.

The hook is transformers' registry of attention functions: during such a forward pass the model's configs name ours.
The layout travels in a context variable, since many models drop keywords they do not know. What the hook cannot carry
(capped scores, attention sinks, chunked attention, layers that mix tokens without attention) is found by
`shared_prefix_works`, once per model, and such a model keeps to padded rows.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.model.block import short_windows
from whet.model.causal_lm import CausalLM
from whet.model.ragged_attention import ragged_attention, ragged_works
from whet.model.recomputation import recomputed_within
from whet.model.shared_prefix import PATH, BranchBundles, SharedPrefixBatch, shared_prefix_batch
from whet.model.trials import verdict

NAME = "whet_shared_prefix"

# A layer alone, on the same input. Rounding is a few 1e-6 with random weights at any width, and 5e-5 where trained ones
# make large scores (Qwen2.5-Coder-1.5B); a mistake is 1e-3 and more.
LAYER_TOLERANCE = 2e-4
STREAM_ROUNDING = 4e-6  # of the largest number of a token's stream: sums of float32 that cancel
HALF_TOLERANCE = 5e-2  # of the whole trunk in half precision
STATES_TOLERANCE = 3e-4  # of the whole trunk: rounding grows with depth, to 1.2e-5 in a model of 7B weights

# Keywords that models hand to attention and that change no score: positions are already in queries and keys.
HARMLESS = frozenset(
    {
        *("position_ids", "cache_position", "position_embeddings", "past_key_values", "past_key_value", "layer_past"),
        *("use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict"),
        *("logits_to_keep", "num_items_in_batch", "deterministic", "target_dtype", "attention_type", "cache"),
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "is_causal", "sliding_window"),
    }
)


class AttentionRefused(Exception):
    """The model's attention asks for something that a tree cannot give."""


@dataclass
class _ForwardPass:
    """One forward pass over a tree, and what the model asked of it."""

    tree: SharedPrefixBatch
    calls: int = 0
    masked_windows: set[int | None] = field(default_factory=set)  # that the model wants its masks to have
    attended_windows: set[int | None] = field(default_factory=set)  # that its layers told us about
    masks: dict[Any, Tensor] = field(default_factory=dict)


_CURRENT: ContextVar[_ForwardPass | None] = ContextVar("whet_shared_prefix", default=None)
_REFUSALS: weakref.WeakKeyDictionary[nn.Module, dict[torch.dtype, str]] = weakref.WeakKeyDictionary()


def shared_prefix_states(lm: CausalLM, tree: SharedPrefixBatch) -> Tensor:
    """The hidden state before each action, in row order: [A, D]."""
    return _run_packed(lm, tree)[0]


def shared_prefix_works(lm: CausalLM) -> bool:
    """True where a tree gives the hidden states of padded rows."""
    return not shared_prefix_refusal(lm)


def shared_prefix_refusal(lm: CausalLM) -> str:
    """Why a tree does not give the hidden states of padded rows; empty where it does. Tried once per model."""
    if not lm.takes_positions:
        return "the model takes no position_ids"
    known = _REFUSALS.setdefault(lm.trunk, {})
    if lm.dtype not in known:
        # half precision takes kernels of its own, and is too coarse to show a small mistake
        tries = (_tried(replace(lm, dtype=dtype)) for dtype in dict.fromkeys((lm.finest, lm.dtype)))
        known[lm.dtype] = next((refusal for refusal in tries if refusal), "")
    return known[lm.dtype]


def _tried(lm: CausalLM) -> str:
    return verdict("shared prefix", lm, lambda: _refusal(lm))


def _run_packed(lm: CausalLM, tree: SharedPrefixBatch) -> tuple[Tensor, _ForwardPass]:
    walk = _ForwardPass(tree)
    with _hooked(lm.trunk, walk):
        hidden = lm.hidden(tree.tokens, position_ids=tree.position_ids)
    # several completions read the last state of their prompt: a lookup, whose backward pass sums in a fixed order
    return F.embedding(tree.states, hidden[0]), walk


@contextmanager
def _hooked(trunk: nn.Module, walk: _ForwardPass) -> Iterator[None]:
    """The trunk attends along the tree inside, and as before outside, also after an exception."""
    _register()
    modules: list[Any] = list(trunk.modules())
    configs = {id(module.config): module.config for module in modules if hasattr(module, "config")}
    named = [config for config in configs.values() if hasattr(config, "_attn_implementation_internal")]
    before = [config._attn_implementation_internal for config in named]
    token = _CURRENT.set(walk)
    try:
        for config in named:
            config._attn_implementation_internal = NAME
        with recomputed_within(trunk, lambda: _hooked(trunk, walk)):
            yield
    finally:
        _CURRENT.reset(token)
        for config, implementation in zip(named, before, strict=True):
            config._attn_implementation_internal = implementation


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    if NAME not in AttentionInterface._global_mapping:
        AttentionInterface.register(NAME, shared_prefix_attention)
        AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*arguments: Any, local_size: int | None = None, **settings: Any) -> None:
    """A model builds no mask of its own; what window it would have cut out is noted."""
    walk = _CURRENT.get()
    if walk is not None:
        walk.masked_windows.add(local_size)


def shared_prefix_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, S, E]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed tree, as transformers calls it; the output is [1, S, H, E]."""
    walk = _CURRENT.get()
    if walk is None:
        raise RuntimeError(f"attention {NAME!r} was called outside of a tree's forward pass")
    scaling, dropout = settings.pop("scaling", None), settings.pop("dropout", 0.0)
    window = settings.get("sliding_window", getattr(module, "sliding_window", None))
    _refuse(module, settings, key.shape[2] == query.shape[2] == walk.tree.size and attention_mask is None)
    walk.calls += 1
    walk.attended_windows.add(window)
    tree = walk.tree
    if torch.is_autocast_enabled(query.device.type):
        query, key, value = (heads.to(torch.get_autocast_dtype(query.device.type)) for heads in (query, key, value))
    query, key, value = (heads[0].transpose(0, 1) for heads in (query, key, value))
    return attended(tree, query, key, value, scaling, AttentionOptions(window, dropout, walk.masks))[None], None


@dataclass
class AttentionOptions:
    """What an attention does besides looking at all of its row."""

    window: int | None = None
    dropout: float = 0.0
    masks: dict[Any, Tensor] = field(default_factory=dict)  # made once for all layers


def attended(
    tree: SharedPrefixBatch,
    query: Tensor,  # [S, H, E]
    key: Tensor,
    value: Tensor,
    scale: float | None,
    look: AttentionOptions | None = None,
) -> Tensor:
    """Causal attention of every node to the path that leads to it and to itself: [S, H, E]."""
    look = look or AttentionOptions(masks=tree.masks)
    window = look.window
    if not look.dropout and (window is None or window >= tree.longest_row) and ragged_works(query, key, value):
        return ragged_attention(query, key, value, tree.segments, scale)
    repeats = query.shape[1] // key.shape[1]

    def mixed_values(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:  # indices -> [B * Q, H, E]
        ours, theirs, values = _picked(query, queries), _picked(key, keys), _picked(value, keys)
        if mask is not None and repeats > 1:  # with a mask, no fast kernel takes fewer keys than queries
            theirs, values = (heads.repeat_interleave(repeats, 1) for heads in (theirs, values))
        output = F.scaled_dot_product_attention(
            ours,
            theirs,
            values,
            attn_mask=mask,
            dropout_p=look.dropout,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=mask is None and repeats > 1,
        )
        return output.transpose(1, 2).flatten(0, 1)

    layout = tree.layout
    tables = layout.rows or (layout.prompt_index,)
    outputs = [mixed_values(rows, rows, _causal_mask(rows.shape[1], look, query)) for rows in tables]
    for level, bundles in enumerate(layout.bundles):
        mask = _branch_mask(bundles, level, look, query)
        outputs.append(mixed_values(bundles.query_index, bundles.key_index, mask))
    together = torch.cat(outputs)
    return F.embedding(layout.output_index, together.flatten(1)).unflatten(1, together.shape[1:])


def _refuse(module: nn.Module, settings: dict[str, Any], plain: bool) -> None:
    causal = settings.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise AttentionRefused("attention that looks ahead")
    if not plain:
        raise AttentionRefused("attention with a mask or keys of its own")
    unknown = [
        name for name, value in settings.items() if name not in HARMLESS and value is not None and value is not False
    ]
    if unknown:
        raise AttentionRefused(f"attention with {', '.join(unknown)}")


def _picked(states: Tensor, index: Tensor) -> Tensor:
    """[S, H, E] at packed positions [B, Q]: [B, H, Q, E]."""
    # a lookup: its backward pass sums the copies in a fixed order, and fast
    return F.embedding(index, states.flatten(1)).unflatten(2, states.shape[1:]).transpose(1, 2)


def _causal_mask(length: int, look: AttentionOptions, query: Tensor) -> Tensor | None:
    """The mask of causal attention; None where plain causal attention does, since padding comes after what is read."""
    window = look.window
    if window is None or window >= length:
        return None
    position = torch.arange(length, device=query.device)
    gap = position[:, None] - position
    return _mask(look, f"causal {length}", (gap >= 0) & (gap < window), query)


def _branch_mask(bundles: BranchBundles, level: int, look: AttentionOptions, query: Tensor) -> Tensor:
    name = f"branches {level}"
    known = look.masks.get((name, look.window, query.dtype))
    if known is not None:
        return known
    gap = bundles.query_position[:, :, None] - bundles.key_position[:, None]
    seen = (bundles.key_node[:, None] == PATH) | (bundles.key_node[:, None] == bundles.query_node[:, :, None])
    seen &= gap >= 0
    if look.window is not None:
        seen &= gap < look.window
    return _mask(look, name, seen[:, None], query)


def _mask(look: AttentionOptions, name: str, seen: Tensor, query: Tensor) -> Tensor:
    """What is added to the scores, made once for all layers."""
    key = (name, look.window, query.dtype)
    if key not in look.masks:
        nothing = torch.zeros((), dtype=query.dtype, device=query.device)
        look.masks[key] = torch.where(seen, nothing, float("-inf"))
    return look.masks[key]


@torch.no_grad()
def _refusal(lm: CausalLM) -> str:
    """How a small tree misses padded rows, with windows that the rows are longer than."""
    tokens, action = trial_rows(lm.vocabulary, lm.device)
    tree = shared_prefix_batch(tokens, action)
    assert tree is not None
    training = [module for module in lm.trunk.modules() if module.training]
    exact = lm.dtype.itemsize >= 4 and next(lm.model.parameters()).dtype.itemsize >= 4
    layers = _layer_list(lm)
    packed, padded = LayerValues(), LayerValues()
    try:
        lm.trunk.eval()
        with short_windows(lm):
            with packed.noted(layers):
                ours, walk = _run_packed(lm, tree)
            theirs = lm.hidden(tokens)[:, :-1][action[:, 1:]]
            if exact and layers:
                source = tree.places(*tokens.shape)
                padded.replacements = [states[0][source] for states in packed.entered]
                with padded.noted(layers):
                    lm.hidden(tokens)
    except AttentionRefused as refused:
        return str(refused)
    except Exception as failure:  # whatever a model stumbles over on a tree, padded rows are still right
        return f"{type(failure).__name__}: {failure}"
    finally:
        for module in training:
            module.training = True
    # a layer without attention mixes tokens in a way of its own, and a window that no short row reaches must be known
    if walk.calls != _num_layers(lm):
        return "some layers mix tokens without transformers' attention"
    if walk.masked_windows != walk.attended_windows:
        return "the masks and the layers name different windows"
    error, size = (ours - theirs).float().abs().amax(-1), theirs.float().abs().amax(-1)
    # in half precision rounding may send a token to another expert, but not most of them
    gap = float((error / size).median() if not exact else error.max() / size.max())
    tolerance = HALF_TOLERANCE if not exact else STATES_TOLERANCE if layers else 1e-5
    if not gap <= tolerance:
        return f"the states of packed rows differ by {gap:.1e}"
    return _layers_gap(packed, padded, tree, tokens.shape[1]) if exact and layers else ""


def _num_layers(lm: CausalLM) -> int:
    return int(getattr(lm.model.config.get_text_config(), "num_hidden_layers", 0))  # type: ignore[union-attr,operator]


def _layer_list(lm: CausalLM) -> Sequence[nn.Module]:
    """The trunk's layers; empty where they cannot be told from its other parts."""
    lists = [
        module for module in lm.trunk.modules() if isinstance(module, nn.ModuleList) and len(module) == _num_layers(lm)
    ]
    return list(lists[0]) if len(lists) == 1 else []


@dataclass
class LayerValues:
    """What goes into layers and comes out, in the order of their calls; `replacements` go in instead, if anything."""

    entered: list[Tensor] = field(default_factory=list)
    left: list[Tensor] = field(default_factory=list)
    replacements: list[Tensor] = field(default_factory=list)

    @contextmanager
    def noted(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Inside, forward passes are noted."""

        def enter(_: nn.Module, inputs: Any, named: Any) -> Any:
            value = inputs[0] if inputs else named["hidden_states"]
            if self.replacements:
                value = self.replacements[len(self.entered)]
            self.entered.append(value)
            return ((value, *inputs[1:]), named) if inputs else (inputs, {**named, "hidden_states": value})

        def leave(_: nn.Module, __: Any, output: Any) -> None:
            self.left.append(output[0] if isinstance(output, tuple) else output)

        hooks = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers]
        hooks += [layer.register_forward_hook(leave) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _layers_gap(packed: LayerValues, padded: LayerValues, tree: SharedPrefixBatch, width: int) -> str:
    """Every layer on the same input: a mistake shows in full, and rounding has no depth to grow in."""
    source = tree.sources(width)
    for number, (before, ours, theirs) in enumerate(zip(packed.entered, packed.left, padded.left, strict=True)):
        if not layer_agrees(before[0], ours[0], theirs.flatten(0, 1)[source]):
            return f"layer {number} gives other states to packed rows"
    return ""


def layer_agrees(before: Tensor, ours: Tensor, theirs: Tensor) -> bool:
    """Whether two results [S, W] of a layer differ by rounding alone."""
    return layer_gap(before, ours, theirs) <= 1.0


def layer_gap(before: Tensor, ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of a token's states, in units of what rounding explains."""
    error = (ours - theirs).abs().amax(-1)
    # what the layer adds is what can be wrong; adding it to a large residual stream rounds, and so does taking it out:
    # trained models carry a few numbers in the thousands through most layers, and drop them near the end
    stream = torch.maximum(before.abs().amax(-1), theirs.abs().amax(-1))
    allowed = LAYER_TOLERANCE * (theirs - before).abs().amax(-1).median() + STREAM_ROUNDING * stream
    gap = float((error / allowed).max())
    return gap if math.isfinite(gap) else math.inf


def trial_rows(vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two prompts with several completions each, and a row of its own."""
    shapes = [(5, 4, 0), (5, 1, 1), (3, 5, 2), (5, 6, 3), (3, 2, 4), (7, 3, 5)]
    tokens = torch.zeros(len(shapes), 11, dtype=torch.long)
    action = torch.zeros(len(shapes), 11, dtype=torch.bool)
    for row, (prompt, completion, seed) in enumerate(shapes):
        tokens[row, :prompt] = torch.arange(prompt) * 5 + prompt
        tokens[row, prompt : prompt + completion] = torch.arange(completion) * 7 + 11 * seed + 2
        action[row, prompt : prompt + completion] = True
    return (tokens % vocabulary).to(device), action.to(device)
