"""The kinds of reward model by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Learns = Literal["rankings", "outcomes", "steps"]


@dataclass(frozen=True)
class RewardModelPreset:
    """A kind of reward model: what it learns from, and where that comes from."""

    title: str
    paper: str
    learns: Learns
    words: str
    formula: str
    fixes: str
    breaks: str
    columns: str  # of a file it learns from
    deviations: tuple[str, ...] = ()


# every kind of reward model by the name that the command line takes
REWARD_MODELS: dict[str, RewardModelPreset] = {
    "rm": RewardModelPreset(
        "Reward model", "Bradley and Terry 1952; Ouyang 2022, arXiv 2203.02155", "rankings",
        "the better of two completions gets the higher score",
        formula="L = -log sigma(r_w - r_l - margin) + c (r_w + r_l)^2, averaged over the pairs of a ranking",
        fixes="a score for any completion, learnt from comparisons alone",
        breaks="a proxy: a policy that maximises it long enough finds what it got wrong; scores have no zero",
        columns="`prompt`, `chosen`, `rejected`, perhaps `margin`; or `completions` and `scores`, `ranks` or `order`",
        deviations=("c is 0 unless reward_model.centre is given",),
    ),
    "orm": RewardModelPreset(
        "Outcome reward model", "Cobbe 2021, arXiv 2110.14168", "outcomes",
        "how likely is the completion right",
        formula="L = -mean [ y log p + (1 - y) log(1 - p) ], p = sigma(r)",
        fixes="a verdict on completions that no rule can check, learnt from right and wrong ones",
        breaks="right answers by wrong reasoning count as right",
        columns="`prompt`, `completion` (or `completion`) and `label` (or `right`); or solutions in steps",
        deviations=("the last token learns the label; reward_model.outcome_at=every_token is the paper's way",),
    ),
    "prm": RewardModelPreset(
        "Process reward model", "Lightman 2023, arXiv 2305.20050", "steps",
        "how likely is each step right",
        formula="L = -mean over steps [ y log p + (1 - y) log(1 - p) ], p = sigma(r) at the end of the step",
        fixes="credit within a completion: the first wrong step is found, not only the wrong answer",
        breaks="labels of steps are dear; automatic ones say what a sampler can still save, not what is right",
        columns="`prompt`, `steps` and `labels`, or the number of the first error",
        deviations=("where only the first error is known, later steps have no label; a neutral step counts as right",),
    ),
}  # fmt: skip
