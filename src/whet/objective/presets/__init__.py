"""The presets: each method once, with its paper, its defaults and what whet chose where the paper is silent.

The only room of the package where methods have names. Adding a method made of known components is adding a preset here.
"""

from whet.objective.policy import Objective
from whet.objective.presets import agents, critic, group, off_policy, teacher, variants
from whet.objective.presets.preset import Preset

EVERY = (
    *(group.REINFORCE, group.RLOO, group.REMAX, group.REINFORCE_PP, group.REINFORCE_PP_BASELINE),
    *(group.GRPO, group.GRPO_R1, group.DR_GRPO, group.DAPO),
    *(variants.GSPO, variants.GSPO_TOKEN, variants.LUSPO, variants.CISPO, variants.GMPO, variants.SAPO),
    *(variants.GRPO_SEGMENT, variants.LAMBDA_GRPO, variants.OPO, variants.MAXRL, variants.PASS_AT_K, variants.SIMKO),
    *(variants.DPPO_TV, variants.DPPO_KL, variants.VESPO, variants.CLIP_COV, variants.KL_COV),
    *(critic.PPO, critic.PPO_DUAL, critic.PPO_PENALTY, critic.VAPO, critic.VTRACE),
    *(variants.GDPO, variants.SPO, agents.GRPO_PROCESS, agents.GIGPO),
    *(off_policy.PMD_MEAN, off_policy.DRO, off_policy.PRIME_RL, off_policy.TOPR, off_policy.ASYM_RE),
    *(off_policy.M2PO, off_policy.A_STAR_PO, off_policy.CHORD, variants.BAPO, variants.REWARDS_AS_LABELS),
    *(
        variants.CE_GPPO,
        variants.DCPO,
        variants.ASPO,
        variants.FIPO,
        variants.DELTA_L,
        variants.ENTROPIC,
    ),
    *(agents.RLOO_TURNS, agents.RLOO_TREE, agents.TREE_GRPO, agents.ECHO, agents.RAE),
    *teacher.EVERY,
)

# every policy method by the name that the command line takes
PRESETS: dict[str, Preset[Objective]] = {preset.objective.name: preset for preset in EVERY}

# what a pipeline trains a policy by where nobody names another
PLAIN_GROUP_METHOD = group.GRPO.objective.name

__all__ = ["PLAIN_GROUP_METHOD", "PRESETS", "Preset"]
