"""Clip rules whose band depends on how likely a token was: a rare one may move by a large ratio."""

from __future__ import annotations

from dataclasses import dataclass

from whet.objective.clip.rule import ClipRule, pushed_out
from whet.objective.component import number
from whet.objective.lazy_torch import Tensor, torch


@dataclass(frozen=True)
class ProbabilityBand(ClipRule):
    """ppo_clip with edges by the token's old probability q: 1/2 (1 + sqrt(max(1 - 4 low / q, 0))) and
    min(1/2 (1 + sqrt(1 + 4 high / q)), ceiling). Yang 2025 (2509.02333), eq. 6. No gradient either where A < 0 and
    r > ceiling.

    The edges solve |r - 1| r q = width: a rare token may move by a large ratio. Below q = 4 low the lower edge is 1/2.
    """

    low: float = number(0.2, above=0)
    high: float = number(0.28, above=0)
    ceiling: float = number(10.0, above=1)
    name = "probability_band"
    in_words = "stop learning from a token once its ratio left a band that is wider the rarer the token was"

    def _edges(self, ratio: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
        inverse = (ratio.log() - logp).exp()  # 1 / q
        below = (1 - 4 * self.low * inverse).clamp(min=0).sqrt()
        above = (1 + 4 * self.high * inverse).sqrt()
        return (1 + below) / 2, ((1 + above) / 2).clamp(max=self.ceiling)

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        lowest, highest = self._edges(ratio, logp)
        dropped = pushed_out(ratio, advantage, lowest, highest)
        return ratio.masked_fill(dropped | ((advantage < 0) & (ratio > self.ceiling)), 0.0)

    def surrogate(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        lowest, highest = self._edges(ratio, logp)
        held = torch.minimum(torch.maximum(ratio, lowest), highest)
        single = torch.minimum(ratio * advantage, held * advantage)
        return torch.where(advantage < 0, torch.maximum(single, self.ceiling * advantage), single)

    def symbols(self) -> str:
        return (
            f"min(r A, clip(r, 1/2 + 1/2 sqrt(1 - {4 * self.low:g}/q), 1/2 + 1/2 sqrt(1 + {4 * self.high:g}/q)) A), "
            "q = pi_old"
        )


@dataclass(frozen=True)
class VariationMask(ClipRule):
    """weight = min(r, ceiling), or 0 where (A > 0 and pi - mu > high) or (A < 0 and mu - pi > low).

    Qi 2026 (2602.04879), binary total variation: a rare token may move by a large ratio, a frequent one may not.
    """

    low: float = number(0.15, above=0, most=1)
    high: float = number(0.15, above=0, most=1)
    ceiling: float = number(10_000.0, least=1)
    name = "variation_mask"
    in_words = "stop learning from a token once its probability moved by {0.high:g} the way A pushes it"
    in_symbols = "[not (A > 0 and pi - mu > {0.high:g})] [not (A < 0 and mu - pi > {0.low:g})] r A"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        policy, sampler = _probabilities(ratio, logp)
        masked = pushed_out(policy - sampler, advantage, -self.low, self.high)
        return ratio.clamp(max=self.ceiling).masked_fill(masked, 0.0)


@dataclass(frozen=True)
class DivergenceMask(ClipRule):
    """weight = min(r, ceiling), or 0 where D > limit and the token moved the way A pushes it.

    D = mu log(mu/pi) + (1 - mu) log((1 - mu)/(1 - pi)), the binary KL. Qi 2026 (2602.04879). log(1 - p) is taken as
    log1p(-p): rounding near p = 1 would decide the mask otherwise.
    """

    limit: float = number(0.05, above=0)
    ceiling: float = number(10_000.0, least=1)
    name = "divergence_mask"
    in_words = "stop learning from a token once it diverged by {0.limit:g} nats the way A pushes it"
    in_symbols = "[not (KL(mu, pi) > {0.limit:g} nats, moved with A)] r A"

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        policy, sampler = _probabilities(ratio, logp)
        most = 1 - torch.finfo(ratio.dtype).eps
        rest = torch.log1p(-sampler.clamp(max=most)) - torch.log1p(-policy.clamp(max=most))
        divergence = -sampler * ratio.log() + (1 - sampler) * rest
        masked = pushed_out(ratio, advantage, 1, 1) & (divergence > self.limit)
        return ratio.clamp(max=self.ceiling).masked_fill(masked, 0.0)


def _probabilities(ratio: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    """pi and mu of the sampled token; a ratio of 1 gives exactly equal ones."""
    return logp.exp(), (logp - ratio.log()).exp()
