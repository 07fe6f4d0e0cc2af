"""How far has the policy moved since the batch was written? The level at which that is measured.

A ratio is `(log_ratio, action) -> [N, T]`, with log_ratio = logp - old_logp; no gradient flows through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


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
