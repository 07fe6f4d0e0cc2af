"""The papers' objectives, transcribed naively: loops over completions and tokens, torch's own gradient.

Each takes a `Case` (ragged lists of the trained tokens) and returns the objective J to maximise; CRITICS hold the loss
of the methods with a critic. Nothing here is shared with whet.objective.
"""

from itertools import combinations
from math import exp, log, sqrt

import torch

from tests.oracle.papers_bands import BANDS
from tests.oracle.papers_credit import (
    gigpo,
    grpo_process,
    ppo,
    ppo_critic,
    ppo_dual,
    ppo_penalty,
    rloo_tree,
    rloo_turns,
    squared_error,
    tree_grpo,
    vapo,
    vtrace_paper,
    vtraced,
)
from tests.oracle.papers_off_policy import OFF_POLICY
from tests.oracle.papers_teacher import TEACHER
from tests.support.naive_losses import (
    FLOOR,
    centred,
    clipped,
    cost,
    deviation,
    each_token,
    earned,
    fixed_length,
    flat,
    held,
    k3,
    mean,
    on_tokens,
    paid_reward,
    plus,
    ratio,
    sampler_ratio,
    score_function,
    sequence_mean,
    sequence_sum,
    standardised,
    strayed,
    to_go,
    token_mean,
    whitened,
    whitened_completions,
)

# without a critic


def running_mean(case):
    return case.memory["running_sum"] / case.memory["running_mass"]


def reinforce(case):
    """Williams 1992: (R - b) SUM_t log pi, averaged over episodes."""
    advantage = [0.0 if reward is None else reward - running_mean(case) for reward in case.reward]
    return sequence_sum(score_function(case, on_tokens(case, advantage)))


def rloo(case, *, beta=0.03):
    """Back to Basics (2402.14740): the whole completion is one action, its reward pays for the KL, the others are b."""
    paid = paid_reward(case, beta)
    advantage = []
    for i in case.completions():
        others = [paid[j] for j in case.others(i)]
        advantage.append(paid[i] - mean(others) if others and paid[i] is not None else 0.0)
    return sequence_sum(score_function(case, on_tokens(case, advantage)))


def remax(case, *, beta=0.05):
    """ReMax (2310.10505), the authors' KL: each token pays for itself, nothing is summed to go."""
    advantage = each_token(
        case,
        lambda i, t: 0.0 if case.reward[i] is None else case.reward[i] - case.greedy[i] - cost(case, i, t, beta),
    )
    return token_mean(score_function(case, advantage))


def reinforce_pp(case, *, beta=0.001, gamma=1.0):
    """REINFORCE++ (2501.03262): the KL in token rewards, return to go, whitened over the tokens of the batch."""
    return sequence_mean(clipped(case, whitened(case, to_go(earned(case, beta), gamma))))


def group_mean_to_go(case, beta):
    return to_go(earned(case, beta, centred(case)))


def reinforce_pp_baseline(case, *, beta=0.001):
    """The same paper: the group mean off the outcome, the KL to go, divided by the spread over tokens."""
    advantage = group_mean_to_go(case, beta)
    spread = deviation([value for i in case.scored() for value in advantage[i]])
    return sequence_mean(clipped(case, [[value / (spread + FLOOR) for value in row] for row in advantage]))


# the group as the baseline


def grpo(case, *, low=0.2, high=0.2, beta=0.04):
    """DeepSeekMath (2402.03300) eq. 3 and 4, with the group's mean and std of section 4.1.1."""
    policy = clipped(case, on_tokens(case, standardised(case)), low, high)
    return sequence_mean(plus(policy, each_token(case, lambda i, t: k3(strayed(case, i, t))), -beta))


def grpo_r1(case, *, beta=0.001):
    """DeepSeek-R1 (2501.12948): epsilon 10, so nothing holds below and 11 above."""
    policy = clipped(case, on_tokens(case, standardised(case)), 10.0, 10.0)
    return sequence_mean(plus(policy, each_token(case, lambda i, t: k3(strayed(case, i, t))), -beta))


def dr_grpo(case):
    """Understanding R1-Zero-Like Training (2503.20783): no 1/n_i, no std; a constant budget divides."""
    return fixed_length(clipped(case, on_tokens(case, centred(case))), case.budget)


def soft_overlong(length, budget, cache):
    """DAPO eq. 13."""
    if length <= budget - cache:
        return 0.0
    return ((budget - cache) - length) / cache if length <= budget else -1.0


def dapo(case, *, share=0.2):
    """DAPO (2503.14476): clip higher, token mean, the soft length penalty; which groups come here is the loop's."""
    cache = share * case.budget  # 4096 of 20480
    shaped = [
        None if case.reward[i] is None else case.reward[i] + soft_overlong(len(case.logp[i]), case.budget, cache)
        for i in case.completions()
    ]
    return token_mean(clipped(case, on_tokens(case, standardised(case, shaped)), 0.2, 0.28))


def sequence_ratio(case, i):
    """2507.18071 eq. 7: the length-normalised likelihood ratio of a completion."""
    return torch.exp(mean([case.logp[i][t] - case.old[i][t] for t in case.tokens(i)]))


def gspo(case, *, low=3e-4, high=4e-4):
    """GSPO (2507.18071) eq. 5."""
    advantage = standardised(case)
    return mean([held(sequence_ratio(case, i), advantage[i], low, high) for i in case.completions()])


def gspo_token(case, *, advantage=None, low=3e-4, high=4e-4):
    """The same paper, eq. 13: the value of the sequence ratio, the gradient of each token."""
    advantage = on_tokens(case, standardised(case)) if advantage is None else advantage
    whole = [sequence_ratio(case, i).detach() for i in case.completions()]

    def term(i, t):
        own = torch.exp(case.logp[i][t] - case.logp[i][t].detach())
        return held(whole[i] * own, advantage[i][t], low, high)

    return sequence_mean(each_token(case, term))


def luspo(case, *, low=2e-3, high=2.5e-3):
    """LUSPO (2602.05261): GSPO's term times the completion's length."""
    advantage = standardised(case)
    terms = [len(case.logp[i]) * held(sequence_ratio(case, i), advantage[i], low, high) for i in case.completions()]
    return mean(terms)


def cispo(case, *, cap=5.0):
    """MiniMax-M1 (2506.13585) eq. 4: a stopped, capped ratio in front of A log pi, averaged over all tokens."""
    advantage = standardised(case)
    return token_mean(
        each_token(case, lambda i, t: torch.clamp(ratio(case, i, t).detach(), max=cap) * advantage[i] * case.logp[i][t])
    )


def gmpo(case, *, width=0.4):
    """GMPO (2507.20673) eq. 4: a geometric mean of one-sidedly clipped ratios."""
    advantage = standardised(case)

    def log_ratio(i, t):
        move = case.logp[i][t] - case.old[i][t]
        return torch.clamp(move, max=width) if advantage[i] > 0 else torch.clamp(move, min=-width)

    terms = [advantage[i] * torch.exp(mean([log_ratio(i, t) for t in case.tokens(i)])) for i in case.completions()]
    return mean(terms)


def sapo(case, *, positive=1.0, negative=1.05):
    """SAPO (2511.20347): a sigmoid gate scaled by 4 / tau."""
    advantage = standardised(case)

    def term(i, t):
        tau = positive if advantage[i] > 0 else negative
        return 4 / tau * torch.sigmoid(tau * (ratio(case, i, t) - 1)) * advantage[i]

    return sequence_mean(each_token(case, term))


def grpo_segment(case):
    """After SSPO (2511.04256): the geometric mean of the ratios of a sentence, on each of its tokens."""
    advantage = standardised(case)

    def term(i, t):
        inside = [s for s in case.tokens(i) if case.segment[i][s] == case.segment[i][t]]
        level = torch.exp(mean([case.logp[i][s] - case.old[i][s] for s in inside]))
        return held(level, advantage[i])

    return sequence_mean(each_token(case, term))


def length_factors(case, power, spread=1 / 9):
    """f = G softmax_g(h^lambda), h = 1 + r0 z(n): [completion]."""
    power = torch.as_tensor(power, dtype=torch.float64)
    found = [torch.ones((), dtype=torch.float64) for _ in case.completions()]
    for i in case.scored():
        lengths = [float(len(case.logp[j])) for j in case.members(i)]
        scale = deviation(lengths) + FLOOR
        heights = [max(1 + spread * (length - mean(lengths)) / scale, 0.01) for length in lengths]
        powers = [torch.exp(height**power) for height in heights]
        own = max(1 + spread * (len(case.logp[i]) - mean(lengths)) / scale, 0.01)
        found[i] = len(lengths) * torch.exp(own**power) / sum(powers)
    return found


def lambda_grpo(case, *, power=None):
    """lambda-GRPO (2510.06870): the token mean with a factor of each completion's length."""
    power = case.memory["length_power"] if power is None else power
    factors = length_factors(case, power)
    terms = clipped(case, on_tokens(case, standardised(case)))
    return token_mean([[factors[i] * term for term in row] for i, row in enumerate(terms)])


def opo(case):
    """OPO (2505.23585): the length-weighted mean reward of the group is the baseline."""
    advantage = []
    for i in case.completions():
        others = case.members(i)
        if case.reward[i] is None or flat([case.reward[j] for j in others]):
            advantage.append(0.0)
            continue
        lengths = sum(len(case.logp[j]) for j in others)
        advantage.append(case.reward[i] - sum(len(case.logp[j]) * case.reward[j] for j in others) / lengths)
    return token_mean(score_function(case, on_tokens(case, advantage)))


def maxrl(case):
    """MaxRL (2602.02710): divide by the success rate instead of the spread; nothing from a group that failed."""
    advantage = []
    for i in case.completions():
        rate = mean([case.reward[j] for j in case.members(i)]) if case.members(i) else 0.0
        advantage.append((case.reward[i] - rate) / rate if rate > 0 and case.reward[i] is not None else 0.0)
    return token_mean(clipped(case, on_tokens(case, advantage)))


def success(case, chosen):
    return float(any(case.right(j) for j in chosen))


def pass_at_k(case, *, k=4):
    """Pass@k training (2508.10751): the mean over all k-subsets with i against all k-subsets, counted one by one."""
    advantage = []
    for i in case.completions():
        every = list(combinations(case.members(i), k))
        rate = mean([success(case, chosen) for chosen in every]) if every else 0.0
        spread = sqrt(rate * (1 - rate))
        with_i = [success(case, chosen) for chosen in every if i in chosen]
        advantage.append((mean(with_i) - rate) / spread if spread > 0 and with_i else 0.0)
    return token_mean(clipped(case, on_tokens(case, advantage)))


def quantile(values, share):
    """Between the two nearest ranks, as numpy and torch do by default."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def simko(case, *, share=0.01, top=3, push=1.1, level=0.8):
    """SimKO (2510.14807): at tokens above the completion's entropy quantile the ratio is mixed with the top-k's."""
    advantage = standardised(case)
    entropies = [[float(each.detach()) for each in row] for row in case.entropy]
    edges = [quantile(row, level) for row in entropies]

    def term(i, t):
        forking = entropies[i][t] > edges[i]
        own, credit = ratio(case, i, t), advantage[i]
        if forking and credit < 0 and case.chose_top[i][t]:
            credit = push * credit
        if forking and case.right(i):
            others = [own.detach() * torch.exp(each - each.detach()) for each in case.top[i][t]]
            assert len(others) == top
            own = (1 - share) * own + share / top * sum(others)
        return held(own, credit)

    return token_mean(each_token(case, term))


def dppo_tv(case, *, low=0.15, high=0.15, cap=1e4):
    """DPPO (2602.04879), binary total variation against the sampler."""
    advantage = centred(case)

    def term(i, t):
        policy, sampler = exp(float(case.logp[i][t].detach())), exp(case.behavior[i][t])
        up, down = advantage[i] > 0 and policy - sampler > high, advantage[i] < 0 and sampler - policy > low
        return held_mask(sampler_ratio(case, i, t), up or down, cap) * advantage[i]

    return fixed_length(each_token(case, term), case.budget)


def held_mask(ratio, masked, cap):
    """The ratio, its value held at the cap but still learning, or nothing."""
    if masked:
        return 0.0 * ratio
    return ratio * (cap / ratio.detach()) if ratio > cap else ratio


def dppo_kl(case, *, limit=0.05, cap=1e4):
    """DPPO, binary KL(mu, pi): masked where it is large and the token moved the way A pushes it."""
    advantage = centred(case)

    def term(i, t):
        policy, sampler = exp(float(case.logp[i][t].detach())), exp(case.behavior[i][t])
        divergence = sampler * log(sampler / policy) + (1 - sampler) * log((1 - sampler) / (1 - policy))
        with_it = (advantage[i] > 0 and policy > sampler) or (advantage[i] < 0 and policy < sampler)
        return held_mask(sampler_ratio(case, i, t), with_it and divergence > limit, cap) * advantage[i]

    return fixed_length(each_token(case, term), case.budget)


def vespo(case):
    """VESPO (2602.10693): phi(w) = w^k exp(lam (1 - w)), stopped, w the product ratio to the sampler."""
    advantage = standardised(case)

    def gate(i):
        whole = torch.exp(sum(case.logp[i][t].detach() - case.behavior[i][t] for t in case.tokens(i)))
        k, lam = (2.0, 3.0) if advantage[i] >= 0 else (3.0, 2.0)
        return whole**k * torch.exp(lam * (1 - whole))

    gates = [gate(i) for i in case.completions()]
    return token_mean(each_token(case, lambda i, t: gates[i] * advantage[i] * case.logp[i][t]))


def covariances(case, advantage):
    """(A - mean A)(log pi_old - mean log pi_old), means over all trained tokens of scored completions."""
    credit = mean([advantage[i] for i in case.scored() for _ in case.tokens(i)])
    level = mean([case.old[i][t] for i in case.scored() for t in case.tokens(i)])
    return [
        [(advantage[i] - credit) * (case.old[i][t] - level) if case.reward[i] is not None else 0.0 for t in row]
        for i, row in ((i, case.tokens(i)) for i in case.completions())
    ]


def clip_cov(case, *, share=2e-4, low=1.0, high=5.0):
    """Clip-Cov (2505.22617): some tokens of large covariance learn nothing; which ones is a lottery, taken as drawn."""
    advantage = standardised(case)
    found = covariances(case, advantage)
    candidates = [(i, t) for i in case.completions() for t in case.tokens(i) if low < found[i][t] < high]
    gone = [(i, t) for i in case.completions() for t in case.tokens(i) if case.dropped[i][t]]
    tokens = sum(len(row) for row in case.logp)
    assert set(gone) <= set(candidates)
    assert len(gone) == min(max(1, int(share * tokens)), len(candidates))
    terms = clipped(case, on_tokens(case, advantage), 1.0, 1.0)
    kept = each_token(case, lambda i, t: 0.0 if (i, t) in gone else 1.0)
    return token_mean([[a * b for a, b in zip(*rows, strict=True)] for rows in zip(kept, terms, strict=True)])


def kl_cov(case, *, share=2e-3, beta=1.0):
    """KL-Cov (2505.22617): |log r| on the tokens of largest covariance, no clip."""
    advantage = standardised(case)
    found = covariances(case, advantage)
    ordered = sorted((value for row in found for value in row), reverse=True)
    edge = ordered[max(1, int(share * len(ordered))) - 1]

    def term(i, t):
        gain = ratio(case, i, t) * advantage[i]
        return gain - beta * (case.logp[i][t] - case.old[i][t]).abs() if found[i][t] >= edge else gain

    return token_mean(each_token(case, term))


def partwise(case):
    """SUM_k w_k (r_k - mean) / std, part by part: [completion]."""
    total = [0.0 for _ in case.completions()]
    for k in range(len(case.parts[0])):
        part = [None if case.reward[i] is None else case.parts[i][k] for i in case.completions()]
        total = [total[i] + case.part_weight[i][k] * each for i, each in enumerate(standardised(case, part))]
    return total


def gdpo(case):
    """GDPO (2601.05242): each part of the reward on its own scale, then whitened over the completions."""
    return sequence_mean(clipped(case, on_tokens(case, whitened_completions(case, partwise(case)))))


def spo(case):
    """Single-stream (2509.13232): R - v of the prompt's Beta tracker, standardised over the batch."""

    def tracked(i):
        won, lost = (case.memory.get(f"prompt/{case.prompt[i]}/role/{case.role[i]}/{side}", 0.5) for side in "wl")
        return won / (won + lost)

    difference = [0.0 if case.reward[i] is None else case.reward[i] - tracked(i) for i in case.completions()]
    return token_mean(clipped(case, on_tokens(case, whitened_completions(case, difference))))


def echo(case, *, weight=0.05):
    """ECHO (2605.24517): GRPO, and the mean log-probability of what environments wrote in scored episodes."""
    seen = [each for i in case.scored() for each in case.observed[i]]
    policy = token_mean(clipped(case, on_tokens(case, standardised(case))))
    return policy + weight * sum(seen) / max(len(seen), 1)


def rae(case):
    """SPIRAL (2506.24119): R less the running mean of the role, as it was before this step."""
    advantage = [
        0.0 if case.reward[i] is None else case.reward[i] - case.memory[f"role/{case.role[i]}"]
        for i in case.completions()
    ]
    return sequence_sum(score_function(case, on_tokens(case, advantage)))


PAPERS = {
    "reinforce": reinforce,
    "rloo": rloo,
    "remax": remax,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "grpo": grpo,
    "grpo_r1": grpo_r1,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "luspo": luspo,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "grpo_segment": grpo_segment,
    "lambda_grpo": lambda_grpo,
    "opo": opo,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
    "simko": simko,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "vespo": vespo,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "ppo": ppo,
    "ppo_dual": ppo_dual,
    "ppo_penalty": ppo_penalty,
    "vapo": vapo,
    "vtrace": vtrace_paper,
    "gdpo": gdpo,
    "spo": spo,
    "grpo_process": grpo_process,
    "gigpo": gigpo,
    "rloo_turns": rloo_turns,
    "rloo_tree": rloo_tree,
    "tree_grpo": tree_grpo,
    "echo": echo,
    "rae": rae,
    **OFF_POLICY,
    **BANDS,
    **TEACHER,
}

CRITICS = {
    "ppo": ppo_critic,
    "ppo_dual": ppo_critic,
    "ppo_penalty": lambda case: ppo_critic(case, beta=0.0),
    "vapo": lambda case: ppo_critic(case, beta=0.0, lam=1.0),
    "vtrace": lambda case: squared_error(case, [v for v, _ in vtraced(case)]),
}
