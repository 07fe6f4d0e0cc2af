"""Did the trainer's policy write this? Weights for the gap between the sampler and the trainer.

A rule is `(log_mismatch, log_staleness, advantage, action) -> [N, T]`, a factor on the policy's weight without
gradient: log_mismatch = old_logp - behavior_logp (engine and staleness), log_staleness = logp - behavior_logp (updates
included).
"""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.component import Component, number
from whet.objective.lazy_torch import Tensor, torch
from whet.objective.ratio import token_ratio


class Mismatch(Component):
    """The factor on a token's weight for what the sampler's probability was."""

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return torch.ones_like(log_mismatch)

    def symbols(self) -> str:
        """The factor in front of the clip rule's term, followed by a space; empty for none."""
        return super().symbols()


class _FromSampler(Mismatch):
    needs = frozenset({"behavior_logp", "old_logp"})


def _completion_mean(values: Tensor, action: Tensor) -> Tensor:
    total = values.masked_fill(~action, 0.0).sum(-1, keepdim=True)
    return total / action.sum(-1, keepdim=True).clamp(min=1)


class NoMismatch(Mismatch):
    """factor = 1: the sampler is the trainer, to float noise. Measured on every step and reported."""

    name = "none"
    in_symbols = ""


@dataclass(frozen=True)
class Truncate(_FromSampler):
    """factor = min(rho, ceiling), token by token. Yao 2025: truncated importance sampling.

    Biased by O(T^2) with small variance.
    """

    ceiling: float = number(2.0, least=1)
    name = "truncate"
    in_words = "correct each token for the sampler's probability, by at most {0.ceiling:g}"
    in_symbols = "min(rho, {0.ceiling:g}) "

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        return log_mismatch.masked_fill(~action, 0.0).exp().clamp(max=self.ceiling)


@dataclass(frozen=True)
class TruncateSequence(_FromSampler):
    """factor = min(PROD_t rho_t, ceiling) on all tokens of a completion: unbiased below the ceiling, of huge
    variance."""

    ceiling: float = number(2.0, least=1)
    name = "truncate_sequence"
    in_words = "correct each completion for the sampler's probability of it, by at most {0.ceiling:g}"
    in_symbols = "min(prod rho, {0.ceiling:g}) "

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        product = log_mismatch.masked_fill(~action, 0.0).sum(-1, keepdim=True)
        return product.clamp(max=10.0).exp().clamp(max=self.ceiling).expand_as(log_mismatch)


@dataclass(frozen=True)
class MaskTokens(_FromSampler):
    """factor = rho where low <= rho <= high, else 0. IcePop: Ring 2025 (2510.18855); 0.5 and 5 as read in NeMo-RL."""

    low: float = number(0.5, least=0, most=1)
    high: float = number(5.0, least=1)
    name = "mask"
    in_words = "correct each token for the sampler's probability; drop those beyond {0.low:g} to {0.high:g}"
    in_symbols = "rho [{0.low:g} <= rho <= {0.high:g}] "

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        rho = token_ratio(log_mismatch.masked_fill(~action, 0.0))
        return torch.where((rho >= self.low) & (rho <= self.high), rho, 0.0)


@dataclass(frozen=True)
class MaskSequences(_FromSampler):
    """factor = rho_t for the tokens of a completion whose geometric-mean rho is in [low, high], else 0. Liu and Li
    2025.

    The bounds are for a mean over the completion: they are close to 1.
    """

    low: float = number(0.99, least=0, most=1)
    high: float = number(1.01, least=1)
    name = "sequence_mask"
    in_words = "drop completions whose mean ratio to the sampler left {0.low:g} to {0.high:g}"
    in_symbols = "rho [{0.low:g} <= geomean rho <= {0.high:g}] "

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        mean = _completion_mean(log_mismatch, action).exp()
        inside = (mean >= self.low) & (mean <= self.high)
        return torch.where(inside, token_ratio(log_mismatch.masked_fill(~action, 0.0)), 0.0)


@dataclass(frozen=True)
class MaskStale(_FromSampler):
    """factor = 0 for a completion with A < 0 and mean_t(behavior_logp - logp) > limit, else 1. DeepSeek-V3.2
    (2512.02556).

    The paper gives no limit and the code bases differ by 5000 times: set it. Looked at anew in every update.
    """

    limit: float = number(0.0, least=0)
    name = "stale_mask"
    in_words = "drop bad completions that the policy has left by more than {0.limit:g} nats a token"
    in_symbols = "[not (A < 0 and mean log(mu/pi) > {0.limit:g})] "

    def __call__(self, log_mismatch: Tensor, log_staleness: Tensor, advantage: Tensor, action: Tensor) -> Tensor:
        strayed = -_completion_mean(log_staleness, action) > self.limit
        return torch.where(strayed & (advantage < 0), 0.0, torch.ones_like(log_staleness))
