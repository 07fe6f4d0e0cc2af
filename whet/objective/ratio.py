"""How far has the policy moved since the batch was written? The level at which that is measured.

A ratio is `(log_ratio, action) -> [N, T]`, with log_ratio = logp - old_logp; no gradient flows through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

LARGEST_LOG = 10.0


class Ratio(Protocol):
    name: ClassVar[str]

    def __call__(self, log_ratio: Tensor, action: Tensor) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


@dataclass(frozen=True)
class TokenRatio:
    """r_it = exp(logp_it - old_logp_it). Schulman 2017 (1707.06347), section 3."""

    name: ClassVar[str] = "token"

    def __call__(self, log_ratio: Tensor, action: Tensor) -> Tensor:
        return log_ratio.masked_fill(~action, 0.0).exp()

    def words(self) -> str:
        return "measure the policy's move token by token"

    def symbols(self) -> str:
        return "r = pi(a_t) / pi_old(a_t)"


@dataclass(frozen=True)
class SequenceRatio:
    """s_i = exp(1/n_i SUM_t log r_it), on every token of i. Zheng 2025 (2507.18071), eq. 7.

    The mean runs over the trained tokens only. log s is capped at 10: past it a float32 product with A overflows.
    """

    name: ClassVar[str] = "sequence"

    def __call__(self, log_ratio: Tensor, action: Tensor) -> Tensor:
        total = log_ratio.masked_fill(~action, 0.0).sum(-1, keepdim=True)
        mean = total / action.sum(-1, keepdim=True).clamp(min=1)
        return mean.clamp(max=LARGEST_LOG).exp().expand_as(log_ratio).masked_fill(~action, 1.0)

    def words(self) -> str:
        return "measure the policy's move by the geometric mean over the whole reply"

    def symbols(self) -> str:
        return "r = (pi(reply) / pi_old(reply))^(1/n_i)"


@dataclass(frozen=True)
class SequenceProduct:
    """Pi_i = exp(SUM_t log r_it), on every token of i: the importance ratio of the reply as one action.

    Unbiased and of huge variance: it drifts with the length of the reply. Its log is capped at 10.
    """

    name: ClassVar[str] = "sequence_product"

    def __call__(self, log_ratio: Tensor, action: Tensor) -> Tensor:
        total = log_ratio.masked_fill(~action, 0.0).sum(-1, keepdim=True)
        return total.clamp(max=LARGEST_LOG).exp().expand_as(log_ratio).masked_fill(~action, 1.0)

    def words(self) -> str:
        return "measure the policy's move by the probability ratio of the whole reply"

    def symbols(self) -> str:
        return "r = pi(reply) / pi_old(reply)"
