"""Keys and values of a batch that is being written, in buffers that never move, and the attention that reads them.

A prompt's keys are held once for all the rows that answer it; a row's own keys are written in place. Nothing in here
asks the device for a value, no shape depends on data, and no Python runs for a row, so a step can be captured.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IS_ARM = platform.machine() in ("aarch64", "arm64")
LARGE_VOCABULARY = 1 << 14  # below, the head is no large part of a step
WIDE_HEAD = 512  # from here a product gains more than turning its result costs, also with more than 16 rows


@dataclass(frozen=True)
class TokenRows:
    """What a log of tokens keeps of B rows or more, on the device; the places are those of its flat buffers."""

    last: Tensor  # int64 [B], the token drawn last
    done: Tensor  # bool [B]
    cursor: Tensor  # int64 [B], the place of the next token
    first: Tensor  # int64 [B], the place of the first
    final: Tensor  # int64 [B], the last place that the budget allows
    random: Tensor  # float32: the random number of each place
    tokens: Tensor  # int64: what was drawn
    logp: Tensor  # float32
    ends: Tensor  # int64 [E], tokens that end a completion


@dataclass(frozen=True)
class BatchShape:
    """What one batch needs room for."""

    rows: int
    prompts: int  # slots, each with one prompt that any number of rows answer
    prompt_width: int
    completion_width: int
    reads_on: bool = False  # rows may be given more tokens to read, behind what they have written


@dataclass(frozen=True)
class AttentionShape:
    """The attention layers of a model, as its own forward showed them."""

    num_layers: int
    num_heads: int  # of keys and values
    head_size: int
    windows: tuple[int | None, ...]  # a layer's sliding window: how many keys it sees, its own included
    dtype: torch.dtype


@dataclass(frozen=True)
class Extension:
    """Rows that read on: R of them, T tokens of the longest chunk, M tokens in all. A place is one of a row's own."""

    row: Tensor  # int64 [R]
    slot: Tensor  # int64 [R]
    last: Tensor  # int64 [R], the chunk's last token
    places: Tensor  # int64 [R, T]; padding repeats a chunk's last one
    positions: Tensor  # int64 [R, T], the prompt in front
    token: Tensor  # int64 [M], in the flat order of [R, T]: without the padding
    widths: tuple[int, int]  # columns that are read: of prompts, and of the rows' own
    masks: dict[int | None, Tensor]  # by window: bool [R, 1, T, both widths], what a token sees
    in_slots: bool = False  # the rows are slots: prompts are read on

    @property
    def target(self) -> tuple[Tensor, Tensor]:
        """Row and place of each token, int64 [M]."""
        row = self.row[:, None].expand_as(self.places)
        return row.reshape(-1)[self.token], self.places.reshape(-1)[self.token]

    def tokens_of(self, values: Tensor) -> Tensor:
        """[R, heads, T, size] -> [M, heads, size]."""
        return values.transpose(1, 2).flatten(0, 1).index_select(0, self.token)


class DecodeState:
    """The buffers, which row and prompt is where in them, and how much of them the next step uses.

    The tensors are only ever written in place. `rows`, `slots`, `share`, `prompt_width` and `completion_width` are
    plain numbers: they fix the shapes of a step, and whoever captures one holds them still.
    """

    def __init__(self, shape: BatchShape, attended: AttentionShape, state_size: int, device: torch.device) -> None:
        self.shape, self.attended, self.device = shape, attended, device
        heads, size = attended.num_heads, attended.head_size

        def room(outer: int, width: int) -> list[Tensor]:
            # zeros, not whatever was there: a masked value is multiplied by 0, and 0 * NaN is NaN
            sizes = (2, outer, heads, width, size)
            return [fresh_zeros(sizes, attended.dtype, device) for _ in range(attended.num_layers)]

        def numbers(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.long, device=device)

        self.prompt_kv = room(shape.prompts, shape.prompt_width)  # a layer: [2, slots, heads, prompt width, size]
        # a layer: [2, rows, heads, completion width, size]
        self.completion_kv = room(shape.rows, shape.completion_width)
        wide = torch.float64 if attended.dtype == torch.float64 else torch.float32
        # after the prompt's last token
        self.prompt_state = torch.zeros(shape.prompts, state_size, dtype=wide, device=device)
        self.prompt_length = numbers(shape.prompts)
        self.slot = numbers(shape.rows)  # where the row's prompt is
        self.count = numbers(shape.rows)  # tokens of the completion that are in the buffers
        self._table = numbers(shape.rows * shape.rows)  # rows by slot, `share` places for each slot
        self._table_index = numbers(shape.rows)  # of a row in the table
        self.rows = self.slots = self.share = 0
        self.prompt_width = self.completion_width = 0
        self.in_order = False  # the table is 0, 1, 2, ...: nothing needs to be gathered
        self.ragged = True  # rows may differ in how much they see
        # flat places in a buffer [2 * rows * heads * completion width, size], in the order (row, key or value, head)
        head = torch.arange(2 * heads, device=device)
        width = shape.completion_width
        self._head_at = ((head // heads) * (shape.rows * heads * width) + (head % heads) * width)[None]
        self._row_at = torch.arange(shape.rows, device=device) * (heads * width)
        self._prompt_column = torch.arange(shape.prompt_width, device=device)[None]
        self._completion_column = torch.arange(shape.completion_width, device=device)[None]
        # views of the buffers as the products want them: transposed keys, and values; narrowed by `seat`
        self._shared = [_flat(buffer) for buffer in self.prompt_kv]
        self._own = [_flat(buffer) for buffer in self.completion_kv]
        self._shared_now, self._own_now = self._shared, self._own
        self.write_at: Tensor = numbers(0)
        self._start = numbers(0)  # of each row's completion
        self.masks: dict[int | None, Tensor | None] = {}
        self.rotation = torch.empty(0)  # of the positions that there is room for, as a decoder wants it

    def enter(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        """Rows begin to answer the prompts in these slots."""
        self.count[torch.tensor(rows, device=self.device)] = 0

    def seat(self, slots: Sequence[int | None], prompt_width: int) -> None:
        """Fix who is who for the coming steps: the slot of each row, None for a row that is no longer written."""
        by_slot: list[list[int]] = [[] for _ in range(max((slot for slot in slots if slot is not None), default=0) + 1)]
        index_in_group = [0] * len(slots)
        for row, slot in enumerate(slots):
            if slot is not None:
                index_in_group[row] = len(by_slot[slot])
                by_slot[slot].append(row)
        share = max(map(len, by_slot))
        table = [row for rows in by_slot for row in (*rows, *[0] * (share - len(rows)))]
        table_index = [(slot or 0) * share + index_in_group[row] for row, slot in enumerate(slots)]
        self.rows, self.slots, self.share, self.prompt_width = len(slots), len(by_slot), share, prompt_width
        self.in_order = table == list(range(len(slots)))
        heads = self.attended.num_heads
        self._shared_now = [
            (keys[: self.slots * heads, :, :prompt_width], values[: self.slots * heads, :prompt_width])
            for keys, values in self._shared
        ]
        self._own_now = [(keys[: self.rows * heads], values[: self.rows * heads]) for keys, values in self._own]
        self._table[: len(table)] = torch.tensor(table, device=self.device)
        self._table_index[: len(slots)] = torch.tensor(table_index, device=self.device)
        self.slot[: len(slots)] = torch.tensor([slot or 0 for slot in slots], device=self.device)
        self._start = self.prompt_length.index_select(0, self.slot[: self.rows])

    def begin_step(self) -> None:
        """Where this step's keys go and which keys each row sees: once for all layers."""
        count = self.count[: self.rows]
        self.write_at = ((self._row_at[: self.rows] + count)[:, None] + self._head_at).view(-1)
        self.masks = {window: self._mask(window, count) for window in dict.fromkeys(self.attended.windows)}

    def _mask(self, window: int | None, count: Tensor) -> Tensor | None:
        if not self.ragged and (window is None or self.prompt_width + self.completion_width <= window):
            return None
        length = self._start[:, None]
        count = count[:, None]
        prompt, completion = (
            self._prompt_column[:, : self.prompt_width],
            self._completion_column[:, : self.completion_width],
        )
        seen_prompt, seen_completion = prompt < length, completion <= count
        if window is not None:
            seen_prompt = seen_prompt & (prompt > length + count - window)
            seen_completion = seen_completion & (completion > count - window)
        return ~torch.cat([seen_prompt, seen_completion], 1)[:, None]

    @property
    def positions(self) -> Tensor:
        """int64 [rows]: of the token that a step reads."""
        return self._start + self.count[: self.rows]

    def attention(self, layer: int, query: Tensor, key_value: Tensor, scale: float) -> Tensor:
        """query [rows, query heads, size], key_value [rows, 2, heads, size] -> [rows, query heads * size].

        The new key and value are stored; a prompt's keys are read once for all the rows that answer it.
        """
        rows, size, heads = self.rows, self.attended.head_size, self.attended.num_heads
        group = query.shape[1] // heads  # query heads that share a key
        dtype = self.attended.dtype
        written = key_value.reshape(-1, size)
        own = self.completion_kv[layer].view(-1, size)
        own.index_copy_(0, self.write_at, written if written.dtype == dtype else written.to(dtype))
        query = query if scale == 1 else query * scale
        query = query if query.dtype == dtype else query.to(dtype)
        prompt_keys, prompt_values = self._shared_now[layer]
        completion_keys, completion_values = self._own_now[layer]

        to_prompt = torch.bmm(self._by_slot(query, group), prompt_keys)
        to_completion = torch.bmm(
            query.reshape(rows * heads, group, size), completion_keys.narrow(2, 0, self.completion_width)
        )
        to_completion = to_completion.reshape(rows, heads * group, self.completion_width)
        scores = torch.cat([self._by_row(to_prompt, group), to_completion], -1)
        mask = self.masks[self.attended.windows[layer]]
        if mask is not None:
            scores.masked_fill_(mask, float("-inf"))
        weight = scores.softmax(-1, dtype=torch.promote_types(dtype, torch.float32))
        weight = weight if weight.dtype == dtype else weight.to(dtype)
        of_prompt, of_completion = weight.split([self.prompt_width, self.completion_width], -1)
        from_prompt = torch.bmm(self._by_slot(of_prompt, group), prompt_values)
        of_completion = of_completion.reshape(rows * heads, group, self.completion_width)
        from_completion = torch.bmm(of_completion, completion_values.narrow(1, 0, self.completion_width))
        return (self._by_row(from_prompt, group) + from_completion.reshape(rows, heads * group, size)).reshape(rows, -1)

    def _by_slot(self, values: Tensor, group: int) -> Tensor:
        """[rows, heads * group, X] -> [slots * heads, share * group, X]."""
        width = values.shape[-1]
        if not self.in_order:
            values = values.index_select(0, self._table[: self.slots * self.share])
        heads = self.attended.num_heads
        values = values.unflatten(1, (heads, group)).unflatten(0, (self.slots, self.share)).transpose(1, 2)
        return values.reshape(self.slots * heads, self.share * group, width)

    def _by_row(self, values: Tensor, group: int) -> Tensor:
        """[slots * heads, share * group, X] -> [rows, heads * group, X]."""
        heads, width = self.attended.num_heads, values.shape[-1]
        values = values.reshape(self.slots, heads, self.share, group, width).transpose(1, 2)
        values = values.reshape(self.slots * self.share, heads * group, width)
        return values if self.in_order else values.index_select(0, self._table_index[: self.rows])

    def prefill_attention(self, layer: int, kv: tuple[Tensor, Tensor], query: Tensor, scale: float) -> Tensor:
        """Prompts padded on the right, all [P, heads, L, size] -> [P, query heads, L, size]; fills slots `filling`."""
        key, value = kv
        width = query.shape[2]
        self.prompt_kv[layer][0].narrow(2, 0, width).index_copy_(0, self.filling, key.to(self.attended.dtype))
        self.prompt_kv[layer][1].narrow(2, 0, width).index_copy_(0, self.filling, value.to(self.attended.dtype))
        window = self.attended.windows[layer]
        repeats = query.shape[1] != key.shape[1]
        if window is None or width <= window:
            return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=repeats)
        column = torch.arange(width, device=query.device)
        behind = column[:, None] - column[None]
        seen = (behind >= 0) & (behind < window)
        return F.scaled_dot_product_attention(query, key, value, seen, scale=scale, enable_gqa=repeats)

    filling: Tensor  # int64 [P], the slots that a prefill fills

    def begin_extension(
        self,
        rows: Sequence[int],
        slots: Sequence[int] | None,
        starts: Sequence[int],
        lengths: Sequence[int],
        prompt_width: int,
    ) -> Extension:
        """Chunks of so many tokens go behind the first `starts` places of these rows, whatever stands there.

        `slots` are those of the rows' prompts; None: the rows are slots themselves, and the chunks parts of prompts.
        """
        device, longest, in_slots = self.device, max(lengths), slots is None
        row, slot, start, length = (
            torch.tensor(list(numbers), device=device) for numbers in (rows, slots or rows, starts, lengths)
        )
        last = length - 1
        column = torch.arange(longest, device=device)[None]
        places = start[:, None] + torch.minimum(column, last[:, None])
        token = torch.tensor([number * longest + at for number, size in enumerate(lengths) for at in range(size)])
        own_width = max(first + size for first, size in zip(starts, lengths, strict=True))
        prompt_length = self.prompt_length.index_select(0, slot)[:, None, None, None]
        prompt_length = torch.zeros_like(prompt_length) if in_slots else prompt_length
        at = places[:, None, :, None]
        prompt, own = self._prompt_column[:, :prompt_width], torch.arange(own_width, device=device)[None]
        masks = {}
        for window in dict.fromkeys(self.attended.windows):
            sees_prompt, sees_own = (prompt < prompt_length).expand(-1, -1, longest, -1), own <= at
            if window is not None:
                sees_prompt, sees_own = (
                    sees_prompt & (prompt > prompt_length + at - window),
                    sees_own & (own > at - window),
                )
            masks[window] = torch.cat([sees_prompt, sees_own], -1)
        if not in_slots:
            self.count[row] = start + length
        widths = (prompt_width, own_width)
        positions = prompt_length[:, 0, 0] + places
        return Extension(
            row=row,
            slot=slot,
            last=last,
            places=places,
            positions=positions,
            token=token.to(device),
            widths=widths,
            masks=masks,
            in_slots=in_slots,
        )

    def extension_attention(
        self, layer: int, extension: Extension, kv: tuple[Tensor, Tensor], query: Tensor, scale: float
    ) -> Tensor:
        """Chunks padded on the right, all [R, heads, T, size] -> [R, query heads, T, size]; stores keys and values."""
        prompt_width, own_width = extension.widths
        dtype, mask = self.attended.dtype, extension.masks[self.attended.windows[layer]]
        row, position = extension.target
        read = []
        for number, values in enumerate(kv):
            own = (self.prompt_kv if extension.in_slots else self.completion_kv)[layer][number]
            own.transpose(1, 2)[row, position] = extension.tokens_of(values).to(dtype)
            prompt = self.prompt_kv[layer][number].narrow(2, 0, prompt_width).index_select(0, extension.slot)
            read.append(torch.cat([prompt, own.narrow(2, 0, own_width).index_select(0, extension.row)], 2))
        keys, values = read
        repeats = query.shape[1] != keys.shape[1]
        return F.scaled_dot_product_attention(query.to(dtype), keys, values, mask, scale=scale, enable_gqa=repeats)

    def move_rows(self, sources: Sequence[int], targets: Sequence[int], width: int) -> None:
        """Copy the first places of rows to those of other rows; all are read before one is written."""
        source, target = (torch.tensor(list(rows), device=self.device) for rows in (sources, targets))
        for buffer in self.completion_kv:
            part = buffer[:, :, :, :width]
            part[:, target] = part[:, source]
        self.count[target] = self.count[source]

    def begin_slots(
        self, slots: Sequence[int], held: Sequence[tuple[int, int | None, int]], lengths: Sequence[int]
    ) -> None:
        """The first `lengths` places of slots become what others hold; all are read before one is written.

        `held`: a slot, a row that has read on behind it or None, and the tokens of the prompt in that slot.
        """
        source, target = (torch.tensor(numbers, device=self.device) for numbers in ([slot for slot, *_ in held], slots))
        width = max(lengths)
        for layer, buffer in enumerate(self.prompt_kv):
            copied = buffer[:, source, :, :width]
            for number, ((_, row, prompt), length) in enumerate(zip(held, lengths, strict=True)):
                if row is not None and length > prompt:
                    copied[:, number, :, prompt:length] = self._own_places(layer, row, length - prompt)
            buffer[:, target, :, :width] = copied

    def _own_places(self, layer: int, row: int, width: int) -> Tensor:
        """[2, heads, width, size]: keys and values of the first places of a row."""
        return self.completion_kv[layer][:, row, :, :width]

    def move_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """The same for prompts."""
        source, target = (torch.tensor(list(rows), device=self.device) for rows in (sources, targets))
        for buffer in self.prompt_kv:
            buffer[:, target] = buffer[:, source]
        self.prompt_state[target] = self.prompt_state[source]
        self.prompt_length[target] = self.prompt_length[source]


class StepHead:
    """[rows, W] -> [rows, V]: the vocabulary head of a decode step, by its weight [V, W].

    On the CPU the logits lie in memory that the next call writes again: a step spends them, and fresh pages for them
    would take a tenth of its time.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        self._logits = self._columns = torch.empty(0)

    def __call__(self, states: Tensor) -> Tensor:
        if not states.is_cpu:
            return torch.mm(states, self._weight.t())
        rows, vocabulary, transposed = len(states), len(self._weight), by_columns(len(states), *self._weight.shape)
        if self._logits.shape != (rows, vocabulary):
            self._logits = states.new_empty(rows, vocabulary)
            self._columns = states.new_empty(vocabulary, rows if transposed else 0)
        if not transposed:
            return torch.mm(states, self._weight.t(), out=self._logits)
        return self._logits.copy_(torch.mm(self._weight, states.t().contiguous(), out=self._columns).t())


def by_columns(rows: int, vocabulary: int, width: int) -> bool:
    """Whether a head of that many tokens is quicker as a product with few columns than as one with few rows.

    Measured with vocabularies from 16,384 to 151,936 and widths from 256 to 896. On ARM with OpenBLAS rows take 1.0 to
    1.5 times as long as columns, for 8 to 64 of them. On x86 with MKL they take 0.9 to 2.3 times as long for 4 to 16,
    and in wide heads 1.1 to 1.6 times for multiples of 8 up to 48.
    """
    if vocabulary < LARGE_VOCABULARY:
        return False
    if IS_ARM:
        return 8 <= rows <= 64
    return 4 <= rows <= 16 or (width >= WIDE_HEAD and rows <= 48 and rows % 8 == 0)


def fresh_zeros(sizes: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Tensor:
    """Zeros; on the CPU the system hands out their pages when they are first written. torch.zeros writes all of them,
    and of the room that conversations have most is never used."""
    if (device is not None and device.type != "cpu") or not math.prod(sizes):
        return torch.zeros(tuple(sizes), dtype=dtype, device=device)
    pages = np.zeros(math.prod(sizes) * dtype.itemsize, np.uint8)
    return torch.from_numpy(pages).view(dtype).view(*sizes)


def _flat(buffer: Tensor) -> tuple[Tensor, Tensor]:
    """[2, N, heads, width, size] -> keys [N * heads, size, width] and values [N * heads, width, size]."""
    return buffer[0].flatten(0, 1).transpose(1, 2), buffer[1].flatten(0, 1)
