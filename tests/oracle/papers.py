"""The papers' objectives, transcribed naively: loops over sequences and tokens, torch's own gradient.

Each takes log-probabilities as a list of [n_i] tensors (only the trained tokens of sequence i, ragged) and returns the
objective J to maximise. Nothing here is shared with whet.objective.
"""

import torch


def group_members(groups, i):
    return [j for j in range(len(groups)) if groups[j] == groups[i]]


def std_bessel(values):
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def k3(logp, ref):
    return torch.exp(ref - logp) - (ref - logp) - 1


def reinforce(logp, old, ref, reward, groups, *, baseline=0.0):
    """Williams 1992: (R - b) SUM_t log pi, averaged over episodes."""
    total = 0.0
    for i in range(len(logp)):
        total = total + (reward[i] - baseline) * sum(logp[i][t] for t in range(len(logp[i])))
    return total / len(logp)


def grpo(logp, old, ref, reward, groups, *, epsilon=0.2, beta=0.04):
    """DeepSeekMath (2402.03300) eq. 3 and 4, with the group's mean and std of section 4.1.1."""
    total = 0.0
    for i in range(len(logp)):
        members = [reward[j] for j in group_members(groups, i)]
        advantage = (reward[i] - sum(members) / len(members)) / (std_bessel(members) + 1e-6)
        inner = 0.0
        for t in range(len(logp[i])):
            ratio = torch.exp(logp[i][t] - old[i][t])
            clipped = torch.clamp(ratio, 1 - epsilon, 1 + epsilon)
            inner = inner + torch.min(ratio * advantage, clipped * advantage) - beta * k3(logp[i][t], ref[i][t])
        total = total + inner / len(logp[i])
    return total / len(logp)


def dr_grpo(logp, old, ref, reward, groups, *, epsilon=0.2, budget=16):
    """Understanding R1-Zero-Like Training (2503.20783): no 1/n_i, no std; a constant budget divides."""
    total = 0.0
    for i in range(len(logp)):
        members = [reward[j] for j in group_members(groups, i)]
        advantage = reward[i] - sum(members) / len(members)
        for t in range(len(logp[i])):
            ratio = torch.exp(logp[i][t] - old[i][t])
            clipped = torch.clamp(ratio, 1 - epsilon, 1 + epsilon)
            total = total + torch.min(ratio * advantage, clipped * advantage)
    return total / (len(logp) * budget)


def standardised(reward, groups, i):
    members = [reward[j] for j in group_members(groups, i)]
    return (reward[i] - sum(members) / len(members)) / (std_bessel(members) + 1e-6)


def rloo(logp, old, ref, reward, groups, *, beta=0.03):
    """Back to Basics (2402.14740): the whole reply is one action, its reward pays for the KL, the others are b."""
    paid = [reward[i] - beta * float(sum(old[i]) - sum(ref[i])) for i in range(len(logp))]
    total = 0.0
    for i in range(len(logp)):
        others = [paid[j] for j in group_members(groups, i) if j != i]
        total = total + (paid[i] - sum(others) / len(others)) * sum(logp[i][t] for t in range(len(logp[i])))
    return total / len(logp)


def sequence_ratio(logp, old):
    """2507.18071 eq. 7: the length-normalised likelihood ratio of a reply."""
    return torch.exp(sum(logp[t] - old[t] for t in range(len(logp))) / len(logp))


def gspo(logp, old, ref, reward, groups, *, low=3e-4, high=4e-4, by_length=False):
    """GSPO (2507.18071) eq. 5; LUSPO (2602.05261) multiplies each term by the reply's length."""
    total = 0.0
    for i in range(len(logp)):
        advantage = standardised(reward, groups, i)
        ratio = sequence_ratio(logp[i], old[i])
        term = torch.min(ratio * advantage, torch.clamp(ratio, 1 - low, 1 + high) * advantage)
        total = total + term * (len(logp[i]) if by_length else 1)
    return total / len(logp)


def luspo(logp, old, ref, reward, groups):
    return gspo(logp, old, ref, reward, groups, low=2e-3, high=2.5e-3, by_length=True)


def cispo(logp, old, ref, reward, groups, *, cap=5.0):
    """MiniMax-M1 (2506.13585) eq. 4: a stopped, capped ratio in front of A log pi, averaged over all tokens."""
    total, tokens = 0.0, 0
    for i in range(len(logp)):
        advantage = standardised(reward, groups, i)
        for t in range(len(logp[i])):
            ratio = torch.exp(logp[i][t] - old[i][t]).detach()
            total = total + torch.clamp(ratio, max=cap) * advantage * logp[i][t]
            tokens += 1
    return total / tokens


def gmpo(logp, old, ref, reward, groups, *, width=0.4):
    """GMPO (2507.20673) eq. 4: a geometric mean of one-sidedly clipped ratios."""
    total = 0.0
    for i in range(len(logp)):
        advantage = standardised(reward, groups, i)
        mean = 0.0
        for t in range(len(logp[i])):
            log_ratio = logp[i][t] - old[i][t]
            mean = mean + (torch.clamp(log_ratio, max=width) if advantage > 0 else torch.clamp(log_ratio, min=-width))
        total = total + advantage * torch.exp(mean / len(logp[i]))
    return total / len(logp)


def sapo(logp, old, ref, reward, groups, *, positive=1.0, negative=1.05):
    """SAPO (2511.20347): a sigmoid gate scaled by 4 / tau."""
    total = 0.0
    for i in range(len(logp)):
        advantage = standardised(reward, groups, i)
        tau = positive if advantage > 0 else negative
        inner = 0.0
        for t in range(len(logp[i])):
            ratio = torch.exp(logp[i][t] - old[i][t])
            inner = inner + 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage
        total = total + inner / len(logp[i])
    return total / len(logp)


def opo(logp, old, ref, reward, groups):
    """OPO (2505.23585): the length-weighted mean reward of the group is the baseline."""
    total, tokens = 0.0, 0
    for i in range(len(logp)):
        members = group_members(groups, i)
        baseline = sum(len(logp[j]) * reward[j] for j in members) / sum(len(logp[j]) for j in members)
        total = total + (reward[i] - baseline) * sum(logp[i][t] for t in range(len(logp[i])))
        tokens += len(logp[i])
    return total / tokens


def maxrl(logp, old, ref, reward, groups, *, epsilon=0.2):
    """MaxRL (2602.02710): divide by the success rate instead of the spread; nothing from a group that failed."""
    total, tokens = 0.0, 0
    for i in range(len(logp)):
        members = [reward[j] for j in group_members(groups, i)]
        mean = sum(members) / len(members)
        advantage = (reward[i] - mean) / mean if mean > 0 else 0.0
        for t in range(len(logp[i])):
            ratio = torch.exp(logp[i][t] - old[i][t])
            clipped = torch.clamp(ratio, 1 - epsilon, 1 + epsilon)
            total = total + torch.min(ratio * advantage, clipped * advantage)
            tokens += 1
    return total / tokens


PAPERS = {
    "reinforce": reinforce,
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gspo": gspo,
    "luspo": luspo,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "opo": opo,
    "maxrl": maxrl,
}
