"""Methods for episodes of several turns: tools, games, self-play; and those that credit steps."""

from __future__ import annotations

from whet.objective.advantage import GroupMean, RunningRoleMean
from whet.objective.aggregate import FixedLength, SequenceMean, SequenceSum, TokenMean
from whet.objective.clip import OnPolicy, PPOClip
from whet.objective.kl import K3, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import TokenRatio
from whet.objective.scale import GroupStd, NoScale
from whet.objective.siblings import GroupAndTree, Siblings
from whet.objective.step_credit import AnchoredSteps, StepSum, TurnReturn
from whet.objective.terms import ImitateObserved

RLOO_TURNS = Preset(
    Objective("rloo_turns", TurnReturn(1.0), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), FixedLength(), NoKL()),
    title="RLOO by turns",
    paper="after Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740; turns are whet's",
    formula="A_j = G_j - mean of the others' G_j,  G_j = what is earned from turn j on, or from an earlier last",
    fixes="one credit for all turns, without a bias where the policy decides when to stop",
    breaks="the baseline does not know the state: after a rare first turn it is that of the common ones",
    deviations=(
        "clip, fixed length and no KL are whet's choice",
        "normalising by turn index, the usual form, is biased: objective.baseline=turn_index_rewards, docs/bias.md",
    ),
    episodes=True,
)

RLOO_TREE = Preset(
    Objective("rloo_tree", Siblings(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), FixedLength(), NoKL()),
    title="RLOO by siblings",
    paper="after Ahmadian et al. 2024, Back to Basics, arXiv 2402.14740; trees are whet's",
    formula="A_d = V_d - mean of V over the other draws from the same state,  V_d = mean R of the leaves below d",
    fixes="one baseline for all turns: each is compared with what else was tried from its own state, without a bias",
    breaks="leaves share their beginning: fewer first turns are tried for as many leaves",
    deviations=("clip, fixed length and no KL are whet's choice, as in rloo_turns",),
    episodes=True,
    run={"env": {"branching": "turns"}},
)

TREE_GRPO = Preset(
    Objective("tree_grpo", GroupAndTree(), NoScale(), TokenRatio(), PPOClip(0.2, 0.2), TokenMean(), K3(0.001)),
    title="Tree-GRPO",
    paper="Ji et al. 2025, Tree Search for LLM Agent Reinforcement Learning, arXiv 2509.21240",
    formula="A = (R - mean_g) / std_g + (R - mean_tree) / std_tree over leaves,  2 trees of 3 leaves",
    fixes="episodes that share their first turns cost fewer tokens and calls, and siblings say which turn was better",
    breaks="biased: a leaf is in its own means, two spreads divide, and a shared turn has the mean of its leaves' A",
    deviations=(
        "the authors' code plays a tree's first episode to its end, then goes on from 2 of its states chosen at random "
        "(N = 2, L = 1), the prompt among them; here a state branches when it is reached: a choice in hindsight is "
        "biased, docs/bias.md",
        "in the loss a row counts by the draws on its way, in the code all leaves alike: the same where trees are "
        "balanced and have equally many leaves",
        "a tree of one leaf adds nothing; the code adds its bare reward",
        "aggregate, KL and the numbers of trees and leaves are those of the authors' scripts (M = 2, K = 3); their "
        "code clips twice, objective.clip=dual_clip with ceiling 3",
    ),
    unverified="the paper's own equations; formula and numbers were read in the authors' code (AMAP-ML/Tree-GRPO)",
    episodes=True,
    run={"env": {"branching": "turns", "leaves": 3}, "batch": {"group_size": 2}},
)

ECHO = Preset(
    Objective(
        "echo",
        GroupMean(),
        GroupStd(),
        TokenRatio(),
        PPOClip(0.2, 0.2),
        TokenMean(),
        NoKL(),
        imitate=ImitateObserved(0.05),
    ),
    title="ECHO",
    paper="Terminal Agents Learn World Models for Free 2026, ECHO, arXiv 2605.24517",
    formula="J = J_GRPO + alpha / M_observed SUM log pi(what the environment wrote)",
    fixes="episodes that fail teach nothing: what tools answered is a lesson in any case, and its logits are there",
    breaks="capacity goes into long or random tool output; the weight must stay small",
    deviations=(
        "alpha 0.05 is the paper's as two reproductions give it (rllm, verl-recipe); prime-rl takes 0.1",
        "a denominator of its own, the step's observed tokens, is prime-rl's; others divide episode by episode",
        "every message of the environment counts, whoever speaks in it, with what the template writes around it;"
        " prime-rl: tool messages",
        "log pi is at temperature 1 and over the whole vocabulary, whatever the sampling",
    ),
    unverified="the paper itself; its loss was read in two implementations' descriptions",
    episodes=True,
)

RAE = Preset(
    Objective("rae", RunningRoleMean(0.95), NoScale(), TokenRatio(), OnPolicy(), SequenceSum(), NoKL()),
    title="RAE (SPIRAL)",
    paper="Liu et al. 2025, SPIRAL, arXiv 2506.24119",
    formula="A = R - b_role,  b_role <- 0.95^n b_role + (1 - 0.95^n) mean R over the role's n games",
    fixes="self-play: who moves first, or deals, wins more often, and one baseline for all roles teaches that alone",
    breaks="a running mean lags behind a policy that improves; it is 0 at first: the first steps push with all of R",
    deviations=(
        "the authors update b_role game by game, a game's own baseline included in the order; here all games of a step "
        "see the same one, and it then moves as far as their n updates would, towards the mean",
        "the authors keep a baseline per game and role; here a role's name is the key: name the game in it",
    ),
    episodes=True,
)


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
