"""One batch, asked of whet and of a peer: the same numbers in, gradients of the loss with respect to logp out."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from whet.objective import PRESETS, step_totals, with_changes

sys.path.insert(0, str(Path(__file__).parent.parent / "oracle"))
from batches import BUDGET, random_batch

PIECES = 8


def example(seed=0, *, drift=0.4, num_groups=4, group_size=6, **more):
    """The oracle's ragged batch, of 24 rows: they can be cut into 8 equal pieces, as the peers want it."""
    return random_batch(seed, num_groups=num_groups, group_size=group_size, drift=drift, **more)


def row(name, changes=None):
    return with_changes(PRESETS[name].objective, changes or {})


def prepared(objective, batch, memory=None):
    """The batch with the row's advantage."""
    return objective.advantage(batch, memory or {})[0]


def whet_gradient(objective, batch, logp, budget=BUDGET):
    """Of a prepared batch, as one optimizer step."""
    leaf = logp.clone().requires_grad_()
    objective.loss(batch, leaf, step_totals(batch, budget)).value.backward()
    return leaf.grad


def gap(theirs, ours):
    """How far a gradient is from whet's: |theirs - ours| / |ours|."""
    assert ours.norm() > 1e-6, "a gradient of zero agrees with everything"
    return float((theirs - ours).norm() / ours.norm())


def size(theirs, ours):
    """How long a gradient is beside whet's."""
    return float(theirs.norm() / ours.norm())


def cut(num_rows, pieces):
    return [each.tolist() for each in torch.arange(num_rows).chunk(pieces)]


@dataclass(frozen=True)
class Replies:
    """Where the replies of a batch lie: peers see them without prompts, each from column 0."""

    start: torch.Tensor  # [N]
    length: torch.Tensor  # [N], to the last action token, holes included
    width: int  # of the batch they were taken from

    @staticmethod
    def of(action):
        column = torch.arange(action.shape[1])
        first = torch.where(action, column, action.shape[1]).amin(-1)
        last = torch.where(action, column, -1).amax(-1)
        assert (last >= 0).all(), "a row without an action has no reply to find"
        return Replies(first, last + 1 - first, action.shape[1])

    def _columns(self):
        column = torch.arange(int(self.length.max()))[None]
        inside = column < self.length[:, None]
        return torch.where(inside, self.start[:, None] + column, 0), inside

    def taken(self, values):
        columns, inside = self._columns()
        return torch.where(inside, values.gather(1, columns), torch.zeros((), dtype=values.dtype))

    def given_back(self, values):
        columns, inside = self._columns()
        wide = torch.zeros(len(values), self.width, dtype=values.dtype)
        return wide.scatter_add(1, columns, torch.where(inside, values, 0.0))


def trl_gradient(trl, batch, logp, *, trainer="grpo", pieces=1, replies=None, generated_tokens=None, **settings):
    """TRL's gradient on a prepared batch; TRL knows one advantage a reply."""
    replies = replies or Replies.of(batch.action)
    answer = trl(
        "policy",
        trainer=trainer,
        settings=settings,
        logp=replies.taken(logp),
        old=replies.taken(batch.old_logp),
        ref=replies.taken(batch.ref_logp),
        mask=replies.taken(batch.action),
        advantage=each_reply(batch),
        pieces=cut(len(logp), pieces),
        budget=BUDGET,
        generated_tokens=generated_tokens,
    )
    return replies.given_back(answer["gradient"])


def verl_gradient(verl, batch, logp, *, loss=None, pieces=1, replies=None, **settings):
    """verl's gradient on a prepared batch."""
    replies = replies or Replies.of(batch.action)
    answer = verl(
        "policy",
        loss=loss or {},
        settings=settings,
        logp=replies.taken(logp),
        old=replies.taken(batch.old_logp),
        ref=replies.taken(batch.ref_logp),
        mask=replies.taken(batch.action),
        advantage=replies.taken(batch.advantage),
        length=replies.length.tolist(),
        pieces=cut(len(logp), pieces),
    )
    return replies.given_back(answer["gradient"])


def verl_advantage(verl, batch, name, *, settings=None, rewards=None, **more):
    """verl's advantage and returns, [N, T]; unless given, the reward lies on the last action token."""
    replies = Replies.of(batch.action)
    if rewards is None:
        rewards = on_last_token(batch)
    answer = verl(
        "advantage",
        name=name,
        rewards=replies.taken(rewards),
        mask=replies.taken(batch.action).to(batch.reward.dtype),
        group=batch.group,
        settings=settings,
        **more,
    )
    return {each: replies.given_back(values) for each, values in answer.items()}


def on_last_token(batch):
    replies = Replies.of(batch.action)
    last = (replies.start + replies.length - 1)[:, None]
    return torch.zeros(batch.action.shape, dtype=batch.reward.dtype).scatter(1, last, batch.reward[:, None])


def each_reply(batch):
    """The advantage of a batch whose tokens share it: [N]."""
    total = torch.where(batch.action, batch.advantage, 0.0).sum(-1)
    return total / batch.lengths.clamp(min=1)


def of_ones(batch):
    return replace(batch, advantage=batch.action.to(batch.reward.dtype))
