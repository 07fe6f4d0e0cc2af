"""Stages of a constitution: a model criticises and revises its completions, and rules measure its conduct."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import tomli_w
from pydantic import Field

from whet.record.text import count_of, percent
from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_TOKENS
from whet.tools.pipelines.library.constitution import (
    TASK_PRINCIPLES,
    Principle,
    conduct,
    constitution_rows,
    critique_request,
    draw_principle,
    preference_request,
    principles_of,
    revision_request,
    violations,
)
from whet.tools.pipelines.library.entry import (
    OUTPUT_FILES,
    Composition,
    Inputs,
    Output,
    StageEntry,
    StageInput,
    StageWork,
)
from whet.tools.pipelines.library.evaluation import POLICY, eval_config
from whet.tools.pipelines.library.pair_rows import prompt_row
from whet.tools.pipelines.library.sampler import (
    EXAMPLE_SEED,
    ModelSampler,
    Row,
    chunk_size,
    completion_row,
    sampled_rows,
    task_rows,
    training_prompts,
    write_rows,
)
from whet.tools.pipelines.library.verdicts import FIRST, SECOND
from whet.tools.pipelines.settings import PipelineSettings, can_evaluate, sampling_config
from whet.tools.pipelines.stages import StageCost, stage_result, write_atomically
from whet.types import Message, Prompt, Sample, Sampling, WhetError

REVISIONS, CONSTITUTION, CONDUCT = "revisions.jsonl", "constitution.toml", "conduct.jsonl"
NOTHING_WRONG = "all right"
SIDES = ("before", "after")
FORBIDDEN = Field("", description="COLUMN=VALUE of prompts that are to be refused; empty: none is")
SHOWN_SHARE = 0.35  # of the examples of answering that show their working


class ConstitutionExamplesEntry(StageEntry):
    """Examples of answering, criticising, revising and comparing, written by the task."""

    kind: ClassVar[str] = "constitution_examples"
    gives: ClassVar[tuple[Output, ...]] = ("rows",)
    uses: ClassVar[tuple[str, ...]] = ("seed", "data")

    count: int = Field(512, ge=1, le=MOST_ROWS, description="prompts of the task")

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return "examples of answering, criticising, revising and comparing, written by the task"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.data.tasks import demonstrations
        from whet.data.tasks.reviewed import reviewed_completions

        (principle,), seed = TASK_PRINCIPLES, run.settings.seed + EXAMPLE_SEED
        shown = task_rows(
            run.settings, self.count, lambda task, count, level: demonstrations(task, count, seed, level, SHOWN_SHARE)
        )
        reviewed = task_rows(
            run.settings,
            self.count,
            lambda task, count, level: reviewed_completions(task, "train", count, seed, level),
        )
        rows = [{**prompt_row(row.prompt), "completion": row.completion} for row in shown]
        for number, group in enumerate(reviewed[at : at + 5] for at in range(0, len(reviewed), 5)):
            example = group[number % 5]
            critique = example.fault or NOTHING_WRONG
            asked = (example.prompt, example.completion, principle)
            right, wrong = group[0], group[2 if number % 2 else 4]
            rows += [
                _row(critique_request(*asked), critique),
                _row(revision_request(*asked, critique), example.right),
                _row(preference_request(right.prompt, right.completion, wrong.completion, principle), FIRST),
                _row(preference_request(right.prompt, wrong.completion, right.completion, principle), SECOND),
            ]
        write_rows(run.folder / OUTPUT_FILES["rows"], [{**row, "id": str(at)} for at, row in enumerate(rows)])
        return stage_result(f"{len(rows)} examples", counts={"examples": len(rows), "answering": len(shown)})


def _row(messages: Sequence[Message], completion: str) -> Row:
    return {"prompt": [dict(message) for message in messages], "completion": completion}


def is_forbidden(rule: str, prompt: Prompt) -> bool:
    """True for a prompt that the user's COLUMN=VALUE says is to be refused."""
    column, _, value = rule.partition("=")
    return bool(column) and str(prompt.meta.get(column)) == value


class RevisionsEntry(StageEntry):
    """Completions, criticised and revised under principles: the last revisions are demonstrations."""

    kind: ClassVar[str] = "revisions"
    gives: ClassVar[tuple[Output, ...]] = ("rows",)
    uses: ClassVar[tuple[str, ...]] = ("seed", "model", "sampling", "data", "eval")

    model: str = Field("", description="the stage or model that writes and criticises; empty: the pipeline's model")
    constitution: str = Field("", description="TOML file of principles; empty: the built-in one, or the task's own")
    count: int = Field(1024, ge=1, le=MOST_ROWS, description="prompts whose completions are revised")
    critiques: int = Field(4, ge=1, le=MOST_REPEATS, description="times that a completion is criticised and revised")
    critique_tokens: int = Field(128, ge=1, le=MOST_TOKENS, description="of a critique")
    forbidden: str = FORBIDDEN

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        if self.forbidden and "=" not in self.forbidden:
            raise WhetError(f"forbidden is {self.forbidden!r}; give COLUMN=VALUE, such as label=unsafe")
        settings = composition.settings
        principles_of(self.constitution, settings)
        prompts = StageInput(source=settings.data.source, count=len(self.asked(settings)))
        return {"model": composition.model(self, "model", self.model), "prompts": prompts}

    def asked(self, settings: PipelineSettings) -> list[Prompt]:
        """The prompts whose completions are revised."""
        return training_prompts(sampling_config(settings, ""), 0, self.count, "prompts")

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        times = "once" if self.critiques == 1 else f"{self.critiques} times"
        principles = count_of(len(principles_of(self.constitution, settings)), "principle")
        return (
            f"completions of {inputs['model'].label} to {count_of(self.count, 'prompt')}, criticised and revised "
            f"{times} under {principles}"
        )

    def depends_on(self, settings: PipelineSettings, inputs: Inputs) -> dict[str, Any]:
        principles = constitution_rows(principles_of(self.constitution, settings))
        return {**super().depends_on(settings, inputs), **principles}

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        written = self.count * (1 + self.critiques)
        tokens = written * settings.sampling.max_new_tokens + self.count * self.critiques * self.critique_tokens
        return StageCost(completions=written + self.count * self.critiques, sampled_tokens=tokens)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        principles = principles_of(self.constitution, run.settings)
        write_atomically(run.folder / CONSTITUTION, tomli_w.dumps(constitution_rows(principles)))

        def rows_of(sampler: ModelSampler, number: int, prompts: Sequence[Prompt]) -> list[Row]:
            return self.revised(run.settings, principles, sampler, prompts, number)

        config = sampling_config(run.settings, run.model("model"))
        rows = sampled_rows(run.folder / REVISIONS, config, self.asked(run.settings), chunk_size(32), rows_of)
        usable = [row for row in rows if row["finished"] and row["revisions"][-1].strip()]
        learnt = [{"id": row["id"], "prompt": row["prompt"], "completion": row["revisions"][-1]} for row in usable]
        write_rows(run.folder / OUTPUT_FILES["rows"], learnt)
        changed = sum(row["revisions"][-1] != row["completion"] for row in rows)
        before, after = (
            conduct([row[side] for row in rows], [row[f"{side}_length"] for row in rows]) for side in SIDES
        )
        summary = [
            f"{changed} of {len(rows)} completions changed",
            f"{before['characters']:.0f} to {after['characters']:.0f} characters",
            f"without violation {percent(before['clean'])} to {percent(after['clean'])}",
            f"evasive {percent(before['evasive'])} to {percent(after['evasive'])}",
        ]
        metrics = {f"{name}_before": value for name, value in before.items()}
        metrics |= {f"{name}_after": value for name, value in after.items()}
        if rows and "truth" in rows[0]:
            right = [sum(row["truth"][at] == 1 for row in rows) / len(rows) for at in (0, 1)]
            summary.append(f"right {percent(right[0])} to {percent(right[1])}")
            metrics |= {"right_before": right[0], "right_after": right[1]}
        counts = {"prompts": len(rows), "changed": changed, "cut_off_or_empty": len(rows) - len(usable)}
        stop = "" if usable else "no revision is whole: raise sampling.max_new_tokens"
        return stage_result("; ".join(summary), metrics, counts, stop)

    def revised(
        self,
        settings: PipelineSettings,
        principles: Sequence[Principle],
        sampler: ModelSampler,
        prompts: Sequence[Prompt],
        chunk: int,
    ) -> list[Row]:
        """A completion to each prompt, then critique and revision in turn; what was said, and what rules find in it."""
        from whet.training.assembly.runtime import sampling_from

        sampling, seed = sampling_from(settings.sampling), settings.seed
        critic = Sampling(self.critique_tokens, sampling.temperature, sampling.top_p)
        first = [sample for (sample,) in sampler.completions(prompts, 1, sampling, (seed, 0, chunk))]
        last: list[Sample] = first
        said: list[dict[str, list[str]]] = [{"principles": [], "critiques": [], "revisions": []} for _ in prompts]
        for time in range(1, self.critiques + 1):
            drawn = [draw_principle(principles, seed, "revise", time, prompt.id) for prompt in prompts]
            asked = [
                (prompt, sample.completion, principle)
                for prompt, sample, principle in zip(prompts, last, drawn, strict=True)
            ]
            critiques = sampler.texts(
                [critique_request(*question) for question in asked], 1, critic, (seed, time, chunk, 0)
            )
            again = [
                Prompt(question[0].id, revision_request(*question, critique))
                for question, (critique,) in zip(asked, critiques, strict=True)
            ]
            last = [sample for (sample,) in sampler.completions(again, 1, sampling, (seed, time, chunk, 1))]
            for notes, principle, (critique,), revision in zip(said, drawn, critiques, last, strict=True):
                notes["principles"].append(principle.name)
                notes["critiques"].append(critique)
                notes["revisions"].append(revision.completion)
        truth = sampler.scores(None, prompts, list(zip(first, last, strict=True))) if can_evaluate(settings) else None
        rows = []
        for at, (prompt, start, end, notes) in enumerate(zip(prompts, first, last, said, strict=True)):
            row = {**prompt_row(prompt), "completion": start.completion, "finished": not end.stop.is_limit, **notes}
            for side, sample in zip(SIDES, (start, end), strict=True):
                row[side] = violations(prompt, sample.completion, is_forbidden(self.forbidden, prompt))
                row[f"{side}_length"] = len(sample.completion)
            rows.append({**row, "truth": truth[at]} if truth else row)
        return rows


class ConductEntry(StageEntry):
    """Violations in completions to the held-out prompts, by rules that no model sees."""

    kind: ClassVar[str] = "conduct"
    gives: ClassVar[tuple[Output, ...]] = ("metrics",)
    uses: ClassVar[tuple[str, ...]] = ("seed", "model", "sampling", "data", "eval")

    model: str = Field("", description="the stage or model that is measured; empty: the pipeline's model")
    forbidden: str = FORBIDDEN

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        settings = composition.settings
        prompts = composition.rows(self, "eval.source", settings.eval.source)
        prompts = replace(prompts, count=len(self.asked(settings)))
        return {"model": composition.model(self, "model", self.model), "prompts": prompts}

    def asked(self, settings: PipelineSettings) -> list[Prompt]:
        """The held-out prompts."""
        from whet.training.assembly.prompts import load_prompts

        return load_prompts(eval_config(settings, ""), evaluation=True)[: settings.eval.prompts]

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"violations in completions of {inputs['model'].label} to held-out prompts, by rules that no model sees"

    def measures(self, composition: Composition) -> tuple[str, int]:
        return POLICY, sum(isinstance(entry, ConductEntry) for entry in composition.entries.values())

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        count = inputs["prompts"].count
        return StageCost(completions=count, sampled_tokens=count * settings.sampling.max_new_tokens)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.training.assembly.runtime import sampling_from

        prompts, sampling = self.asked(run.settings), sampling_from(run.settings.sampling)

        def rows_of(sampler: ModelSampler, number: int, chunk: Sequence[Prompt]) -> list[Row]:
            written = sampler.completions(chunk, 1, sampling, (run.settings.seed, 11, number))
            return [
                {
                    **completion_row(prompt, samples),
                    "violations": violations(prompt, samples[0].completion, is_forbidden(self.forbidden, prompt)),
                }
                for prompt, samples in zip(chunk, written, strict=True)
            ]

        config = eval_config(run.settings, run.model("model"))
        rows = sampled_rows(run.folder / CONDUCT, config, prompts, chunk_size(1), rows_of)
        metrics = conduct([row["violations"] for row in rows], [len(row["completions"][0]) for row in rows])
        shares = ", ".join(f"{name} {percent(share)}" for name, share in metrics.items() if name != "characters")
        return stage_result(
            f"{shares}; {metrics['characters']:.0f} characters per completion", metrics, eval_prompts=len(rows)
        )
