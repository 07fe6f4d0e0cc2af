"""The kinds of reward model by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from whet.objective.presets.preset import Preset

Learns = Literal["rankings", "outcomes", "steps"]


@dataclass(frozen=True)
class RewardModelObjective:
    """What a kind of reward model learns from, and what its score says."""

    name: str
    learns: Learns
    words: str  # what the score says
    columns: str  # of a file it learns from


EVERY = (
    Preset(
        RewardModelObjective(
            "rm",
            "rankings",
            "the better of two completions gets the higher score",
            "`prompt`, `chosen`, `rejected`, perhaps `margin`; or `completions` and `scores`, `ranks` or `order`",
        ),
        title="Reward model",
        paper="Bradley and Terry 1952; Ouyang 2022, arXiv 2203.02155",
        formula="L = -log sigma(r_w - r_l - margin) + c (r_w + r_l)^2, averaged over the pairs of a ranking",
        fixes="a score for any completion, learned from comparisons alone",
        breaks="a proxy: a policy that maximises it long enough finds what it got wrong; scores have no zero",
        deviations=("c is 0 unless reward_model.centre is given",),
    ),
    Preset(
        RewardModelObjective(
            "orm",
            "outcomes",
            "how likely the completion is right",
            "`prompt`, `completion` and `label` (or `right`); or solutions in steps",
        ),
        title="Outcome reward model",
        paper="Cobbe 2021, arXiv 2110.14168",
        formula="L = -mean [ y log p + (1 - y) log(1 - p) ], p = sigma(r)",
        fixes="a verdict on completions that no rule can check, learned from right and wrong ones",
        breaks="right answers by wrong reasoning count as right",
        deviations=("the last token learns the label; reward_model.outcome_at=every_token is the paper's way",),
    ),
    Preset(
        RewardModelObjective(
            "prm",
            "steps",
            "how likely each step is right",
            "`prompt`, `steps` and `labels`, or the number of the first error",
        ),
        title="Process reward model",
        paper="Lightman 2023, arXiv 2305.20050",
        formula="L = -mean over steps [ y log p + (1 - y) log(1 - p) ], p = sigma(r) at the end of the step",
        fixes="credit within a completion: the first wrong step is found, not only the wrong answer",
        breaks="labels of steps are expensive; automatic ones say what a sampler can still save, not what is right",
        deviations=("where only the first error is known, later steps have no label; a neutral step counts as right",),
    ),
)

# every kind of reward model by the name that the command line takes
REWARD_MODELS: dict[str, Preset[RewardModelObjective]] = {preset.objective.name: preset for preset in EVERY}
