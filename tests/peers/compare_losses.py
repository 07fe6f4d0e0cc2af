"""Policy losses and the tie to the reference: the peers are given whet's advantage, and only the loss is theirs."""

from dataclasses import replace

import torch

from tests.peers.compared import (
    SINGLE,
    both,
    gap,
    measured,
    method,
    oracle_batch,
    same,
    size,
    step,
    trl_gradient,
    verl_gradient,
    whet_gradient,
)

BUDGET = oracle_batch()[0].max_new_tokens

UNTIED = {"kl": "none"}
TOKENS = {"kl": "none", "aggregate": "token_mean"}
NO_DUAL = {"clip_ratio_c": 1e6}  # verl clips twice unless told a bound that is never reached
NEAR, FAR = 0.05, 0.5  # spreads of the log-ratios: after one small update, and of a stale batch
WHOLE = {"ratio": "sequence_product", "clip": "ppo_clip"}


@same()
def trl_grpo(trl):
    return both(method("grpo"), trl_gradient, trl, loss_type="grpo", beta=0.04, use_bias_correction_kl=False)


@same()
def trl_bnpo(trl):
    return both(method("grpo", TOKENS), trl_gradient, trl, loss_type="bnpo")


@same()
def trl_dapo(trl):
    return both(method("dapo"), trl_gradient, trl, loss_type="dapo", epsilon_high=0.28)


@same()
def trl_dr_grpo(trl):
    return both(method("dr_grpo"), trl_gradient, trl, loss_type="dr_grpo")


@same()
def trl_delta(trl):
    objective = method("grpo", {**UNTIED, "clip": "dual_clip", "clip.ceiling": 2.0})
    return both(objective, trl_gradient, trl, drift=1.0, loss_type="grpo", delta=2.0)


@same()
def trl_gspo(trl):
    settings = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
    return both(method("gspo"), trl_gradient, trl, **settings)


@same()
def trl_luspo(trl):
    settings = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3, "epsilon_high": 2.5e-3}
    return both(method("luspo"), trl_gradient, trl, **settings)


@same()
def trl_cispo(trl):
    return both(method("cispo"), trl_gradient, trl, drift=1.0, loss_type="cispo", epsilon_high=5.0)


@same(SINGLE)
def trl_sapo(trl):
    return both(method("sapo"), trl_gradient, trl, loss_type="sapo")


@same()
def trl_vespo(trl):
    return both(method("vespo"), trl_gradient, trl, loss_type="vespo")


@same()
def trl_gmpo(trl):
    return both(method("gmpo"), trl_gradient, trl, trainer="gmpo")


@same()
def trl_rloo(trl):
    """TRL clips the ratio of the whole completion; whet says so with two pieces."""
    return both(method("rloo", WHOLE), trl_gradient, trl, drift=0.1, trainer="rloo")


@same()
def trl_kl_times_ratio(trl):
    """TRL multiplies k3 with the ratio unless told not to: whet's k3_corrected."""
    objective = method("grpo", {"kl": "k3_corrected", "kl.beta": 1.0})
    return both(objective, trl_gradient, trl, loss_type="grpo", beta=1.0)


@same()
def trl_stale_mask(trl):
    objective = method("grpo", {**UNTIED, "mismatch": "stale_mask", "mismatch.limit": 0.05})
    return both(objective, trl_gradient, trl, loss_type="grpo", off_policy_mask_threshold=0.05)


@same()
def verl_vanilla(verl):
    return both(method("grpo", TOKENS), verl_gradient, verl, drift=1.0, **NO_DUAL)


@same()
def verl_dual_clip(verl):
    objective = method("grpo", {**TOKENS, "clip": "dual_clip", "clip.ceiling": 3.0})
    return both(objective, verl_gradient, verl, drift=1.0, clip_ratio_c=3.0)


@same()
def verl_grpo(verl):
    settings = {"loss_agg_mode": "seq-mean-token-mean", "use_kl_loss": True, "kl_loss_coef": 0.04}
    return both(method("grpo"), verl_gradient, verl, **settings, **NO_DUAL)


@same()
def verl_dr_grpo(verl):
    settings = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": BUDGET}
    return both(method("dr_grpo"), verl_gradient, verl, **settings, **NO_DUAL)


@same()
def verl_gspo(verl):
    settings = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "loss_agg_mode": "seq-mean-token-mean"}
    return both(method("gspo"), verl_gradient, verl, loss_mode="gspo", **settings)


@same()
def verl_cispo(verl):
    """The bounds are written as half-widths: 1 - 1 = 0 takes the lower one away, 1 + 4 = 5 is the cap."""
    settings = {"loss_mode": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 4.0}
    return both(method("cispo"), verl_gradient, verl, drift=1.0, **settings)


@same()
def verl_geo_mean(verl):
    return both(method("gmpo"), verl_gradient, verl, loss_mode="geo_mean", clip_ratio_low=0.4, clip_ratio_high=0.4)


@same()
def verl_sapo(verl):
    return both(method("sapo"), verl_gradient, verl, loss_mode="sapo")


@same()
def verl_gpg(verl):
    return both(method("opo"), verl_gradient, verl, loss_mode="gpg")


FIXED = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": BUDGET, "clip_ratio_c": 1e4}


@same()
def verl_dppo_tv(verl):
    bounds = {"clip_ratio_low": 0.15, "clip_ratio_high": 0.15}
    return both(method("dppo_tv"), verl_gradient, verl, loss_mode="dppo_tv", **bounds, **FIXED)


@same()
def verl_dppo_kl(verl):
    bounds = {"clip_ratio_low": 0.05, "clip_ratio_high": 0.05}
    return both(method("dppo_kl"), verl_gradient, verl, loss_mode="dppo_kl", **bounds, **FIXED)


@same()
def verl_clip_cov(verl):
    """On the first update, and with all candidates taken: the draw itself is each side's own."""
    objective = method("clip_cov", {"select.share": 1.0, "select.low": 0.1})
    choice = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1}
    return both(objective, verl_gradient, verl, drift=0.0, loss_mode="clip_cov", choice=choice)


@same()
def verl_kl_cov(verl):
    """With all tokens tied: which are is each side's own, once the policy has moved."""
    choice = {"kl_cov_ratio": 1.0, "ppo_kl_coef": 1.0}
    return both(method("kl_cov", {"select.share": 1.0}), verl_gradient, verl, loss_mode="kl_cov", choice=choice)


def _pulls(verl, kind, piece):
    batch, logp = oracle_batch()
    still = replace(batch, advantage=torch.zeros_like(logp))
    ours = whet_gradient(method("grpo", {"aggregate": "token_mean", "kl": piece, "kl.beta": 1.0}), still, logp)
    theirs = verl("kl", kind=kind, logp=logp, ref=batch.ref_logp)["gradient"]
    return torch.where(batch.action, theirs, 0.0) / batch.action.sum(), ours


@same()
def verl_low_var_kl(verl):
    return _pulls(verl, "low_var_kl", "k3")


@same()
def verl_mse(verl):
    return _pulls(verl, "mse", "k2")


@same()
def verl_abs(verl):
    return _pulls(verl, "abs", "abs")


@same()
def verl_k3_plus(verl):
    """'+' keeps the value of k3 and takes the gradient of k2."""
    return _pulls(verl, "k3+", "k2")


@measured
def trl_grpo_default(trl):
    batch, logp, ours = step(method("grpo"))
    return gap(trl_gradient(trl, batch, logp), ours)


@measured
def verl_grpo_default(verl):
    batch, logp, ours = step(method("grpo"))
    return gap(verl_gradient(verl, batch, logp), ours)


@measured
def verl_hidden_dual_clip(verl):
    batch, logp, ours = step(method("grpo", TOKENS), drift=FAR)
    return gap(verl_gradient(verl, batch, logp), ours)


@measured
def trl_cispo_default(trl):
    batch, logp, ours = step(method("cispo"))
    return size(trl_gradient(trl, batch, logp, loss_type="cispo"), ours)


@measured
def verl_cispo_default(verl):
    batch, logp, ours = step(method("cispo"))
    return gap(verl_gradient(verl, batch, logp, loss_mode="cispo"), ours)


@measured
def trl_gspo_default(trl):
    batch, logp, ours = step(method("gspo"))
    return gap(trl_gradient(trl, batch, logp, importance_sampling_level="sequence"), ours)


@measured
def verl_gspo_default(verl):
    batch, logp, ours = step(method("gspo"))
    return gap(verl_gradient(verl, batch, logp, loss_mode="gspo"), ours)


@measured
def verl_gspo_tokens_averaged(verl):
    """The paper's epsilons, but verl's default aggregate."""
    batch, logp, ours = step(method("gspo"))
    settings = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    return gap(verl_gradient(verl, batch, logp, loss_mode="gspo", **settings), ours)


@measured
def trl_luspo_default(trl):
    batch, logp, ours = step(method("luspo"))
    return gap(trl_gradient(trl, batch, logp, loss_type="luspo"), ours)


@measured
def verl_geo_mean_default(verl):
    batch, logp, ours = step(method("gmpo"))
    return gap(verl_gradient(verl, batch, logp, loss_mode="geo_mean"), ours)


@measured
def verl_dppo_tv_default(verl):
    """Beside whet's method with tokens averaged, so that only threshold and cap differ."""
    batch, logp, ours = step(method("dppo_tv", {"aggregate": "token_mean"}), drift=FAR)
    return gap(verl_gradient(verl, batch, logp, loss_mode="dppo_tv"), ours)


@measured
def verl_clip_cov_default(verl):
    batch, logp, ours = step(method("clip_cov"))
    return gap(verl_gradient(verl, batch, logp, loss_mode="clip_cov"), ours)


@measured
def verl_kl_cov_choice(verl):
    """The same share and coefficient; verl ranks by the log-probabilities of now, whet by those of the sampler."""
    batch, logp, ours = step(method("kl_cov", {"select.share": 0.1}))
    choice = {"kl_cov_ratio": 0.1, "ppo_kl_coef": 1.0}
    return gap(verl_gradient(verl, batch, logp, loss_mode="kl_cov", choice=choice), ours)


@measured
def trl_rloo_default(trl):
    batch, logp, ours = step(method("rloo"), drift=NEAR)
    return gap(trl_gradient(trl, batch, logp, trainer="rloo"), ours)


@measured
def trl_kl_default(trl):
    batch, logp, ours = step(method("grpo", {"kl.beta": 1.0}))
    return gap(trl_gradient(trl, batch, logp, loss_type="grpo", beta=1.0), ours)


@measured
def verl_k3_pull_when_far(verl):
    """The gradient of k3 on a token 3 nats below its reference; whet's is e^3 - 1."""
    logp, ref = torch.tensor([[-4.0]]).double(), torch.tensor([[-1.0]]).double()
    return float(verl("kl", kind="low_var_kl", logp=logp, ref=ref)["gradient"].abs())


@measured
def verl_k1_gradient(verl):
    """The gradient of `kl` in the loss, whatever the token: it pushes all samples down alike."""
    batch, logp = oracle_batch()
    gradient = verl("kl", kind="kl", logp=logp, ref=batch.ref_logp)["gradient"]
    assert gradient.std() == 0
    return float(gradient.mean())
