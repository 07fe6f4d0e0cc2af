"""The stages that pipelines on preference pairs share: the pairs, reward models on them, and judged policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from whet.data.sections import DataSection
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.record.metrics.intervals import share_interval
from whet.record.text import count_of, percent
from whet.settings.bounds import MOST_ROWS, MOST_SAMPLES
from whet.settings.sections import Table
from whet.tools.pipelines.evaluation import evaluation_config, has_eval
from whet.tools.pipelines.generation import train_prompts, write_completions, write_rows
from whet.tools.pipelines.judged_policies import Judgment, judged_prompts, write_judged
from whet.tools.pipelines.library.entry import StageInput, input_digests_of
from whet.tools.pipelines.library.settings import MACHINE_KEYS
from whet.tools.pipelines.library.trainings import trained_result
from whet.tools.pipelines.pair_split import PairRow, check_split, prompt_key, read_pairs, split_by_prompt
from whet.tools.pipelines.pairs import best_against_worst, prompt_row
from whet.tools.pipelines.settings import TRAIN_KEYS, PipelineSettings
from whet.tools.pipelines.stages import FinishedStage, Stage, StageCost, StagePlan, no_inputs, stage_result
from whet.tools.pipelines.training import check_training, steps_for, train_run, trained_model, training_config
from whet.types import Prompt, WhetError

OWN, OTHER_HALF, HELD_OUT = "own.jsonl", "other_half.jsonl", "held_out.jsonl"
PROMPTS, JUDGED_PROMPTS, CHOSEN = "prompts.jsonl", "judged_prompts.jsonl", "chosen.jsonl"
RANKER = next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == "rankings")
JUDGE_SEED = 1000  # added to the seed: the judge has other first weights and another order of its rows
TASK = "task:"

Done = Mapping[str, FinishedStage]
Start = Callable[[Done], str]  # which model a stage starts from


class PairSettings(PipelineSettings):
    """What pipelines on preference pairs share."""

    pairs: str = Field(
        "",
        description="file of pairs; task:NAME: its right and wrong completions; empty, on a task: completions of the "
        "first policy, the best against the worst by the task's reward",
    )
    held_out: str = Field("", description="file of pairs to measure on; empty: held_out_share of the prompts of pairs")
    held_out_share: float = Field(0.2, gt=0, lt=1, description="of the prompts of pairs, to measure on")
    allow_overlap: bool = Field(False, description="measure on held_out though prompts of it are in pairs too")
    as_chat: bool = Field(False, description="a plain text prompt of the pairs is a user message")
    columns: dict[str, str] = Field({}, description="of the pairs: your name = whet's name")
    unusable: Literal["stop", "drop"] = Field(
        "stop", description="rows of the pairs that cannot be used: an error, or left out"
    )
    prompts: int = Field(
        1024, ge=8, le=MOST_ROWS, description="whose completions are compared; not where pairs is a file"
    )
    completions: int = Field(
        8, ge=2, le=MOST_SAMPLES, description="that the first policy writes to each, where pairs is empty"
    )
    judged_prompts: int = Field(200, ge=2, le=MOST_ROWS, description="held-out prompts that policies are judged on")
    judged_completions: int = Field(4, ge=1, le=MOST_SAMPLES, description="that each policy writes to each of them")
    reward_model: Table = Field({}, description=f"of the reward models: {TRAIN_KEYS}")
    reward_model_epochs: float = Field(2.0, ge=1e-6, le=1000, description="passes over the pairs of a reward model")

    def idle(self) -> dict[str, str]:
        idle = super().idle()
        if self.pairs:
            idle["completions"] = "has no effect: the pairs are given and not written; drop it"
        if self.pairs and not self.pairs.startswith(TASK):
            idle["prompts"] = "has no effect: the pairs are given and not written; drop it"
        else:
            reason = "has no effect: it is for pairs in a file; drop it"
            idle |= dict.fromkeys(("as_chat", "columns", "unusable"), reason)
        if self.held_out:
            idle["held_out_share"] = "has no effect: held_out is given; drop it"
        else:
            idle["allow_overlap"] = "has no effect: the split by prompt has no overlap; drop it"
        return idle

    @property
    def rows(self) -> DataSection:
        """How the files of pairs are read."""
        return DataSection(source=self.pairs, as_chat=self.as_chat, columns=self.columns, unusable=self.unusable)


def depends_on(settings: PipelineSettings, *names: str) -> dict[str, Any]:
    """What a stage's outcome depends on: the keys named, the seed and the model, wherever that runs."""
    values = settings.model_dump(mode="json")
    values["model"] = {key: value for key, value in values["model"].items() if key not in MACHINE_KEYS}
    return {name: values[name] for name in ("seed", "model", *names)}


def first_model(settings: PipelineSettings) -> Callable[[], Mapping[str, str]]:
    """Digest of the model that a stage starts from, where no stage made it."""
    return input_digests_of([], [StageInput(source=settings.model.name)])


def knows_truth(settings: PairSettings) -> bool:
    """True where the judged prompts are a task's, whose reward says which completions are right."""
    return not settings.pairs and has_eval(settings)


def check_pairs(settings: PairSettings) -> None:
    """Refuse pairs that cannot be had, before anything is done."""
    if not settings.pairs and not settings.data.parsed_source.is_task:
        raise WhetError(
            f"pairs: {settings.data.source} has no preferences; give --set pairs=FILE with prompt, chosen and rejected"
        )
    if not settings.pairs and settings.held_out:
        raise WhetError("held_out has no effect: the pairs are written here, and a share of them is held out; drop it")
    for name, source in (("pairs", settings.pairs), ("held_out", settings.held_out)):
        if source and not source.startswith((TASK, "hub:")) and not Path(source).expanduser().is_file():
            raise WhetError(f"{name}: {source} is not there; give a file of pairs with prompt, chosen and rejected")


def pairs_stage(settings: PairSettings) -> Stage:
    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        rows, counts = _pairs(settings, folder)
        given = read_pairs(settings.held_out, settings.rows) if settings.held_out else None
        split = split_by_prompt(rows, given, settings.held_out_share, settings.seed)
        check_split(split, settings.pairs or "the pairs written here", settings.held_out, settings.allow_overlap)
        write_rows(folder / OWN, split.own)
        write_rows(folder / OTHER_HALF, split.judge)
        write_rows(folder / HELD_OUT, split.held_out)
        write_rows(folder / PROMPTS, judged_prompts(split.own, len(split.own)))
        judged = judged_prompts(split.held_out, settings.judged_prompts)
        write_rows(folder / JUDGED_PROMPTS, judged)
        chosen = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in split.own]
        write_rows(folder / CHOSEN, chosen)
        longer = fmean(_is_longer(row) for row in (*split.own, *split.judge))
        sides = {"own_pairs": len(split.own), "judge_pairs": len(split.judge), "held_out_pairs": len(split.held_out)}
        return stage_result(
            f"{count_of(len(split.own), 'pair')} for the policy and its reward model, {len(split.judge)} for the "
            f"judge, {len(split.held_out)} held out; the chosen one is the longer in {percent(longer)}",
            {"chosen_is_longer": longer},
            {**counts, **sides, "judged_prompts": len(judged)},
        )

    source = settings.pairs or f"{settings.prompts} prompts x {settings.completions} of the first policy's completions"
    keys = ("data", "sampling", "eval", "pairs", "held_out", "held_out_share", "prompts", "completions", "as_chat")
    about = f"preference pairs ({source}), split by prompt: two halves, and held-out ones"
    count = 0 if settings.pairs else settings.prompts * settings.completions
    cost = StageCost(completions=count, sampled_tokens=count * settings.sampling.max_new_tokens)
    files = [StageInput(source=each) for each in (settings.pairs, settings.held_out) if each]
    return Stage(
        "pairs",
        about,
        work,
        depends_on(settings, *keys, "columns", "unusable", "allow_overlap", "judged_prompts"),
        reads=(),
        inputs=input_digests_of(files, [StageInput(source=settings.model.name)]),
        plan=StagePlan({"pairs": source}, "pairs", cost),
    )


def _is_longer(row: PairRow) -> float:
    ours, theirs = len(row["chosen"]), len(row["rejected"])
    return 0.5 if ours == theirs else float(ours > theirs)


def _pairs(settings: PairSettings, folder: Path) -> tuple[list[PairRow], dict[str, int]]:
    if settings.pairs.startswith(TASK):
        return _task_pairs(settings), {}
    if settings.pairs:
        return read_pairs(settings.pairs, settings.rows), {}
    config = evaluation_config(settings, settings.model.name)
    prompts = train_prompts(config, 0, settings.prompts, "prompts")
    written = write_completions(folder, config, prompts, settings.completions, (settings.seed, 1), is_scored=True)
    answers = {prompt_key(prompt_row(prompt)): prompt.answer for prompt in prompts}
    pairs, counts = best_against_worst(written)
    if not pairs:
        raise WhetError("the first policy's completions to a prompt all score the same; give more prompts, or pairs")
    named = [{**pair, "id": prompt_key(pair)} for pair in pairs]
    return [{**pair, "answer": answers[pair["id"]]} for pair in named], counts


def _task_pairs(settings: PairSettings) -> list[PairRow]:
    from whet.data.source import TRAIN, parse_source
    from whet.data.tasks.contrast import task_preferences

    source = parse_source(settings.pairs)
    pairs = source.from_tasks(
        lambda task, share, difficulty: task_preferences(task, TRAIN, share, settings.seed, difficulty),
        settings.prompts,
        settings.data.difficulty,
    )
    rows = [{**prompt_row(pair.prompt), "chosen": pair.chosen, "rejected": pair.rejected} for pair in pairs]
    return [{**row, "id": prompt_key(row)} for row in rows]


def reward_model_stage(
    settings: PairSettings, name: str, about: str, half: str, start: Start, seed: int, after: tuple[str, ...] = ()
) -> Stage:
    """A reward model on one half of the pairs, measured on the held-out ones. `after`: what made its start."""

    def work(folder: Path, done: Done) -> Mapping[str, Any]:
        pairs, held_out = (str((done["pairs"].folder / each).resolve()) for each in (half, HELD_OUT))
        count = done["pairs"].result["counts"]["own_pairs" if half == OWN else "judge_pairs"]
        config = check_training(RANKER, reward_model_config(settings, start(done), pairs, held_out, 1, seed))
        steps = steps_for(count, settings.reward_model_epochs, config.batch.rows_per_step)
        found = train_run(folder, RANKER, reward_model_config(settings, start(done), pairs, held_out, steps, seed))
        num_pairs = done["pairs"].result["counts"]["held_out_pairs"]
        accuracy = found["after"]["accuracy"]
        low, high = share_interval(accuracy, num_pairs)
        words = f"accuracy {percent(accuracy)} ({100 * low:.1f} to {100 * high:.1f}) on {num_pairs} held-out pairs"
        kept = ("accuracy", "accuracy_when_longer", "accuracy_when_shorter")
        metrics = {each: found["after"][each] for each in kept if each in found["after"]}
        result = trained_result(folder, steps=steps, interval=[low, high])
        return {**result, "summary": f"{result['summary']}; {words}", "metrics": metrics}

    note = f"as many updates as {settings.reward_model_epochs:g} passes over its half of the pairs take"
    return Stage(
        name,
        about,
        work,
        {"half": half, "training seed": seed, **depends_on(settings, "reward_model", "reward_model_epochs")},
        reads=("pairs", *after),
        inputs=no_inputs if after else first_model(settings),
        plan=StagePlan(
            {"pairs": half, "start": after[0] if after else settings.model.name}, "reward model", StageCost(note=note)
        ),
    )


def reward_model_config(
    settings: PairSettings, model: str, pairs: str, held_out: str, steps: int, seed: int
) -> dict[str, Any]:
    own = {"data": {"source": pairs}, "eval": {"source": held_out}, "steps": steps}
    return {**training_config(settings, model, own, settings.reward_model, "reward_model"), "seed": seed}


def newest(done: FinishedStage) -> str:
    """The newest checkpoint of a training stage: what a reward model is read from."""
    from whet.model.checkpoint import complete_checkpoints

    return str(complete_checkpoints(Path(trained_model(done)) / "checkpoints")[-1])


def read_judged_prompts(done: Done) -> list[Prompt]:
    from whet.data import prompts_from, read_rows

    return prompts_from(read_rows(str(done["pairs"].folder / JUDGED_PROMPTS)))


def judge_completions(
    settings: PairSettings,
    folder: Path,
    done: Done,
    model: str,
    start: str,
    count: int,
    number: int,
    reward_models: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Completions of a model to the held-out prompts, with scores and KL; `number` sets their randomness apart."""
    judgment = Judgment(start, reward_models, knows_truth(settings))
    config = evaluation_config(settings, model)
    return write_judged(folder, config, read_judged_prompts(done), count, (settings.seed, 2, number), judgment)


def judged_cost(settings: PairSettings, count: int) -> StageCost:
    """Of `count` completions to every judged prompt, at most."""
    completions = settings.judged_prompts * count
    return StageCost(completions=completions, sampled_tokens=completions * settings.sampling.max_new_tokens)
