"""Methods that learn from a teacher: another model, or the policy itself with more in its context."""

from __future__ import annotations

from whet.objective.aggregate import TokenMean
from whet.objective.clip import OnPolicy, Unclipped
from whet.objective.kl import NoKL
from whet.objective.policy import Objective
from whet.objective.presets.preset import Preset
from whet.objective.ratio import TokenRatio
from whet.objective.reference import MovingAverage
from whet.objective.scale import NoScale
from whet.objective.teacher import (
    CappedJensenShannon,
    EarlyTeacherGap,
    JensenShannonToTeacher,
    NoAdvantage,
    TeacherGap,
    TeacherReverseKL,
)

SINGLE = {"batch": {"group_size": 1, "prompts_per_step": 64}}
SMALL_SINGLE = {"batch": {"group_size": 1, "prompts_per_step": 128}}
# the built-in model's rate of SFT: a teacher's word on every token is as dense a signal as a demonstration
SMALL_TAUGHT = {**SMALL_SINGLE, "optimizer": {"learning_rate": 1e-3}}

OPD = Preset(
    Objective("opd", TeacherGap(), NoScale(), TokenRatio(), Unclipped(), TokenMean(), NoKL()),
    title="OPD",
    paper="Lu and Thinking Machines Lab 2025, On-Policy Distillation; after Agarwal et al. 2023, arXiv 2306.13649",
    formula="A_t = log teacher(a_t) - log pi_old(a_t),  J = 1/M SUM r_t A_t",
    fixes="one bit of reward per completion: a teacher grades every token, where the student really goes",
    breaks="needs a teacher that knows the student's tokens; what the teacher lacks cannot be learned",
    deviations=(
        "the ratio is not clipped, as in the authors' importance-sampling loss; with one update it is 1",
        "no sum to go: each token answers for its own gap (the authors' discount of 0)",
        "the teacher's temperature is 1 unless teacher.temperature says otherwise",
    ),
    unverified="the authors' text; the formula is that of prime-rl, verl and TRL",
    run=SINGLE,
    small_run=SMALL_TAUGHT,
)

IW_OPD = Preset(
    Objective("iw_opd", EarlyTeacherGap(0.5), NoScale(), TokenRatio(), OnPolicy(), TokenMean(), NoKL()),
    title="IW-OPD",
    paper="IW-OPD 2026, arXiv 2606.22600",
    formula="A_t = (1 + g (1 - SUM_(s<t) |d_s| / SUM |d|)) d_t,  d = log(teacher/pi_old),  g = 0.5",
    fixes="late tokens stand on prefixes that the teacher would never have written: its verdict there is noise",
    breaks="weights of 1 to 1 + g: a longer step, unless the rate is lowered",
    deviations=("as TRL's trainer has it: no ratio, no clip, the mean over the step's tokens",),
    unverified="the paper itself; its formula was read in TRL's iw_opd trainer and in a test that derives it",
    run=SINGLE,
    small_run=SMALL_TAUGHT,
)

OPD_FULL = Preset(
    Objective(
        "opd_full",
        NoAdvantage(),
        NoScale(),
        TokenRatio(),
        OnPolicy(),
        TokenMean(),
        NoKL(),
        teacher=TeacherReverseKL(1.0),
    ),
    title="OPD, whole distributions",
    paper="after Agarwal et al. 2023, arXiv 2306.13649, and Gu et al. 2023, MiniLLM, arXiv 2306.08543",
    formula="L = 1/M SUM KL(pi, teacher) over the whole vocabulary, at the policy's own tokens",
    fixes="the noise of judging a state by the one token that was sampled there",
    breaks="the teacher's logits at every pass, or its likeliest tokens (teacher.top_k); no gradient through sampling",
    deviations=("MiniLLM's long-term part, its mixed sampling and its length norm are left out",),
    unverified="the papers themselves; the divergence was read in TRL and in a summary",
    run=SINGLE,
    small_run=SMALL_TAUGHT,
)

GKD = Preset(
    Objective(
        "gkd",
        NoAdvantage(),
        NoScale(),
        TokenRatio(),
        OnPolicy(),
        TokenMean(),
        NoKL(),
        teacher=JensenShannonToTeacher(1.0, 0.5),
    ),
    title="GKD",
    paper="Agarwal et al. 2023, On-Policy Distillation of Language Models, arXiv 2306.13649",
    formula="L = 1/M SUM beta KL(teacher, m) + (1 - beta) KL(pi, m),  m = beta teacher + (1 - beta) pi",
    fixes="a student that only ever saw prefixes of the teacher's, and a divergence that is too large for it",
    breaks="two models in every pass; beta, lambda and the temperature depend on the task",
    deviations=(
        "beta 0.5 is TRL's default; at 0 and 1 the paper means the KLs: objective.teacher=forward_kl, reverse_kl",
        "the mean over the step's tokens",
        "every completion is the policy's own: the paper's lambda is 1",
    ),
    unverified="the papers themselves; the divergence was read in TRL and in a summary",
    run=SINGLE,
    small_run=SMALL_TAUGHT,
)

SDPO = Preset(
    Objective(
        "sdpo",
        NoAdvantage(),
        NoScale(),
        TokenRatio(),
        OnPolicy(),
        TokenMean(),
        NoKL(),
        reference=MovingAverage(0.95),
        teacher=CappedJensenShannon(1.0, 0.5, 2.0),
    ),
    title="SDPO",
    paper="Huebotter et al. 2026, Reinforcement Learning via Self-Distillation, arXiv 2601.20802",
    formula="L = 1/M SUM min(r, 2) JSD(pi(x), pi_avg(x with a right sibling)) over the policy's top 100 and the rest",
    fixes="one bit per completion: a right sibling in the context says which tokens of a wrong one were wrong",
    breaks="a model too small to use what it reads teaches nothing; groups without a right completion are left out",
    deviations=(
        "the moving average keeps 0.95, top 100, ceiling 2 and the words around the solution are TRL's",
        "a right completion reads another right one, where there is one; TRL leaves that to a setting",
        "feedback of the row, without a sibling: teacher.context=feedback",
    ),
    unverified="the paper itself; read in TRL's trainer and in a reimplementation of the authors' code",
    run={"teacher": {"name": "self", "context": "sibling", "top_k": 100, "top_of": "policy"}},
    small_run={"teacher": {"name": "self", "context": "sibling", "top_k": 20, "top_of": "policy"}},
)

SDFT = Preset(
    Objective("sdft", TeacherGap(), NoScale(), TokenRatio(), Unclipped(), TokenMean(), NoKL()),
    title="SDFT",
    paper="Shenfeld et al. 2026, Self-Distillation Enables Continual Learning, arXiv 2601.19897",
    formula="A_t = log pi_0(a_t | x with a demonstration) - log pi_old(a_t | x),  J = 1/M SUM r_t A_t",
    fixes="imitating demonstrations off-policy forgets what they do not show: the policy's own words are trained here",
    breaks="the policy must be able to use a demonstration that it reads: small models often are not",
    deviations=(
        "on the sampled token, as prime-rl's opsd; over distributions: objective.baseline=none, objective.teacher="
        "reverse_kl and teacher.top_k",
        "the teacher is the first policy, TRL's default; a moving average: objective.reference=ema",
        "the words around the demonstration are whet's: teacher.template",
    ),
    unverified="the paper itself; title and authors from memory, the formula from prime-rl and TRL",
    run={**SINGLE, "teacher": {"name": "self", "context": "demonstration"}},
    small_run={**SMALL_SINGLE, "teacher": {"name": "self", "context": "demonstration"}},
)

EVERY = (OPD, IW_OPD, OPD_FULL, GKD, SDPO, SDFT)
