"""The decode step of small described models on a CPU: each row holds its prompt's keys next to its own.

With few keys a step's time is the number of its operations, and with keys laid out by row an attention is three of
them, whoever entered when: every row writes the same column of a ring. (A row that may read on, later, has columns of
its own instead.) A column a row does not see is hidden by one more number in its key, which meets a 1 in the query; so
there is no mask. A head's numbers are in the order in which a rotation pairs them, which turns them by one complex
product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whet.model.block import Block, BlockSizes, BlockStack, has_bias, norm_weight
from whet.model.decode_state import AttentionShape, BatchShape, DecodeState, Extension, StepHead, fresh_zeros
from whet.model.hooked_decode import HookedDecoder

HIDDEN = -1e30  # finite: 0 times an infinite number is not a number
PACKING_STEPS = 12  # transposing the weights costs about as much time as it saves in so many steps
LARGEST_PART = 1 << 19  # weights of a product that are taken at once
LARGEST_COPIES = 1 << 20  # numbers of the prompts' keys and values, copied to the rows, in one layer


Own = tuple[Tensor, Tensor, Tensor, Tensor]  # of the rows in use: keys and values, and both as [rows * heads, ..]


class CopiedPromptState(DecodeState):
    """Every row has a copy of its prompt's keys and values in front of its own."""

    _keys: list[Tensor]
    _values: list[Tensor]

    def __init__(self, shape: BatchShape, attended: AttentionShape, state_size: int, device: torch.device) -> None:
        super().__init__(replace(shape, completion_width=0), attended, state_size, device)
        self._layers, self._first = range(attended.num_layers), shape.prompt_width
        self.own: list[Own] = []  # by layer
        self.buffers: _StepBuffers | None = None

    def attended_values(self, own: Own, queries: Tensor, new_keys: Tensor, new_values: Tensor) -> Tensor:
        """Queries [rows * heads, queries of a key, size + 1] -> [1, rows, all queries * size]; stores the new ones."""
        raise NotImplementedError

    def _mixture(self, queries: Tensor, keys: Tensor, values: Tensor, width: int) -> Tensor:
        """What the queries see of the first `width` columns."""
        scores = torch.bmm(queries, keys.narrow(2, 0, width))
        weight = torch.softmax(scores, -1, out=scores)
        return torch.bmm(weight, values.narrow(1, 0, width)).view(1, self.rows, -1)

    def _hidden_columns(self, slot: Tensor, columns: int) -> Tensor:
        """[rows, 1, columns]: `HIDDEN` behind the end of each row's prompt, else 0."""
        unseen = torch.arange(columns)[None] >= self.prompt_length[slot][:, None]
        return torch.zeros(unseen.shape).masked_fill_(unseen, HIDDEN)[:, None]


class RingState(CopiedPromptState):
    """Keys [rows, heads, size + 1, columns] and values [rows, heads, columns, size]: a prompt's, then a ring."""

    def __init__(self, shape: BatchShape, attended: AttentionShape, state_size: int, device: torch.device) -> None:
        super().__init__(shape, attended, state_size, device)
        heads, size, self._ring = attended.num_heads, attended.head_size, shape.completion_width
        width = self._first + self._ring
        self._keys = [torch.empty(shape.rows, heads, size + 1, width) for _ in self._layers]
        self._values = [torch.empty(shape.rows, heads, width, size) for _ in self._layers]
        self._clock = 0
        self.column, self.width = 0, 0  # where this step writes, and how many columns it reads

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        super().enter(rows, slots)
        slot, width, size = torch.tensor(slots), self._first, self.attended.head_size
        together = list(rows) == list(range(rows[0], rows[0] + len(rows)))
        where = slice(rows[0], rows[0] + len(rows)) if together else torch.tensor(rows)
        hidden = self._hidden_columns(slot, self._keys[0].shape[3])
        ring = slice(width, width + min(self._clock, self._ring))
        for number in self._layers:
            keys, values = self.prompt_kv[number]
            self._keys[number][where, :, :size, :width] = _paired(keys.index_select(0, slot)).transpose(2, 3)
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
        keys, values, flat_keys, flat_values = own
        keys.select(3, self.column).copy_(new_keys)
        values.select(2, self.column).copy_(new_values)
        return self._mixture(queries, flat_keys, flat_values, self.width)

    def move_rows(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        source, target = torch.tensor(sources), torch.tensor(targets)
        for buffer in (*self._keys, *self._values):
            buffer[target] = buffer[source]
        self.count[target] = self.count[source]


class RowState(CopiedPromptState):
    """Keys [rows, heads, columns, size + 1] and values [.., size]: a prompt's, then the row's own at their places."""

    def __init__(self, shape: BatchShape, attended: AttentionShape, state_size: int, device: torch.device) -> None:
        super().__init__(shape, attended, state_size, device)
        heads, size, width = attended.num_heads, attended.head_size, self._first + shape.completion_width
        self._keys = [fresh_zeros((shape.rows, heads, width, size + 1)) for _ in self._layers]
        self._values = [fresh_zeros((shape.rows, heads, width, size)) for _ in self._layers]
        self._flat = [(k.view(-1, size + 1), v.view(-1, size)) for k, v in zip(self._keys, self._values, strict=True)]
        # the flat place of each head's first own column
        self._head_from = torch.arange(shape.rows * heads).view(shape.rows, heads) * width + self._first
        self._at = torch.empty(0, dtype=torch.long)  # flat places that this step writes

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        super().enter(rows, slots)
        row, slot, size = torch.tensor(rows), torch.tensor(slots), self.attended.head_size
        hidden = self._hidden_columns(slot, self._keys[0].shape[2])
        for number in self._layers:
            keys, values = (cache.index_select(0, slot) for cache in self.prompt_kv[number])
            self._keys[number][row, :, : self._first, :size] = _paired(keys)
            self._keys[number][row, :, :, size] = hidden
            self._values[number][row, :, : self._first] = values

    def seat(self, slots: Sequence[int | None], prompt_width: int) -> None:
        super().seat(slots, prompt_width)
        rows = self.rows
        self.own = [
            (*flat, keys[:rows].flatten(0, 1).transpose(1, 2), values[:rows].flatten(0, 1))
            for flat, keys, values in zip(self._flat, self._keys, self._values, strict=True)
        ]

    def begin_step(self) -> None:
        self._at = (self._head_from[: self.rows] + self.count[: self.rows, None]).view(-1)

    def attended_values(self, own: Own, queries: Tensor, new_keys: Tensor, new_values: Tensor) -> Tensor:
        keys, values, by_head, values_by_head = own
        keys.index_copy_(0, self._at, new_keys.reshape(-1, keys.shape[1]))
        values.index_copy_(0, self._at, new_values.reshape(-1, values.shape[1]))
        return self._mixture(queries, by_head, values_by_head, self._first + self.completion_width)

    def extension_attention(
        self, layer: int, extension: Extension, kv: tuple[Tensor, Tensor], query: Tensor, scale: float
    ) -> Tensor:
        if extension.in_slots:
            return super().extension_attention(layer, extension, kv, query, scale)
        size, row = self.attended.head_size, extension.row
        prompt_width, own_width = extension.widths
        keys, values = self._keys[layer], self._values[layer]
        behind = torch.arange(keys.shape[2]) > self._first + extension.places[:, -1:]
        keys[row, :, :, size] = keys[row, :, :, size].masked_fill_(behind[:, None], HIDDEN)
        to_row, column = extension.target
        column = column + self._first
        keys.transpose(1, 2)[to_row, column] = F.pad(_paired(extension.tokens_of(kv[0])), (0, 1))
        values.transpose(1, 2)[to_row, column] = extension.tokens_of(kv[1])
        # narrowed before rows are taken: most of the columns are not in use
        parts = ((0, prompt_width), (self._first, own_width))
        keys, values = (
            torch.cat([cache.narrow(2, start, width).index_select(0, row) for start, width in parts], 2)
            for cache in (keys, values)
        )
        mask, repeats = extension.masks[self.attended.windows[layer]], query.shape[1] != keys.shape[1]
        return F.scaled_dot_product_attention(
            _paired(query), keys[..., :size], values, mask, scale=scale, enable_gqa=repeats
        )

    def _own_places(self, layer: int, row: int, width: int) -> Tensor:
        own = slice(self._first, self._first + width)
        keys = self._keys[layer][row, :, own, : self.attended.head_size]
        unpaired = keys.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return torch.stack([unpaired, self._values[layer][row, :, own]])

    def move_rows(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        source, target = torch.tensor(sources), torch.tensor(targets)
        for buffer in (*self._keys, *self._values):
            part = buffer[:, :, : self._first + width]
            part[target] = part[source]
            if buffer.shape[3] > self.attended.head_size:  # keys
                buffer[target, :, self._first + width :, -1] = HIDDEN
        self.count[target] = self.count[source]


def _paired(heads: Tensor) -> Tensor:
    """Each head's numbers in the order in which a rotation pairs them, [.., size]."""
    return heads.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


@dataclass(frozen=True)
class _RingWeights:
    """One layer's weights, as the products want them; those of its norms, and the scores' scale, are inside."""

    enter: Tensor  # [width, heads * (queries of a key, its key) * size, then values]
    enter_bias: Tensor | None
    head_norm: Tensor | None  # [heads * (queries of a key, its key), size]
    whole_heads: bool  # the norms of queries and keys act on all heads at once
    norm_before: tuple[bool, bool]  # whether a norm stands in front of attention and of the MLP
    norm_after: tuple[Tensor | None, Tensor | None]  # weights of those behind them, [2 halves, 1, half the width]
    leave: Tensor  # [2 halves of the width, queries, half]
    widen: Tensor  # [parts: first those of the gate, then of the other, width, a part of the inner width]
    narrow: Tensor  # [2 halves of the width, inner width, half]


class _StepBuffers:
    """What a step of so many rows writes on, and the views of it, made once."""

    def __init__(self, rows: int, layer: _RingWeights, attended: AttentionShape, eps: float) -> None:
        heads, size = attended.num_heads, attended.head_size
        _, queries, half = layer.leave.shape
        inner, width, heads_per_key = layer.narrow.shape[1], 2 * half, queries // (heads * size) + 1
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
        self.mixed = torch.empty(rows, (heads * heads_per_key + heads) * size)
        every = self.mixed.view(rows, -1, size)
        self.heads, self.values = every[:, : heads * heads_per_key], every[:, heads * heads_per_key :]
        by_key = self.heads.view(rows, heads, heads_per_key, size)
        self.unturned_queries, self.unturned_keys = by_key[:, :, :-1], by_key[:, :, -1:]
        self.update = torch.empty(2, rows, half)  # what a sublayer with a norm behind it adds
        self.paired = torch.view_as_complex(self.heads.unflatten(2, (-1, 2)))
        # one number to meet the hidden columns, and one more for complex numbers to be aligned
        turned = torch.zeros(rows, heads, heads_per_key, size + 2)
        turned[:, :, :-1, size] = 1
        self.turned = torch.view_as_complex(turned.view(rows, heads * heads_per_key, -1, 2))[:, :, :-1]
        self.queries = turned.view(rows * heads, heads_per_key, -1)[:, :-1, :-1]
        self.keys = turned[:, :, -1, :-1]

    def enter(self, norm: bool) -> None:
        """What a sublayer reads: the hidden states; normed, over their root mean square and the root of the width."""
        if norm:
            torch.div(self.hidden, self._length(self.hidden), out=self.normed_halves)
        else:
            self.normed_halves.copy_(self.hidden)

    def leave(self, values: Tensor, weight: Tensor, norm: Tensor | None) -> None:
        """Add values times weight to the hidden states, through a norm where there is one."""
        if norm is None:
            self.hidden.baddbmm_(values, weight)
        else:
            update = torch.bmm(values, weight, out=self.update)
            self.hidden.addcmul_(update.div_(self._length(update)), norm)

    def _length(self, halves: Tensor) -> Tensor:
        torch.linalg.vector_norm(halves, dim=2, keepdim=True, out=self.half_lengths)
        return torch.linalg.vector_norm(self.lengths, dim=0, keepdim=True)


_AllWeights = tuple[list[_RingWeights], StepHead, Tensor]  # of the layers, the head, and that of the last norm


class RingDecoder(HookedDecoder):
    """A described model's step on a `RingState`; prompts go through the model's own modules."""

    inference = True
    steps_in_modules = False

    def __init__(self, base: HookedDecoder, stack: BlockStack) -> None:
        super().__init__(base.lm, base.attended)
        self._stack = stack
        self._root = float(stack.sizes.width) ** 0.5
        self._eps = stack.sizes.epsilon

    @staticmethod
    def refusal(base: HookedDecoder, stack: BlockStack) -> str:
        """Why a described model is not decoded like this; empty where it is."""
        if stack.bias_refusal:
            return stack.bias_refusal
        if stack.head is None or has_bias(stack.head):
            return "the vocabulary head has a bias, or there is none"
        if base.lm.device.type != "cpu":
            return "the device is no CPU"
        if base.attended.dtype != torch.float32 or any(
            weight.dtype != torch.float32 for weight in base.lm.model.parameters()
        ):
            return "not everything is float32"
        width = base.lm.model.config.hidden_size  # type: ignore[union-attr]
        return "the width is odd" if int(width) % 2 else ""  # type: ignore[arg-type]

    def suits(self, shape: BatchShape) -> bool:
        """Whether copies of the prompts are cheap, and no window is shorter than what a row will see."""
        copies = 2 * shape.rows * shape.prompt_width * self.attended.num_heads * self.attended.head_size
        width = shape.prompt_width + shape.completion_width
        return copies <= LARGEST_COPIES and all(window is None or window >= width for window in self.attended.windows)

    def state(self, shape: BatchShape) -> CopiedPromptState:
        positions = torch.arange(shape.prompt_width + shape.completion_width) + self.first_position
        cosine, sine = self._stack.rotation(positions)
        half = self.attended.head_size // 2
        kind = RowState if shape.reads_on else RingState
        state = kind(shape, self.attended, self._stack.sizes.width, self.lm.device)
        state.rotation = torch.complex(cosine[:, :half], sine[:, :half])
        return state

    def gathered(self, num_steps: int = 0) -> _AllWeights:
        packed, stack = num_steps >= PACKING_STEPS, self._stack
        assert stack.head is not None
        layers = [self._gathered(block, packed) for block in stack.blocks]
        last_norm: Tensor = stack.last_norm.weight.detach()  # type: ignore[operator, assignment]
        return layers, StepHead(stack.head.weight.detach()), last_norm * self._root

    def _gathered(self, block: Block, packed: bool) -> _RingWeights:
        scale, head_norm, whole = self._stack.sizes.scale, None, False
        if (norms := head_norms(block, self._stack.sizes)) is not None:
            queries, keys, whole = norms
            head_norm, scale = self._paired(queries, keys).reshape(-1, self.attended.head_size).detach(), 1.0
        linears = (block.query, block.key, block.value)
        weight = self._side_by_side([linear.weight.detach() for linear in linears], scale)
        bias = None
        if block.query.bias is not None:
            bias = self._side_by_side([linear.bias.detach()[:, None] for linear in linears], scale)[:, 0]
        parts = _parts(block.gate.weight)
        widen = (*block.gate.weight.chunk(parts), *block.up.weight.chunk(parts))
        before, before_mlp = norm_weight(block.before_attention), norm_weight(block.before_mlp)
        enter, wide = _across([weight], packed)[0], _across(widen, packed)
        if before is not None:
            enter.mul_(before.detach()[:, None] * self._root)
        if before_mlp is not None:
            wide.mul_(before_mlp.detach()[:, None] * self._root)
        return _RingWeights(
            enter=enter,
            enter_bias=bias,
            head_norm=head_norm,
            whole_heads=whole,
            norm_before=(before is not None, before_mlp is not None),
            norm_after=(self._halves(block.after_attention), self._halves(block.after_mlp)),
            leave=_across(block.output.weight.chunk(2), packed),
            widen=wide,
            narrow=_across(block.down.weight.chunk(2), packed),
        )

    def _halves(self, norm: nn.Module | None) -> Tensor | None:
        weight = norm_weight(norm)
        return None if weight is None else (weight.detach() * self._root).view(2, 1, -1)

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
        assert isinstance(state, CopiedPromptState)
        state.begin_step()
        weights: _AllWeights = self._weights
        layers, head, last_norm = weights
        buffers = state.buffers
        if buffers is None or buffers.rows != state.rows:
            buffers = state.buffers = _StepBuffers(state.rows, layers[0], self.attended, self._eps)
        rotation = state.rotation.index_select(0, state.positions)[:, None]
        embedded = self._stack.embedding.weight.index_select(0, tokens)
        buffers.hidden.copy_(embedded.view(state.rows, 2, -1).transpose(0, 1))
        for layer, own in zip(layers, state.own, strict=True):
            (before, before_mlp), (after, after_mlp) = layer.norm_before, layer.norm_after
            buffers.enter(before)
            if layer.enter_bias is None:
                torch.mm(buffers.normed, layer.enter, out=buffers.mixed)
            else:
                torch.addmm(layer.enter_bias, buffers.normed, layer.enter, out=buffers.mixed)
            if layer.head_norm is not None:
                self._norm_heads(buffers, layer.head_norm, layer.whole_heads)
            torch.mul(buffers.paired, rotation, out=buffers.turned)
            mixture = state.attended_values(own, buffers.queries, buffers.keys, buffers.values)
            buffers.leave(mixture.expand(2, -1, -1), layer.leave, after)
            buffers.enter(before_mlp)
            torch.bmm(buffers.normed_parts, layer.widen, out=buffers.wide)
            torch.mul(F.silu(buffers.gate, inplace=True), buffers.up, out=buffers.gated)
            buffers.leave(buffers.inner, layer.narrow, after_mlp)
        buffers.enter(True)
        return head(buffers.normed.mul_(last_norm))

    def _norm_heads(self, buffers: _StepBuffers, weight: Tensor, whole: bool) -> None:
        if not whole:
            length = torch.linalg.vector_norm(buffers.heads, dim=-1, keepdim=True)
            mean_square = length.square_().div_(self.attended.head_size)
            buffers.heads.mul_(mean_square.add_(self._eps).rsqrt_() * weight)
            return
        for part in (buffers.unturned_queries, buffers.unturned_keys):
            mean_square = torch.linalg.vector_norm(part, dim=(1, 2, 3), keepdim=True).square_().div_(part[0].numel())
            part.mul_(mean_square.add_(self._eps).rsqrt_())
        buffers.heads.mul_(weight)


def head_norms(block: Block, sizes: BlockSizes) -> tuple[Tensor, Tensor, bool] | None:
    """The norms' weights for every head of queries (with the scores' scale in them) and of keys, [heads, size]; and
    whether a norm acts on all heads at once. None where the block has no such norms."""
    query_norm, key_norm = norm_weight(block.query_norm), norm_weight(block.key_norm)
    if query_norm is None or key_norm is None:
        return None
    size = sizes.head_size
    queries = (query_norm * sizes.scale).view(-1, size).expand(sizes.num_heads, -1)
    keys = key_norm.view(-1, size).expand(sizes.num_key_heads, -1)
    return queries, keys, len(query_norm) != size or len(key_norm) != size


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
    for columns, weight in zip(across, weights, strict=True):
        columns.copy_(weight.detach().t())
    return across
