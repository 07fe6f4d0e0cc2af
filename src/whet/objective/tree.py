"""Episodes that branch, as trees of draws: what a row counts, so that a token counts once however many rows share it.

A draw is a turn that the policy wrote once; rows of an episode that share it have its number in `batch.node`. From a
state, after a draw, k turns were drawn, all of them by the policy. A row's weight is the product of 1 / k over the
states on its way: the weights of an episode add up to 1, those of the rows through a draw to the draw's own, and
SUM_rows weight f(row) has the expectation of f(one episode) whatever the numbers k, as long as each was fixed before
any of its k turns was drawn. Counting leaves alike does not: a turn that ends its episode would count less than one
after which the episode branches again.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class TreePaths:
    """The ways of N rows through D draws of E trees: S passages, each row's in order, one row after the other."""

    row: Tensor  # int64 [S]
    column: Tensor  # int64 [S], where the draw begins in the row
    draw: Tensor  # int64 [S], from 0
    parent: Tensor  # int64 [S], the draw before it; D + number of the tree for the first of a row
    end: Tensor  # int64 [N], the last draw of each row; D + number of the tree for a row without any
    num_draws: int  # D
    num_trees: int  # E


def tree_paths(action: Tensor, node: Tensor, tree: Tensor, num_trees: int) -> TreePaths:
    """`action` and `node` are [N, T], `tree` [N] is the number of each row's tree, from 0."""
    column = torch.arange(action.shape[1], device=action.device).expand_as(action)
    newest = torch.where(action, column, -1).cummax(-1).values
    before = torch.cat([torch.full_like(newest[:, :1], -1), newest[:, :-1]], dim=1)  # the last action before a column
    changed = node != node.gather(1, before.clamp(min=0))
    rows, columns = (action & ((before < 0) | changed)).nonzero(as_tuple=True)
    known, number = torch.unique(node[rows, columns], return_inverse=True)
    unique, draw = torch.unique(tree[rows] * len(known) + number, return_inverse=True)
    num_draws = len(unique)
    root = num_draws + tree
    parent = torch.where(before[rows, columns] < 0, root[rows], draw.roll(1))
    passage = torch.arange(len(rows), device=rows.device)
    last = torch.full_like(tree, -1).scatter_reduce(0, rows, passage, "amax")
    end = torch.where(last < 0, root, draw[last.clamp(min=0)]) if len(rows) else root
    return TreePaths(rows, columns, draw, parent, end, num_draws, num_trees)


def path_weight(paths: TreePaths, counted: Tensor) -> Tensor:
    """double [N]: the product of 1 / k over the states of each row's way, 0 where the row is not `counted` [N].

    Of the turns drawn from a state those with a counted row are its k; a row that ends where others go on is one, too.
    """
    num_states, seen = paths.num_draws + paths.num_trees, counted[paths.row]
    ending = counted.nonzero()[:, 0]
    parents = torch.cat([paths.parent[seen], paths.end[ending]])
    children = torch.cat([paths.draw[seen], num_states + ending])
    num_children = num_states + len(counted)
    edges = torch.unique(parents * num_children + children)
    ways = torch.bincount(edges // num_children, minlength=num_states).clamp(min=1)
    share = 1.0 / ways.double()
    weight = share[paths.end].scatter_reduce(0, paths.row, share[paths.parent], "prod")
    return torch.where(counted, weight, 0.0)
