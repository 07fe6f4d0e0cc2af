"""Components that no preset uses, and other readings of a formula: each a changed method with its own naive form."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from math import exp, prod

import torch

from tests.oracle.papers import (
    clip_cov,
    dppo_kl,
    dppo_tv,
    group_mean_to_go,
    gspo_token,
    kl_cov,
    reinforce_pp,
    running_mean,
    sequence_ratio,
    simko,
)
from tests.oracle.papers_bands import bapo, ce_gppo, dcpo, delta_l, entropic, fipo, real
from tests.oracle.papers_credit import (
    compared_turns,
    earned,
    grpo_process,
    ppo,
    ppo_critic,
    squared_error,
    step_scores,
    step_sum,
    steps_ahead,
    turn_index_rewards,
    turn_return,
    turn_returns,
    vapo,
    vtrace_paper,
    vtraced,
)
from tests.oracle.papers_off_policy import asym_re, chord, m2po, scheduled, topr_by_tokens
from tests.oracle.papers_teacher import sdpo
from tests.support.naive_losses import (
    FLOOR,
    centred,
    clipped,
    cost,
    each_token,
    fixed_length,
    held,
    k2,
    k3,
    mean,
    on_tokens,
    paid_reward,
    plus,
    ratio,
    score_function,
    sequence_mean,
    sequence_sum,
    standardised,
    strayed,
    token_mean,
    whitened,
)


@dataclass(frozen=True)
class Variation:
    preset: str
    changes: dict
    paper: Callable  # of a Case: J
    critic: Callable | None = None  # of a Case: the critic's loss
    batch: dict = field(default_factory=dict)  # arguments of random_batch
    steps: bool = False  # process rewards are given


VARIATIONS: dict[str, Variation] = {}


def varied(name, preset, changes, *, critic=None, steps=False, **batch):
    """Enter a naive form under a name of its own."""

    def enter(paper):
        VARIATIONS[name] = Variation(preset, changes, paper, critic, batch, steps)
        return paper

    return enter


# baselines and scales


@varied("mixed_mean", "dr_grpo", {"baseline": "mixed_mean", "aggregate": "token_mean"})
def mixed_mean(case):
    """b = 0.8 mean of the others + 0.2 moving average of past steps."""
    advantage = []
    for i in case.completions():
        others = [case.reward[j] for j in case.others(i)]
        if case.reward[i] is None:
            advantage.append(0.0)
            continue
        group = mean(others) if others else case.reward[i]
        advantage.append(case.reward[i] - 0.8 * group - 0.2 * running_mean(case))
    return token_mean(clipped(case, on_tokens(case, advantage)))


@varied("drawn_mean", "grpo", {"baseline": "drawn_mean", "scale": "drawn_std", "kl": "none"})
def drawn_mean(case):
    """Against the mean and spread of every completion drawn for the prompt."""
    advantage = [
        0.0 if case.reward[i] is None else (case.reward[i] - case.drawn[i][1]) / (case.drawn[i][2] + FLOOR)
        for i in case.completions()
    ]
    return sequence_mean(clipped(case, on_tokens(case, advantage)))


@varied("pass_at_k_marginal", "pass_at_k", {"baseline": "pass_at_k_marginal", "baseline.k": 3}, group_size=5)
def pass_at_k_marginal(case, k=3):
    """2505.15201: the share of sets of k - 1 others in which nobody else was right, less the mean of the others'."""
    added = []
    for i in case.completions():
        others = list(combinations(case.others(i), k - 1))
        lonely = [not any(case.right(j) for j in chosen) for chosen in others]
        added.append(mean(lonely) if case.right(i) and others else 0.0)
    advantage = []
    for i in case.completions():
        others = [added[j] for j in case.others(i)]
        few = case.reward[i] is None or len(others) < k - 1
        advantage.append(0.0 if few else added[i] - mean(others))
    return token_mean(clipped(case, on_tokens(case, advantage)))


def best_minus_second(case):
    """2503.19595: only the best completion, by how much it beats the second."""
    advantage = []
    for i in case.completions():
        others = [case.reward[j] for j in case.others(i)]
        alone = case.reward[i] is None or not others
        advantage.append(0.0 if alone else max(case.reward[i] - max(others), 0.0))
    return advantage


@varied("best_minus_second", "pass_at_k", {"baseline": "best_minus_second"})
def best_plain(case):
    return token_mean(clipped(case, on_tokens(case, best_minus_second(case))))


@varied("best_minus_second over std", "pass_at_k", {"baseline": "best_minus_second", "scale": "group_std"})
def best_over_std(case):
    above = standardised(case)
    difference = centred(case)
    # A / std is the standardised reward times A over the centred one
    scale = [above[i] / difference[i] if difference[i] else 0.0 for i in case.completions()]
    return token_mean(
        clipped(case, on_tokens(case, [each * scale[i] for i, each in enumerate(best_minus_second(case))]))
    )


@varied("whitened tokens", "reinforce_pp_baseline", {"scale": "whiten_tokens"})
def pp_baseline_whitened(case):
    """The authors' code also takes the mean over tokens off."""
    return sequence_mean(clipped(case, whitened(case, group_mean_to_go(case, 0.001))))


@varied("discounted return", "reinforce_pp", {"baseline.gamma": 0.9})
def discounted_return(case):
    return reinforce_pp(case, gamma=0.9)


@varied(
    "discounted gae",
    "ppo",
    {"baseline.gamma": 0.9, "baseline.lam": 0.7, "kl.beta": 0.1},
    critic=lambda case: ppo_critic(case, beta=0.1, gamma=0.9, lam=0.7),
)
def discounted_gae(case):
    return ppo(case, beta=0.1, gamma=0.9, lam=0.7)


@varied("gae with process rewards", "ppo", {}, critic=ppo_critic, steps=True)
def gae_with_steps(case):
    """A step's score is paid on its last token; the outcome still comes at the end."""
    return ppo(case)


@varied(
    "longer lam", "vapo", {"baseline.alpha": 0.2}, critic=lambda case: ppo_critic(case, beta=0.0, lam=1.0), budget=40
)
def longer_lam(case):
    return vapo(case, alpha=0.2)


TRACE = {"rho_bar": 1.5, "c_bar": 0.8, "lam": 0.9, "gamma": 0.95}


@varied(
    "truncated traces",
    "vtrace",
    {f"baseline.{name}": number for name, number in TRACE.items()},
    critic=lambda case: squared_error(case, [v for v, _ in vtraced(case, **TRACE)]),
)
def truncated_traces(case):
    return vtrace_paper(case, **TRACE)


def traced(case):
    """(v, A) with traces cut at 1 and no ratio in front of the surprises."""
    rewards, found = earned(case), []
    for i in case.completions():
        size, value = len(rewards[i]), [*case.value[i], 0.0]
        surprise = [rewards[i][t] + value[t + 1] - value[t] for t in range(size)]
        cut = [min(1.0, exp(case.old[i][t] - case.behavior[i][t])) for t in case.tokens(i)]
        v = [value[t] + sum(prod(cut[t:s]) * surprise[s] for s in range(t, size)) for t in range(size)]
        ahead = [*v[1:], 0.0]
        gain = [rewards[i][t] + ahead[t] - value[t] for t in range(size)]
        found.append((v, gain if case.reward[i] is not None else [0.0] * size))
    return found


@varied(
    "traces alone",
    "vtrace",
    {"baseline": "trace"},
    critic=lambda case: squared_error(case, [v for v, _ in traced(case)]),
)
def traces_alone(case):
    return token_mean(score_function(case, [gain for _, gain in traced(case)]))


@varied("step_mean", "grpo_process", {"baseline": "step_mean"}, steps=True)
def step_mean(case):
    scores = step_scores(case)

    def each(i, t):
        ahead = steps_ahead(scores[i], t)
        return mean(ahead) if ahead else 0.0

    return grpo_process(case, advantage=each_token(case, each))


@varied("step_delta", "grpo_process", {"baseline": "step_delta"}, steps=True)
def step_delta(case):
    """Each step earns its score less that of the step before; its own tokens share it."""
    changes = []
    for i in case.completions():
        before, row = 0.0, []
        for score in case.step_reward[i]:
            row.append(None if score is None else score - before)
            before = before if score is None else score
        changes.append(row)
    scores = step_scores(case, changes)
    return grpo_process(case, advantage=each_token(case, lambda i, t: next(iter(steps_ahead(scores[i], t)), 0.0)))


@varied("turn_return", "gigpo", {"baseline": "turn_return", "baseline.gamma": 0.9}, steps=True)
def discounted_turns(case):
    return token_mean(clipped(case, turn_return(case, 0.9)))


@varied("turn_index_rewards", "rloo_turns", {"baseline": "turn_index_rewards", "baseline.gamma": 0.8}, steps=True)
def by_turn_index(case):
    return fixed_length(clipped(case, turn_index_rewards(case, 0.8)), case.budget)


@varied("turn_mean", "rloo_turns", {"aggregate": "turn_mean"}, steps=True)
def turn_mean(case):
    """Each turn of a trajectory counts the same, each trajectory too."""
    terms, found = clipped(case, turn_return(case)), []
    for i in case.completions():
        turns = {}
        for t in case.tokens(i):
            turns.setdefault(case.segment[i][t], []).append(terms[i][t])
        found.append(mean([mean(turn) for turn in turns.values()]))
    return mean(found)


@varied("anchored steps without process rewards", "gigpo", {"baseline.weight": 0.5, "baseline.gamma": 0.8})
def anchored_steps(case):
    whole = [None if case.reward[i] is None else case.reward[i] for i in case.completions()]
    steps = compared_turns(case, turn_returns(case, 0.8), lambda i, t: case.anchor[i][t])
    return token_mean(clipped(case, plus(on_tokens(case, centred(case, whole)), steps, 0.5)))


@varied("token credit under a completion's ratio", "gspo_token", {"baseline": "step_sum", "scale": "none"}, steps=True)
def gspo_token_steps(case):
    """Where GSPO-token is not GSPO: the clip looks at the sign of each token's advantage."""
    return gspo_token(case, advantage=step_sum(case))


# ratios and clips


@varied(
    "sequence_product",
    "grpo",
    {"ratio": "sequence_product", "aggregate": "sequence_sum", "kl": "none"},
    drift=0.1,
)
def sequence_product(case):
    """The completion as one action: min(Pi A, clip(Pi) A)."""
    advantage = standardised(case)

    def whole(i):
        return torch.exp(sum(case.logp[i][t] - case.old[i][t] for t in case.tokens(i)))

    return mean([held(whole(i), advantage[i]) for i in case.completions()])


@varied("capped variation", "dppo_tv", {"clip.ceiling": 1.3, "clip.low": 0.3})
def capped_variation(case):
    return dppo_tv(case, low=0.3, cap=1.3)


@varied("capped divergence", "dppo_kl", {"clip.ceiling": 1.1})
def capped_divergence(case):
    return dppo_kl(case, cap=1.1)


@varied("edges kept unevenly", "ce_gppo", {"clip.low": 0.1, "clip.share_low": 0.0, "clip.share_high": 0.5})
def uneven_edges(case):
    return ce_gppo(case, low=0.1, below=0.0, above=0.5)


@varied(
    "narrow probability band",
    "dcpo",
    {"clip.low": 0.01, "clip.high": 0.02, "clip.ceiling": 1.4, "baseline": "group_mean", "scale": "group_std"},
)
def narrow_band(case):
    return dcpo(case, low=0.01, high=0.02, ceiling=1.4, advantage=standardised(case))


@varied("short memory of the future", "fipo", {"clip.half_life": 1.5, "clip.reach": 2.0, "clip.safe": 1.5})
def short_future(case):
    return fipo(case, half_life=1.5, reach=2.0, safe=1.5)


@varied("half the inverse length", "delta_l", {"aggregate.power": 0.5})
def half_length(case):
    return delta_l(case, power=0.5)


@varied("gentle tilt", "entropic", {"baseline.nats": 0.1, "kl.beta": 0.3})
def gentle_tilt(case):
    return entropic(case, nats=0.1, lam=0.3)


@varied("tight moment", "m2po", {"clip.limit": 0.002})
def tight_moment(case):
    return m2po(case, limit=0.002)


@varied("wanting balance", "bapo", {"clip.target": 1.6, "clip.step": 0.03})
def wanting_balance(case):
    return bapo(case, target=1.6, step=0.03)


@varied("sharp softmax", "rewards_as_labels", {"clip.tau": 0.1})
def sharp_softmax(case):
    return real(case, tau=0.1)


@varied("tapered tokens", "topr", {"ratio": "sampler_token"})
def tapered_tokens(case):
    return topr_by_tokens(case)


@varied("shifted up", "asym_re", {"baseline.shift": 0.3})
def shifted_up(case):
    return asym_re(case, shift=0.3)


@varied("dual clip of the group", "grpo", {"clip": "dual_clip", "kl": "none"}, drift=1.0)
def dual_clip(case):
    advantage = standardised(case)

    def term(i, t):
        single = held(ratio(case, i, t), advantage[i])
        if advantage[i] >= 0:
            return single
        return torch.maximum(single, torch.full_like(single, 3.0 * advantage[i]))

    return sequence_mean(each_token(case, term))


# the tie to the reference


def tied(name, estimate, **batch):
    """beta = 0.3 in the loss."""

    @varied(f"{name} in the loss", "grpo", {"kl": name, "kl.beta": 0.3}, **batch)
    def paper(case):
        policy = clipped(case, on_tokens(case, standardised(case)))
        return sequence_mean(plus(policy, each_token(case, lambda i, t: estimate(case, i, t)), -0.3))


tied("k2", lambda case, i, t: k2(strayed(case, i, t)))
tied("k3_corrected", lambda case, i, t: ratio(case, i, t) * k3(strayed(case, i, t)))
tied("abs", lambda case, i, t: strayed(case, i, t).abs())
tied("full", lambda case, i, t: case.divergence[i][t])
tied("k3_old", lambda case, i, t: (ratio(case, i, t) - 1) - torch.log(ratio(case, i, t)))
tied("k2_old", lambda case, i, t: (case.logp[i][t] - case.old[i][t]) ** 2 / 2)
tied("k2_sampler", lambda case, i, t: (case.logp[i][t] - case.behavior[i][t]) ** 2 / 2)
tied("abs_old", lambda case, i, t: (case.logp[i][t] - case.old[i][t]).abs())


def priced(name, estimate):
    """beta = 0.2 in the reward."""

    @varied(f"{name} of the completion", "grpo", {"kl": name, "kl.beta": 0.2})
    def paper(case):
        return sequence_mean(clipped(case, on_tokens(case, standardised(case, paid_reward(case, 0.2, estimate)))))


priced("k1_reward", lambda u: u)
priced("k2_reward", k2)
priced("k3_reward", k3)
priced("abs_reward", abs)


@varied("remax summed", "remax", {"kl": "k1_reward", "kl.beta": 0.05})
def remax_summed(case):
    """The whole completion's KL in its reward; the greedy reward pays none."""
    paid = paid_reward(case, 0.05)
    advantage = [0.0 if paid[i] is None else paid[i] - case.greedy[i] for i in case.completions()]
    return token_mean(score_function(case, on_tokens(case, advantage)))


@varied("k1_immediate behind a scale", "grpo", {"kl": "k1_immediate", "kl.beta": 0.2})
def immediate(case):
    each = standardised(case)
    advantage = each_token(case, lambda i, t: 0.0 if case.reward[i] is None else each[i] - cost(case, i, t, 0.2))
    return sequence_mean(clipped(case, advantage))


# the reward's shape


@varied("length_cost", "grpo", {"shape": "length_cost", "shape.cost": 0.5, "kl": "none"})
def length_cost(case):
    shaped = [
        None if case.reward[i] is None else case.reward[i] - 0.5 * len(case.logp[i]) / case.budget
        for i in case.completions()
    ]
    return sequence_mean(clipped(case, on_tokens(case, standardised(case, shaped))))


@varied("clipped reward", "grpo", {"shape": "clip", "shape.low": 0.3, "shape.high": 1.2, "kl": "none"})
def clipped_reward(case):
    shaped = [None if reward is None else min(max(reward, 0.3), 1.2) for reward in case.reward]
    return sequence_mean(clipped(case, on_tokens(case, standardised(case, shaped))))


# the sampler is not the trainer


def corrected(name, factor, **numbers):
    """The method's weight times a stopped factor; the KL term is left alone."""
    changes = {"mismatch": name, **{f"mismatch.{key}": number for key, number in numbers.items()}}

    @varied(f"mismatch {name}", "grpo", changes)
    def paper(case):
        advantage = standardised(case)

        def term(i, t):
            gain = factor(case, i, t, advantage[i]) * held(ratio(case, i, t), advantage[i])
            return gain - 0.04 * k3(strayed(case, i, t))

        return sequence_mean(each_token(case, term))


def rho(case, i, t):
    return exp(case.old[i][t] - case.behavior[i][t])


def mean_rho(case, i):
    return exp(mean([case.old[i][t] - case.behavior[i][t] for t in case.tokens(i)]))


def product_rho(case, i):
    return exp(sum(case.old[i][t] - case.behavior[i][t] for t in case.tokens(i)))


def stale(case, i):
    return mean([case.behavior[i][t] - float(case.logp[i][t].detach()) for t in case.tokens(i)])


corrected("truncate", lambda case, i, t, a: min(rho(case, i, t), 2.0))
corrected("truncate_sequence", lambda case, i, t, a: min(product_rho(case, i), 2.0))
corrected("mask", lambda case, i, t, a: rho(case, i, t) if 0.5 <= rho(case, i, t) <= 5 else 0.0)
corrected(
    "sequence_mask",
    lambda case, i, t, a: rho(case, i, t) if 0.9 <= mean_rho(case, i) <= 1.1 else 0.0,
    low=0.9,
    high=1.1,
)
corrected("stale_mask", lambda case, i, t, a: 0.0 if a < 0 and stale(case, i) > 0.05 else 1.0, limit=0.05)


@varied("corrected on-policy method", "rloo", {"mismatch": "truncate", "mismatch.ceiling": 1.2, "kl": "none"})
def corrected_rloo(case):
    advantage = []
    for i in case.completions():
        others = [case.reward[j] for j in case.others(i)]
        advantage.append(case.reward[i] - mean(others) if others and case.reward[i] is not None else 0.0)
    return sequence_sum(each_token(case, lambda i, t: min(rho(case, i, t), 1.2) * advantage[i] * case.logp[i][t]))


# which tokens


@varied("finished", "dapo", {"select": "finished", "shape": "none"})
def finished(case):
    """Truncated completions stay in the statistics of their group and leave everything else."""
    terms = clipped(case, on_tokens(case, standardised(case)), 0.2, 0.28)
    return token_mean([row for i, row in enumerate(terms) if case.finished[i]])


@varied("finished_turns", "dapo", {"select": "finished_turns", "shape": "none"})
def finished_turns(case):
    """Truncated turns stay in the statistics and leave everything else."""
    terms = clipped(case, on_tokens(case, standardised(case)), 0.2, 0.28)
    kept = [[term for t, term in enumerate(row) if not case.truncated[i][t]] for i, row in enumerate(terms)]
    return token_mean([row for row in kept if row])


@varied("finished turns of a trajectory", "grpo", {"select": "finished_turns", "kl": "none"})
def finished_turns_count(case):
    terms = clipped(case, on_tokens(case, standardised(case)))
    kept = [[term for t, term in enumerate(row) if not case.truncated[i][t]] for i, row in enumerate(terms)]
    return sequence_mean([row for row in kept if row])


@varied("finished completions count", "gspo", {"select": "finished"}, drift=0.02)
def finished_completions(case):
    advantage = standardised(case)
    kept = [i for i in case.completions() if case.finished[i]]
    return mean([held(sequence_ratio(case, i), advantage[i], 3e-4, 4e-4) for i in kept])


@varied("top_entropy", "dapo", {"select": "top_entropy", "select.share": 0.3, "shape": "none"})
def top_entropy(case):
    """The least sure 30 % of the batch's tokens learn; the denominator keeps all."""
    terms = clipped(case, on_tokens(case, standardised(case)), 0.2, 0.28)
    ordered = sorted((each for row in case.entropy_before for each in row), reverse=True)
    edge = ordered[int(0.3 * len(ordered)) - 1]
    return token_mean(
        [
            [term if case.entropy_before[i][t] >= edge else 0.0 * term for t, term in enumerate(row)]
            for i, row in enumerate(terms)
        ]
    )


@varied("wide clip_cov", "clip_cov", {"select.share": 0.1, "select.low": 0.2})
def wide_clip_cov(case):
    return clip_cov(case, share=0.1, low=0.2)


@varied("wide kl_cov", "kl_cov", {"select.share": 0.1, "kl.beta": 0.5})
def wide_kl_cov(case):
    return kl_cov(case, share=0.1, beta=0.5)


# terms of their own


@varied("entropy bonus", "dr_grpo", {"entropy": "bonus", "entropy.weight": 0.05, "aggregate": "token_mean"})
def entropy_bonus(case):
    terms = clipped(case, on_tokens(case, centred(case)))
    return token_mean(plus(terms, case.entropy, 0.05))


@varied("entropy bonus to a target", "grpo", {"entropy": "bonus_to_target", "kl": "none"})
def entropy_target(case):
    """The coefficient the controller has arrived at; it acts with the method's own shares."""
    terms = clipped(case, on_tokens(case, standardised(case)))
    return sequence_mean(plus(terms, case.entropy, case.memory["entropy_weight"]))


@varied("clipped_error", "ppo", {"value": "clipped_error"}, critic=lambda case: ppo_critic(case, width=0.2))
def clipped_error(case):
    return ppo(case)


@varied("strong smoothing", "simko", {"smooth.share": 0.3, "smooth.quantile": 0.3, "smooth.push": 2.0})
def strong_smoothing(case):
    return simko(case, share=0.3, push=2.0, level=0.3)


@varied("imitation without a critic", "grpo", {"imitate": "right_completions", "imitate.weight": 0.3, "kl": "none"})
def imitation(case):
    policy = sequence_mean(clipped(case, on_tokens(case, standardised(case))))
    right = [each for i in case.completions() if case.right(i) for each in case.logp[i]]
    return policy + 0.3 * sum(right) / max(len(right), 1)


# a teacher


@varied("forward KL to a teacher beside a reward", "dr_grpo", {"teacher": "forward_kl", "teacher.strength": 0.3})
def beside_a_reward(case):
    policy = fixed_length(clipped(case, on_tokens(case, centred(case))), case.budget)
    scored = each_token(case, lambda i, t: case.from_teacher[i][t] * (0.0 if case.reward[i] is None else 1.0))
    return policy - 0.3 * fixed_length(scored, case.budget)


@varied("capped divergence from a teacher", "gkd", {"teacher": "jsd_capped"})
def capped_lesson(case):
    return sdpo(case)


# imitation of demonstrations


PEAKS = {"imitate.weight": 0.9, "imitate.last": 0.2, "imitate.warmup": 2, "imitate.decay": 5}


@varied("demonstrations", "chord", {"imitate": "demonstrations", **PEAKS})
def chord_mu(case):
    """CHORD-mu in its fourth step: no phi, and mu on its way down."""
    return chord(case, mu=scheduled(4, peak=0.9, valley=0.2, warmup=2, decay=5), phi=lambda p: 1.0)


@varied("demonstrations in the warmup", "chord", {"imitate.weight": 0.9, "imitate.warmup": 5})
def chord_warmup(case):
    return chord(case, mu=scheduled(4, peak=0.9, valley=0.9, warmup=5, decay=0))
