"""Completions that a stage draws from a model: scored where wanted, written in chunks that a kill does not lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.data.tasks import Task
from whet.reward.sections import RewardSection
from whet.tools.pipelines.pairs import prompt_row
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import json_lines, read_json_lines, write_atomically, write_in_chunks
from whet.training.config import EvaluationConfig
from whet.types import Message, Prompt, Sample, Sampling, WhetError

PAIRS, COMPLETIONS, DEMONSTRATIONS = "pairs.jsonl", "completions.jsonl", "demonstrations.jsonl"
CHUNK = 64  # prompts that are answered together, and lost together by a kill
EXAMPLE_SEED = 7919  # added to the seed: examples have other prompts than the rounds
Scores = list[list[float | None]]
Row = dict[str, Any]


class ModelSampler:
    """Draws completions from one loaded model, and scores them."""

    def __init__(self, config: EvaluationConfig) -> None:
        from whet.training.assembly.runtime import load_runtime

        self._config = config
        self.runtime = load_runtime(config)

    def completions(
        self, prompts: Sequence[Prompt], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[Sample]]:
        from whet.rollout.collect import draw_completions
        from whet.training.assembly.runtime import encode_prompts

        tokens = encode_prompts(self.runtime, prompts, sampling)
        return draw_completions(self.runtime.engine, tokens, count, sampling, seed)

    def texts(
        self, conversations: Sequence[Sequence[Message]], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[str]]:
        """`count` answers to each conversation."""
        prompts = [Prompt(str(number), tuple(messages)) for number, messages in enumerate(conversations)]
        return [[sample.completion for sample in each] for each in self.completions(prompts, count, sampling, seed)]

    def scores(
        self, reward: RewardSection | None, prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]]
    ) -> Scores:
        """Rewards of completions; None: by the reward of the eval."""
        return [[sample.reward for sample in samples] for samples in self.scored(reward, prompts, written)]

    def scored(
        self, reward: RewardSection | None, prompts: Sequence[Prompt], written: Sequence[Sequence[Sample]]
    ) -> list[Sequence[Sample]]:
        """The completions with their rewards; None: by the reward of the config."""
        from whet.rollout.collect import score_groups
        from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer

        config = self._config if reward is None else self._config.model_copy(update={"reward": reward})
        parts = build_reward_parts(config, wanted=True)
        scorer = build_scorer(config, bind_judges(parts, self.runtime.engine, self.runtime.loaded.tokenizer))
        return [group.samples for group in score_groups(prompts, written, scorer)]


def write_completions(
    folder: Path,
    config: EvaluationConfig,
    chosen: Sequence[Prompt],
    count: int,
    seed: tuple[int, ...],
    is_scored: bool = False,
) -> list[Row]:
    """`count` completions to each prompt, scored by the config's reward where wanted, as rows of completions.jsonl."""
    from whet.training.assembly.runtime import sampling_from

    def rows_of(sampler: ModelSampler, number: int, prompts: Sequence[Prompt]) -> list[Row]:
        written = sampler.completions(prompts, count, sampling_from(config.sampling), (*seed, number))
        rows = [completion_row(prompt, samples) for prompt, samples in zip(prompts, written, strict=True)]
        if not is_scored:
            return rows
        scores = sampler.scores(None, prompts, written)
        return [{**row, "scores": given} for row, given in zip(rows, scores, strict=True)]

    return sampled_rows(folder / COMPLETIONS, config, chosen, CHUNK, rows_of)


def sampled_rows(
    path: Path,
    config: EvaluationConfig,
    items: Sequence[Any],
    size: int,
    rows_of: Callable[[ModelSampler, int, Sequence[Any]], list[Row]],
    loaded: list[ModelSampler] | None = None,
) -> list[Row]:
    """JSON rows that `rows_of(sampler, number of the chunk, its items)` makes, written chunk by chunk and read back.

    A stage that samples twice gives a list, `loaded`, in which the model stays.
    """
    samplers: list[ModelSampler] = [] if loaded is None else loaded

    def chunk_rows(number: int, chunk: Sequence[Any]) -> list[Row]:
        if not samplers:  # a stage that had only its result left to write needs no model
            samplers.append(ModelSampler(config))
        return rows_of(samplers[0], number, chunk)

    return read_json_lines(write_in_chunks(path, items, size, chunk_rows))


def completion_row(prompt: Prompt, samples: Sequence[Sample]) -> Row:
    return {
        **prompt_row(prompt),
        "completions": [sample.completion for sample in samples],
        "finished": [sample.stop != "length" for sample in samples],
    }


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    return write_atomically(path, json_lines(rows))


def train_prompts(config: EvaluationConfig, first: int, count: int, advice: str) -> list[Prompt]:
    """`count` prompts of the training split from number `first` on; a task writes as many as are needed."""
    from whet.training.assembly.prompts import load_prompts

    needed = first + count
    if config.data.parsed_source.is_generated and config.data.count < needed:
        config = config.model_copy(update={"data": config.data.model_copy(update={"count": needed})})
    chosen = load_prompts(config, evaluation=False)
    if len(chosen) < needed:
        raise WhetError(f"{config.data.source} has {len(chosen)} prompts and {needed} are needed; lower {advice}")
    return chosen[first:needed]


def own_sampling(settings: PipelineSettings) -> Sampling:
    from whet.training.assembly.runtime import sampling_from

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
