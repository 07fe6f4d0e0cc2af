"""Methods that compare the log-ratios of two completions to a reference."""

from __future__ import annotations

from whet.objective.preference.contrast import Protected, Shifted
from whet.objective.preference.imitate import PerCompletion
from whet.objective.preference.objective import PairObjective
from whet.objective.preference.pair_losses import Blend, Hinge, Logistic, Lowered, Squared, Unflipped
from whet.objective.preference.score import (
    AlphaDivergence,
    ForwardKL,
    JensenShannon,
    LogRatio,
    MeanLogRatio,
    SharedLength,
)
from whet.objective.preference.weigh import OwnWords
from whet.objective.presets.preset import Preset
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
