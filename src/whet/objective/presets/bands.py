"""Methods that bend the clip's band or keep something beyond it, and two that change who counts."""

from __future__ import annotations

import math

from whet.objective.advantage import GroupLabels, GroupMean, RevisitedGroup
from whet.objective.aggregate import InverseLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.bands import FutureDrift, InverseRatio, KeptEdges, ProbabilityBand
from whet.objective.clip import PPOClip, Unclipped
from whet.objective.kl import K1Immediate, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import SamplerTokenRatio, SequenceRatio, TokenRatio
from whet.objective.scale import GroupStd, NoScale
from whet.objective.tilt import EntropicGroup
from whet.objective.whole_step import BalancedBand, GroupSoftmax

CE_GPPO = Preset(
    Objective("ce_gppo", GroupMean(), GroupStd(), TokenRatio(), KeptEdges(0.2, 0.28, 0.75, 1.0), TokenMean(), NoKL()),
    title="CE-GPPO",
    paper="Su et al. 2025, CE-GPPO, arXiv 2509.20712",
    formula="J = 1/M SUM sg[w] A log pi,  w = r in the band, b1 (1 - e) below if A < 0, b2 (1 + e) above if A > 0",
    fixes="entropy: the clip drops just those rare tokens that hold it up or let it fall",
    breaks="nothing stops a token that left the band: drift is bounded per update only",
    deviations=(
        "b1 0.75 and b2 1 are those of the authors' code; the band 0.2 / 0.28 is DAPO's, on which it is built",
        "the dual clip of 3 in the authors' code is left out",
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
    Objective("aspo", GroupMean(), GroupStd(), TokenRatio(), InverseRatio(0.2, 0.2, 3.0), TokenMean(), NoKL()),
    title="ASPO",
    paper="Wang et al. 2025, ASPO, arXiv 2510.06062",
    formula="J = 1/M SUM sg[min(1/r if A > 0 else r, 3)] A log pi,  0 beyond the band",
    fixes="for good tokens the ratio weighs what is likely already most: the weight is turned round",
    breaks="no unbiased estimate of anything: it is a heuristic weight",
    deviations=("the authors' code has other band widths for tokens of high entropy: left out",),
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

DELTA_L = Preset(
    Objective("delta_l", GroupMean(), GroupStd(), TokenRatio(), PPOClip(0.2, 0.2), InverseLength(1.0), NoKL()),
    title="Delta-L normalisation",
    paper="He et al. 2025, Delta-L Normalization, arXiv 2509.07558",
    formula="J = 1/L SUM_i n_i^-a / SUM_j n_j^-a SUM_t min(r A, clip(r) A),  a = 1 (0.75 for mathematics)",
    fixes="long completions make the gradient noisy, and averaging over their length biases it",
    breaks="the weights of a step depend on each other; with a = 1 long completions count least",
    deviations=(
        "SUM_j runs over the collected batch as in the authors' code, L is the token budget, not the padded width",
        "clip 0.2 and the group's standard deviation are whet's choice: the paper combines it with several methods",
    ),
)

ENTROPIC = Preset(
    Objective(
        "entropic",
        EntropicGroup(math.log(2)),
        NoScale(),
        SamplerTokenRatio(),
        Unclipped(),
        SequenceSum(),
        K1Immediate(0.1),
    ),
    title="Entropic advantage (TTT-Discover)",
    paper="Yuksekgonul et al. 2026, Learning to Discover at Test Time, arXiv 2601.16175",
    formula="A_i = e^(beta R_i) / mean_(j not i) e^(beta R_j) - 1 - lam log(pi/ref),  KL(softmax(beta R), U) = ln 2",
    fixes="a search for the one best completion: the mean reward is not what counts",
    breaks="with rewards of 0 or 1 it is a group baseline of another scale; the best of a group may be luck",
    deviations=(
        "a group of two has no finite beta: it gets no advantage; the authors' code divides by 1e-12 there",
        "lam 0.1 is within what the authors use for their tasks; their code takes the mean over the batch off it",
        "the states to start from (reuse and exploration) are the paper's other half and not part of a method",
    ),
)

BAPO = Preset(
    Objective("bapo", GroupMean(), GroupStd(), TokenRatio(), BalancedBand(), TokenMean(), NoKL()),
    title="BAPO",
    paper="Xi et al. 2025, BAPO, arXiv 2510.18927",
    formula="c_low, c_high raised step by step until SUM_(A>0) |A| clip(r) >= SUM_(A<0) |A| clip(r), then PPO's clip",
    fixes="bad tokens outweigh good ones in stale batches, and a fixed band cuts the good ones",
    breaks="the band of an update depends on all its tokens: one more pass each",
    deviations=(
        "0.6 to 0.8, 1.2 to 2 and steps of 0.05 are the examples of the authors' code, target 1 its default",
        "the authors search a band per micro-batch, here it belongs to the whole update; their dual clip is left out",
    ),
    run={"batch": {"updates_per_step": 4}},
)

REWARDS_AS_LABELS = Preset(
    Objective(
        "rewards_as_labels", GroupLabels(), NoScale(), SequenceRatio(), GroupSoftmax(0.5), SequenceMean(), NoKL()
    ),
    title="Rewards as labels (REAL)",
    paper="Rewards as Labels 2026, REAL, arXiv 2602.05630",
    formula="L = 1/P SUM_g [ log(1 + SUM_good e^(-s/tau)) + log(1 + SUM_bad e^(s/tau)) ],  s = mean_t log r",
    fixes="a group method pushes what is learned as hard as what lags: here a softmax gives the push to what lags",
    breaks="how good a completion is does not count; one more pass over the whole batch per update",
    deviations=(
        "the gradient is tau times the paper's, so that the weight is 1 at ratio 1; a group counts by its completions",
        "tau 0.5 is ms-swift's default; a group's completions are surveyed together though updates may part them",
    ),
    run={"batch": {"updates_per_step": 4}},
)
