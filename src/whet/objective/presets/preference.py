"""The preference methods by name: each method once, with its paper, its defaults and what whet chose."""

from __future__ import annotations

from whet.objective.preference.objective import PairObjective
from whet.objective.preference.pair_losses import (
    Blend,
    Classified,
    Hinge,
    Logistic,
    Lowered,
    NoiseContrast,
    Prospect,
    Rivals,
    Saturating,
    Squared,
    Targets,
    Unflipped,
)
from whet.objective.preference.pair_terms import (
    AnchorRunningMean,
    MarginGate,
    Mismatched,
    OwnWords,
    PerCompletion,
    Protected,
    Shifted,
    Summed,
)
from whet.objective.preference.score import (
    AlphaDivergence,
    ForwardKL,
    JensenShannon,
    LogLikelihood,
    LogOdds,
    LogRatio,
    MeanLogLikelihood,
    MeanLogRatio,
    PowerReward,
    SharedLength,
    WeighedEntropy,
)
from whet.objective.presets.preset import LEFT_OUT, Preset
from whet.objective.reference import MovingAverage, Reset

DPO = Preset(
    PairObjective("dpo", LogRatio(), Logistic(0.1)),
    title="DPO",
    paper="Rafailov et al. 2023, Direct Preference Optimization, arXiv 2305.18290",
    formula="L = -log sigma(b m)",
    fixes="no reward model, no sampling: one classification loss on pairs",
    breaks="likelihood displacement: both completions may sink; the margin has no bound",
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

CDPO = Preset(
    PairObjective("cdpo", LogRatio(), Logistic(0.1, smoothing=0.1)),
    title="cDPO",
    paper="Mitchell 2023, A note on DPO with noisy preferences",
    formula="L = -(1-e) log sigma(b m) - e log sigma(-b m)",
    fixes="wrong labels: the best margin is finite, logit(1-e)/b",
    breaks="a label that is right is doubted as much as one that is wrong",
    deviations=("e is 0.1: the note gives no default, codes take 0.1 to 0.2",),
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

ROBUST_DPO = Preset(
    PairObjective("robust_dpo", LogRatio(), Unflipped(0.1, 0.1)),
    title="Robust DPO",
    paper="Chowdhury et al. 2024, Provably Robust DPO, arXiv 2403.00409",
    formula="L = [ -(1-e) log sigma(b m) + e log sigma(-b m) ] / (1 - 2e)",
    fixes="flipped labels: unbiased when a share e of them is flipped",
    breaks="the loss may be negative; e near 0.5 makes it explode",
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

IPO = Preset(
    PairObjective("ipo", LogRatio(), Squared(0.1)),
    title="IPO",
    paper="Azar et al. 2023, A General Theoretical Paradigm, arXiv 2310.12036",
    formula="L = (m - 1/(2t))^2, log-ratios summed over a completion",
    fixes="preferences that never vary: the margin has a target instead of growing without bound",
    breaks="long completions have large log-ratios: the target is met by few tokens",
    deviations=("summed as the formula says; the authors' experiments averaged: that is ipo_mean",),
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

IPO_MEAN = Preset(
    PairObjective("ipo_mean", MeanLogRatio(), Squared(0.1)),
    title="IPO-mean",
    paper="Azar et al. 2023, A General Theoretical Paradigm, arXiv 2310.12036",
    formula="L = (d_w/n_w - d_l/n_l - 1/(2t))^2",
    fixes="the same as ipo, with a target that does not depend on the length",
    breaks="a mean log-ratio of 1/(2t) = 5 nats a token is far: the pull hardly ever ends",
    deviations=("the form other trainers call IPO; its authors are quoted as having used it for their results",),
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

HINGE = Preset(
    PairObjective("hinge", LogRatio(), Hinge(0.1, 1.0)),
    title="Hinge",
    paper="Zhao et al. 2023, SLiC-HF, arXiv 2305.10425",
    formula="L = max(0, 1 - b m)",
    fixes="pairs that are learned stop counting",
    breaks="no pull at all past the margin",
    deviations=("with a reference, as trainers have it; the paper's own form without one is slic",),
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 64}},
)

SIGMOID_NORM = Preset(
    PairObjective("sigmoid_norm", MeanLogRatio(), Logistic(5.0)),
    title="Length-normalised DPO",
    paper="Lambert et al. 2024, Tulu 3, arXiv 2411.15124",
    formula="L = -log sigma(b (d_w/n_w - d_l/n_l))",
    fixes="length: a long completion no longer has a long lever",
    breaks="beta has another unit than without the division",
    unverified="beta 5",
)

APO_DOWN = Preset(
    PairObjective("apo_down", LogRatio(), Lowered(0.1)),
    title="APO-down",
    paper="D'Oosterlinck et al. 2024, Anchored Preference Optimization, arXiv 2408.06266",
    formula="L = sigma(b d_w) + 1 - sigma(b m)",
    fixes="chosen completions that are worse than the policy's own: both sink, in order",
    breaks="where the chosen completions are better than the policy, it unlearns them",
    run={"optimizer": {"learning_rate": 2e-7}},
)

DISCOPOP = Preset(
    PairObjective("discopop", LogRatio(), Blend(0.05, 0.05)),
    title="DiscoPOP",
    paper="Lu et al. 2024, Discovering Preference Optimization Algorithms, arXiv 2406.08414",
    formula="L = (1-k)(-log sigma(x)) + k exp(-x), x = b m, k = sigma(x/0.05)",
    fixes="found by search over losses: better on the searched tasks",
    breaks="not convex: pairs with a margin near 0 are pushed the wrong way",
)

DPO_SHIFT = Preset(
    PairObjective("dpo_shift", LogRatio(), Logistic(0.01), contrast=Shifted(0.95, 0.95)),
    title="DPO-Shift",
    paper="Yang et al. 2025, DPO-Shift, arXiv 2502.07599",
    formula="L = -log sigma(b (d_w - f d_l)), 0 < f <= 1",
    fixes="likelihood displacement: the rejected completion has the shorter lever",
    breaks="a smaller margin",
    deviations=("f stays 0.95; contrast.final=1 is the paper's linear schedule",),
    run={"optimizer": {"learning_rate": 5e-7}},
)

DPOP = Preset(
    PairObjective("dpop", LogRatio(), Logistic(0.3), contrast=Protected(50.0)),
    title="DPO-Positive",
    paper="Pal et al. 2024, Smaug, arXiv 2402.13228",
    formula="L = -log sigma(b (m - l max(0, -d_w)))",
    fixes="likelihood displacement: a chosen completion below the reference costs",
    breaks="the penalty's grad is l times the pair's: the completion nearest to the reference decides",
    unverified="beta 0.3 and l 50",
)

LD_DPO = Preset(
    PairObjective("ld_dpo", SharedLength(0.5), Logistic(0.1)),
    title="LD-DPO",
    paper="Liu et al. 2024, Length Desensitization, arXiv 2409.06411",
    formula="L = -log sigma(b m'), tokens past min(n_w, n_l) weighted a in policy and reference",
    fixes="length: what the longer completion has more counts less",
    breaks="the end of a long completion, often its answer, is the part discounted",
)

WPO = Preset(
    PairObjective("wpo", LogRatio(), Logistic(0.01), weigh=OwnWords()),
    title="WPO",
    paper="Zhou et al. 2024, Weighted Preference Optimization, arXiv 2406.11827",
    formula="L = w_w w_l (-log sigma(b m)), w = exp(mean_t(logp - log SUM_v p_v^2)), no gradient",
    fixes="pairs somebody else wrote: those the policy would hardly write count less",
    breaks="the loss shrinks with the weights: its learning rate is not that of dpo",
    deviations=("the weights are neither capped nor divided by their mean",),
)

TR_DPO = Preset(
    PairObjective("tr_dpo", LogRatio(), Logistic(0.05), reference=MovingAverage(0.4, 512)),
    title="TR-DPO",
    paper="Gorbatovski et al. 2024, Learn Your Reference Model, arXiv 2404.09656",
    formula="dpo with ref <- 0.6 pi + 0.4 ref every 512 steps",
    fixes="a reference that holds a long run back",
    breaks="cached log-probabilities of the reference go stale; beta limits speed, not distance",
    deviations=("reference.decay is the weight kept: 0.4 where the paper's letter is 0.6",),
)

TR_DPO_HARD = Preset(
    PairObjective("tr_dpo_hard", LogRatio(), Logistic(0.05), reference=Reset(512)),
    title="TR-DPO (hard)",
    paper="Gorbatovski et al. 2024, Learn Your Reference Model, arXiv 2404.09656",
    formula="dpo with ref <- pi every 512 steps",
    fixes="the same as tr_dpo, with a reference that is always a policy of the past",
    breaks="the implicit rewards jump to 0 at every reset",
)

RPO = Preset(
    PairObjective("rpo", LogRatio(), Logistic(0.5), imitate=PerCompletion(0.2)),
    title="RPO",
    paper="Liu et al. 2024, Provably Mitigating Overoptimization, arXiv 2405.16436",
    formula="L = -log sigma(b m) - eta/n_w log pi(y_w)",
    fixes="likelihood displacement: the chosen completion is imitated as well",
    breaks="over-fits the chosen completions",
    deviations=(
        "the authors' default: a token of the NLL on average, eta 0.2, b 0.5; the sum of the paper's main text is "
        "imitate=summed with coefficient 0.005 and curve.beta 0.01",
    ),
    run={"optimizer": {"learning_rate": 5e-7}, "batch": {"rows_per_step": 128}},
)

RPO_ITERATIVE = Preset(
    PairObjective("rpo_iterative", LogRatio(), Logistic(0.1), imitate=PerCompletion(1.0)),
    title="Iterative RPO",
    paper="Pang et al. 2024, Iterative Reasoning Preference Optimization, arXiv 2404.19733",
    formula="L = -log sigma(b m) - a/n_w log pi(y_w)",
    fixes="right answers that sink with the wrong ones: a token of imitation for every completion",
    breaks="over-fits the chosen completions",
    unverified="beta 0.1",
)

FDPO_FORWARD = Preset(
    PairObjective("fdpo_forward", ForwardKL(), Logistic(0.1)),
    title="f-DPO (forward KL)",
    paper="Wang et al. 2023, Beyond Reverse KL, arXiv 2309.16240",
    formula="L = -log sigma(b (f'_w - f'_l)), f' = 1 - exp(-d)",
    fixes="a policy that forgets what the reference could say",
    breaks="a completion far below the reference has an exponential grad",
    unverified="beta 0.1",
)

FDPO_JS = Preset(
    PairObjective("fdpo_js", JensenShannon(), Logistic(0.1)),
    title="f-DPO (Jensen-Shannon)",
    paper="Wang et al. 2023, Beyond Reverse KL, arXiv 2309.16240",
    formula="L = -log sigma(b (f'_w - f'_l)), f' = log 2 + log sigma(d)",
    fixes="between the two KLs; the worth of a completion is bounded above",
    breaks="a chosen completion far above the reference learns nothing more",
    unverified="beta 0.1",
)

FDPO_ALPHA = Preset(
    PairObjective("fdpo_alpha", AlphaDivergence(0.5), Logistic(0.1)),
    title="f-DPO (alpha)",
    paper="Wang et al. 2023, Beyond Reverse KL, arXiv 2309.16240",
    formula="L = -log sigma(b (f'_w - f'_l)), f' = (exp((a-1) d) - 1)/(a-1)",
    fixes="a dial between the forward KL (a = 0) and the reverse one (a = 1)",
    breaks="one more number to choose",
    deviations=("a is 1 minus the paper's letter",),
    unverified="beta 0.1 and a 0.5",
)


SIMPO = Preset(
    PairObjective("simpo", MeanLogLikelihood(), Logistic(2.0, gamma=1.0)),
    title="SimPO",
    paper="Meng et al. 2024, Simple Preference Optimization, arXiv 2405.14734",
    formula="L = -log sigma(b (q_w - q_l) - g)",
    fixes="no reference to hold in memory; length divided out; a margin to reach",
    breaks="nothing ties the policy to where it came from: small learning rates only",
    deviations=("b 2 and g 1: the paper tunes both, with g/b near 0.5",),
    run={"optimizer": {"learning_rate": 1e-6}, "batch": {"rows_per_step": 128}},
)

ALPHAPO = Preset(
    PairObjective("alphapo", PowerReward(0.25), Logistic(2.5, gamma=0.1)),
    title="AlphaPO",
    paper="Gupta et al. 2025, AlphaPO, arXiv 2501.03884",
    formula="L = -log sigma(r_w - r_l - g), r = b (1 - p^-a)/a, p = exp(q)",
    fixes="displacement under simpo: the reward's shape is a dial, a = 0 is simpo",
    breaks="an unlikely completion has an exponential grad",
)

POWER = Preset(
    PairObjective("power", WeighedEntropy(), Logistic(2.0)),
    title="POWER",
    paper="Rashidinejad et al. 2024, arXiv 2412.09544",
    formula="L = -log sigma(x), x = b (w_w log pi(y_w) - w_l log pi(y_l) + w_w - w_l), w = 1/n",
    fixes="rewards of completions few rows cover: the policy maximises reward plus an entropy weighed by 1/n",
    breaks="nothing ties the policy to where it came from: small learning rates only",
    deviations=(
        "only x is built: it follows from what is stationary for the mean reward plus b times the weighed entropy",
        "the paper's second term (eta) on the chosen completion is left out, and so are its labels that drift with "
        "the run",
    ),
    unverified="beta 2, which is simpo's, and that w is 1/n in the authors' experiments",
)

ORPO = Preset(
    PairObjective("orpo", LogOdds(), Logistic(1.0, coefficient=0.1), imitate=PerCompletion(1.0)),
    title="ORPO",
    paper="Hong et al. 2024, Odds Ratio Preference Optimization, arXiv 2403.07691",
    formula="L = NLL(y_w) - l log sigma(logodds_w - logodds_l), odds of p = exp(q)",
    fixes="one stage: imitation and preference from the base model, no reference",
    breaks="the odds of a completion the policy is sure of explode",
    deviations=("the NLL is that of the completion, a token on average; some codes count the prompt's tokens as well",),
    run={"optimizer": {"learning_rate": 5e-6}},
)

CPO = Preset(
    PairObjective("cpo", LogLikelihood(), Logistic(0.1), imitate=Summed(1.0)),
    title="CPO",
    paper="Xu et al. 2024, Contrastive Preference Optimization, arXiv 2401.08417",
    formula="L = -log sigma(b (log pi(y_w) - log pi(y_l))) - log pi(y_w)",
    fixes="a uniform reference: half the memory and time",
    breaks="prefers short completions: log-probabilities are summed",
    deviations=("the NLL is summed as the formula says; imitate=per_token is what other trainers do",),
)

SLIC = Preset(
    PairObjective("slic", LogLikelihood(), Hinge(1.0, 1.0), imitate=Summed(0.1)),
    title="SLiC",
    paper="Zhao et al. 2023, SLiC-HF, arXiv 2305.10425",
    formula="L = max(0, delta - log pi(y_w) + log pi(y_l)) - l log pi(y_w)",
    fixes="calibrates likelihoods without a reference: pairs that are apart stop counting",
    breaks="prefers short completions: log-probabilities are summed",
    deviations=("the imitated completion is the chosen one; the paper may take the one of supervised data",),
)

KTO = Preset(
    PairObjective("kto", LogRatio(), Prospect(0.1, 1.0, 1.0), anchor=Mismatched()),
    title="KTO",
    paper="Ethayarajh et al. 2024, Kahneman-Tversky Optimization, arXiv 2402.01306",
    formula="L = l_D (1 - sigma(b (d - z))) or l_U (1 - sigma(b (z - d))), z = max(0, mean mismatched d)",
    fixes="thumbs up and down instead of pairs",
    breaks="z is noisy in a small step and impossible in a step of one prompt",
    deviations=("z is taken over the whole step and all ranks, each prompt with the next other prompt's completion",),
    run={"optimizer": {"learning_rate": 1e-6}},
)

BCO = Preset(
    PairObjective("bco", LogRatio(), Classified(0.1), anchor=AnchorRunningMean(1.0)),
    title="BCO",
    paper="Jung et al. 2024, Binary Classifier Optimization, arXiv 2404.04656",
    formula="L = -log sigma(b d_w - delta) - log sigma(-(b d_l - delta)), delta = running mean reward",
    fixes="labels instead of pairs, with a bound on the loss of pairs",
    breaks="delta staleness behind a policy that moves fast",
    deviations=(
        "delta is the mean over all steps so far, this one included, both classes alike",
        "the paper's weights for prompts of different sources are not built",
    ),
)

APO_ZERO = Preset(
    PairObjective("apo_zero", LogRatio(), Saturating(0.1)),
    title="APO-zero",
    paper="D'Oosterlinck et al. 2024, Anchored Preference Optimization, arXiv 2408.06266",
    formula="L = 1 - sigma(b d_w) + sigma(b d_l)",
    fixes="chosen completions that are better than the policy's own: they rise, the rejected sink",
    breaks="completions far from the reference have no grad left, on the wrong side too",
    run={"optimizer": {"learning_rate": 2e-7}},
)

SPPO = Preset(
    PairObjective("sppo", LogRatio(), Targets(1e-3)),
    title="SPPO",
    paper="Wu et al. 2024, Self-Play Preference Optimization, arXiv 2405.00675",
    formula="L = (d_w - 1/(2b))^2 + (d_l + 1/(2b))^2",
    fixes="chosen and rejected move to targets of their own: no displacement at the optimum",
    breaks="a target of 500 nats is never met: the pull is nearly constant and its size is 1/b",
    deviations=(
        "P is 1 and 0 unless the pairs state a preference; the paper estimates it by a pair model",
        "the sum is not halved; the authors' code halves it",
    ),
    run={"optimizer": {"learning_rate": 5e-7}},
)

NCA = Preset(
    PairObjective("nca", LogRatio(), NoiseContrast(0.01)),
    title="NCA",
    paper="Chen et al. 2024, Noise Contrastive Alignment, arXiv 2402.05369",
    formula="L = -log sigma(b d_w) - 1/2 log sigma(-b d_w) - 1/2 log sigma(-b d_l)",
    fixes="keeps the likelihood of the chosen completion itself",
    breaks="a smaller margin",
    run={"optimizer": {"learning_rate": 5e-6}},
)

PAIRWISE_CRINGE = Preset(
    PairObjective(
        "pairwise_cringe",
        LogLikelihood(),
        Rivals(1.0),
        weigh=MarginGate(0.0, 1.0),
        imitate=PerCompletion(1.0),
    ),
    title="Pairwise Cringe",
    paper="Xu et al. 2023, Some things are more CRINGE than others, arXiv 2312.16682",
    formula="L = g [ NLL(y_w) + a Cringe(y_l) ], g = sigma((b - log pi(y_w)/pi(y_l))/t), no gradient through g",
    fixes="says which token should replace a rejected one instead of only pushing it down",
    breaks="needs a rival token drawn at every place of a rejected completion",
    unverified="the gate, that both terms are means over tokens, and the constants a 1, b 0, t 1",
)


EVERY = (
    *(DPO, CDPO, ROBUST_DPO, IPO, IPO_MEAN, KTO, SIMPO, ORPO, CPO),
    *(DPO_SHIFT, DPOP, HINGE, SLIC, SIGMOID_NORM, APO_ZERO, APO_DOWN),
    *(SPPO, NCA, BCO, DISCOPOP, ALPHAPO, POWER, LD_DPO, WPO),
    *(TR_DPO, TR_DPO_HARD, RPO, RPO_ITERATIVE, PAIRWISE_CRINGE),
    *(FDPO_FORWARD, FDPO_JS, FDPO_ALPHA),
)

# every preference method by the name that the command line takes
PAIR_PRESETS: dict[str, Preset[PairObjective]] = {preset.objective.name: preset for preset in EVERY}

__all__ = ["LEFT_OUT", "PAIR_PRESETS"]
