"""PPO and the methods that, like it, train a critic."""

from __future__ import annotations

from whet.objective.aggregate import TokenMean
from whet.objective.clip import DualClip, OnPolicy, PPOClip, Unclipped
from whet.objective.control import Doubling
from whet.objective.credit import GAE, DecoupledGAE, VTrace
from whet.objective.keep import Fresh
from whet.objective.kl import K1Reward, K3Old, NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import TokenRatio
from whet.objective.scale import NoScale, WhitenTokens
from whet.objective.terms import ImitateRight, SquaredError

SMALL_CRITIC = {"critic": {"learning_rate": 1e-3}}  # it starts from nothing and has 40 steps

PPO = Preset(
    Objective(
        "ppo",
        GAE(1.0, 0.95),
        WhitenTokens(),
        TokenRatio(),
        PPOClip(0.2, 0.2),
        TokenMean(),
        K1Reward(0.02),
        value=SquaredError(0.1),
    ),
    title="PPO",
    paper="Schulman et al. 2017, arXiv 1707.06347; for language models Ouyang et al. 2022, arXiv 2203.02155",
    formula="J = E min(r A, clip(r, 0.8, 1.2) A) - c (V - T)^2 / 2,  A = GAE(1, 0.95),  r_t -= beta log(pi/ref)",
    fixes="credit for each token",
    breaks="a badly fitted critic poisons every advantage without a sign; two trained models",
    deviations=(
        "gamma 1: a completion has one terminal reward; beta 0.02 is InstructGPT's; lam 0.95 and c 0.1 are TRL's",
        "no clipping of the value by default (objective.value=clipped_error has it), no entropy bonus",
        "V behind the last token is 0, for truncated completions too",
    ),
    run={"batch": {"updates_per_step": 4}},
    small_run=SMALL_CRITIC,
)

PPO_DUAL = Preset(
    Objective(
        "ppo_dual",
        GAE(1.0, 0.95),
        WhitenTokens(),
        TokenRatio(),
        DualClip(0.2, 0.2, 3.0),
        TokenMean(),
        K1Reward(0.02),
        value=SquaredError(0.1),
    ),
    title="PPO, dual clip",
    paper="Ye et al. 2020, arXiv 1912.09729",
    formula="for A < 0: max(min(r A, clip(r) A), 3 A)",
    fixes="huge updates on stale bad tokens",
    breaks="those tokens can no longer be pulled down",
    deviations=("all but the clip is this package's PPO",),
    run={"batch": {"updates_per_step": 4}},
    small_run=SMALL_CRITIC,
)

PPO_PENALTY = Preset(
    Objective(
        "ppo_penalty",
        GAE(1.0, 0.95),
        WhitenTokens(),
        TokenRatio(),
        Unclipped(),
        TokenMean(),
        K3Old(1.0),
        value=SquaredError(0.1),
        control=Doubling(0.01),
    ),
    title="PPO, adaptive KL penalty",
    paper="Schulman et al. 2017, section 4, arXiv 1707.06347",
    formula="J = E[ r A - beta KL(old, pi) ],  beta halved or doubled to keep the KL near its target",
    fixes="the dead zones of a clip",
    breaks="holds to the policy that wrote the batch, not to a reference; inert with one update per batch",
    deviations=(
        "the KL is the estimate r - 1 - log r on sampled tokens: 0 at ratio 1 and quieter than log(old/pi)",
        "the factors 2 and 1.5, the target 0.01 and beta 1 at the start are not read in the paper",
    ),
    run={"batch": {"updates_per_step": 4}},
    small_run=SMALL_CRITIC,
)

VAPO = Preset(
    Objective(
        "vapo",
        DecoupledGAE(0.05, 1.0),
        WhitenTokens(),
        TokenRatio(),
        PPOClip(0.2, 0.28),
        TokenMean(),
        NoKL(),
        imitate=ImitateRight(0.1),
        value=SquaredError(0.1, warmup=10),
    ),
    title="VAPO",
    paper="Yue et al. 2025, VAPO, arXiv 2504.05118",
    formula="PPO with lam_i = 1 - 1/(0.05 n_i), critic lam 1, clip 0.2/0.28, + 0.1 NLL of right completions",
    fixes="the critic's bias on long completions, mixed lengths, sparse rewards",
    breaks="everything a critic costs; completions under 20 tokens get lam 0",
    deviations=(
        "10 steps in which only the critic learns (a summary says about 50), whitening and c = 0.1 are whet's choice",
        "right means that the reward's first part is 1",
    ),
    run={"batch": {"updates_per_step": 4}},
    small_run={**SMALL_CRITIC, "objective": {"baseline": {"alpha": 1.0}, "value": {"warmup": 5}}},
)

VTRACE = Preset(
    Objective(
        "vtrace",
        VTrace(),
        NoScale(),
        TokenRatio(),
        OnPolicy(),
        TokenMean(),
        NoKL(),
        keep=Fresh(4),
        value=SquaredError(0.1),
    ),
    title="V-trace",
    paper="Espeholt et al. 2018, IMPALA, arXiv 1802.01561",
    formula="A_t = rho_t (r_t + v_{t+1} - V_t),  v by the truncated traces rho, c = min(1, pi/mu)",
    fixes="completions of an older policy: both the critic's target and the advantage are corrected",
    breaks="a product of thousands of c leaves nothing of the terminal reward at the first tokens",
    deviations=("at most 4 versions of staleness and c = 0.1 are whet's choice",),
    run={"batch": {"staleness": 1}},
    small_run=SMALL_CRITIC,
)
