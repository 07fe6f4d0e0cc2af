"""Which token earned it? Baselines that credit the tokens of a completion one by one.

They read `batch.token_reward` (process and turn rewards less the KL, [N, T]) and put the completion's own reward on its
last action, less what its steps have earned of it already (`batch.returned`): nothing is paid twice. Tokens between the
actions (a tool's output) are passed over: value and trace carry on after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.advantage import Baseline, GroupMean, Memory
from whet.objective.component import Component, given, number
from whet.objective.lazy_torch import Tensor, torch
from whet.types import TokenBatch


def paid(batch: TokenBatch, outcome: Tensor | None = None) -> Tensor:
    """[N, T]: what each action earned, the completion's reward (or `outcome`) on its last action. 0 for unscorable
    rows."""
    outcome = batch.reward if outcome is None else outcome
    scored = ~batch.reward.isnan()
    earned = torch.zeros(batch.action.shape, dtype=batch.reward.dtype, device=batch.reward.device)
    if batch.token_reward is not None:
        earned = earned + batch.token_reward.to(earned.dtype)
    if batch.returned is not None:
        outcome = outcome - batch.returned.to(outcome.dtype)
    last = last_action(batch.action)
    earned = earned + torch.where(last, outcome.nan_to_num()[:, None], 0.0)
    return torch.where(batch.action & scored[:, None], earned, 0.0)


def last_action(action: Tensor) -> Tensor:
    """True on the last action of each row."""
    following = action.flip(-1).cumsum(-1).flip(-1)
    return action & (following == 1)


def discounted_sum(values: Tensor, factor: Tensor | float, action: Tensor) -> Tensor:
    """x_t = values_t + factor_t x_{next action}, from the last action to the first; the rest is passed over: [N, T]."""
    factors = torch.as_tensor(factor, dtype=values.dtype, device=values.device).expand_as(values)
    total = torch.zeros_like(values)
    carried = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        here = values[:, t] + factors[:, t] * carried
        carried = torch.where(action[:, t], here, carried)
        total[:, t] = torch.where(action[:, t], here, 0.0)
    return total


def next_value(values: Tensor, action: Tensor) -> Tensor:
    """[N, T]: the value at the next action of the row; 0 after the last one: a completion that ended is worth
    nothing."""
    total = torch.zeros_like(values)
    carried = torch.zeros_like(values[:, 0])
    for t in range(values.shape[1] - 1, -1, -1):
        total[:, t] = torch.where(action[:, t], carried, 0.0)
        carried = torch.where(action[:, t], values[:, t], carried)
    return total


class TokenCredit(Baseline):
    """A baseline that credits tokens one by one, from the rewards that each of them earned."""

    per_token = True


@dataclass(frozen=True)
class ReturnToGo(TokenCredit):
    """x_t = SUM_{s >= t} gamma^(s-t) r_s. Hu 2025 (2501.03262), eq. 4: no baseline but the scale's mean.

    With k1 in the reward its expected gradient is that of the KL of the whole completion.
    """

    gamma: float = number(1.0, least=0, most=1)
    name = "return_to_go"
    in_words = "credit each token with what was earned from it on"
    in_symbols = "SUM_{{s >= t}} r_s"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return discounted_sum(paid(batch), self.gamma, batch.action)


class GroupMeanToGo(TokenCredit):
    """x_t = (R - mean_g R) + SUM_{s >= t} r_s: the outcome less the group mean, plus the penalties still to come.

    Hu 2025 (2501.03262), the baseline form.
    """

    name = "group_mean_to_go"
    in_words = "compare each completion with the mean of its group, and credit the KL from each token on"
    in_symbols = "R - mean_g(R) + SUM_{{s >= t}} r_s"

    @property
    def smallest_group(self) -> int:
        return 2

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        outcome = batch.reward - GroupMean()(batch, memory)
        return discounted_sum(paid(batch, outcome), 1.0, batch.action)


class CriticBaseline(Component):
    """What baselines with a critic share."""

    needs = frozenset({"value"})

    def critic_value(self, batch: TokenBatch) -> Tensor:
        """The critic's value at each action, 0 elsewhere: [N, T]; raises where the batch has none."""
        value = given(batch.value, "this baseline needs the critic's value")
        return torch.where(batch.action, value, 0.0).to(batch.reward.dtype)

    def surprise(self, batch: TokenBatch, gamma: float) -> Tensor:
        """d_t = r_t + gamma V_{t+1} - V_t; nothing is worth anything after the last action."""
        value = self.critic_value(batch)
        error = paid(batch) + gamma * next_value(value, batch.action) - value
        return torch.where(batch.action & ~batch.reward.isnan()[:, None], error, 0.0)


@dataclass(frozen=True)
class GAE(CriticBaseline, TokenCredit):
    """A_t = SUM_k (gamma lam)^k d_{t+k}, d_t = r_t + gamma V_{t+1} - V_t. Schulman 2015 (1506.02438), eq. 16.

    V after the last action is 0, for a truncated completion too. The critic's target is A + V.
    """

    gamma: float = number(1.0, least=0, most=1)
    lam: float = number(0.95, least=0, most=1)
    name = "gae"
    in_words = "compare each token with the critic's expectation; a truncated completion is worth 0 behind its end"
    in_symbols = "SUM_k ({0.gamma:g} * {0.lam:g})^k d_(t+k), d = r_t + {0.gamma:g} V_(t+1) - V_t"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        return discounted_sum(self.surprise(batch, self.gamma), self.gamma * self.lam, batch.action)

    def target(self, batch: TokenBatch) -> Tensor | None:
        return self.centred(batch, {}) + self.critic_value(batch)


@dataclass(frozen=True)
class DecoupledGAE(CriticBaseline, TokenCredit):
    """GAE with lam_i = 1 - 1 / (alpha n_i) for the policy and `critic_lam` for the critic. Yue 2025 (2504.05118).

    A completion of fewer than 1 / alpha tokens would get a negative lam: held at 0.
    """

    alpha: float = number(0.05, above=0)
    critic_lam: float = number(1.0, least=0, most=1)
    gamma: float = number(1.0, least=0, most=1)
    name = "gae_decoupled"
    in_words = "compare each token with the critic's expectation, looking further ahead in longer completions"
    in_symbols = "GAE with lam_i = 1 - 1/({0.alpha:g} n_i), critic lam {0.critic_lam:g}"

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        length = batch.lengths.clamp(min=1).to(batch.reward.dtype)
        lam = (1 - 1 / (self.alpha * length)).clamp(0, 1)[:, None]
        return discounted_sum(self.surprise(batch, self.gamma), self.gamma * lam, batch.action)

    def target(self, batch: TokenBatch) -> Tensor | None:
        return GAE(self.gamma, self.critic_lam).target(batch)


@dataclass(frozen=True)
class VTrace(CriticBaseline, TokenCredit):
    """v_t - V_t = rho_t d_t + gamma c_t (v_(t+1) - V_(t+1)); A_t = rho_t (r_t + gamma v_(t+1) - V_t).

    q = pi / mu, rho = min(rho_bar, q), c = lam min(c_bar, q). Espeholt 2018 (1802.01561), eq. 1 and section 4.2.
    The advantage carries the ratio already: the clip rule is on_policy. Over thousands of tokens the product of the
    c kills the terminal reward upstream, and what is left is the critic's opinion.
    """

    rho_bar: float = 1.0
    c_bar: float = number(1.0, above=0)
    lam: float = number(1.0, least=0, most=1)
    gamma: float = number(1.0, least=0, most=1)
    name = "vtrace"
    needs = frozenset({"value", "behavior_logp", "old_logp"})
    in_words = "compare each token with the critic's expectation, corrected for the policy that sampled"
    in_symbols = "rho_t (r_t + {0.gamma:g} v_(t+1) - V_t), rho = min({0.rho_bar:g}, pi/mu)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.c_bar > self.rho_bar:
            raise ValueError(f"c_bar is {self.c_bar:g}; give at most rho_bar = {self.rho_bar:g}")

    def _ratio(self, batch: TokenBatch) -> Tensor:
        behavior = given(batch.behavior_logp, "vtrace needs behavior_logp")
        if batch.old_logp is None:
            return torch.ones(batch.action.shape, dtype=batch.reward.dtype, device=batch.reward.device)
        log_ratio = (batch.old_logp - behavior).masked_fill(~batch.action, 0.0)
        return log_ratio.exp().to(batch.reward.dtype)

    def _push(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(max=self.rho_bar)

    def _corrections(self, batch: TokenBatch) -> Tensor:
        """v_t - V_t."""
        ratio = self._ratio(batch)
        push = self._push(ratio) * self.surprise(batch, self.gamma)
        trace = self.gamma * self.lam * ratio.clamp(max=self.c_bar)
        return discounted_sum(push, trace, batch.action)

    def centred(self, batch: TokenBatch, memory: Memory) -> Tensor:
        ahead = next_value(self._corrections(batch), batch.action)
        full = self._push(self._ratio(batch)) * (self.surprise(batch, self.gamma) + self.gamma * ahead)
        return torch.where(batch.action & ~batch.reward.isnan()[:, None], full, 0.0)

    def target(self, batch: TokenBatch) -> Tensor | None:
        return self._corrections(batch) + self.critic_value(batch)


class Trace(VTrace):
    """V-trace without rho on d_t: only the trace c_t = lam min(c_bar, q) looks at the sampler.

    The trace of Retrace, Munos 2016 (1606.02647), on a critic of states. Not the paper's operator, which needs the
    value of every action. The first step of each correction is taken as if the sampler's token were the policy's.
    """

    name = "trace"
    in_words = "compare each token with the critic's expectation, looking ahead only where the sampler agreed"
    in_symbols = "r_t + {0.gamma:g} v_(t+1) - V_t, v by traces min({0.c_bar:g}, pi/mu)"

    def _push(self, ratio: Tensor) -> Tensor:
        return torch.ones_like(ratio)
