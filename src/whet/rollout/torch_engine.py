"""The in-process engine: samples on the trainer's own weights. No copy, no sync, no version skew.

A prompt is prefilled once for all its samples; a row that has finished makes room for a request that waits; the
log-probabilities are those of the distribution that was sampled from. A session takes requests while others are
written, and a conversation keeps its row: a later turn computes only what is new. Models with a description
(`whet.model.block`) run a step written out for them (on CUDA as a graph), others their own modules on whet's buffers,
and whatever is left over its own forward and cache. One scheduler serves all of them; `decode_path` says which one it
is, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F

from whet.model.block import NotDescribed
from whet.model.causal_lm import CausalLM
from whet.model.experts import routing_refusal
from whet.model.fast_path import FastPath
from whet.model.fused_decode import fused_decoder
from whet.model.hooked_decode import HookedDecoder, hooked_decoder
from whet.model.shared_prefix import long_tensor
from whet.rollout.buffer_decode import BufferBackend
from whet.rollout.cuda_decode import GraphBackend, graph_backend
from whet.rollout.decode_session import DecodeSession, check_length
from whet.rollout.own_cache import OwnCacheBackend, OwnForward, own_forward
from whet.rollout.scheduler import DecodeScheduler, DrawnCompletion, SessionBackend, StopRule, decode_job
from whet.rollout.session import BatchSession
from whet.types import Request, Sample, Sampling, SessionShape


class TorchEngine:
    """Generates with the model it is given; `load` only notes the policy's version, unless the weights are its own."""

    constrains = True  # requests may say which tokens can be drawn

    def __init__(
        self,
        lm: CausalLM,
        tokenizer: Any,
        end_tokens: Sequence[int],
        *,
        context: int,
        rows_per_batch: int = 0,
        fast: bool = True,
        owns_weights: bool = False,
    ) -> None:
        """`fast=False` keeps to the model's own forward and cache, whatever the model: slow, and always right.

        `owns_weights`: the model is a copy that nobody trains, and `load` writes the policy's weights into it.
        `rows_per_batch` completions are written side by side; 0 is 1,024 on a GPU and 512 elsewhere.
        """
        self._lm = lm
        self._tokenizer = tokenizer
        self._stop = StopRule(
            torch.tensor(sorted(end_tokens), dtype=torch.long), partial(with_special_tokens, tokenizer)
        )
        self._context = context
        self._rows_per_batch = rows_per_batch or (1024 if lm.device.type == "cuda" else 512)
        self._version = 0
        self._decoder: HookedDecoder | None = None
        self._graphs: GraphBackend | None = None
        self._why_no_graphs = ""
        self._own_forward: OwnForward | None = None
        self._fast, self._owns_weights = fast, owns_weights
        self._path: FastPath | None = None

    @property
    def shares_weights(self) -> bool:
        """True where the model is the one that is trained."""
        return not self._owns_weights

    @property
    def uses_graphs(self) -> bool:
        """True where completions are written by CUDA graphs."""
        return self._graphs is not None

    @property
    def decode_path(self) -> FastPath:
        """How completions are written, and why not faster; tried out when it is first asked for."""
        if self._path is None:
            graphs: GraphBackend | str = "fast=False"
            if self._fast:
                with self._in_eval_mode():
                    graphs = graph_backend(self._lm, self._stop, self._context)
            if isinstance(graphs, GraphBackend):
                self._graphs, self._path = graphs, FastPath("CUDA graphs")
            else:
                self._why_no_graphs, self._path = graphs, self.path_without_graphs
        return self._path

    @cached_property
    def path_without_graphs(self) -> FastPath:
        """The same for what CUDA graphs do not take; a run that has them starts without this trial."""
        with self._in_eval_mode():
            return self._choose_path()

    @contextmanager
    def _in_eval_mode(self) -> Iterator[None]:
        was_training = self._lm.model.training
        self._lm.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._lm.model.train(was_training)

    def path_for(self, sampling: Sampling, longest_prompt: int) -> FastPath:
        """How completions to such prompts are written: CUDA graphs leave some settings to whet's buffers.

        The longest prompt of a run is told here before it comes, so that graphs are made for it once.
        """
        path = self.decode_path
        if self._graphs is None:
            return path
        self._graphs.expect(longest_prompt)
        reason = self._graphs.refusal(longest_prompt, sampling)
        return FastPath(self.path_without_graphs.kind, reason) if reason else path

    def session_path(self, sampling: Sampling, shape: SessionShape) -> FastPath:
        """How a session of this shape writes its turns, and why not faster."""
        path = self.decode_path
        if self._graphs is not None:
            reason = self._graphs.session_refusal(sampling, shape)
            return FastPath(self.path_without_graphs.kind, reason) if reason else path
        if self._decoder is None:
            return FastPath(f"{path.kind}, conversations read from their beginning in every turn", path.reason)
        return path

    def _choose_path(self) -> FastPath:
        if not self._fast:
            return self._own_path("fast=False")
        hooked = hooked_decoder(self._lm)
        if isinstance(hooked, NotDescribed):
            return self._own_path(str(hooked))
        fused = fused_decoder(hooked)
        self._decoder = hooked if isinstance(fused, NotDescribed) else fused
        if isinstance(fused, NotDescribed):
            return FastPath("the model's own layers on whet's buffers", str(fused))
        return FastPath("fused decoder", self._why_no_graphs if self._lm.device.type == "cuda" else "")

    def _buffer_decoder(self) -> HookedDecoder | None:
        """What decodes on whet's buffers; None for a model that suits none."""
        self.path_without_graphs  # noqa: B018  tried out once
        return self._decoder

    def _own_path(self, reason: str) -> FastPath:
        """Through the model's own forward, as far as its cache goes."""
        self._own_forward = own_forward(self._lm)
        return FastPath(self._own_forward.kind, "; ".join(text for text in (reason, self._own_forward.reason) if text))

    def unrecorded_experts(self) -> str:
        """Why samples do not say which experts wrote them; empty where they do."""
        if refusal := routing_refusal(self._lm):
            return refusal
        path = self.decode_path
        if self._graphs is not None or self._decoder is None:
            return f"the sampler's experts are noted on whet's buffers only, and this model is decoded by {path}"
        return ""

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        if self._owns_weights:
            self._lm.model.load_state_dict(weights)  # in place: decoders hold on to the parameters
        self._version = version

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        written: dict[int, DrawnCompletion] = {}

        def work(scheduler: DecodeScheduler, numbers: Sequence[int]) -> None:
            written.update(zip(numbers, scheduler.run(), strict=True))

        self._decode(requests, sampling, work)
        return samples_of([written[number] for number in range(len(requests))], self._tokenizer, self._version)

    @torch.no_grad()
    def stream(
        self, requests: Sequence[Request], sampling: Sampling, ended: Callable[[int, Sample], None]
    ) -> list[Sample]:
        """`generate`, which tells each sample with the number of its request while others are still written."""
        samples: dict[int, Sample] = {}

        def tell(numbers: Sequence[int], written: list[DrawnCompletion]) -> None:
            with torch.inference_mode(False), torch.no_grad():  # samples outlive the mode they are written in
                whole = samples_of(written, self._tokenizer, self._version)
            for drawn, sample in zip(written, whole, strict=True):
                samples[numbers[drawn.number]] = sample
                ended(numbers[drawn.number], sample)

        self._decode(requests, sampling, lambda scheduler, numbers: scheduler.stream(partial(tell, numbers)))
        return [samples[number] for number in range(len(requests))]

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        work: Callable[[DecodeScheduler, Sequence[int]], None],
    ) -> None:
        """Call `work` with a scheduler, and the numbers of its requests, until all requests had one."""
        for request in requests:
            check_length(request, sampling.max_new_tokens, self._context)
        if not requests:
            return
        was_training = self._lm.model.training
        self._lm.model.eval()
        try:
            self._decode_in_eval_mode(requests, sampling, work)
        finally:
            self._lm.model.train(was_training)

    def session(self, sampling: Sampling, shape: SessionShape) -> DecodeSession | BatchSession:
        """Room for conversations of this shape; `session_path` says how they are written.

        The weights are those of now: a session is closed before they change, or told so by its own `load`.
        """
        self.decode_path  # noqa: B018  tried out once
        job = decode_job((), sampling, self._stop)
        graphs = self._graphs
        backend: SessionBackend
        if graphs is not None and not graphs.session_refusal(sampling, shape):
            graphs.open_session(sampling, shape, self._rows_per_batch)
            backend, inference, give_back = graphs, False, graphs.close_session
        elif (decoder := self._buffer_decoder()) is not None:
            inference, give_back = decoder.inference, None
            with torch.inference_mode() if inference else torch.no_grad():
                backend = BufferBackend(decoder, job, self._rows_per_batch, shape)
        else:
            return BatchSession(self, sampling)
        return DecodeSession(
            self._lm,
            DecodeScheduler(backend, job, (shape.prompt_tokens, shape.growth)),
            backend,
            partial(samples_of, tokenizer=self._tokenizer),
            budget=sampling.max_new_tokens,
            context=self._context,
            inference=inference,
            version=self._version,
            take_weights=self.load,
            give_back=give_back,
        )

    def _decode_in_eval_mode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        work: Callable[[DecodeScheduler, Sequence[int]], None],
    ) -> None:
        longest_prompt = max(len(request.tokens) for request in requests)
        everyone = range(len(requests))
        self.decode_path  # noqa: B018  tried out once
        if self._graphs is not None and not self._graphs.refusal(longest_prompt, sampling):
            with self._graphs.prepared(requests, sampling, self._rows_per_batch) as scheduler:
                work(scheduler, everyone)
        elif (decoder := self._buffer_decoder()) is not None:
            job = decode_job(requests, sampling, self._stop)
            # inference_mode(False) would switch gradients on again
            with torch.inference_mode() if decoder.inference else nullcontext():
                work(DecodeScheduler(BufferBackend(decoder, job, self._rows_per_batch), job), everyone)
        else:
            own = self._own_forward or OwnForward()
            lengths = [0 if own.mixes_lengths else len(request.tokens) for request in requests]
            for length in sorted(set(lengths)):
                numbers = [number for number, size in enumerate(lengths) if size == length]
                job = decode_job([requests[number] for number in numbers], sampling, self._stop)
                backend = OwnCacheBackend(self._lm, job, self._rows_per_batch, own.reader)
                work(DecodeScheduler(backend, job), numbers)


def samples_of(written: Sequence[DrawnCompletion], tokenizer: Any, version: int) -> list[Sample]:
    """Completions as samples, each behind its prompt."""
    texts = decoded(tokenizer, [completion.tokens.tolist() for completion in written])
    samples = []
    for drawn, text in zip(written, texts, strict=True):
        start = len(drawn.request.tokens)
        versions, oldest, newest = drawn.token_versions, version, version
        if versions is not None:
            oldest, newest = int(versions.min()), int(versions.max())
            versions = None if oldest == newest else versions
        samples.append(
            Sample(
                tokens=torch.cat([long_tensor(drawn.request.tokens), drawn.tokens]),
                action=torch.arange(start + len(drawn.tokens)) >= start,
                behavior_logp=F.pad(drawn.logp, (start, 0)),
                versions=(oldest, newest),
                stop=drawn.stop,
                completion=text,
                support=drawn.support,
                routed_experts=drawn.experts,
                token_versions=None if versions is None else F.pad(versions, (start, 0), value=oldest),
            )
        )
    return samples


def with_special_tokens(tokenizer: Any, tokens: list[int]) -> str:
    """The text of the tokens, special ones included."""
    # no method of the engine: one that is dropped must free its caches at once, not when cycles are collected
    return str(tokenizer.decode(tokens, skip_special_tokens=False))


def decoded(tokenizer: Any, rows: Sequence[list[int]]) -> list[str]:
    """The text of each row, without special tokens.

    Where the tokenizer only hands its rows on to the tokenizers library, they are given to it all at once: it decodes
    them side by side, on all cores, where one after the other would take a tenth of a fast rollout.
    """
    one = partial(tokenizer.decode, skip_special_tokens=True)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not rows or getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return [one(row) for row in rows]
    texts: list[str] = backend.decode_batch(rows, skip_special_tokens=True)
    return texts if texts[0] == one(rows[0]) else [one(row) for row in rows]
