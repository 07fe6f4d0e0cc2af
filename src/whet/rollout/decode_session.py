"""Sessions of the in-process engine: completions asked for one by one, of conversations that keep their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from whet.model.causal_lm import CausalLM
from whet.rollout.scheduler import (
    DecodeCounts,
    DecodeScheduler,
    DrawnCompletion,
    SessionBackend,
    UnfinishedRow,
    joined_support,
)
from whet.types import Request, Sample, WhetError


class SamplesOf(Protocol):
    """Completions as samples; `version` of the policy wrote those that do not say otherwise."""

    def __call__(self, written: Sequence[DrawnCompletion], *, version: int) -> list[Sample]: ...


@dataclass(frozen=True)
class _Unfinished:
    """A request whose writing newer weights have interrupted."""

    request: Request  # as it was asked for
    parts: tuple[tuple[int, UnfinishedRow], ...]  # with the policy versions that wrote them


class DecodeSession:
    """A `whet.protocols.Session` on a decode backend.

    It writes with the weights that the model had when it began, until `load` gives it newer ones.
    """

    def __init__(
        self,
        lm: CausalLM,
        scheduler: DecodeScheduler,
        backend: SessionBackend,
        samples_of: SamplesOf,
        *,
        budget: int,
        context: int,
        inference: bool,
        version: int,
        take_weights: Callable[[Mapping[str, Any], int], None],
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """`inference`: everything may run in torch's inference mode. `give_back` is called at the end."""
        self._lm, self._scheduler, self._backend, self._samples_of = lm, scheduler, backend, samples_of
        self._budget, self._context, self._inference, self._give_back = budget, context, inference, give_back
        self._version, self._take_weights = version, take_weights
        self._finished: list[DrawnCompletion] = []  # before newer weights came
        self._unfinished: dict[int, _Unfinished] = {}
        self._was_training = lm.model.training
        self._is_open = True
        lm.model.eval()

    @property
    def counts(self) -> DecodeCounts:
        """Tokens that were computed so far, and how often a conversation was continued, evicted or read anew."""
        return self._scheduler.counts

    def add(self, number: int, request: Request) -> None:
        check_length(request, self._budget, self._context)
        self._scheduler.add(number, request)

    def advance(self) -> list[tuple[int, Sample]]:
        written, self._finished = self._finished, []
        if not self._scheduler.is_idle:
            with self._mode(), self._backend.running():
                written += [self._whole(drawn) for drawn in self._scheduler.advance()]
        samples = self._samples_of(written, version=self._version)
        return [(drawn.number, sample) for drawn, sample in zip(written, samples, strict=True)]

    def read_ahead(self) -> None:
        """Let a device read what was added before anybody writes on: it computes while more is made ready."""
        if self._backend.looks_behind:
            with self._mode(), self._backend.running():
                self._scheduler.read_ahead()

    def progress(self) -> dict[int, list[int]]:
        """The tokens so far of each request that is being written, without those of earlier weights."""
        return self._scheduler.progress()

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._finished

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        with self._mode(), self._backend.running():
            finished, interrupted = self._scheduler.interrupt()
        self._finished += [self._stamped(self._whole(drawn)) for drawn in finished]
        for row in interrupted:
            if len(row.tokens):
                known = self._unfinished.get(row.number, _Unfinished(row.request, ()))
                self._unfinished[row.number] = replace(known, parts=(*known.parts, (self._version, row)))
        self._take_weights(weights, version)
        self._version = version
        with self._mode():
            self._backend.renew()
        self._scheduler.resume(interrupted)

    def _mode(self) -> AbstractContextManager[Any]:
        return torch.inference_mode() if self._inference else torch.no_grad()

    def _whole(self, written: DrawnCompletion) -> DrawnCompletion:
        """A completion with the parts of it that earlier weights wrote."""
        unfinished = self._unfinished.pop(written.number, None)
        if unfinished is None:
            return written
        parts = [part for _, part in unfinished.parts]
        versions = [torch.full((len(part.tokens),), version, dtype=torch.int32) for version, part in unfinished.parts]
        return replace(
            written,
            request=unfinished.request,
            tokens=torch.cat([*(part.tokens for part in parts), written.tokens]),
            logp=torch.cat([*(part.logp for part in parts), written.logp]),
            support=joined_support(
                [*((part.support, len(part.tokens)) for part in parts), (written.support, len(written.tokens))]
            ),
            token_versions=torch.cat([*versions, torch.full((len(written.tokens),), self._version, dtype=torch.int32)]),
        )

    def _stamped(self, written: DrawnCompletion) -> DrawnCompletion:
        """One that is handed out when the session has newer weights already."""
        if written.token_versions is not None:
            return written
        return replace(written, token_versions=torch.full((len(written.tokens),), self._version, dtype=torch.int32))

    def release(self, number: int) -> None:
        self._scheduler.release(number)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._lm.model.train(self._was_training)
            if self._give_back is not None:
                self._give_back()

    def __enter__(self) -> DecodeSession:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def check_length(request: Request, budget: int, context: int) -> None:
    """Raise `WhetError` where prompt and new tokens exceed the context; a request's own limit goes before `budget`."""
    new = request.max_new_tokens or budget
    if len(request.tokens) + new > context:
        raise WhetError(
            f"a prompt of {len(request.tokens)} tokens and {new} new ones exceed the "
            f"model's context of {context}; shorten the prompt or lower max_new_tokens"
        )
