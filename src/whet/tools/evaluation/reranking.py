"""Choosing among a model's completions by reward models and other scorers: best of n, votes, and search over steps.

A search draws `beams * branches` openings per prompt, then `branches` continuations of each partial completion up to
the end of a step, and keeps the `beams` best different ones by the score of the steps so far. A finished completion
stays and competes. A partial one goes on from its own tokens: nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, get_args

import torch

from whet.pages.rerank import Reranking
from whet.protocols import Engine, Reward
from whet.record.metrics.choice_curves import Pool, RerankerScores, SearchResult, choice_curves, search_result
from whet.reward.answer import final_answer, normal_form
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.learned.members import model_folders
from whet.reward.learned.process import Aggregate, LearnedSteps, aggregated
from whet.reward.steps import steps_of
from whet.rollout.collect import Score
from whet.rollout.seed import request_seed
from whet.training.assembly.rewards import bind_judges, build_scorer, failure_policy, start_sandbox
from whet.training.assembly.runtime import Runtime
from whet.training.config import EvaluationConfig
from whet.training.evaluator import Evaluator
from whet.training.sections import RerankSection, ScorerChoice
from whet.types import Group, Prompt, Request, Sample, Sampling, StopReason, Support, WhetError

Scores = Callable[[Sequence[Prompt], Sequence[Sample]], Sequence[float | None]]
Decode = Callable[[list[int]], str]
Beam = tuple[float, Sample]
AGGREGATES = get_args(Aggregate)


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
        parents: list[Sample | None] = [sample for sample in _open(search, plan) for _ in range(plan.branches)]
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
    known = {tuple(sample.tokens.tolist()) for _, sample in search.beams}
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


@dataclass(frozen=True)
class Reranker:
    """A reward that chooses, under the name it was given by."""

    name: str
    reward: Reward

    @property
    def models(self) -> int:
        """How many models read a completion."""
        folder = getattr(getattr(self.reward, "settings", None), "folder", None)
        return len(model_folders(folder)) if folder else int(hasattr(self.reward, "needs_ask"))


@dataclass(frozen=True)
class RerankPlan:
    """Scorers that can be read, found out before a pool of completions is written for them."""

    scorers: tuple[Reranker, ...]
    separators: Mapping[str, str]  # of a search, by scorer


def rerank_plan(config: EvaluationConfig, num_samples: int) -> RerankPlan:
    """Refuse what cannot choose; a folder that is no reward model should not cost a pool of completions."""
    section = config.rerank
    _check(section, num_samples, config.sampling.temperature)
    scorers = [_scorer(scorer, {**section.settings, **scorer.settings}) for scorer in section.scorers]
    start_sandbox([RewardPart(scorer.reward) for scorer in scorers], config.sandbox.require)
    for scorer in scorers:
        prepare = getattr(scorer.reward, "prepare", None)
        if callable(prepare):
            prepare()
    separators = {scorer.name: _separator(section, scorer) for scorer in scorers} if section.search == "steps" else {}
    return RerankPlan(tuple(scorers), separators)


def rerank_groups(
    config: EvaluationConfig, plan: RerankPlan, setup: tuple[Runtime, Evaluator], groups: Sequence[Group], measure: str
) -> Reranking:
    """What every way of choosing among the same completions would have scored."""
    runtime = setup[0]
    parts = [RewardPart(scorer.reward) for scorer in plan.scorers]
    bound = bind_judges(parts, runtime.engine, runtime.loaded.tokenizer)
    scorers = [Reranker(scorer.name, part.resolved_reward) for scorer, part in zip(plan.scorers, bound, strict=True)]
    pools = [_pool(group) for group in groups]
    by_scorer = [reranker_scores(config, scorer, groups) for scorer in scorers]
    reranking = Reranking(
        config.model.name,
        config.data.source,
        measure,
        len(groups),
        len(groups[0].samples),
        config.sampling.temperature,
        choice_curves(pools, [scores for several in by_scorer for scores in several]),
    )
    searches = [
        _search(config, scorer, plan.separators[scorer.name], setup, (pools, scores))
        for scorer, scores in zip(scorers, by_scorer, strict=True)
        if scorer.name in plan.separators
    ]
    return replace(reranking, searches=tuple(searches))


def _check(section: RerankSection, num_samples: int, temperature: float) -> None:
    if not section.scorers:
        raise WhetError(
            "nothing to rerank by: --search and rerank settings need a scorer; give --rerank RUN of a reward "
            "model, or --rerank REWARD"
        )
    if num_samples < 2:
        raise WhetError(
            f"--rerank chooses among several completions, and --samples is {num_samples}; give --samples 16"
        )
    if temperature == 0:
        raise WhetError(
            "--rerank at temperature 0 would choose among equal completions; give --set sampling.temperature=1.0"
        )
    if section.settings and len(section.scorers) > 1:
        raise WhetError(
            f"rerank.settings is for one scorer, and there are {len(section.scorers)}; give each its own: --set "
            "'rerank.scorers=[{reward=\"RUN\",settings={...}}, ...]'"
        )
    plain = RerankSection()
    for key in ("beams", "branches", "separator"):
        if section.search == "none" and getattr(section, key) != getattr(plain, key):
            raise WhetError(f"rerank.{key} has no effect without a search; give --search steps, or drop it")
    names = [scorer.reward for scorer in section.scorers]
    for name in names:
        if names.count(name) > 1 and section.search == "steps":
            raise WhetError(f"--rerank {name} is given twice; a search needs one scorer of a name")


def _scorer(choice: ScorerChoice, settings: Mapping[str, Any]) -> Reranker:
    try:
        return Reranker(choice.reward, find_reward(choice.reward, settings))
    except WhetError as error:
        raise WhetError(f"--rerank {choice.reward}: {error}") from error


def _separator(section: RerankSection, scorer: Reranker) -> str:
    """The text that ends a step of a search."""
    if steps_of(scorer.reward) is None:
        raise WhetError(
            f"--search steps needs scores of steps, and {scorer.name} scores whole completions; give --rerank RUN of "
            "`whet train prm`"
        )
    if section.separator:
        return section.separator
    if not isinstance(scorer.reward, LearnedSteps):
        raise WhetError(f"{scorer.name} does not say what ends a step; give --set rerank.separator=TEXT")
    return scorer.reward.separator


def _pool(group: Group) -> Pool:
    return Pool(
        tuple(sample.outcome or 0.0 for sample in group.samples),
        tuple(_answer(sample.completion) for sample in group.samples),
        tuple(sample.num_actions for sample in group.samples),
        tuple(len(sample.tokens) for sample in group.samples),
    )


def _answer(completion: str) -> str | None:
    answer = final_answer(completion)
    return None if answer is None else normal_form(answer)


def reranker_scores(config: EvaluationConfig, scorer: Reranker, groups: Sequence[Group]) -> list[RerankerScores]:
    """One for a scorer of whole completions; for one of steps each aggregate of the same scores."""
    prompts = [group.prompt for group in groups for _ in group.samples]
    samples = [sample for group in groups for sample in group.samples]
    scores = _scores(_scorer_of(config, scorer), prompts, samples)
    sizes = [len(group.samples) for group in groups]
    steps = steps_of(scorer.reward)
    if steps is None:
        return [RerankerScores(scorer.name, _cut(scores, sizes), scorer.models)]
    by_step = [
        None if score is None else [value for _, value in steps(prompt, sample.completion)]
        for prompt, sample, score in zip(prompts, samples, scores, strict=True)
    ]
    return [
        RerankerScores(
            scorer.name,
            _cut([None if values is None else aggregated(values, how) for values in by_step], sizes),
            scorer.models,
            how,
        )
        for how in AGGREGATES
    ]


def _scorer_of(config: EvaluationConfig, scorer: Reranker) -> Score:
    return build_scorer(config, [RewardPart(scorer.reward)], failure_policy(config))


def _scores(judge: Score, prompts: Sequence[Prompt], samples: Sequence[Sample]) -> list[float | None]:
    return [sample.reward for sample in judge(prompts, samples)]


def _cut(scores: Sequence[float | None], sizes: Sequence[int]) -> tuple[tuple[float | None, ...], ...]:
    left = iter(scores)
    return tuple(tuple(next(left) for _ in range(size)) for size in sizes)


def _search(
    config: EvaluationConfig,
    scorer: Reranker,
    separator: str,
    setup: tuple[Runtime, Evaluator],
    compared: tuple[Sequence[Pool], Sequence[RerankerScores]],
) -> SearchResult:
    """A search on the same prompts, beside the best of whole completions by the aggregate that guided it."""
    (runtime, evaluator), (pools, scores) = setup, compared
    section = config.rerank
    sampling = replace(evaluator.sampling, temperature=config.sampling.temperature)
    plan = SearchPlan(section.beams, section.branches, separator, sampling, runtime.loaded.context, config.seed)
    searched = search_completions(
        runtime.engine,
        evaluator.prompts,
        evaluator.prompt_tokens,
        partial(_scores, _scorer_of(config, scorer)),
        lambda tokens: str(runtime.loaded.tokenizer.decode(tokens, skip_special_tokens=True)),
        plan,
    )
    truth = evaluator.score(evaluator.prompts, [beam.sample for beam in searched])
    guide = getattr(getattr(scorer.reward, "settings", None), "aggregate", AGGREGATES[0])
    mine = next(score for score in scores if score.aggregate == guide)
    written = sum(beam.written for beam in searched) / len(searched)
    read = scorer.models * sum(beam.read for beam in searched) / len(searched)
    return search_result(
        pools, mine, [score.outcome or 0.0 for score in truth], (written, read), (plan.beams, plan.branches)
    )
