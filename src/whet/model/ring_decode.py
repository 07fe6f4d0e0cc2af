"""The decode step of small Llama-type models on a CPU: each row holds its prompt's keys next to its own.

With few keys a step's time is the number of its operations, and with keys laid out by row an attention is three of
them, whoever entered when: every row writes the same column of a ring. A column a row does not see is hidden by one
more number in its key, which meets a 1 in the query; so there is no mask. A head's numbers are in the order in which a
rotation pairs them, which turns them by one complex product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whet.model.decode_state import AttentionShape, BatchShape, DecodeState
from whet.model.hooked_decode import HookedDecoder

HIDDEN = -1e30  # finite: 0 times an infinite number is not a number
PACKING_STEPS = 12  # transposing the weights costs about as much time as it saves in so many steps
LARGEST_PART = 1 << 19  # weights of a product that are taken at once
LARGEST_COPIES = 1 << 20  # numbers of the prompts' keys and values, copied to the rows, in one layer


Own = tuple[Tensor, Tensor, Tensor, Tensor]  # of the rows that sit: keys and values, and both as [rows * heads, ..]


class RingState(DecodeState):
    """Keys [rows, heads, size + 1, columns] and values [rows, heads, columns, size]: a prompt's, then a ring."""

    def __init__(self, shape: BatchShape, attended: AttentionShape, state_size: int, device: torch.device) -> None:
        super().__init__(replace(shape, completion_width=0), attended, state_size, device)
        heads, size, self._layers = attended.num_heads, attended.head_size, range(attended.num_layers)
        self._ring, self._first, width = (
            shape.completion_width,
            shape.prompt_width,
            shape.prompt_width + shape.completion_width,
        )
        self._keys = [torch.empty(shape.rows, heads, size + 1, width) for _ in self._layers]
        self._values = [torch.empty(shape.rows, heads, width, size) for _ in self._layers]
        self._clock = 0
        self.column, self.width = 0, 0  # where this step writes, and how many columns it reads
        self.own: list[Own] = []  # by layer

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        super().enter(rows, slots)
        slot, width, size = torch.tensor(slots), self._first, self.attended.head_size
        together = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        where = slice(rows[0], rows[0] + len(rows)) if together else torch.tensor(rows)
        unseen = torch.arange(self._keys[0].shape[3])[None] >= self.prompt_length[slot][:, None]
        hidden = torch.zeros(unseen.shape).masked_fill_(unseen, HIDDEN)[:, None]
        ring = slice(width, width + min(self._clock, self._ring))
        for number in self._layers:
            keys, values = self.prompt_kv[number]
            # [rows, heads, columns, 2 halves, half a head] -> [rows, heads, half a head, 2 halves, columns]
            paired = keys.index_select(0, slot).unflatten(3, (2, -1)).permute(0, 1, 4, 3, 2)
            self._keys[number][where, :, :size, :width] = paired.reshape(len(rows), -1, size, width)
            self._keys[number][where, :, size] = hidden
            self._values[number][where, :, :width] = values.index_select(0, slot)
            # what was there may not be a number, which no weight of 0 takes out
            self._keys[number][where, :, :size, ring] = 0
            self._values[number][where, :, ring] = 0

    def seat(self, slots: Sequence[int | None], prompt_width: int) -> None:
        super().seat(slots, prompt_width)
        now = [(keys[: self.rows], values[: self.rows]) for keys, values in zip(self._keys, self._values, strict=True)]
        self.own = [(keys, values, keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in now]

    def begin_step(self) -> None:
        self.column = self._first + self._clock % self._ring
        self._clock += 1
        self.width = self._first + min(self._clock, self._ring)

    def attended_values(self, own: Own, queries: Tensor, new_keys: Tensor, new_values: Tensor) -> Tensor:
        """Queries [rows * heads, queries of a key, size + 1] -> [1, rows, all queries * size]; stores the new ones."""
        keys, values, flat_keys, flat_values = own
        keys.select(3, self.column).copy_(new_keys)
        values.select(2, self.column).copy_(new_values)
        scores = torch.bmm(queries, flat_keys.narrow(2, 0, self.width))
        weight = torch.softmax(scores, -1, out=scores)
        return torch.bmm(weight, flat_values.narrow(1, 0, self.width)).view(1, self.rows, -1)

    def move_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        source, target = torch.tensor(sources), torch.tensor(targets)
        for buffer in (*self._keys, *self._values):
            buffer[target] = buffer[source]
        self.count[target] = self.count[source]


@dataclass(frozen=True)
class _RingWeights:
    """One layer's weights, as the products want them; those of its norms, and the scores' scale, are inside."""

    enter: Tensor  # [width, heads * (queries of a key, its key) * size, then values]
    enter_bias: Tensor | None
    head_norm: Tensor | None  # [heads * (queries of a key, its key), size]
    leave: Tensor  # [2 halves of the width, queries, half]
    widen: Tensor  # [parts: first those of the gate, then of the other, width, a part of the inner width]
    narrow: Tensor  # [2 halves of the width, inner width, half]


class _StepBuffers:
    """What a step of so many rows writes on, and the views of it, made once."""

    def __init__(self, rows: int, layer: _RingWeights, attended: AttentionShape, eps: float) -> None:
        heads, size = attended.num_heads, attended.head_size
        _, queries, half = layer.leave.shape
        inner, width, each = layer.narrow.shape[1], 2 * half, queries // (heads * size) + 1
        self.rows = rows
        self.hidden = torch.empty(2, rows, half)  # in two halves: products of parts keep two threads busy
        # The lengths of both halves, and the root of width * eps: the length of these three is what a norm divides
        # by, but for the root of the width, which is in the weights.
        self.lengths = torch.full((3, rows, 1), (width * eps) ** 0.5)
        self.half_lengths = self.lengths[:2]
        self.normed = torch.empty(rows, width)
        self.normed_halves = self.normed.view(rows, 2, half).transpose(0, 1)
        parts = len(layer.widen)
        self.normed_parts = self.normed.expand(parts, rows, width)
        self.wide = torch.empty(parts, rows, 2 * inner // parts)
        self.gate, self.up = self.wide.chunk(2)
        product = torch.empty(rows, inner)
        self.gated = product.view(rows, parts // 2, -1).transpose(0, 1)
        self.inner = product.expand(2, rows, inner)
        self.mixed = torch.empty(rows, (heads * each + heads) * size)
        every = self.mixed.view(rows, -1, size)
        self.heads, self.values = every[:, : heads * each], every[:, heads * each :]
        self.paired = torch.view_as_complex(self.heads.unflatten(2, (-1, 2)))
        # one number to meet the hidden columns, and one more for complex numbers to be aligned
        turned = torch.zeros(rows, heads, each, size + 2)
        turned[:, :, :-1, size] = 1
        self.turned = torch.view_as_complex(turned.view(rows, heads * each, -1, 2))[:, :, :-1]
        self.queries = turned.view(rows * heads, each, -1)[:, :-1, :-1]
        self.keys = turned[:, :, -1, :-1]

    def norm(self) -> None:
        """The hidden states over their root mean square, and over the root of their width."""
        torch.linalg.vector_norm(self.hidden, dim=2, keepdim=True, out=self.half_lengths)
        length = torch.linalg.vector_norm(self.lengths, dim=0, keepdim=True)
        torch.div(self.hidden, length, out=self.normed_halves)


class RingDecoder(HookedDecoder):
    """A Llama-type model's step on a `RingState`; prompts go through the model's own modules."""

    inference = True

    def __init__(self, base: HookedDecoder) -> None:
        super().__init__(base.split, base.attended)
        config: Any = base.split.model.config
        self._trunk: Any = base.split.trunk
        self._num_queries = int(config.num_attention_heads)
        self._root = float(config.hidden_size) ** 0.5
        self._eps = float(config.rms_norm_eps)
        self._layers: list[_RingWeights] = []
        self._head, self._last_norm = torch.empty(0), torch.empty(0)
        self._rotation = torch.empty(0)
        self._desk: _StepBuffers | None = None

    @staticmethod
    def serves(base: HookedDecoder) -> bool:
        """Float32 on a CPU, a width of two halves, and no bias but that of the queries, keys and values."""
        split: Any = base.split
        if split.device.type != "cpu" or base.attended.dtype != torch.float32 or split.model.config.hidden_size % 2:
            return False
        linears = [split.model.get_output_embeddings()]
        for layer in split.trunk.layers:
            linears += [layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj]
        singles = all(weight.dtype == torch.float32 for weight in split.model.parameters())
        return singles and all(linear.bias is None for linear in linears)

    def suits(self, shape: BatchShape) -> bool:
        """Whether copies of the prompts are cheap, and no window is shorter than what a row will see."""
        copies = 2 * shape.rows * shape.prompt_width * self.attended.num_heads * self.attended.head_size
        width = shape.prompt_width + shape.completion_width
        return copies <= LARGEST_COPIES and all(window is None or window >= width for window in self.attended.windows)

    def state(self, shape: BatchShape) -> RingState:
        positions = torch.arange(shape.prompt_width + shape.completion_width)
        cosine, sine = self._trunk.rotary_emb(self._trunk.embed_tokens.weight, positions[None])
        half = self.attended.head_size // 2
        self._rotation = torch.complex(cosine[0, :, :half], sine[0, :, :half])
        return RingState(shape, self.attended, int(self._trunk.embed_tokens.weight.shape[1]), self.split.device)

    @contextmanager
    def running(self, num_steps: int = 0) -> Iterator[None]:
        packed = num_steps >= PACKING_STEPS
        head: Any = self.split.model.get_output_embeddings()  # type: ignore[operator]
        try:
            self._layers = [self._gathered(layer, packed) for layer in self._trunk.layers]
            self._head, self._last_norm = head.weight.detach().t(), self._trunk.norm.weight.detach() * self._root
            with super().running(num_steps):
                yield
        finally:
            self._layers, self._desk, self._head = [], None, torch.empty(0)

    def _gathered(self, layer: Any, packed: bool) -> _RingWeights:
        attention, feedforward = layer.self_attn, layer.mlp
        heads, size = self.attended.num_heads, self.attended.head_size
        scale = float(attention.scaling)
        head_norm = None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm.weight * scale, attention.k_norm.weight
            queries = query.expand(self._num_queries, -1)
            head_norm = self._paired(queries, key.expand(heads, -1)).reshape(-1, size).detach()
            scale = 1.0
        linears = (attention.q_proj, attention.k_proj, attention.v_proj)
        weight = self._side_by_side([linear.weight.detach() for linear in linears], scale)
        bias = None
        if attention.q_proj.bias is not None:
            bias = self._side_by_side([linear.bias.detach()[:, None] for linear in linears], scale)[:, 0]
        before = layer.input_layernorm.weight.detach()[:, None] * self._root
        before_widen = layer.post_attention_layernorm.weight.detach()[:, None] * self._root
        parts = _parts(feedforward.gate_proj.weight)
        widen = (*feedforward.gate_proj.weight.chunk(parts), *feedforward.up_proj.weight.chunk(parts))
        return _RingWeights(
            _across([weight], packed)[0].mul_(before),
            bias,
            head_norm,
            _across(attention.o_proj.weight.chunk(2), packed),
            _across(widen, packed).mul_(before_widen),
            _across(feedforward.down_proj.weight.chunk(2), packed),
        )

    def _side_by_side(self, weights: Sequence[Tensor], scale: float) -> Tensor:
        query, key, value = weights
        size = self.attended.head_size
        turned = self._paired(query.unflatten(0, (-1, size)).mul(scale), key.unflatten(0, (-1, size)))
        return torch.cat([turned.flatten(0, 3), value])

    def _paired(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[queries, size, ..] and [heads, size, ..] -> [heads, queries of a key and it, half a head, 2, ..]."""
        heads = self.attended.num_heads
        together = torch.cat([queries.unflatten(0, (heads, -1)), keys[:, None]], 1)
        return together.unflatten(2, (2, -1)).transpose(2, 3)

    def step(self, tokens: Tensor, state: DecodeState) -> Tensor:
        assert isinstance(state, RingState)
        state.begin_step()
        desk = self._desk
        if desk is None or desk.rows != state.rows:
            desk = self._desk = _StepBuffers(state.rows, self._layers[0], self.attended, self._eps)
        rotation = self._rotation.index_select(0, state.positions)[:, None]
        embedded = self._trunk.embed_tokens.weight.index_select(0, tokens)
        desk.hidden.copy_(embedded.view(state.rows, 2, -1).transpose(0, 1))
        for layer, own in zip(self._layers, state.own, strict=True):
            desk.norm()
            if layer.enter_bias is None:
                torch.mm(desk.normed, layer.enter, out=desk.mixed)
            else:
                torch.addmm(layer.enter_bias, desk.normed, layer.enter, out=desk.mixed)
            if layer.head_norm is not None:
                length = torch.linalg.vector_norm(desk.heads, dim=-1, keepdim=True)
                mean_square = length.square_().div_(self.attended.head_size)
                desk.heads.mul_(mean_square.add_(self._eps).rsqrt_() * layer.head_norm)
            torch.mul(desk.paired, rotation, out=desk.turned)
            found = state.attended_values(own, desk.queries, desk.keys, desk.values)
            desk.hidden.baddbmm_(found.expand(2, -1, -1), layer.leave)
            desk.norm()
            torch.bmm(desk.normed_parts, layer.widen, out=desk.wide)
            torch.mul(F.silu(desk.gate, inplace=True), desk.up, out=desk.gated)
            desk.hidden.baddbmm_(desk.inner, layer.narrow)
        desk.norm()
        return torch.mm(desk.normed.mul_(self._last_norm), self._head)


def _parts(weight: Tensor) -> int:
    """How many equal parts of the outputs to take one by one, for a part's weights to stay in a core's cache."""
    parts = 1
    while weight.numel() > parts * LARGEST_PART and len(weight) % (2 * parts) == 0:
        parts *= 2
    return parts


def _across(weights: Sequence[Tensor], packed: bool) -> Tensor:
    """Weights [out, in] as [number, in, out]: copies, and with `packed` in the order that a product reads them in."""
    if not packed:
        return torch.stack([weight.detach() for weight in weights]).transpose(1, 2)
    outputs, inputs = weights[0].shape
    across = torch.empty(len(weights), inputs, outputs)
    for place, weight in zip(across, weights, strict=True):
        place.copy_(weight.detach().t())
    return across
