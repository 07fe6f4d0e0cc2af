"""Clip rules whose band depends on how likely a token was: a rare one may move by a large ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from whet.objective.clip.rule import ClipRule, pushed_out
from whet.objective.lazy_torch import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ProbabilityBand(ClipRule):
    """ppo_clip with edges by the token's old probability q: 1/2 (1 + sqrt(max(1 - 4 low / q, 0))) and
    min(1/2 (1 + sqrt(1 + 4 high / q)), ceiling). Yang 2025 (2509.02333), eq. 6. No gradient either where A < 0 and
    r > ceiling.

    The edges solve |r - 1| r q = width: a rare token may move by a large ratio. Below q = 4 low the lower edge is 1/2.
    """

    low: float = 0.2
    high: float = 0.28
    ceiling: float = 10.0
    name: ClassVar[str] = "probability_band"

    def __post_init__(self) -> None:
        if not (self.low > 0 and self.high > 0 and self.ceiling > 1):
            raise ValueError(
                f"clip.low, high, ceiling are {self.low}, {self.high}, {self.ceiling}; give widths above 0 and a "
                "ceiling above 1"
            )

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

    def words(self) -> str:
        return "stop learning from a token once its ratio left a band that is wider the rarer the token was"

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

    low: float = 0.15
    high: float = 0.15
    ceiling: float = 10000.0
    name: ClassVar[str] = "variation_mask"

    def __post_init__(self) -> None:
        if not (0 < self.low <= 1 and 0 < self.high <= 1 and self.ceiling >= 1):
            raise ValueError(f"clip.low, high are {self.low}, {self.high}; give probabilities in (0, 1], ceiling >= 1")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        policy, sampler = _probabilities(ratio, logp)
        masked = pushed_out(policy - sampler, advantage, -self.low, self.high)
        return ratio.clamp(max=self.ceiling).masked_fill(masked, 0.0)

    def words(self) -> str:
        return f"stop learning from a token once its probability moved by {self.high:g} the way A pushes it"

    def symbols(self) -> str:
        return f"[not (A > 0 and pi - mu > {self.high:g})] [not (A < 0 and mu - pi > {self.low:g})] r A"


@dataclass(frozen=True)
class DivergenceMask(ClipRule):
    """weight = min(r, ceiling), or 0 where D > limit and the token moved the way A pushes it.

    D = mu log(mu/pi) + (1 - mu) log((1 - mu)/(1 - pi)), the binary KL. Qi 2026 (2602.04879). log(1 - p) is taken as
    log1p(-p): rounding near p = 1 would decide the mask otherwise.
    """

    limit: float = 0.05
    ceiling: float = 10000.0
    name: ClassVar[str] = "divergence_mask"

    def __post_init__(self) -> None:
        if self.limit <= 0 or self.ceiling < 1:
            raise ValueError(f"clip.limit is {self.limit}; give nats above 0, and a ceiling of 1 or more")

    def __call__(self, ratio: Tensor, advantage: Tensor, action: Tensor, logp: Tensor) -> Tensor:
        policy, sampler = _probabilities(ratio, logp)
        most = 1 - torch.finfo(ratio.dtype).eps
        rest = torch.log1p(-sampler.clamp(max=most)) - torch.log1p(-policy.clamp(max=most))
        divergence = -sampler * ratio.log() + (1 - sampler) * rest
        masked = pushed_out(ratio, advantage, 1, 1) & (divergence > self.limit)
        return ratio.clamp(max=self.ceiling).masked_fill(masked, 0.0)

    def words(self) -> str:
        return f"stop learning from a token once it diverged by {self.limit:g} nats the way A pushes it"

    def symbols(self) -> str:
        return f"[not (KL(mu, pi) > {self.limit:g} nats, moved with A)] r A"


def _probabilities(ratio: Tensor, logp: Tensor) -> tuple[Tensor, Tensor]:
    """pi and mu of the sampled token; a ratio of 1 gives exactly equal ones."""
    return logp.exp(), (logp - ratio.log()).exp()
