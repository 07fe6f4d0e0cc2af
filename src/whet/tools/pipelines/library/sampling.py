"""Stages that draw completions, and what is made of them: demonstrations kept by rejection, pairs, mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.data.sections import DataSection
from whet.record.text import count_of, percent
from whet.reward.sections import RewardSection
from whet.rollout.sections import SamplingSection
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES, MOST_TOKENS
from whet.settings.sections import Section, Temperature
from whet.tools.pipelines.generation import Scores, sampled_rows, write_rows
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Output,
    StageEntry,
    StageInput,
    entry_values,
    input_digests_of,
)
from whet.tools.pipelines.library.rejection import KeepRule, kept_rows
from whet.tools.pipelines.library.settings import ComposedSettings, answer_reward, is_scored, shared_values
from whet.tools.pipelines.library.trainings import Done, rl_inputs, row_source
from whet.tools.pipelines.pairs import best_against_worst, prompt_row
from whet.tools.pipelines.stages import Stage, StageCost, StagePlan, read_json_lines, stage_result
from whet.training.config import SUPERVISED, EvaluationConfig, SFTConfig
from whet.training.sections import EvalSection
from whet.types import Prompt, WhetError

COMPLETIONS_AT_ONCE = 2048  # completions that are drawn together, and lost together by a kill
HINT = "{question}\n\nThe answer is {answer}. Work out how to get there."


def chunk_size(count: int) -> int:
    """Prompts that are answered together."""
    return max(8, COMPLETIONS_AT_ONCE // max(1, count))


def sampling_config(
    settings: ComposedSettings,
    model: str,
    data: Mapping[str, Any],
    reward: RewardSection,
    sampling: SamplingSection,
) -> EvaluationConfig:
    """How a model is sampled and scored on these rows."""
    known = {key: value for key, value in data.items() if key in DataSection.model_fields}
    return EvaluationConfig(
        seed=settings.seed,
        model=settings.model.model_copy(update={"name": model}),
        data=DataSection(**known),
        sampling=sampling,
        reward=reward,
        sandbox=settings.sandbox,
        eval=EvalSection(prompts=0),
    )


def asked_prompts(config: EvaluationConfig, count: int, stage: str) -> list[Prompt]:
    """The prompts of a source; the first `count` of them, 0: all."""
    from whet.training.assembly.prompts import load_prompts

    if count and config.data.parsed_source.is_generated:
        config = config.model_copy(update={"data": config.data.model_copy(update={"count": count})})
    found = load_prompts(config, evaluation=False)
    if len(found) < count:
        raise WhetError(f"stage {stage!r}: {config.data.source} has {len(found)} prompts, not {count}; lower its count")
    return found[: count or None]


class SampleEntry(StageEntry):
    """Completions of a model to prompts, scored by the reward."""

    kind: ClassVar[str] = "sample"
    gives: ClassVar[tuple[Output, ...]] = ("completions",)

    model: str = Field("", description="the stage or model that writes; empty: the pipeline's model")
    prompts: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name; empty: the pipeline's")
    count: int = Field(0, ge=0, le=MOST_ROWS, description="only the first prompts; 0: all")
    completions: int = Field(4, ge=1, le=MOST_SAMPLES, description="drawn per prompt")
    temperature: Temperature = Field(1.0, description="of the samples")
    reward: RewardSection = Field(RewardSection(), description="what scores them; empty: what says that one is right")
    hint: bool = Field(False, description="where no completion is right, tell the model the answer and draw once more")

    def stage(self, composition: Composition) -> Stage:
        settings = composition.settings
        model = composition.model(self, "model", self.model)
        prompts = StageInput(source=settings.data.source)
        if self.prompts:
            prompts = composition.rows(self, "prompts", self.prompts, ("rows", "completions"))
        if self.temperature == 0 and self.completions > 1:
            raise WhetError(f"stage {self.name!r}: several completions at temperature 0 are all equal; give 1.0")
        reward = self.reward if is_scored(self.reward) else answer_reward(settings)
        sampling = settings.sampling.model_copy(update={"temperature": self.temperature})

        def config_of(name: str, location: str) -> EvaluationConfig:
            own = not self.prompts or self.prompts == settings.data.source
            data = settings.data.model_dump() if own else row_source(settings, prompts, 0, location)
            return sampling_config(settings, name, data, reward, sampling)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            config = config_of(model.model(done), prompts.location(done))
            asked = asked_prompts(config, self.count, self.name)
            return self._write(folder, config, asked)

        known = 0 if prompts.stage else len(asked_prompts(config_of("", prompts.source), self.count, self.name))
        completions = (known or self.count) * self.completions
        note = "" if completions else f"as many completions as {prompts.stage} has prompts, times {self.completions}"
        cost = StageCost(completions=completions, sampled_tokens=completions * sampling.max_new_tokens, note=note)
        if self.hint:
            cost = StageCost(completions=completions, sampled_tokens=cost.sampled_tokens, note="hints draw some more")
        shown = f"{prompts.label} ({known:,} rows)" if known else prompts.label
        return Stage(
            self.name,
            f"{model.label} writes {count_of(self.completions, 'completion')} to each prompt of {prompts.label}",
            work,
            {
                **entry_values(self),
                **shared_values(settings, ("sampling",)),
                "scored_by": reward.model_dump(mode="json"),
                "data": config_of("", prompts.source or "rows.jsonl").data.model_dump(mode="json"),
            },
            reads=tuple(dict.fromkeys((*model.reads, *prompts.reads))),
            inputs=rl_inputs([prompts], [model], [reward]),
            plan=StagePlan({"model": model.label, "prompts": shown}, OUTPUT_FILES["completions"], cost),
        )

    def _write(self, folder: Path, config: EvaluationConfig, asked: Sequence[Prompt]) -> Mapping[str, Any]:
        from whet.training.assembly.runtime import sampling_from

        sampling = sampling_from(config.sampling)

        def rows_of(sampler: Any, number: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
            written = sampler.completions(prompts, self.completions, sampling, (config.seed, number))
            scores: Scores = [[None] * len(each) for each in written]
            if scores_rows(config):
                scores = sampler.scores(None, prompts, written)
            rows = [scored_row(*each) for each in zip(prompts, written, scores, strict=True)]
            return with_hints(sampler, sampling, (config.seed, number, 1), prompts, rows) if self.hint else rows

        rows = sampled_rows(folder / OUTPUT_FILES["completions"], config, asked, chunk_size(self.completions), rows_of)
        scores = [score for row in rows for score in row["scores"]]
        right = sum(score is not None and score >= 1 for score in scores)
        solved = sum(any(score is not None and score >= 1 for score in row["scores"]) for row in rows)
        tokens = sum(sum(row["tokens"]) for row in rows)
        counts = {"prompts": len(rows), "completions": len(scores), "right": right, "prompts_with_a_right_one": solved}
        if self.hint:
            counts["hinted_and_right"] = sum(row["hinted"] is not None for row in rows)
        outcome = "which nobody scores"
        if any(score is not None for score in scores):
            outcome = (
                f"{percent(right / len(scores))} right; a right one for {solved} of {count_of(len(rows), 'prompt')}"
            )
        return stage_result(
            f"{count_of(len(scores), 'completion')}, {outcome}",
            counts=counts,
            cost={"completions": len(scores), "sampled_tokens": tokens},
        )


def scores_rows(config: EvaluationConfig) -> bool:
    """False for data from a file without a reward: completions are drawn, and nobody says which are right."""
    return is_scored(config.reward) or config.data.parsed_source.is_generated


def scored_row(prompt: Prompt, samples: Sequence[Any], scores: Sequence[float | None]) -> dict[str, Any]:
    """A row of completions.jsonl: the prompt, its gold answer, and each completion with its score."""
    return {
        **prompt_row(prompt),
        "answer": prompt.answer,
        "completions": [sample.completion for sample in samples],
        "finished": [not sample.stop.is_limit for sample in samples],
        "tokens": [sample.num_actions for sample in samples],
        "scores": list(scores),
    }


def with_hints(
    sampler: Any, sampling: Any, seed: tuple[int, ...], prompts: Sequence[Prompt], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows with a completion that was written knowing the answer, where no other is right (STaR, 2203.14465).

    It is kept for the prompt without the hint, and only where it is right.
    """
    missed = [
        place
        for place, row in enumerate(rows)
        if row["answer"] is not None and not any(score is not None and score >= 1 for score in row["scores"])
    ]
    rows = [{**row, "hinted": None} for row in rows]
    if not missed:
        return rows
    hinted = [hinted_prompt(prompts[place]) for place in missed]
    written = sampler.completions(hinted, 1, sampling, seed)
    scores = sampler.scores(None, [prompts[place] for place in missed], written)
    for place, (sample,), (score,) in zip(missed, written, scores, strict=True):
        if score is not None and score >= 1 and not sample.stop.is_limit:
            rows[place]["hinted"] = sample.completion
    return rows


def hinted_prompt(prompt: Prompt) -> Prompt:
    """The prompt with its answer told."""
    text = HINT.format(question=prompt.question(), answer=prompt.answer)
    if prompt.text is not None:
        return Prompt(prompt.id, (), text, prompt.answer, prompt.meta)
    last = {**prompt.messages[-1], "content": text}
    return Prompt(prompt.id, (*prompt.messages[:-1], last), None, prompt.answer, prompt.meta)


class RejectionEntry(StageEntry):
    """Demonstrations from completions: the right ones, each once, of fitting length and language."""

    kind: ClassVar[str] = "rejection"
    gives: ClassVar[tuple[Output, ...]] = ("rows",)

    completions: str = Field("", description="the stage of kind sample whose completions are sorted")
    most_per_prompt: int = Field(1, ge=1, le=MOST_SAMPLES, description="kept for one prompt at most, as drawn")
    least_score: float = Field(1.0, ge=-1e6, le=1e6, description="of a completion that is kept")
    most_tokens: int = Field(0, ge=0, le=MOST_TOKENS, description="longest completion that is kept; 0: any that ended")
    least_tokens: int = Field(1, ge=1, le=MOST_TOKENS, description="shortest completion that is kept")
    language: str = Field("", description="language that completions must be in: a code, prompt, or empty: any")
    near: float = Field(
        0.9, ge=0.0, le=1.0, description="word runs that two kept completions may share; 1: only equal ones go"
    )
    skip_solved: bool = Field(False, description="leave out prompts whose completions are all right")

    def stage(self, composition: Composition) -> Stage:
        found = composition.rows(self, "completions", self.completions, ("completions",))
        rule = KeepRule(
            self.most_per_prompt, self.least_score, self.least_tokens, self.most_tokens, self.language, self.near,
            self.skip_solved,
        )  # fmt: skip

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            rows, counts = kept_rows(read_json_lines(Path(found.location(done))), rule)
            write_rows(folder / OUTPUT_FILES["rows"], rows)
            stop = "" if rows else "no completion is left to learn from"
            dropped = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count)
            return stage_result(f"{count_of(len(rows), 'row')} kept ({dropped})", counts=counts, stop_reason=stop)

        return Stage(
            self.name,
            f"keep the right completions of {found.label}: each once, at most {self.most_per_prompt} per prompt",
            work,
            entry_values(self),
            reads=found.reads,
            inputs=input_digests_of([found]),
            plan=StagePlan({"completions": found.label}, OUTPUT_FILES["rows"]),
        )


class PairsEntry(StageEntry):
    """Pairs from scored completions: the best of each prompt against the worst."""

    kind: ClassVar[str] = "pairs"
    gives: ClassVar[tuple[Output, ...]] = ("pairs",)

    completions: str = Field("", description="the stage of kind sample whose completions are paired")

    def stage(self, composition: Composition) -> Stage:
        found = composition.rows(self, "completions", self.completions, ("completions",))

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            pairs, counts = best_against_worst(read_json_lines(Path(found.location(done))))
            write_rows(folder / OUTPUT_FILES["pairs"], pairs)
            stop = "" if pairs else "no pair is left to learn from"
            return stage_result(f"{count_of(len(pairs), 'pair')}", counts=counts, stop_reason=stop)

        return Stage(
            self.name,
            f"the best completion of each prompt of {found.label} against the worst",
            work,
            entry_values(self),
            reads=found.reads,
            inputs=input_digests_of([found]),
            plan=StagePlan({"completions": found.label}, OUTPUT_FILES["pairs"]),
        )


class MixSource(Section):
    """One source of a mixture."""

    data: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name")
    rows: int = Field(0, ge=0, le=MOST_ROWS, description="how many a task writes, or of others only the first; 0: all")
    drop_answers: bool = Field(False, description="prompts only: leave the gold answers out")


class MixEntry(StageEntry):
    """Rows of several sources in one file, in an order that the seed decides."""

    kind: ClassVar[str] = "mix"
    gives: ClassVar[tuple[Output, ...]] = ("rows",)

    sources: tuple[MixSource, ...] = Field((), max_length=100, description="what is mixed: data of each, and rows")
    of: str = Field("demonstrations", pattern="demonstrations|prompts", description="demonstrations or prompts")

    def stage(self, composition: Composition) -> Stage:
        settings = composition.settings
        if not self.sources:
            raise WhetError(f"stage {self.name!r} (mix) has no sources; give some, each with its data")
        found = [composition.rows(self, "data", each.data, ("rows",)) for each in self.sources]
        for each in found:
            if each.source:
                composition.trained_on.setdefault(each.source, self.name)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            mixed: list[dict[str, Any]] = []
            counts = {}
            for place, (source, rows) in enumerate(zip(self.sources, found, strict=True), 1):
                data = row_source(settings, rows, source.rows, rows.location(done))
                read = self._rows(settings, data, source)
                counts[rows.label] = len(read)
                mixed += [{**row, "id": f"{place}/{row['id']}"} if len(found) > 1 else row for row in read]
            from random import Random

            Random(f"mix/{settings.seed}").shuffle(mixed)
            write_rows(folder / OUTPUT_FILES["rows"], mixed)
            shares = ", ".join(f"{count} of {label}" for label, count in counts.items())
            return stage_result(f"{count_of(len(mixed), 'row')}: {shares}", counts=counts)

        labels = " and ".join(each.label for each in found)
        read_as = [row_source(settings, rows, 0, rows.source) if rows.source else {} for rows in found]
        return Stage(
            self.name,
            f"{self.of} of {labels} in one file",
            work,
            {**entry_values(self), "seed": settings.seed, "data": read_as},
            reads=tuple(name for each in found for name in each.reads),
            inputs=input_digests_of(found),
            plan=StagePlan({"rows": labels}, OUTPUT_FILES["rows"]),
        )

    def _rows(self, settings: ComposedSettings, data: Mapping[str, Any], source: MixSource) -> list[dict[str, Any]]:
        if self.of == "demonstrations":
            from whet.training.assembly.sft import load_demonstrations

            config = SFTConfig(method=SUPERVISED, seed=settings.seed, data=data)  # type: ignore[arg-type]
            return [{**prompt_row(row.prompt), "completion": row.completion} for row in load_demonstrations(config)[0]]
        from whet.training.assembly.prompts import load_prompts

        prompts = load_prompts(EvaluationConfig(seed=settings.seed, data=DataSection(**data)), evaluation=False)
        return [
            {**prompt_row(each), **({} if source.drop_answers or each.answer is None else {"answer": each.answer})}
            for each in prompts
        ]
