"""Is the engine's policy the trainer's? For every engine that has weights of its own.

Two checks, neither of which trusts the engine's word:

- every load is fingerprinted, tensor by tensor; where the engine can say what arrived (`engine.arrived`), the two are
  compared, and a difference names the tensors;
- a few samples of every batch are replayed: the trainer computes the log-probabilities of their tokens, and an engine
  that wrote them with other weights, or with a stale head, differs by more than rounding explains.

What rounding explains is measured on the very tokens that are replayed: the trainer computes them a second time by
another route (the model's own forward on padded rows, in the other precision where one is coarse). A multiple of that
is the limit; docs/engines.md has the false alarms and the faults it was measured with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from whet.data.packing import token_batch
from whet.model.causal_lm import CausalLM
from whet.model.experts import routers
from whet.model.token_logp import Details, token_logp
from whet.protocols import Engine
from whet.types import Group, Prompt, Sample, WhetError

# times the measured rounding. In float32 another implementation's order of sums shows, which the trainer's two routes
# share; in a coarser type the rounding of the numbers themselves outweighs that
MARGIN, COARSE_MARGIN = 64.0, 4.0
NUM_REPLAYED = 8  # samples of a batch
CHUNK = 1024  # numbers of a tensor that are summed before their place counts
MOST_NAMED = 3  # tensors in an error line

Fingerprint = Mapping[str, int]
"""A number for each tensor by its name; equal tensors, equal numbers."""


class PolicyMismatch(WhetError):
    """The engine does not write with the policy it was given."""


def shares_weights(engine: Engine) -> bool:
    """True where an engine computes with the trainer's own tensors: then nothing can get lost on the way."""
    return bool(getattr(engine, "shares_weights", False))


@torch.no_grad()
def fingerprint(weights: Mapping[str, Any], dtype: torch.dtype | None = None) -> dict[str, int]:
    """The bits of each tensor, summed with their places: exact, and as fast as memory is read.

    `dtype` is that of the copies that travel. The order of the bits within a chunk of 1,024 numbers does not count.
    """
    pending = {name: _digest(value, dtype) for name, value in weights.items() if isinstance(value, Tensor)}
    return {name: int(value) for name, value in pending.items()}


def _digest(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    if hasattr(value, "to_local"):  # this rank's shard
        value = value.to_local()
    if dtype is not None and value.is_floating_point():
        value = value.to(dtype)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    bits = value.detach().contiguous().view(whole).flatten()
    full = len(bits) // CHUNK * CHUNK
    sums = bits[:full].view(-1, CHUNK).sum(-1, dtype=torch.int64)
    if full < len(bits):
        sums = torch.cat([sums, bits[full:].sum(dtype=torch.int64)[None]])
    # odd factors: a chunk that differs by any number shows, and sums wrap around without a loss
    places = 2 * torch.arange(len(sums), device=sums.device, dtype=torch.int64) + 1
    return (sums * places).sum() + value.numel()


def combined(numbers: Fingerprint) -> str:
    """A whole fingerprint in twelve letters."""
    text = "".join(f"{name}={numbers[name]};" for name in sorted(numbers))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_arrival(sent: Fingerprint, arrived: Fingerprint, version: int, engine: str) -> None:
    """Raise unless every tensor that was sent arrived as it was."""
    missing = [name for name in sent if name not in arrived]
    other = [name for name in sent if name in arrived and arrived[name] != sent[name]]
    if not missing and not other:
        return
    wrong = missing + other
    names = ", ".join(wrong[:MOST_NAMED]) + (" ..." if len(wrong) > MOST_NAMED else "")
    what = "did not arrive" if not other else "arrived otherwise than they were sent"
    raise PolicyMismatch(
        f"policy version {version}: {len(wrong)} of {len(sent)} tensors {what} in the engine {engine} ({names}); the "
        "run stops before it trains on completions of another policy: fix the engine's load"
    )


@dataclass(frozen=True)
class Replay:
    """How far an engine's log-probabilities are from the trainer's, in nats per token, on the tokens replayed."""

    tokens: int
    gap: float  # mean distance, of the sample where it is largest beside its limit
    limit: float  # what rounding explains, of that sample
    version: int

    @property
    def passes(self) -> bool:
        """Whether the engine's log-probabilities are within the limit; False where the gap is not a number."""
        return self.gap <= self.limit  # False where the gap is not a number


class TakesWeights(Protocol):
    """An engine, or a session of one."""

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Take over the policy's weights, as `whet.protocols.Engine.load` or `Session.load` says."""
        ...


class PolicyWatch:
    """Follows the weights of one policy into an engine, and checks the completions that come back."""

    def __init__(
        self, policy: CausalLM, engine: TakesWeights, temperature: float, name: str, max_staleness: int = 0
    ) -> None:
        """`max_staleness`: policy versions that new completions may lie behind; 0: each batch waits for the weights."""
        self._policy, self._engine, self._temperature, self._name = policy, engine, temperature, name
        self._max_staleness, self._version = max_staleness, 0
        self.print = ""  # of the last load

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Hand the weights over, and compare what was sent with what arrived."""
        sent = fingerprint(weights, getattr(self._engine, "dtype", None))
        self._engine.load(weights, version)
        arrived = getattr(self._engine, "arrived", None)
        if arrived is not None and self._policy.gathering is None:  # of a policy in shards this rank has a part
            check_arrival(sent, arrived, version, self._name)
        self._version, self.print = version, combined(sent)

    def check(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Replay a few of these samples, which were just written; metrics, or an error that names the version."""
        oldest = min((sample.versions[0] for sample in samples), default=self._version)
        if oldest < self._version - self._max_staleness:
            raise PolicyMismatch(
                f"policy version {self._version} was loaded and the engine {self._name} still writes with version "
                f"{oldest}; fix its load, or the version that its samples carry"
            )
        chosen = _spread([sample for sample in samples if bool(_replayable(sample, self._version).any())], NUM_REPLAYED)
        if not chosen:  # every token is of an older policy, which the trainer no longer has
            return {"replayed_tokens": 0.0}
        result = replay(self._policy, chosen, self._version, self._temperature, getattr(self._engine, "dtype", None))
        if not result.passes:
            raise PolicyMismatch(self._complaint(result))
        return {"replayed_tokens": float(result.tokens), "replay_gap": result.gap, "replay_limit": result.limit}

    def _complaint(self, replayed: Replay) -> str:
        tied = getattr(self._policy.model.config, "tie_word_embeddings", False)
        head = ", or keeps an old copy of a head that is tied to the embeddings" if tied else ""
        return (
            f"policy version {self._version} is not what the engine {self._name} writes with: its log-probabilities "
            f"differ by {replayed.gap:.3g} nats per token from the trainer's on {replayed.tokens} replayed tokens, and "
            f"rounding explains {replayed.limit:.3g}; it did not take the weights over, took a part of them{head}: fix "
            "its load, then resume from the last checkpoint"
        )


def _spread(samples: Sequence[Sample], count: int) -> list[Sample]:
    """`count` of them, evenly from the first to the last: neighbours share a prompt, and maybe an engine."""
    if len(samples) <= count:
        return list(samples)
    return [samples[number * (len(samples) - 1) // (count - 1)] for number in range(count)]


def _replayable(sample: Sample, version: int) -> Tensor:
    """bool [L]: tokens that the policy of this version drew, all that came before them included in what they saw."""
    versions = getattr(sample, "token_versions", None)
    if versions is not None:
        return sample.action & (versions == version)
    return sample.action & (sample.versions == (version, version))


@torch.no_grad()
def replay(
    policy: CausalLM,
    samples: Sequence[Sample],
    version: int,
    temperature: float,
    dtype: torch.dtype | None = None,
) -> Replay:
    """Log-probabilities of the samples' tokens under the trainer's policy, next to those they were drawn with.

    `dtype` is that of the engine's matrix products; None: the trainer's. The limit of a sample is a margin times
    the larger of its own rounding and that of all samples, a token's being at least its last digit.
    """
    batch = token_batch([Group(Prompt("replayed", ()), tuple(samples))])
    assert batch.behavior_logp is not None
    was_training = policy.model.training
    policy.model.eval()
    try:
        # a router that decides otherwise at a near tie is another's rounding, and no other policy
        experts = batch.routed_experts if routers(policy) is not None else None
        scored = (batch.tokens, batch.action, temperature, batch.support)
        ours = token_logp(policy, *scored, Details(replay=experts)).logp.float().cpu()
        again = ours
        if policy.gathering is None:  # weights in shards are gathered once; then a token's last digit is all there is
            other = replace(policy, dtype=_other_precision(policy.dtype, dtype))
            again = token_logp(other, *scored, Details(packed=False, replay=experts)).logp
    finally:
        policy.model.train(was_training)
    coarse = min((policy.dtype, dtype or policy.dtype), key=lambda number_type: number_type.itemsize)
    margin = MARGIN if coarse.itemsize >= 4 else COARSE_MARGIN
    rounding = torch.maximum((again.float().cpu() - ours).abs(), torch.finfo(coarse).eps * (1 + ours.abs()))
    distance = (ours - batch.behavior_logp).abs()
    counted = [_padded(_replayable(sample, version), batch.action.shape[1]) for sample in samples]
    pooled = float(torch.cat([row[mask] for row, mask in zip(rounding, counted, strict=True)]).mean())
    replays = [
        Replay(int(mask.sum()), float(gap[mask].mean()), margin * max(float(noise[mask].mean()), pooled), version)
        for gap, noise, mask in zip(distance, rounding, counted, strict=True)
    ]
    worst = max(
        replays, key=lambda replayed: float("inf") if replayed.gap != replayed.gap else replayed.gap / replayed.limit
    )
    return replace(worst, tokens=sum(replayed.tokens for replayed in replays))


def _other_precision(trainer: torch.dtype, engine: torch.dtype | None) -> torch.dtype:
    """The precision of the second pass: the engine's where it is the coarser one, else the finest."""
    if engine is not None and engine.itemsize < trainer.itemsize:
        return engine
    return trainer if trainer.itemsize >= 4 else torch.float32


def _padded(mask: Tensor, width: int) -> Tensor:
    row = torch.zeros(width, dtype=torch.bool)
    row[: len(mask)] = mask
    return row
