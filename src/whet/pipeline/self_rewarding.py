"""Rounds in which the policy marks its own completions, learns from the marks, and is watched for collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.config.config import SUPERVISED
from whet.config.sections import RewardSection, Section
from whet.pipeline import FinishedStage, Pipeline, Stage, found, read_json_lines, write_in_chunks
from whet.pipeline.generation import EXAMPLE_SEED, ModelSampler, own_sampling, rows_of_kinds, task_kinds
from whet.pipeline.self_scores import (
    judge_example,
    mean_score,
    self_scored_pairs,
    rubric_question,
    score_in,
    short_score_question,
)
from whet.pipeline.pairs import prompt_row
from whet.pipeline.training import (
    CHUNK,
    PAIRS,
    ROWS,
    check_training,
    evaluation,
    has_eval,
    eval_stage,
    trained_model,
    run_summary,
    stage_settings,
    train_run,
    training_config,
    write_rows,
)
from whet.pipeline.rounds import POLICY, RoundSettings, checked_method, pair_config, write_round_pairs, round_prompts, steps_for
from whet.pipeline.settings import TRAIN_KEYS
from whet.pipeline.collapse import CollapseSignals, order_accuracy, collapse_verdict, collapse_signals, warnings
from whet.report.text import percent
from whet.types import Prompt, Sampling

RLAIF, EXAM = "judged.jsonl", "exam.jsonl"


class TeachSection(Section):
    count: int = Field(1024, ge=0, description="demonstrations of a task that keep it answering; 0: none")
    share_worked: float = Field(0.35, ge=0, le=1, description="of those, the share that shows its working")
    file: str = Field("", description="demonstrations of your own, with prompt and completion")
    train: dict[str, Any] = Field({}, description=f"of this first training: {TRAIN_KEYS}")


class SelfJudgeSection(Section):
    question: Literal["rubric", "short"] = Field(
        "rubric", description="how the policy is asked for a mark: by a rubric of 0 to 5, or as the task teaches it"
    )
    times: int = Field(3, ge=1, description="that each completion is judged; the mean counts")
    temperature: float = Field(0.7, ge=0, description="of judging")
    max_new_tokens: int = Field(200, ge=1, description="of a judgement: a reason, then the mark")
    examples: int = Field(
        512, ge=0, description="questions of a task whose completions teach judging; 0: it is not taught"
    )
    file: str = Field("", description="demonstrations of judging of your own, whose completions end in 'Score: k'")
    exam: int = Field(64, ge=0, description="held-out questions of a task that the judge is examined on in every round")


class SelfRewardingSettings(RoundSettings):
    """The policy's own marks, and an anchor if wanted."""

    prompts_per_round: int = Field(1024, ge=1, description="new ones in every round")
    completions: int = Field(4, ge=2, description="that the policy writes to each prompt and judges")
    teach: TeachSection = Field(TeachSection(), description="the first training: to answer and to judge")
    judge: SelfJudgeSection = Field(SelfJudgeSection(), description="how the policy judges itself")
    anchor: RewardSection = Field(
        RewardSection(), description="a reward that is mixed into the policy's own marks; empty: none"
    )
    anchor_weight: float = Field(0.5, gt=0, le=1, description="of the anchor; the policy's own marks get the rest")
    stop: bool = Field(True, description="end the pipeline when a round is called a collapse")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts_per_round": 128,
        "completions": 8,
        "sampling": {"max_new_tokens": 64},
        "teach": {"train": {"steps": 200, "optimizer": {"learning_rate": 2e-3}, "batch": {"rows_per_step": 64}}},
        "judge": {"question": "short", "max_new_tokens": 60},
        "train": {"batch": {"rows_per_step": 32}},
    }

    def idle(self) -> dict[str, str]:
        found = super().idle()
        if not _has_anchor(self):
            found["anchor_weight"] = "has no effect without anchor.parts; name a reward there, or drop it"
        if not self.data.parsed_source.is_task:
            reason = "has no effect: only a task writes examples; give a file instead"
            found |= dict.fromkeys(("teach.count", "teach.share_worked", "judge.examples", "judge.exam"), reason)
        return found


def _has_anchor(settings: SelfRewardingSettings) -> bool:
    return bool(settings.anchor.parts or settings.anchor.template)


def self_rewarding_stages(settings: SelfRewardingSettings) -> list[Stage]:
    reference = checked_method(settings)
    if not settings.data.parsed_source.is_task:  # too few prompts are told before the first round
        round_prompts(evaluation(settings, settings.model.name), settings.rounds, settings.prompts_per_round)
    same = stage_settings(settings)
    stages = []
    if _is_taught(settings):
        check_training(SUPERVISED, _teaching_config(settings, "rows.jsonl"), "teach.train")
        stages = [
            Stage(
                "examples", "examples of answering and of judging", lambda folder, _: _examples(settings, folder), same
            ),
            Stage(
                "teach",
                f"{SUPERVISED} on both together: the first policy that judges itself",
                lambda folder, done: _taught(settings, folder, done),
                same,
            ),
        ]
    if has_eval(settings):
        stages.append(eval_stage(settings, POLICY, 0, "teach" if _is_taught(settings) else None))
    about = "the first policy as a judge, on completions with a known truth"
    stages.append(Stage("judge0", about, lambda folder, done: _examined(settings, folder, done, 0), same))
    for number in range(1, settings.rounds + 1):
        stages += _round(settings, number, reference)
    return stages


def _is_taught(settings: SelfRewardingSettings) -> bool:
    from_task = settings.data.parsed_source.is_task and (settings.judge.examples or settings.teach.count)
    return bool(from_task or settings.teach.file or settings.judge.file)


def _teaching_config(settings: SelfRewardingSettings, rows: str) -> dict[str, Any]:
    return training_config(settings, settings.model.name, {"data": {"source": rows}}, settings.teach.train, "teach.train")


def _examples(settings: SelfRewardingSettings, folder: Path) -> Mapping[str, Any]:
    from whet.data import demonstrations_from, read_rows
    from whet.data.tasks import demonstrations
    from whet.data.tasks.reviewed import Reviewed, reviewed_completions

    kinds, seed = task_kinds(settings), settings.seed + EXAMPLE_SEED
    shown = rows_of_kinds(
        kinds,
        settings.teach.count if kinds else 0,
        lambda task, count, level: demonstrations(task, count, seed, level, settings.teach.share_worked),
    )
    files = [
        demonstrations_from(read_rows(file)) if file else [] for file in (settings.teach.file, settings.judge.file)
    ]
    answering = [{**prompt_row(row.prompt), "completion": row.completion} for row in (*shown, *files[0])]
    reviewed: list[Reviewed] = rows_of_kinds(
        kinds,
        settings.judge.examples if kinds else 0,
        lambda task, count, level: reviewed_completions(task, "train", count, seed, level),
    )
    judging = [
        judge_example(each.prompt, each.completion, each.quality, each.reason) for each in reviewed if each.is_plain
    ]
    judging += [{**prompt_row(row.prompt), "completion": row.completion} for row in files[1]]
    rows = [{**row, "id": str(number)} for number, row in enumerate((*answering, *judging))]
    write_rows(folder / ROWS, rows)
    counts = {"answering": len(answering), "judging": len(judging)}
    return found(f"{len(answering)} of answering and {len(judging)} of judging in {ROWS}", counts=counts)


def _taught(settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    train_run(folder, SUPERVISED, _teaching_config(settings, str((done["examples"].folder / ROWS).resolve())))
    return found(run_summary(folder))


def _model(settings: SelfRewardingSettings, done: Mapping[str, FinishedStage], number: int) -> str:
    """The policy after a round; 0: the first one."""
    if number:
        return trained_model(done[f"round{number}-train"])
    return trained_model(done["teach"]) if "teach" in done else settings.model.name


def _self_judgments(
    settings: SelfRewardingSettings, sampler: ModelSampler, asked: Sequence[tuple[Prompt, str]], seed: tuple[int, ...]
) -> list[list[float | None]]:
    """Each completion judged `times` times: marks, None where none could be read."""
    judge = settings.judge
    question = rubric_question if judge.question == "rubric" else short_score_question
    sampling = Sampling(max_new_tokens=judge.max_new_tokens, temperature=judge.temperature)
    answers = sampler.texts([question(prompt, completion) for prompt, completion in asked], judge.times, sampling, seed)
    return [[score_in(answer) for answer in each] for each in answers]


def _examined(
    settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int
) -> Mapping[str, Any]:
    """The policy after a round as a judge of the same completions as ever, written by the task."""
    from whet.data.tasks.reviewed import Reviewed, reviewed_completions

    kinds = task_kinds(settings)
    rows: list[Reviewed] = rows_of_kinds(
        kinds,
        settings.judge.exam if kinds else 0,
        lambda task, count, level: reviewed_completions(task, "eval", count, EXAMPLE_SEED, level),
    )
    rows = [each for each in rows if each.is_plain]
    if not rows:
        return found("no exam: the data tells no truth about ready-made completions")
    sampler: list[ModelSampler] = []

    def rows_of(chunk: int, part: Sequence[Reviewed]) -> list[dict[str, Any]]:
        if not sampler:
            sampler.append(ModelSampler(settings, _model(settings, done, number)))
        seed = (settings.seed, number, chunk)
        judged = _self_judgments(settings, sampler[0], [(each.prompt, each.completion) for each in part], seed)
        return [{"id": each.prompt.id, "judgments": marks} for each, marks in zip(part, judged, strict=True)]

    lines = read_json_lines(write_in_chunks(folder / EXAM, rows, 5 * CHUNK, rows_of))
    by_question: dict[str, list[tuple[float | None, float]]] = {}
    for line, each in zip(lines, rows, strict=True):
        by_question.setdefault(each.prompt.question(), []).append((mean_score(line["judgments"]), each.quality))
    right = order_accuracy([tuple(zip(*pairs, strict=True)) for pairs in by_question.values()])  # type: ignore[misc]
    silent = [mark is None for line in lines for mark in line["judgments"]]
    said = (
        f"the judge orders {percent(right)} of the exam's pairs right; {percent(sum(silent) / len(silent))} unreadable"
    )
    return found(said, {"judge_accuracy": right, "judge_unreadable": sum(silent) / len(silent)})


def _round(settings: SelfRewardingSettings, number: int, reference: str) -> list[Stage]:
    same = stage_settings(settings)
    mixed = f", {settings.anchor_weight:g} anchor" if _has_anchor(settings) else ""
    asked = f"{settings.completions} completions to each of {settings.prompts_per_round} new prompts"
    stages = [
        Stage(
            f"round{number}-pairs",
            f"the policy of round {number - 1} writes {asked}, and judges each {settings.judge.times} times{mixed}",
            lambda folder, done: _paired(settings, folder, done, number),
            same,
        ),
        Stage(
            f"round{number}-train",
            f"{settings.method} on these pairs; begins with the policy of round {number - 1}, reference: "
            f"{reference.format(number - 1)}",
            lambda folder, done: _learnt(settings, folder, done, number),
            same,
        ),
    ]
    if has_eval(settings):
        stages.append(eval_stage(settings, POLICY, number, f"round{number}-train", f"round{number}-marks"))
    about = f"signs of collapse after round {number}"
    signs = Stage(f"round{number}-signs", about, lambda folder, done: _watched(settings, folder, done, number), same)
    return [*stages, signs]


def _paired(settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int) -> Mapping[str, Any]:
    chosen = round_prompts(evaluation(settings, settings.model.name), number, settings.prompts_per_round)
    sampler: list[ModelSampler] = []

    def rows_of(chunk: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        if not sampler:
            sampler.append(ModelSampler(settings, _model(settings, done, number - 1)))
        return _judged(settings, sampler[0], prompts, (settings.seed, number, chunk))

    rows = read_json_lines(write_in_chunks(folder / RLAIF, chosen, CHUNK, rows_of))
    weight = settings.anchor_weight if _has_anchor(settings) else 0.0
    pairs, counts = self_scored_pairs(rows, weight)
    signs = collapse_signals(number, rows, counts["ties"])
    said = f"dropped where best and worst are marked the same: {counts['ties']}; mean own mark {percent(signs.mark)}"
    if "meets_truth" in signs.known():
        said += f"; of right and wrong completions it orders {percent(signs.meets_truth)} right"
    result = write_round_pairs(folder, pairs, counts, said)
    if not pairs:
        result["over"] = "; ".join(warnings(None, signs, signs)) or "every pair is a tie"
    return {**result, "signs": signs.known()}


def _judged(
    settings: SelfRewardingSettings, sampler: ModelSampler, prompts: Sequence[Prompt], seed: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Rows of completions with the policy's own marks, the truth and the anchor's."""
    written = sampler.completions(prompts, settings.completions, own_sampling(settings), (*seed, 0))
    nothing: list[list[float | None]] = [[] for _ in prompts]
    truth = sampler.scores(None)(prompts, written) if has_eval(settings) else nothing
    anchor = sampler.scores(settings.anchor)(prompts, written) if _has_anchor(settings) else nothing
    flat = [(prompt, sample.completion) for prompt, samples in zip(prompts, written, strict=True) for sample in samples]
    marks = iter(_self_judgments(settings, sampler, flat, (*seed, 1)))
    return [
        {
            **prompt_row(prompt),
            "completions": [sample.completion for sample in samples],
            "finished": [sample.stop != "length" for sample in samples],
            "judgments": [next(marks) for _ in samples],
            "truth": true,
            "anchor": tied,
        }
        for prompt, samples, true, tied in zip(prompts, written, truth, anchor, strict=True)
    ]


def _learnt(settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int) -> Mapping[str, Any]:
    pairs, model = done[f"round{number}-pairs"], _model(settings, done, number - 1)
    file = str((pairs.folder / PAIRS).resolve())
    config = check_training(settings.method, pair_config(settings, model, file, 1))
    steps = steps_for(pairs.result["counts"]["pairs"], settings.epochs, config.batch.rows_per_step)
    train_run(folder, settings.method, pair_config(settings, model, file, steps))
    return found(run_summary(folder), steps=steps)


def _watched(settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int) -> Mapping[str, Any]:
    """The signs of the rounds so far, and whether they add up to a collapse."""
    exam = _examined(settings, folder, done, number)
    before = _after(CollapseSignals(0), done["judge0"].result, done.get("marks0"))
    trainer = [
        _after(
            CollapseSignals(at, **done[f"round{at}-pairs"].result["signs"]),
            exam if at == number else done[f"round{at}-signs"].result,
            done.get(f"round{at}-marks"),
        )
        for at in range(1, number + 1)
    ]
    passed = warnings(before, trainer[0], trainer[-1])
    asked = int(done["marks0"].result["asked"]) if "marks0" in done else 0
    judged = collapse_verdict(before, trainer, passed, asked)
    over = judged.said if judged.is_collapse and settings.stop else ""
    marks = {**trainer[-1].known(), **exam["marks"]}
    return found(judged.said, marks, {"signs_past_threshold": len(passed)}, over, warnings=passed)


def _after(signs: CollapseSignals, exam: Mapping[str, Any], marked: FinishedStage | None) -> CollapseSignals:
    judge = exam["marks"].get("judge_accuracy", float("nan"))
    accuracy = marked.result["marks"].get("accuracy", float("nan")) if marked else float("nan")
    return replace(signs, judge=judge, accuracy=accuracy)


SELF_REWARDING = Pipeline(
    "self_rewarding",
    "the policy marks its own completions and learns from the marks, with an anchor if wanted; watched for collapse",
    SelfRewardingSettings,
    self_rewarding_stages,
)
