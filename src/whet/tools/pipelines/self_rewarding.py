"""Self-rewarding: the policy scores its own completions and learns from that, round by round; watched for collapse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.record.text import count_of, percent
from whet.reward.sections import RewardSection
from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_SAMPLES, MOST_TOKENS
from whet.settings.sections import Section, Table, Temperature
from whet.tools.pipelines.collapse import CollapseSignals, collapse_signals, collapse_verdict, order_accuracy, warnings
from whet.tools.pipelines.evaluation import POLICY, eval_stage, evaluation_config, has_eval
from whet.tools.pipelines.generation import (
    CHUNK,
    DEMONSTRATIONS,
    EXAMPLE_SEED,
    ModelSampler,
    completion_row,
    own_sampling,
    rows_of_kinds,
    sampled_rows,
    task_kinds,
    write_rows,
)
from whet.tools.pipelines.pairs import prompt_row
from whet.tools.pipelines.rounds import (
    RoundSettings,
    check_method,
    policy_after,
    round_prompts,
    train_stages,
    write_round_pairs,
)
from whet.tools.pipelines.self_scores import (
    judge_example,
    mean_score,
    rubric_question,
    score_in,
    self_scored_pairs,
    short_score_question,
)
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline
from whet.tools.pipelines.stages import FinishedStage, Stage, stage_result
from whet.tools.pipelines.training import (
    check_training,
    run_summary,
    stage_settings,
    train_run,
    trained_model,
    training_config,
)
from whet.training.config import SUPERVISED
from whet.types import Prompt, Sampling

JUDGED, JUDGE_EVAL = "judged.jsonl", "judge_eval.jsonl"


class TeachSection(Section):
    count: int = Field(1024, ge=0, le=MOST_ROWS, description="demonstrations of a task that keep it answering; 0: none")
    share_worked: float = Field(0.35, ge=0, le=1, description="of those, the share that shows its working")
    file: str = Field("", description="demonstrations of your own, with prompt and completion")
    train: Table = Field({}, description=f"of this first training: {TRAIN_KEYS}")


class SelfJudgeSection(Section):
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


class SelfRewardingSettings(RoundSettings):
    """The policy's own scores, and an anchor if wanted."""

    prompts_per_round: int = Field(1024, ge=1, le=MOST_ROWS, description="new ones in every round")
    completions: int = Field(4, ge=2, le=MOST_SAMPLES, description="that the policy writes to each prompt and judges")
    teach: TeachSection = Field(TeachSection(), description="the first training: to answer and to judge")
    judge: SelfJudgeSection = Field(SelfJudgeSection(), description="how the policy judges itself")
    anchor: RewardSection = Field(
        RewardSection(), description="a reward that is mixed into the policy's own scores; empty: none"
    )
    anchor_weight: float = Field(0.5, gt=0, le=1, description="of the anchor; the policy's own scores get the rest")
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
        idle = super().idle()
        if not _has_anchor(self):
            idle["anchor_weight"] = "has no effect without anchor.parts; name a reward there, or drop it"
        if not self.data.parsed_source.is_task:
            reason = "has no effect: only a task writes examples; give a file instead"
            idle |= dict.fromkeys(("teach.count", "teach.share_worked", "judge.examples", "judge.eval_prompts"), reason)
        return idle


def _has_anchor(settings: SelfRewardingSettings) -> bool:
    return bool(settings.anchor.parts or settings.anchor.template)


def self_rewarding_stages(settings: SelfRewardingSettings) -> list[Stage]:
    reference = check_method(settings)
    if not settings.data.parsed_source.is_task:  # too few prompts are refused before the first round
        round_prompts(evaluation_config(settings, settings.model.name), settings.rounds, settings.prompts_per_round)
    same = stage_settings(settings)
    stages = []
    if _is_taught(settings):
        check_training(SUPERVISED, _teaching_config(settings, "rows.jsonl"), "teach.train")
        stages = [
            Stage(
                "examples",
                "examples of answering and of judging",
                lambda folder, _: _write_examples(settings, folder),
                same,
            ),
            Stage(
                "teach",
                f"{SUPERVISED} on both together: the first policy that judges itself",
                lambda folder, done: _teach(settings, folder, done),
                same,
            ),
        ]
    if has_eval(settings):
        stages.append(eval_stage(settings, POLICY, 0, "teach" if _is_taught(settings) else None))
    about = "evaluate the first policy as a judge, on completions of known quality"
    stages.append(Stage("judge0", about, lambda folder, done: _evaluate_judge(settings, folder, done, 0), same))
    for number in range(1, settings.rounds + 1):
        stages += _round(settings, number, reference)
    return stages


def _is_taught(settings: SelfRewardingSettings) -> bool:
    from_task = settings.data.parsed_source.is_task and (settings.judge.examples or settings.teach.count)
    return bool(from_task or settings.teach.file or settings.judge.file)


def _teaching_config(settings: SelfRewardingSettings, rows: str) -> dict[str, Any]:
    return training_config(
        settings, settings.model.name, {"data": {"source": rows}}, settings.teach.train, "teach.train"
    )


def _write_examples(settings: SelfRewardingSettings, folder: Path) -> Mapping[str, Any]:
    from whet.data import demonstrations_from, read_rows
    from whet.data.tasks import demonstrations
    from whet.data.tasks.reviewed import ReviewedCompletion, reviewed_completions

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
    reviewed: list[ReviewedCompletion] = rows_of_kinds(
        kinds,
        settings.judge.examples if kinds else 0,
        lambda task, count, level: reviewed_completions(task, "train", count, seed, level),
    )
    judging = [
        judge_example(each.prompt, each.completion, each.quality, each.reason) for each in reviewed if each.is_plain
    ]
    judging += [{**prompt_row(row.prompt), "completion": row.completion} for row in files[1]]
    rows = [{**row, "id": str(number)} for number, row in enumerate((*answering, *judging))]
    write_rows(folder / DEMONSTRATIONS, rows)
    counts = {"answering": len(answering), "judging": len(judging)}
    return stage_result(
        f"{len(answering)} of answering and {len(judging)} of judging in {DEMONSTRATIONS}", counts=counts
    )


def _teach(settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
    train_run(folder, SUPERVISED, _teaching_config(settings, str((done["examples"].folder / DEMONSTRATIONS).resolve())))
    return stage_result(run_summary(folder))


def _model(settings: SelfRewardingSettings, done: Mapping[str, FinishedStage], number: int) -> str:
    """The policy after a round; 0: the first one."""
    if number:
        return trained_model(done[f"round{number}-train"])
    return trained_model(done["teach"]) if "teach" in done else settings.model.name


def _self_judgments(
    settings: SelfRewardingSettings, sampler: ModelSampler, asked: Sequence[tuple[Prompt, str]], seed: tuple[int, ...]
) -> list[list[float | None]]:
    """Each completion judged `times` times: scores, None where none could be read."""
    judge = settings.judge
    question = rubric_question if judge.question == "rubric" else short_score_question
    sampling = Sampling(max_new_tokens=judge.max_new_tokens, temperature=judge.temperature)
    answers = sampler.texts([question(prompt, completion) for prompt, completion in asked], judge.times, sampling, seed)
    return [[score_in(answer) for answer in each] for each in answers]


def _evaluate_judge(
    settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int
) -> Mapping[str, Any]:
    """The policy after a round as a judge of completions written by the task, the same in every round."""
    from whet.data.tasks.reviewed import ReviewedCompletion, reviewed_completions

    kinds = task_kinds(settings)
    rows: list[ReviewedCompletion] = rows_of_kinds(
        kinds,
        settings.judge.eval_prompts if kinds else 0,
        lambda task, count, level: reviewed_completions(task, "eval", count, EXAMPLE_SEED, level),
    )
    rows = [each for each in rows if each.is_plain]
    if not rows:
        return stage_result("the judge is not evaluated: the data has no completions of known quality")

    def rows_of(sampler: ModelSampler, chunk: int, part: Sequence[ReviewedCompletion]) -> list[dict[str, Any]]:
        asked = [(each.prompt, each.completion) for each in part]
        judgments = _self_judgments(settings, sampler, asked, (settings.seed, number, chunk))
        return [{"id": each.prompt.id, "judgments": given} for each, given in zip(part, judgments, strict=True)]

    config = evaluation_config(settings, _model(settings, done, number))
    lines = sampled_rows(folder / JUDGE_EVAL, config, rows, 5 * CHUNK, rows_of)
    by_question: dict[str, tuple[list[float | None], list[float | None]]] = {}
    for line, each in zip(lines, rows, strict=True):
        own, truth = by_question.setdefault(each.prompt.question(), ([], []))
        own.append(mean_score(line["judgments"]))
        truth.append(each.quality)
    accuracy = order_accuracy(list(by_question.values()))
    unreadable = fmean(score is None for line in lines for score in line["judgments"])
    return stage_result(
        f"the judge orders {percent(accuracy)} of the reference pairs right; {percent(unreadable)} unreadable",
        {"judge_accuracy": accuracy, "judge_unreadable": unreadable},
    )


def _round(settings: SelfRewardingSettings, number: int, reference: str) -> list[Stage]:
    same = stage_settings(settings)
    mixed = f", mixed with {settings.anchor_weight:g} of the anchor's" if _has_anchor(settings) else ""
    times = "once" if settings.judge.times == 1 else f"{settings.judge.times} times"
    written = f"{settings.completions} completions to each of {settings.prompts_per_round} new prompts"
    about = f"{policy_after(number - 1)} writes {written}, and scores each itself, {times}{mixed}"
    return [
        Stage(f"round{number}-pairs", about, lambda folder, done: _write_pairs(settings, folder, done, number), same),
        *train_stages(settings, number, reference, lambda done: _model(settings, done, number - 1)),
        Stage(
            f"round{number}-collapse",
            f"check for collapse after round {number}",
            lambda folder, done: _check_collapse(settings, folder, done, number),
            same,
        ),
    ]


def _write_pairs(
    settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int
) -> Mapping[str, Any]:
    config = evaluation_config(settings, _model(settings, done, number - 1))
    chosen = round_prompts(config, number, settings.prompts_per_round)

    def rows_of(sampler: ModelSampler, chunk: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        return _judged_rows(settings, sampler, prompts, (settings.seed, number, chunk))

    rows = sampled_rows(folder / JUDGED, config, chosen, CHUNK, rows_of)
    pairs, counts = self_scored_pairs(rows, settings.anchor_weight if _has_anchor(settings) else 0.0)
    signals = collapse_signals(number, rows, counts["ties"])
    summary = (
        f"{count_of(counts['ties'], 'prompt')} dropped where best and worst score the same; "
        f"mean own score {percent(signals.own_score)}"
    )
    if "truth_agreement" in signals.known():
        summary += f"; of right and wrong completions it orders {percent(signals.truth_agreement)} right"
    result = write_round_pairs(folder, pairs, counts, summary)
    if not pairs:
        result["stop_reason"] = "; ".join(warnings(None, signals, signals)) or "every pair is a tie"
    return {**result, "signals": signals.known()}


def _judged_rows(
    settings: SelfRewardingSettings, sampler: ModelSampler, prompts: Sequence[Prompt], seed: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Rows of completions with the policy's own scores, the true ones and the anchor's."""
    written = sampler.completions(prompts, settings.completions, own_sampling(settings), (*seed, 0))
    nothing: list[list[float | None]] = [[] for _ in prompts]
    truth = sampler.scores(None, prompts, written) if has_eval(settings) else nothing
    anchor = sampler.scores(settings.anchor, prompts, written) if _has_anchor(settings) else nothing
    flat = [(prompt, sample.completion) for prompt, samples in zip(prompts, written, strict=True) for sample in samples]
    judgments = iter(_self_judgments(settings, sampler, flat, (*seed, 1)))
    return [
        {
            **completion_row(prompt, samples),
            "judgments": [next(judgments) for _ in samples],
            "truth": true,
            "anchor": tied,
        }
        for prompt, samples, true, tied in zip(prompts, written, truth, anchor, strict=True)
    ]


def _check_collapse(
    settings: SelfRewardingSettings, folder: Path, done: Mapping[str, FinishedStage], number: int
) -> Mapping[str, Any]:
    """The signals of the rounds so far, and whether they add up to a collapse."""
    judge = _evaluate_judge(settings, folder, done, number)
    before = _after_round(CollapseSignals(0), done["judge0"].result, done.get("eval0"))
    rounds = [
        _after_round(
            CollapseSignals(at, **done[f"round{at}-pairs"].result["signals"]),
            judge if at == number else done[f"round{at}-collapse"].result,
            done.get(f"round{at}-eval"),
        )
        for at in range(1, number + 1)
    ]
    raised = warnings(before, rounds[0], rounds[-1])
    num_prompts = int(done["eval0"].result["eval_prompts"]) if "eval0" in done else 0
    verdict = collapse_verdict(before, rounds, raised, num_prompts)
    return stage_result(
        verdict.summary,
        {**rounds[-1].known(), **judge["metrics"]},
        {"signals_past_threshold": len(raised)},
        verdict.summary if verdict.is_collapse and settings.stop else "",
        warnings=raised,
    )


def _after_round(
    signals: CollapseSignals, judge: Mapping[str, Any], evaluated: FinishedStage | None
) -> CollapseSignals:
    """The signals of a round with what was measured after it."""
    accuracy = evaluated.result["metrics"].get("accuracy", math.nan) if evaluated else math.nan
    return replace(signals, judge_accuracy=judge["metrics"].get("judge_accuracy", math.nan), accuracy=accuracy)


SELF_REWARDING = Pipeline(
    "self_rewarding",
    "the policy scores its own completions and learns from that, with an anchor if wanted; watched for collapse",
    SelfRewardingSettings,
    self_rewarding_stages,
)
