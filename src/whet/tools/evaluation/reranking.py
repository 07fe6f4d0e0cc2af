"""Choosing among a model's completions by reward models and other scorers: best of n, and votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from whet.pages.rerank import Reranking
from whet.protocols import Reward
from whet.record.metrics.reranking import Pool, RerankerScores, choice_curves
from whet.reward.answer import final_answer, normal_form
from whet.reward.combine import RewardPart
from whet.reward.find import find_reward
from whet.reward.learned.members import model_folders
from whet.reward.learned.process import Aggregate, aggregated
from whet.reward.steps import steps_of
from whet.training.assembly.rewards import bind_judges, build_scorer, failure_policy, start_sandbox
from whet.training.assembly.runtime import Runtime
from whet.training.config import EvaluationConfig
from whet.training.sections import RerankSection, ScorerChoice
from whet.types import Group, WhetError

AGGREGATES = get_args(Aggregate)


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


def rerank_plan(config: EvaluationConfig, num_samples: int) -> tuple[Reranker, ...]:
    """The scorers, read; what cannot choose is refused before a pool of completions is written for it."""
    section = config.rerank
    _check(section, num_samples, config.sampling.temperature)
    scorers = tuple(_scorer(scorer, {**section.settings, **scorer.settings}) for scorer in section.scorers)
    start_sandbox([RewardPart(scorer.reward) for scorer in scorers], config.sandbox.require)
    for scorer in scorers:
        prepare = getattr(scorer.reward, "prepare", None)
        if callable(prepare):
            prepare()
    return scorers


def rerank_groups(
    config: EvaluationConfig, scorers: Sequence[Reranker], runtime: Runtime, groups: Sequence[Group], measure: str
) -> Reranking:
    """What every way of choosing among the same completions would have scored."""
    parts = [RewardPart(scorer.reward) for scorer in scorers]
    bound = bind_judges(parts, runtime.engine, runtime.loaded.tokenizer)
    judging = [Reranker(scorer.name, part.resolved_reward) for scorer, part in zip(scorers, bound, strict=True)]
    by_scorer = [reranker_scores(config, scorer, groups) for scorer in judging]
    return Reranking(
        config.model.name,
        config.data.source,
        measure,
        len(groups),
        len(groups[0].samples),
        config.sampling.temperature,
        choice_curves([_pool(group) for group in groups], [scores for several in by_scorer for scores in several]),
    )


def _check(section: RerankSection, num_samples: int, temperature: float) -> None:
    if not section.scorers:
        raise WhetError(
            "nothing to rerank by: rerank settings need a scorer; give --rerank RUN of a reward model, or --rerank "
            "REWARD"
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


def _scorer(choice: ScorerChoice, settings: Mapping[str, Any]) -> Reranker:
    try:
        return Reranker(choice.reward, find_reward(choice.reward, settings))
    except WhetError as error:
        raise WhetError(f"--rerank {choice.reward}: {error}") from error


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
    judge = build_scorer(config, [RewardPart(scorer.reward)], failure_policy(config))
    scores = [sample.reward for sample in judge(prompts, samples)]
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


def _cut(scores: Sequence[float | None], sizes: Sequence[int]) -> tuple[tuple[float | None, ...], ...]:
    left = iter(scores)
    return tuple(tuple(next(left) for _ in range(size)) for size in sizes)
