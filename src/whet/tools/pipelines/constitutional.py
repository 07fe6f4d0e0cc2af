"""Principles instead of labels: the policy criticises and revises its completions, learns the revisions, and is then
trained on a model's preferences under the same principles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import tomli_w
from pydantic import Field

from whet.record.text import count_of, percent
from whet.settings.bounds import MOST_REPEATS, MOST_ROWS, MOST_STEPS, MOST_TOKENS
from whet.settings.sections import Section, Table
from whet.tools.pipelines.constitution import (
    GENERAL,
    TASK_PRINCIPLES,
    Principle,
    clamped,
    conduct,
    constitution_rows,
    critique_request,
    draw_principle,
    preference_request,
    read_constitution,
    revision_request,
    violations,
)
from whet.tools.pipelines.evaluation import POLICY, eval_stage, evaluation_config, has_eval
from whet.tools.pipelines.generation import (
    CHUNK,
    COMPLETIONS,
    DEMONSTRATIONS,
    EXAMPLE_SEED,
    ModelSampler,
    own_sampling,
    rows_of_kinds,
    sampled_rows,
    task_kinds,
    train_prompts,
    write_completions,
    write_rows,
)
from whet.tools.pipelines.judging import (
    FIRST,
    LABELS,
    SECOND,
    CandidatePair,
    PairLabel,
    candidate_pairs,
    combine_orders,
    judged_pairs,
    letter_preferences,
)
from whet.tools.pipelines.pairs import prompt_row, row_prompt
from whet.tools.pipelines.rlaif import (
    REWARD_MODEL,
    RLAIFSettings,
    check_policy,
    method_of,
    train_policy,
    train_reward_model,
    write_pairs,
)
from whet.tools.pipelines.settings import TRAIN_KEYS, Pipeline, PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, Stage, read_json_lines, stage_result, write_atomically
from whet.tools.pipelines.training import (
    check_training,
    run_summary,
    stage_settings,
    steps_for,
    train_run,
    trained_model,
    training_config,
)
from whet.training.config import SUPERVISED
from whet.types import Demonstration, Message, Prompt, Sample, Sampling, WhetError

WHICH: Message = {"role": "user", "content": f"So which one? Answer with {FIRST} or {SECOND}."}
REVISIONS, CONSTITUTION, CONDUCT = "revisions.jsonl", "constitution.toml", "conduct.jsonl"
NOTHING_WRONG = "all right"


class FeedbackSection(Section):
    name: str = Field("", description="the model that compares; empty: the one that wrote the critiques")
    reason: bool = Field(False, description="it writes its reasons first; then labels are held between 0.4 and 0.6")
    reason_tokens: int = Field(128, ge=1, le=MOST_TOKENS, description="of those reasons")
    min_margin: float = Field(0.0, ge=0, lt=0.5, description="how far from 1/2 a preference must be, or it is left out")
    soft_labels: bool = Field(True, description="a pair counts as far as the feedback is sure of it")


class ConstitutionalSettings(PipelineSettings):
    """A constitution and what is done with it."""

    constitution: str = Field("", description="TOML file of principles; empty: the built-in one, or the task's own")
    prompts: int = Field(1024, ge=1, le=MOST_ROWS, description="whose completions are criticised and revised")
    critiques: int = Field(4, ge=1, le=MOST_REPEATS, description="times that a completion is criticised and revised")
    critique_tokens: int = Field(128, ge=1, le=MOST_TOKENS, description="of a critique")
    helpful: str = Field("", description="a file of demonstrations that are learnt together with the revisions")
    forbidden: str = Field("", description="COLUMN=VALUE of prompts that are to be refused; empty: none is")
    examples: int = Field(
        512, ge=1, le=MOST_ROWS, description="prompts of a task that teach criticising, revising and comparing"
    )
    teach: Table = Field({}, description=f"of that first training, on a task: {TRAIN_KEYS}")
    revise_epochs: float = Field(2.0, ge=1e-6, le=1000, description="passes over the revisions")
    revise: Table = Field({}, description=f"of the training on revisions: {TRAIN_KEYS}")
    preference_prompts: int = Field(1024, ge=8, le=MOST_ROWS, description="new ones, whose completions are compared")
    feedback: FeedbackSection = Field(FeedbackSection(), description="who compares, and how")
    learn: Literal["pairs", "reward_model"] = Field(
        "reward_model", description="train a preference model and then against it, or the policy on the pairs"
    )
    method: str = Field("", description="of the last training; empty: as in `rlaif`")
    steps: int = Field(100, ge=1, le=MOST_STEPS, description="of the training against the preference model")
    epochs: float = Field(2.0, ge=1e-6, le=1000, description="passes over the compared pairs")
    reward_model: Table = Field({}, description=f"of the preference model: {TRAIN_KEYS}")
    train: Table = Field({}, description=f"of the last training: {TRAIN_KEYS}")

    small_run: ClassVar[Mapping[str, Any]] = {
        "prompts": 256,
        "critiques": 1,
        "critique_tokens": 24,
        "preference_prompts": 256,
        "steps": 20,
        "sampling": {"max_new_tokens": 64},
        "teach": {"steps": 200, "optimizer": {"learning_rate": 2e-3}, "batch": {"rows_per_step": 64}},
        "revise": {"batch": {"rows_per_step": 32}},
        "reward_model": {"batch": {"rows_per_step": 32}},
        "learn": "pairs",
    }

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.learn == "pairs":
            idle |= dict.fromkeys(
                ("steps", "reward_model"), "has no effect: learn=pairs trains no preference model; drop it"
            )
        if not self.data.parsed_source.is_task:
            idle |= dict.fromkeys(("examples", "teach"), "has no effect: only a task writes examples; drop it")
        if not self.feedback.reason:
            idle["feedback.reason_tokens"] = "has no effect without feedback.reason; drop it"
        return idle


def constitutional_stages(settings: ConstitutionalSettings) -> list[Stage]:
    principles = _principles(settings)
    check_policy(_rlaif_settings(settings, settings.model.name))
    check_training(SUPERVISED, _revising_config(settings, settings.model.name, "rows.jsonl", 1), "revise")
    if settings.forbidden and "=" not in settings.forbidden:
        raise WhetError(f"forbidden is {settings.forbidden!r}; give COLUMN=VALUE, such as label=unsafe")
    same = stage_settings(settings)
    is_task = settings.data.parsed_source.is_task
    if not is_task:
        _preference_prompts(settings)
    _helpful(settings)
    stages = _teaching_stages(settings) if is_task else []
    stages += _eval_stages(settings, 0, "teach" if is_task else None)
    times = "once" if settings.critiques == 1 else f"{settings.critiques} times"
    about = (
        f"completions to {count_of(settings.prompts, 'prompt')}, criticised and revised {times} under "
        f"{count_of(len(principles), 'principle')}"
    )
    stages.append(
        Stage("revisions", about, lambda folder, done: _write_revisions(settings, principles, folder, done), same)
    )
    about = f"{SUPERVISED} on the revisions" + (f" and {settings.helpful}" if settings.helpful else "")
    stages.append(Stage("revise", about, lambda folder, done: _train_on_revisions(settings, folder, done), same))
    stages += _eval_stages(settings, 1, "revise")
    about = f"two completions of that policy to each of {settings.preference_prompts} new prompts"
    stages.append(Stage("completions", about, lambda folder, done: _write_candidates(settings, folder, done), same))
    who = settings.feedback.name or "the model that wrote the critiques"
    about = f"{who} compares them under a principle, in both orders"
    stages.append(Stage("pairs", about, lambda folder, done: _compare(settings, principles, folder, done), same))
    if settings.learn == "reward_model":
        about = f"{REWARD_MODEL} on these pairs: the preference model"
        stages.append(
            Stage(
                "reward-model",
                about,
                lambda folder, done: train_reward_model(_last(settings, done), folder, done),
                same,
            )
        )
    against = "the preference model" if settings.learn == "reward_model" else "these pairs"
    about = f"{method_of(_rlaif_settings(settings, ''))} on {against}; starts from the policy that learnt the revisions"
    stages.append(Stage("train", about, lambda folder, done: train_policy(_last(settings, done), folder, done), same))
    return [*stages, *_eval_stages(settings, 2, "train")]


def _principles(settings: ConstitutionalSettings) -> tuple[Principle, ...]:
    if settings.constitution:
        return read_constitution(settings.constitution)
    return TASK_PRINCIPLES if settings.data.parsed_source.is_task else GENERAL


def _rlaif_settings(settings: ConstitutionalSettings, model: str) -> RLAIFSettings:
    """The last part is that of RLAIF, starting from the policy that learnt the revisions."""
    shared = ("pipeline", "seed", "data", "sampling", "eval", "report", "learn", "method", "epochs", "train")
    values = {name: getattr(settings, name) for name in (*shared, "steps", "reward_model")}
    return RLAIFSettings(
        **values, soft_labels=settings.feedback.soft_labels, model=settings.model.model_copy(update={"name": model})
    )


def _last(settings: ConstitutionalSettings, done: Mapping[str, FinishedStage]) -> RLAIFSettings:
    return _rlaif_settings(settings, trained_model(done["revise"]))


def _first_model(settings: ConstitutionalSettings, done: Mapping[str, FinishedStage]) -> str:
    return trained_model(done["teach"]) if "teach" in done else settings.model.name


def _revising_config(settings: ConstitutionalSettings, model: str, rows: str, steps: int) -> dict[str, Any]:
    return training_config(settings, model, {"data": {"source": rows}, "steps": steps}, settings.revise, "revise")


def _teaching_config(settings: ConstitutionalSettings, rows: str) -> dict[str, Any]:
    return training_config(settings, settings.model.name, {"data": {"source": rows}}, settings.teach, "teach")


def _teaching_stages(settings: ConstitutionalSettings) -> list[Stage]:
    check_training(SUPERVISED, _teaching_config(settings, "rows.jsonl"), "teach")
    same = stage_settings(settings)

    def teach(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        train_run(
            folder, SUPERVISED, _teaching_config(settings, str((done["examples"].folder / DEMONSTRATIONS).resolve()))
        )
        return stage_result(run_summary(folder))

    about = "examples of answering, criticising, revising and comparing, written by the task"
    return [
        Stage("examples", about, lambda folder, _: _examples(settings, folder), same),
        Stage("teach", f"{SUPERVISED} on them: the first policy", teach, same),
    ]


def _examples(settings: ConstitutionalSettings, folder: Path) -> Mapping[str, Any]:
    from whet.data.tasks import demonstrations
    from whet.data.tasks.reviewed import ReviewedCompletion, reviewed_completions

    (principle,), kinds, seed = TASK_PRINCIPLES, task_kinds(settings), settings.seed + EXAMPLE_SEED
    shown = rows_of_kinds(
        kinds, settings.examples, lambda task, count, level: demonstrations(task, count, seed, level, 0.35)
    )
    reviewed: list[ReviewedCompletion] = rows_of_kinds(
        kinds, settings.examples, lambda task, count, level: reviewed_completions(task, "train", count, seed, level)
    )
    rows = [{**prompt_row(row.prompt), "completion": row.completion} for row in shown]
    by_question = [reviewed[at : at + 5] for at in range(0, len(reviewed), 5)]
    for number, group in enumerate(by_question):
        each = group[number % 5]
        critique = each.fault or NOTHING_WRONG
        rows.append(_row(critique_request(each.prompt, each.completion, principle), critique))
        rows.append(_row(revision_request(each.prompt, each.completion, principle, critique), each.right))
        right, wrong = group[0], group[2 if number % 2 else 4]
        rows.append(_row(preference_request(right.prompt, right.completion, wrong.completion, principle), FIRST))
        rows.append(_row(preference_request(right.prompt, wrong.completion, right.completion, principle), SECOND))
    write_rows(folder / DEMONSTRATIONS, [{**row, "id": str(number)} for number, row in enumerate(rows)])
    return stage_result(
        f"{len(rows)} examples in {DEMONSTRATIONS}", counts={"examples": len(rows), "answering": len(shown)}
    )


def _row(messages: Sequence[Mapping[str, str]], completion: str) -> dict[str, Any]:
    return {"prompt": [dict(message) for message in messages], "completion": completion}


def _preference_prompts(settings: ConstitutionalSettings) -> list[Prompt]:
    config = evaluation_config(settings, settings.model.name)
    return train_prompts(config, settings.prompts, settings.preference_prompts, "prompts or preference_prompts")


def _is_forbidden(settings: ConstitutionalSettings, prompt: Prompt) -> bool:
    column, _, value = settings.forbidden.partition("=")
    return bool(column) and str(prompt.meta.get(column)) == value


def _write_revisions(
    settings: ConstitutionalSettings, principles: Sequence[Principle], folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    write_atomically(folder / CONSTITUTION, tomli_w.dumps(constitution_rows(principles)))
    config = evaluation_config(settings, _first_model(settings, done))

    def rows_of(sampler: ModelSampler, number: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        return _revised_rows(settings, principles, sampler, prompts, number)

    chosen = train_prompts(config, 0, settings.prompts, "prompts")
    rows = sampled_rows(folder / REVISIONS, config, chosen, CHUNK, rows_of)
    usable = [row for row in rows if row["finished"] and row["revisions"][-1].strip()]
    learnt = [{"id": row["id"], "prompt": row["prompt"], "completion": row["revisions"][-1]} for row in usable]
    write_rows(folder / DEMONSTRATIONS, learnt)
    changed = sum(row["revisions"][-1] != row["completion"] for row in rows)
    before, after = (conduct([row[side] for row in rows], [row[f"{side}_length"] for row in rows]) for side in SIDES)
    summary = [
        f"{changed} of {len(rows)} completions changed",
        f"{before['characters']:.0f} to {after['characters']:.0f} characters",
        f"without violation {percent(before['clean'])} to {percent(after['clean'])}",
        f"evasive {percent(before['evasive'])} to {percent(after['evasive'])}",
    ]
    metrics = {
        f"{name}_{side}": value
        for side, table in zip(SIDES, (before, after), strict=True)
        for name, value in table.items()
    }
    if rows and "truth" in rows[0]:
        right = [sum(row["truth"][at] == 1 for row in rows) / len(rows) for at in (0, 1)]
        summary.append(f"right {percent(right[0])} to {percent(right[1])}")
        metrics |= {"right_before": right[0], "right_after": right[1]}
    counts = {"prompts": len(rows), "changed": changed, "cut_off_or_empty": len(rows) - len(usable)}
    stop_reason = "" if usable else "no revision is whole: raise sampling.max_new_tokens"
    return stage_result("; ".join(summary), metrics, counts, stop_reason)


SIDES = ("before", "after")


def _revised_rows(
    settings: ConstitutionalSettings,
    principles: Sequence[Principle],
    sampler: ModelSampler,
    prompts: Sequence[Prompt],
    chunk: int,
) -> list[dict[str, Any]]:
    sampling, seed = own_sampling(settings), settings.seed
    critic = Sampling(settings.critique_tokens, sampling.temperature, sampling.top_p)
    first = [each for (each,) in sampler.completions(prompts, 1, sampling, (seed, 0, chunk))]
    now: list[Sample] = first
    history: list[dict[str, list[str]]] = [{"principles": [], "critiques": [], "revisions": []} for _ in prompts]
    for time in range(1, settings.critiques + 1):
        chosen = [draw_principle(principles, seed, "revise", time, prompt.id) for prompt in prompts]
        asked = list(zip(prompts, now, chosen, strict=True))
        critiques = sampler.texts(
            [critique_request(prompt, completion.completion, principle) for prompt, completion, principle in asked],
            1,
            critic,
            (seed, time, chunk, 0),
        )
        again = [
            Prompt(prompt.id, revision_request(prompt, completion.completion, principle, critique))
            for (prompt, completion, principle), (critique,) in zip(asked, critiques, strict=True)
        ]
        now = [each for (each,) in sampler.completions(again, 1, sampling, (seed, time, chunk, 1))]
        for notes, principle, (critique,), revision in zip(history, chosen, critiques, now, strict=True):
            notes["principles"].append(principle.name)
            notes["critiques"].append(critique)
            notes["revisions"].append(revision.completion)
    truth = sampler.scores(None, prompts, list(zip(first, now, strict=True))) if has_eval(settings) else None
    return [
        {
            **prompt_row(prompt),
            "completion": start.completion,
            "finished": last.stop != "length",
            **notes,
            **({"truth": truth[at]} if truth else {}),
            **_violated_sides(settings, prompt, start.completion, last.completion),
        }
        for at, (prompt, start, last, notes) in enumerate(zip(prompts, first, now, history, strict=True))
    ]


def _violated_sides(settings: ConstitutionalSettings, prompt: Prompt, before: str, after: str) -> dict[str, Any]:
    is_forbidden = _is_forbidden(settings, prompt)
    table: dict[str, Any] = {}
    for side, completion in zip(SIDES, (before, after), strict=True):
        table |= {side: violations(prompt, completion, is_forbidden), f"{side}_length": len(completion)}
    return table


def _helpful(settings: ConstitutionalSettings) -> list[Demonstration]:
    from whet.data import demonstrations_from, read_rows

    return demonstrations_from(read_rows(settings.helpful)) if settings.helpful else []


def _train_on_revisions(
    settings: ConstitutionalSettings, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    rows, extra = read_json_lines(done["revisions"].folder / DEMONSTRATIONS), _helpful(settings)
    rows += [
        {"id": f"helpful/{number}", "prompt": prompt_row(row.prompt)["prompt"], "completion": row.completion}
        for number, row in enumerate(extra)
    ]
    file, model = write_rows(folder / DEMONSTRATIONS, rows), _first_model(settings, done)
    config = check_training(SUPERVISED, _revising_config(settings, model, str(file), 1), "revise")
    steps = steps_for(len(rows), settings.revise_epochs, config.batch.rows_per_step)
    train_run(folder, SUPERVISED, _revising_config(settings, model, str(file.resolve()), steps))
    return stage_result(
        run_summary(folder), counts={"revisions": len(rows) - len(extra), "helpful": len(extra)}, steps=steps
    )


def _write_candidates(
    settings: ConstitutionalSettings, folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    config = evaluation_config(settings, trained_model(done["revise"]))
    chosen = _preference_prompts(settings)
    # the true scores only serve to measure how often the feedback is right
    rows = write_completions(folder, config, chosen, 2, (settings.seed, 9), is_scored=has_eval(settings))
    candidates, counts = candidate_pairs(rows)
    stop_reason = "" if candidates else "the policy always gives the same completion: there is nothing to compare"
    return stage_result(
        f"{len(candidates)} pairs of different completions",
        counts={**counts, "candidate_pairs": len(candidates)},
        stop_reason=stop_reason,
    )


def _compare(
    settings: ConstitutionalSettings, principles: Sequence[Principle], folder: Path, done: Mapping[str, FinishedStage]
) -> Mapping[str, Any]:
    rows = read_json_lines(done["completions"].folder / COMPLETIONS)
    model = settings.feedback.name or _first_model(settings, done)
    labels = write_feedback(folder, settings, settings.feedback, model, principles, candidate_pairs(rows)[0])
    return feedback_pairs(folder, rows, settings.feedback, labels)


def _eval_stages(settings: ConstitutionalSettings, number: int, after: str | None) -> list[Stage]:
    """The eval of a task; elsewhere the conduct in completions to held-out prompts."""
    if settings.data.parsed_source.is_task:
        return [eval_stage(settings, POLICY, number, after)] if has_eval(settings) else []
    if not settings.eval.source or not settings.eval.prompts:
        return []

    def work(folder: Path, done: Mapping[str, FinishedStage]) -> Mapping[str, Any]:
        return _conduct(settings, folder, settings.model.name if after is None else trained_model(done[after]))

    when = ("before", "after the revisions", "after the preferences")[number]
    about = f"violations in completions to held-out prompts {when}, by rules that no model sees"
    return [Stage(f"conduct{number}", about, work, stage_settings(settings), (POLICY, number))]


def _conduct(settings: ConstitutionalSettings, folder: Path, model: str) -> Mapping[str, Any]:
    from whet.training.assembly.prompts import load_prompts

    config = evaluation_config(settings, model)
    chosen = load_prompts(config, evaluation=True)[: settings.eval.prompts]
    rows = write_completions(folder, config, chosen, 1, (settings.seed, 11))
    completions = [row["completions"][0] for row in rows]
    kinds = [
        violations(prompt, completion, _is_forbidden(settings, prompt))
        for prompt, completion in zip(chosen, completions, strict=True)
    ]
    write_rows(
        folder / CONDUCT, [{"id": prompt.id, "violations": each} for prompt, each in zip(chosen, kinds, strict=True)]
    )
    metrics = conduct(kinds, [len(completion) for completion in completions])
    shares = ", ".join(f"{name} {percent(share)}" for name, share in metrics.items() if name != "characters")
    return stage_result(
        f"{shares}; {metrics['characters']:.0f} characters per completion", metrics, eval_prompts=len(chosen)
    )


def reasoned_preferences(
    sampler: ModelSampler, conversations: Sequence[Sequence[Message]], sampling: Sampling, seed: tuple[int, ...]
) -> list[float]:
    """The same after reasons that the model writes first, clamped."""
    reasons = sampler.texts(conversations, 1, sampling, seed)
    longer = [
        (*messages, {"role": "assistant", "content": reason or "-"}, WHICH)
        for messages, (reason,) in zip(conversations, reasons, strict=True)
    ]
    return [clamped(each) for each in letter_preferences(sampler.runtime, longer)]


def write_feedback(
    folder: Path,
    settings: PipelineSettings,
    section: FeedbackSection,
    model: str,
    principles: Sequence[Principle],
    candidates: Sequence[CandidatePair],
) -> list[PairLabel]:
    """Every pair compared under a principle drawn for it, in both orders, kept in labels.jsonl."""

    def rows_of(sampler: ModelSampler, number: int, chunk: Sequence[CandidatePair]) -> list[dict[str, Any]]:
        chosen = [draw_principle(principles, settings.seed, "prefer", candidate.row["id"]) for candidate in chunk]
        conversations: list[Sequence[Message]] = []
        for candidate, principle in zip(chunk, chosen, strict=True):
            prompt = row_prompt(candidate.row)
            conversations.append(preference_request(prompt, candidate.one, candidate.other, principle))
            conversations.append(preference_request(prompt, candidate.other, candidate.one, principle))
        if section.reason:
            sampling = Sampling(max_new_tokens=section.reason_tokens, temperature=settings.sampling.temperature)
            both = reasoned_preferences(sampler, conversations, sampling, (settings.seed, 5, number))
        else:
            both = letter_preferences(sampler.runtime, conversations)
        return [
            {"principle": principle.name, "forth": forth, "back": back}
            for principle, forth, back in zip(chosen, both[::2], both[1::2], strict=True)
        ]

    lines = sampled_rows(folder / LABELS, evaluation_config(settings, model), candidates, CHUNK, rows_of)
    return [combine_orders(line["forth"], line["back"]) for line in lines]


def feedback_pairs(
    folder: Path, rows: Sequence[Mapping[str, Any]], section: FeedbackSection, labels: Sequence[PairLabel]
) -> dict[str, Any]:
    """Write the pairs with their soft labels; an eighth is for evaluation."""
    candidates, dropped = candidate_pairs(rows)
    pairs, counts = judged_pairs(candidates, labels, section.min_margin, section.soft_labels)
    return write_pairs(folder, pairs, {**dropped, **counts})


CONSTITUTIONAL = Pipeline(
    "constitutional",
    "completions are criticised and revised under written principles and learnt; then a model's preferences under them",
    ConstitutionalSettings,
    constitutional_stages,
)
