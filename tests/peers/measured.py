"""Where a peer computes something else than whet's row of that name: by how much, on the oracle's random batches.

The names and the numbers are those of the tables in docs/differences.md. A function's parameters are the peers it
asks. `gap` is |theirs - ours| / |ours| of the gradient, `size` is |theirs| / |ours|.
"""

from dataclasses import replace

import torch
from compared import (
    BUDGET,
    PIECES,
    Replies,
    each_reply,
    example,
    gap,
    prepared,
    row,
    size,
    trl_gradient,
    verl_advantage,
    verl_gradient,
    whet_gradient,
)

MEASURED = {}


def measured(function):
    MEASURED[function.__name__] = function
    return function


def _step(objective, drift=0.4, seed=0):
    batch, logp = example(seed, drift=drift)
    batch = prepared(objective, batch)
    return batch, logp, whet_gradient(objective, batch, logp)


# --- what a name means by default ---


@measured
def trl_cispo_default(trl):
    """size. `epsilon_high` falls back to `epsilon`, and here it is the cap itself: no weight passes 0.2."""
    batch, logp, ours = _step(row("cispo"))
    return size(trl_gradient(trl, batch, logp, loss_type="cispo"), ours)


@measured
def verl_cispo_default(verl):
    """gap. The ratio is clamped to [0.8, 1.2]."""
    batch, logp, ours = _step(row("cispo"))
    return gap(verl_gradient(verl, batch, logp, loss={"loss_mode": "cispo"}), ours)


@measured
def trl_gspo_default(trl):
    """gap. Epsilon 0.2 instead of 3e-4 / 4e-4, and tokens are averaged instead of replies."""
    batch, logp, ours = _step(row("gspo"))
    return gap(trl_gradient(trl, batch, logp, importance_sampling_level="sequence"), ours)


@measured
def verl_gspo_default(verl):
    """gap. The same two."""
    batch, logp, ours = _step(row("gspo"))
    return gap(verl_gradient(verl, batch, logp, loss={"loss_mode": "gspo"}), ours)


@measured
def gspo_tokens_averaged(verl):
    """gap. The paper's epsilons, but tokens averaged."""
    batch, logp, ours = _step(row("gspo"))
    settings = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    return gap(verl_gradient(verl, batch, logp, loss={"loss_mode": "gspo"}, **settings), ours)


@measured
def trl_luspo_default(trl):
    """gap. `loss_type` alone leaves the ratio at token level and epsilon at 0.2."""
    batch, logp, ours = _step(row("luspo"))
    return gap(trl_gradient(trl, batch, logp, loss_type="luspo"), ours)


@measured
def verl_gmpo_default(verl):
    """gap. The width is 0.2 in log space; the paper's is 0.4."""
    batch, logp, ours = _step(row("gmpo"))
    return gap(verl_gradient(verl, batch, logp, loss={"loss_mode": "geo_mean"}), ours)


@measured
def verl_hidden_dual_clip(verl):
    """gap. Every clipped loss also drops tokens of ratio above 3 where A < 0, in batches that drifted far."""
    batch, logp, ours = _step(row("grpo", {"aggregate": "token_mean", "kl": "none"}), drift=1.0)
    return gap(verl_gradient(verl, batch, logp), ours)


@measured
def trl_grpo_default(trl):
    """gap. Named grpo, but `loss_type` is dapo: tokens averaged, no KL."""
    batch, logp, ours = _step(row("grpo"))
    return gap(trl_gradient(trl, batch, logp), ours)


@measured
def verl_grpo_default(verl):
    """gap. Tokens averaged, no KL, and the second clip."""
    batch, logp, ours = _step(row("grpo"))
    return gap(verl_gradient(verl, batch, logp), ours)


@measured
def trl_rloo_default(trl):
    """gap. The ratio of the whole reply, clipped to [0.8, 1.2], once the policy has moved a little."""
    batch, logp, ours = _step(row("rloo"), drift=0.1)
    return gap(trl_gradient(trl, batch, logp, trainer="rloo"), ours)


# --- advantages ---


def _trl_advantage_gap(trl, unit):
    batch, _ = example()
    batch = replace(batch, reward=batch.reward * unit)
    answer = trl("advantage", trainer="grpo", settings={}, rewards=batch.reward[:, None], group_size=6)
    return gap(answer["advantage"], each_reply(prepared(row("grpo"), batch)))


@measured
def trl_std_floor(trl):
    """gap of A. Rewards between 0 and 2."""
    return _trl_advantage_gap(trl, 1.0)


@measured
def trl_std_floor_small_rewards(trl):
    """gap of A. The same rewards in thousandths."""
    return _trl_advantage_gap(trl, 1e-3)


def _singleton(verl, name):
    batch, _ = example(num_groups=24, group_size=1)
    batch = replace(batch, reward=torch.full_like(batch.reward, 2.0))
    return float(verl_advantage(verl, batch, name)["advantage"].max())


@measured
def verl_singleton_grpo(verl):
    """A of a reply alone in its group, with a reward of 2."""
    return _singleton(verl, "grpo")


@measured
def verl_singleton_rloo(verl):
    """A of a reply alone in its group, with a reward of 2."""
    return _singleton(verl, "rloo")


@measured
def verl_singleton_rloo_vectorized(verl):
    """A of a reply alone in its group, with a reward of 2."""
    return _singleton(verl, "rloo_vectorized")


@measured
def verl_singleton_opo(verl):
    """A of a reply alone in its group, with a reward of 2."""
    return _singleton(verl, "opo")


@measured
def verl_noise_in_a_constant_group(verl):
    """The largest A of seven equal rewards of 0.7 in float32: their mean is not quite 0.7, and their spread not quite 0."""
    batch, _ = example(num_groups=1, group_size=7)
    batch = replace(batch, reward=torch.full_like(batch.reward, 0.7, dtype=torch.float32))
    assert not prepared(row("grpo"), batch).advantage.any()
    return float(verl_advantage(verl, batch, "grpo")["advantage"].abs().max())


@measured
def verl_unscorable_reply(verl):
    """Replies of a group of 6 whose A is NaN when one of them has no score; in TRL and whet none."""
    batch, _ = example(num_groups=1)
    reward = batch.reward.clone()
    reward[2] = torch.nan
    advantage = verl_advantage(verl, replace(batch, reward=reward), "grpo")["advantage"]
    return float(advantage.isnan().any(-1).sum())


@measured
def verl_gpg_advantage(verl):
    """size of A beside R - mean: the batch size over the number of rewards that are not 0."""
    batch, _ = example()
    theirs = verl_advantage(verl, batch, "gpg")["advantage"]
    return size(theirs, prepared(row("dr_grpo"), batch).advantage)


# --- the tie to the reference ---


@measured
def trl_kl_times_ratio(trl):
    """gap. TRL multiplies k3 with the ratio unless told not to (`use_bias_correction_kl`)."""
    batch, logp, ours = _step(row("grpo", {"kl.beta": 1.0}))
    return gap(trl_gradient(trl, batch, logp, loss_type="grpo", beta=1.0), ours)


@measured
def verl_k3_pull_when_far(verl):
    """The slope of k3 on a token 3 nats below its reference: verl holds values above 10, and held means no slope."""
    logp, ref = torch.tensor([[-4.0]]).double(), torch.tensor([[-1.0]]).double()
    return float(verl("kl", kind="low_var_kl", logp=logp, ref=ref)["gradient"].abs())


# --- who is counted, and how the step is cut ---


def _filtered(aggregate):
    """A quarter of the replies lose all their tokens, as an overlong filter does it."""
    objective = row("grpo", {"aggregate": aggregate, "kl": "none"})
    batch, logp = example()
    replies = Replies.of(batch.action)
    batch = prepared(objective, batch)
    action = batch.action.clone()
    action[::4] = False
    batch = replace(batch, action=action, advantage=torch.where(action, batch.advantage, 0.0))
    return batch, logp, replies, whet_gradient(objective, batch, logp)


@measured
def trl_empty_replies(trl):
    """size. Replies without a trained token stay in N."""
    batch, logp, replies, ours = _filtered("sequence_mean")
    return size(trl_gradient(trl, batch, logp, replies=replies, loss_type="grpo"), ours)


@measured
def verl_empty_replies(verl):
    """size. The engines pass the batch size as N."""
    batch, logp, replies, ours = _filtered("sequence_mean")
    settings = {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_c": 1e6}
    return size(verl_gradient(verl, batch, logp, replies=replies, **settings), ours)


@measured
def trl_bnpo_in_pieces(trl):
    """gap. Each pass divides by its own tokens."""
    batch, logp, ours = _step(row("grpo", {"aggregate": "token_mean", "kl": "none"}))
    return gap(trl_gradient(trl, batch, logp, pieces=PIECES, loss_type="bnpo"), ours)


@measured
def trl_dapo_two_steps(trl):
    """size. Rows generated together but trained in two optimizer steps share the mean of both token counts.

    The first step takes the half with the shorter replies.
    """
    objective = row("grpo", {"aggregate": "token_mean", "kl": "none"})
    batch, logp = example(num_groups=8)
    batch = prepared(objective, batch)
    rows = batch.lengths.argsort()[: len(logp) // 2]
    step, here = batch.select(rows), logp[rows]
    settings = {"loss_type": "dapo", "steps_per_generation": 2, "generated_tokens": int(batch.lengths.sum())}
    return size(trl_gradient(trl, step, here, **settings), whet_gradient(objective, step, here))


@measured
def verl_gmpo_in_pieces(verl):
    """size. The mean is taken in each pass and the passes are added."""
    batch, logp, ours = _step(row("gmpo"))
    settings = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    return size(verl_gradient(verl, batch, logp, pieces=PIECES, loss={"loss_mode": "geo_mean"}, **settings), ours)


NORMED = {"loss_agg_mode": "seq-mean-token-sum-norm", "clip_ratio_c": 1e6}


@measured
def verl_dr_grpo_default(verl):
    """size, with a budget of 64 tokens. Without `loss_scale_factor` the divisor is the longest reply, here of 16."""
    objective = row("dr_grpo")
    batch, logp, _ = _step(objective)
    return size(verl_gradient(verl, batch, logp, **NORMED), whet_gradient(objective, batch, logp, budget=64))


@measured
def verl_dr_grpo_in_pieces(verl):
    """gap to the same batch whole: each pass has a longest reply of its own."""
    batch, logp, _ = _step(row("dr_grpo"))
    whole = verl_gradient(verl, batch, logp, **NORMED)
    return gap(verl_gradient(verl, batch, logp, pieces=PIECES, **NORMED), whole)
