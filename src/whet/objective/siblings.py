"""Credit from siblings: turns drawn from one state are compared with each other by what their leaves earned."""

from __future__ import annotations

from whet.objective.advantage import GroupBaseline, LeaveOneOut, Memory, on_actions
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.statistics import (
    STD_FLOOR,
    GroupMoments,
    episode_index,
    episode_mean,
    episode_weight,
    group_moments,
    sums_by,
)
from whet.objective.tree import tree_paths
from whet.types import TokenBatch


class Siblings(GroupBaseline):
    """A_d = V_d - mean of V over the other draws from d's state; V_d is the weighted mean reward of the leaves below d.

    Every turn of an episode that branches is a draw d. The state before the first one is the prompt, and its draws are
    the episodes of the group. A draw without siblings has the advantage of the draw before it: its baseline is what the
    siblings of that one earned. The form of Kool 2019 and Ahmadian 2024 (2402.14740), eq. 6, at every state. Unbiased
    with sequence_sum: see docs/bias.md. Without branches it is leave_one_out.
    """

    name = "siblings"
    in_words = (
        "compare each turn, by the mean of its leaves, with the others drawn from its state; a turn drawn alone goes "
        "with the one before it"
    )
    in_symbols = "V_d - mean_{{siblings}}(V), V_d = mean(R of the leaves below d)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        weight = episode_weight(batch)
        if weight is None or batch.node is None:
            return on_actions(batch.reward - LeaveOneOut()(batch, memory), batch)
        paths = tree_paths(batch.action, batch.node, *episode_index(batch))
        earned, mass = (
            sums_by(paths.draw, paths.num_draws, (weight * values)[paths.row])
            for values in (batch.reward.nan_to_num(), torch.ones_like(weight))
        )
        value = torch.where(mass > 0, earned / mass.clamp(min=1e-300), float("nan")).to(batch.reward.dtype)
        state = torch.empty_like(value, dtype=torch.long).scatter(0, paths.draw, paths.parent)
        siblings = group_moments(value, state)
        compared = _left_out(value, siblings)
        # of each token: the newest draw on its row's way that has siblings, the episode itself before the first
        passage = torch.arange(len(paths.row), device=paths.row.device)
        has_siblings = (siblings.count > 1)[paths.draw]
        newest = torch.full(batch.action.shape, -1, device=batch.action.device)
        newest[paths.row, paths.column] = torch.where(has_siblings, passage, -1)
        newest = newest.cummax(-1).values
        group = group_moments(batch.reward, batch.group, weight)
        whole = _left_out(episode_mean(batch.reward, batch), group)[:, None].expand_as(newest)
        credit = torch.where(newest < 0, whole, compared[paths.draw[newest.clamp(min=0)]]) if len(passage) else whole
        return torch.where(batch.action & ~batch.reward.isnan()[:, None], credit, 0.0)


def _left_out(value: Tensor, moments: GroupMoments) -> Tensor:
    """value - mean of the others; 0 where all agree, or nobody else is there."""
    others = (moments.count * moments.mean - value) / (moments.count - 1).clamp(min=1)
    return torch.where(moments.constant, 0.0, value - others)


class GroupAndTree(GroupBaseline):
    """A = (R - mean_g) / (std_g + 1e-6) + (R - mean_tree) / (std_tree + 1e-6), over the leaves of the prompt and of the
    tree. Ji 2025 (2509.21240).

    Leaves count alike in both: the one baseline in which the branches of an episode are not one. A tree of one leaf
    adds nothing.
    """

    name = "group_and_tree"
    in_words = "compare each leaf with all leaves of its prompt and with those of its own tree, in their spreads"
    in_symbols = "(R - mean_g(R)) / std_g(R) + (R - mean_tree(R)) / std_tree(R)"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        trees = episode_index(batch)[0]
        total = sum(_standardised(batch.reward, group_moments(batch.reward, key)) for key in (batch.group, trees))
        return on_actions(torch.as_tensor(total), batch)


def _standardised(reward: Tensor, moments: GroupMoments) -> Tensor:
    return torch.where(moments.constant, 0.0, reward - moments.mean) / (moments.std + STD_FLOOR)
