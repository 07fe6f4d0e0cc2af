"""The documents' claims about arithmetic, computed with whet's own components, and those that nothing here can decide.

A function gives what came out, in words, and whether that is what the document says.
"""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Sequence
from itertools import product
from statistics import fmean, pstdev, pvariance
from types import SimpleNamespace
from typing import Any

import torch
from claim_rules import ArithmeticClaim, UntestedClaim
from torch import Tensor

from whet.api.planning import plan
from whet.objective.advantage import GroupMean, LeaveOneOut, on_actions
from whet.objective.aggregate import Aggregate, FixedLength, SequenceMean, TokenMean, step_totals
from whet.objective.clip import PPOClip
from whet.objective.credit import GAE
from whet.objective.kl import K3
from whet.objective.preference.pair_losses import Logistic, PairScores, Squared
from whet.objective.scale import GroupStd
from whet.types import TokenBatch

Outcome = tuple[str, bool]
EPSILON, HIGHER = 0.2, 0.28  # of the clip: GRPO's, and DAPO's upper one
BILLIONS = 7  # weights of the documents' example
COPIES = ("policy", "reference", "critic", "reward model")  # lines of a plan that are models
ABOUT_HALF = (0.4, 0.6)


def batch_of(rewards: Sequence[float], lengths: Sequence[int] | None = None) -> TokenBatch:
    """One group of completions with these rewards and lengths (1 where none are said)."""
    lengths = lengths or [1] * len(rewards)
    action = torch.tensor([[token < length for token in range(max(lengths))] for length in lengths])
    return TokenBatch(
        tokens=torch.zeros(action.shape, dtype=torch.long),
        action=action,
        group=torch.zeros(len(rewards), dtype=torch.long),
        reward=torch.tensor(rewards, dtype=torch.float64),
    )


def advantages(rewards: Sequence[float]) -> list[float]:
    """GRPO's, by whet: less the group's mean, divided by Bessel's standard deviation."""
    batch = batch_of(rewards)
    centred = on_actions(batch.reward - GroupMean()(batch, {}), batch)
    return [float(value) for value in GroupStd()(centred, batch)[:, 0]]


def population_advantages(rewards: Sequence[float]) -> list[float]:
    """The same with the population's standard deviation, as the documents compute it."""
    mean, spread = fmean(rewards), pstdev(rewards)
    return [(reward - mean) / spread for reward in rewards]


def outcomes(right: int, size: int = 8) -> list[float]:
    """A group with so many right completions."""
    return [1.0] * right + [0.0] * (size - right)


def agree(first: Sequence[float], second: Sequence[float], tolerance: float = 5e-3) -> bool:
    """Whether two rows of numbers are the same to the digits that a document shows."""
    return all(abs(a - b) <= tolerance for a, b in zip(first, second, strict=True))


def example_advantages() -> Outcome:
    mine, other = advantages(outcomes(5)), population_advantages(outcomes(5))
    words = f"{mine[0]:+.3f} and {mine[-1]:+.3f}; with the population's deviation {other[0]:+.3f} and {other[-1]:+.3f}"
    return words, any(agree([row[0], row[-1]], [0.667, -1.333]) for row in (mine, other))


def widget_advantages() -> Outcome:
    rewards = [0.9, 0.2, 0.7, 0.1, 0.85, 0.4, 0.95, 0.3]
    other, mine = population_advantages(rewards), advantages(rewards)
    words = f"{other[0]:.2f}, {other[1]:.2f}, ... with the population's deviation; {mine[0]:.2f}, ... with Bessel's"
    return words, agree(other, [1.10, -1.10, 0.47, -1.42, 0.95, -0.47, 1.26, -0.79], 6e-3)


def half_reinforced() -> Outcome:
    reinforced = sum(value > 0 for value in advantages(outcomes(5)))
    return f"{reinforced} of 8 are reinforced where 5 of 8 are right; only the mean is 0", reinforced == 4


def scale_free() -> Outcome:
    rewards = [0.9, 0.2, 0.7, 0.1]
    apart = max(
        abs(a - b)
        for a, b in zip(advantages(rewards), advantages([10 * reward + 3 for reward in rewards]), strict=True)
    )
    return f"ten times the rewards plus 3 change no advantage by more than {max(apart, 1e-4):g}", apart <= 1e-4


def equal_rewards() -> Outcome:
    largest = max(abs(value) for value in advantages([1.0] * 8))
    noisy = max(advantages([1.0] * 7 + [1.001]))
    words = f"every advantage is {largest:g}; where one of 8 equal rewards is off by 0.001 its advantage is {noisy:.2f}"
    return words, largest > 1


def rare_outcome_largest() -> Outcome:
    hard, middling = max(advantages(outcomes(1))), max(advantages(outcomes(4)))
    return f"largest advantage {hard:.2f} where 1 of 8 is right, {middling:.2f} where 4 are", hard > middling


def hard_prompts_push() -> Outcome:
    hard, middling = (fmean([abs(value) for value in advantages(outcomes(right))]) for right in (1, 4))
    words = f"mean size of an advantage {hard:.2f} where 1 of 8 is right, {middling:.2f} where 4 are"
    return words, hard > middling


def hard_prompts_share() -> Outcome:
    def push(right: int) -> float:
        return fmean([abs(reward - right / 8) for reward in outcomes(right)])

    scaled = fmean([abs(value) for value in advantages(outcomes(1))]) / fmean(
        [abs(value) for value in advantages(outcomes(4))]
    )
    plain = push(1) / push(4)
    words = f"1 of 8 right pushes {plain:.2f} times as much as 4 of 8 without the division, {scaled:.2f} times with it"
    return words, scaled > plain


def token_shares(aggregate: Aggregate) -> float:
    """What a token of a completion of 10 tokens counts against one of 100."""
    batch = batch_of([0.0, 0.0], [10, 100])
    shares = aggregate(batch, step_totals(batch, 128))
    return float(shares[0, 0] / shares[1, 0])


def length_bias() -> Outcome:
    share = token_shares(SequenceMean())
    return f"a token of 10 counts {share:g} times as much as one of 100", share > 1


def token_mean_short() -> Outcome:
    share = token_shares(TokenMean())
    return f"a token of 10 counts {share:g} times as much as one of 100", share > 1


def fixed_length_even() -> Outcome:
    share = token_shares(FixedLength())
    return f"a token of 10 counts {share:g} times as much as one of 100", abs(share - 1) < 1e-9


NEAR, FAR = ([0.5, 0.3, 0.2], [0.45, 0.33, 0.22]), ([0.99, 0.01], [0.5, 0.5])


def moments(policy: Sequence[float], reference: Sequence[float]) -> dict[str, tuple[float, float]]:
    """Mean and variance of k1 and k3 under the policy, by enumeration."""
    p, q = torch.tensor(policy, dtype=torch.float64), torch.tensor(reference, dtype=torch.float64)
    u = (p / q).log()
    values = {"k1": u, "k3": K3().value(u, torch.ones_like(u))}
    means = {name: float((p * value).sum()) for name, value in values.items()}
    return {name: (means[name], float((p * (value - means[name]) ** 2).sum())) for name, value in values.items()}


def k3_positive() -> Outcome:
    u = torch.linspace(-8, 8, 10001, dtype=torch.float64)
    least = float(K3().value(u, torch.ones_like(u)).min())
    return f"its smallest value over log-ratios from -8 to 8 is {round(least, 9):g}", least >= 0


def k3_unbiased() -> Outcome:
    gaps = [abs(pair["k3"][0] - pair["k1"][0]) for pair in (moments(*NEAR), moments(*FAR))]
    return f"its mean is off the KL by {round(max(gaps), 9):g}, near and far from the reference", max(gaps) < 1e-12


def k3_varies_less() -> Outcome:
    near = moments(*NEAR)
    words = f"variance {near['k3'][1]:.1e} against {near['k1'][1]:.1e} of k1, at a KL of {near['k1'][0]:.4f}"
    return words, near["k3"][1] < near["k1"][1]


def k3_always_less() -> Outcome:
    far = moments(*FAR)
    words = f"variance {far['k3'][1]:.1f} against {far['k1'][1]:.2f} of k1 for (0.99, 0.01) and (0.5, 0.5)"
    return words, far["k3"][1] < far["k1"][1]


def k3_gradient() -> Outcome:
    logits = torch.tensor(NEAR[0], dtype=torch.float64).log().requires_grad_()
    reference = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    policy = logits.softmax(0)
    (true,) = torch.autograd.grad((policy * (policy / reference).log()).sum(), logits, retain_graph=True)
    (forward,) = torch.autograd.grad((reference * (reference / policy).log()).sum(), logits, retain_graph=True)
    u = (policy / reference).log().detach()
    weight = K3(beta=1.0).weight(u, torch.ones_like(u)) * policy.detach()
    (pulled,) = torch.autograd.grad((weight * policy.log()).sum(), logits)
    off, on = float((pulled - true).norm() / true.norm()), float((pulled - forward).norm() / forward.norm())
    return f"off the KL's gradient by {off:.0%} of its size, and off the forward KL's by {on:.0%}", off < 0.01


def expected_share(size: int, rule: GroupMean | LeaveOneOut, chance: float = 0.3) -> float:
    """The expected gradient of a group as a share of the true one, of a coin that is right with this chance."""
    total = 0.0
    for right in range(size + 1):
        likely = math.comb(size, right) * chance**right * (1 - chance) ** (size - right)
        batch = batch_of(outcomes(right, size))
        centred = batch.reward - rule(batch, {})
        total += likely * float((centred * (batch.reward - chance)).mean())
    return total / (chance * (1 - chance))


def group_mean_bias() -> Outcome:
    shares = {size: expected_share(size, GroupMean()) for size in (2, 8, 64)}
    words = ", ".join(f"{share:.3f} of it with {size}" for size, share in shares.items())
    return f"the expected gradient is {words}", shares[2] < 0.9 and shares[64] > 0.95


def leave_one_out_unbiased() -> Outcome:
    shares = [expected_share(size, LeaveOneOut()) for size in (2, 8, 64)]
    return f"the expected gradient is {min(shares):.6f} of the true one, for groups of 2, 8 and 64", agree(
        shares, [1.0] * 3, 1e-9
    )


def baseline_variance() -> Outcome:
    def moments_with(baseline: float, chance: float) -> tuple[float, float]:
        right, wrong = (1 - baseline) * (1 - chance), (0 - baseline) * (0 - chance)
        mean = chance * right + (1 - chance) * wrong
        return mean, chance * right**2 + (1 - chance) * wrong**2 - mean**2

    found = {chance: (moments_with(0.0, chance), moments_with(chance, chance)) for chance in (0.2, 0.8)}
    words = "; ".join(
        f"right with {chance:g}: variance {plain[1]:.4f} without and {centred[1]:.4f} with the mean reward as baseline"
        for chance, (plain, centred) in found.items()
    )
    return words, all(centred[1] < plain[1] for plain, centred in found.values())


def baseline_unbiased() -> Outcome:
    means = [(1 - b) * 0.8 * 0.2 + (0 - b) * 0.2 * (0 - 0.8) for b in (0.0, 0.5, 0.8)]
    return f"the expected gradient is {means[0]:.3f} with baselines of 0, 0.5 and 0.8", agree(
        means, [means[0]] * 3, 1e-12
    )


def group_of_one() -> Outcome:
    value = advantages([1.0])[0]
    return f"the advantage is {value:g}", value == 0


def group_of_two() -> Outcome:
    wide, narrow = advantages([1.0, 0.0]), advantages([0.51, 0.5])
    words = (
        f"{wide[0]:+.3f} and {wide[1]:+.3f} for rewards 1 apart, {narrow[0]:+.3f} and {narrow[1]:+.3f} for 0.01 apart"
    )
    return words, agree(wide, narrow, 1e-3)


def group_noise() -> Outcome:
    spreads = {size: 0.5 / math.sqrt(size) for size in (2, 8, 64)}
    drawn = random.Random(0)
    seen = {
        size: pstdev([fmean([float(drawn.random() < 0.5) for _ in range(size)]) for _ in range(4000)])
        for size in spreads
    }
    words = ", ".join(f"{seen[size]:.3f} with {size}" for size in spreads)
    return f"spread of the mean of coin flips: {words}", agree(list(spreads.values()), list(seen.values()), 0.02)


def clip_weight(ratio: float, advantage: float) -> float:
    """The factor in front of the gradient of log pi."""
    one = torch.ones(1, 1, dtype=torch.float64)
    return float(PPOClip()(ratio * one, advantage * one, one.bool(), one.log())[0, 0])


def clip_stops() -> Outcome:
    value = clip_weight(1.5, 1.0)
    return f"the gradient's weight at a ratio of 1.5 is {value:g}", value == 0


def clip_stronger_below() -> Outcome:
    value = clip_weight(0.1, -1.0)
    return f"the gradient's weight at a ratio of 0.1 is {value:g}: the clipped branch is constant", value > 0.1


def clip_lets_back() -> Outcome:
    value = clip_weight(1.5, -1.0)
    return f"the gradient's weight at a ratio of 1.5 is {value:g}", value > 0


def climb() -> Outcome:
    steps = [math.log(10) / math.log(1 + high) for high in (EPSILON, HIGHER)]
    return f"{steps[0]:.1f} and {steps[1]:.1f} steps", agree(steps, [12.6, 9.3], 0.05)


def compounding() -> Outcome:
    gaps = [((1 + HIGHER) / (1 + EPSILON)) ** steps for steps in (20, 50, 100)]
    words = f"{gaps[0]:.1f}, {gaps[1]:.0f} and {gaps[2]:.0f} times"
    return words, all(abs(mine / said - 1) < 0.05 for mine, said in zip(gaps, (1.7, 3.7, 14.0), strict=True))


def beyond_one() -> Outcome:
    reach = min(0.9 * (1 + EPSILON), 1.0)
    return f"it can reach {reach:g}: a probability stops there before the clip does", abs(reach - 1.08) < 1e-9


def clip_inert() -> Outcome:
    edge = 1 / (1 + EPSILON)
    return f"from {edge:.3f} on", abs(edge - 0.83) < 0.005


def absolute_room() -> Outcome:
    low, high = EPSILON * 0.01, EPSILON * 0.5
    return f"{low:g} and {high:g}: {high / low:g} times", abs(high / low - 50) < 1e-9


def product_bound() -> Outcome:
    exponent = 1024 * math.log10(1 + EPSILON)
    return f"10 to the {exponent:.1f}", abs(exponent - 81) < 0.5


TOY_NEW = ((-1.2, -0.8, -1.5, -0.4, -2.1, -1.0), (-0.9, -1.3, -0.7, -1.8, -0.6), (-1.1, -0.5, -1.4, -0.9))
TOY_OLD = ((-1.3, -0.9, -1.4, -0.5, -2.0, -1.1), (-1.0, -1.2, -0.8, -1.7, -0.7), (-1.0, -0.6, -1.3, -1.0))


def toy_clips() -> Outcome:
    moves = [[a - b for a, b in zip(new, old, strict=True)] for new, old in zip(TOY_NEW, TOY_OLD, strict=True)]
    tokens = sum(not 1 - EPSILON <= math.exp(move) <= 1 + EPSILON for row in moves for move in row)
    sequences = sum(not 1 - 3e-4 <= math.exp(fmean(row)) <= 1 + 4e-4 for row in moves)
    return f"{tokens} of 15 tokens, {sequences} of 3 completions outside", sequences >= 2 and tokens == 0


def geometric_mean() -> Outcome:
    mixed = pvariance([fmean(signs) for signs in product((-0.1, 0.1), repeat=8)]) / 0.1**2
    common = math.log(math.exp(fmean([0.1] * 8))) / 0.1
    words = (
        f"the mean of 8 independent moves has {mixed:.3f} of one's variance; 8 equal moves have a mean of {common:.2f}"
    )
    return words, mixed < 0.2 and abs(common - 1) < 1e-9


def gigabytes(method: str, reward_model: bool) -> float:
    """What the copies of a 7B model take by `whet plan`: weights, gradients and optimizer, no activations."""
    planned = plan(method, model=f"{BILLIONS}B", gpus="1x2000GB", reward_model=f"{BILLIONS}B" if reward_model else "")
    return sum(line.gigabytes for line in planned.memory.lines if line.name.startswith(COPIES))


def half_the_memory() -> Outcome:
    ppo, grpo = gigabytes("ppo", False), gigabytes("grpo", False)
    words = f"GRPO's copies of the model take {grpo:.0f} GB and PPO's {ppo:.0f} GB: {1 - grpo / ppo:.0%} less"
    return words, ABOUT_HALF[0] <= 1 - grpo / ppo <= ABOUT_HALF[1]


def dpo_memory() -> Outcome:
    ppo, dpo = gigabytes("ppo", True), gigabytes("dpo", False)
    return f"DPO's copies take {dpo:.0f} GB and PPO's {ppo:.0f} GB: {dpo / ppo:.0%}", ABOUT_HALF[
        0
    ] <= dpo / ppo <= ABOUT_HALF[1]


def simpo_memory() -> Outcome:
    dpo, simpo = gigabytes("dpo", False), gigabytes("simpo", False)
    return f"SimPO's copies take {simpo:.0f} GB and DPO's {dpo:.0f} GB", simpo < dpo


def adam_state() -> Outcome:
    state = 12 * BILLIONS
    return f"master weights and two moments in float32 are 3 x 4 bytes a weight: {state} GB", state == 56


def lam_trace() -> Outcome:
    reach = 1 / (1 - 0.95)
    return f"the weights 0.95^k add up to {reach:.0f}", abs(reach - 20) < 1e-9


def gae_ends() -> Outcome:
    batch = batch_of([1.0], [4])
    value = torch.tensor([[0.2, 0.5, 0.4, 0.9]], dtype=torch.float64)
    batch = TokenBatch(tokens=batch.tokens, action=batch.action, group=batch.group, reward=batch.reward, value=value)
    whole, short = (GAE(lam=lam).centred(batch, {})[0] for lam in (1.0, 0.0))
    behind = torch.tensor([0.5, 0.4, 0.9, 1.0], dtype=torch.float64)
    gaps = float((whole - (1 - value[0])).abs().max()), float((short - (behind - value[0])).abs().max())
    words = "with 1 it is the reward less the value, with 0 the next value less this one"
    return f"{words}; off by {round(max(gaps), 9):g}", max(gaps) < 1e-9


REFERENCE, VALUES = (0.5, 0.3, 0.15, 0.05), (0.0, 1.0, 2.0, 3.0)


def tilted(beta: float) -> Tensor:
    """The optimum that the documents derive: the reference times exp(r / beta)."""
    return (
        torch.tensor(REFERENCE, dtype=torch.float64).log() + torch.tensor(VALUES, dtype=torch.float64) / beta
    ).softmax(0)


def closed_form() -> Outcome:
    logits = tilted(0.5).log().requires_grad_()
    policy, reference = logits.softmax(0), torch.tensor(REFERENCE, dtype=torch.float64)
    worth = (policy * torch.tensor(VALUES, dtype=torch.float64)).sum() - 0.5 * (
        policy * (policy / reference).log()
    ).sum()
    (slope,) = torch.autograd.grad(worth, logits)
    steepest = float(slope.abs().max())
    return f"the objective's slope there is {round(steepest, 9):g}", steepest < 1e-12


def partition_cancels() -> Outcome:
    implied = 0.5 * (tilted(0.5) / torch.tensor(REFERENCE, dtype=torch.float64)).log()
    gap = float(((implied - implied[0]) - torch.tensor(VALUES, dtype=torch.float64)).abs().max())
    return f"differences of the implied rewards are off those of the true ones by {round(gap, 9):g}", gap < 1e-12


def beta_and_distance() -> Outcome:
    def distance(beta: float) -> float:
        policy, reference = tilted(beta), torch.tensor(REFERENCE, dtype=torch.float64)
        return float((policy * (policy / reference).log()).sum())

    small, large = distance(0.1), distance(0.5)
    return f"KL of the optimum to the reference: {small:.2f} at beta 0.1, {large:.2f} at 0.5", small < large


def unbounded_margin() -> Outcome:
    def slope(curve: Logistic | Squared, margin: float) -> float:
        apart = torch.tensor([margin], dtype=torch.float64, requires_grad=True)
        plain: Any = SimpleNamespace(batch=SimpleNamespace(margin=None, preference=None))
        scores = PairScores(score=apart[:, None], difference=apart, completions=plain)
        (grad,) = torch.autograd.grad(curve(scores).sum(), apart)
        return float(grad)

    dpo, ipo, beyond = slope(Logistic(beta=0.1), 50.0), slope(Squared(beta=0.1), 5.0), slope(Squared(beta=0.1), 50.0)
    words = f"slope of DPO's cost at a margin of 50: {dpo:.1e}; of IPO's {ipo:g} at 5 and {beyond:+.0f} at 50"
    return words, dpo < 0 and abs(ipo) < 1e-9 and beyond > 0


def partial_credit() -> Outcome:
    tests, group = 10, 8
    all_right = 0.5**tests
    strict = all_right**group + (1 - all_right) ** group
    shares = sum((math.comb(tests, passed) * 0.5**tests) ** group for passed in range(tests + 1))
    words = (
        f"groups that agree: {strict:.1%} with all or nothing, {shares:.1e} with shares (10 tests, each passed by half)"
    )
    return words, shares < strict


def reward_example() -> Outcome:
    total = 0.5 * 1.0 + 0.2 * 0.8 + 0.15 * 1.0 + 0.15 * 1.0
    return f"{total:.2f}", abs(total - 0.93) < 5e-3


def last_number() -> Outcome:
    text = "<think>S = pi r^2, about 78.54</think><tool_call>calculator(expression='3.14159 * 5**2')</tool_call>"
    last = re.findall(r"-?\d+(?:\.\d+)?", text)[-1]
    return f"the last number of the text is {last}, out of 5**2", last == "78.54"


def coherence_share() -> Outcome:
    drawn = random.Random(0)
    noise = "".join(drawn.choice(string.ascii_letters + " ") for _ in range(400))
    share = len(re.findall(r"[\w\s.,!?]", noise)) / len(noise)
    return f"random letters score {share:.2f}, where 0.5 and more passes", share < 0.5


def ablation_sum() -> Outcome:
    deltas = {"filter": 6, "higher": 2, "soft": 3, "tokens": 1, "dynamic": 8}
    two = deltas["filter"] + deltas["soft"] + deltas["dynamic"]
    return f"{two} of {sum(deltas.values())} points", two == 17 and 30 + sum(deltas.values()) == 50


ARITHMETIC: tuple[ArithmeticClaim, ...] = (
    ArithmeticClaim(
        "example_advantages",
        "Of 8 completions 5 are right: their advantages are +0.667 and -1.333.",
        "A §3.2",
        example_advantages,
    ),
    ArithmeticClaim(
        "widget_advantages",
        "Rewards 0.9, 0.2, 0.7, 0.1, 0.85, 0.4, 0.95, 0.3 have the advantages 1.10, -1.10, 0.47, -1.42, ...",
        "D §3.3",
        widget_advantages,
    ),
    ArithmeticClaim(
        "half_reinforced",
        "As advantages have mean 0, half of a group is reinforced and half suppressed.",
        "A §3.2",
        half_reinforced,
    ),
    ArithmeticClaim("scale_free", "Advantages do not depend on the scale of the rewards.", "A §3.2", scale_free),
    ArithmeticClaim(
        "equal_rewards",
        "Where all rewards of a group are equal, the division by their spread explodes.",
        "D §3.4, §7",
        equal_rewards,
    ),
    ArithmeticClaim(
        "rare_outcome_largest",
        "Dividing by the spread gives prompts that are nearly always right or wrong the largest advantages.",
        "D §3.4",
        rare_outcome_largest,
    ),
    ArithmeticClaim(
        "hard_prompts_push",
        "... so that such prompts outweigh those of middling difficulty.",
        "D §3.4",
        hard_prompts_push,
    ),
    ArithmeticClaim(
        "hard_prompts_share",
        "Dividing by the spread gives such prompts more weight than they have without it.",
        "C §5",
        hard_prompts_share,
    ),
    ArithmeticClaim(
        "length_bias",
        "GRPO's division by the length punishes each token of a long wrong answer less than of a short one.",
        "C §5, D §3.4",
        length_bias,
    ),
    ArithmeticClaim(
        "token_mean_short",
        "Under a mean over tokens each token of a short answer has a larger gradient.",
        "C (extended)",
        token_mean_short,
    ),
    ArithmeticClaim(
        "fixed_length_even",
        "A constant in place of the length (Dr. GRPO) removes the bias.",
        "C §5, D §3.6",
        fixed_length_even,
    ),
    ArithmeticClaim("k3_positive", "The k3 estimate of the KL is never negative.", "B §5.2, C §2, D §3.3", k3_positive),
    ArithmeticClaim("k3_unbiased", "The value of k3 is an unbiased estimate of the KL.", "C §2, D §3.3", k3_unbiased),
    ArithmeticClaim("k3_varies_less", "k3 varies less than the plain log-ratio, k1.", "B §5.2, D §3.3", k3_varies_less),
    ArithmeticClaim(
        "k3_always_less", "... also where policy and reference are far apart.", "B §5.2, D §3.3", k3_always_less
    ),
    ArithmeticClaim(
        "k3_gradient",
        "k3 in the loss is a penalty with the KL, that is, it has the KL's gradient.",
        "B §5.2, C §2",
        k3_gradient,
    ),
    ArithmeticClaim(
        "group_mean_bias",
        "A mean that contains the sample itself biases the gradient, mildly and negligibly for large groups.",
        "C (extended)",
        group_mean_bias,
    ),
    ArithmeticClaim(
        "leave_one_out_unbiased", "The leave-one-out baseline is unbiased.", "C §3, (extended)", leave_one_out_unbiased
    ),
    ArithmeticClaim("baseline_unbiased", "A baseline leaves the gradient unbiased.", "D §3.1", baseline_unbiased),
    ArithmeticClaim("baseline_variance", "... and lowers its variance, whatever it is.", "D §3.1", baseline_variance),
    ArithmeticClaim("group_of_one", "A group of one has no advantage and no gradient.", "C (extended)", group_of_one),
    ArithmeticClaim(
        "group_of_two", "A group of two is a comparison of pairs: only who wins counts.", "C (extended)", group_of_two
    ),
    ArithmeticClaim(
        "group_noise", "The group's mean is a noisy baseline whose noise falls with the group's size.", "E", group_noise
    ),
    ArithmeticClaim(
        "clip_stops",
        "Above 1 + epsilon a token with a positive advantage has no gradient.",
        "B Q2, D §3.2, E §2",
        clip_stops,
    ),
    ArithmeticClaim(
        "clip_stronger_below",
        "At a negative advantage and a ratio of 0.1 the clipped gradient is the stronger one.",
        "D §3.2",
        clip_stronger_below,
    ),
    ArithmeticClaim(
        "clip_lets_back",
        "A bad token that has become likelier keeps its gradient: the minimum lets it be pulled back.",
        "D §3.2, E §2",
        clip_lets_back,
    ),
    ArithmeticClaim(
        "climb", "From 0.01 to 0.1 a token needs 12.6 clipped steps at 0.2 and 9.3 at 0.28.", "E §2", climb
    ),
    ArithmeticClaim(
        "compounding",
        "After 20, 50 and 100 clipped steps 0.28 is ahead of 0.2 by 1.7, 3.7 and 14 times.",
        "E §2",
        compounding,
    ),
    ArithmeticClaim(
        "beyond_one", "A token of probability 0.9 may rise to 1.08 before it is clipped.", "E §2", beyond_one
    ),
    ArithmeticClaim(
        "clip_inert", "The upper clip never acts on tokens above a probability of about 0.83.", "E §2", clip_inert
    ),
    ArithmeticClaim(
        "absolute_room",
        "In one step a token of probability 0.5 may gain 50 times as much as one of 0.01.",
        "E §2",
        absolute_room,
    ),
    ArithmeticClaim(
        "product_bound",
        "Clipped token by token, the ratio of 1,024 tokens is bounded by about 10 to the 81 only.",
        "E (GSPO)",
        product_bound,
    ),
    ArithmeticClaim(
        "toy_clips",
        "In the example of three completions GSPO's band clips nearly all of them and GRPO's no token.",
        "C §5.5",
        toy_clips,
    ),
    ArithmeticClaim(
        "geometric_mean",
        "The geometric mean smooths moves of mixed sign only; where all tokens move alike it moves as far.",
        "C §5.5",
        geometric_mean,
    ),
    ArithmeticClaim(
        "half_the_memory",
        "GRPO saves about half of PPO's memory, by leaving out the critic.",
        "A §3.1, B §5.1, D §3.3",
        half_the_memory,
    ),
    ArithmeticClaim("dpo_memory", "DPO needs half of PPO's memory.", "B §9.2", dpo_memory),
    ArithmeticClaim("simpo_memory", "Without a reference SimPO saves a copy of the model.", "B Q14", simpo_memory),
    ArithmeticClaim("adam_state", "AdamW's float32 state of 7B weights is 28 + 14 + 14 = 56 GB.", "B §9.2", adam_state),
    ArithmeticClaim(
        "lam_trace", "With gamma 1 and lambda 0.95 an advantage looks about 20 tokens ahead.", "B Q22", lam_trace
    ),
    ArithmeticClaim(
        "gae_ends", "GAE is Monte Carlo at lambda 1 and the one-step error at lambda 0.", "B §2.3, D §3.2", gae_ends
    ),
    ArithmeticClaim(
        "closed_form",
        "The optimum of reward less beta times KL is the reference times exp(r / beta).",
        "B §4.1",
        closed_form,
    ),
    ArithmeticClaim(
        "partition_cancels",
        "In differences of implied rewards the partition function cancels.",
        "B §4.3",
        partition_cancels,
    ),
    ArithmeticClaim(
        "beta_and_distance", "A small beta keeps the optimum close to the reference.", "D §3.5", beta_and_distance
    ),
    ArithmeticClaim(
        "unbounded_margin",
        "Where preferences never vary, DPO's margin grows without bound and IPO's stops at 1 / (2 beta).",
        "B §6.1, Q13",
        unbounded_margin,
    ),
    ArithmeticClaim(
        "partial_credit",
        "Credit for the share of tests passed leaves fewer groups without a signal.",
        "A Q10",
        partial_credit,
    ),
    ArithmeticClaim("reward_example", "The weighted example reward comes to 0.93.", "A §5.3", reward_example),
    ArithmeticClaim(
        "last_number",
        "Reading the last number of the text scores the example's answer, 78.54, as right.",
        "A §5.2, §5.3",
        last_number,
    ),
    ArithmeticClaim(
        "coherence_share", "The share of word characters tells gibberish from language.", "A §5.4", coherence_share
    ),
    ArithmeticClaim(
        "ablation_sum",
        "Two of DAPO's parts account for 17 of the 20 points of its table.",
        "E (ablation)",
        ablation_sum,
    ),
)

UNTESTED_CLAIMS: tuple[UntestedClaim, ...] = (
    UntestedClaim(
        "dapo_on_aime",
        "DAPO takes Qwen2.5-32B to 50 points on AIME 2024 in half of R1-Zero's steps.",
        "D §3.6, E (ablation)",
        "a 32B model and its training data",
    ),
    UntestedClaim(
        "cispo_speed",
        "CISPO is twice as fast as DAPO on Qwen2.5-32B; a whole run of MiniMax-M1 took three weeks of 512 GPUs.",
        "C §5.5, D §3.6",
        "a 32B model; cispo_faster_than_dapo asks the same of the built-in one",
    ),
    UntestedClaim(
        "router_disagreement",
        "Between inference and training engine a tenth of the routers and 94% of the tokens differ in some expert.",
        "D §3.7",
        "a large mixture on two engines; docs/moe.md measures a small one",
    ),
    UntestedClaim(
        "engine_probabilities",
        "GSPO can use the inference engine's log-probabilities as they are.",
        "A §6.6, C §5.5",
        "an engine with kernels of its own: the built-in one agrees with the trainer to rounding",
    ),
    UntestedClaim(
        "r1_emergence",
        "Reflection, backtracking and an aha moment emerge from pure RL; so do mixed languages.",
        "B Q21, C §6.5, §7",
        "a pretrained model that can write prose",
    ),
    UntestedClaim(
        "published_models",
        "InstructGPT, Llama 2, Zephyr, DeepSeek-R1 and DeepSWE reached what their papers report.",
        "A §4.4",
        "those models and their evaluations",
    ),
    UntestedClaim(
        "prm_on_math",
        "Choosing among many solutions, a process reward model reaches 78% on MATH and an outcome one 72%.",
        "B Q16",
        "the models and labels of that paper; docs/reranking.md compares both kinds on the built-in task",
    ),
    UntestedClaim(
        "overoptimisation_law",
        "The true reward follows a law of the distance to the reference, with coefficients of the reward model's size.",
        "B §8.2",
        "reward models of many sizes and a gold one; docs/overoptimization.md draws single curves",
    ),
    UntestedClaim(
        "rlaif",
        "Feedback of a model is as good as that of people.",
        "B §7.2",
        "people, and a model to compare with them",
    ),
    UntestedClaim(
        "sycophancy",
        "Reward models teach flattery, stock phrases, refusals and Markdown.",
        "B §8",
        "a chat model and people's preferences",
    ),
    UntestedClaim(
        "judge_flattery",
        "A policy rewarded by a judge alone learns what flatters it.",
        "A §5.4",
        "a language model as judge; docs/trust.md attacks one with fixed texts",
    ),
    UntestedClaim(
        "self_rewarding",
        "A model that judges itself drifts to its own taste and may collapse.",
        "C §8, (extended)",
        "a model that can judge: the built-in one writes arithmetic",
    ),
    UntestedClaim(
        "throughput",
        "On 7B weights and eight GPUs DPO runs at nearly the speed of SFT and PPO far below.",
        "B §9.3",
        "eight GPUs; rollout_dominates asks where the seconds of a step go",
    ),
    UntestedClaim(
        "maxrl",
        "MaxRL is 7.9 to 19 times more sample-efficient for success in several samples.",
        "D §3.6",
        "evaluations of several samples at every step: the archived runs hold greedy ones",
    ),
)
