"""Methods that bend the clip's band, or who counts, as in `papers`."""

from functools import cache
from math import exp, inf, log, sqrt

import torch

from tests.support.naive_losses import (
    FLOOR,
    clipped,
    cost,
    deviation,
    each_token,
    flat,
    held,
    k3,
    mean,
    on_tokens,
    one,
    ratio,
    sampler_ratio,
    sequence_mean,
    sequence_sum,
    standardised,
    strayed,
    token_mean,
)

LN2 = log(2)


def ce_gppo(case, *, low=0.2, high=0.2, below=0.75, above=1.0):
    """CE-GPPO (2509.20712): beyond the band the value is b (1 -+ e) / sg(r) r A, so that its gradient stays."""
    advantage = standardised(case)

    def term(i, t):
        move, credit = ratio(case, i, t), advantage[i]
        if credit < 0 and move < 1 - low:
            return below * (1 - low) / move.detach() * move * credit
        if credit > 0 and move > 1 + high:
            return above * (1 + high) / move.detach() * move * credit
        return move * credit

    return token_mean(each_token(case, term))


def smoothed(case):
    """DCPO (2509.02333), section 3.2, with the running variance of the authors' code: [completion]."""
    found = []
    for i in case.completions():
        if case.reward[i] is None:
            found.append(0.0)
            continue
        rewards = [case.reward[j] for j in case.members(i)]
        new_mean, new_std = mean(rewards), deviation(rewards)
        own = 0.0 if new_std == 0 else (case.reward[i] - new_mean) / (new_std + FLOOR)
        key = f"visited/{case.prompt[i]}/role/{case.role[i]}"
        times = case.memory.get(f"{key}/visits", 0) + 1
        if times == 1:
            every = own
        else:
            old_mean, old_std = case.memory[f"{key}/mean"], case.memory[f"{key}/std"]
            middle = ((times - 1) * old_mean + new_mean) / times
            between = (times - 1) / times * (new_mean - old_mean) ** 2
            spread = sqrt(((times - 1) * old_std**2 + new_std**2 + between) / times)
            every = (case.reward[i] - middle) / (spread + FLOOR) if spread > FLOOR else 0.0
        one, two = (1 - 1 / times) * own + every / times, own / times + (1 - 1 / times) * every
        found.append(one if abs(one) < abs(two) else two)
    return found


def band(old, low, high, ceiling):
    """eq. 6: the edges for a token of old probability q."""
    q = exp(old)
    return 0.5 * (1 + sqrt(max(1 - 4 * low / q, 0))), min(0.5 * (1 + sqrt(1 + 4 * high / q)), ceiling)


def dcpo(case, *, low=0.2, high=0.28, ceiling=10.0, advantage=None):
    advantage = smoothed(case) if advantage is None else advantage

    def term(i, t):
        least, most = band(case.old[i][t], low, high, ceiling)
        single = held(ratio(case, i, t), advantage[i], 1 - least, most - 1)
        if advantage[i] >= 0:
            return single
        return torch.maximum(single, torch.full_like(single, ceiling * advantage[i]))

    return sequence_mean(each_token(case, term))


def aspo(case, *, low=0.2, high=0.2, cap=3.0, beta=0.001):
    """ASPO (2510.06062): hard clip by the band, then 1/r for good tokens, capped with its gradient kept.

    The KL is that of the authors' scripts.
    """
    advantage = standardised(case)

    def term(i, t):
        move, credit = ratio(case, i, t), advantage[i]
        tie = -beta * k3(strayed(case, i, t))
        if (credit > 0 and move > 1 + high) or (credit < 0 and move < 1 - low):
            return tie
        factor = 1 / move.detach() if credit > 0 else move.detach()
        return torch.clamp(factor, max=cap) * credit * case.logp[i][t] + tie

    return token_mean(each_token(case, term))


def fipo(case, *, low=0.2, high=0.28, cap=10.0, half_life=32.0, reach=0.2, safe=10.0):
    """FIPO (2603.19835): the dual clip times what the policy has since made of the tokens that follow."""
    advantage = standardised(case)

    def drift(i, s):
        move = float(case.logp[i][s].detach()) - case.old[i][s]
        return move if exp(move) <= cap else 0.0

    def term(i, t):
        move, credit = ratio(case, i, t), advantage[i]
        ahead = sum(2 ** (-(s - t) / half_life) * drift(i, s) for s in range(t, len(case.logp[i])))
        influence = min(max(exp(ahead), 1.0), 1 + reach)
        if credit < 0 and move > safe:
            influence = 1.0
        single = held(move, credit, low, high)
        if credit < 0:
            single = torch.maximum(single, torch.full_like(single, cap * credit))
        return influence * single

    return token_mean(each_token(case, term))


def delta_l(case, *, power=1.0):
    """Delta-L (2509.07558): SUM_i x_i SUM_t, x_i = n_i^-a / (L SUM_j n_j^-a), written as a factor of 1/(N L)."""
    lengths = [len(row) for row in case.logp]
    usual = mean([lengths[i] ** -power for i in case.scored()]) if case.scored() else 1.0
    terms = clipped(case, on_tokens(case, standardised(case)))
    factors = [1.0 if case.reward[i] is None else lengths[i] ** -power / usual for i in case.completions()]
    return sum(factors[i] * sum(terms[i]) for i in case.completions()) / (case.count * case.budget)


@cache  # every completion of a group asks
def tilt(rewards, nats):
    """beta with KL(softmax(beta R), uniform) = nats, by halving as in the authors' code."""
    best = max(rewards)

    def spent(beta):
        logits = [beta * (reward - best) for reward in rewards]
        total = sum(exp(each) for each in logits)
        return sum(exp(each) / total * (each - log(total) + log(len(rewards))) for each in logits)

    low, high = 0.0, 1.0
    while high < 1e6 and spent(high) < nats:
        high *= 2
    if spent(high) < nats:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) < nats else (low, middle)
    return high


def entropic(case, *, nats=LN2, lam=0.1):
    """TTT-Discover (2601.16175): exp(beta R) over the mean of the others', less 1; each token pays for its KL."""
    advantage = []
    for i in case.completions():
        rewards = [case.reward[j] for j in case.members(i)]
        if case.reward[i] is None or flat(rewards):
            advantage.append(0.0)
            continue
        beta, best = tilt(tuple(rewards), nats), max(rewards, default=-inf)
        others = [exp(beta * (case.reward[j] - best)) for j in case.others(i)]
        enough = len({case.episode[j] for j in case.members(i)}) > 2
        advantage.append(exp(beta * (case.reward[i] - best)) / mean(others) - 1 if enough else 0.0)

    def term(i, t):
        paid = 0.0 if case.reward[i] is None else advantage[i] - cost(case, i, t, lam)
        return sampler_ratio(case, i, t) * paid

    return sequence_sum(each_token(case, term))


def bapo(case, *, low=0.6, low_most=0.9, high=1.2, high_most=3.0, step=0.05, target=1.0):
    """BAPO (2510.18927), the authors' search for the band, over all tokens of the update."""
    advantage = standardised(case)
    moves = [(float(ratio(case, i, t).detach()), advantage[i]) for i in case.completions() for t in case.tokens(i)]

    def unbalanced(low, high):
        good = bad = 0.0
        for move, credit in moves:
            if credit >= 0:
                good += min(move, high) * credit
            else:
                bad -= max(move, low) * credit
        return bad > 0 and good / bad < target

    while unbalanced(low, high) and low < low_most:
        low = min(low + step, low_most)
    while unbalanced(low, high) and high < high_most:
        high = min(high + step, high_most)
    return token_mean(clipped(case, on_tokens(case, advantage), 1 - low, high - 1))


def real(case, *, tau=0.5):
    """REAL (2602.05630): two log-sum-exps a group, tau times and by the group's completions, over all completions."""
    total, seen = 0.0, set()
    for i in case.scored():
        key = (case.groups[i], case.role[i])
        rewards = [case.reward[j] for j in case.members(i)]
        if key in seen or flat(rewards):
            continue
        seen.add(key)
        good, bad = 1.0, 1.0
        for j in case.members(i):
            score = mean([case.logp[j][t] - case.old[j][t] for t in case.tokens(j)])
            if case.reward[j] > mean(rewards):
                good = good + torch.exp(-score / tau) / one()
            else:
                bad = bad + torch.exp(score / tau) / one()
        total = total - tau * len(rewards) / one() * (torch.log(good) + torch.log(bad))
    return total / (case.count / one())


BANDS = {
    "bapo": bapo,
    "rewards_as_labels": real,
    "ce_gppo": ce_gppo,
    "dcpo": dcpo,
    "aspo": aspo,
    "fipo": fipo,
    "delta_l": delta_l,
    "entropic": entropic,
}
