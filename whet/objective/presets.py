"""The rows: each method once, with its paper, its defaults and what whet chose where the paper is silent.

The only file of the package where methods have names. Adding a method made of known pieces is adding a row here.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.advantage import (
    GroupMean,
    GroupMeanScale,
    GroupStd,
    LeaveOneOut,
    LengthWeightedMean,
    NoScale,
    RunningMean,
)
from whet.objective.aggregate import FixedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import Cap, GeometricMean, OnPolicy, PPOClip, SoftGate
from whet.objective.kl import K3, K1Reward, NoKL
from whet.objective.policy import Objective
from whet.objective.ratio import SequenceRatio, TokenRatio


@dataclass(frozen=True)
class Preset:
    """A row and what a reader should know about it."""

    objective: Objective
    title: str
    paper: str
    formula: str  # the paper's own expression
    fixes: str
    breaks: str
    deviations: tuple[str, ...] = ()  # what the paper does not state and whet chose


REINFORCE = Preset(
    Objective("reinforce", RunningMean(), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), NoKL()),
    title="REINFORCE",
    paper="Williams 1992, Machine Learning 8:229-256",
    formula="J = E[ (R - b) SUM_t log pi(a_t) ]",
    fixes="assumes nothing: no critic, no group, no reference; unbiased",
    breaks="high variance, no reuse of data; long replies weigh more",
    deviations=("b is a moving average of mean rewards with decay 0.9, updated after use",),
)

GRPO = Preset(
    Objective("grpo", GroupMean(), GroupStd(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K3(0.04)),
    title="GRPO",
    paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    formula="J = 1/G SUM_i 1/n_i SUM_t [ min(r A, clip(r, 1-e, 1+e) A) - beta k3 ],  A = (R - mean) / std",
    fixes="no critic: the other replies to the same prompt are the baseline",
    breaks="length bias (1/n_i), difficulty bias (/std), no signal from groups that agree, one credit for all tokens",
    deviations=(
        "epsilon 0.2 is PPO's: the paper does not state one, and with its single update the clip never binds",
        "std is Bessel's with floor 1e-6; a group within float noise of constant has A = 0",
    ),
)

DR_GRPO = Preset(
    Objective("dr_grpo", GroupMean(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), FixedLength(), NoKL()),
    title="Dr. GRPO",
    paper="Liu et al. 2025, Understanding R1-Zero-Like Training, arXiv 2503.20783",
    formula="J = 1/(G L) SUM_i SUM_t min(r A, clip(r, 1-e, 1+e) A),  A = R - mean",
    fixes="both biases of GRPO: no 1/n_i, no /std",
    breaks="prompts with a large spread dominate; the gradient's scale depends on the budget L",
    deviations=("L is the run's max_new_tokens, not the padded width",),
)

RLOO = Preset(
    Objective("rloo", LeaveOneOut(), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), K1Reward(0.03)),
    title="RLOO",
    paper="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740",
    formula="J = 1/N SUM_i (R_i - mean_{j != i} R_j) log pi(reply_i),  R includes -beta log(pi/ref)",
    fixes="an unbiased baseline without a critic: the sample is not in its own mean",
    breaks="sensitive to the scale of rewards; long replies weigh more; no reuse of data",
    deviations=("beta 0.03 is the paper's for summarisation; it uses 0.10 for dialogue",),
)

GSPO = Preset(
    Objective("gspo", GroupMean(), GroupStd(), SequenceRatio(), PPOClip(3e-4, 4e-4), SequenceMean(), NoKL()),
    title="GSPO",
    paper="Zheng et al. 2025, Group Sequence Policy Optimization, arXiv 2507.18071",
    formula="J = 1/G SUM_i min(s A, clip(s, 1-l, 1+h) A),  s = (pi(reply) / pi_old(reply))^(1/n)",
    fixes="the noise of token ratios, and the instability it causes in mixtures of experts",
    breaks="a reply is clipped whole or not at all; a clip share of most replies is normal",
    deviations=("log s is capped at 10 against overflow",),
)

LUSPO = Preset(
    Objective("luspo", GroupMean(), GroupStd(), SequenceRatio(), PPOClip(2e-3, 2.5e-3), SequenceSum(), NoKL()),
    title="LUSPO",
    paper="LUSPO 2026, arXiv 2602.05261",
    formula="J = 1/G SUM_i n_i min(s A, clip(s, 1-l, 1+h) A),  s as in GSPO",
    fixes="GSPO's dilution of long replies: each token counts the same again",
    breaks="long replies dominate the gradient",
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
        "the paper also filters groups and punishes overlong replies; this row is its loss alone",
    ),
)

GMPO = Preset(
    Objective("gmpo", GroupMean(), GroupStd(), TokenRatio(), GeometricMean(0.4), SequenceMean(), NoKL()),
    title="GMPO",
    paper="Zhao et al. 2025, Geometric-Mean Policy Optimization, arXiv 2507.20673",
    formula="J = 1/G SUM_i A exp(1/n SUM_t clip(log r, -w, w)),  clipped on the side A pushes to",
    fixes="outlier tokens: one large ratio no longer dominates a reply",
    breaks="one scale for a whole reply",
)

SAPO = Preset(
    Objective("sapo", GroupMean(), GroupStd(), TokenRatio(), SoftGate(1.0, 1.05), SequenceMean(), NoKL()),
    title="SAPO",
    paper="Gao et al. 2025, Soft Adaptive Policy Optimization, arXiv 2511.20347",
    formula="J = 1/G SUM_i 1/n SUM_t (4/tau) sigmoid(tau (r - 1)) A,  tau by the sign of A",
    fixes="the dead zones of a hard clip",
    breaks="the weight never reaches zero: drift is slowed, not stopped",
)

OPO = Preset(
    Objective("opo", LengthWeightedMean(), NoScale(), TokenRatio(), OnPolicy(), TokenMean(), NoKL()),
    title="OPO",
    paper="Hao et al. 2025, On-Policy RL with Optimal Reward Baseline, arXiv 2505.23585",
    formula="J = 1/M SUM_i (R_i - b) SUM_t log pi,  b = SUM_j n_j R_j / SUM_j n_j",
    fixes="variance: the optimal baseline if the squared gradient norm grows with the length",
    breaks="the advantages of a group do not sum to 0; exactly one update a batch",
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

# every method by the name that the command line takes
PRESETS: dict[str, Preset] = {
    preset.objective.name: preset
    for preset in (REINFORCE, RLOO, GRPO, DR_GRPO, GSPO, LUSPO, CISPO, GMPO, SAPO, OPO, MAXRL)
}
