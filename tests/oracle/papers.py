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


PAPERS = {"reinforce": reinforce, "grpo": grpo, "dr_grpo": dr_grpo}
