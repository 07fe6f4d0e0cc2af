"""The papers that credit the tokens of a completion one by one: steps, turns and critics. As naive as `papers`."""

from math import exp, sqrt

import torch

from tests.support.naive_losses import (
    FLOOR,
    centred,
    clipped,
    deviation,
    each_token,
    earned,
    fixed_length,
    flat,
    gae,
    held,
    k3,
    mean,
    on_tokens,
    plus,
    ratio,
    score_function,
    sequence_mean,
    strayed,
    token_mean,
    vtrace,
    whitened,
)

# steps and turns


def step_scores(case, scores=None):
    """Standardised over all steps of the group: [completion][token], None where no step ends."""
    scores = case.step_reward if scores is None else scores
    found = []
    for i in case.completions():
        pool = [score for j in case.members(i) for score in scores[j] if score is not None]
        if case.reward[i] is None:
            found.append([None for _ in case.tokens(i)])
        elif flat(pool):
            found.append([None if score is None else 0.0 for score in scores[i]])
        else:
            spread = deviation(pool) + FLOOR
            found.append([None if score is None else (score - mean(pool)) / spread for score in scores[i]])
    return found


def steps_ahead(scores, t):
    return [score for score in scores[t:] if score is not None]


def step_sum(case):
    """DeepSeekMath section 4.1.3: the standardised scores of the steps that end at or after t."""
    scores = step_scores(case)
    return each_token(case, lambda i, t: sum(steps_ahead(scores[i], t), 0.0))


def grpo_process(case, *, advantage=None, beta=0.04):
    policy = clipped(case, step_sum(case) if advantage is None else advantage)
    return sequence_mean(plus(policy, each_token(case, lambda i, t: k3(strayed(case, i, t))), -beta))


def turn_returns(case, gamma):
    """What was earned from a token's turn on, discounted by turns: [completion][token]."""
    rewards = earned(case)

    def from_turn(i, t):
        return sum(
            gamma ** (case.segment[i][s] - case.segment[i][t]) * rewards[i][s]
            for s in case.tokens(i)
            if case.segment[i][s] >= case.segment[i][t]
        )

    return each_token(case, from_turn)


def compared_turns(case, returns, key):
    """The return of each turn less the mean over turns of equal key in the group, each turn once; alone: 0."""
    found = []
    for i in case.completions():
        row = []
        for t in case.tokens(i):
            seen = {
                (j, case.segment[j][s]): returns[j][s]
                for j in case.members(i)
                for s in case.tokens(j)
                if key(j, s) == key(i, t)
            }
            alone = case.reward[i] is None or flat(list(seen.values()))
            row.append(0.0 if alone else returns[i][t] - mean(list(seen.values())))
        found.append(row)
    return found


def gigpo(case, *, weight=1.0, gamma=0.95):
    """GiGPO (2505.10978): the episode against its group, and each step against steps from the same state in it."""
    whole = [None if case.reward[i] is None else sum(row) for i, row in enumerate(earned(case))]
    steps = compared_turns(case, turn_returns(case, gamma), lambda i, t: case.anchor[i][t])
    return token_mean(clipped(case, plus(on_tokens(case, centred(case, whole)), steps, weight)))


def turn_values(case, gamma=1.0):
    """What each turn earned, and its return: [completion][turn] twice."""
    rewards, found = earned(case), []
    for i in case.completions():
        turns = [0.0] * (max(case.segment[i]) + 1)
        for t in case.tokens(i):
            turns[case.segment[i][t]] += rewards[i][t]
        found.append(turns)
    return found, [
        [sum(gamma ** (k - j) * row[k] for k in range(j, len(row))) for j in range(len(row))] for row in found
    ]


def turn_return(case, gamma=1.0):
    """The return of a turn less the mean of the others' at that turn, or at their last if they ended before."""
    _, returns = turn_values(case, gamma)

    def term(i, t):
        j = case.segment[i][t]
        others = [returns[k][min(j, len(returns[k]) - 1)] for k in case.others(i)]
        return 0.0 if case.reward[i] is None or not others else returns[i][j] - mean(others)

    return each_token(case, term)


def rloo_turns(case):
    return fixed_length(clipped(case, turn_return(case)), case.budget)


def siblings(case):
    """A turn by the mean of its leaves, less the same of the other turns drawn from its state; without any, as the turn
    before it, and at first the whole episode against the others of its group."""

    def branches(i):
        return [j for j in case.members(i) if case.episode[j] == case.episode[i]]

    def worth(i, path):
        return mean([case.reward[j] for j in branches(i) if case.path(j)[: len(path)] == path])

    def of_path(i, path):
        if not path:
            group = case.members(i)
            others = {case.episode[j]: worth(j, ()) for j in group if case.episode[j] != case.episode[i]}
            agree = not others or flat([case.reward[j] for j in group])
            return 0.0 if agree else worth(i, ()) - mean(list(others.values()))
        state = path[:-1]
        ways = {case.path(j) for j in branches(i)}
        drawn = {way[: len(path)] for way in ways if way[: len(state)] == state and len(way) > len(state)}
        others = [worth(i, other) for other in drawn if other != path]
        return worth(i, path) - mean(others) if others else of_path(i, state)

    def term(i, t):
        if case.reward[i] is None:
            return 0.0
        if case.node is None:
            others = [case.reward[j] for j in case.others(i)]
            return case.reward[i] - mean(others) if others else 0.0
        path = case.path(i)
        return of_path(i, path[: path.index(case.node[i][t]) + 1])

    return each_token(case, term)


def rloo_tree(case):
    return fixed_length(clipped(case, siblings(case)), case.budget)


def tree_grpo(case, *, beta=0.001):
    """Tree-GRPO (2509.21240), as in its authors' code: standardised over the leaves of the prompt, and of the tree."""

    def among(i, chosen):
        leaves = {case.leaf[j]: case.reward[j] for j in case.members(i) if chosen(j)}
        rewards = list(leaves.values())
        if case.reward[i] is None or len(rewards) < 2 or max(rewards) - min(rewards) <= FLOOR:
            return 0.0
        middle = mean(rewards)
        spread = sqrt(sum((reward - middle) ** 2 for reward in rewards) / (len(rewards) - 1))
        return (case.reward[i] - middle) / (spread + FLOOR)

    each = [
        among(i, lambda j: True) + among(i, lambda j, i=i: case.episode[j] == case.episode[i])
        for i in case.completions()
    ]
    policy = clipped(case, on_tokens(case, each))
    return token_mean(plus(policy, each_token(case, lambda i, t: k3(strayed(case, i, t))), -beta))


def turn_index_rewards(case, gamma=1.0):
    """verl#7244: each turn's reward less the mean of that turn over those who reached it, then summed to go."""
    rewards, _ = turn_values(case)

    def term(i, t):
        total = 0.0
        for k in range(case.segment[i][t], len(rewards[i])):
            there = [rewards[j][k] for j in case.members(i) if k < len(rewards[j])]
            if case.reward[i] is not None and not flat(there):
                total += gamma ** (k - case.segment[i][t]) * (rewards[i][k] - mean(there))
        return total

    return each_token(case, term)


# with a critic


def gae_advantage(case, *, beta=0.02, gamma=1.0, lam=0.95):
    rewards = earned(case, beta)
    return [
        [0.0 for _ in case.tokens(i)] if case.reward[i] is None else gae(rewards[i], case.value[i], gamma, lam)
        for i in case.completions()
    ]


def ppo(case, *, beta=0.02, gamma=1.0, lam=0.95):
    """PPO (1707.06347) with GAE (1506.02438), a KL in the reward (2203.02155) and whitened advantages."""
    return token_mean(clipped(case, whitened(case, gae_advantage(case, beta=beta, gamma=gamma, lam=lam))))


def ppo_dual(case, *, ceiling=3.0):
    """1912.09729: for A < 0 the objective does not fall below c A."""
    advantage = whitened(case, gae_advantage(case))

    def term(i, t):
        single = held(ratio(case, i, t), advantage[i][t])
        floor = torch.full_like(single, ceiling * advantage[i][t])
        return torch.maximum(single, floor) if advantage[i][t] < 0 else single

    return token_mean(each_token(case, term))


def ppo_penalty(case, *, beta=None):
    """1707.06347 section 4: r A - beta KL(old, pi), the KL estimated by (r - 1) - log r."""
    beta = case.memory["beta"] if beta is None else beta
    advantage = whitened(case, gae_advantage(case, beta=0.0))

    def term(i, t):
        move = ratio(case, i, t)
        return move * advantage[i][t] - beta * ((move - 1) - torch.log(move))

    return token_mean(each_token(case, term))


def vapo(case, *, alpha=0.05, weight=0.1):
    """VAPO (2504.05118): lam by the length of the completion, clip higher, imitation of right completions."""
    rewards = earned(case)
    advantage = []
    for i in case.completions():
        lam = min(max(1 - 1 / (alpha * len(case.logp[i])), 0.0), 1.0)
        zero = case.reward[i] is None
        advantage.append([0.0 for _ in case.tokens(i)] if zero else gae(rewards[i], case.value[i], 1.0, lam))
    policy = token_mean(clipped(case, whitened(case, advantage), 0.2, 0.28))
    right = [each for i in case.completions() if case.right(i) for each in case.logp[i]]
    return policy + weight * sum(right) / max(len(right), 1)


def vtraced(case, **numbers):
    """(v, A) of every completion; an unscorable one learns nothing."""
    rewards, found = earned(case), []
    for i in case.completions():
        ratios = [exp(case.old[i][t] - case.behavior[i][t]) for t in case.tokens(i)]
        v, advantage = vtrace(rewards[i], case.value[i], ratios, **numbers)
        found.append((v, advantage) if case.reward[i] is not None else (v, [0.0 for _ in advantage]))
    return found


def vtrace_paper(case, **numbers):
    """IMPALA (1802.01561): the advantage carries the truncated ratio already."""
    return token_mean(score_function(case, [advantage for _, advantage in vtraced(case, **numbers)]))


# the critic's loss; an unscorable completion teaches it nothing but stays among the tokens


def squared_error(case, targets, coefficient=0.1, width=None):
    def term(i, t):
        value = case.new_value[i][t]
        if case.reward[i] is None:
            return 0.0 * value
        error = (value - targets[i][t]) ** 2
        if width is not None:
            before = case.value[i][t]
            error = torch.maximum(error, (torch.clamp(value, before - width, before + width) - targets[i][t]) ** 2)
        return error / 2

    return coefficient * token_mean(each_token(case, term))


def gae_targets(case, **numbers):
    return plus(gae_advantage(case, **numbers), case.value)


def ppo_critic(case, *, width=None, **numbers):
    return squared_error(case, gae_targets(case, **numbers), width=width)
