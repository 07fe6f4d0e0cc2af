"""Ragged random batches in float64, for the oracle and the properties: every field a method may ask for is filled.

`random_batch` are single completions that tool output interrupts here and there. `episodes` makes episodes of them:
turns of different number, holes of observed tokens between them, rewards of turns, states that are named, roles, and
branches that share an episode, some of them their first turns.
"""

from dataclasses import fields, replace

import torch

from whet.types import Extras, TokenBatch

BUDGET = 16
NUM_TOP = 3
EXTRA_TENSORS = ("entropy", "top_logp", "divergence", "value", "teacher_divergence")  # those that can carry gradient


def random_batch(
    seed: int,
    num_groups: int = 4,
    group_size: int = 5,
    drift: float = 0.4,
    binary: bool = False,
    mismatch: float = 0.3,
    budget: int = BUDGET,
) -> tuple[TokenBatch, torch.Tensor]:
    """A batch whose policy has drifted since it was sampled, and its current log-probabilities [N, T].

    Rows start with a prompt, and tool output interrupts some completions: the trained tokens are not contiguous. The
    sampler is `mismatch` away from the trainer, a tenth of the tokens three times as far. `binary` rewards are 0 or 1.
    """
    stream = torch.Generator().manual_seed(seed)
    apart = torch.Generator().manual_seed(9000 + seed)  # of what came later: the rest stays as it was drawn
    num_rows = num_groups * group_size

    def uniform(*shape):
        return torch.rand(shape, generator=stream, dtype=torch.float64)

    def noise(*shape):
        return torch.randn(shape, generator=stream, dtype=torch.float64)

    prompt = torch.randint(1, 5, (num_rows,), generator=stream)
    completion = torch.randint(1, budget + 1, (num_rows,), generator=stream)
    shape = (num_rows, int((prompt + completion).max()) + 2)
    column = torch.arange(shape[1])[None]
    action = (column >= prompt[:, None]) & (column < (prompt + completion)[:, None])
    action &= uniform(*shape) > 0.15
    action[torch.arange(num_rows), prompt] = True
    logp = -2 * uniform(*shape) - 0.05
    old_logp = -(logp + drift * noise(*shape)).abs() - 1e-3
    far = torch.where(uniform(*shape) < 0.1, 3.0, 1.0)
    group = torch.arange(num_groups).repeat_interleave(group_size)
    parts = torch.stack([(uniform(num_rows) < 0.5).double(), uniform(num_rows).mul(4).round().div(2)], dim=1)
    part_weight = torch.tensor([1.0, 0.0 if binary else 0.75], dtype=torch.float64).expand(num_rows, 2).clone()
    segment, anchor = _segments(action, uniform(*shape), stream)
    batch = TokenBatch(
        tokens=torch.randint(0, 50, shape, generator=stream),
        action=action,
        group=group,
        reward=(parts * part_weight).sum(-1),
        behavior_logp=-(old_logp - mismatch * far * noise(*shape)).abs() - 1e-3,
        old_logp=old_logp,
        ref_logp=logp + 0.7 * noise(*shape),
        teacher_logp=-(logp + 0.9 * torch.randn(shape, generator=apart, dtype=torch.float64)).abs() - 1e-3,
        entropy=2 * uniform(*shape),
        value=0.5 + 0.6 * noise(*shape),
        parts=parts,
        part_weight=part_weight,
        finished=uniform(num_rows) < 0.75,
        greedy_reward=uniform(num_groups).mul(3).round().div(2)[group],
        drawn=torch.cat([torch.full((num_groups, 1), 9.0).double(), uniform(num_groups, 2)], 1)[group],
        reference_rewards=_reference_rewards(seed, num_groups)[group],
        prompt=7 * group + 3,
        step_reward=torch.where(uniform(*shape) < 0.35, uniform(*shape), float("nan")),
        segment=segment,
        anchor=anchor,
        max_new_tokens=budget,
        observed=holes(action),
        demonstrated=elsewhere(action, apart),
        truncated=action & (uniform(num_rows) < 0.25)[:, None],
        role=torch.zeros(num_rows, dtype=torch.long),
    )
    return batch, logp


def elsewhere(action, stream):
    """Some tokens, to be taken for demonstrations, outside the samples: the first of a row has no prefix."""
    free = ~action & ~holes(action) & (torch.rand(action.shape, generator=stream) < 0.3)
    free[:, 0] = False
    return free


def _reference_rewards(seed, num_groups):
    """One to four numbers a prompt, NaN behind them."""
    stream = torch.Generator().manual_seed(7000 + seed)
    rewards = torch.rand(num_groups, 4, generator=stream, dtype=torch.float64).mul(4).round().div(2)
    count = torch.randint(1, 5, (num_groups, 1), generator=stream)
    return rewards.masked_fill(torch.arange(4) >= count, float("nan"))


def holes(action):
    """What lies between the first and the last action of a row and is none."""
    begun, ahead = action.cumsum(-1) > 0, action.flip(-1).cumsum(-1).flip(-1) > 0
    return begun & ahead & ~action


def episodes(seed: int, batch: TokenBatch, branches: bool = False) -> TokenBatch:
    """The batch as episodes: the actions of each row become turns with observed tokens between them.

    Rows of a group play two roles in turn. With `branches` some rows are branches of the episode of the row before
    theirs in the same role; branches agree on whether the completion is right.
    """
    stream = torch.Generator().manual_seed(5000 + seed)
    num_rows, width = batch.action.shape

    def draw(low, high):
        return int(torch.randint(low, high, (), generator=stream))

    action = torch.zeros_like(batch.action)
    segment = torch.full((num_rows, width), -1)
    anchor = torch.full((num_rows, width), -1)
    step_reward = torch.full((num_rows, width), float("nan"), dtype=torch.float64)
    truncated = torch.zeros_like(batch.action)
    returned = torch.zeros(num_rows, dtype=torch.float64)
    for row in range(num_rows):
        at = draw(1, 5)
        for turn in range(draw(1, 5)):
            stop = min(at + draw(1, 5), width)
            if stop <= at:
                break
            action[row, at:stop] = True
            segment[row, at:stop] = turn
            anchor[row, at:stop] = 0 if turn == 0 else draw(1, 4)
            truncated[row, at:stop] = draw(0, 4) == 0
            if draw(0, 3):
                step_reward[row, stop - 1] = torch.rand((), generator=stream, dtype=torch.float64)
                returned[row] += step_reward[row, stop - 1]
            at = stop + draw(1, 4)
    node = 10 * torch.arange(num_rows)[:, None] + segment
    place = torch.arange(num_rows) - (batch.group[:, None] > batch.group[None]).sum(-1)
    role = place % 2
    episode = torch.arange(num_rows)
    parts, reward = batch.parts.clone(), batch.reward.clone()
    for row in range(num_rows) if branches else ():
        if place[row] >= 2 and draw(0, 5) < 2:
            episode[row] = episode[row - 2]
            parts[row, 0] = parts[row - 2, 0]
            reward[row] = (parts[row] * batch.part_weight[row]).sum()
            common = min(row % 3, int(segment[row].max()), int(segment[row - 2].max()) + 1)  # turns that they share
            for turn in range(common):
                node[row, segment[row] == turn] = node[row - 2][segment[row - 2] == turn][0]
    return replace(
        batch,
        action=action,
        segment=segment,
        anchor=anchor,
        step_reward=step_reward,
        truncated=truncated,
        returned=returned,
        observed=holes(action),
        demonstrated=elsewhere(action, stream),
        role=role,
        episode=100 - episode if branches else None,
        node=node if branches else None,
        parts=parts,
        reward=reward,
    )


def _segments(action, chance, stream):
    """Turns that begin at some actions, counted from 0, and the state each starts from: the same numbers in each group.

    All completions start from state 0; later states are few, so that completions meet again.
    """
    begins = action & ((chance < 0.35) | (action.cumsum(-1) == 1))
    segment = torch.where(action, begins.cumsum(-1) - 1, -1)
    states = torch.randint(1, 4, action.shape, generator=stream)
    states[:, 0] = 0
    return segment, torch.where(action, states.gather(1, segment.clamp(min=0)), -1)


def random_extras(seed: int, batch: TokenBatch) -> Extras:
    """What a forward pass could give besides logp: all fields, none consistent with logp, which no method needs."""
    stream = torch.Generator().manual_seed(1000 + seed)
    shape = tuple(batch.action.shape)

    def uniform(*size):
        return torch.rand(size, generator=stream, dtype=torch.float64)

    value = torch.zeros(shape, dtype=torch.float64) if batch.value is None else batch.value
    return Extras(
        entropy=2 * uniform(*shape),
        top_logp=-3 * uniform(*shape, NUM_TOP),
        chose_top=uniform(*shape) < 0.5,
        divergence=uniform(*shape),
        teacher_divergence=torch.rand(shape, generator=torch.Generator().manual_seed(8000 + seed), dtype=torch.float64),
        value=value + 0.8 * (uniform(*shape) - 0.5),
    )


def with_leaves(extras: Extras) -> Extras:
    """The same numbers, ready to collect gradients."""
    return replace(extras, **{name: getattr(extras, name).clone().requires_grad_() for name in EXTRA_TENSORS})


def chosen(extras: Extras, rows, width: int) -> Extras:
    """The extras of these rows and the first columns."""
    return Extras(**{field.name: getattr(extras, field.name)[rows, :width] for field in fields(Extras)})


def asked_for(batch: TokenBatch, objective) -> TokenBatch:
    """The batch without process rewards, unless the method is about them: where they are given they are earned."""
    about_steps = objective.baseline.needs & {"step_reward", "segment"}
    return batch if about_steps else replace(batch, step_reward=None, returned=None)


def ragged(values: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    return [row[mask] for row, mask in zip(values, action, strict=True)]
