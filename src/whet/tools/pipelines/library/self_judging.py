"""Stages of self-improvement: a policy scores its own completions, and is watched for collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.record.text import count_of, percent
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_SAMPLES, MOST_TOKENS
from whet.settings.sections import Section, Table, Temperature
from whet.tools.pipelines.library.collapse import (
    CollapseSignals,
    collapse_signals,
    collapse_verdict,
    order_accuracy,
    warnings,
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
from whet.tools.pipelines.library.pair_rows import prompt_row
from whet.tools.pipelines.library.pairs import pairs_result
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
from whet.tools.pipelines.library.self_scores import (
    judge_example,
    mean_score,
    rubric_question,
    score_in,
    self_scored_pairs,
    short_score_question,
)
from whet.tools.pipelines.settings import (
    TRAIN_KEYS,
    PipelineSettings,
    answer_reward,
    can_evaluate,
    is_scored,
    sampling_config,
)
from whet.tools.pipelines.stages import StageCost, stage_result
from whet.types import Prompt, Sampling

JUDGED, JUDGE_EVAL = "judged.jsonl", "judge_eval.jsonl"


class TeachSection(Section):
    """The first training: to answer."""

    count: int = Field(1024, ge=0, le=MOST_ROWS, description="demonstrations of a task that keep it answering; 0: none")
    share_worked: float = Field(0.35, ge=0, le=1, description="of those, the share that shows its working")
    file: str = Field("", description="demonstrations of your own, with prompt and completion")
    train: Table = Field({}, description=f"of this first training: {TRAIN_KEYS}")


class SelfJudgeSection(Section):
    """How the policy judges itself."""

    question: Literal["rubric", "short"] = Field(
        "rubric", description="how the policy is asked for a score: by a rubric of 0 to 5, or as the task teaches it"
    )
    times: int = Field(3, ge=1, le=MOST_REPEATS, description="that each completion is judged; the mean counts")
    temperature: Temperature = Field(0.7, description="of judging")
    max_new_tokens: int = Field(200, ge=1, le=MOST_TOKENS, description="of a judgment: a reason, then the score")
    examples: int = Field(
        512, ge=0, le=MOST_ROWS, description="prompts of a task whose completions teach judging; 0: it is not taught"
    )
    file: str = Field("", description="demonstrations of judging of your own, whose completions end in 'Score: k'")
    eval_prompts: int = Field(
        64, ge=0, le=MOST_ROWS, description="held-out prompts of a task that the judge is evaluated on in every round"
    )


class SelfExamplesEntry(StageEntry):
    """Examples of answering and of judging: a task's, and files of the user's."""

    kind: ClassVar[str] = "self_judging_examples"
    gives: ClassVar[tuple[Output, ...]] = ("rows",)
    uses: ClassVar[tuple[str, ...]] = ("seed", "data")
    learns: ClassVar[bool] = True

    teach: TeachSection = Field(description="of answering")
    judge: SelfJudgeSection = Field(description="of judging")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        files = {"teach": self.teach.file, "judge": self.judge.file}
        return {key: composition.rows(self, f"{key}.file", file) for key, file in files.items() if file}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return "examples of answering and of judging"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.data import demonstrations_from, read_rows
        from whet.data.tasks import demonstrations
        from whet.data.tasks.reviewed import reviewed_completions

        def read(key: str) -> list[Row]:
            rows = demonstrations_from(read_rows(run.location(key))) if key in run.inputs else []
            return [{**prompt_row(row.prompt), "completion": row.completion} for row in rows]

        seed = run.settings.seed + EXAMPLE_SEED
        shown = task_rows(
            run.settings,
            self.teach.count,
            lambda task, count, level: demonstrations(task, count, seed, level, self.teach.share_worked),
        )
        reviewed = task_rows(
            run.settings,
            self.judge.examples,
            lambda task, count, level: reviewed_completions(task, "train", count, seed, level),
        )
        answering = [{**prompt_row(row.prompt), "completion": row.completion} for row in shown] + read("teach")
        judging = [
            judge_example(row.prompt, row.completion, row.quality, row.reason) for row in reviewed if row.is_plain
        ] + read("judge")
        rows = [{**row, "id": str(number)} for number, row in enumerate((*answering, *judging))]
        write_rows(run.folder / OUTPUT_FILES["rows"], rows)
        counts = {"answering": len(answering), "judging": len(judging)}
        return stage_result(f"{len(answering)} of answering and {len(judging)} of judging", counts=counts)


class SelfJudgingEntry(StageEntry):
    """What every stage has in which a policy scores completions."""

    uses: ClassVar[tuple[str, ...]] = ("seed", "model", "sampling", "data", "eval")

    model: str = Field("", description="the stage or model that judges; empty: the pipeline's model")
    judge: SelfJudgeSection = Field(SelfJudgeSection(), description="how it is asked")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        return {"model": composition.model(self, "model", self.model)}

    def judgments(
        self, sampler: ModelSampler, asked: Sequence[tuple[Prompt, str]], seed: tuple[int, ...]
    ) -> list[list[float | None]]:
        """Each completion judged `times` times: scores, None where none could be read."""
        question = rubric_question if self.judge.question == "rubric" else short_score_question
        sampling = Sampling(max_new_tokens=self.judge.max_new_tokens, temperature=self.judge.temperature)
        requests = [question(prompt, completion) for prompt, completion in asked]
        answers = sampler.texts(requests, self.judge.times, sampling, seed)
        return [[score_in(answer) for answer in row_answers] for row_answers in answers]


class SelfJudgeEvalEntry(SelfJudgingEntry):
    """A policy as a judge of completions of known quality, the same in every round."""

    kind: ClassVar[str] = "self_judge_eval"
    gives: ClassVar[tuple[Output, ...]] = ("metrics",)

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"evaluate {inputs['model'].label} as a judge, on completions of known quality"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        from whet.data.tasks.reviewed import reviewed_completions

        reviewed = task_rows(
            run.settings,
            self.judge.eval_prompts,
            lambda task, count, level: reviewed_completions(task, "eval", count, EXAMPLE_SEED, level),
        )
        reviewed = [row for row in reviewed if row.is_plain]
        if not reviewed:
            return stage_result("the judge is not evaluated: the data has no completions of known quality")

        def rows_of(sampler: ModelSampler, chunk: int, part: Sequence[Any]) -> list[Row]:
            asked = [(row.prompt, row.completion) for row in part]
            judgments = self.judgments(sampler, asked, (run.settings.seed, chunk))
            return [{"id": row.prompt.id, "judgments": scores} for row, scores in zip(part, judgments, strict=True)]

        config = sampling_config(run.settings, run.model("model"))
        lines = sampled_rows(run.folder / JUDGE_EVAL, config, reviewed, chunk_size(self.judge.times), rows_of)
        by_question: dict[str, tuple[list[float | None], list[float | None]]] = {}
        for line, row in zip(lines, reviewed, strict=True):
            own, truth = by_question.setdefault(row.prompt.question(), ([], []))
            own.append(mean_score(line["judgments"]))
            truth.append(row.quality)
        accuracy = order_accuracy(list(by_question.values()))
        unreadable = fmean(score is None for line in lines for score in line["judgments"])
        return stage_result(
            f"the judge orders {percent(accuracy)} of the reference pairs right; {percent(unreadable)} unreadable",
            {"judge_accuracy": accuracy, "judge_unreadable": unreadable},
        )


class SelfScoredPairsEntry(SelfJudgingEntry):
    """A policy writes completions and scores each itself: the best against the worst, mixed with an anchor's scores."""

    kind: ClassVar[str] = "self_scored_pairs"
    gives: ClassVar[tuple[Output, ...]] = ("pairs",)

    number: int = Field(1, ge=1, le=MOST_REPEATS, description="of the round")
    count: int = Field(1024, ge=1, le=MOST_ROWS, description="prompts of each round, never those of another")
    completions: int = Field(4, ge=2, le=MOST_SAMPLES, description="that the policy writes to each prompt and judges")
    anchor: RewardSection = Field(
        RewardSection(), description="a reward that is mixed into the policy's own scores; empty: none"
    )
    anchor_weight: float = Field(0.5, gt=0, le=1, description="of the anchor; the policy's own scores get the rest")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        prompts = StageInput(source=composition.settings.data.source, count=len(self.asked(composition.settings)))
        return {**super().find_inputs(composition), "prompts": prompts}

    def asked(self, settings: PipelineSettings) -> list[Prompt]:
        """The prompts of the round."""
        first = (self.number - 1) * self.count
        return training_prompts(sampling_config(settings, ""), first, self.count, "prompts_per_round or rounds")

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        return (answer_reward(settings), self.anchor)

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        mixed = f", mixed with {self.anchor_weight:g} of the anchor's" if is_scored(self.anchor) else ""
        times = "once" if self.judge.times == 1 else f"{self.judge.times} times"
        written = f"{self.completions} completions to each of {self.count} new prompts"
        return f"{inputs['model'].label} writes {written}, and scores each itself, {times}{mixed}"

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        written = self.count * self.completions
        tokens = written * (settings.sampling.max_new_tokens + self.judge.times * self.judge.max_new_tokens)
        return StageCost(completions=written * (1 + self.judge.times), sampled_tokens=tokens)

    def work(self, run: StageWork) -> Mapping[str, Any]:
        def rows_of(sampler: ModelSampler, chunk: int, prompts: Sequence[Prompt]) -> list[Row]:
            return self.judged(run.settings, sampler, prompts, (run.settings.seed, self.number, chunk))

        config, size = (
            sampling_config(run.settings, run.model("model")),
            chunk_size(self.completions * self.judge.times),
        )
        rows = sampled_rows(run.folder / JUDGED, config, self.asked(run.settings), size, rows_of)
        pairs, counts = self_scored_pairs(rows, self.anchor_weight if is_scored(self.anchor) else 0.0)
        signals = collapse_signals(self.number, rows, counts["ties"])
        summary = (
            f"{count_of(counts['ties'], 'prompt')} dropped where best and worst score the same; "
            f"mean own score {percent(signals.own_score)}"
        )
        if "truth_agreement" in signals.known():
            summary += f"; of right and wrong completions it orders {percent(signals.truth_agreement)} right"
        stop = "" if pairs else "; ".join(warnings(None, signals, signals)) or "every pair is a tie"
        return {**pairs_result(run, pairs, counts, summary, stop), "signals": signals.known()}

    def judged(
        self, settings: PipelineSettings, sampler: ModelSampler, prompts: Sequence[Prompt], seed: tuple[int, ...]
    ) -> list[Row]:
        """Rows of completions with the policy's own scores, the true ones and the anchor's."""
        from whet.training.assembly.runtime import sampling_from

        written = sampler.completions(prompts, self.completions, sampling_from(settings.sampling), (*seed, 0))
        nothing: list[list[float | None]] = [[] for _ in prompts]
        truth = sampler.scores(None, prompts, written) if can_evaluate(settings) else nothing
        anchor = sampler.scores(self.anchor, prompts, written) if is_scored(self.anchor) else nothing
        asked = [
            (prompt, sample.completion) for prompt, samples in zip(prompts, written, strict=True) for sample in samples
        ]
        judgments = iter(self.judgments(sampler, asked, (*seed, 1)))
        return [
            {
                **completion_row(prompt, samples),
                "judgments": [next(judgments) for _ in samples],
                "truth": true,
                "anchor": anchored,
            }
            for prompt, samples, true, anchored in zip(prompts, written, truth, anchor, strict=True)
        ]


class CollapseEntry(SelfJudgeEvalEntry):
    """The signals of the rounds so far, and whether they add up to a collapse."""

    kind: ClassVar[str] = "collapse"

    pairs: tuple[str, ...] = Field(max_length=MOST_REPEATS, description="stages of kind self_scored_pairs, by round")
    judges: tuple[str, ...] = Field(
        max_length=MOST_REPEATS, description="the policy as a judge: before the first round, then each earlier collapse"
    )
    evals: tuple[str, ...] = Field(
        (), max_length=MOST_REPEATS, description="evals before the first round and after each; empty: none"
    )
    stop: bool = Field(True, description="end the pipeline when a round is called a collapse")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        inputs = super().find_inputs(composition)
        for key, names in (("pairs", self.pairs), ("judges", self.judges), ("evals", self.evals)):
            inputs |= {name: composition.known_stage(self, key, name) for name in names}
        return inputs

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"check for collapse after round {len(self.pairs)}"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        judge = super().work(run)
        judged = [*(run.result(name) for name in self.judges), judge]
        measured: list[Mapping[str, Any] | None] = [run.result(name) for name in self.evals] or [None] * len(judged)
        before, *rounds = (
            _after_round(CollapseSignals(number, **signals), result, evaluated)
            for number, (signals, result, evaluated) in enumerate(
                zip([{}, *(run.result(name)["signals"] for name in self.pairs)], judged, measured, strict=True)
            )
        )
        raised = warnings(before, rounds[0], rounds[-1])
        verdict = collapse_verdict(before, rounds, raised, int(measured[0]["eval_prompts"]) if measured[0] else 0)
        return stage_result(
            verdict.summary,
            {**rounds[-1].known(), **judge["metrics"]},
            {"signals_past_threshold": len(raised)},
            verdict.summary if verdict.is_collapse and self.stop else "",
            warnings=raised,
        )


def _after_round(
    signals: CollapseSignals, judge: Mapping[str, Any], evaluated: Mapping[str, Any] | None
) -> CollapseSignals:
    """The signals of a round with what was measured after it."""
    accuracy = evaluated["metrics"].get("accuracy", math.nan) if evaluated else math.nan
    return replace(signals, judge_accuracy=judge["metrics"].get("judge_accuracy", math.nan), accuracy=accuracy)
