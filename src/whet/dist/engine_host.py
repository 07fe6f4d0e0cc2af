"""What an engine's own process holds: a copy of the policy, and the engine that writes with it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whet.dist.wire import PackedWeights, load_weights, packed_samples
from whet.model.causal_lm import CausalLM
from whet.protocols import Engine
from whet.types import Request, Sampling


@dataclass(frozen=True)
class WrittenPiece:
    """Completions as they are sent, and the seconds they took."""

    samples: list[Any]
    seconds: float


class EngineHost:
    """Methods that are called from the run's process."""

    def __init__(self, policy: CausalLM, engine: Engine) -> None:
        self._policy, self._engine = policy, engine

    def load(self, version: int, *weights: PackedWeights) -> None:
        """Take over the policy's weights, later ones over earlier ones."""
        for each in weights:
            load_weights(self._policy.model, each)
        self._engine.load(self._policy.model.state_dict(), version)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> WrittenPiece:
        started = time.monotonic()
        with torch.no_grad():
            samples = self._engine.generate(requests, sampling)
        return WrittenPiece(packed_samples(samples), time.monotonic() - started)
