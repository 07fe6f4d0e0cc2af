"""Rollouts and scores by several ranks: each writes and judges its share, and every rank gets all of it.

A request has a seed of its own, so that it does not matter who writes it. An engine cannot write with shards: each rank
keeps a whole copy of the policy in the precision it computes in, filled anew whenever the weights have changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from whet.model.causal_lm import CausalLM, causal_lm
from whet.model.lora import FACTORS, adapted_layers
from whet.protocols import Engine
from whet.rollout.episode_runner import EpisodeEnded, EpisodePlan, EpisodeRunner, PlayNotes
from whet.rollout.session import stream_of
from whet.training.distributed.ranks import Ranks
from whet.training.distributed.shard import gathered_dtype, layers_of, whole
from whet.types import Request, Sample, Sampling

T = TypeVar("T")


def whole_copy(policy: CausalLM) -> CausalLM:
    """The policy as it is now, without adapters of its own: nothing in it learns. To be made before it is sharded.

    Where products run below float32 the matrices of the layers are kept so, as they are gathered in training too.
    """
    model: Any = copy.deepcopy(policy.model)
    model.requires_grad_(False)
    model.eval()
    for layer in adapted_layers(model).values():
        layer.__class__ = nn.Linear  # type: ignore[assignment]
        for name in ("base", *FACTORS):
            if hasattr(layer, name):
                delattr(layer, name)
    lm = causal_lm(model, policy.dtype)
    half = gathered_dtype(lm)
    for weight in _layer_weights(lm):
        if weight.ndim > 1 and lm.dtype.itemsize < 4:
            weight.data = weight.data.to(lm.dtype)
        elif half is not None:
            weight.data = weight.data.to(half).to(weight.dtype)
    return lm


def _layer_weights(lm: CausalLM) -> list[nn.Parameter]:
    return [weight for layer in layers_of(lm.trunk) for weight in layer.parameters()]


class WholeCopyEngine:
    """An engine on a whole copy of a policy in shards. `load` gathers the weights, on all ranks at once."""

    shares_weights = False  # the engine computes with the copy's tensors, the trainer with its own

    def __init__(self, policy: CausalLM, make: Callable[[CausalLM], Engine]) -> None:
        """`policy` is still whole; `make` gives the engine that writes with the copy."""
        self._copy = whole_copy(policy)
        self._engine = make(self._copy)

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        """Generate with the whole copy of the weights."""
        return self._engine.generate(requests, sampling)

    @property
    def stream(self) -> Any:
        """The engine's own; None where it has none."""
        return stream_of(self._engine)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Gather the sharded weights into the copy, layer by layer."""
        done: set[int] = set()  # a weight that two layers share travels once
        half = gathered_dtype(self._copy)
        layered = {id(weight) for weight in _layer_weights(self._copy)}
        for name, target in self._copy.model.state_dict(keep_vars=True).items():
            if id(target) not in done and name in weights:
                done.add(id(target))
                # rounded as it is where the trainer gathers it
                target.copy_(whole(weights[name], half if half is not None and id(target) in layered else target.dtype))
        self._engine.load(self._copy.model.state_dict(), version)

    def __getattr__(self, name: str) -> Any:
        """Sessions and what is said about decoding: the engine's own."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._engine, name)


class FirstRankEngine:
    """Engines elsewhere, to which the first rank alone speaks. `load` gathers the weights, on all ranks at once."""

    def __init__(self, engine: Engine | None) -> None:
        """`engine` is None on all ranks but the first."""
        self._engine = engine

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        """Generate on the engines elsewhere; only the first rank may ask."""
        if self._engine is None:
            raise RuntimeError("only the first rank may ask engines elsewhere")
        return self._engine.generate(requests, sampling)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Gather the sharded weights and send them on from the first rank; all ranks must call this."""
        gathered = {}
        for name, value in weights.items():
            full = whole(value)
            if self._engine is not None:
                gathered[name] = full
        if self._engine is not None:
            self._engine.load(gathered, version)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._engine is None:
            raise AttributeError(name)
        return getattr(self._engine, name)


class _RankRunner:
    """A runner among ranks; what is not played otherwise is that of the runner itself."""

    def __init__(self, runner: EpisodeRunner, ranks: Ranks) -> None:
        self._runner, self._ranks = runner, ranks

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._runner, name)


class FirstRankRunner(_RankRunner):
    """Plays episodes on the first rank, whose engines are elsewhere; every rank gets them."""

    def play(self, plan: EpisodePlan, ended: EpisodeEnded | None = None) -> list[list[Sample]]:
        """Play all episodes on the first rank and send them to the others."""
        return self._ranks.first(lambda: self._runner.play(plan))

    def take_notes(self) -> PlayNotes:
        return self._ranks.first(self._runner.take_notes)


class SharedRunner(_RankRunner):
    """Plays episodes on all ranks, each the prompts of its share."""

    def play(self, plan: EpisodePlan, ended: EpisodeEnded | None = None) -> list[list[Sample]]:
        """Play this rank's share of the episodes and exchange them with the other ranks."""
        costs = [len(tokens) + plan.count * plan.sampling.max_new_tokens for tokens in plan.prompt_tokens]
        return self._ranks.spread(costs, lambda mine: self._runner.play(plan.share(mine)))

    def take_notes(self) -> PlayNotes:
        """The notes of all ranks together; each time is that of the slowest rank."""
        return PlayNotes.joined(self._ranks.gather(self._runner.take_notes()), seconds=max)


def shared_work(ranks: Ranks) -> Callable[[Sequence[Hashable] | None, int, Callable[[list[int]], list[T]]], list[T]]:
    """How rows are judged: those that stand alone by all ranks, a family together; else by the first rank."""

    def shared(families: Sequence[Hashable] | None, count: int, work: Callable[[list[int]], list[T]]) -> list[T]:
        if families is None:
            return ranks.first(lambda: work(list(range(count))))
        return ranks.spread([1.0] * count, work, families)

    return shared
