"""Methods that compare a completion with others to the same prompt, and trust the sampler to be the trainer."""

from __future__ import annotations

from whet.objective.advantage import (
    BatchRunningMean,
    Greedy,
    GroupMean,
    LeaveOneOut,
)
from whet.objective.aggregate import FixedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import OnPolicy, PPOClip
from whet.objective.credit import GroupMeanToGo, ReturnToGo
from whet.objective.keep import MixedOutcome
from whet.objective.kl import K3, K1Immediate, K1Reward, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import TokenRatio
from whet.objective.reference import Reset
from whet.objective.scale import GroupStd, NoScale, TokenStd, WhitenTokens
from whet.objective.shape import SoftOverlong

REINFORCE = Preset(
    Objective("reinforce", BatchRunningMean(), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), NoKL()),
    title="REINFORCE",
    paper="Williams 1992, Machine Learning 8:229-256",
    formula="J = E[ (R - b) SUM_t log pi(a_t) ]",
    fixes="assumes nothing: no critic, no group, no reference; unbiased",
    breaks="high variance, no reuse of data; long completions weigh more",
    deviations=("b is a moving average of mean rewards with decay 0.9, updated after use",),
)

GRPO = Preset(
    Objective("grpo", GroupMean(), GroupStd(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K3(0.04)),
    title="GRPO",
    paper="Shao et al. 2024, DeepSeekMath, arXiv 2402.03300",
    formula="J = 1/G SUM_i 1/n_i SUM_t [ min(r A, clip(r, 1-e, 1+e) A) - beta k3 ],  A = (R - mean) / std",
    fixes="no critic: the other completions to the same prompt are the baseline",
    breaks="length bias (1/n_i), difficulty bias (/std), no signal from groups that agree, one credit for all tokens",
    deviations=(
        "epsilon 0.2 is PPO's: the paper does not state one, and with its single update the clip never binds",
        "std is Bessel's with floor 1e-6; a group within float noise of constant has A = 0",
    ),
)

GRPO_R1 = Preset(
    Objective(
        "grpo_r1",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        PPOClip(10.0, 10.0),
        SequenceMean(),
        K3(0.001),
        reference=Reset(400),
    ),
    title="GRPO (R1)",
    paper="DeepSeek-AI 2025, DeepSeek-R1, arXiv 2501.12948",
    formula="GRPO with beta 0.001, epsilon 10 and a reference replaced every 400 steps",
    fixes="a reference that holds a long run back",
    breaks="epsilon 10 means the interval [-9, 11]: only an upper bound at 11 exists; beta limits speed, not distance",
    deviations=(
        "the ratio is taken token by token as in DeepSeekMath; the later text also writes it for the whole completion",
        "the paper's rewards (accuracy, format, language) are rewards, not part of the method",
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

DAPO = Preset(
    Objective(
        "dapo",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        PPOClip(0.2, 0.28),
        TokenMean(),
        NoKL(),
        shape=SoftOverlong(0.2),
        keep=MixedOutcome(10),
    ),
    title="DAPO",
    paper="Yu et al. 2025, DAPO, arXiv 2503.14476",
    formula="J = 1/M SUM_i SUM_t min(r A, clip(r, 0.8, 1.28) A),  0 < #right < G,  R + R_length",
    fixes="entropy collapse, groups that teach nothing, the dilution of long completions, the noise of truncation",
    breaks="extra rollouts; prompts of middling difficulty are over-represented; long wrong completions weigh much",
    deviations=(
        "the tail of the length penalty is the paper's share of the budget: 4096 of 20480 tokens",
        "overlong filtering, the paper's other remedy, is objective.select=finished; with both a completion pays twice",
        "the authors' script also sets a dual clip of 10, which the paper does not name: left out",
    ),
)

RLOO = Preset(
    Objective("rloo", LeaveOneOut(), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), K1Reward(0.03)),
    title="RLOO",
    paper="Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740",
    formula="J = 1/N SUM_i (R_i - mean_{j != i} R_j) log pi(completion_i),  R includes -beta log(pi/ref)",
    fixes="an unbiased baseline without a critic: the sample is not in its own mean",
    breaks="sensitive to the scale of rewards; long completions weigh more; no reuse of data",
    deviations=("beta 0.03 is the paper's for summarisation; it uses 0.10 for dialogue",),
)

REMAX = Preset(
    Objective("remax", Greedy(), NoScale(), TokenRatio(), OnPolicy(), TokenMean(), K1Immediate(0.05)),
    title="ReMax",
    paper="Li et al. 2023, ReMax, arXiv 2310.10505",
    formula="J = 1/M SUM_i SUM_t (R_i - R(greedy) - beta log(pi/ref)_t) log pi",
    fixes="no critic and no group: one greedy completion per prompt is an unbiased baseline",
    breaks="the greedy completion may be atypical: at temperature 0 a reasoning model can loop",
    deviations=(
        "token mean and an immediate KL, each token for itself, are the authors' code; summed to go it is k1_reward",
        "the authors also discount the terminal reward by 0.99 a token and clip it: left out",
    ),
)

REINFORCE_PP = Preset(
    Objective(
        "reinforce_pp", ReturnToGo(), WhitenTokens(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K1Reward(0.001)
    ),
    title="REINFORCE++",
    paper="Hu 2025, REINFORCE++, arXiv 2501.03262",
    formula="A_t = (G_t - mean) / std over the batch's tokens,  G_t = R - beta SUM_{s >= t} log(pi/ref)",
    fixes="the blow-up of a group's std; works with one completion per prompt",
    breaks="easy and hard prompts share one scale; long completions set the mean",
    deviations=("std is Bessel's; the authors' code takes the population's: a factor of 1 - 1/(2M)",),
)

REINFORCE_PP_BASELINE = Preset(
    Objective(
        "reinforce_pp_baseline",
        GroupMeanToGo(),
        TokenStd(),
        TokenRatio(),
        PPOClip(0.2, 0.2),
        SequenceMean(),
        K1Reward(0.001),
    ),
    title="REINFORCE++-baseline",
    paper="Hu 2025, REINFORCE++, arXiv 2501.03262",
    formula="A = (R - mean_group) / std over the batch's tokens, with the KL to go",
    fixes="the difficulty bias of a group's own std",
    breaks="after a token-weighted scale the advantages of a group need not sum to 0",
    deviations=(
        "aggregate and KL are those of REINFORCE++: the paper was not read on this point",
        "the authors' code also subtracts the mean over tokens: objective.scale=whiten_tokens",
    ),
)
