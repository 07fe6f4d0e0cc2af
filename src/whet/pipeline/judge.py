"""Who judges a pipeline's pairs: a server, another model, or one that is made of the policy itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from whet.config.config import SUPERVISED, EvaluationConfig
from whet.config.sections import Section
from whet.pipeline import Done, Stage, found, read_json_lines, written_in_chunks
from whet.pipeline.judging import (
    FIRST,
    SECOND,
    Contest,
    Label,
    Verdict,
    agreed,
    contests,
    judge_examples,
    judge_marks,
    normalised,
    short_question,
)
from whet.pipeline.parts import (
    COMPLETIONS,
    check_training,
    evaluation,
    model_of,
    run_told,
    stage_settings,
    trained,
    training,
    write_completions,
    write_rows,
)
from whet.pipeline.sections import TRAIN_KEYS, PipelineSettings
from whet.report.text import percent
from whet.types import Message, Prompt, Sampling, WhetError

EXAMPLES, LABELS = "examples.jsonl", "labels.jsonl"
MOST_HELD_OUT = 128  # contests that a made judge is measured on; a quarter where there are few
DRAWN = 4  # completions a prompt that a made judge's examples are found among
IDLE = (
    "compare",
    "opponents",
    "reference",
    "show_reference",
    "show_thinking",
    "longest_completion",
    "alone",
)  # of a reward
WORDS = {"first": 1.0, "second": 0.0, "tie": 0.5}
Ask = Callable[[Sequence[tuple[Prompt, str, str]]], list[Verdict]]  # which of two completions is better


class JudgeSection(Section):
    name: str = Field("", description="the model that judges; empty, and no base_url: made of the policy, on a task")
    question: Literal["short", "full"] = Field(
        "full", description="the rubric with fences around the completions, or only the completions, for a small model"
    )
    verdict: Literal["text", "logp"] = Field(
        "text", description="read from its answer, or soft: the log-probabilities of naming either; no server has them"
    )
    settings: dict[str, Any] = Field(
        {}, description="of the reward `judge`: base_url, model, key_variable, rubric, cache, max_calls, ..."
    )
    examples: int = Field(1024, ge=1, description="prompts that a made judge learns from")
    train: dict[str, Any] = Field({}, description=f"of a made judge: {TRAIN_KEYS}")


class WithJudge(PipelineSettings):
    """A pipeline with a judge."""

    judge: JudgeSection = JudgeSection()


def is_made(settings: WithJudge) -> bool:
    return not settings.judge.name and not settings.judge.settings.get("base_url")


def check_judge(settings: WithJudge) -> None:
    """Refuse a judge that could not be asked, before the first stage."""
    from whet.reward.judge import JudgeSettings

    judge = settings.judge
    try:
        told = JudgeSettings(**judge.settings)
    except TypeError as error:
        raise WhetError(f"judge.settings: {error}; `whet reward list` shows the settings of judge") from error
    for key in IDLE:
        if key in judge.settings:
            raise WhetError(f"judge.settings.{key} has no effect: here two whole completions are compared; drop it")
    if told.base_url and judge.name:
        raise WhetError("judge.name and judge.settings.base_url both name a judge; give one of them")
    if told.base_url and judge.verdict == "logp":
        raise WhetError("judge.verdict=logp needs a model in this process; a server is read as text")
    if is_made(settings):
        if not settings.data.parsed_source.is_task:
            raise WhetError(
                "judge.name is empty: only a task has examples to make a judge from; name a model or server"
            )
        check_training(SUPERVISED, judge_training(settings, EXAMPLES), "judge.train")


def judge_training(settings: WithJudge, examples: str) -> dict[str, Any]:
    own = {"data": {"source": examples}}
    return training(settings, settings.model.name, own, settings.judge.train, "judge.train")


def making_stages(settings: WithJudge) -> list[Stage]:
    """Examples of judging, a judge taught by them, and how good it is."""
    if not is_made(settings):
        return []
    same = stage_settings(settings)
    count = settings.judge.examples
    about = (
        f"{DRAWN} completions of the policy to each of {count} prompts, two of them compared by the task's own answers"
    )
    return [
        Stage("judge-examples", about, lambda folder, done: _examples(settings, folder), same),
        Stage(
            "judge-train", f"{SUPERVISED} on these examples", lambda folder, done: _taught(settings, folder, done), same
        ),
        Stage(
            "judge-marks",
            "the judge on pairs it has not seen, in both orders",
            lambda folder, done: _judge_marked(settings, folder, done),
            same,
        ),
    ]


def train_prompts(settings: PipelineSettings, first: int, count: int) -> list[Prompt]:
    """`count` prompts of the training split from number `first` on."""
    from whet.build.prompts import load_prompts

    config = evaluation(settings, settings.model.name)
    needed = first + count
    if config.data.parsed_source.is_generated and config.data.count < needed:
        config = config.model_copy(update={"data": config.data.model_copy(update={"count": needed})})
    chosen = load_prompts(config, held_out=False)
    if len(chosen) < needed:
        raise WhetError(f"{config.data.source} has {len(chosen)} prompts and {needed} are needed; lower prompts")
    return chosen[first:needed]


def _examples(settings: WithJudge, folder: Path) -> Mapping[str, Any]:
    chosen = train_prompts(settings, 0, settings.judge.examples)
    config = evaluation(settings, settings.model.name)
    rows = write_completions(folder, config, chosen, DRAWN, (settings.seed, 0), is_scored=True)
    fought, counts = contests(rows)
    held_out = min(MOST_HELD_OUT, len(fought) // 4)
    shown = fought[: len(fought) - held_out]
    decided = [contest for contest in shown if contest.truth not in (None, 0.5)]
    if not decided:
        raise WhetError(
            f"judge.examples={settings.judge.examples} gave {len(shown)} pairs of completions to learn from, and none with "
            "a winner; raise it"
        )
    taught = judge_examples(decided, {prompt.id: prompt for prompt in chosen})
    write_rows(folder / EXAMPLES, taught)
    counts |= {"without_winner": len(shown) - len(decided), "examples": len(taught), "held_out": held_out}
    return found(f"{len(taught)} examples in {EXAMPLES}, both orders of each pair with a winner", counts=counts)


def _taught(settings: WithJudge, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    examples = (done["judge-examples"].folder / EXAMPLES).resolve()
    trained(folder, SUPERVISED, judge_training(settings, str(examples)))
    return found(run_told(folder))


def _judge_marked(settings: WithJudge, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    before = done["judge-examples"]
    fought = contests(read_json_lines(before.folder / COMPLETIONS))[0]
    fought = fought[len(fought) - before.result["counts"]["held_out"] :]
    labels = write_labels(folder, settings, done, fought)
    marks = judge_marks(fought, labels)
    right, flips = percent(marks["judge_accuracy"]), percent(marks["flip_rate"])
    return found(f"right in {right} of those with a winner; of all {len(fought)} it flips {flips}", marks)


def write_labels(folder: Path, settings: WithJudge, done: Mapping[str, Done], fought: Sequence[Contest]) -> list[Label]:
    """Every contest judged in both orders, kept in labels.jsonl."""
    asked: list[Ask] = []

    def rows_of(number: int, chunk: Sequence[Contest]) -> list[dict[str, Any]]:
        if not asked:
            asked.append(_ask(settings, done))
        rows = [_question(contest) for contest in chunk]
        both = asked[0]([order for row in rows for order in (row, (row[0], row[2], row[1]))])
        return [{"forth": forth, "back": back} for forth, back in zip(both[::2], both[1::2], strict=True)]

    lines = read_json_lines(written_in_chunks(folder / LABELS, fought, 64, rows_of))
    return [agreed(line["forth"], line["back"]) for line in lines]


def _question(contest: Contest) -> tuple[Prompt, str, str]:
    said = contest.row["prompt"]
    is_text = isinstance(said, str)
    prompt = Prompt(contest.row["id"], () if is_text else tuple(said), said if is_text else None)
    return prompt, contest.one, contest.other


def _ask(settings: WithJudge, done: Mapping[str, Done]) -> Ask:
    from whet.reward.judge import Judge, JudgeSettings
    from whet.reward.judge.questions import comparison_question

    section = settings.judge
    judge = Judge(
        JudgeSettings(**{**({"attempts": 1, "max_new_tokens": 4} if is_made(settings) else {}), **section.settings})
    )
    is_short = is_made(settings) or section.question == "short"

    def asked(prompt: Prompt, first: str, second: str) -> tuple[Message, ...]:
        return (
            short_question(prompt, first, second)
            if is_short
            else comparison_question(prompt, first, second, judge.rubric)
        )

    if judge.needs_ask:
        name = model_of(done["judge-train"]) if is_made(settings) else section.name
        config = evaluation(settings, name)
        if section.verdict == "logp":
            return _soft_ask(config, asked)
        judge = judge.asking(_engine_ask(config, judge))
    return lambda rows: [
        None if said is None else WORDS[said] for said in judge.preferences([asked(*row) for row in rows])
    ]


def _engine_ask(config: EvaluationConfig, judge: Any) -> Any:
    from whet.build.runtime import load_runtime
    from whet.data.chat import prompt_tokens
    from whet.reward.judge import engine_ask

    machine = load_runtime(config)
    sampling = Sampling(max_new_tokens=judge.settings.max_new_tokens, temperature=judge.settings.temperature)

    def encode(messages: Sequence[Message]) -> tuple[int, ...]:
        return prompt_tokens(machine.loaded.tokenizer, Prompt("judge", tuple(messages)))

    return engine_ask(machine.engine, encode, sampling)


def _soft_ask(config: EvaluationConfig, asked: Callable[[Prompt, str, str], tuple[Message, ...]]) -> Ask:
    """How likely the judge is to name the first: normalised over naming either."""
    from whet.build.runtime import load_runtime
    from whet.data.families import completion_family
    from whet.train.completion_logp import families_logp

    machine = load_runtime(config)

    def verdicts(rows: Sequence[tuple[Prompt, str, str]]) -> list[Verdict]:
        families = [
            completion_family(machine.loaded.tokenizer, Prompt("judge", asked(*row)), (FIRST, SECOND)) for row in rows
        ]
        logp = families_logp(machine.policy, families, 16384, packed=True)
        return [normalised(float(first.sum()), float(second.sum())) for first, second in logp]

    return verdicts
