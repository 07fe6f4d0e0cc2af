"""A loaded model that is asked many things in one stage: completions, judgements, critiques, revisions; and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whet.config.config import EvaluationConfig
from whet.config.sections import RewardSection
from whet.data.tasks import Task
from whet.pipeline.parts import evaluation
from whet.pipeline.sections import PipelineSettings
from whet.types import Message, Prompt, Sample, Sampling

EXAMPLE_SEED = 7919  # added to the seed: examples ask other questions than the rounds do
Scores = list[list[float | None]]


class Bench:
    """Completions of one model, and rewards of them."""

    def __init__(self, settings: PipelineSettings, model: str) -> None:
        from whet.build.runtime import load_runtime

        self._settings, self._model = settings, model
        self.machine = load_runtime(evaluation(settings, model))

    def completions(
        self, prompts: Sequence[Prompt], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[Sample]]:
        from whet.build.runtime import encode_prompts
        from whet.rollout.collect import draw_completions

        return draw_completions(
            self.machine.engine, encode_prompts(self.machine, prompts, sampling), count, sampling, seed
        )

    def texts(
        self, questions: Sequence[Sequence[Message]], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[str]]:
        """`count` answers to each conversation."""
        prompts = [Prompt(str(number), tuple(messages)) for number, messages in enumerate(questions)]
        return [[sample.completion for sample in each] for each in self.completions(prompts, count, sampling, seed)]

    def scores(self, reward: RewardSection | None) -> Callable[[Sequence[Prompt], Sequence[Sequence[Sample]]], Scores]:
        """What a reward says of completions; None: the pipeline's own marks."""
        from whet.build.rewards import bind_judges, build_reward_parts, build_scorer
        from whet.rollout.collect import score_groups

        config: EvaluationConfig = evaluation(self._settings, self._model, reward)
        parts = bind_judges(build_reward_parts(config, wanted=True), self.machine.engine, self.machine.loaded.tokenizer)
        judge = build_scorer(config, parts)

        def of(prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]]) -> Scores:
            groups = score_groups(prompts, written, judge)
            return [[sample.reward for sample in group.samples] for group in groups]

        return of


def own_sampling(settings: PipelineSettings) -> Sampling:
    from whet.build.runtime import sampling_from

    return sampling_from(settings.sampling)


def task_kinds(settings: PipelineSettings) -> list[tuple[Task, int]]:
    """The tasks and difficulties of the data; none where it is no task."""
    source = settings.data.parsed_source
    if not source.is_task:
        return []
    return [(task, difficulty) for task in source.tasks() for difficulty in settings.data.difficulty]


def rows_of_kinds(
    kinds: Sequence[tuple[Task, int]], count: int, drawn: Callable[[Task, int, int], Sequence[Any]]
) -> list[Any]:
    """`drawn(task, count, difficulty)` for an equal share of `count` from each kind, one after another."""
    share = -(-count // max(1, len(kinds)))
    return [each for task, difficulty in kinds for each in drawn(task, share, difficulty)]
