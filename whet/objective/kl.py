"""Tied to the reference how? u = logp - ref_logp.

A KL term in the loss is a weight too: the derivative of the estimator with respect to logp, detached
(k2: u, k3: 1 - exp(-u)), with the same shares as the policy term. k1 is missing on purpose: its expected gradient is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class KL(Protocol):
    name: ClassVar[str]
    needs_reference: ClassVar[bool]

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

    def weight(self, u: Tensor) -> Tensor:
        return self.beta * -torch.expm1(-u)

    def value(self, u: Tensor) -> Tensor:
        return torch.expm1(-u) + u

    def words(self) -> str:
        return f"pull towards the reference with {self.beta:g} times the k3 estimate of the KL"

    def symbols(self) -> str:
        return f" - {self.beta:g} (exp(-u) - 1 + u), u = log(pi/ref)"
