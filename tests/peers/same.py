"""Where whet and a peer compute the same thing: each function returns the peer's numbers and whet's.

The names are those of the tables in docs/differences.md. A function's parameters are the peers it asks.
"""

from dataclasses import replace

import torch
from compared import (
    BUDGET,
    PIECES,
    Replies,
    cut,
    each_reply,
    example,
    of_ones,
    prepared,
    row,
    trl_gradient,
    verl_advantage,
    verl_gradient,
    whet_gradient,
)

SAME = {}
EXACT = 1e-10
ONE_PLUS = 1e-7  # verl adds 1e-8 to a length, which is felt where a reply has few tokens
SINGLE = 1e-5  # float32 on the peer's side
SEEDS = range(5)


def same(tolerance=EXACT):
    def listed(function):
        SAME[function.__name__] = (function, tolerance)
        return function

    return listed


def _both(objective, ask, peer, drift=0.4, **settings):
    """Gradients of the peer and of whet on the same prepared batches, end to end."""
    theirs, ours = [], []
    for seed in SEEDS:
        batch, logp = example(seed, drift=drift)
        batch = prepared(objective, batch)
        theirs.append(ask(peer, batch, logp, **settings).flatten())
        ours.append(whet_gradient(objective, batch, logp).flatten())
    return torch.cat(theirs), torch.cat(ours)


@same()
def trl_grpo(trl):
    return _both(row("grpo"), trl_gradient, trl, loss_type="grpo", beta=0.04, use_bias_correction_kl=False)


@same()
def trl_bnpo(trl):
    objective = row("grpo", {"aggregate": "token_mean", "kl": "none"})
    return _both(objective, trl_gradient, trl, loss_type="bnpo")


@same()
def trl_dapo(trl):
    objective = row("grpo", {"aggregate": "token_mean", "kl": "none", "clip.high": 0.28})
    return _both(objective, trl_gradient, trl, loss_type="dapo", epsilon_high=0.28)


@same()
def trl_dr_grpo(trl):
    return _both(row("dr_grpo"), trl_gradient, trl, loss_type="dr_grpo")


@same()
def trl_delta(trl):
    objective = row("grpo", {"kl": "none", "clip": "dual_clip", "clip.ceiling": 2.0})
    return _both(objective, trl_gradient, trl, drift=1.0, loss_type="grpo", delta=2.0)


@same()
def trl_gspo(trl):
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    return _both(row("gspo"), trl_gradient, trl, **settings)


@same()
def trl_luspo(trl):
    settings = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3}
    return _both(row("luspo"), trl_gradient, trl, **settings)


@same()
def trl_cispo(trl):
    return _both(row("cispo"), trl_gradient, trl, drift=1.0, loss_type="cispo", epsilon_high=5.0)


@same(SINGLE)
def trl_sapo(trl):
    return _both(row("sapo"), trl_gradient, trl, loss_type="sapo")


@same()
def trl_gmpo(trl):
    return _both(row("gmpo"), trl_gradient, trl, trainer="gmpo")


@same()
def trl_rloo(trl):
    """TRL clips the ratio of the whole reply; whet says so with two pieces."""
    objective = row("rloo", {"ratio": "sequence_product", "clip": "ppo_clip"})
    return _both(objective, trl_gradient, trl, drift=0.1, trainer="rloo")


@same()
def trl_rloo_advantage(trl):
    batch, _ = example(2)
    replies, objective = Replies.of(batch.action), row("rloo", {"kl.beta": 0.05})
    answer = trl(
        "advantage",
        trainer="rloo",
        settings={},
        rewards=batch.reward[:, None],
        group_size=6,
        old=replies.taken(batch.old_logp),
        ref=replies.taken(batch.ref_logp),
        mask=replies.taken(batch.action),
    )
    return answer["advantage"], each_reply(prepared(objective, batch))


@same()
def trl_unscaled_advantage(trl):
    batch, _ = example(2)
    rewards = batch.reward.clone()
    rewards[3] = torch.nan
    batch = replace(batch, reward=rewards)
    settings = {"scale_rewards": "none"}
    answer = trl("advantage", trainer="grpo", settings=settings, rewards=rewards[:, None], group_size=6)
    return answer["advantage"], each_reply(prepared(row("dr_grpo"), batch))


NO_DUAL = {"clip_ratio_c": 1e6}  # verl clips twice unless told a bound that is never reached


@same()
def verl_vanilla(verl):
    objective = row("grpo", {"aggregate": "token_mean", "kl": "none"})
    return _both(objective, verl_gradient, verl, drift=1.0, **NO_DUAL)


@same()
def verl_dual_clip(verl):
    objective = row("grpo", {"aggregate": "token_mean", "kl": "none", "clip": "dual_clip", "clip.ceiling": 3.0})
    return _both(objective, verl_gradient, verl, drift=1.0, clip_ratio_c=3.0)


@same()
def verl_grpo(verl):
    settings = {"loss_agg_mode": "seq-mean-token-mean", "use_kl_loss": True, "kl_loss_coef": 0.04}
    return _both(row("grpo"), verl_gradient, verl, **settings, **NO_DUAL)


@same()
def verl_dr_grpo(verl):
    settings = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": BUDGET}
    return _both(row("dr_grpo"), verl_gradient, verl, **settings, **NO_DUAL)


@same()
def verl_gspo(verl):
    settings = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "loss_agg_mode": "seq-mean-token-mean"}
    return _both(row("gspo"), verl_gradient, verl, loss={"loss_mode": "gspo"}, **settings)


@same()
def verl_cispo(verl):
    """The bounds are written as half-widths: 1 - 1 = 0 takes the lower one away, 1 + 4 = 5 is the cap."""
    settings = {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}
    return _both(row("cispo"), verl_gradient, verl, drift=1.0, loss={"loss_mode": "cispo"}, **settings)


@same()
def verl_geo_mean(verl):
    settings = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    return _both(row("gmpo"), verl_gradient, verl, loss={"loss_mode": "geo_mean"}, **settings)


@same()
def verl_sapo(verl):
    return _both(row("sapo"), verl_gradient, verl, loss={"loss_mode": "sapo"})


@same()
def verl_gpg(verl):
    return _both(row("opo"), verl_gradient, verl, loss={"loss_mode": "gpg"})


def _advantages(name, objective, verl, **more):
    batches = [example(seed)[0] for seed in SEEDS]
    theirs = [verl_advantage(verl, batch, name, **more)["advantage"].flatten() for batch in batches]
    return torch.cat(theirs), torch.cat([prepared(objective, batch).advantage.flatten() for batch in batches])


@same()
def verl_grpo_advantage(verl):
    return _advantages("grpo", row("grpo"), verl)


@same(SINGLE)
def verl_grpo_vectorized_advantage(verl):
    return _advantages("grpo_vectorized", row("grpo"), verl)


@same()
def verl_unscaled_advantage(verl):
    return _advantages("grpo", row("dr_grpo"), verl, settings={"norm_adv_by_std_in_grpo": False})


PLAIN = {"baseline": "leave_one_out", "kl": "none"}


@same()
def verl_rloo_advantage(verl):
    return _advantages("rloo", row("rloo", PLAIN), verl)


@same()
def verl_rloo_vectorized_advantage(verl):
    return _advantages("rloo_vectorized", row("rloo", PLAIN), verl)


@same()
def verl_opo_advantage(verl):
    return _advantages("opo", row("opo"), verl)


def _shares(verl, mode, aggregate, pieces=1, divisor=None):
    batch, logp = example(4)
    ours = whet_gradient(row("reinforce", {"aggregate": aggregate}), of_ones(batch), logp)
    answer = verl(
        "aggregate",
        mode=mode,
        matrix=torch.where(batch.action, logp, 0.0),
        mask=batch.action,
        pieces=cut(len(logp), pieces),
        whole=True,
        divisor=divisor,
    )
    return -answer["gradient"], ours


@same()
def verl_token_mean(verl):
    return _shares(verl, "token-mean", "token_mean", pieces=PIECES)


@same()
def verl_sequence_sum(verl):
    return _shares(verl, "seq-mean-token-sum", "sequence_sum", pieces=PIECES)


@same(ONE_PLUS)
def verl_sequence_mean(verl):
    return _shares(verl, "seq-mean-token-mean", "sequence_mean", pieces=PIECES)


@same()
def verl_fixed_length(verl):
    return _shares(verl, "seq-mean-token-sum-norm", "fixed_length", pieces=PIECES, divisor=BUDGET)


def _pulls(verl, kind, piece):
    batch, logp = example(5)
    still = replace(batch, advantage=torch.zeros_like(logp))
    objective = row("grpo", {"aggregate": "token_mean", "kl": piece, "kl.beta": 1.0})
    ours = whet_gradient(objective, still, logp)
    theirs = verl("kl", kind=kind, logp=logp, ref=batch.ref_logp)["gradient"]
    return torch.where(batch.action, theirs, 0.0) / batch.action.sum(), ours


@same()
def verl_low_var_kl(verl):
    return _pulls(verl, "low_var_kl", "k3")


@same()
def verl_mse(verl):
    return _pulls(verl, "mse", "k2")


@same()
def verl_k3_plus(verl):
    """'+' keeps the value of k3 and takes the slope of k2."""
    return _pulls(verl, "k3+", "k2")


def _each_in_pieces(ask, peer, cases):
    """The peer's step cut into 8 pieces beside whet's whole one, for every case in turn."""
    found = [_both(objective, ask, peer, pieces=PIECES, **settings) for objective, settings in cases]
    return torch.cat([theirs for theirs, _ in found]), torch.cat([ours for _, ours in found])


@same(SINGLE)
def trl_in_pieces(trl):
    """Every loss but bnpo, with pieces of equal size and no empty reply."""
    sequence = {"importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3}
    cases = [
        (row("grpo", {"kl": "none"}), {"loss_type": "grpo"}),
        (row("dr_grpo"), {"loss_type": "dr_grpo"}),
        (row("grpo", {"kl": "none", "aggregate": "token_mean"}), {"loss_type": "dapo"}),
        (row("cispo"), {"loss_type": "cispo", "epsilon_high": 5.0}),
        (row("luspo"), {"loss_type": "luspo", **sequence}),
        (row("sapo"), {"loss_type": "sapo"}),
        (row("gmpo"), {"trainer": "gmpo"}),
        (row("rloo", {"ratio": "sequence_product", "clip": "ppo_clip"}), {"trainer": "rloo", "drift": 0.1}),
    ]
    return _each_in_pieces(trl_gradient, trl, cases)


@same()
def verl_in_pieces(verl):
    """Every loss but geo_mean and the two that choose tokens, with a divisor that is set."""
    narrow = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "loss_agg_mode": "seq-mean-token-mean"}
    cases = [
        (row("grpo", {"kl": "none", "aggregate": "token_mean"}), NO_DUAL),
        (row("dr_grpo"), {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": BUDGET, **NO_DUAL}),
        (row("gspo"), {"loss": {"loss_mode": "gspo"}, **narrow}),
        (row("cispo"), {"loss": {"loss_mode": "cispo"}, "clip_ratio_low": 1.0, "clip_ratio_high": 4.0}),
        (row("sapo"), {"loss": {"loss_mode": "sapo"}}),
        (row("opo"), {"loss": {"loss_mode": "gpg"}}),
    ]
    return _each_in_pieces(verl_gradient, verl, cases)
