"""Rows that share a prefix as one packed row: every prefix once, then what continues it, no padding.

Usually the prefix is a prompt and its completions continue it. Where rows have more in common (episodes that branch,
completions with equal first turns, prompts behind one system prompt) and that saves enough, all they share stands there
once, as a tree of any depth (`whet.data.prefix_tree`).

Pure layout. `shared_prefix_batch` says where each token goes and what it may see; a model is made to see it by
`whet.model.shared_prefix_attention`. Where no kernel takes ragged lengths (`Segments`), attention alone meets padding:
roots are attended to side by side, branches in bundles that share the keys of the path that leads to them. A bundle is
about as long as that path: then neither the copies of its keys nor the pairs of branches that must not see each other
cost more than the branches themselves. Where branches are long, whole rows cost less than that: without a mask
attention skips what lies ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whet.data import prefix_tree
from whet.data.prefix_tree import NO_PARENT, Integers, PrefixNode

WASTE = 1 << 18  # pairs of tokens that may be attended to in vain before rows are taken apart by length


@dataclass(frozen=True)
class BranchBundles:
    """Branches of one node that are attended to together, B bundles side by side."""

    query_index: Tensor  # int64 [B, Q], packed positions
    query_position: Tensor  # int64 [B, Q]
    query_node: Tensor  # int64 [B, Q], the node a token belongs to
    key_index: Tensor  # int64 [B, K], packed positions: the path that leads here, then the branches
    key_position: Tensor  # int64 [B, K]
    key_node: Tensor  # int64 [B, K], PATH where every branch may look, PADDING where none may


PATH, PADDING = -1, -2


@dataclass(frozen=True)
class Segments:
    """The start and end of each node in the packed row.

    First the roots that have branches, then the other roots, then the branches, those of one root together; there, what
    continues a node stands right after it. In a tree of one level the roots are prompts, the branches completions.
    """

    own: Tensor  # int32 [nodes + 1], bounds
    longest: int
    prompts: Tensor  # int32 [R + 1], bounds of the roots that have branches
    longest_prompt: int
    completions: Tensor  # int32 [R + 1], bounds of all that continues each of them, counted from the first branch
    longest_completions: int
    first_completion: int  # packed position
    end_of_prompts: int  # that have completions, packed position
    own_bounds: tuple[int, ...]  # the same three on the host
    prompt_bounds: tuple[int, ...]
    completion_bounds: tuple[int, ...]
    parents: tuple[int, ...]  # of each node, NO_PARENT for roots
    branches: tuple[tuple[int, int], ...]  # of each node, packed bounds of all that continues it
    tables: dict[Any, Any] = field(default_factory=dict)  # what kernels want to know of this, as it is made

    @cached_property
    def is_deep(self) -> bool:
        """True where a branch has branches."""
        return any(parent != NO_PARENT and self.parents[parent] != NO_PARENT for parent in self.parents)


@dataclass(frozen=True)
class PaddedLayout:
    """What attention looks at side by side, where no kernel takes ragged lengths."""

    prompt_index: Tensor  # int64 [P, L], packed positions of the roots, right-padded with any
    bundles: tuple[BranchBundles, ...]  # one for each level of the tree
    rows: tuple[Tensor, ...]  # int64 [N, L] each, packed positions: if any, attended to instead of roots and bundles
    output_index: Tensor  # int64 [S], of a token's output: in flattened [P, L], then flattened [B, Q]; or in the rows


@dataclass(frozen=True)
class PackedNode(PrefixNode):
    """A node with its place in the packed row."""

    start: int  # packed
    branches: tuple[int, int]  # packed bounds of all that continues it


@dataclass(frozen=True)
class DistinctActions:
    """Actions of several rows that are one: the same token from the same state."""

    first: Tensor  # int64 [U], an action of each
    number: Tensor  # int64 [A], which of them an action is
    order: Tensor  # int64 [A], actions by their number
    bounds: tuple[int, ...]  # [U + 1], of each one's actions in that order


@dataclass(frozen=True)
class SharedPrefixBatch:
    """Rows [N, T] as one row of S tokens. A row that shares its prompt with none is a prompt without completions."""

    tokens: Tensor  # int64 [1, S]
    position_ids: Tensor  # int64 [1, S]
    states: Tensor  # int64 [A], for each action in row order the packed position that predicts it
    segments: Segments
    longest_row: int  # positions a token may look back
    nodes: tuple[PackedNode, ...]  # in packed order
    lengths: Integers  # [N], tokens of each row that are computed
    flat_size: int  # tokens that shared prompts alone would leave
    distinct: DistinctActions | None  # None: rows share their prompts alone
    masks: dict[Any, Tensor] = field(default_factory=dict)  # of attention, as they are made

    @property
    def size(self) -> int:
        """S, the tokens that are computed."""
        return self.tokens.shape[1]

    @property
    def prompt_of_row(self) -> list[int]:
        """The prompt that each row begins with; rows with equal prompts share one."""
        rows = {row: number for number, root in enumerate(self.nodes) if root.parent == NO_PARENT for row in root.rows}
        return [rows[row] for row in sorted(rows)]

    def sources(self, width: int) -> Tensor:
        """int64 [S]: where each token comes from in rows [N, width], flattened; of those that share it, the first."""
        spans = [np.arange(node.first, node.stop) + node.rows[0] * width for node in self.nodes]
        return to_device(torch.from_numpy(np.concatenate(spans)), self.tokens.device)

    def places(self, rows: int, width: int) -> Tensor:
        """int64 [rows, width]: the packed position of each token of the rows; 0 for those that are left out."""
        return to_device(torch.from_numpy(_places(self.nodes, self.lengths, (rows, width))), self.tokens.device)

    def computed(self, rows: int, width: int) -> Tensor:
        """bool [rows, width]: the tokens that are not left out."""
        is_token = np.arange(width) < self.lengths[:rows, None]
        return to_device(torch.from_numpy(is_token), self.tokens.device)

    @cached_property
    def layout(self) -> PaddedLayout:
        """Made when it is first asked for: ragged kernels do without."""
        return _layout(self.nodes, self.size, self.tokens.device)


def shared_prefix_batch(
    tokens: Tensor, action: Tensor, device: torch.device | None = None, deep: bool = False
) -> SharedPrefixBatch | None:
    """The layout of right-padded rows [N, T], on their device or the one given; None where no row has an action.

    A row's prompt is all before its first action. Its last action and what follows predict nothing, so they are left
    out: a completion of one token costs nothing. With `deep`, rows share all that they have in common, whoever wrote
    it, where that saves enough over prompts alone.
    """
    device = device or tokens.device
    rows, flags = tokens.cpu().numpy(), action.cpu().numpy()
    first = np.where(flags.any(1), flags.argmax(1), 0)
    last = np.where(flags.any(1), flags.shape[1] - 1 - flags[:, ::-1].argmax(1), 0)
    tree = prefix_tree.deeper_tree(rows, first, last) if deep else []
    nodes = _packed(tree or _prompts_and_completions(rows, first, last))
    if not nodes:
        return None

    def tensor(values: Integers) -> Tensor:
        return to_device(torch.from_numpy(values), device)

    acting, columns = flags.nonzero()
    states = _places(nodes, last, rows.shape)[acting, columns - 1]
    return SharedPrefixBatch(
        tokens=tensor(np.concatenate([rows[node.rows[0], node.first : node.stop] for node in nodes])[None]),
        position_ids=tensor(np.concatenate([np.arange(node.first, node.stop) for node in nodes])[None]),
        states=tensor(states),
        segments=_segments(nodes, device),
        longest_row=int(last.max()),
        nodes=nodes,
        lengths=last,
        distinct=_distinct(states, rows[acting, columns], device) if tree else None,
        flat_size=prefix_tree.num_flat_tokens(rows, first, last) if tree else sum(node.length for node in nodes),
    )


def long_tensor(values: Sequence[Any]) -> Tensor:
    """int64, of numbers or of rows of them; torch itself takes six times as long to read them."""
    return torch.from_numpy(np.array(values, dtype=np.int64))


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Values on the device. From pageable memory a large copy would wait for all that the device has still to do."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)


def prompt_batch(prompts: Sequence[Sequence[int]], device: torch.device) -> SharedPrefixBatch:
    """Prompts one after another, whole, equal ones once; the state of interest is that of each one's last token."""
    width = max(map(len, prompts)) + 1
    tokens = torch.zeros(len(prompts), width, dtype=torch.long)
    action = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = long_tensor(prompt)
        action[row, len(prompt)] = True
    tree = shared_prefix_batch(tokens, action, device)
    assert tree is not None
    return tree


def _prompts_and_completions(rows: Integers, first: Integers, last: Integers) -> list[PrefixNode]:
    """A tree of one level: every different prompt with the completions to it; a lone row is a whole prompt."""
    shared: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(last).tolist():
        shared.setdefault(rows[row, : first[row]].tobytes(), []).append(row)
    nodes: list[PrefixNode] = []
    for members in shared.values():
        length = int(first[members[0]]) if len(members) > 1 else int(last[members[0]])
        nodes.append(PrefixNode(NO_PARENT, 0, length, tuple(members)))
        root = len(nodes) - 1
        if len(members) > 1:
            nodes += [PrefixNode(root, length, int(last[row]), (row,)) for row in members if last[row] > length]
    return nodes


def _packed(nodes: Sequence[PrefixNode]) -> tuple[PackedNode, ...]:
    """Nodes in packed order: roots that have branches, other roots, and what continues each root. Given, branches
    follow the node that they continue."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(number)
    roots = sorted(children.get(NO_PARENT, ()), key=lambda root: root not in children)
    order = roots + [number for root in roots for number in _below(root, children)]
    new_number = {number: index for index, number in enumerate(order)} | {NO_PARENT: NO_PARENT}
    starts = np.cumsum([0, *(nodes[number].length for number in order)], dtype=np.int64).tolist()
    sizes = [0] * len(nodes)  # tokens of all that continues a node
    for number in range(len(nodes) - 1, -1, -1):
        if nodes[number].parent != NO_PARENT:
            sizes[nodes[number].parent] += nodes[number].length + sizes[number]
    behind = starts[len(roots)]
    packed = []
    for index, number in enumerate(order):
        node = nodes[number]
        start = behind if index < len(roots) else starts[index + 1]
        behind += sizes[number] if index < len(roots) else 0
        branches = (start, start + sizes[number])
        packed.append(PackedNode(new_number[node.parent], node.first, node.stop, node.rows, starts[index], branches))
    return tuple(packed)


def _below(root: int, children: dict[int, list[int]]) -> list[int]:
    """All descendants of a node, each branch completely before the next."""
    order: list[int] = []
    coming = list(reversed(children.get(root, ())))
    while coming:
        order.append(coming.pop())
        coming += reversed(children.get(order[-1], ()))
    return order


def _places(nodes: Sequence[PackedNode], lengths: Integers, shape: tuple[int, ...]) -> Integers:
    places = np.zeros(shape, np.int64)
    for node in nodes:
        packed = np.arange(node.start, node.start + node.length)
        for row in node.rows:
            count = min(node.stop, int(lengths[row])) - node.first
            places[row, node.first : node.first + count] = packed[:count]
    return places


def _distinct(states: Integers, tokens: Integers, device: torch.device) -> DistinctActions:
    _, first, number = np.unique(np.stack([states, tokens]), axis=1, return_index=True, return_inverse=True)
    number = number.reshape(-1)
    bounds = np.cumsum([0, *np.bincount(number, minlength=len(first))]).tolist()
    order = np.argsort(number, kind="stable")
    of_first, of_number, of_order = (to_device(torch.from_numpy(part), device) for part in (first, number, order))
    return DistinctActions(of_first, of_number, of_order, tuple(bounds))


def _segments(nodes: Sequence[PackedNode], device: torch.device) -> Segments:
    roots = [node for node in nodes if node.parent == NO_PARENT]
    answered = [root for root in roots if root.branches[0] < root.branches[1]]
    prompts = [root.length for root in answered]
    blocks = [root.branches[1] - root.branches[0] for root in answered]
    own = [node.length for node in nodes]

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
        parents=tuple(node.parent for node in nodes),
        branches=tuple(node.branches for node in nodes),
    )


def _paths(nodes: Sequence[PackedNode]) -> list[tuple[int, ...]]:
    """For each node, the nodes from its root down to itself."""
    paths: list[tuple[int, ...]] = []
    for number, node in enumerate(nodes):
        paths.append((number,) if node.parent == NO_PARENT else (*paths[node.parent], number))
    return paths


def _layout(nodes: Sequence[PackedNode], size: int, device: torch.device) -> PaddedLayout:
    paths = _paths(nodes)
    roots = [node for node in nodes if node.parent == NO_PARENT]
    longest = max(root.length for root in roots)
    prompt_index, positions = np.zeros((len(roots), longest), np.int64), np.empty(size, np.int64)
    for number, root in enumerate(roots):
        prompt_index[number, : root.length] = np.arange(root.start, root.start + root.length)
        positions[root.start : root.start + root.length] = number * longest + np.arange(root.length)
    levels: list[tuple[Integers, ...]] = []
    before, pairs = prompt_index.size, prompt_index.size * longest // 2
    for bundles in _bundles_by_level(nodes, paths):
        levels.append(_bundles(nodes, paths, bundles, positions, before))
        before += levels[-1][0].size
        pairs += levels[-1][0].size * levels[-1][3].shape[1]
    whole: list[Integers] = []
    if levels:
        groups = _grouped_rows(nodes, paths)
        if _row_pairs(groups) <= pairs:
            levels = []
            whole, positions = _rows(groups, size)

    def tensor(values: Integers) -> Tensor:
        return to_device(torch.from_numpy(values), device)

    bundles_of_level = tuple(BranchBundles(*map(tensor, level)) for level in levels)
    return PaddedLayout(tensor(prompt_index), bundles_of_level, tuple(map(tensor, whole)), tensor(positions))


_Path = tuple[PackedNode, ...]


def _grouped_rows(nodes: Sequence[PackedNode], paths: Sequence[tuple[int, ...]]) -> list[list[_Path]]:
    """Roots with each of their branches, down to the last node, those of like length together."""
    ends = [number for number, node in enumerate(nodes) if node.branches[0] == node.branches[1]]
    # those of one root together
    every = [tuple(nodes[number] for number in paths[end]) for end in sorted(ends, key=lambda end: paths[end][0])]
    groups: list[list[_Path]] = []
    for path in sorted(every, key=lambda path: path[-1].stop):
        longer = path[-1].stop ** 2 - groups[-1][-1][-1].stop ** 2 if groups else 0
        if groups and len(groups[-1]) * longer // 2 <= WASTE:
            groups[-1].append(path)
        else:
            groups.append([path])
    return groups


def _row_pairs(groups: Sequence[Sequence[_Path]]) -> int:
    """Pairs of tokens that causal attention looks at, padding included."""
    return sum(len(group) * group[-1][-1].stop ** 2 // 2 for group in groups)


def _rows(groups: Sequence[Sequence[_Path]], size: int) -> tuple[list[Integers], Integers]:
    """The packed positions of whole rows, and where each token's output lies among all of them."""
    rows, positions, before = [], np.empty(size, np.int64), 0
    for group in groups:
        table = np.zeros((len(group), group[-1][-1].stop), np.int64)
        for line, path in zip(table, group, strict=True):
            for node in path:
                line[node.first : node.stop] = np.arange(node.start, node.start + node.length)
                # a shared node lies in several rows, all with the same output
                positions[node.start : node.start + node.length] = np.arange(before + node.first, before + node.stop)
            before += table.shape[1]
        rows.append(table)
    return rows, positions


_Bundle = tuple[int, list[int]]  # a node, and some of those that continue it


def _bundles_by_level(nodes: Sequence[PackedNode], paths: Sequence[tuple[int, ...]]) -> list[list[_Bundle]]:
    children: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.parent != NO_PARENT:
            children.setdefault(node.parent, []).append(number)
    levels: dict[int, list[_Bundle]] = {}
    for parent in sorted(children):
        levels.setdefault(len(paths[parent]), []).extend(_bundled(nodes, parent, children[parent]))
    return [levels[depth] for depth in sorted(levels)]


def _bundled(nodes: Sequence[PackedNode], parent: int, children: Sequence[int]) -> list[_Bundle]:
    bundles: list[_Bundle] = []
    filled = 0
    for child in sorted(children, key=lambda child: nodes[child].length):
        length = nodes[child].length
        if bundles and filled + length <= nodes[parent].stop:
            bundles[-1][1].append(child)
            filled += length
        else:
            bundles.append((parent, [child]))
            filled = length
    return bundles


def _bundles(
    nodes: Sequence[PackedNode],
    paths: Sequence[tuple[int, ...]],
    bundles: Sequence[_Bundle],
    positions: Integers,
    before: int,
) -> tuple[Integers, ...]:
    """The fields of `BranchBundles`; writes into `positions` where each token's output lies, `before` in front."""
    sizes = [sum(nodes[child].length for child in children) for _, children in bundles]
    widest = max(size + nodes[parent].stop for size, (parent, _) in zip(sizes, bundles, strict=True))
    queries = np.zeros((3, len(bundles), max(sizes)), np.int64)
    keys = np.zeros((3, len(bundles), widest), np.int64)
    keys[2] = PADDING
    for number, (parent, children) in enumerate(bundles):
        above = nodes[parent].stop
        for step in paths[parent]:
            node = nodes[step]
            keys[0, number, node.first : node.stop] = np.arange(node.start, node.start + node.length)
        keys[1, number, :above] = np.arange(above)
        keys[2, number, :above] = PATH
        at = 0
        for child in children:
            node = nodes[child]
            inside = np.arange(node.length)
            for fields, offset in ((queries, 0), (keys, above)):
                span = slice(offset + at, offset + at + node.length)
                fields[0, number, span] = node.start + inside
                fields[1, number, span] = node.first + inside
                fields[2, number, span] = child
            positions[node.start : node.start + node.length] = before + number * queries.shape[2] + at + inside
            at += node.length
        # padding asks as the bundle's first token would: it must see something, or its softmax is not a number
        queries[:, number, at:] = queries[:, number, :1]
    return (*queries, *keys)
