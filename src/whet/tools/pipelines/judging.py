"""AI feedback: a judge compares two completions in both orders. It is a server, a model, or trained by the pipeline.

The first half is pure: what two verdicts come to, pairs made of them, how good a judge is. A verdict is the probability
that the completion shown first is the better one: 1, 0, 1/2 for a tie, anything between for a judge whose
log-probabilities are read, None where its answer could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from whet.record.text import count_of, percent
from whet.settings.bounds import MOST_ROWS
from whet.settings.sections import Section, Table
from whet.tools.pipelines.evaluation import evaluation_config
from whet.tools.pipelines.generation import CHUNK, COMPLETIONS, train_prompts, write_completions, write_rows
from whet.tools.pipelines.pairs import pair_row, row_prompt
from whet.tools.pipelines.settings import TRAIN_KEYS, PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, Stage, read_json_lines, stage_result, write_in_chunks
from whet.tools.pipelines.training import (
    check_training,
    run_summary,
    stage_settings,
    train_run,
    trained_model,
    training_config,
)
from whet.training.config import SUPERVISED, EvaluationConfig
from whet.types import Message, Prompt, Sampling, WhetError

FIRST, SECOND = "A", "B"
MICRO_BATCH_TOKENS = 16_384  # of the letters' log-probabilities: memory only
Preference = float | None  # of the completion shown first; None: unreadable


@dataclass(frozen=True)
class CandidatePair:
    """Two different completions to one prompt."""

    row: Mapping[str, Any]  # id and prompt, as pairs have them
    one: str
    other: str
    truth: float | None = None  # 1: `one` is better, 0: `other`, 1/2: neither; None: unknown


@dataclass(frozen=True)
class PairLabel:
    """What both orders came to."""

    preference: float | None  # of `one` over `other`; None: no verdict
    flipped: bool = False  # the judge preferred a position, not a completion


def short_question(prompt: Prompt, first: str, second: str) -> tuple[Message, ...]:
    """A comparison that fits a small model: no rubric, no fences."""
    return ({"role": "user", "content": f"{prompt.question()}\n{FIRST}:{first}\n{SECOND}:{second}\n?"},)


def candidate_pairs(rows: Sequence[Mapping[str, Any]]) -> tuple[list[CandidatePair], dict[str, int]]:
    """The first two completions to each prompt that differ, with the truth where they were scored."""
    candidates: list[CandidatePair] = []
    counts = {"prompts": len(rows), "same_completions": 0}
    for row in rows:
        completions = list(row["completions"])
        at = next((at for at, completion in enumerate(completions) if completion != completions[0]), None)
        if at is None or not completions[0].strip() or not completions[at].strip():
            counts["same_completions"] += 1
            continue
        scores = row.get("scores")
        truth = None if scores is None else preferred(scores[0], scores[at])
        candidates.append(
            CandidatePair({"id": row["id"], "prompt": row["prompt"]}, completions[0], completions[at], truth)
        )
    return candidates, counts


def preferred(one: float | None, other: float | None) -> float | None:
    """Which of two scores is higher, as a verdict."""
    if one is None or other is None:
        return None
    return 0.5 if one == other else float(one > other)


def normalised(first: float, second: float) -> float:
    """P(first) from the log-probabilities of naming the first or the second: e^a / (e^a + e^b)."""
    gap = second - first
    return 1 / (1 + math.exp(gap)) if gap < 700 else 0.0


def combine_orders(forth: Preference, back: Preference) -> PairLabel:
    """The mean over both orders; `back` had the completions exchanged. Orders that contradict each other tie.

    Lee 2023 (2309.00267) averages the two; here a contradiction is counted as a flip and teaches nothing.
    """
    if forth is None or back is None:
        return PairLabel(None)
    turned = 1 - back
    if (forth - 0.5) * (turned - 0.5) < 0:
        return PairLabel(0.5, flipped=True)
    return PairLabel((forth + turned) / 2)


def judged_pairs(
    candidates: Sequence[CandidatePair], labels: Sequence[PairLabel], least: float = 0.0, soft: bool = True
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Pairs of those with a winner, at least `least` from 1/2; and what was counted on the way. Only `soft` ones
    carry how sure the judge was; the loss then weights them by it."""
    pairs: list[dict[str, Any]] = []
    counts = dict.fromkeys(
        ("compared", "pairs", "unreadable", "flips", "ties", "unsure", "truth_known", "truth_met"), 0
    )
    counts["compared"] = len(candidates)
    for candidate, label in zip(candidates, labels, strict=True):
        if label.preference is None:
            counts["unreadable"] += 1
        elif label.preference == 0.5:
            counts["flips" if label.flipped else "ties"] += 1
        elif abs(label.preference - 0.5) < least:
            counts["unsure"] += 1
        else:
            first_wins = label.preference > 0.5
            sides = (candidate.one, candidate.other) if first_wins else (candidate.other, candidate.one)
            sure: dict[str, Any] = {"preference": max(label.preference, 1 - label.preference)} if soft else {}
            pairs.append(pair_row(candidate.row, *sides, **sure))
            if candidate.truth is not None and candidate.truth != 0.5:
                counts["truth_known"] += 1
                counts["truth_met"] += first_wins == (candidate.truth == 1)
    counts["pairs"] = len(pairs)
    return pairs, counts


def judge_metrics(candidates: Sequence[CandidatePair], labels: Sequence[PairLabel]) -> dict[str, float]:
    """A judge where the truth is known: `judge_accuracy` counts flips, ties and unreadable answers as wrong."""
    decided = [
        (candidate.truth, label)
        for candidate, label in zip(candidates, labels, strict=True)
        if candidate.truth not in (None, 0.5)
    ]
    met = [
        label.preference is not None and (label.preference - 0.5) * (float(truth or 0) - 0.5) > 0
        for truth, label in decided
    ]
    return {
        "judge_accuracy": sum(met) / len(met) if met else math.nan,
        "flip_rate": sum(label.flipped for label in labels) / max(1, len(labels)),
        "tie_rate": sum(label.preference == 0.5 and not label.flipped for label in labels) / max(1, len(labels)),
        "unreadable": sum(label.preference is None for label in labels) / max(1, len(labels)),
    }


def judge_examples(candidates: Sequence[CandidatePair], prompts: Mapping[str, Prompt]) -> list[dict[str, Any]]:
    """Demonstrations of judging: the letter of the better completion, each candidate in both orders."""
    rows = []
    for candidate in candidates:
        sides = {"straight": (candidate.one, candidate.other), "turned": (candidate.other, candidate.one)}
        for order, (first, second) in sides.items():
            messages = [dict(message) for message in short_question(prompts[candidate.row["id"]], first, second)]
            letter = FIRST if (candidate.truth == 1) == (order == "straight") else SECOND
            rows.append({"id": f"{candidate.row['id']}/{order}", "prompt": messages, "completion": letter})
    return rows


EXAMPLES, LABELS = "examples.jsonl", "labels.jsonl"
MOST_HELD_OUT = 128  # pairs that a trained judge is evaluated on; a quarter where there are few
DRAWN = 4  # completions per prompt that a trained judge's examples are picked from
IDLE = (
    "compare",
    "opponents",
    "reference",
    "show_reference",
    "show_thinking",
    "longest_completion",
    "alone",
)  # settings of the reward `judge` that do not apply to two whole completions
WORDS = {"first": 1.0, "second": 0.0, "tie": 0.5}
Ask = Callable[[Sequence[tuple[Prompt, str, str]]], list[Preference]]  # which of two completions is better


class JudgeSection(Section):
    name: str = Field(
        "", description="the model that judges; empty, and no base_url: the policy is trained to judge, on a task"
    )
    question: Literal["short", "full"] = Field(
        "full", description="the rubric with fences around the completions, or only the completions, for a small model"
    )
    verdict: Literal["text", "logp"] = Field(
        "text", description="read from its answer, or soft: the log-probabilities of naming either; no server has them"
    )
    settings: Table = Field(
        {}, description="of the reward `judge`: base_url, model, key_variable, rubric, cache, max_calls, ..."
    )
    examples: int = Field(1024, ge=1, le=MOST_ROWS, description="prompts that a trained judge learns from")
    train: Table = Field({}, description=f"of the judge's training: {TRAIN_KEYS}")


class JudgedPipelineSettings(PipelineSettings):
    """A pipeline with a judge."""

    judge: JudgeSection = JudgeSection()


def trains_judge(settings: JudgedPipelineSettings) -> bool:
    return not settings.judge.name and not settings.judge.settings.get("base_url")


def check_judge(settings: JudgedPipelineSettings) -> None:
    """Refuse a judge that could not be asked, before the first stage."""
    from whet.reward.judge import JudgeSettings

    judge = settings.judge
    try:
        given = JudgeSettings(**judge.settings)
    except TypeError as error:
        raise WhetError(f"judge.settings: {error}; `whet reward list` shows the settings of judge") from error
    for key in IDLE:
        if key in judge.settings:
            raise WhetError(f"judge.settings.{key} has no effect: here two whole completions are compared; drop it")
    if given.base_url and judge.name:
        raise WhetError("judge.name and judge.settings.base_url both name a judge; give one of them")
    if given.base_url and judge.verdict == "logp":
        raise WhetError("judge.verdict=logp needs a model in this process; a server is read as text")
    if trains_judge(settings):
        if not settings.data.parsed_source.is_task:
            raise WhetError("judge.name is empty: only a task has examples to train a judge on; name a model or server")
        check_training(SUPERVISED, judge_config(settings, EXAMPLES), "judge.train")


def judge_config(settings: JudgedPipelineSettings, examples: str) -> dict[str, Any]:
    own = {"data": {"source": examples}}
    return training_config(settings, settings.model.name, own, settings.judge.train, "judge.train")


def judge_training_stages(settings: JudgedPipelineSettings) -> list[Stage]:
    """Examples of judging, a judge trained on them, and its eval."""
    if not trains_judge(settings):
        return []
    same = stage_settings(settings)
    count = settings.judge.examples
    about = (
        f"{DRAWN} completions of the policy to each of {count} prompts, two of them compared by the task's own answers"
    )
    return [
        Stage("judge-examples", about, lambda folder, done: _write_examples(settings, folder), same),
        Stage(
            "judge-train",
            f"{SUPERVISED} on these examples",
            lambda folder, done: _train_judge(settings, folder, done),
            same,
        ),
        Stage(
            "judge-eval",
            "evaluate the judge on pairs it has not seen, in both orders",
            lambda folder, done: _evaluate_judge(settings, folder, done),
            same,
        ),
    ]


def _write_examples(settings: JudgedPipelineSettings, folder: Path) -> Mapping[str, Any]:
    config = evaluation_config(settings, settings.model.name)
    chosen = train_prompts(config, 0, settings.judge.examples, "judge.examples")
    rows = write_completions(folder, config, chosen, DRAWN, (settings.seed, 0), is_scored=True)
    candidates, counts = candidate_pairs(rows)
    held_out = min(MOST_HELD_OUT, len(candidates) // 4)
    shown = candidates[: len(candidates) - held_out]
    decided = [candidate for candidate in shown if candidate.truth not in (None, 0.5)]
    if not decided:
        raise WhetError(
            f"judge.examples={settings.judge.examples} gave {len(shown)} pairs of completions to learn from, and none "
            "with a winner; raise it"
        )
    taught = judge_examples(decided, {prompt.id: prompt for prompt in chosen})
    write_rows(folder / EXAMPLES, taught)
    counts |= {"without_winner": len(shown) - len(decided), "examples": len(taught), "held_out": held_out}
    summary = f"{count_of(len(taught), 'example')} in {EXAMPLES}: both orders of each pair with a winner"
    return stage_result(summary, counts=counts)


def _train_judge(
    settings: JudgedPipelineSettings, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    examples = (done["judge-examples"].folder / EXAMPLES).resolve()
    train_run(folder, SUPERVISED, judge_config(settings, str(examples)))
    return stage_result(run_summary(folder))


def _evaluate_judge(
    settings: JudgedPipelineSettings, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    before = done["judge-examples"]
    candidates = candidate_pairs(read_json_lines(before.folder / COMPLETIONS))[0]
    candidates = candidates[len(candidates) - before.result["counts"]["held_out"] :]
    labels = write_labels(folder, settings, done, candidates)
    metrics = judge_metrics(candidates, labels)
    if not candidates:
        return stage_result("not evaluated: too few pairs; raise judge.examples", metrics)
    right = f"right in {percent(metrics['judge_accuracy'])} of those with a winner"
    if math.isnan(metrics["judge_accuracy"]):
        right = "no pair has a winner to name"
    flips = f"it flips {percent(metrics['flip_rate'])} of {count_of(len(candidates), 'pair')}"
    return stage_result(f"{right}; {flips}", metrics)


def write_labels(
    folder: Path,
    settings: JudgedPipelineSettings,
    done: Mapping[str, FinishedStage],
    candidates: Sequence[CandidatePair],
) -> list[PairLabel]:
    """Every pair judged in both orders, kept in labels.jsonl."""
    judges: list[Ask] = []

    def rows_of(number: int, chunk: Sequence[CandidatePair]) -> list[dict[str, Any]]:
        if not judges:
            judges.append(_ask(settings, done))
        rows = [(row_prompt(candidate.row), candidate.one, candidate.other) for candidate in chunk]
        both = judges[0]([order for row in rows for order in (row, (row[0], row[2], row[1]))])
        return [{"forth": forth, "back": back} for forth, back in zip(both[::2], both[1::2], strict=True)]

    lines = read_json_lines(write_in_chunks(folder / LABELS, candidates, CHUNK, rows_of))
    return [combine_orders(line["forth"], line["back"]) for line in lines]


def _ask(settings: JudgedPipelineSettings, done: Mapping[str, FinishedStage]) -> Ask:
    from whet.reward.judge import Judge, JudgeSettings
    from whet.reward.judge.questions import JudgeQuestion, comparison_question

    section = settings.judge
    judge = Judge(
        JudgeSettings(
            **{**({"attempts": 1, "max_new_tokens": 4} if trains_judge(settings) else {}), **section.settings}
        )
    )
    is_short = trains_judge(settings) or section.question == "short"

    def question(prompt: Prompt, first: str, second: str) -> JudgeQuestion:
        return (
            JudgeQuestion(short_question(prompt, first, second))
            if is_short
            else comparison_question(prompt, first, second, judge.rubric)
        )

    if judge.needs_ask:
        name = trained_model(done["judge-train"]) if trains_judge(settings) else section.name
        config = evaluation_config(settings, name)
        if section.verdict == "logp":
            return _soft_ask(config, lambda *row: question(*row).messages)
        judge = judge.asking(_engine_ask(config, judge))
    return lambda rows: [
        None if answer is None else WORDS[answer] for answer in judge.preferences([question(*row) for row in rows])
    ]


def _engine_ask(config: EvaluationConfig, judge: Any) -> Any:
    from whet.data.chat import prompt_tokens
    from whet.reward.judge import engine_ask
    from whet.training.assembly.runtime import load_runtime

    runtime = load_runtime(config)
    sampling = Sampling(max_new_tokens=judge.settings.max_new_tokens, temperature=judge.settings.temperature)

    def encode(messages: Sequence[Message]) -> tuple[int, ...]:
        return prompt_tokens(runtime.loaded.tokenizer, Prompt("judge", tuple(messages)))

    return engine_ask(runtime.engine, encode, sampling)


def _soft_ask(config: EvaluationConfig, request: Callable[[Prompt, str, str], tuple[Message, ...]]) -> Ask:
    from whet.training.assembly.runtime import load_runtime

    runtime = load_runtime(config)
    return lambda rows: list(letter_preferences(runtime, [request(*row) for row in rows]))


def letter_preferences(runtime: Any, conversations: Sequence[Sequence[Message]]) -> list[float]:
    """The probability that a model names the first completion, normalised over naming either."""
    from whet.data.families import completion_family
    from whet.training.completion_logp import families_logp

    families = [
        completion_family(runtime.loaded.tokenizer, Prompt("judge", tuple(messages)), (FIRST, SECOND))
        for messages in conversations
    ]
    logp = families_logp(runtime.policy, families, MICRO_BATCH_TOKENS, packed=True)
    return [normalised(float(first.sum()), float(second.sum())) for first, second in logp]
