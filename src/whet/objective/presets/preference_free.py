"""Methods without a reference, and methods that judge completions one by one."""

from __future__ import annotations

from whet.objective.preference.anchor import AnchorRunningMean, Mismatched
from whet.objective.preference.imitate import PerCompletion, Summed
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.pair_losses import Hinge, Logistic, Rivals
from whet.objective.preference.score import (
    LogLikelihood,
    LogOdds,
    LogRatio,
    MeanLogLikelihood,
    PowerReward,
    WeighedEntropy,
)
from whet.objective.preference.single_losses import Classified, NoiseContrast, Prospect, Saturating, Targets
from whet.objective.preference.weigh import MarginGate
from whet.objective.presets.preset import Preset

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
