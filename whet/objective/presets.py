"""The rows: each method once, with its paper, its defaults and what whet chose where the paper is silent.

The only file of the package where methods have names. Adding a method made of known pieces is adding a row here.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.advantage import GroupMean, GroupStd, NoScale, RunningMean
from whet.objective.aggregate import FixedLength, SequenceMean, SequenceSum
from whet.objective.clip import OnPolicy, PPOClip
from whet.objective.kl import K3, NoKL
from whet.objective.policy import Objective
from whet.objective.ratio import TokenRatio


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

# every method by the name that the command line takes
PRESETS: dict[str, Preset] = {preset.objective.name: preset for preset in (REINFORCE, GRPO, DR_GRPO)}
