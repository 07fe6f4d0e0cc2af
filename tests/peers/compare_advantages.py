"""Advantages: the same rewards in, A out."""

from dataclasses import replace

import torch

from tests.peers.compared import (
    SEEDS,
    SINGLE,
    WHITENED,
    Completions,
    each_completion,
    gap,
    measured,
    method,
    oracle_batch,
    prepared,
    same,
    size,
)
from tests.peers.steady import steady_batch


def on_last_token(batch):
    """[N, T]: the completion's reward where verl and whet put it."""
    completions = Completions.of(batch.action)
    last = (completions.start + completions.length - 1)[:, None]
    return torch.zeros(batch.action.shape, dtype=batch.reward.dtype).scatter(1, last, batch.reward[:, None])


def less_kl(batch, beta):
    """[N, T]: the reward on the last token less beta log(old / ref) on each, as both trainers of verl do it."""
    return on_last_token(batch) - beta * torch.where(batch.action, batch.old_logp - batch.ref_logp, 0.0)


def verl_advantage(verl, batch, name, *, rewards=None, values=None, **more):
    """verl's advantage and returns, [N, T], 0 where not an action."""
    completions = Completions.of(batch.action)
    if values is not None:
        more["values"] = completions.taken(values)
    answer = verl(
        "advantage",
        name=name,
        rewards=completions.taken(on_last_token(batch) if rewards is None else rewards),
        mask=completions.taken(batch.action).to(batch.reward.dtype),
        group=batch.group,
        **more,
    )
    return {each: torch.where(batch.action, completions.given_back(found), 0.0) for each, found in answer.items()}


def _verl(name, objective, verl, beta=0.0, **more):
    batches = [oracle_batch(seed)[0] for seed in SEEDS]
    theirs = [verl_advantage(verl, each, name, rewards=less_kl(each, beta), **more)["advantage"] for each in batches]
    ours = [prepared(objective, batch).advantage for batch in batches]
    return torch.cat([each.flatten() for each in theirs]), torch.cat([each.flatten() for each in ours])


@same()
def verl_grpo_advantage(verl):
    return _verl("grpo", method("grpo"), verl)


@same(SINGLE)
def verl_grpo_vectorized_advantage(verl):
    return _verl("grpo_vectorized", method("grpo"), verl)


@same()
def verl_unscaled_advantage(verl):
    return _verl("grpo", method("dr_grpo"), verl, settings={"norm_adv_by_std_in_grpo": False})


@same()
def verl_rloo_advantage(verl):
    return _verl("rloo", method("rloo"), verl, beta=0.03)


@same()
def verl_rloo_vectorized_advantage(verl):
    return _verl("rloo_vectorized", method("rloo"), verl, beta=0.03)


@same()
def verl_opo_advantage(verl):
    return _verl("opo", method("opo"), verl)


@same(WHITENED)
def verl_reinforce_pp_advantage(verl):
    return _verl("reinforce_plus_plus", method("reinforce_pp", {"kl.beta": 0.1}), verl, beta=0.1)


@same(WHITENED)
def verl_reinforce_pp_baseline_whitened(verl):
    objective = method("reinforce_pp_baseline", {"scale": "whiten_tokens", "kl": "none"})
    return _verl("reinforce_plus_plus_baseline", objective, verl)


@same()
def verl_passk_advantage(verl):
    objective = method("pass_at_k", {"baseline": "best_minus_second", "scale": "group_std"})
    return _verl("grpo_passk", objective, verl)


def _remax(verl, batch, objective, beta):
    found = verl_advantage(verl, batch, "remax", rewards=less_kl(batch, beta), reward_baselines=batch.greedy_reward)
    return found["advantage"], prepared(objective, batch).advantage


@same()
def verl_remax_advantage(verl):
    return _remax(verl, oracle_batch()[0], method("remax", {"kl": "none"}), beta=0.0)


def _parts(verl, batch, objective):
    completions = Completions.of(batch.action)
    answer = verl(
        "by_part",
        parts=batch.parts,
        weights=batch.part_weight[0].tolist(),
        mask=completions.taken(batch.action),
        length=completions.length,
        group=batch.group,
    )
    return completions.given_back(answer["advantage"].double()), prepared(objective, batch).advantage


@same(WHITENED)
def verl_gdpo_over_tokens(verl):
    return _parts(verl, oracle_batch()[0], method("gdpo", {"scale": "whiten_tokens"}))


def _trl(trl, batch, trainer="grpo", columns=None, weights=None, **settings):
    completions = Completions.of(batch.action)
    return trl(
        "advantage",
        trainer=trainer,
        settings=settings,
        rewards=batch.reward[:, None] if columns is None else columns,
        group_size=int((batch.group == batch.group[0]).sum()),
        old=completions.taken(batch.old_logp),
        ref=completions.taken(batch.ref_logp),
        mask=completions.taken(batch.action),
        weights=weights,
    )["advantage"]


@same()
def trl_rloo_advantage(trl):
    batch, _ = oracle_batch()
    objective = method("rloo", {"kl.beta": 0.05})
    return _trl(trl, batch, trainer="rloo", beta=0.05), each_completion(prepared(objective, batch))


@same()
def trl_unscaled_advantage(trl):
    """One completion cannot be scored: both leave it out of the mean."""
    batch, _ = oracle_batch()
    reward = batch.reward.clone()
    reward[3] = torch.nan
    batch = replace(batch, reward=reward)
    return _trl(trl, batch, scale_rewards="none"), each_completion(prepared(method("dr_grpo"), batch))


@same()
def trl_soft_overlong(trl):
    batch, _ = oracle_batch()
    objective = method("dapo", {"shape.tail": 0.25})
    theirs = trl(
        "overlong", lengths=batch.lengths.tolist(), budget=batch.max_new_tokens, tail=batch.max_new_tokens // 4
    )["reward"]
    return theirs.double(), objective.shape(batch) - batch.reward


@measured
def trl_std_floor(trl):
    batch, _ = steady_batch()
    return gap(_trl(trl, batch), each_completion(prepared(method("grpo"), batch)))


@measured
def trl_std_floor_small_rewards(trl):
    """The same rewards in thousandths."""
    batch, _ = steady_batch()
    batch = replace(batch, reward=batch.reward / 1000)
    return gap(_trl(trl, batch), each_completion(prepared(method("grpo"), batch)))


@measured
def trl_gdpo_advantage(trl):
    batch, _ = steady_batch()
    settings = {"multi_objective_aggregation": "normalize_then_sum"}
    theirs = _trl(trl, batch, columns=batch.parts, weights=batch.part_weight[0], **settings)
    return gap(theirs, each_completion(prepared(method("gdpo"), batch)))


@measured
def verl_gdpo_advantage(verl):
    return gap(*_parts(verl, steady_batch()[0], method("gdpo")))


@measured
def verl_reinforce_pp_baseline_advantage(verl):
    batch, _ = steady_batch()
    objective = method("reinforce_pp_baseline", {"kl": "none"})
    theirs = verl_advantage(verl, batch, "reinforce_plus_plus_baseline")["advantage"]
    return gap(theirs, prepared(objective, batch).advantage)


@measured
def verl_remax_kl(verl):
    return gap(*_remax(verl, steady_batch()[0], method("remax"), beta=0.05))


@measured
def verl_passk_silent_groups(verl):
    """The share of groups with right and wrong completions that teach nothing: two right ones are enough."""
    batch, _ = steady_batch(binary=True)
    advantage = verl_advantage(verl, batch, "grpo_passk")["advantage"]
    groups = [batch.group == number for number in batch.group.unique()]
    mixed = [rows for rows in groups if 0 < batch.reward[rows].mean() < 1]
    return sum(not advantage[rows].any() for rows in mixed) / len(mixed)


@measured
def verl_gpg_advantage(verl):
    """Beside R - mean."""
    batch, _ = steady_batch()
    return size(verl_advantage(verl, batch, "gpg")["advantage"], prepared(method("dr_grpo"), batch).advantage)


def _alone(verl, name):
    """A of a completion alone in its group, with a reward of 2."""
    batch, _ = steady_batch(num_groups=24, group_size=1)
    batch = replace(batch, reward=torch.full_like(batch.reward, 2.0))
    return float(verl_advantage(verl, batch, name)["advantage"].max())


@measured
def verl_singleton_grpo(verl):
    return _alone(verl, "grpo")


@measured
def verl_singleton_rloo(verl):
    return _alone(verl, "rloo")


@measured
def verl_singleton_rloo_vectorized(verl):
    return _alone(verl, "rloo_vectorized")


@measured
def verl_singleton_opo(verl):
    return _alone(verl, "opo")


@measured
def verl_noise_in_a_constant_group(verl):
    """The largest A of seven equal rewards of 0.7 in float32: their mean is not quite 0.7, their spread not quite 0."""
    batch, _ = steady_batch(num_groups=1, group_size=7)
    batch = replace(batch, reward=torch.full_like(batch.reward, 0.7, dtype=torch.float32))
    assert not prepared(method("grpo"), batch).advantage.any()
    return float(verl_advantage(verl, batch, "grpo", rewards=on_last_token(batch))["advantage"].abs().max())


@measured
def verl_unscorable_completion(verl):
    """How many of 8 completions have no advantage when one of them has no score."""
    batch, _ = steady_batch(num_groups=1)
    reward = batch.reward.clone()
    reward[2] = torch.nan
    advantage = verl_advantage(verl, replace(batch, reward=reward), "grpo")["advantage"]
    return float(advantage.isnan().any(-1).sum())
