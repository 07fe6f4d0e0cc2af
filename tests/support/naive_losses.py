"""Sums, spreads and estimators as one would write them on paper. Nothing here is shared with whet.objective."""

from contextlib import contextmanager
from math import exp, sqrt

import torch

FLOOR = 1e-6
_ONE = 1  # how many rows make one completion; more only inside `counting`


@contextmanager
def counting(copies):
    """Where every episode stands there `copies` times in all: that many rows are one, and say as much."""
    global _ONE
    before, _ONE = _ONE, copies
    try:
        yield
    finally:
        _ONE = before


def one():
    """What a single completion counts as, in rows."""
    return _ONE


# statistics


def mean(values):
    return sum(values) / len(values)


def flat(values):
    """No spread beyond float noise, or nothing to compare."""
    return len(values) <= _ONE or max(values) - min(values) <= 1e-6 * max(1.0, abs(mean(values)))


def deviation(values):
    """Bessel's; exactly 0 without a spread."""
    if flat(values):
        return 0.0
    middle = mean(values)
    return sqrt(sum((value - middle) ** 2 for value in values) / max(len(values) - _ONE, _ONE))


def centred(case, reward=None):
    """R - mean of the group; 0 for the unscorable and where the group agrees: [completion]."""
    reward = case.reward if reward is None else reward
    found = []
    for i in case.completions():
        others = [reward[j] for j in case.members(i)]
        found.append(0.0 if reward[i] is None or flat(others) else reward[i] - mean(others))
    return found


def standardised(case, reward=None):
    reward = case.reward if reward is None else reward
    spread = [deviation([reward[j] for j in case.members(i)]) for i in case.completions()]
    return [each / (spread[i] + FLOOR) for i, each in enumerate(centred(case, reward))]


def on_tokens(case, each):
    return [[each[i] for _ in case.tokens(i)] for i in case.completions()]


def whitened(case, values):
    """Mean 0 and spread 1 over all tokens of scored completions."""
    pool = [value for i in case.scored() for value in values[i]]
    spread = deviation(pool)
    if spread == 0:
        return [[0.0 for _ in row] for row in values]
    return [
        [(value - mean(pool)) / (spread + FLOOR) if case.reward[i] is not None else 0.0 for value in row]
        for i, row in enumerate(values)
    ]


def whitened_completions(case, each):
    pool = [each[i] for i in case.scored()]
    spread = deviation(pool)
    return [
        (each[i] - mean(pool)) / (spread + FLOOR) if case.reward[i] is not None and spread > 0 else 0.0
        for i in case.completions()
    ]


# the tie to the reference; u = log(pi / ref)


def k1(u):
    return u


def k2(u):
    return u**2 / 2


def k3(u):
    return (torch.exp(-u) if isinstance(u, torch.Tensor) else exp(-u)) - 1 + u


def strayed(case, i, t):
    return case.logp[i][t] - case.ref[i][t]


def cost(case, i, t, beta, estimate=k1):
    """What a token pays at sampling time."""
    return beta * estimate(case.old[i][t] - case.ref[i][t])


def paid_reward(case, beta, estimate=k1):
    """R - beta SUM_t estimate(u_t): [completion]."""
    price = [sum(cost(case, i, t, beta, estimate) for t in case.tokens(i)) for i in case.completions()]
    return [None if case.reward[i] is None else case.reward[i] - price[i] for i in case.completions()]


# credit for tokens


def earned(case, beta=0.0, outcome=None):
    """Token rewards: process rewards where there are some, less the KL, the outcome on the last trained token."""
    outcome = case.reward if outcome is None else outcome
    found = []
    for i in case.completions():
        row = []
        for t in case.tokens(i):
            reward = 0.0 if case.step_reward is None or case.step_reward[i][t] is None else case.step_reward[i][t]
            if beta:
                reward -= cost(case, i, t, beta)
            if t == len(case.logp[i]) - 1:
                reward += (outcome[i] or 0.0) - case.returned[i]
            row.append(reward if case.reward[i] is not None else 0.0)
        found.append(row)
    return found


def to_go(rewards, gamma=1.0):
    return [[sum(gamma ** (s - t) * row[s] for s in range(t, len(row))) for t in range(len(row))] for row in rewards]


def surprises(rewards, values, gamma):
    """d_t = r_t + gamma V_{t+1} - V_t, V behind the end is 0."""
    ahead = [*values[1:], 0.0]
    return [rewards[t] + gamma * ahead[t] - values[t] for t in range(len(rewards))]


def gae(rewards, values, gamma, lam):
    surprise = surprises(rewards, values, gamma)
    size = len(rewards)
    return [sum((gamma * lam) ** (s - t) * surprise[s] for s in range(t, size)) for t in range(size)]


def vtrace(rewards, values, ratios, *, rho_bar=1.0, c_bar=1.0, lam=1.0, gamma=1.0):
    """1802.01561 eq. 1, the sum written out, and the advantage of section 4.2: (v, A)."""
    surprise = surprises(rewards, values, gamma)
    rho = [min(rho_bar, ratio) for ratio in ratios]
    c = [lam * min(c_bar, ratio) for ratio in ratios]
    size = len(rewards)
    v = []
    for t in range(size):
        total = values[t]
        for s in range(t, size):
            trace = 1.0
            for j in range(t, s):
                trace *= c[j]
            total += gamma ** (s - t) * trace * rho[s] * surprise[s]
        v.append(total)
    ahead = [*v[1:], 0.0]
    return v, [rho[t] * (rewards[t] + gamma * ahead[t] - values[t]) for t in range(size)]


# ratios and surrogates


def each_token(case, term):
    return [[term(i, t) for t in case.tokens(i)] for i in case.completions()]


def ratio(case, i, t):
    return torch.exp(case.logp[i][t] - case.old[i][t])


def sampler_ratio(case, i, t):
    return torch.exp(case.logp[i][t] - case.behavior[i][t])


def held(ratio, advantage, low=0.2, high=0.2):
    """min(r A, clip(r, 1 - low, 1 + high) A)."""
    return torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)


def clipped(case, advantage, low=0.2, high=0.2):
    return each_token(case, lambda i, t: held(ratio(case, i, t), advantage[i][t], low, high))


def score_function(case, advantage):
    """A log pi, token by token."""
    return each_token(case, lambda i, t: advantage[i][t] * case.logp[i][t])


def plus(one, other, factor=1.0):
    return [[a + factor * b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


# who counts how much


def token_mean(terms):
    return sum(sum(row) for row in terms) / sum(len(row) for row in terms)


def sequence_mean(terms):
    return sum(sum(row) / len(row) for row in terms) / len(terms)


def sequence_sum(terms):
    return sum(sum(row) for row in terms) / len(terms)


def fixed_length(terms, budget):
    return sum(sum(row) for row in terms) / (len(terms) * budget)
