"""A model's decode step on buffers of whet's own, through transformers' attention interface.

While a decoder runs, the model's attention layers call `_attend` instead of their own kernel, with no cache object in
between: every architecture that hands its keys to the interface keeps its own code for the rest. Whether a model may be
run like this is decided by trying it against the model's own forward; one that fails is decoded the ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whet.model.block import NotDescribed, UnsupportedBlock, far_position, layer_windows, short_windows
from whet.model.causal_lm import CausalLM
from whet.model.decode_state import AttentionShape, BatchShape, DecodeState, Extension
from whet.model.trials import verdict

NAME = "whet_decode"
LOGIT_TOLERANCE, HALF_LOGIT_TOLERANCE = 1e-4, 5e-2  # a mistake is larger, rounding smaller
# arguments that say nothing about the scores; any other one that is set means an attention this file does not know
HARMLESS = frozenset(
    (
        *("dropout", "scaling", "sliding_window", "is_causal", "position_ids", "cache_position", "position_embeddings"),
        *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits"),
    )
)


class UnknownAttention(Exception):
    """The model's attention does something that whet's own does not."""


@dataclass
class _AttentionProbe:
    """What a model's attention layers were called with: collected once, to learn their shapes."""

    layers: dict[int, tuple[int, int, int | None]] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32

    def note(self, module: Any, query: Tensor, kv: tuple[Tensor, Tensor], options: dict[str, Any]) -> None:
        odd = [name for name, value in options.items() if name not in HARMLESS and _is_set(value)]
        number = getattr(module, "layer_idx", None)
        if odd:
            raise UnknownAttention(f"attention with {', '.join(odd)}")
        if number is None or number in self.layers:
            raise UnknownAttention("layers of attention that cannot be told apart")
        if kv[0].shape != kv[1].shape:
            raise UnknownAttention("keys and values of different sizes")
        if options.get("is_causal", True) is False or query.shape[1] % kv[0].shape[1]:
            raise UnknownAttention(f"layer {number} is not a causal attention over whole groups of heads")
        self.layers[number] = (kv[0].shape[1], kv[0].shape[3], options.get("sliding_window"))
        self.dtype = kv[0].dtype


def _is_set(value: Any) -> bool:
    return isinstance(value, Tensor) or value not in (None, False)


@dataclass(frozen=True)
class _Prefill:
    state: DecodeState


@dataclass(frozen=True)
class _ReadingOn:
    state: DecodeState
    extension: Extension


_Doing = _AttentionProbe | _Prefill | _ReadingOn | DecodeState
_now: ContextVar[_Doing] = ContextVar("whet_decode")


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What the layers call, [N, heads, T, size] in; [N, T, heads, size] out."""
    now = _now.get()
    number: int = module.layer_idx  # type: ignore[assignment]
    scale: float = options.get("scaling") or query.shape[-1] ** -0.5
    if isinstance(now, DecodeState):
        key_value = torch.stack([key[:, :, 0], value[:, :, 0]], 1)
        return now.attention(number, query[:, :, 0], key_value, scale).view(len(query), 1, *query.shape[1::2]), None
    if isinstance(now, _AttentionProbe):
        now.note(module, query, (key, value), options)
        # only the shapes are wanted
        return torch.zeros_like(query).transpose(1, 2), None
    if isinstance(now, _ReadingOn):
        read = now.state.extension_attention(number, now.extension, (key, value), query, scale)
        return read.to(query.dtype).transpose(1, 2).contiguous(), None
    return now.state.prefill_attention(number, (key, value), query, scale).transpose(1, 2).contiguous(), None


class HookedDecoder:
    """Prefill and decode step of one model, whose own modules do everything but the attention."""

    inference = False  # whether everything it calls may run in torch's inference mode
    steps_in_modules = True  # else the model's own layers are called for prompts and chunks alone
    first_position = 0  # of every prompt; a trial begins elsewhere

    def __init__(self, lm: CausalLM, attended: AttentionShape) -> None:
        self.lm, self.attended = lm, attended
        self._configs = _configs(lm.trunk)
        self._weights: Any = None  # as `gathered` gave them, inside `running`

    def suited(self, shape: BatchShape) -> HookedDecoder:
        """The quickest decoder of the same model for a batch of this shape."""
        return self

    def state(self, shape: BatchShape) -> DecodeState:
        """Empty buffers for a batch of this shape."""
        lm = self.lm
        size = lm.vocabulary if lm.whole else int(lm.model.config.get_text_config().hidden_size)  # type: ignore[union-attr,operator]
        return DecodeState(shape, self.attended, size, lm.device)

    def gathered(self, num_steps: int = 0) -> Any:
        """The model's weights as this decoder wants them; `num_steps` is how many steps are to come at most."""
        return None

    @contextmanager
    def running(self, gathered: Any = None) -> Iterator[None]:
        """Inside, `prefill`, `extend` and `step` work, with the weights as they were gathered, or as they are."""
        before = self._weights
        try:
            self._weights = self.gathered() if gathered is None else gathered
            with self._hooked(self.steps_in_modules):
                yield
        finally:
            self._weights = before

    def _hooked(self, now: bool) -> AbstractContextManager[None]:
        """Telling a config which attention it has takes as long as a small step: not where no layer is called."""
        return _attention(self._configs) if now else nullcontext()

    def prefill(self, tokens: Tensor, lengths: Sequence[int], slots: Sequence[int], state: DecodeState) -> None:
        """Read prompts [P, L], padded on the right, into their slots."""
        device = state.device
        length, slot = torch.tensor(lengths, device=device), torch.tensor(slots, device=device)
        positions = (torch.arange(tokens.shape[1], device=device) + self.first_position)[None].expand(tokens.shape)
        state.filling = slot
        with self._hooked(not self.steps_in_modules), _doing(_Prefill(state)):
            hidden = self.lm.hidden(tokens.to(device), None, positions)
        state.prompt_state[slot] = hidden[torch.arange(len(slot), device=device), length - 1].to(state.prompt_state)
        state.prompt_length[slot] = length

    def prefill_rest(
        self, tokens: Tensor, starts: Sequence[int], lengths: Sequence[int], slots: Sequence[int], state: DecodeState
    ) -> None:
        """Read the rest [P, L] of prompts, padded on the right, behind the first `starts` places of their slots."""
        extension = state.begin_extension(slots, None, starts, lengths, 0)
        hidden = self._read(tokens, extension, state)
        state.prompt_state[extension.row] = hidden.to(state.prompt_state)
        state.prompt_length[extension.row] = extension.places[:, -1] + 1

    def first_logits(self, slots: Tensor, state: DecodeState) -> Tensor:
        """[len(slots), V]: of the first token of a completion to the prompts in these slots."""
        return self.lm.logits(state.prompt_state.index_select(0, slots))

    def extend(self, tokens: Tensor, extension: Extension, state: DecodeState) -> Tensor:
        """Read chunks [R, T], padded on the right; logits [R, V] behind each one's last token."""
        return self.lm.logits(self._read(tokens, extension, state))

    def _read(self, tokens: Tensor, extension: Extension, state: DecodeState) -> Tensor:
        """The states [R, width] of each chunk's last token."""
        positions = extension.positions + self.first_position
        with self._hooked(not self.steps_in_modules), _doing(_ReadingOn(state, extension)):
            hidden = self.lm.hidden(tokens.to(state.device), None, positions)
        return hidden[torch.arange(len(hidden), device=hidden.device), extension.last]

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Read one token per row, int64 [rows]; logits [rows, V] of the next. `state.count` is left as it was."""
        state.begin_step()
        with _doing(state):
            hidden = self.lm.hidden(tokens[:, None], None, (state.positions + self.first_position)[:, None])
        return self.lm.logits(hidden[:, -1])


@torch.no_grad()
def hooked_decoder(lm: CausalLM) -> HookedDecoder | NotDescribed:
    """A decoder through the attention interface, or why the model cannot be decoded like this."""
    if not lm.takes_positions:
        return NotDescribed("the model takes no position_ids")
    refusal = verdict("hooked decoder", lm, lambda: _refusal(lm))
    return NotDescribed(refusal) if refusal else HookedDecoder(lm, attention_shape(lm))


def _refusal(lm: CausalLM) -> str:
    try:
        with short_windows(lm):
            gap = disagreement(HookedDecoder(lm, attention_shape(lm)))
        if not gap:
            attention_shape(lm)  # with the windows it has
        return gap
    except (UnknownAttention, UnsupportedBlock) as other:
        return str(other)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        # whatever a model stumbles over on whet's buffers, its own cache is still there
        return f"whet's buffers do not suit it, {type(error).__name__}: {error}"


def attention_shape(lm: CausalLM) -> AttentionShape:
    """The model's attention layers; `UnknownAttention` where they differ from each other or from the config."""
    seen = _AttentionProbe()
    tokens = torch.arange(1, 4, device=lm.device)[None] % lm.vocabulary
    with _attention(_configs(lm.trunk)), _doing(seen):
        lm.hidden(tokens, None, torch.arange(3, device=lm.device)[None])
    if set(seen.layers) != set(range(len(seen.layers))):
        raise UnknownAttention("some layers have no attention")
    layers = [seen.layers[number] for number in range(len(seen.layers))]
    if not layers or len({(heads, size) for heads, size, _ in layers}) != 1:
        raise UnknownAttention("layers with keys of different shapes, or none that call transformers' attention")
    windows = tuple(window for _, _, window in layers)
    # a check against short tries: a window that only a mask knows of would show in long completions alone
    if windows != layer_windows(lm.model.config, len(layers)):
        raise UnknownAttention("the config and the layers name different windows")
    halves = lm.dtype in (torch.float32, torch.float64)
    return AttentionShape(len(layers), layers[0][0], layers[0][1], windows, seen.dtype if halves else lm.dtype)


def disagreement(decoder: HookedDecoder, reads_on: bool = True) -> str:
    """How two prompts of different length, three completions of three tokens, miss the model's own logits; or empty.

    With `reads_on`, two of the rows then read their last two tokens, and their last one, once more as a chunk.

    The rows end with the last position of the context. Within `short_windows` they are longer than every window.
    """
    lm, device = decoder.lm, decoder.lm.device
    decoder.first_position = far_position(lm, 8)
    try:
        return _disagreement(decoder, lm, device, reads_on)
    finally:
        decoder.first_position = 0


def _disagreement(decoder: HookedDecoder, lm: CausalLM, device: torch.device, reads_on: bool) -> str:
    tokens = torch.arange(2, 2 + 3 * 8, device=device).view(3, 8) * 7 % lm.vocabulary
    lengths, slots = (5, 3), (0, 0, 1)
    tokens[1, :5] = tokens[0, :5]
    prompts = torch.stack([tokens[0, :5], tokens[2, :5]])
    state = decoder.state(BatchShape(3, 2, 5, 4, reads_on))
    ours: list[Tensor] = []
    with decoder.running():
        decoder.prefill(prompts, lengths, (0, 1), state)
        state.enter(range(3), slots)
        state.seat(slots, 5)
        ours.append(decoder.first_logits(state.slot, state))
        for position in range(3):
            state.completion_width = position + 1
            read = torch.stack([tokens[row, lengths[slot] + position] for row, slot in enumerate(slots)])
            ours.append(decoder.step(read, state).clone())  # the next step may write over them
            state.count += 1
        if reads_on:
            chunks = [tokens[0, 5 + 1 : 5 + 3].tolist(), [*tokens[2, 3 + 2 : 3 + 3].tolist(), 0]]
            extension = state.begin_extension((0, 2), (0, 1), (1, 2), (2, 1), 5)
            again = decoder.extend(torch.tensor(chunks), extension, state)
            ours.append(torch.stack([again[0], ours[-1][1], again[1]]))
    tolerance = LOGIT_TOLERANCE if decoder.attended.dtype == torch.float32 else HALF_LOGIT_TOLERANCE
    worst = 0.0
    for row, slot in enumerate(slots):
        start = lengths[slot]
        positions = decoder.first_position + torch.arange(start + 3, device=device)[None]
        hidden = lm.hidden(tokens[row : row + 1, : start + 3], None, positions)
        theirs = lm.logits(hidden[0, start - 1 :])
        mine = torch.stack([logits[row] for logits in ours])
        theirs = torch.cat([theirs, theirs[-1:]]) if reads_on else theirs
        gap = float((mine - theirs).abs().max() / theirs.abs().max())
        worst = max(worst, gap if math.isfinite(gap) else math.inf)
    return "" if worst <= tolerance else f"its logits differ from the model's own by {worst:.1e} of the largest"


def _configs(trunk: nn.Module) -> list[Any]:
    configs = {id(config): config for module in trunk.modules() if (config := getattr(module, "config", None))}
    return [config for config in configs.values() if hasattr(config, "_attn_implementation")]


@contextmanager
def _attention(configs: Sequence[Any]) -> Iterator[None]:
    """The layers call `_attend` inside. No mask function has this name, so transformers builds no mask."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


@contextmanager
def _doing(now: _Doing) -> Iterator[None]:
    token = _now.set(now)
    try:
        yield
    finally:
        _now.reset(token)
