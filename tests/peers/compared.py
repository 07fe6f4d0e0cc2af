"""One batch, asked of whet and of a peer: the same numbers in, gradients of the loss with respect to logp out.

Two kinds of comparison, each listed under its function's name, which docs/differences.md names too: `same` ones return
the peer's numbers and whet's, `measured` ones return how far apart they are. The parameters are the peers they ask.
"""

from dataclasses import dataclass, replace

import torch

from tests.peers.steady import steady_batch
from tests.support.oracle_batches import random_batch
from whet.objective import PRESETS, step_totals, with_changes

PIECES = 8
SEEDS = range(5)

SAME = {}
MEASURED = {}
EXACT = 1e-10
SINGLE = 1e-5  # float32 on the peer's side
ONE_PLUS = 1e-7  # verl adds 1e-8 to a length, which is felt where a completion has few tokens
WHITENED = 1e-5  # the peers divide by sqrt(variance + 1e-8), whet by std + 1e-6


def same(tolerance=EXACT):
    def listed(function):
        SAME[function.__name__] = (function, tolerance)
        return function

    return listed


def measured(function):
    MEASURED[function.__name__] = function
    return function


def oracle_batch(seed=0, *, drift=0.4):
    """The oracle's ragged batch, of 24 rows: they can be cut into 8 equal pieces, as the peers want it.

    The policy before the updates is the one that sampled, and nothing is earned on the way.
    """
    batch, logp = random_batch(seed, num_groups=4, group_size=6, drift=drift)
    old = batch.old_logp if drift else logp
    return replace(batch, old_logp=old, behavior_logp=old, step_reward=None), logp


def method(name, changes=None):
    return with_changes(PRESETS[name].objective, changes or {})


def prepared(objective, batch):
    """The batch with the method's advantage."""
    return objective.advantage(batch, {})[0]


def whet_gradient(objective, batch, logp):
    """Of a prepared batch, as one optimizer step."""
    leaf = logp.clone().requires_grad_()
    objective.loss(batch, leaf, step_totals(batch, batch.max_new_tokens)).value.backward()
    return leaf.grad


def step(objective, drift=0.2):
    """The steady batch prepared, its log-probabilities and whet's gradient."""
    batch, logp = steady_batch(drift=drift)
    batch = prepared(objective, batch)
    return batch, logp, whet_gradient(objective, batch, logp)


def both(objective, ask, peer, drift=0.4, **settings):
    """Gradients of the peer and of whet on the same prepared batches, end to end."""
    theirs, ours = [], []
    for seed in SEEDS:
        batch, logp = oracle_batch(seed, drift=drift)
        batch = prepared(objective, batch)
        theirs.append(ask(peer, batch, logp, **settings).flatten())
        ours.append(whet_gradient(objective, batch, logp).flatten())
    return torch.cat(theirs), torch.cat(ours)


def gap(theirs, ours):
    """How far a gradient is from whet's: |theirs - ours| / |ours|."""
    assert ours.norm() > 1e-6, "a gradient of zero agrees with everything"
    return float((theirs - ours).norm() / ours.norm())


def size(theirs, ours):
    """How long a gradient is beside whet's."""
    assert ours.norm() > 1e-6, "a gradient of zero has no size to compare with"
    return float(theirs.norm() / ours.norm())


def cut(num_rows, pieces):
    return [each.tolist() for each in torch.arange(num_rows).chunk(pieces)]


@dataclass(frozen=True)
class Completions:
    """Where the completions of a batch lie: peers see them without prompts, each from column 0."""

    start: torch.Tensor  # [N]
    length: torch.Tensor  # [N], to the last action token, holes included
    width: int  # of the batch they were taken from

    @staticmethod
    def of(action):
        column = torch.arange(action.shape[1])
        first = torch.where(action, column, action.shape[1]).amin(-1)
        last = torch.where(action, column, -1).amax(-1)
        assert (last >= 0).all(), "a row without an action has no completion to find"
        return Completions(first, last + 1 - first, action.shape[1])

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


def trl_gradient(trl, batch, logp, *, trainer="grpo", pieces=1, completions=None, generated_tokens=None, **settings):
    """TRL's gradient on a prepared batch; TRL knows one advantage a completion."""
    completions = completions or Completions.of(batch.action)
    answer = trl(
        "policy",
        trainer=trainer,
        settings=settings,
        logp=completions.taken(logp),
        old=completions.taken(batch.old_logp),
        ref=completions.taken(batch.ref_logp),
        entropy=completions.taken(batch.entropy),
        mask=completions.taken(batch.action),
        advantage=each_completion(batch),
        pieces=cut(len(logp), pieces),
        budget=batch.max_new_tokens,
        generated_tokens=generated_tokens,
    )
    return completions.given_back(answer["gradient"])


def verl_gradient(verl, batch, logp, *, pieces=1, completions=None, loss_mode="vanilla", choice=None, **settings):
    """verl's gradient on a prepared batch; `choice` holds the numbers of its `policy_loss` section."""
    completions = completions or Completions.of(batch.action)
    answer = verl(
        "policy",
        loss={"loss_mode": loss_mode, **(choice or {})},
        settings=settings,
        logp=completions.taken(logp),
        old=completions.taken(batch.old_logp),
        ref=completions.taken(batch.ref_logp),
        mask=completions.taken(batch.action),
        advantage=completions.taken(batch.advantage),
        length=completions.length.tolist(),
        pieces=cut(len(logp), pieces),
    )
    return completions.given_back(answer["gradient"])


def each_completion(batch):
    """The advantage of a batch whose tokens share it: [N]."""
    total = torch.where(batch.action, batch.advantage, 0.0).sum(-1)
    return total / batch.lengths.clamp(min=1)
