"""What gradients of episodes that branch estimate, exactly: `python benchmarks/bias_trees.py` prints the table of
docs/bias.md.

A toy policy decides up to three turns: with the first it ends the episode or goes on in one of two ways, with each of
the next it ends it or goes on. Every tree that it could draw is enumerated with its probability, every group of two of
them too, and the real loss gives the gradient of each. Nothing is sampled.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from whet.objective import PRESETS, Objective, with_changes
from whet.types import TokenBatch, Totals

State = tuple[int, ...]  # the turns so far; 0 ends the episode
LONGEST = 3
CHOICES = {(): 3, (1,): 2, (2,): 2, (1, 1): 2, (2, 1): 2}  # turns that can be drawn in each state
PLACES = {state: sum(list(CHOICES.values())[:number]) for number, state in enumerate(CHOICES)}
NUM_LOGITS = sum(CHOICES.values())


def _random(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


THETA = _random(NUM_LOGITS, 1)


def chances(theta: Tensor, state: State) -> Tensor:
    """[choices]: of each turn in a state."""
    start = PLACES[state]
    return theta[start : start + CHOICES[state]].softmax(0)


def _slopes() -> Tensor:
    """[logits, logits]: of the log-probability of each turn in each state."""
    rows = torch.zeros(NUM_LOGITS, NUM_LOGITS, dtype=torch.float64)
    for state, count in CHOICES.items():
        inside = slice(PLACES[state], PLACES[state] + count)
        rows[inside, inside] = torch.eye(count, dtype=torch.float64) - chances(THETA, state)
    return rows


SLOPES = _slopes()


def is_over(state: State) -> bool:
    return bool(state) and (state[-1] == 0 or len(state) == LONGEST)


def every_episode(state: State = ()) -> list[State]:
    if is_over(state):
        return [state]
    return [episode for turn in range(CHOICES[state]) for episode in every_episode((*state, turn))]


EPISODES = every_episode()
REWARD = dict(zip(EPISODES, _random(len(EPISODES), 7).tolist(), strict=True))


@dataclass(frozen=True)
class Leaf:
    """A whole episode, and the number of the draw that each of its turns came from."""

    turns: State
    nodes: tuple[str, ...]


Tree = tuple[Leaf, ...]
Rule = Callable[[State, int], Iterable[tuple[float, int]]]
"""(the state, leaves that it may still have) -> (chance, number of turns drawn from it)."""


def continuations(state: State, leaves: int, rule: Rule, path: tuple[str, ...] = ()) -> list[tuple[float, Tree]]:
    """Every subtree below one draw from a state, with its probability."""
    found: list[tuple[float, Tree]] = []
    for turn, chance in enumerate(chances(THETA, state).tolist()):
        reached = (*state, turn)
        if is_over(reached):
            found.append((chance, (Leaf(reached, path),)))
            continue
        for likely, count in rule(reached, leaves):
            shares = [leaves // count + (number < leaves % count) for number in range(count)]
            below = [
                continuations(reached, share, rule, (*path, f"{path[-1]}.{number}"))
                for number, share in enumerate(shares)
            ]
            for drawn in itertools.product(*below):
                probability = chance * likely
                for each, _ in drawn:
                    probability *= each
                found.append((probability, tuple(leaf for _, leaves_below in drawn for leaf in leaves_below)))
    return found


def online(rule: Rule, leaves: int = 3) -> list[tuple[float, Tree]]:
    """Every tree whose states branch, or not, when they are reached."""
    return continuations((), leaves, rule, ("0",))


def never(state: State, leaves: int) -> list[tuple[float, int]]:
    """One turn from every state."""
    return [(1.0, 1)]


def at_turns(state: State, leaves: int) -> list[tuple[float, int]]:
    """Two turns from every state, as far as the leaves go."""
    return [(1.0, min(2, leaves))]


def at_chance(state: State, leaves: int) -> list[tuple[float, int]]:
    """With a chance that depends on how unlikely the turn was that led here."""
    surprise = -float(chances(THETA, state[:-1])[state[-1]].log())
    chance = min(0.3 + 0.3 * surprise, 1.0) if leaves > 1 else 0.0
    return [(chance, 2), (1 - chance, 1)] if leaves > 1 else [(1.0, 1)]


def in_hindsight(choose: Callable[[State], Iterable[tuple[float, int]]]) -> list[tuple[float, Tree]]:
    """Every tree of an episode and a second one that leaves it at a state chosen when the first was over."""
    alone = {state: continuations(state, 1, never, ("-",)) for state in CHOICES}
    found = []
    for chance, (first,) in alone[()]:
        nodes = tuple(map(str, range(len(first.turns))))
        for likely, at in choose(first.turns):
            for other, (second,) in alone[first.turns[:at]]:
                own = tuple(f"new {number}" for number in range(at, len(second.turns)))
                tree = (replace(first, nodes=nodes), replace(second, nodes=(*nodes[:at], *own)))
                found.append((chance * likely * other, tree))
    return found


def any_state(turns: State) -> list[tuple[float, int]]:
    """Any state of the episode, the prompt among them (Tree-GRPO's code)."""
    return [(1 / len(turns), at) for at in range(len(turns))]


def most_surprising(turns: State) -> list[tuple[float, int]]:
    """The state before its unlikeliest turn (TreeRL's code, turn by turn)."""
    likely = [float(chances(THETA, turns[:at])[turns[at]]) for at in range(len(turns))]
    return [(1.0, likely.index(min(likely)))]


def exact() -> Tensor:
    """The gradient of E[R]."""
    theta = THETA.clone().requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for episode in EPISODES:
        chance = torch.ones((), dtype=torch.float64)
        for at, turn in enumerate(episode):
            chance = chance * chances(theta, episode[:at])[turn]
        value = value + chance * REWARD[episode]
    return torch.autograd.grad(value, theta)[0]


@dataclass(frozen=True)
class Estimate:
    """The gradients that a method could follow, over all groups of trees that could be drawn."""

    mean: Tensor  # [logits]
    variance: float  # E |gradient - mean|^2
    draws: float  # turns that are drawn for a group, on average
    leaves: float  # episodes of a group, on average


def estimate(objective: Objective, trees: Sequence[tuple[float, Tree]], size: int = 2, alike: bool = False) -> Estimate:
    """Of groups of `size` trees; `alike`: the leaves of a tree count alike, whatever was drawn on their way."""
    leaves = [leaf for _, tree in trees for leaf in tree]
    names = {name: number for number, name in enumerate(sorted({node for leaf in leaves for node in leaf.nodes}))}
    action = torch.tensor([[at < len(leaf.turns) for at in range(LONGEST)] for leaf in leaves])
    node = torch.tensor([_padded([names[name] for name in leaf.nodes]) for leaf in leaves])
    reward = torch.tensor([REWARD[leaf.turns] for leaf in leaves], dtype=torch.float64)
    place = torch.tensor(
        [_padded([PLACES[leaf.turns[:at]] + turn for at, turn in enumerate(leaf.turns)]) for leaf in leaves]
    )
    # of every group, the trees in it, and of those the leaves: the rows
    num_leaves = torch.tensor([len(tree) for _, tree in trees])
    first = num_leaves.cumsum(0) - num_leaves
    chosen = torch.cartesian_prod(*[torch.arange(len(trees))] * size).reshape(-1)
    episode = torch.arange(len(chosen)).repeat_interleave(num_leaves[chosen])
    start = num_leaves[chosen].cumsum(0) - num_leaves[chosen]
    row = first[chosen][episode] + torch.arange(len(episode)) - start[episode]
    batch = TokenBatch(
        tokens=torch.zeros_like(node[row]),
        action=action[row],
        group=episode // size,
        reward=reward[row],
        episode=episode,
        node=None if alike else node[row],
    )
    batch, _ = objective.advantage(batch, {})
    logp = torch.zeros(batch.action.shape, dtype=torch.float64, requires_grad=True)
    totals = Totals(tokens=1, sequences=size, max_new_tokens=LONGEST)
    (grad,) = torch.autograd.grad(-objective.loss(batch, logp, totals).value, logp)
    pushes = torch.zeros(len(chosen) // size, NUM_LOGITS, dtype=torch.float64)
    for column in range(LONGEST):
        pushes.index_add_(0, batch.group, grad[:, column, None] * SLOPES[place[row, column]])
    likely = torch.tensor([chance for chance, _ in trees], dtype=torch.float64)
    chance = likely[chosen].view(-1, size).prod(-1)
    mean = chance @ pushes
    draws = torch.tensor([len({node for leaf in tree for node in leaf.nodes}) for _, tree in trees])
    return Estimate(
        mean,
        float(chance @ (pushes - mean).square().sum(-1)),
        size * float(likely @ draws.double()),
        size * float(likely @ num_leaves.double()),
    )


def _padded(values: Sequence[int]) -> list[int]:
    return [*values, *[0] * LONGEST][:LONGEST]


def method(name: str, **changes: str) -> Objective:
    """A preset with its turns counted whole: share 1 / N, no KL."""
    return with_changes(PRESETS[name].objective, {"aggregate": "sequence_sum", "kl": "none", **changes})


@cache
def estimates() -> dict[str, Estimate]:
    """Of each estimator and way to branch."""
    turns, chance, alone = online(at_turns), online(at_chance), online(never)
    siblings, group, tree = method("rloo_tree"), method("rloo"), method("tree_grpo")
    return {
        "`leave_one_out`, 3 separate episodes": estimate(group, alone, 3),
        "`siblings`, branching at turns": estimate(siblings, turns),
        "`siblings`, branching by the surprise of the turn before": estimate(siblings, chance),
        "`leave_one_out`, branching at turns": estimate(group, turns),
        "`leave_one_out`, leaves of a tree count alike": estimate(group, turns, alike=True),
        "`group_and_tree` (Tree-GRPO), branching at turns": estimate(tree, turns),
        "`siblings`, a state chosen in hindsight, any": estimate(siblings, in_hindsight(any_state)),
        "`siblings`, a state chosen in hindsight, the most surprising": estimate(
            siblings, in_hindsight(most_surprising)
        ),
    }


def apart(one: Tensor, other: Tensor) -> float:
    """How far two gradients differ, as a share of the second."""
    return float((one - other).norm() / other.norm())


def table() -> str:
    """The rows of docs/bias.md: how far off, the cosine with the exact gradient, leaves, turns drawn, variance."""
    right, rows = exact(), []
    for name, each in estimates().items():
        off = apart(each.mean, right)
        cosine = float(each.mean @ right / each.mean.norm() / right.norm())
        cells = [name, "0" if off < 1e-10 else f"{off:.0%}", f"{cosine:.3f}", f"{each.leaves:.2f}", f"{each.draws:.2f}"]
        rows.append(f"| {' | '.join([*cells, f'{each.variance:.3f}'])} |")
    return "\n".join(rows)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n\n")[0]).parse_args()
    print(table())
