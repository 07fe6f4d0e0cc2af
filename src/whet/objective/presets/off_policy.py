"""Methods for batches that are used more than once, or that an older policy wrote: held by other means than a clip."""

from __future__ import annotations

from whet.objective.advantage import GroupMean, LeaveOneOut, PromptValue, ShiftedMean
from whet.objective.aggregate import SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import MomentMask, OnPolicy, PPOClip, Tapered, VariationMask
from whet.objective.kl import K2Completion, K2Old, K2OldCompletion, K2Sampler, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import SamplerProduct, SamplerTokenRatio, TokenRatio
from whet.objective.scale import GroupStd, NoScale
from whet.objective.select import NonzeroAdvantage
from whet.objective.terms import ImitateUnsure

PMD_MEAN = Preset(
    Objective("pmd_mean", LeaveOneOut(), NoScale(), TokenRatio(), OnPolicy(), SequenceMean(), K2OldCompletion(0.01)),
    title="PMD-mean (Kimi K1.5, K2)",
    paper="Kimi Team 2025, arXiv 2501.12599 eq. 3 and 2507.20534; Xu et al. 2026, PMD-mean, arXiv 2602.05933",
    formula="L = 1/N SUM_i 1/(2 tau n_i) (A_i - tau log(pi(y_i)/pi_old(y_i)))^2,  A = R - mean of the others",
    fixes="a regression onto the improved policy: no ratio, no clip, and a batch may be used many times",
    breaks="tau log r of a long completion is large: the pull back grows with its length",
    deviations=(
        "1/n_i, tau 0.01 and the leave-one-out mean are the PMD authors' code (OpenKimi); Kimi's eq. 3 has neither",
        "their code also filters prompts by success and has a form that weighs prompts: left out",
    ),
    run={"batch": {"updates_per_step": 4}},
)

DRO = Preset(
    Objective("dro", GroupMean(), NoScale(), TokenRatio(), OnPolicy(), TokenMean(), K2Old(0.05)),
    title="DRO as a policy loss",
    paper="after Richemond et al. 2024, DRO, arXiv 2405.19107; the token form is verl's",
    formula="J = 1/M SUM [ A log pi - beta/2 (log(pi/pi_old))^2 ]",
    fixes="the clip's dead zones: a token learns until log r = A / beta, and is pulled back beyond",
    breaks="the pull acts token by token: a long completion may still move far",
    deviations=(
        "the paper learns V(x) from single offline completions and ties to a reference; here the group is the "
        "baseline and the tie is to the policy that wrote the batch, as in verl's loss",
        "verl gives no beta: 0.05 is that of its test",
    ),
    run={"batch": {"updates_per_step": 4}},
)

PRIME_RL = Preset(
    Objective(
        "prime_rl",
        GroupMean(),
        NoScale(),
        SamplerTokenRatio(),
        VariationMask(0.2, 0.2),
        TokenMean(),
        K2Sampler(2e-3),
        select=NonzeroAdvantage(),
    ),
    title="prime-rl default",
    paper="Prime Intellect, prime-rl, its default loss; the mask is Qi et al. 2026, DPPO, arXiv 2602.04879",
    formula="L = 1/M SUM_(A != 0) [ -mask r A + 1e-3 (log r)^2 ],  r = pi/mu,  mask 0 if pi moved by 0.2 with A",
    fixes="asynchronous runs: staleness and the engine's mismatch are one ratio, masked and pulled back",
    breaks="needs exact probabilities of the sampler",
    deviations=(
        "the ratio is capped at 10000, as in dppo_tv; prime-rl has no cap",
        "completions with advantage 0 are left out as by its default filter, which acts after a batch is drawn; its "
        "other filters (gibberish, repetition) only watch by default and are left out",
    ),
)

TOPR = Preset(
    Objective("topr", GroupMean(), NoScale(), SamplerProduct(), Tapered(), SequenceSum(), NoKL()),
    title="TOPR",
    paper="Le Roux et al. 2025, Tapered Off-Policy REINFORCE, arXiv 2503.14286",
    formula="J = E_mu[ A log pi(y) where A >= 0, min(pi(y)/mu(y), 1) A log pi(y) where A < 0 ]",
    fixes="negative examples of an older policy push without end; no clip and no KL are needed",
    breaks="a long bad completion vanishes as soon as the policy moves: its product ratio falls fast",
    deviations=(
        "rewards are compared with the group's mean; the paper's are +1 and -1, with a constant baseline at most",
        "the ratio is that of the completion as in the paper; Trinity-RFT takes it token by token: "
        "objective.ratio=sampler_token",
    ),
)

ASYM_RE = Preset(
    Objective("asym_re", ShiftedMean(-0.1), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), NoKL()),
    title="AsymRE",
    paper="Arnal et al. 2025, Asymmetric REINFORCE, arXiv 2506.20520",
    formula="J = 1/N SUM_i (R_i - mean_g(R) - dV) SUM_t log pi,  dV = -0.1",
    fixes="off-policy learning collapses when the baseline is above the sampler's mean: stay below it, ratios aside",
    breaks="a group that agrees is imitated, right or wrong; the farther below, the closer to plain imitation",
    deviations=(
        "dV -0.1 as read in Trinity-RFT, which also averages over tokens and gives a lone completion baseline 0",
    ),
)

M2PO = Preset(
    Objective("m2po", GroupMean(), GroupStd(), SamplerTokenRatio(), MomentMask(0.04), TokenMean(), NoKL()),
    title="M2PO",
    paper="Zheng et al. 2025, M2PO, arXiv 2510.01161",
    formula="J = 1/M SUM m_t r A,  m drops the largest (log r)^2 until the mean of the rest is <= 0.04,  r = pi/mu",
    fixes="old data: a fixed band clips most tokens once they are stale, a bound on the second moment only outliers",
    breaks="one more pass per update: which tokens go is known only when all have been scored",
    deviations=(
        "tokens that moved against A are neither counted nor dropped (algorithm 1); AReaL divides by the tokens kept",
        "the authors' released code is another rule: one bound on |log r|, the largest that keeps the mean of the "
        "bounded squares within 0.04, then PPO's clip with it, never tighter than 0.7 and 1.5",
    ),
)

CHORD = Preset(
    Objective(
        "chord",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        PPOClip(0.2, 0.2),
        TokenMean(),
        NoKL(),
        imitate=ImitateUnsure(0.1),
    ),
    title="CHORD-phi",
    paper="Zhang et al. 2025, On-Policy RL Meets Off-Policy Experts, arXiv 2508.11408",
    formula="L = (1 - mu) L_GRPO + mu L_SFT,  L_SFT = -1/M_shown SUM p (1 - p) log pi,  p = pi, stopped",
    fixes="SFT before RL overfits the expert and breaks what the policy could do: both at once, gentle where it is far",
    breaks="needs demonstrations; tokens that the policy would never write teach next to nothing",
    deviations=(
        "mu is 0.1 throughout and phi = p (1 - p), the defaults of the authors' code (Trinity-RFT)",
        "CHORD-mu, without phi and with mu warmed up and decayed: objective.imitate=demonstrations, with its weight, "
        "last, warmup and decay; steps are counted from 1",
        "a step imitates the demonstrations of its own prompts; the authors draw expert rows from a file of their own",
        "log pi of a demonstration is at temperature 1 and over the whole vocabulary, whatever the sampling",
        "no KL, and means over tokens for both losses",
    ),
    unverified="the paper itself; its loss was read in the authors' code",
)

A_STAR_PO = Preset(
    Objective("a_star_po", PromptValue(0.5), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), K2Completion(1e-3)),
    title="A*PO",
    paper="Brantley et al. 2025, Optimal Advantage Regression, arXiv 2505.20686",
    formula="L = 1/N SUM_i (b2 log(pi(y_i)/ref(y_i)) - (R_i - V(x_i)))^2,  V = b1 log mean_ref exp(R/b1)",
    fixes="groups and critics: the value is known before the run, so one completion per prompt is enough",
    breaks="the reference's completions must be written and scored first, by the same reward; a prompt that it never "
    "solves has V = 0, and whatever is solved once is pulled for ever",
    deviations=(
        "the loss is divided by 2 b2, which leaves R - V in front of the policy's gradient: the learning rate means "
        "what it does elsewhere",
        "b1 0.5, b2 0.001 as read in TRL, which also drops prompts that the reference never solved: "
        "`whet data filter --least 0.01` does",
    ),
    run={"batch": {"group_size": 1}},
)
