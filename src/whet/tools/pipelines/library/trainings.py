"""Stages that train: on demonstrations, by reinforcement learning, on pairs; and reward models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.data.source import parse_source
from whet.objective.presets import PLAIN_GROUP_METHOD
from whet.objective.presets.preference import PAIR_PRESETS
from whet.objective.presets.reward_model import REWARD_MODELS
from whet.record.log import read_metrics
from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_ROWS, MOST_STEPS
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines.library.entry import (
    Composition,
    Output,
    StageEntry,
    StageInput,
    entry_values,
    input_digests_of,
)
from whet.tools.pipelines.library.settings import ComposedSettings, given_reward, is_scored, own_data, shared_values
from whet.tools.pipelines.library.time_estimate import training_seconds
from whet.tools.pipelines.settings import TRAIN_KEYS
from whet.tools.pipelines.stages import FinishedStage, Stage, StageCost, StagePlan, stage_result
from whet.tools.pipelines.training import RUN, check_training, run_summary, steps_for, train_run
from whet.training.config import SUPERVISED, Config, PolicyConfig, PreferenceConfig, SFTConfig, config_kind
from whet.types import WhetError

RANKING_MODEL = next(name for name, preset in REWARD_MODELS.items() if preset.objective.learns == "rankings")
DECIDED = ("method", "seed", "folder", "data")  # keys of a training that the stage itself decides
Done = Mapping[str, FinishedStage]


class TrainingEntry(StageEntry):
    """What every training has."""

    gives: ClassVar[tuple[Output, ...]] = ("model",)

    start: str = Field("", description="the stage or model to start from; empty: the pipeline's model")
    epochs: float = Field(
        1.0, ge=1e-6, le=1000, description="passes over its rows or prompts; train.steps wins over it"
    )
    train: Table = Field({}, description=f"of the training: {TRAIN_KEYS}")

    def method_name(self) -> str:
        raise NotImplementedError

    def config(self, settings: ComposedSettings, model: str, rows: Mapping[str, Any], steps: int) -> dict[str, Any]:
        """The whole config of the training: what all have, then the user's keys, then what the stage decides."""
        for key in DECIDED:
            if key in self.train:
                raise WhetError(f"stage {self.name!r}: train.{key} is set by the stage itself; drop it")
        if isinstance(self.train.get("model"), Mapping) and "name" in self.train["model"]:
            raise WhetError(f"stage {self.name!r}: train.model.name is the stage's start; give that instead")
        base = {
            "model": settings.model.model_dump(),
            "eval": {"every": 0, "prompts": 0},
            "report": {"save_every": settings.report.save_every, "keep_checkpoints": 1, "review_every": 0},
        }
        own = {
            "seed": settings.seed,
            "model": {"name": model},
            "data": dict(rows),
            "steps": self.train.get("steps", steps),
        }
        return merged(merged(merged(base, self.more(settings)), self.train), own)

    def more(self, settings: ComposedSettings) -> Mapping[str, Any]:
        """What this kind of training takes of the shared settings."""
        return {}

    def checked(self, settings: ComposedSettings, model: str, rows: Mapping[str, Any], steps: int = 1) -> Any:
        return check_training(
            self.method_name(), self.config(settings, model, rows, steps), f"stage {self.name!r}: train"
        )


def trained_result(folder: Path, **more: Any) -> dict[str, Any]:
    """A finished training, slimmed: its updates and tokens, and nothing kept that only a resume would read."""
    from whet.model.checkpoint import drop_training_state

    for checkpoint in sorted((folder / RUN / "checkpoints").glob("step-*")):
        drop_training_state(checkpoint)
    return stage_result(run_summary(folder), cost=training_cost(folder / RUN), **more)


def training_cost(run: Path) -> dict[str, int]:
    """Updates, and tokens that were sampled and trained on."""
    steps = [line for line in read_metrics(run) if "metrics" in line]
    counts = [line.get("counts", {}) for line in steps]
    samples = sum(int(each.get("samples", 0)) for each in counts)
    tokens = sum(int(each.get("tokens", 0)) for each in counts)
    updates = sum(int(line["metrics"].get("updates", 1)) for line in steps)
    return {
        "updates": updates,
        "completions": samples,
        "sampled_tokens": tokens if samples else 0,
        "trained_tokens": tokens,
    }


def row_source(settings: ComposedSettings, found: StageInput, count: int, location: str) -> dict[str, Any]:
    """The data section of a training that learns from these rows."""
    source = parse_source(location)
    data: dict[str, Any] = {"source": location}
    if source.is_task:
        data["difficulty"] = list(settings.data.difficulty)
    if count:
        data["count" if source.is_generated else "limit"] = count
    if not found.stage and not source.is_generated:
        own = settings.data
        data |= {"columns": own.columns, "as_chat": own.as_chat, "unusable": own.unusable}
    return data


def num_rows(config: Config) -> int:
    """How many rows or prompts a training would learn from; they are read."""
    if isinstance(config, SFTConfig):
        from whet.training.assembly.sft import load_demonstrations

        return len(load_demonstrations(config)[0])
    if isinstance(config, PolicyConfig):
        from whet.training.assembly.prompts import load_prompts

        return len(load_prompts(config, evaluation=False))
    if config.data.parsed_source.is_generated:
        return config.data.count
    from whet.data import read_rows

    return len(read_rows(config.data.source, config.data.limit or None))


def known_rows(config: Any, found: StageInput) -> int | None:
    """The same before anything runs; None for what an earlier stage will write."""
    return None if found.stage else num_rows(config)


class RowTraining(TrainingEntry):
    """A training on rows that are there before it starts."""

    data: str = Field("", description="its rows: an earlier stage, a file, task:NAME or hub:owner/name")
    rows: int = Field(0, ge=0, le=MOST_ROWS, description="how many a task writes, or of a file only the first; 0: all")

    wanted: ClassVar[tuple[Output, ...]] = ("rows",)

    def stage(self, composition: Composition) -> Stage:
        settings = composition.settings
        rows = composition.rows(self, "data", self.data, self.wanted)
        start = composition.model(self, "start", self.start)
        if rows.source:
            composition.trained_on.setdefault(rows.source, self.name)
        config = self.checked(
            settings, settings.model.name, row_source(settings, rows, self.rows, rows.source or "rows.jsonl")
        )
        count = known_rows(config, rows)
        steps = self.train.get("steps") or (steps_for(count, self.epochs, config.batch.rows_per_step) if count else 0)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            data, model = row_source(settings, rows, self.rows, rows.location(done)), start.model(done)
            config = self.checked(settings, model, data)
            steps = self.train.get("steps") or steps_for(num_rows(config), self.epochs, config.batch.rows_per_step)
            train_run(folder, self.method_name(), self.config(settings, model, data, steps))
            return trained_result(folder, steps=steps)

        note = "" if count else f"as many updates as {self.epochs:g} passes over the rows of {rows.stage} take"
        rows_seen = steps * config.batch.rows_per_step if count else 0
        cost = StageCost(steps, rows_seen, seconds=training_seconds(config, steps), note=note)
        about = f"{self.method_name()} on {rows.label}; starts from {start.label}"
        return Stage(
            self.name,
            about,
            work,
            {**entry_values(self), **shared_values(settings, ()), "data": _read_as(settings, rows)},
            reads=(*rows.reads, *start.reads),
            inputs=input_digests_of([rows], [start]),
            plan=StagePlan({"rows": _counted(rows, count), "start": start.label}, self.gives[0], cost),
        )


def _read_as(settings: ComposedSettings, rows: StageInput) -> dict[str, Any]:
    """How the user's own rows are read, where that matters."""
    return row_source(settings, rows, 0, rows.source) if rows.source else {}


def _counted(rows: StageInput, count: int | None) -> str:
    return f"{rows.label} ({count:,} rows)" if count else rows.label


class SFTEntry(RowTraining):
    """Imitation of demonstrations: rows with a prompt and a completion."""

    kind: ClassVar[str] = "sft"

    def method_name(self) -> str:
        return SUPERVISED


class PreferenceEntry(RowTraining):
    """A policy learns from pairs of completions."""

    kind: ClassVar[str] = "preference"
    wanted: ClassVar[tuple[Output, ...]] = ("pairs",)

    method: str = Field(next(iter(PAIR_PRESETS)), description="a preference method of `whet algorithms`")

    def method_name(self) -> str:
        if config_kind(self.method) is not PreferenceConfig:
            raise WhetError(
                f"stage {self.name!r}: method {self.method!r} does not learn from pairs; see `whet algorithms`"
            )
        return self.method


class RewardModelEntry(RowTraining):
    """A model learns to score completions, from pairs."""

    kind: ClassVar[str] = "reward_model"
    gives: ClassVar[tuple[Output, ...]] = ("reward_model",)
    wanted: ClassVar[tuple[Output, ...]] = ("pairs",)

    def method_name(self) -> str:
        return RANKING_MODEL


class RLEntry(TrainingEntry):
    """Reinforcement learning: completions to prompts are sampled, scored and learned from."""

    kind: ClassVar[str] = "rl"

    method: str = Field(PLAIN_GROUP_METHOD, description="a policy method of `whet algorithms`")
    prompts: str = Field("", description="an earlier stage, a file, task:NAME or hub:owner/name; empty: the pipeline's")
    steps: int = Field(0, ge=0, le=MOST_STEPS, description="steps; 0: as many as `epochs` passes over the prompts take")
    reward: RewardSection = Field(RewardSection(), description="what scores completions; empty: the pipeline's reward")
    reward_model: str = Field("", description="a stage or folder of a reward model, for prompts without an answer")
    reward_model_weight: float = Field(1.0, ge=0, le=1e6, description="weight of its score")

    def method_name(self) -> str:
        if config_kind(self.method) is not PolicyConfig:
            raise WhetError(f"stage {self.name!r}: method {self.method!r} draws no completions; give a policy method")
        return self.method

    def more(self, settings: ComposedSettings) -> Mapping[str, Any]:
        evals: dict[str, Any] = {"every": 0, "prompts": 0}
        if settings.eval.source:
            evals["source"] = settings.eval.source
        if settings.eval.by:
            evals["by"] = settings.eval.by
        return {
            "sampling": settings.sampling.model_dump(),
            "sandbox": settings.sandbox.model_dump(),
            "eval": evals,
        }

    def scored_by(self, settings: ComposedSettings, learned: str) -> dict[str, Any]:
        """The reward section: rules, and where a reward model is given, that for the prompts without an answer."""
        section = self.reward if is_scored(self.reward) else settings.reward
        values = dict(given_reward(section))
        if not learned:
            return values
        if not section.parts:
            raise WhetError(f"stage {self.name!r}: with a reward model the rules must be named; give reward.parts")
        rules = [{**part, "rows": "with_answer"} for part in values["parts"]]
        model = RewardPartSection(
            reward="learned", weight=self.reward_model_weight, settings={"folder": learned}, rows="without_answer"
        )
        return {**values, "parts": [*rules, model.model_dump(mode="json", exclude_defaults=True)]}

    def whole_config(
        self, settings: ComposedSettings, model: str, data: Mapping[str, Any], learned: str, steps: int
    ) -> dict[str, Any]:
        reward = {} if "reward" in self.train else {"reward": self.scored_by(settings, learned)}
        return merged(self.config(settings, model, data, steps), reward)

    def stage(self, composition: Composition) -> Stage:
        settings = composition.settings
        if self.steps and "steps" in self.train:
            raise WhetError(f"stage {self.name!r}: steps and train.steps both say how long; give one")
        prompts = StageInput(source=settings.data.source)
        if self.prompts:
            prompts = composition.rows(self, "prompts", self.prompts, ("rows", "completions"))
        start = composition.model(self, "start", self.start)
        learned = composition.reward_model(self, "reward_model", self.reward_model) if self.reward_model else None
        if prompts.source:
            composition.trained_on.setdefault(prompts.source, self.name)

        def data_of(location: str) -> dict[str, Any]:
            if self.prompts and self.prompts != settings.data.source:
                return row_source(settings, prompts, 0, location)
            return own_data(settings)

        def checked(model: str, data: Mapping[str, Any], folder: str) -> Any:
            values = self.whole_config(settings, model, data, folder, self.steps or 1)
            return check_training(self.method_name(), values, f"stage {self.name!r}: train")

        config = checked(settings.model.name, data_of(prompts.source or "rows.jsonl"), "model" if learned else "")
        count = known_rows(config, prompts)
        per_step = config.batch.prompts_per_step
        asked = self.steps or self.train.get("steps", 0)
        steps = asked or (steps_for(count, self.epochs, per_step) if count else 0)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            data, model = data_of(prompts.location(done)), start.model(done)
            scorer = "" if learned is None else newest_weights(learned.model(done))
            steps = asked or steps_for(num_rows(checked(model, data, scorer)), self.epochs, per_step)
            train_run(folder, self.method, self.whole_config(settings, model, data, scorer, steps))
            return trained_result(folder, steps=steps)

        completions = steps * per_step * config.batch.group_size
        cost = StageCost(
            steps * config.batch.updates_per_step * config.batch.epochs_per_batch,
            completions,
            completions,
            completions * config.sampling.max_new_tokens,
            training_seconds(config, steps),
            note="" if steps else f"as many steps as {self.epochs:g} passes over {prompts.stage} take",
        )
        scorers = [learned] if learned else []
        shared = ("sampling", "reward") if not is_scored(self.reward) else ("sampling",)
        about = f"{self.method} on {prompts.label}; starts from {start.label}"
        inputs = {"prompts": _counted(prompts, count), "start": start.label}
        return Stage(
            self.name,
            f"{about}{f'; prompts without an answer are scored by {learned.label}' if learned else ''}",
            work,
            {**entry_values(self), **shared_values(settings, shared), "data": data_of(prompts.source)},
            reads=tuple(
                dict.fromkeys((*prompts.reads, *start.reads, *(name for each in scorers for name in each.reads)))
            ),
            inputs=rl_inputs([prompts], [start, *scorers], [settings.reward, self.reward]),
            plan=StagePlan(inputs | ({"reward model": learned.label} if learned else {}), "model", cost),
        )


def rl_inputs(rows: Sequence[StageInput], models: Sequence[StageInput], rewards: Sequence[RewardSection]) -> Any:
    """Digests of what a stage reads that scores completions."""
    own = input_digests_of(rows, models)

    def digests() -> Mapping[str, str]:
        from whet.training.assembly.fingerprints import reward_file_digests

        return {**own(), **reward_file_digests(rewards)}

    return digests


def newest_weights(run: str) -> str:
    """The checkpoint of a run, or the folder itself."""
    from whet.model.load import newest_checkpoint

    return str(newest_checkpoint(Path(run)) or run)
