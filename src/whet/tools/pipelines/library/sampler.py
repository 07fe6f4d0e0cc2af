"""Completions that a stage draws from a model, scored where wanted, and the rows that they are written in.

A row of completions has `id`, `prompt`, `answer`, `completions`, `finished` (False: cut off at the budget), `tokens`,
and a column for each thing that was measured. Rows are written in chunks that a kill does not lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.data.tasks import Task, demonstrations
from whet.reward.sections import RewardSection
from whet.tools.pipelines.settings import PipelineSettings, sampling_config
from whet.tools.pipelines.stages import read_json_lines, write_in_chunks
from whet.training.config import EvaluationConfig
from whet.types import Demonstration, Group, Message, Prompt, Sample, Sampling, WhetError

COMPLETIONS_AT_ONCE = 2048  # completions that are drawn together, and lost together by a kill
MICRO_BATCH_TOKENS = 16_384  # of passes that read completions: memory only
EXAMPLE_SEED = 7919  # added to the seed: examples have other prompts than the rounds
Scores = list[list[float | None]]
Row = dict[str, Any]
Written = Sequence[Sequence[Sample]]  # the completions to each prompt


def prompt_row(prompt: Prompt) -> Row:
    """The columns that a prompt is read back from."""
    content: Any = prompt.text if prompt.text is not None else [dict(message) for message in prompt.messages]
    return {"id": prompt.id, "prompt": content}


def row_prompt(row: Mapping[str, Any]) -> Prompt:
    """The prompt that `prompt_row` wrote."""
    content = row["prompt"]
    is_text = isinstance(content, str)
    return Prompt(row["id"], () if is_text else tuple(content), content if is_text else None, row.get("answer"))


def shown_row(demonstration: Demonstration) -> Row:
    """A row of a demonstration."""
    return {**prompt_row(demonstration.prompt), "completion": demonstration.completion}


def completion_row(prompt: Prompt, samples: Sequence[Sample]) -> Row:
    """A row of completions: the prompt, its gold answer, and each completion with its length."""
    return {
        **prompt_row(prompt),
        "answer": prompt.answer,
        "completions": [sample.completion for sample in samples],
        "finished": [not sample.stop.is_limit for sample in samples],
        "tokens": [sample.num_actions for sample in samples],
    }


def chunk_size(count: int) -> int:
    """Prompts that are answered together, each `count` times."""
    return max(8, COMPLETIONS_AT_ONCE // max(1, count))


class ModelSampler:
    """Draws completions from one loaded model, and scores them."""

    def __init__(self, config: EvaluationConfig) -> None:
        from whet.training.assembly.runtime import load_runtime

        self._config = config
        self.runtime = load_runtime(config)

    def completions(
        self, prompts: Sequence[Prompt], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[Sample]]:
        """`count` completions to each prompt."""
        from whet.rollout.collect import draw_completions
        from whet.training.assembly.runtime import encode_prompts

        tokens = encode_prompts(self.runtime, prompts, sampling)
        return draw_completions(self.runtime.engine, tokens, count, sampling, seed)

    def texts(
        self, conversations: Sequence[Sequence[Message]], count: int, sampling: Sampling, seed: tuple[int, ...]
    ) -> list[list[str]]:
        """`count` answers to each conversation."""
        prompts = [Prompt(str(number), tuple(messages)) for number, messages in enumerate(conversations)]
        return [
            [sample.completion for sample in samples] for samples in self.completions(prompts, count, sampling, seed)
        ]

    def scores(self, reward: RewardSection | None, prompts: Sequence[Prompt], written: Written) -> Scores:
        """Rewards of completions; None: by the reward of the config."""
        return [[sample.reward for sample in samples] for samples in self.scored(reward, prompts, written)]

    def scored(
        self, reward: RewardSection | None, prompts: Sequence[Prompt], written: Written
    ) -> list[Sequence[Sample]]:
        """The completions with their rewards; None: by the reward of the config."""
        from whet.rollout.collect import score_groups
        from whet.training.assembly.rewards import bind_judges, build_reward_parts, build_scorer

        config = self._config if reward is None else self._config.model_copy(update={"reward": reward})
        parts = build_reward_parts(config, wanted=True)
        scorer = build_scorer(config, bind_judges(parts, self.runtime.engine, self.runtime.loaded.tokenizer))
        return [group.samples for group in score_groups(prompts, written, scorer)]

    def pair_logp(self, pairs: Sequence[tuple[Prompt, tuple[str, str]]]) -> list[Any]:
        """The log-probabilities of the tokens of two texts after each prompt."""
        from whet.data.families import completion_families
        from whet.training.completion_logp import families_logp

        families = [*completion_families(self.runtime.loaded.tokenizer, pairs)]
        return list(families_logp(self.runtime.policy, families, MICRO_BATCH_TOKENS, packed=True))


def summed_logp(policy: Any, samples: Sequence[Sample], temperature: float) -> list[float]:
    """The log-probability of each completion under a model."""
    from whet.data.packing import token_batch
    from whet.training.update import token_scores

    batch = token_batch([Group(Prompt("", ()), tuple(samples))])
    logp = token_scores(policy, batch, temperature, MICRO_BATCH_TOKENS).logp
    return [float(value) for value in (logp.double() * batch.action).sum(-1)]


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


@dataclass(frozen=True)
class WrittenChunk:
    """Some prompts and the completions to each of them."""

    sampler: ModelSampler
    number: int
    prompts: Sequence[Prompt]
    written: Written

    @property
    def pairs(self) -> list[tuple[Prompt, Sample]]:
        """Every completion with its prompt."""
        return [
            (prompt, sample) for prompt, samples in zip(self.prompts, self.written, strict=True) for sample in samples
        ]

    def by_prompt(self, values: Iterable[Any]) -> list[list[Any]]:
        """Values of all completions, by their prompt."""
        remaining = iter(values)
        return [[next(remaining) for _ in samples] for samples in self.written]

    def scores(self, reward: RewardSection | None = None) -> Scores:
        """Rewards of the completions; None: by the reward of the sampler."""
        return self.sampler.scores(reward, self.prompts, self.written)


Measure = Callable[[WrittenChunk], Mapping[str, Sequence[Any]]]  # further columns, by name


def completion_rows(
    path: Path,
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    count: int,
    seed: Callable[[int], tuple[int, ...]],
    measure: Measure,
    size: int = 0,
) -> list[Row]:
    """`count` completions to each prompt, by the seed of their chunk, with the columns that `measure` adds."""
    from whet.training.assembly.runtime import sampling_from

    sampling = sampling_from(config.sampling)

    def rows_of(sampler: ModelSampler, number: int, asked: Sequence[Prompt]) -> list[Row]:
        written = sampler.completions(asked, count, sampling, seed(number))
        columns = measure(WrittenChunk(sampler, number, asked, written))
        return [
            {**completion_row(prompt, samples), **{name: column[at] for name, column in columns.items()}}
            for at, (prompt, samples) in enumerate(zip(asked, written, strict=True))
        ]

    return sampled_rows(path, config, prompts, size or chunk_size(count), rows_of)


def training_prompts(config: EvaluationConfig, first: int, count: int, advice: str) -> list[Prompt]:
    """`count` prompts from number `first` on, 0: all; a task writes as many as are needed."""
    from whet.training.assembly.prompts import load_prompts

    needed = first + count if count else 0
    if needed and config.data.parsed_source.is_generated:
        config = config.model_copy(update={"data": config.data.model_copy(update={"count": needed})})
    prompts = load_prompts(config, evaluation=False)
    if len(prompts) < needed:
        raise WhetError(f"{config.data.source} has {len(prompts)} prompts and {needed} are needed; lower {advice}")
    return prompts[first : needed or None]


def task_rows(settings: PipelineSettings, count: int, draw: Callable[[Task, int, int], Sequence[Any]]) -> list[Any]:
    """`draw(task, count, difficulty)` for an equal share of `count` of every kind; none where the data is no task."""
    source = settings.data.parsed_source
    return source.from_tasks(draw, count, settings.data.difficulty) if source.is_task else []


def task_demonstrations(settings: PipelineSettings, count: int, share_worked: float) -> list[Row]:
    """Demonstrations of the task, to prompts that no round asks; `share_worked` of them show their working."""
    seed = settings.seed + EXAMPLE_SEED
    return [
        shown_row(shown)
        for shown in task_rows(
            settings, count, lambda task, share, level: demonstrations(task, share, seed, level, share_worked)
        )
    ]


def task_reviews(settings: PipelineSettings, count: int, split: str = "train") -> list[Any]:
    """Completions of known quality with their faults, as the task writes them; those of the eval split never change."""
    from whet.data.tasks.contrast import reviewed_completions

    seed = EXAMPLE_SEED + (settings.seed if split == "train" else 0)
    return task_rows(settings, count, lambda task, share, level: reviewed_completions(task, split, share, seed, level))


def model_sampler(settings: PipelineSettings, model: str) -> ModelSampler:
    """A model with the pipeline's prompts and reward."""
    return ModelSampler(sampling_config(settings, model))
