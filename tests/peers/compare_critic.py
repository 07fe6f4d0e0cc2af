"""PPO with a critic: advantages, whitening, the policy's loss and the critic's."""

from dataclasses import replace

import torch

from tests.peers.compare_advantages import less_kl, verl_advantage
from tests.peers.compared import (
    PIECES,
    WHITENED,
    Completions,
    cut,
    gap,
    measured,
    method,
    oracle_batch,
    prepared,
    same,
    whet_gradient,
)
from tests.peers.steady import steady_batch
from whet.objective import step_totals

TRL = {"kl.beta": 0.05, "value": "clipped_error", "value.coefficient": 0.1, "value.width": 0.2}  # TRL's numbers


def with_critic(batch, logp, *, ragged):
    """Completions without holes, of one length unless `ragged`, and what the critic says after some updates."""
    completions = Completions.of(batch.action)
    column = torch.arange(batch.action.shape[1])[None]
    length = completions.length[:, None] if ragged else int((batch.action.shape[1] - completions.start).min())
    action = (column >= completions.start[:, None]) & (column < completions.start[:, None] + length)
    shifts = torch.randn(action.shape, generator=torch.Generator().manual_seed(0), dtype=logp.dtype)
    return replace(batch, action=action), logp, batch.value + 0.3 * shifts


def critic_gradient(objective, batch, predicted):
    leaf = predicted.clone().requires_grad_()
    objective.critic_loss(batch, leaf, step_totals(batch, batch.max_new_tokens)).value.backward()
    return leaf.grad


def wider(completions, values):
    """With the place behind each completion, which TRL counts too, where it has a value like any other."""
    return replace(completions, length=completions.length + 1).taken(values)


def trl_rollout(trl_ppo, batch, take):
    completions = Completions.of(batch.action)
    answer = trl_ppo(
        "advantage",
        settings={},
        logp=take(completions, batch.old_logp),
        ref=take(completions, batch.ref_logp),
        values=take(completions, batch.value),
        scores=batch.reward,
        length=completions.length,
    )
    return completions, answer


def trl_update(trl_ppo, batch, logp, predicted, take, pieces=1):
    """TRL's gradients on whet's advantage and target."""
    completions = Completions.of(batch.action)
    width = int(completions.length.max())
    answer = trl_ppo(
        "loss",
        settings={},
        logp=take(completions, logp),
        old=take(completions, batch.old_logp),
        predicted=take(completions, predicted),
        values=take(completions, batch.value),
        target=take(completions, batch.target),
        advantage=take(completions, batch.advantage),
        length=completions.length,
        pieces=cut(len(logp), pieces),
    )
    names = ("gradient", "value_gradient")
    return [completions.given_back(answer[name][:, :width]) for name in names]


@same(WHITENED)
def trl_ppo_advantage(trl_ppo):
    """Completions of one length, which end where the tensor ends."""
    batch, _, _ = with_critic(*oracle_batch(), ragged=False)
    completions, answer = trl_rollout(trl_ppo, batch, Completions.taken)
    return completions.given_back(answer["advantage"]), prepared(method("ppo", TRL), batch).advantage


@same()
def trl_ppo_target(trl_ppo):
    batch, _, _ = with_critic(*oracle_batch(), ragged=False)
    completions, answer = trl_rollout(trl_ppo, batch, Completions.taken)
    return completions.given_back(answer["target"]), prepared(method("ppo", TRL), batch).target


@same()
def trl_ppo_policy(trl_ppo):
    batch, logp, predicted = with_critic(*oracle_batch(), ragged=True)
    batch = prepared(method("ppo", TRL), batch)
    return trl_update(trl_ppo, batch, logp, predicted, wider)[0], whet_gradient(method("ppo", TRL), batch, logp)


@same()
def trl_ppo_critic(trl_ppo):
    batch, logp, predicted = with_critic(*oracle_batch(), ragged=False)
    batch = prepared(method("ppo", TRL), batch)
    ours = critic_gradient(method("ppo", TRL), batch, predicted)
    return trl_update(trl_ppo, batch, logp, predicted, Completions.taken)[1], ours


@same(WHITENED)
def verl_gae_advantage(verl):
    return _gae(verl, "advantage")


@same()
def verl_gae_target(verl):
    return _gae(verl, "target")


def _gae(verl, which):
    """With tool output between the actions."""
    batch, _ = oracle_batch()
    found = verl_advantage(verl, batch, "gae", rewards=less_kl(batch, 0.02), values=batch.value, gamma=1.0, lam=0.95)
    return found[which], torch.where(batch.action, getattr(prepared(method("ppo"), batch), which), 0.0)


@same()
def verl_value_loss(verl):
    objective = method("ppo", {"value": "clipped_error", "value.coefficient": 1.0, "value.width": 0.5})
    batch, _ = oracle_batch()
    batch = prepared(objective, batch)
    _, _, predicted = with_critic(*oracle_batch(), ragged=True)
    answer = verl("value", predicted=predicted, old=batch.value, target=batch.target, mask=batch.action, clip=0.5)
    return answer["gradient"], critic_gradient(objective, batch, predicted)


@measured
def trl_ppo_ragged_advantage(trl_ppo):
    """The reward lies one place behind the last token of a completion that ends early, on a value of its own."""
    batch, _, _ = with_critic(*steady_batch(), ragged=True)
    completions, answer = trl_rollout(trl_ppo, batch, wider)
    theirs = completions.given_back(answer["advantage"][:, : int(completions.length.max())])
    return gap(theirs, prepared(method("ppo", TRL), batch).advantage)


@measured
def trl_ppo_ragged_critic(trl_ppo):
    """The place behind the last token is in the critic's mean."""
    batch, logp, predicted = with_critic(*steady_batch(), ragged=True)
    batch = prepared(method("ppo", TRL), batch)
    theirs = trl_update(trl_ppo, batch, logp, predicted, wider)[1]
    return gap(theirs, critic_gradient(method("ppo", TRL), batch, predicted))


@measured
def trl_ppo_policy_in_pieces(trl_ppo):
    batch, logp, predicted = with_critic(*steady_batch(), ragged=True)
    batch = prepared(method("ppo", TRL), batch)
    theirs = trl_update(trl_ppo, batch, logp, predicted, wider, pieces=PIECES)[0]
    return gap(theirs, whet_gradient(method("ppo", TRL), batch, logp))


@measured
def trl_ppo_critic_in_pieces(trl_ppo):
    """Beside TRL's own gradient of the batch as a whole."""
    batch, logp, predicted = with_critic(*steady_batch(), ragged=True)
    batch = prepared(method("ppo", TRL), batch)
    whole = trl_update(trl_ppo, batch, logp, predicted, wider)[1]
    return gap(trl_update(trl_ppo, batch, logp, predicted, wider, pieces=PIECES)[1], whole)
