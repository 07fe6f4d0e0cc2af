"""Search over the steps of a completion: draw continuations up to the end of a step, keep the best, go on from there.

The first round draws `beams * branches` openings per prompt, every later one `branches` continuations of each partial
completion; the `beams` best different ones are kept, by the score of the steps so far. A finished completion stays and
competes. A partial completion goes on from its own tokens: nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

import torch

from whet.protocols import Engine
from whet.rollout.seed import request_seed
from whet.types import Prompt, Request, Sample, Sampling, StopReason, Support

Scores = Callable[[Sequence[Prompt], Sequence[Sample]], Sequence[float | None]]
Decode = Callable[[list[int]], str]
Beam = tuple[float, Sample]


@dataclass(frozen=True)
class SearchPlan:
    """How wide to search, and where a step ends."""

    beams: int  # partial completions kept after a step
    branches: int  # continuations of each
    separator: str
    sampling: Sampling  # its budget is that of the whole completion
    context: int  # tokens
    seed: int = 0


@dataclass(frozen=True)
class SearchedCompletion:
    """The best completion of a search, and what it cost."""

    sample: Sample
    score: float
    written: int  # tokens drawn, kept or not
    read: int  # tokens of prompt and completion that the scorer was given, all calls together


@dataclass
class _PromptSearch:
    """The state of the search for one prompt."""

    prompt: Prompt
    tokens: tuple[int, ...]
    beams: list[Beam]  # the best first
    written: int = 0
    read: int = 0


def search_completions(
    engine: Engine,
    prompts: Sequence[Prompt],
    prompt_tokens: Sequence[tuple[int, ...]],
    scores: Scores,
    decode: Decode,
    plan: SearchPlan,
) -> list[SearchedCompletion]:
    """One completion per prompt, the best that the search ends with; of equal ones the first drawn."""
    searches = [_PromptSearch(prompt, tokens, []) for prompt, tokens in zip(prompts, prompt_tokens, strict=True)]
    number = 0
    while growing := [search for search in searches if not search.beams or _open(search, plan)]:
        drawn = _grow(engine, growing, decode, plan, number)
        new = [_different(search, samples) for search, samples in zip(growing, drawn, strict=True)]
        _keep_best(growing, new, scores, plan)
        number += 1
    return [
        SearchedCompletion(search.beams[0][1], search.beams[0][0], search.written, search.read) for search in searches
    ]


def _open(search: _PromptSearch, plan: SearchPlan) -> list[Sample]:
    """The partial completions, the best first."""
    return [sample for _, sample in search.beams if _goes_on(sample, search, plan)]


def _goes_on(sample: Sample, search: _PromptSearch, plan: SearchPlan) -> bool:
    if sample.stop is StopReason.END or len(sample.tokens) - len(search.tokens) >= plan.sampling.max_new_tokens:
        return False
    return not any(text in sample.completion for text in plan.sampling.stop)


def _grow(
    engine: Engine, searches: Sequence[_PromptSearch], decode: Decode, plan: SearchPlan, number: int
) -> list[list[Sample]]:
    """The continuations of each search's partial completions, as whole completions."""
    requests: list[Request] = []
    origins: list[tuple[int, Sample | None]] = []  # the search, and the sample that is continued
    for index, search in enumerate(searches):
        parents: list[Sample | None] = [one for one in _open(search, plan) for _ in range(plan.branches)]
        for at, parent in enumerate(parents or [None] * (plan.beams * plan.branches)):
            tokens = search.tokens if parent is None else tuple(parent.tokens.tolist())
            requests.append(Request(tokens, request_seed(plan.seed, search.prompt.id, number, at)))
            origins.append((index, parent))
    budget = plan.sampling.max_new_tokens
    used = [
        len(request.tokens) - len(searches[index].tokens) for request, (index, _) in zip(requests, origins, strict=True)
    ]
    left = min(budget - min(used), plan.context - max(len(request.tokens) for request in requests))
    sampling = replace(plan.sampling, max_new_tokens=left, stop=(*plan.sampling.stop, plan.separator))
    drawn: list[list[Sample]] = [[] for _ in searches]
    for (index, parent), request, sample in zip(origins, requests, engine.generate(requests, sampling), strict=True):
        search = searches[index]
        whole = _whole(sample, parent, len(search.tokens), budget, decode)
        search.written += len(whole.tokens) - len(request.tokens)
        drawn[index].append(whole)
    return drawn


def _whole(sample: Sample, parent: Sample | None, start: int, budget: int, decode: Decode) -> Sample:
    """The completion from its first token on, cut where its budget ends: rows of one batch have different rests."""
    tokens = sample.tokens[: start + budget]
    logp, support = sample.behavior_logp.clone(), sample.support
    if parent is not None:
        logp[: len(parent.tokens)] = parent.behavior_logp
        if support is not None and parent.support is not None:
            ids = torch.cat([parent.support.ids, support.ids])
            support = Support(ids, torch.cat([parent.support.counts, support.counts]))
    if support is not None:
        counts = support.counts[: len(tokens) - start]
        support = Support(support.ids[: int(counts.sum())], counts)
    return replace(
        sample,
        tokens=tokens,
        action=torch.arange(len(tokens)) >= start,
        behavior_logp=logp[: len(tokens)],
        stop=sample.stop if len(tokens) == len(sample.tokens) else StopReason.LENGTH,
        completion=decode(tokens[start:].tolist()),
        support=support,
    )


def _different(search: _PromptSearch, drawn: Sequence[Sample]) -> list[Sample]:
    """The first of each, without those that are kept already."""
    known = {tuple(one.tokens.tolist()) for _, one in search.beams}
    new: dict[tuple[int, ...], Sample] = {}
    for sample in drawn:
        tokens = tuple(sample.tokens.tolist())
        if tokens not in known:
            new.setdefault(tokens, sample)
    return list(new.values())


def _keep_best(
    searches: Sequence[_PromptSearch], new: Sequence[Sequence[Sample]], scores: Scores, plan: SearchPlan
) -> None:
    """Score the new partial completions and keep the best; finished ones keep score and place."""
    prompts = [search.prompt for search, samples in zip(searches, new, strict=True) for _ in samples]
    scored = [
        _up_to_step(sample, plan.separator) if _goes_on(sample, search, plan) else sample
        for search, samples in zip(searches, new, strict=True)
        for sample in samples
    ]
    new_scores = iter(scores(prompts, scored))
    for search, samples in zip(searches, new, strict=True):
        beams = [(-inf if (score := next(new_scores)) is None else score, sample) for sample in samples]
        search.read += sum(len(sample.tokens) for sample in samples)
        finished = [beam for beam in search.beams if not _goes_on(beam[1], search, plan)]
        # sorted keeps the order of equal ones
        search.beams = sorted([*finished, *beams], key=lambda beam: -beam[0])[: plan.beams]


def _up_to_step(sample: Sample, separator: str) -> Sample:
    """The text to score: a token may hold the end of a step and the opening of the next."""
    end = sample.completion.rfind(separator)
    return replace(sample, completion=sample.completion[: end + len(separator)]) if end >= 0 else sample
