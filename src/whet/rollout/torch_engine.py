"""The in-process engine: samples on the trainer's own weights. No copy, no sync, no version skew.

A prompt is prefilled once for all its samples; a row that has finished makes room for a request that waits; the
log-probabilities are those of the distribution that was sampled from. Llama-type models run a step written out for
them (on CUDA as a graph), others their own modules on whet's buffers, and whatever is left over its own forward and
cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F

from whet.model.causal_lm import CausalLM
from whet.model.fused_decode import fused_decoder
from whet.model.hooked_decode import HookedDecoder, hooked_decoder
from whet.rollout.cuda_decode import CudaDecoder, graph_decoder, written_by_graphs
from whet.rollout.own_cache import write_any
from whet.rollout.scheduler import Completions, DecodeScheduler, StopRule
from whet.types import Request, Sample, Sampling, Support, WhetError


class TorchEngine:
    """Generates with the model it is given; `load` only notes the policy's version."""

    def __init__(
        self,
        split: CausalLM,
        tokenizer: Any,
        end_tokens: Sequence[int],
        *,
        context: int,
        rows_per_batch: int = 0,
        fast: bool = True,
    ) -> None:
        """`fast=False` keeps to the model's own forward and cache, whatever the model: slow, and always right.

        `rows_per_batch` completions are written side by side; 0 is 1,024 on a GPU and 512 elsewhere.
        """
        self._split = split
        self._tokenizer = tokenizer
        self._ending = StopRule(torch.tensor(sorted(end_tokens), dtype=torch.long), self._text)
        self._context = context
        self._rows_per_batch = rows_per_batch or (1024 if split.device.type == "cuda" else 512)
        self._version = 0
        self._decoder: HookedDecoder | None = None
        self._graphs: CudaDecoder | None = None
        self._tried = not fast

    @property
    def uses_graphs(self) -> bool:
        """True where completions are written by CUDA graphs."""
        return self._graphs is not None

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self._version = version

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        for request in requests:
            if len(request.tokens) + sampling.max_new_tokens > self._context:
                raise WhetError(
                    f"a prompt of {len(request.tokens)} tokens and {sampling.max_new_tokens} new ones exceed the "
                    f"model's context of {self._context}; shorten the prompt or lower max_new_tokens"
                )
        if not requests:
            return []
        was_training = self._split.model.training
        self._split.model.eval()
        try:
            completions = self._completions(requests, sampling)
        finally:
            self._split.model.train(was_training)
        return [self._sample(request, completions, number) for number, request in enumerate(requests)]

    def _completions(self, requests: Sequence[Request], sampling: Sampling) -> Completions:
        if not self._tried:
            self._graphs = graph_decoder(self._split, self._ending.tokens, self._context)
            hooked = hooked_decoder(self._split)
            self._decoder = hooked and (fused_decoder(hooked) or hooked)
            self._tried = True
        if self._graphs is not None and not (sampling.truncates or sampling.stop):
            self._graphs.refresh()
            return written_by_graphs(self._graphs, requests, sampling, self._rows_per_batch)
        if self._decoder is None:
            return write_any(self._split, requests, sampling, self._ending, self._rows_per_batch)
        # inference_mode(False) would switch gradients on again
        with torch.inference_mode() if self._decoder.inference else nullcontext():
            return DecodeScheduler(self._decoder, requests, sampling, self._ending, self._rows_per_batch).run()

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def _sample(self, request: Request, completions: Completions, number: int) -> Sample:
        count, start = completions.count[number], len(request.tokens)
        completion = completions.tokens[number, :count]
        kept = completions.support[number]
        return Sample(
            tokens=torch.cat([torch.tensor(request.tokens, dtype=torch.long), completion]),
            action=torch.arange(start + count) >= start,
            behavior_logp=F.pad(completions.logp[number, :count], (start, 0)),
            versions=(self._version, self._version),
            stop=completions.stop[number],
            completion=self._tokenizer.decode(completion.tolist(), skip_special_tokens=True),
            support=Support(torch.cat(kept), torch.tensor([len(ids) for ids in kept], dtype=torch.int32))
            if kept
            else None,
        )
