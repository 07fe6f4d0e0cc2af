"""The in-process engine: samples on the trainer's own weights. No copy, no sync, no version skew.

A prompt is prefilled once for all its samples; a row that has finished leaves the batch; the log-probabilities are
those of the distribution that was sampled from. Works on any transformers decoder whose cache is made of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from whet.model.split import SplitModel
from whet.rollout.sampling import Draw, draw, uniforms
from whet.types import Request, Sample, Sampling, StopReason, Support, WhetError

LARGEST_SUPPORT = 4096  # ids kept for one token; past it, storing the support costs more than the run


@dataclass(frozen=True)
class _Prompt:
    tokens: tuple[int, ...]
    rows: range  # of the batch


@dataclass
class _Replies:
    """What the batch has written so far, by original row."""

    tokens: Tensor  # int64 [B, max_new_tokens]
    logp: Tensor  # float32 [B, max_new_tokens]
    count: list[int]
    stop: list[StopReason]
    support: list[list[Tensor]]


class TorchEngine:
    """Generates with the model it is given; `load` only notes the policy's version."""

    def __init__(
        self, split: SplitModel, tokenizer: Any, end_tokens: Sequence[int], *, context: int, rows_per_batch: int = 512
    ) -> None:
        self._split = split
        self._tokenizer = tokenizer
        self._end_tokens = torch.tensor(sorted(end_tokens), dtype=torch.long)
        self._context = context
        self._rows_per_batch = rows_per_batch
        self._version = 0

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
        samples: list[Sample] = []
        was_training = self._split.model.training
        self._split.model.eval()
        try:
            for batch in _batches(requests, self._rows_per_batch):
                samples += self._generate_batch(batch, sampling)
        finally:
            self._split.model.train(was_training)
        return samples

    def _generate_batch(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        device = self._split.device
        prompts = _prompts(requests)
        width = max(len(prompt.tokens) for prompt in prompts)
        cache, logits = self._prefill(prompts, width)
        spread = torch.tensor([number for number, prompt in enumerate(prompts) for _ in prompt.rows], device=device)
        cache.batch_select_indices(spread)
        logits = logits[spread]

        budget = sampling.max_new_tokens
        random = uniforms([request.seed for request in requests], budget).to(device)
        lengths = torch.tensor([len(request.tokens) for request in requests], device=device)
        mask = None
        if int(lengths.min()) < width:
            mask = torch.ones(len(requests), width + budget, dtype=torch.long, device=device)
            mask[:, :width] = torch.arange(width, device=device)[None] >= width - lengths[:, None]
        replies = _Replies(
            torch.zeros(len(requests), budget, dtype=torch.long),
            torch.zeros(len(requests), budget),
            [0] * len(requests),
            [StopReason.LENGTH] * len(requests),
            [[] for _ in requests],
        )
        alive = torch.arange(len(requests), device=device)  # original row of each row still in the batch
        for position in range(budget):
            drawn = draw(logits, random[alive, position], sampling)
            finished = self._write(replies, alive.tolist(), position, drawn, sampling)
            if position + 1 == budget:
                break
            token = drawn.token
            if any(finished):
                staying = torch.tensor(
                    [n for n, done in enumerate(finished) if not done], dtype=torch.long, device=device
                )
                if not len(staying):
                    break
                cache.batch_select_indices(staying)
                alive, token = alive[staying], token[staying]
            hidden = self._split.hidden(
                token[:, None],
                None if mask is None else mask[alive, : width + position + 1],
                (lengths[alive] + position)[:, None],
                cache,
            )
            logits = self._split.logits(hidden[:, -1])
        return [self._sample(request, replies, row) for row, request in enumerate(requests)]

    def _prefill(self, prompts: Sequence[_Prompt], width: int) -> tuple[Any, Tensor]:
        """Each prompt once: the cache and the logits [P, V] of the first reply token."""
        from transformers import DynamicCache

        device = self._split.device
        tokens = torch.zeros(len(prompts), width, dtype=torch.long)
        lengths = torch.tensor([len(prompt.tokens) for prompt in prompts])
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt.tokens) :] = torch.tensor(prompt.tokens)
        column = torch.arange(width)[None]
        mask = None
        if int(lengths.min()) < width:
            mask = (column >= width - lengths[:, None]).long().to(device)
        positions = (column - (width - lengths[:, None])).clamp(min=0)
        cache = DynamicCache(config=self._split.model.config)  # type: ignore[arg-type]
        hidden = self._split.hidden(tokens.to(device), mask, positions.to(device), cache)
        return cache, self._split.logits(hidden[:, -1])

    def _write(
        self, replies: _Replies, rows: Sequence[int], position: int, drawn: Draw, sampling: Sampling
    ) -> list[bool]:
        """Note the drawn tokens; which rows of the batch are finished."""
        token, logp = drawn.token.cpu(), drawn.logp.cpu()
        replies.tokens[rows, position] = token
        replies.logp[rows, position] = logp
        ended = torch.isin(token, self._end_tokens).tolist()
        for row in rows:
            replies.count[row] = position + 1
        if drawn.kept is not None:
            for row, kept in zip(rows, drawn.kept.cpu(), strict=True):
                replies.support[row].append(_support(kept, sampling))
        for number, row in enumerate(rows):
            if ended[number]:
                replies.stop[row] = StopReason.END
            elif sampling.stop and self._stops(replies.tokens[row, : position + 1], sampling.stop):
                replies.stop[row] = StopReason.TEXT
                ended[number] = True
        return ended

    def _stops(self, reply: Tensor, stop: Sequence[str]) -> bool:
        # a token adds at least one byte, and a character takes at most four
        tail = reply[-(4 * max(map(len, stop)) + 4) :].tolist()
        text = self._tokenizer.decode(tail, skip_special_tokens=False)
        return any(each in text for each in stop)

    def _sample(self, request: Request, replies: _Replies, row: int) -> Sample:
        count, start = replies.count[row], len(request.tokens)
        reply = replies.tokens[row, :count]
        action = torch.zeros(start + count, dtype=torch.bool)
        action[start:] = True
        behavior_logp = torch.zeros(start + count)
        behavior_logp[start:] = replies.logp[row, :count]
        kept = replies.support[row]
        return Sample(
            tokens=torch.cat([torch.tensor(request.tokens, dtype=torch.long), reply]),
            action=action,
            behavior_logp=behavior_logp,
            versions=(self._version, self._version),
            stop=replies.stop[row],
            reply=self._tokenizer.decode(reply.tolist(), skip_special_tokens=True),
            support=Support(torch.cat(kept), torch.tensor([len(ids) for ids in kept], dtype=torch.int32))
            if kept
            else None,
        )


def _batches(requests: Sequence[Request], rows: int) -> Iterator[Sequence[Request]]:
    for start in range(0, len(requests), rows):
        yield requests[start : start + rows]


def _prompts(requests: Sequence[Request]) -> list[_Prompt]:
    prompts, row = [], 0
    for tokens, same in groupby(requests, key=lambda request: request.tokens):
        count = len(list(same))
        prompts.append(_Prompt(tokens, range(row, row + count)))
        row += count
    return prompts


def _support(kept: Tensor, sampling: Sampling) -> Tensor:
    ids = kept.nonzero()[:, 0].to(torch.int32)
    if len(ids) > LARGEST_SUPPORT:
        raise WhetError(
            f"top_p={sampling.top_p}, min_p={sampling.min_p} keep {len(ids)} tokens at one position; the trainer must "
            f"renormalise on all of them: add top_k={LARGEST_SUPPORT // 4}, or switch truncation off"
        )
    return ids
