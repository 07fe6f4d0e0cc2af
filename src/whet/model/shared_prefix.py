"""Rows that share a prompt as one packed row: every prompt once, then the completions, no padding.

Pure layout. `shared_prefix_batch` says where each token goes and what it may see; a model is made to see it by
`whet.model.shared_prefix_attention`. Where no kernel takes ragged lengths (`Segments`), attention alone meets padding:
prompts are attended to side by side, completions in bundles that share their prompt's keys. A bundle is about as long
as its prompt: then neither the copies of the prompt's keys nor the pairs of completions that must not see each other
cost more than the completions themselves. Where completions are long, whole rows cost less than that: without a mask
attention skips what lies ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]

WASTE = 1 << 18  # pairs of tokens that may be attended to in vain before rows are taken apart by length


@dataclass(frozen=True)
class CompletionBundles:
    """Completions of one prompt that are attended to together, B bundles side by side."""

    query_index: Tensor  # int64 [B, Q], packed positions
    query_position: Tensor  # int64 [B, Q]
    query_row: Tensor  # int64 [B, Q], the row a token belongs to
    key_index: Tensor  # int64 [B, K], packed positions: the prompt, then the completions
    key_position: Tensor  # int64 [B, K]
    key_row: Tensor  # int64 [B, K], PROMPT where every row may look, PADDING where none may


PROMPT, PADDING = -1, -2


@dataclass(frozen=True)
class Segments:
    """Where prompts and completions begin and end in the packed row.

    First the prompts that have completions, then the other prompts, then the completions, those of one prompt together.
    """

    own: Tensor  # int32 [prompts and completions + 1], bounds
    longest: int
    prompts: Tensor  # int32 [R + 1], bounds of the prompts that have completions
    longest_prompt: int
    completions: Tensor  # int32 [R + 1], bounds of the completions to each of them, counted from the first completion
    longest_completions: int
    first_completion: int  # packed position
    end_of_prompts: int  # that have completions, packed position
    own_bounds: tuple[int, ...]  # the same three on the host
    prompt_bounds: tuple[int, ...]
    completion_bounds: tuple[int, ...]
    tables: dict[Any, Any] = field(default_factory=dict)  # what kernels want to know of this, as it is made


@dataclass(frozen=True)
class PaddedLayout:
    """What attention looks at side by side, where no kernel takes ragged lengths."""

    prompt_index: Tensor  # int64 [P, L], packed positions, right-padded with any
    bundles: CompletionBundles | None
    rows: tuple[Tensor, ...]  # int64 [N, L] each, packed positions: if any, attended to instead of prompts and bundles
    output_index: Tensor  # int64 [S], of a token's output: in flattened [P, L], then flattened [B, Q]; or in the rows


@dataclass(frozen=True)
class _PackedCompletion:
    row: int
    start: int  # packed
    first: int  # position of its first token
    length: int


@dataclass(frozen=True)
class _Root:
    rows: tuple[int, ...]  # that begin with it
    start: int  # packed
    length: int
    completions: tuple[_PackedCompletion, ...]  # those that must be computed


@dataclass(frozen=True)
class SharedPrefixBatch:
    """Rows [N, T] as one row of S tokens. A row that shares its prompt with none is a prompt without completions."""

    tokens: Tensor  # int64 [1, S]
    position_ids: Tensor  # int64 [1, S]
    states: Tensor  # int64 [A], for each action in row order the packed position that predicts it
    segments: Segments
    longest_row: int  # positions a token may look back
    roots: tuple[_Root, ...]
    masks: dict[Any, Tensor] = field(default_factory=dict)  # of attention, as they are made

    @property
    def size(self) -> int:
        """S, the tokens that are computed."""
        return self.tokens.shape[1]

    @property
    def prompt_of_row(self) -> list[int]:
        """The prompt that each row begins with; rows with equal prompts share one."""
        rows = {row: number for number, root in enumerate(self.roots) for row in root.rows}
        return [rows[row] for row in sorted(rows)]

    def sources(self, width: int) -> Tensor:
        """int64 [S]: where each token comes from in rows [N, width], flattened; of a shared prompt, its first row."""
        spans = [np.arange(root.length) + root.rows[0] * width for root in self.roots]
        spans += [
            np.arange(completion.first, completion.first + completion.length) + completion.row * width
            for root in self.roots
            for completion in root.completions
        ]
        return to_device(torch.from_numpy(np.concatenate(spans)), self.tokens.device)

    def places(self, rows: int, width: int) -> Tensor:
        """int64 [rows, width]: the packed position of each token of the rows; 0 for those that are left out."""
        places = np.zeros((rows, width), np.int64)
        for root in self.roots:
            for row in root.rows:
                places[row, : root.length] = np.arange(root.start, root.start + root.length)
            for completion in root.completions:
                inside = np.arange(completion.length)
                places[completion.row, completion.first + inside] = completion.start + inside
        return to_device(torch.from_numpy(places), self.tokens.device)

    def computed(self, rows: int, width: int) -> Tensor:
        """bool [rows, width]: the tokens that are not left out."""
        is_token = np.zeros((rows, width), np.bool_)
        for root in self.roots:
            is_token[list(root.rows), : root.length] = True
            for completion in root.completions:
                is_token[completion.row, completion.first : completion.first + completion.length] = True
        return to_device(torch.from_numpy(is_token), self.tokens.device)

    @cached_property
    def layout(self) -> PaddedLayout:
        """Made when it is first asked for: ragged kernels do without."""
        return _layout(self.roots, self.size, self.tokens.device)


def shared_prefix_batch(tokens: Tensor, action: Tensor, device: torch.device | None = None) -> SharedPrefixBatch | None:
    """The layout of right-padded rows [N, T], on their device or the one given; None where no row has an action.

    A row's prompt is all before its first action. Its last action and what follows predict nothing, so they are left
    out: a completion of one token costs nothing.
    """
    device = device or tokens.device
    rows, flags = tokens.cpu().numpy(), action.cpu().numpy()
    first = np.where(flags.any(1), flags.argmax(1), 0)
    last = np.where(flags.any(1), flags.shape[1] - 1 - flags[:, ::-1].argmax(1), 0)
    roots = _roots(rows, first, last)
    if not roots:
        return None
    completions = [completion for root in roots for completion in root.completions]
    pieces = [rows[root.rows[0], : root.length] for root in roots]
    pieces += [
        rows[completion.row, completion.first : completion.first + completion.length] for completion in completions
    ]
    positions = [np.arange(root.length) for root in roots]
    positions += [np.arange(completion.first, completion.first + completion.length) for completion in completions]

    def tensor(values: Integers) -> Tensor:
        return to_device(torch.from_numpy(values), device)

    return SharedPrefixBatch(
        tokens=tensor(np.concatenate(pieces)[None]),
        position_ids=tensor(np.concatenate(positions)[None]),
        states=tensor(_states(flags, first, roots)),
        segments=_segments(roots, device),
        longest_row=int(last.max()),
        roots=tuple(roots),
    )


def _layout(roots: Sequence[_Root], size: int, device: torch.device) -> PaddedLayout:
    bundles = [bundle for root in roots for bundle in _bundled(root)]
    laid, completion_place = _bundles(bundles) if bundles else (None, {})
    prompt_index, positions = _places(roots, completion_place, size)
    whole: list[Integers] = []
    if laid is not None:
        groups = _grouped_rows(roots)
        if _row_pairs(groups) <= prompt_index.size * prompt_index.shape[1] // 2 + laid[0].size * laid[3].shape[1]:
            laid = None
            whole, positions = _rows(groups, size)

    def tensor(values: Integers) -> Tensor:
        return to_device(torch.from_numpy(values), device)

    completion_bundles = None if laid is None else CompletionBundles(*map(tensor, laid))
    return PaddedLayout(tensor(prompt_index), completion_bundles, tuple(map(tensor, whole)), tensor(positions))


def long_tensor(values: Sequence[Any]) -> Tensor:
    """int64, of numbers or of rows of them; torch itself takes six times as long to read them."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Values on the device. From pageable memory a large copy would wait for all that the device has still to do."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def prompt_batch(prompts: Sequence[Sequence[int]], device: torch.device) -> SharedPrefixBatch:
    """Prompts behind one another, whole, equal ones once; the state of interest is that of each one's last token."""
    width = max(map(len, prompts)) + 1
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    action = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = long_tensor(prompt)
        action[row, len(prompt)] = True
    tree = shared_prefix_batch(tokens, action, device)
    assert tree is not None
    return tree


def _roots(rows: Integers, first: Integers, last: Integers) -> list[_Root]:
    """Every different prompt with the completions to it, those with completions first; a lone row is a whole prompt."""
    shared: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(last).tolist():
        shared.setdefault(rows[row, : first[row]].tobytes(), []).append(row)
    lengths = (last - first).tolist()
    prompts = []
    for members in shared.values():
        answered = [row for row in members if lengths[row]] if len(members) > 1 else []
        length = int(first[members[0]]) if len(members) > 1 else int(last[members[0]])
        prompts.append((members, answered, length))
    prompts.sort(key=lambda prompt: not prompt[1])
    start, behind = 0, sum(length for _, _, length in prompts)
    roots = []
    for members, answered, length in prompts:
        completions = []
        for row in answered:
            completions.append(_PackedCompletion(row, behind, length, lengths[row]))
            behind += lengths[row]
        roots.append(_Root(tuple(members), start, length, tuple(completions)))
        start += length
    return roots


def _segments(roots: Sequence[_Root], device: torch.device) -> Segments:
    answered = [root for root in roots if root.completions]
    prompts = [root.length for root in answered]
    blocks = [sum(completion.length for completion in root.completions) for root in answered]
    own = [root.length for root in roots] + [completion.length for root in roots for completion in root.completions]

    def bounds(lengths: list[int]) -> Integers:
        return np.cumsum([0, *lengths], dtype=np.int64)

    def tensor(values: Integers) -> Tensor:
        return to_device(torch.from_numpy(values.astype(np.int32)), device)

    own_bounds, prompt_bounds, completion_bounds = bounds(own), bounds(prompts), bounds(blocks)
    return Segments(
        own=tensor(own_bounds),
        longest=max(own),
        prompts=tensor(prompt_bounds),
        longest_prompt=max(prompts, default=0),
        completions=tensor(completion_bounds),
        longest_completions=max(blocks, default=0),
        first_completion=sum(root.length for root in roots),
        end_of_prompts=sum(prompts),
        own_bounds=tuple(own_bounds.tolist()),
        prompt_bounds=tuple(prompt_bounds.tolist()),
        completion_bounds=tuple(completion_bounds.tolist()),
    )


def _places(roots: Sequence[_Root], completion_place: dict[int, int], size: int) -> tuple[Integers, Integers]:
    longest = max(root.length for root in roots)
    prompt_index, positions = np.zeros((len(roots), longest), np.int64), np.empty(size, np.int64)
    for number, root in enumerate(roots):
        span = slice(root.start, root.start + root.length)
        prompt_index[number, : root.length] = np.arange(span.start, span.stop)
        positions[span] = number * longest + np.arange(root.length)
        for completion in root.completions:
            at = len(roots) * longest + completion_place[completion.row]
            positions[completion.start : completion.start + completion.length] = np.arange(at, at + completion.length)
    return prompt_index, positions


_Row = tuple[_Root, _PackedCompletion | None]


def _row_length(row: _Row) -> int:
    root, completion = row
    return root.length + (completion.length if completion is not None else 0)


def _grouped_rows(roots: Sequence[_Root]) -> list[list[_Row]]:
    """Prompts with each of their completions, those of like length together."""
    every: list[_Row] = [(root, completion) for root in roots for completion in root.completions or (None,)]
    groups: list[list[_Row]] = []
    for row in sorted(every, key=_row_length):
        longer = _row_length(row) ** 2 - _row_length(groups[-1][-1]) ** 2 if groups else 0
        if groups and len(groups[-1]) * longer // 2 <= WASTE:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _row_pairs(groups: Sequence[Sequence[_Row]]) -> int:
    """Pairs of tokens that causal attention looks at, padding included."""
    return sum(len(group) * _row_length(group[-1]) ** 2 // 2 for group in groups)


def _rows(groups: Sequence[Sequence[_Row]], size: int) -> tuple[list[Integers], Integers]:
    """The packed positions of whole rows, and where each token's output lies among all of them."""
    rows, positions, before = [], np.empty(size, np.int64), 0
    for group in groups:
        table = np.zeros((len(group), _row_length(group[-1])), np.int64)
        for line, (root, completion) in zip(table, group, strict=True):
            spans = [(0, root.start, root.length)]
            if completion is not None:
                spans.append((root.length, completion.start, completion.length))
            for column, start, length in spans:
                line[column : column + length] = np.arange(start, start + length)
                # a prompt lies in several rows, all with the same output
                positions[start : start + length] = np.arange(before + column, before + column + length)
            before += table.shape[1]
        rows.append(table)
    return rows, positions


def _states(flags: NDArray[np.bool_], first: Integers, roots: Sequence[_Root]) -> Integers:
    prompt_start = np.zeros(len(flags), np.int64)
    completion_start = np.zeros(
        len(flags), np.int64
    )  # where the row would start if its prompt lay before its completion
    for root in roots:
        prompt_start[list(root.rows)] = completion_start[list(root.rows)] = root.start
        for completion in root.completions:
            completion_start[completion.row] = completion.start - completion.first
    rows, columns = flags.nonzero()
    return np.where(columns == first[rows], prompt_start[rows], completion_start[rows]) + columns - 1


def _bundled(root: _Root) -> list[tuple[_Root, list[_PackedCompletion]]]:
    bundles: list[tuple[_Root, list[_PackedCompletion]]] = []
    filled = 0
    for completion in sorted(root.completions, key=lambda completion: completion.length):
        if bundles and filled + completion.length <= root.length:
            bundles[-1][1].append(completion)
            filled += completion.length
        else:
            bundles.append((root, [completion]))
            filled = completion.length
    return bundles


def _bundles(bundles: Sequence[tuple[_Root, list[_PackedCompletion]]]) -> tuple[tuple[Integers, ...], dict[int, int]]:
    """The fields of `CompletionBundles`, and where each row's completion starts among their flattened queries."""
    sizes = [sum(completion.length for completion in completions) for _, completions in bundles]
    widest = max(size + root.length for size, (root, _) in zip(sizes, bundles, strict=True))
    queries = np.zeros((3, len(bundles), max(sizes)), np.int64)
    keys = np.zeros((3, len(bundles), widest), np.int64)
    keys[2] = PADDING
    column_of = {}
    for number, (root, completions) in enumerate(bundles):
        keys[0, number, : root.length] = np.arange(root.start, root.start + root.length)
        keys[1, number, : root.length] = np.arange(root.length)
        keys[2, number, : root.length] = PROMPT
        at = 0
        for completion in completions:
            inside = np.arange(completion.length)
            for fields, offset in ((queries, 0), (keys, root.length)):
                span = slice(offset + at, offset + at + completion.length)
                fields[0, number, span] = completion.start + inside
                fields[1, number, span] = completion.first + inside
                fields[2, number, span] = completion.row
            column_of[completion.row] = number * queries.shape[2] + at
            at += completion.length
        # padding asks as the bundle's first token would: it must see something, or its softmax is not a number
        queries[:, number, at:] = queries[:, number, :1]
    return (*queries, *keys), column_of
