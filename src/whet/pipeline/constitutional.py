"""Principles instead of labels: the policy criticises and revises its completions, learns the revisions, and is then
trained on a model's preferences under the same principles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import tomli_w
from pydantic import Field

from whet.config.config import SUPERVISED
from whet.pipeline import Done, Recipe, Stage, found, read_json_lines, written_in_chunks, written_whole
from whet.pipeline.bench import EXAMPLE_SEED, Bench, own_sampling, rows_of_kinds, task_kinds
from whet.pipeline.constitution import (
    GENERAL,
    WORKED,
    Principle,
    conduct,
    constitution_rows,
    critique_request,
    drawn,
    preference_request,
    read_constitution,
    revision_request,
    violations,
)
from whet.pipeline.feedback import FeedbackSection, feedback_pairs, write_feedback
from whet.pipeline.judge import train_prompts
from whet.pipeline.judged import SCORER, JudgedSettings, check_policy, method_of, train_policy, train_scorer
from whet.pipeline.judging import FIRST, SECOND, contests
from whet.pipeline.pairs import prompt_row
from whet.pipeline.parts import (
    CHUNK,
    COMPLETIONS,
    ROWS,
    check_training,
    evaluation,
    is_marked,
    marks_stage,
    model_of,
    run_told,
    stage_settings,
    trained,
    training,
    write_completions,
    write_rows,
)
from whet.pipeline.rounds import POLICY, steps_for
from whet.pipeline.sections import TRAIN_KEYS, PipelineSettings
from whet.report.text import percent
from whet.types import Demonstration, Prompt, Sample, Sampling, WhetError

REVISIONS, CONSTITUTION, CONDUCT = "revisions.jsonl", "constitution.toml", "conduct.jsonl"
NOTHING_WRONG = "all right"


class ConstitutionSettings(PipelineSettings):
    """A constitution and what is done with it."""

    constitution: str = Field("", description="TOML file of principles; empty: the built-in one, or the task's own")
    prompts: int = Field(1024, ge=1, description="whose completions are criticised and revised")
    critiques: int = Field(4, ge=1, description="times that a completion is criticised and revised")
    critique_tokens: int = Field(128, ge=1, description="of a critique")
    helpful: str = Field("", description="a file of demonstrations that are learnt together with the revisions")
    forbidden: str = Field("", description="COLUMN=VALUE of prompts that are to be refused; empty: none is")
    examples: int = Field(512, ge=1, description="questions of a task that teach criticising, revising and comparing")
    teach: dict[str, Any] = Field({}, description=f"of that first training, on a task: {TRAIN_KEYS}")
    revise_epochs: float = Field(2.0, gt=0, description="passes over the revisions")
    revise: dict[str, Any] = Field({}, description=f"of the training on revisions: {TRAIN_KEYS}")
    preference_prompts: int = Field(1024, ge=8, description="new ones, whose completions are compared")
    feedback: FeedbackSection = Field(FeedbackSection(), description="who compares, and how")
    learn: Literal["pairs", "reward_model"] = Field(
        "reward_model", description="train a preference model and then against it, or the policy on the pairs"
    )
    method: str = Field("", description="of the last training; empty: as in the pipeline of a judge")
    steps: int = Field(100, ge=1, description="of the training against the preference model")
    epochs: float = Field(2.0, gt=0, description="passes over the compared pairs")
    reward_model: dict[str, Any] = Field({}, description=f"of the preference model: {TRAIN_KEYS}")
    train: dict[str, Any] = Field({}, description=f"of the last training: {TRAIN_KEYS}")

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
        found = super().idle()
        if self.learn == "pairs":
            found |= dict.fromkeys(
                ("steps", "reward_model"), "has no effect: learn=pairs trains no preference model; drop it"
            )
        if not self.data.parsed_source.is_task:
            found |= dict.fromkeys(("examples", "teach"), "has no effect: only a task writes examples; drop it")
        if not self.feedback.reason:
            found["feedback.reason_tokens"] = "has no effect without feedback.reason; drop it"
        return found


def constitution_stages(settings: ConstitutionSettings) -> list[Stage]:
    principles = _principles(settings)
    check_policy(_last_training(settings, settings.model.name))
    check_training(SUPERVISED, _revising(settings, settings.model.name, "rows.jsonl", 1), "revise")
    if settings.forbidden and "=" not in settings.forbidden:
        raise WhetError(f"forbidden is {settings.forbidden!r}; give COLUMN=VALUE, such as label=unsafe")
    same = stage_settings(settings)
    is_task = settings.data.parsed_source.is_task
    if not is_task:
        train_prompts(settings, settings.prompts, settings.preference_prompts)
    _helpful(settings)
    stages = _teaching_stages(settings) if is_task else []
    stages += _measured(settings, 0, "teach" if is_task else None)
    times = "once" if settings.critiques == 1 else f"{settings.critiques} times"
    about = f"completions to {settings.prompts} prompts, {times} criticised and revised under {len(principles)} principle(s)"
    stages.append(Stage("revisions", about, lambda folder, done: _revised(settings, principles, folder, done), same))
    about = f"{SUPERVISED} on the revisions" + (f" and {settings.helpful}" if settings.helpful else "")
    stages.append(Stage("revise", about, lambda folder, done: _learnt(settings, folder, done), same))
    stages += _measured(settings, 1, "revise")
    about = f"two completions of that policy to each of {settings.preference_prompts} new prompts"
    stages.append(Stage("completions", about, lambda folder, done: _written(settings, folder, done), same))
    who = settings.feedback.name or "the model that wrote the critiques"
    about = f"{who} compares them under a principle, in both orders"
    stages.append(Stage("pairs", about, lambda folder, done: _compared(settings, principles, folder, done), same))
    if settings.learn == "reward_model":
        about = f"{SCORER} on these pairs: the preference model"
        stages.append(
            Stage("reward-model", about, lambda folder, done: train_scorer(_last(settings, done), folder, done), same)
        )
    against = "the preference model" if settings.learn == "reward_model" else "these pairs"
    about = f"{method_of(_last_training(settings, ''))} on {against}; begins with the policy of the revisions"
    stages.append(Stage("train", about, lambda folder, done: train_policy(_last(settings, done), folder, done), same))
    return [*stages, *_measured(settings, 2, "train")]


def _principles(settings: ConstitutionSettings) -> tuple[Principle, ...]:
    if settings.constitution:
        return read_constitution(settings.constitution)
    return WORKED if settings.data.parsed_source.is_task else GENERAL


def _last_training(settings: ConstitutionSettings, model: str) -> JudgedSettings:
    """The last part is that of the pipeline of a judge, from the policy that learnt the revisions."""
    shared = ("recipe", "seed", "data", "sampling", "marks", "eval", "report", "learn", "method", "epochs", "train")
    values = {name: getattr(settings, name) for name in (*shared, "steps", "reward_model")}
    return JudgedSettings(
        **values, soft=settings.feedback.soft, model=settings.model.model_copy(update={"name": model})
    )


def _last(settings: ConstitutionSettings, done: Mapping[str, Done]) -> JudgedSettings:
    return _last_training(settings, model_of(done["revise"]))


def _first_model(settings: ConstitutionSettings, done: Mapping[str, Done]) -> str:
    return model_of(done["teach"]) if "teach" in done else settings.model.name


def _revising(settings: ConstitutionSettings, model: str, rows: str, steps: int) -> dict[str, Any]:
    return training(settings, model, {"data": {"source": rows}, "steps": steps}, settings.revise, "revise")


def _teaching(settings: ConstitutionSettings, rows: str) -> dict[str, Any]:
    return training(settings, settings.model.name, {"data": {"source": rows}}, settings.teach, "teach")


def _teaching_stages(settings: ConstitutionSettings) -> list[Stage]:
    check_training(SUPERVISED, _teaching(settings, "rows.jsonl"), "teach")
    same = stage_settings(settings)

    def taught(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        trained(folder, SUPERVISED, _teaching(settings, str((done["examples"].folder / ROWS).resolve())))
        return found(run_told(folder))

    about = "examples of answering, criticising, revising and comparing, written by the task"
    return [
        Stage("examples", about, lambda folder, _: _examples(settings, folder), same),
        Stage("teach", f"{SUPERVISED} on them: the first policy", taught, same),
    ]


def _examples(settings: ConstitutionSettings, folder: Path) -> Mapping[str, Any]:
    from whet.data.tasks import demonstrations
    from whet.data.tasks.reviewed import Reviewed, reviewed_completions

    (principle,), kinds, seed = WORKED, task_kinds(settings), settings.seed + EXAMPLE_SEED
    shown = rows_of_kinds(
        kinds, settings.examples, lambda task, count, level: demonstrations(task, count, seed, level, 0.35)
    )
    reviewed: list[Reviewed] = rows_of_kinds(
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
    write_rows(folder / ROWS, [{**row, "id": str(number)} for number, row in enumerate(rows)])
    return found(f"{len(rows)} in {ROWS}", counts={"examples": len(rows), "answering": len(shown)})


def _row(messages: Sequence[Mapping[str, str]], completion: str) -> dict[str, Any]:
    return {"prompt": [dict(message) for message in messages], "completion": completion}


def _is_forbidden(settings: ConstitutionSettings, prompt: Prompt) -> bool:
    column, _, value = settings.forbidden.partition("=")
    return bool(column) and str(prompt.meta.get(column)) == value


def _revised(
    settings: ConstitutionSettings, principles: Sequence[Principle], folder: Path, done: Mapping[str, Done]
) -> Mapping[str, Any]:
    written_whole(folder / CONSTITUTION, tomli_w.dumps(constitution_rows(principles)))
    chosen = train_prompts(settings, 0, settings.prompts)
    bench: list[Bench] = []

    def rows_of(number: int, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        if not bench:
            bench.append(Bench(settings, _first_model(settings, done)))
        return _revised_rows(settings, principles, bench[0], prompts, number)

    rows = read_json_lines(written_in_chunks(folder / REVISIONS, chosen, CHUNK, rows_of))
    usable = [row for row in rows if row["finished"] and row["revisions"][-1].strip()]
    learnt = [{"id": row["id"], "prompt": row["prompt"], "completion": row["revisions"][-1]} for row in usable]
    write_rows(folder / ROWS, learnt)
    changed = sum(row["revisions"][-1] != row["completion"] for row in rows)
    before, after = (conduct([row[side] for row in rows], [row[f"{side}_length"] for row in rows]) for side in SIDES)
    said = [
        f"{changed} of {len(rows)} completions changed",
        f"{before['characters']:.0f} to {after['characters']:.0f} characters",
        f"without violation {percent(before['clean'])} to {percent(after['clean'])}",
        f"evasive {percent(before['evasive'])} to {percent(after['evasive'])}",
    ]
    marks = {
        f"{name}_{side}": value
        for side, table in zip(SIDES, (before, after), strict=True)
        for name, value in table.items()
    }
    if rows and "truth" in rows[0]:
        right = [sum(row["truth"][at] == 1 for row in rows) / len(rows) for at in (0, 1)]
        said.append(f"right {percent(right[0])} to {percent(right[1])}")
        marks |= {"right_before": right[0], "right_after": right[1]}
    counts = {"prompts": len(rows), "changed": changed, "cut_off_or_empty": len(rows) - len(usable)}
    over = "" if usable else "no revision is whole: raise sampling.max_new_tokens"
    return found("; ".join(said), marks, counts, over)


SIDES = ("before", "after")


def _revised_rows(
    settings: ConstitutionSettings, principles: Sequence[Principle], bench: Bench, prompts: Sequence[Prompt], chunk: int
) -> list[dict[str, Any]]:
    sampling, seed = own_sampling(settings), settings.seed
    critic = Sampling(settings.critique_tokens, sampling.temperature, sampling.top_p)
    first = [each for (each,) in bench.completions(prompts, 1, sampling, (seed, 0, chunk))]
    now: list[Sample] = first
    told: list[dict[str, list[str]]] = [{"principles": [], "critiques": [], "revisions": []} for _ in prompts]
    for time in range(1, settings.critiques + 1):
        chosen = [drawn(principles, seed, "revise", time, prompt.id) for prompt in prompts]
        asked = list(zip(prompts, now, chosen, strict=True))
        said = bench.texts(
            [critique_request(prompt, completion.completion, principle) for prompt, completion, principle in asked],
            1,
            critic,
            (seed, time, chunk, 0),
        )
        again = [
            Prompt(prompt.id, revision_request(prompt, completion.completion, principle, critique))
            for (prompt, completion, principle), (critique,) in zip(asked, said, strict=True)
        ]
        now = [each for (each,) in bench.completions(again, 1, sampling, (seed, time, chunk, 1))]
        for notes, principle, (critique,), revision in zip(told, chosen, said, now, strict=True):
            notes["principles"].append(principle.name)
            notes["critiques"].append(critique)
            notes["revisions"].append(revision.completion)
    truth = bench.scores(None)(prompts, list(zip(first, now, strict=True))) if is_marked(settings) else None
    return [
        {
            **prompt_row(prompt),
            "completion": start.completion,
            "finished": last.stop != "length",
            **notes,
            **({"truth": truth[at]} if truth else {}),
            **_judged_sides(settings, prompt, start.completion, last.completion),
        }
        for at, (prompt, start, last, notes) in enumerate(zip(prompts, first, now, told, strict=True))
    ]


def _judged_sides(settings: ConstitutionSettings, prompt: Prompt, before: str, after: str) -> dict[str, Any]:
    is_forbidden = _is_forbidden(settings, prompt)
    table: dict[str, Any] = {}
    for side, completion in zip(SIDES, (before, after), strict=True):
        table |= {side: violations(prompt, completion, is_forbidden), f"{side}_length": len(completion)}
    return table


def _helpful(settings: ConstitutionSettings) -> list[Demonstration]:
    from whet.data import demonstrations_from, read_rows

    return demonstrations_from(read_rows(settings.helpful)) if settings.helpful else []


def _learnt(settings: ConstitutionSettings, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    rows, extra = read_json_lines(done["revisions"].folder / ROWS), _helpful(settings)
    rows += [
        {"id": f"helpful/{number}", "prompt": prompt_row(row.prompt)["prompt"], "completion": row.completion}
        for number, row in enumerate(extra)
    ]
    file, model = write_rows(folder / ROWS, rows), _first_model(settings, done)
    config = check_training(SUPERVISED, _revising(settings, model, str(file), 1), "revise")
    steps = steps_for(len(rows), settings.revise_epochs, config.batch.rows_per_step)
    trained(folder, SUPERVISED, _revising(settings, model, str(file.resolve()), steps))
    return found(run_told(folder), counts={"revisions": len(rows) - len(extra), "helpful": len(extra)}, steps=steps)


def _written(settings: ConstitutionSettings, folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
    chosen = train_prompts(settings, settings.prompts, settings.preference_prompts)
    config = evaluation(settings, model_of(done["revise"]))
    # the truth is asked only to tell how often the feedback meets it
    rows = write_completions(folder, config, chosen, 2, (settings.seed, 9), is_scored=is_marked(settings))
    fought, counts = contests(rows)
    over = "" if fought else "the policy always gives the same completion: there is nothing to compare"
    return found(f"{len(fought)} pairs of different completions", counts={**counts, "contests": len(fought)}, over=over)


def _compared(
    settings: ConstitutionSettings, principles: Sequence[Principle], folder: Path, done: Mapping[str, Done]
) -> Mapping[str, Any]:
    rows = read_json_lines(done["completions"].folder / COMPLETIONS)
    model = settings.feedback.name or _first_model(settings, done)
    labels = write_feedback(folder, settings, settings.feedback, model, principles, contests(rows)[0])
    return feedback_pairs(folder, rows, settings.feedback, labels)


def _measured(settings: ConstitutionSettings, number: int, after: str | None) -> list[Stage]:
    """Marks where there are any, and the conduct in held-out completions where it is no task."""
    if settings.data.parsed_source.is_task:
        return [marks_stage(settings, POLICY, number, after)] if is_marked(settings) else []
    if not settings.eval.source or not settings.eval.prompts:
        return []

    def work(folder: Path, done: Mapping[str, Done]) -> Mapping[str, Any]:
        return _conduct(settings, folder, settings.model.name if after is None else model_of(done[after]))

    when = ("before", "after the revisions", "after the preferences")[number]
    about = f"violations in completions to held-out prompts {when}, by rules that no model sees"
    return [Stage(f"conduct{number}", about, work, stage_settings(settings), (POLICY, number))]


def _conduct(settings: ConstitutionSettings, folder: Path, model: str) -> Mapping[str, Any]:
    from whet.build.assembly import load_prompts

    config = evaluation(settings, model)
    chosen = load_prompts(config, held_out=True)[: settings.eval.prompts]
    rows = write_completions(folder, config, chosen, 1, (settings.seed, 11))
    completions = [row["completions"][0] for row in rows]
    kinds = [
        violations(prompt, completion, _is_forbidden(settings, prompt))
        for prompt, completion in zip(chosen, completions, strict=True)
    ]
    write_rows(
        folder / CONDUCT, [{"id": prompt.id, "violations": each} for prompt, each in zip(chosen, kinds, strict=True)]
    )
    marks = conduct(kinds, [len(completion) for completion in completions])
    told = ", ".join(f"{name} {percent(share)}" for name, share in marks.items() if name != "characters")
    return found(f"{told}; {marks['characters']:.0f} characters a completion", marks, asked=len(chosen))


CONSTITUTIONAL = Recipe(
    "constitutional",
    "completions are criticised and revised under written principles and learnt; then a model's preferences under them",
    ConstitutionSettings,
    constitution_stages,
)
