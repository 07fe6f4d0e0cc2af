"""Methods that give credit to the steps of a completion or of an episode."""

from __future__ import annotations

from whet.objective.aggregate import SequenceMean, TokenMean
from whet.objective.clip import PPOClip
from whet.objective.kl import K3, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import TokenRatio
from whet.objective.scale import NoScale
from whet.objective.steps import AnchoredSteps, StepSum

GRPO_PROCESS = Preset(
    Objective("grpo_process", StepSum(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), SequenceMean(), K3(0.04)),
    title="GRPO with process rewards",
    paper="Shao et al. 2024, DeepSeekMath section 4.1.3, arXiv 2402.03300",
    formula="A_t = SUM over steps ending at or after t of (r - mean) / std of the group's steps",
    fixes="one credit for all tokens: each step is judged",
    breaks="|A| grows with the steps that remain; many steps own the statistics",
    deviations=("epsilon 0.2 is PPO's; step_mean and step_delta are whet's variants",),
    run={"reward": {"parts": [{"reward": "exact_answer"}, {"reward": "working_steps", "weight": 0.0}]}},
)

GIGPO = Preset(
    Objective("gigpo", AnchoredSteps(1.0, 0.95), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), NoKL()),
    title="GiGPO",
    paper="Feng et al. 2025, GiGPO, arXiv 2505.10978",
    formula="A = (R - mean_g) + w (step return - mean over steps from the same state)",
    fixes="long completions and agents: steps taken from the same state are compared with each other",
    breaks="a state seen once adds nothing; a state's mean contains the step itself, which shrinks rarely seen states",
    deviations=(
        "gamma 0.95 and the aggregate were not read in the paper",
        "a step is a turn, its state the one the environment names, else the text before it",
        "in a single completion a step is a sentence and its state the text before it",
    ),
)
