"""Tied to the reference how? u = logp - ref_logp.

A KL term in the loss is a weight too: the derivative of the estimator with respect to logp, detached
(k2: u, k3: 1 - exp(-u)), with the same shares. There is no k1 in the loss: its expected gradient is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from whet.types import TokenBatch


class KL(Protocol):
    name: ClassVar[str]
    needs_reference: ClassVar[bool]

    def cost(self, batch: TokenBatch) -> Tensor:
        """What is taken off each reward before the baseline: [N]."""
        ...

    def weight(self, u: Tensor) -> Tensor: ...

    def value(self, u: Tensor) -> Tensor: ...

    def words(self) -> str: ...

    def symbols(self) -> str: ...


def _check(beta: float) -> None:
    if not beta > 0:
        raise ValueError(f"kl.beta is {beta}: it would have no effect; give a number above 0, or set objective.kl=none")


@dataclass(frozen=True)
class NoKL:
    """No tie to the reference."""

    name: ClassVar[str] = "none"
    needs_reference: ClassVar[bool] = False

    def cost(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.reward)

    def weight(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def value(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def words(self) -> str:
        return "no tie to a reference"

    def symbols(self) -> str:
        return ""


@dataclass(frozen=True)
class K2:
    """beta u^2 / 2, kl_weight = beta u. Schulman 2020 note. Its gradient is the per-token gradient of KL(pi, ref)."""

    beta: float = 0.04
    name: ClassVar[str] = "k2"
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.beta)

    def cost(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.reward)

    def weight(self, u: Tensor) -> Tensor:
        return self.beta * u

    def value(self, u: Tensor) -> Tensor:
        return 0.5 * u**2

    def words(self) -> str:
        return f"pull towards the reference with {self.beta:g} times half the squared log-ratio"

    def symbols(self) -> str:
        return f" - {self.beta:g} u^2/2, u = log(pi/ref)"


@dataclass(frozen=True)
class K3:
    """beta (exp(-u) - 1 + u), kl_weight = beta (1 - exp(-u)). Shao 2024 (2402.03300), eq. 4.

    As a loss it pulls with the gradient of the forward KL: bounded above by 1, unbounded below.
    """

    beta: float = 0.04
    name: ClassVar[str] = "k3"
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.beta)

    def cost(self, batch: TokenBatch) -> Tensor:
        return torch.zeros_like(batch.reward)

    def weight(self, u: Tensor) -> Tensor:
        return self.beta * -torch.expm1(-u)

    def value(self, u: Tensor) -> Tensor:
        return torch.expm1(-u) + u

    def words(self) -> str:
        return f"pull towards the reference with {self.beta:g} times the k3 estimate of the KL"

    def symbols(self) -> str:
        return f" - {self.beta:g} (exp(-u) - 1 + u), u = log(pi/ref)"


@dataclass(frozen=True)
class K1Reward:
    """R_i -= beta SUM_t u_it, u at sampling time. Ahmadian 2024 (2402.14740), eq. 3; Ouyang 2022 (2203.02155), eq. 2.

    In the reward k1 does work: with one advantage a reply its expected gradient is that of the KL of the whole reply.
    The baseline and the scale act on it, so this beta cannot be compared with one in the loss.
    """

    beta: float = 0.05
    name: ClassVar[str] = "k1_reward"
    needs_reference: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self.beta)

    def cost(self, batch: TokenBatch) -> Tensor:
        sampled = batch.old_logp if batch.old_logp is not None else batch.behavior_logp
        if sampled is None or batch.ref_logp is None:
            raise ValueError("k1_reward needs ref_logp and the log-probabilities of the policy that sampled")
        u = (sampled - batch.ref_logp).masked_fill(~batch.action, 0.0)
        return self.beta * u.sum(-1).to(batch.reward.dtype)

    def weight(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def value(self, u: Tensor) -> Tensor:
        return u

    def words(self) -> str:
        return f"take {self.beta:g} times the reply's log-ratio to the reference off its reward"

    def symbols(self) -> str:
        return f", R -= {self.beta:g} SUM_t log(pi/ref)"
