"""Sessions of the in-process engine: completions asked for one by one, of conversations that keep their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from whet.model.causal_lm import CausalLM
from whet.rollout.scheduler import DecodeBackend, DecodeCounts, DecodeScheduler, DrawnCompletion
from whet.types import Request, Sample, Sampling, WhetError

SamplesOf = Callable[[Sequence[DrawnCompletion]], list[Sample]]


class DecodeSession:
    """A `whet.protocols.Session` on a decode backend. It writes with the weights that the model had when it began."""

    def __init__(
        self,
        lm: CausalLM,
        scheduler: DecodeScheduler,
        backend: DecodeBackend,
        samples_of: SamplesOf,
        *,
        budget: int,
        context: int,
        inference: bool,
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """`inference`: everything may run in torch's inference mode. `give_back` is called at the end."""
        self._lm, self._scheduler, self._backend, self._samples_of = lm, scheduler, backend, samples_of
        self._budget, self._context, self._inference, self._give_back = budget, context, inference, give_back
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
        if self._scheduler.is_idle:
            return []
        with torch.inference_mode() if self._inference else torch.no_grad(), self._backend.running():
            written = self._scheduler.advance()
        return [(each.number, sample) for each, sample in zip(written, self._samples_of(written), strict=True)]

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle

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
    new = request.max_new_tokens or budget
    if len(request.tokens) + new > context:
        raise WhetError(
            f"a prompt of {len(request.tokens)} tokens and {new} new ones exceed the "
            f"model's context of {context}; shorten the prompt or lower max_new_tokens"
        )


class RereadingSession:
    """A `whet.protocols.Session` that reads every conversation from its beginning in each turn."""

    def __init__(self, generate: Callable[[Sequence[Request], Sampling], list[Sample]], sampling: Sampling) -> None:
        self._generate, self._sampling = generate, sampling
        self._waiting: dict[int, Request] = {}
        self.counts = DecodeCounts()

    def add(self, number: int, request: Request) -> None:
        self._waiting[number] = request
        self.counts.recomputed += request.continues is not None

    def advance(self) -> list[tuple[int, Sample]]:
        waiting, self._waiting = self._waiting, {}
        samples = self._generate(list(waiting.values()), self._sampling)
        return list(zip(waiting, samples, strict=True))

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def release(self, number: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> RereadingSession:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
