"""Group methods whose clip rule, or choice of tokens, is their idea."""

from __future__ import annotations

from whet.objective.advantage import GroupMean, RevisitedGroup
from whet.objective.aggregate import FixedLength, SequenceMean, TokenMean
from whet.objective.clip import (
    BalancedBand,
    DivergenceMask,
    FutureDrift,
    GammaGate,
    InverseRatio,
    KeptEdges,
    PPOClip,
    ProbabilityBand,
    Unclipped,
    VariationMask,
)
from whet.objective.kl import K3, AbsoluteOld, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import SamplerProduct, SamplerTokenRatio, TokenRatio
from whet.objective.scale import GroupStd, NoScale
from whet.objective.select import ClipCovariance, TieCovariance

DPPO_TV = Preset(
    Objective("dppo_tv", GroupMean(), NoScale(), SamplerTokenRatio(), VariationMask(0.15, 0.15), FixedLength(), NoKL()),
    title="DPPO (total variation)",
    paper="Qi et al. 2026, DPPO, arXiv 2602.04879",
    formula="J = 1/(N L) SUM mask r A,  mask 0 if the probability moved by more than 0.15 with A",
    fixes="a ratio clip holds rare tokens too tightly and frequent ones too loosely",
    breaks="needs exact probabilities of the sampler",
    deviations=("the ratio is capped at 10000 as in the authors' script",),
)

DPPO_KL = Preset(
    Objective("dppo_kl", GroupMean(), NoScale(), SamplerTokenRatio(), DivergenceMask(0.05), FixedLength(), NoKL()),
    title="DPPO (KL)",
    paper="Qi et al. 2026, DPPO, arXiv 2602.04879",
    formula="J = 1/(N L) SUM mask r A,  mask 0 if the binary KL(mu, pi) > 0.05 and the token moved with A",
    fixes="a ratio clip holds rare tokens too tightly and frequent ones too loosely",
    breaks="needs exact probabilities of the sampler",
    deviations=("the ratio is capped at 10000 as in the authors' script",),
)

VESPO = Preset(
    Objective("vespo", GroupMean(), GroupStd(), SamplerProduct(), GammaGate(), TokenMean(), NoKL()),
    title="VESPO",
    paper="VESPO 2026, arXiv 2602.10693",
    formula="J = 1/M SUM sg[w^k exp(lam (1 - w))] A log pi,  w = pi(completion) / mu(completion)",
    fixes="off-policy completions fade smoothly instead of being cut",
    breaks="a product ratio drifts with the length: long completions tend to vanish",
    deviations=("the aggregate is TRL's; the paper was not read on this point",),
)

CLIP_COV = Preset(
    Objective(
        "clip_cov",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        PPOClip(1.0, 1.0),
        TokenMean(),
        NoKL(),
        select=ClipCovariance(),
    ),
    title="Clip-Cov",
    paper="Cui et al. 2025, The Entropy Mechanism, arXiv 2505.22617",
    formula="a random 2e-4 of the tokens with 1 < cov(A, log pi) < 5 get no gradient",
    fixes="entropy collapse: the few tokens that cost most of it are left out",
    breaks="random; the bounds belong to the scale of A",
    deviations=(
        "means, count and draw belong to the whole batch and use the log-probabilities it was written with",
        "the authors' dual clip of 10 is left out",
    ),
)

KL_COV = Preset(
    Objective(
        "kl_cov",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        Unclipped(),
        TokenMean(),
        AbsoluteOld(1.0),
        select=TieCovariance(2e-3),
    ),
    title="KL-Cov",
    paper="Cui et al. 2025, The Entropy Mechanism, arXiv 2505.22617",
    formula="J = r A - |log r| on the 0.2 % of tokens with the largest cov(A, log pi)",
    fixes="entropy collapse: the few tokens that cost most of it are held back",
    breaks="with one update per batch the term is exactly 0",
    deviations=("means and share belong to the whole batch and use the log-probabilities it was written with",),
    run={"batch": {"updates_per_step": 4}},
)

CE_GPPO = Preset(
    Objective("ce_gppo", GroupMean(), GroupStd(), TokenRatio(), KeptEdges(0.2, 0.2, 0.75, 1.0), TokenMean(), NoKL()),
    title="CE-GPPO",
    paper="Su et al. 2025, CE-GPPO, arXiv 2509.20712",
    formula="J = 1/M SUM sg[w] A log pi,  w = r in the band, b1 (1 - e) below if A < 0, b2 (1 + e) above if A > 0",
    fixes="entropy: the clip drops just those rare tokens that hold it up or let it fall",
    breaks="nothing stops a token that left the band: drift is bounded per update only",
    deviations=(
        "band 0.2, b1 0.75 and b2 1 are those of the authors' script for 7B (b1 0.5 for 1.5B); its dual clip of 10 and "
        "its loss of weight 0.1 on the log-probability of right completions are left out",
        "the authors leave out groups that agree: objective.keep=mixed_outcome",
    ),
)

DCPO = Preset(
    Objective("dcpo", RevisitedGroup(), NoScale(), TokenRatio(), ProbabilityBand(), SequenceMean(), NoKL()),
    title="DCPO",
    paper="Yang et al. 2025, DCPO, arXiv 2509.02333",
    formula="1/2 + 1/2 sqrt(max(1 - 4 e_l/q, 0)) <= r <= 1/2 + 1/2 sqrt(1 + 4 e_h/q),  A smoothed over visits",
    fixes="rare tokens cannot move within a fixed band; groups that agree teach nothing",
    breaks="what a prompt earned long ago is remembered as if the policy had not changed",
    deviations=(
        "0.2, 0.28 and 10 are those of a published run script; the code's own defaults are 0.1 and 0.2",
        "the loss is averaged over completions; the paper sums them, which is N times as much",
    ),
)

ASPO = Preset(
    Objective("aspo", GroupMean(), GroupStd(), TokenRatio(), InverseRatio(0.2, 0.2, 3.0), TokenMean(), K3(0.001)),
    title="ASPO",
    paper="Wang et al. 2025, ASPO, arXiv 2510.06062",
    formula="J = 1/M SUM [ sg[min(1/r if A > 0 else r, 3)] A log pi, 0 beyond the band, - 0.001 k3(log(pi/ref)) ]",
    fixes="for good tokens the ratio weighs what is likely already most: the weight is turned round",
    breaks="no unbiased estimate of anything: it is a heuristic weight",
    deviations=(
        "the KL of 0.001 is that of the authors' scripts; the paper's objective has none (objective.kl=none)",
        "for the fifth of the tokens with the highest entropy the scripts have a band of 0.4 and no KL: left out",
    ),
)

FIPO = Preset(
    Objective("fipo", GroupMean(), GroupStd(), TokenRatio(), FutureDrift(), TokenMean(), NoKL()),
    title="FIPO",
    paper="FIPO 2026, arXiv 2603.19835",
    formula="J = 1/M SUM f_t dual_clip(r, A),  f_t = clip(exp(SUM_(s>=t) 2^(-(s-t)/32) log r_s), 1, 1.2)",
    fixes="one credit for all tokens, without a critic: those that led to what the policy now prefers count more",
    breaks="nothing with one update per batch; the policy's own drift is the judge",
    deviations=(
        "32, 0.2 and 10 are those of the authors' script; the band 0.2 / 0.28 is DAPO's, whose refill and length "
        "penalty are left out",
        "the authors drop a completion with two tokens beyond the dual clip, which they say hardly happens: left out",
    ),
    run={"batch": {"updates_per_step": 4}},
)

BAPO = Preset(
    Objective("bapo", GroupMean(), GroupStd(), TokenRatio(), BalancedBand(), TokenMean(), NoKL()),
    title="BAPO",
    paper="Xi et al. 2025, BAPO, arXiv 2510.18927",
    formula="c_low, c_high raised step by step until SUM_(A>0) |A| clip(r) >= SUM_(A<0) |A| clip(r), then PPO's clip",
    fixes="bad tokens outweigh good ones in stale batches, and a fixed band cuts the good ones",
    breaks="the band of an update depends on all its tokens: one more pass each",
    deviations=(
        "0.6 to 0.9, 1.2 to 3 and a target of 1 (half of the whole) are those of the paper; steps of 0.05 are the "
        "default of the authors' code, whose example script has 0.8 to 0.95, 1.2 to 2 and a target of 0.5",
        "the authors search a band per micro-batch, here it belongs to the whole update; their dual clip is left out",
    ),
    run={"batch": {"updates_per_step": 4}},
)
