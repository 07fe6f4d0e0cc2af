"""Methods for batches that an older policy wrote, as in `papers`."""

from math import cos, exp, log, pi

import torch

from tests.support.naive_losses import (
    centred,
    clipped,
    each_token,
    mean,
    on_tokens,
    sampler_ratio,
    score_function,
    sequence_sum,
    standardised,
    token_mean,
)


def pmd_mean(case, *, tau=0.01):
    """2602.05933, the authors' code: -1/N SUM_i tau/2 (A/tau - log pi(y)/pi_old(y))^2 / n_i, A by leaving one out."""
    total = 0.0
    for i in case.completions():
        others = [case.reward[j] for j in case.others(i)]
        alone = case.reward[i] is None or not others
        advantage = 0.0 if alone else case.reward[i] - mean(others)
        moved = sum(case.logp[i][t] - case.old[i][t] for t in case.tokens(i))
        total = total - tau / 2 * (advantage / tau - moved) ** 2 / len(case.logp[i])
    return total / case.count


def dro(case, *, beta=0.05):
    """verl's dro: A log pi - beta/2 (log pi - log pi_old)^2, the mean over tokens."""
    advantage = centred(case)

    def term(i, t):
        return advantage[i] * case.logp[i][t] - beta / 2 * (case.logp[i][t] - case.old[i][t]) ** 2

    return token_mean(each_token(case, term))


def prime_rl(case, *, mask=0.2, tau=1e-3):
    """prime-rl's default loss: masked by how far the probability moved, and tau (log pi/mu)^2 on every token.

    Completions without an advantage were filtered out before.
    """
    advantage = centred(case)

    def term(i, t):
        moved = exp(float(case.logp[i][t].detach())) - exp(case.behavior[i][t])
        dropped = moved > mask if advantage[i] > 0 else moved < -mask
        gain = 0.0 if dropped else sampler_ratio(case, i, t) * advantage[i]
        return gain - tau * (case.logp[i][t] - case.behavior[i][t]) ** 2

    return token_mean([row for i, row in enumerate(each_token(case, term)) if advantage[i] != 0])


def topr(case):
    """TOPR (2503.14286): good completions as they are, bad ones by their ratio, at most 1, which is stopped."""
    advantage = centred(case)

    def factor(i):
        if advantage[i] >= 0:
            return 1.0
        return min(exp(sum(float(case.logp[i][t].detach()) - case.behavior[i][t] for t in case.tokens(i))), 1.0)

    return sum(factor(i) * advantage[i] * sum(case.logp[i]) for i in case.completions()) / case.count


def topr_by_tokens(case):
    """The form of Trinity-RFT: each token by its own ratio."""
    advantage = centred(case)

    def term(i, t):
        factor = 1.0 if advantage[i] >= 0 else torch.clamp(sampler_ratio(case, i, t).detach(), max=1.0)
        return factor * advantage[i] * case.logp[i][t]

    return sequence_sum(each_token(case, term))


def asym_re(case, *, shift=-0.1):
    """AsymRE (2506.20520): (R - mean - dV) log pi(y), no ratio."""
    advantage = []
    for i in case.completions():
        middle = mean([case.reward[j] for j in case.members(i)]) if case.members(i) else 0.0
        advantage.append(0.0 if case.reward[i] is None else case.reward[i] - (middle + shift))
    return sequence_sum(score_function(case, on_tokens(case, advantage)))


def m2po(case, *, limit=0.04):
    """M2PO (2510.01161), algorithm 1: take the largest (log r)^2 out one by one until their mean is small enough."""
    advantage = standardised(case)

    def drift(i, t):
        return float(case.logp[i][t].detach()) - case.behavior[i][t]

    away = [
        (drift(i, t) ** 2, i, t) for i in case.completions() for t in case.tokens(i) if drift(i, t) * advantage[i] > 0
    ]
    away.sort()
    dropped = set()
    while away and mean([each[0] for each in away]) > limit:
        largest = away[-1][0]
        dropped |= {each[1:] for each in away if each[0] == largest}
        away = [each for each in away if each[0] < largest]

    def term(i, t):
        return 0.0 * case.logp[i][t] if (i, t) in dropped else sampler_ratio(case, i, t) * advantage[i]

    return token_mean(each_token(case, term))


def shown_tokens(case, phi):
    """The mean over the step's demonstrations of phi(p) log pi, p stopped."""
    tokens = [each for row in case.demonstrated for each in row]
    return sum(phi(exp(float(each.detach()))) * each for each in tokens) / max(len(tokens), 1)


def chord(case, *, mu=0.1, phi=lambda p: p * (1 - p)):
    """CHORD (2508.11408): (1 - mu) GRPO + mu SFT on demonstrations, whose tokens count p (1 - p)."""
    policy = token_mean(clipped(case, on_tokens(case, standardised(case))))
    return (1 - mu) * policy + mu * shown_tokens(case, phi)


def scheduled(step, *, peak, valley, warmup, decay):
    """mu of a step: up in a straight line, down along half a cosine."""
    if step < warmup:
        return peak * step / warmup
    if step >= warmup + decay:
        return valley
    return valley + (peak - valley) * (1 + cos(pi * (step - warmup) / decay)) / 2


def a_star_po(case, *, beta1=0.5, beta2=1e-3):
    """A*PO (2505.20686): (beta2 log pi(y)/ref(y) - (R - V))^2, V from the reference's rewards; over 2 beta2."""
    total = 0.0
    for i in case.completions():
        value = beta1 * log(mean([exp(each / beta1) for each in case.reference_rewards[i]]))
        advantage = 0.0 if case.reward[i] is None else case.reward[i] - value
        moved = sum(case.logp[i][t] - case.ref[i][t] for t in case.tokens(i))
        total = total - (beta2 * moved - advantage) ** 2 / (2 * beta2)
    return total / case.count


OFF_POLICY = {
    "a_star_po": a_star_po,
    "m2po": m2po,
    "pmd_mean": pmd_mean,
    "dro": dro,
    "prime_rl": prime_rl,
    "topr": topr,
    "asym_re": asym_re,
}
OFF_POLICY["chord"] = chord
