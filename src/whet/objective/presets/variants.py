"""Methods whose idea is the clip rule or the choice of tokens, or that tame the ratio, the shares or the credit."""

from __future__ import annotations

import math

from whet.objective.advantage import (
    GroupLabels,
    GroupMean,
    LengthWeightedMean,
    PartwiseGroup,
    PromptTracker,
    RevisitedGroup,
)
from whet.objective.aggregate import FixedLength, InverseLength, LearnedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import (
    BalancedBand,
    Cap,
    DivergenceMask,
    FutureDrift,
    GammaGate,
    GeometricMean,
    GroupSoftmax,
    InverseRatio,
    KeptEdges,
    OnPolicy,
    PPOClip,
    ProbabilityBand,
    SoftGate,
    Unclipped,
    VariationMask,
)
from whet.objective.kl import K3, AbsoluteOld, K1Immediate, NoKL
from whet.objective.pass_at_k import EntropicGroup, PassAtK
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import SamplerProduct, SamplerTokenRatio, SegmentRatio, SequenceRatio, TokenRatio
from whet.objective.scale import GroupMeanScale, GroupStd, NoScale, WhitenCompletions
from whet.objective.select import ClipCovariance, TieCovariance
from whet.objective.terms import TopK

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

GSPO = Preset(
    Objective("gspo", GroupMean(), GroupStd(), SequenceRatio(), PPOClip(3e-4, 4e-4), SequenceMean(), NoKL()),
    title="GSPO",
    paper="Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071",
    formula="J = 1/G SUM_i min(s A, clip(s, 1-l, 1+h) A),  s = (pi(completion) / pi_old(completion))^(1/n)",
    fixes="the noise of token ratios, and the instability it causes in mixtures of experts",
    breaks="a completion is clipped whole or not at all; a clip share of most completions is normal",
    deviations=("log s is capped at 10 against overflow",),
)

GSPO_TOKEN = Preset(
    Objective("gspo_token", GroupMean(), GroupStd(), SequenceRatio(), PPOClip(3e-4, 4e-4), SequenceMean(), NoKL()),
    title="GSPO-token",
    paper="Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071",
    formula="J = 1/G SUM_i 1/n SUM_t min(s_t A_t, clip(s_t) A_t),  s_t = sg[s] pi/sg[pi]",
    fixes="GSPO where tokens have advantages of their own: the clip looks at the sign of A_t",
    breaks="with one advantage a completion its gradient is GSPO's, exactly",
    deviations=("the method differs from GSPO only with a baseline that credits tokens, such as step_sum",),
)

LUSPO = Preset(
    Objective("luspo", GroupMean(), GroupStd(), SequenceRatio(), PPOClip(2e-3, 2.5e-3), SequenceSum(), NoKL()),
    title="LUSPO",
    paper="LUSPO 2026, arXiv 2602.05261",
    formula="J = 1/G SUM_i n_i min(s A, clip(s, 1-l, 1+h) A),  s as in GSPO",
    fixes="GSPO's dilution of long completions: each token counts the same again",
    breaks="long completions dominate the gradient",
    deviations=("l and h were read in a framework's documentation that quotes the paper, not in the paper",),
)

CISPO = Preset(
    Objective("cispo", GroupMean(), GroupStd(), TokenRatio(), Cap(5.0), TokenMean(), NoKL()),
    title="CISPO",
    paper="MiniMax 2025, MiniMax-M1, arXiv 2506.13585",
    formula="J = 1/M SUM_i SUM_t sg[min(r, cap)] A log pi",
    fixes="rare tokens with a large ratio keep learning instead of being clipped away",
    breaks="no trust region at all: drift is not bounded",
    deviations=(
        "the paper does not disclose its cap; 5 is ScaleRL's (arXiv 2510.13786)",
        "the paper also filters groups and punishes overlong completions; this preset is its loss alone",
    ),
)

GMPO = Preset(
    Objective("gmpo", GroupMean(), GroupStd(), TokenRatio(), GeometricMean(0.4), SequenceMean(), NoKL()),
    title="GMPO",
    paper="Zhao et al. 2025, Geometric-Mean Policy Optimization, arXiv 2507.20673",
    formula="J = 1/G SUM_i A exp(1/n SUM_t clip(log r, -w, w)),  clipped on the side A pushes to",
    fixes="outlier tokens: one large ratio no longer dominates a completion",
    breaks="one scale for a whole completion",
)

SAPO = Preset(
    Objective("sapo", GroupMean(), GroupStd(), TokenRatio(), SoftGate(1.0, 1.05), SequenceMean(), NoKL()),
    title="SAPO",
    paper="Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv 2511.20347",
    formula="J = 1/G SUM_i 1/n SUM_t (4/tau) sigmoid(tau (r - 1)) A,  tau by the sign of A",
    fixes="the dead zones of a hard clip",
    breaks="the weight never reaches zero: drift is slowed, not stopped",
)

GRPO_SEGMENT = Preset(
    Objective("grpo_segment", GroupMean(), GroupStd(), SegmentRatio(), PPOClip(0.2, 0.2), SequenceMean(), NoKL()),
    title="GRPO with sentence ratios (after SSPO)",
    paper="Yang et al. 2025, SSPO, arXiv 2511.04256",
    formula="J = 1/G SUM_i 1/n SUM_t min(s_j A, clip(s_j) A),  s_j the geometric mean ratio of t's sentence",
    fixes="the noise of token ratios without dropping whole completions",
    breaks="depends on where a sentence ends",
    deviations=(
        "not the paper's method: its split rule and entropy-dependent bounds could not be read, only the level is its",
        "sentences end at punctuation; clip 0.2 and the aggregate are whet's choice",
    ),
)

LAMBDA_GRPO = Preset(
    Objective("lambda_grpo", GroupMean(), GroupStd(), TokenRatio(), PPOClip(0.2, 0.2), LearnedLength(), NoKL()),
    title="lambda-GRPO (2510.06870)",
    paper="Wang et al. 2025, lambda-GRPO, arXiv 2510.06870",
    formula="J = 1/M SUM_i f_i SUM_t min(r A, clip(r) A),  f = G softmax_g(h^lambda),  h = 1 + z(n) / 9",
    fixes="the choice between length rules: lambda is learned, 0 is the token mean",
    breaks="lambda learns to weigh whatever length had a positive advantage",
    deviations=(
        "1/9, lambda 0 at the start and its rate 0.1 were read in a third-party implementation",
        "two other papers use this name (2509.21154, 2510.00194): they are other methods",
    ),
)

OPO = Preset(
    Objective("opo", LengthWeightedMean(), NoScale(), TokenRatio(), OnPolicy(), TokenMean(), NoKL()),
    title="OPO",
    paper="Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585",
    formula="J = 1/M SUM_i (R_i - b) SUM_t log pi,  b = SUM_j n_j R_j / SUM_j n_j",
    fixes="variance: the optimal baseline if the squared gradient norm grows with the length",
    breaks="the advantages of a group do not sum to 0; exactly one update per batch",
    deviations=("token_mean is verl's aggregate for it; the paper was not read on this point",),
)

MAXRL = Preset(
    Objective("maxrl", GroupMean(), GroupMeanScale(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), NoKL()),
    title="MaxRL",
    paper="MaxRL 2026, arXiv 2602.02710",
    formula="A = (R - mean) / mean,  R in {0, 1};  a group without success has A = 0",
    fixes="the emphasis on what is already easy: a prompt counts with 1 / its success rate",
    breaks="rewards other than 0 and 1 are undefined; one success in 64 has A = 63",
    deviations=(
        "clip and aggregate are whet's choice",
        "with 0 for groups without success the estimator targets the order G - 1 of the paper's series, not G",
    ),
)

PASS_AT_K = Preset(
    Objective("pass_at_k", PassAtK(4), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), NoKL()),
    title="pass@k",
    paper="Chen et al. 2025, Pass@k Training, arXiv 2508.10751",
    formula="rho = 1 - C(n-c,k)/C(n,k);  A = (rho given the completion - rho) / sqrt(rho (1 - rho))",
    fixes="the loss of exploration when only the mean success counts",
    breaks="prompts that are solved by half teach little; entropy rises",
    deviations=(
        "clip and aggregate are whet's choice; k = 4",
        "other estimators of the same aim: objective.baseline=pass_at_k_marginal, best_minus_second",
    ),
)

SIMKO = Preset(
    Objective("simko", GroupMean(), GroupStd(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), NoKL(), smooth=TopK()),
    title="SimKO",
    paper="Peng et al. 2025, SimKO, arXiv 2510.14807",
    formula="at forking tokens of right completions r -> 0.99 r + 0.01/3 SUM_k r_k; wrong top tokens: A * 1.1",
    fixes="probability piling up on one token, and with it the loss of pass@k",
    breaks="one more quantity of the forward pass",
    deviations=("the top 3 are those of the policy at the update; their ratio has the value of the sampled token's",),
)

GDPO = Preset(
    Objective("gdpo", PartwiseGroup(), WhitenCompletions(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), NoKL()),
    title="GDPO",
    paper="Liu et al. 2026, GDPO, arXiv 2601.05242",
    formula="A_k = (R_k - mean_g) / std_g per part;  A = whiten(SUM_k w_k A_k)",
    fixes="reward parts with a small spread drowned by those with a large one",
    breaks="amplifies a part that hardly varies; needs at least two parts",
    deviations=("whitened over completions; clip and aggregate are whet's choice",),
    run={"reward": {"parts": [{"reward": "exact_answer"}, {"reward": "think_format", "weight": 0.5}]}},
)

SPO = Preset(
    Objective("spo", PromptTracker(), WhitenCompletions(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), NoKL()),
    title="SPO (single-stream, 2509.13232)",
    paper="Xu et al. 2025, Single-stream Policy Optimization, arXiv 2509.13232",
    formula="A = whiten(R - v(prompt)),  v a Beta tracker of the prompt's past rewards",
    fixes="groups: one completion per prompt is enough, and none is wasted on prompts that agree",
    breaks="needs to see a prompt again for its tracker to mean anything; rewards must be in [0, 1]",
    deviations=(
        "the tracker forgets by one factor, 0.9, not by the policy's KL since the last visit",
        "clip and aggregate are whet's choice",
    ),
    run={"batch": {"group_size": 1}},
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
