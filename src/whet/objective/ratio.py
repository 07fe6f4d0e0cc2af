"""How far has the policy moved since the batch was written? The level at which that is measured.

A ratio is `(log_ratio, batch) -> [N, T]`, with log_ratio = logp - old_logp (or behavior_logp, where `against` says
so); no gradient flows through it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from whet.objective.component import Component, given
from whet.objective.lazy_torch import Tensor, torch
from whet.types import TokenBatch

LARGEST_LOG = 10.0
LARGEST_TOKEN_LOG = 20.0  # of one token, as in verl: past 88 exp() is infinite in float32, and 0 times that is NaN


def held_log(log_ratio: Tensor) -> Tensor:
    """Log-ratios of tokens, at most 20. An infinite one is no move but a broken number: it stays, and ends the run."""
    return torch.where(log_ratio.isinf(), log_ratio, log_ratio.clamp(max=LARGEST_TOKEN_LOG))


def token_ratio(log_ratio: Tensor) -> Tensor:
    """exp of log-ratios of tokens, finite for all that are."""
    return held_log(log_ratio).exp()


class Ratio(Component):
    """The policy's move since the batch was written, as the clip rule sees it: log ratios [N, T]."""

    against: ClassVar[str] = "old_logp"  # the field of the batch the policy is measured against
    whole_completion: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, log_ratio: Tensor, batch: TokenBatch) -> Tensor: ...

    def symbols(self) -> str:
        """The definition of r as an equation, such as `r = pi(a_t) / pi_old(a_t)`."""
        return super().symbols()


class TokenRatio(Ratio):
    """r_it = exp(logp_it - old_logp_it), log r held at 20 from above. Schulman 2017 (1707.06347), section 3."""

    name = "token"
    in_words = "measure the policy's move token by token"
    in_symbols = "r = pi(a_t) / pi_old(a_t)"

    def __call__(self, log_ratio: Tensor, batch: TokenBatch) -> Tensor:
        return token_ratio(log_ratio.masked_fill(~batch.action, 0.0))


class SequenceRatio(Ratio):
    """s_i = exp(1/n_i SUM_t log r_it), on every token of i. Zheng 2025 (2507.18071), eq. 7.

    The mean runs over the trained tokens only. log s is capped at 10: past it a float32 product with A overflows.
    """

    name = "sequence"
    whole_completion = True
    in_words = "measure the policy's move by the geometric mean over the whole completion"
    in_symbols = "r = (pi(completion) / pi_old(completion))^(1/n_i)"

    def __call__(self, log_ratio: Tensor, batch: TokenBatch) -> Tensor:
        action = batch.action
        total = log_ratio.masked_fill(~action, 0.0).sum(-1, keepdim=True)
        mean = total / action.sum(-1, keepdim=True).clamp(min=1)
        return mean.clamp(max=LARGEST_LOG).exp().expand_as(log_ratio).masked_fill(~action, 1.0)


class SequenceProduct(Ratio):
    """Pi_i = exp(SUM_t log r_it), on every token of i: the importance ratio of the completion as one action.

    Unbiased and of huge variance: it drifts with the length of the completion. Its log is capped at 10.
    """

    name = "sequence_product"
    whole_completion = True
    in_words = "measure the policy's move by the probability ratio of the whole completion"
    in_symbols = "r = pi(completion) / pi_old(completion)"

    def __call__(self, log_ratio: Tensor, batch: TokenBatch) -> Tensor:
        action = batch.action
        total = log_ratio.masked_fill(~action, 0.0).sum(-1, keepdim=True)
        return total.clamp(max=LARGEST_LOG).exp().expand_as(log_ratio).masked_fill(~action, 1.0)


class SegmentRatio(Ratio):
    """s_ij = exp(mean_{t in segment j} log r_it), on every token of segment j of completion i.

    The level between token and sequence that Yang 2025 (2511.04256) argues for; the paper's rule for cutting a
    completion and its entropy-dependent bounds could not be read, so this is the ratio alone, cut at punctuation.
    """

    name = "segment"
    needs = frozenset({"segment"})
    in_words = "measure the policy's move by the geometric mean over each sentence"
    in_symbols = "r = (pi(sentence) / pi_old(sentence))^(1/n_ij)"

    def __call__(self, log_ratio: Tensor, batch: TokenBatch) -> Tensor:
        action, inside = batch.action, given(batch.segment, "the segment ratio needs segment").clamp(min=0)
        zeros = torch.zeros(len(inside), int(inside.max()) + 1, dtype=log_ratio.dtype, device=log_ratio.device)
        total = zeros.scatter_add(1, inside, log_ratio.masked_fill(~action, 0.0))
        count = zeros.scatter_add(1, inside, action.to(log_ratio.dtype))
        mean = (total / count.clamp(min=1)).gather(1, inside)
        return mean.clamp(max=LARGEST_LOG).exp().masked_fill(~action, 1.0)


class SamplerTokenRatio(TokenRatio):
    """r_it = exp(logp_it - behavior_logp_it): against the policy that sampled, so staleness and mismatch are in it."""

    name = "sampler_token"
    against = "behavior_logp"
    needs = frozenset({"behavior_logp"})
    in_words = "measure the policy's move token by token from the policy that sampled"
    in_symbols = "r = pi(a_t) / mu(a_t), mu the sampler"


class SamplerProduct(SequenceProduct):
    """Pi_i = exp(SUM_t (logp - behavior_logp)): the importance ratio of the completion against the policy that
    sampled."""

    name = "sampler_product"
    against = "behavior_logp"
    needs = frozenset({"behavior_logp"})
    in_words = "measure the policy's move by the probability ratio of the whole completion to the sampler's"
    in_symbols = "r = pi(completion) / mu(completion), mu the sampler"
