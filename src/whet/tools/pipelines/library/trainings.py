"""Stages that train: on demonstrations, by reinforcement learning, on pairs; and reward models.

What a training spends is counted in tokens of one forward pass of the policy's model: 1 for a token that is sampled or
that a frozen model reads, 3 for one that is trained on (forward, and twice that backward; Kaplan et al. 2020, arXiv
2001.08361, appendix B). Every completion counts with its prompt; all models are of the policy's size. It counts
arithmetic, not time: sampling is slower per token than scoring, and a shared prompt is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from whet.objective.presets import PRESETS
from whet.record.metrics.intervals import share_interval
from whet.record.text import memory_text, percent
from whet.reward.sections import RewardPartSection, RewardSection
from whet.settings.bounds import MOST_ROWS
from whet.settings.layers import merged
from whet.settings.sections import Table
from whet.tools.pipelines import amounts
from whet.tools.pipelines.library import takes
from whet.tools.pipelines.library.entry import Composition, StageEntry, StageInput, StageWork
from whet.tools.pipelines.settings import TRAIN_KEYS, PipelineSettings, is_scored, own_data
from whet.tools.pipelines.stages import StageCost, read_json_lines
from whet.tools.pipelines.training import RUN, check_training, steps_for, train_run, trained_result, training_cost
from whet.training.config import SUPERVISED, Config, PolicyConfig, PreferenceConfig, SFTConfig, config_class
from whet.types import WhetError

TRAINED = 3.0  # forward passes that one of training costs
DECIDED = ("method", "seed", "folder", "data")  # keys of a training that the stage itself decides


@dataclass(frozen=True)
class Passes:
    """How often a sequence of a method passes through a model, by what is done there."""

    sampled: float = 0.0
    scored: float = 0.0
    trained: float = 0.0

    @property
    def cost(self) -> float:
        """Per token of the sequence."""
        return self.sampled + self.scored + TRAINED * self.trained

    def __str__(self) -> str:
        parts = ((self.sampled, "sampled"), (self.scored, "scored"), (TRAINED * self.trained, "trained"))
        return " + ".join(f"{cost:g} {name}" for cost, name in parts if cost)


SELECTION = Passes(1.0, 1.0)  # one of n completions: written, and read by the reward model


def steps_within(budget: float, cost_per_step: float, most: int = 0) -> int:
    """Steps that cost as much as the budget, to the nearest step and at least one; `most` of them, 0: any number."""
    steps = max(1, round(budget / cost_per_step))
    return min(steps, most) if most else steps


def choices_within(budget: float, prompts: int, tokens: float, most: int) -> int:
    """n of best-of-n whose choice among n completions of `tokens` each spends the budget on these prompts."""
    return max(1, min(most, int(budget / (prompts * tokens * SELECTION.cost))))


def passes_of(config: Any) -> Passes:
    """How often a sequence of this training passes through a model.

    A completion of the data, of pairs, is read by the reference and learnt. One of a policy that learns from it is
    written, read by each frozen model and learnt in every epoch; the policy reads it again before the first of several
    updates; a critic of its own reads it and learns too.
    """
    from whet.tools.planner.from_config import objective_needs

    needs = objective_needs(config)
    reference = float("ref_logp" in needs)
    if isinstance(config, PreferenceConfig):
        return Passes(0.0, reference, 1.0)
    epochs = config.batch.epochs_per_batch
    own_critic = "value" in needs and not (config.trains_critic() and config.critic.trunk == "shared")
    reads_again = config.batch.updates_per_step * epochs > 1
    reward_model = 1.0
    return Passes(1.0, reference + reward_model + float(reads_again) + float(own_critic), epochs * (1.0 + own_critic))


def memory_of(config: Any) -> str:
    """What each model of a training keeps in memory, in words; empty for a model whose shape cannot be told."""
    from whet.model.load import device_choice
    from whet.tools.planner.from_config import device_plan, this_device

    plan = device_plan(config, this_device(device_choice(config.model.device)), 1, 1)
    sizes: dict[str, float] = {}
    for line in plan.memory.lines if plan is not None else ():
        name = line.name.partition(":")[0].partition(" (")[0]
        if name in ("policy", "reference", "critic", "reward model") and "activations" not in line.name:
            sizes[name] = sizes.get(name, 0.0) + line.bytes
    return ", ".join(f"{name} {memory_text(size)}" for name, size in sizes.items())


class TrainingEntry(StageEntry, gives=("model",), uses=("seed", "model")):
    """What every training has."""

    learns: ClassVar[bool] = True
    unplanned: ClassVar[frozenset[str]] = frozenset({"steps of", "cost of", "lengths"})
    read_key: ClassVar[str] = "rows"  # what it learns from, among its inputs

    start: takes.Model = Field("", description="the stage or model to start from; empty: the pipeline's model")
    steps: amounts.StepsOrNone = Field(0, description="steps; 0: as many as `epochs` passes take")
    epochs: amounts.EpochsOrNone = Field(
        1.0, description="passes over its rows or prompts; train.steps wins; 0: the method's own steps"
    )
    steps_of: takes.OptionalResult = Field("", description="an earlier training: as many steps as that one took")
    cost_of: takes.OptionalResult = Field(
        "", description="an earlier training with lengths: as many steps as cost what that one does"
    )
    lengths: takes.OptionalResult = Field(
        "", description="a stage of kind judged, whose completions say what a step of this costs"
    )
    most_epochs: amounts.EpochsOrNone = Field(0.0, description="with cost_of: passes over its rows at most; 0: any")
    train: Table = Field({}, description=f"settings of the training: {TRAIN_KEYS}")

    def method_name(self) -> str:
        """The method of `whet algorithms` that it trains by."""
        raise NotImplementedError

    def data_of(self, run: StageWork) -> dict[str, Any]:
        """The data section of the training."""
        raise NotImplementedError

    def more(self, run: StageWork) -> Mapping[str, Any]:
        """What this kind of training takes of the settings and of its other inputs; the user's keys win over it."""
        return {}

    def training_seed(self, settings: PipelineSettings) -> int:
        """The seed of the training."""
        return settings.seed

    def config(self, run: StageWork, steps: int = 0) -> dict[str, Any]:
        """The whole config: what all have, then the user's keys, then what the stage decides; 0 steps: the method's."""
        for key in DECIDED:
            if key in self.train:
                raise WhetError(f"stage {self.name!r}: train.{key} is set by the stage itself; drop it")
        if isinstance(self.train.get("model"), Mapping) and "name" in self.train["model"]:
            raise WhetError(f"stage {self.name!r}: train.model.name is the stage's start; give that instead")
        base = {
            "model": run.settings.model.model_dump(),
            "eval": {"every": 0, "prompts": 0},
            "report": {"save_every": run.settings.report.save_every, "keep_checkpoints": 1, "review_every": 0},
        }
        own = {
            "seed": self.training_seed(run.settings),
            "model": {"name": run.located("start")},
            "data": self.data_of(run),
            **({"steps": steps} if steps else {}),
        }
        return merged(merged(merged(base, self.more(run)), self.train), own)

    def checked(self, run: StageWork) -> Any:
        """The resolved config, before anything runs as far as it is known."""
        return check_training(self.method_name(), self.config(run), f"stage {self.name!r}: train")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        said = {"steps": self.steps, "train.steps": "steps" in self.train}
        asked = [key for key, value in {**said, "steps_of": self.steps_of, "cost_of": self.cost_of}.items() if value]
        if len(asked) > 1:
            raise WhetError(f"stage {self.name!r}: {asked[0]} and {asked[1]} both say how long; give one")
        named = super().find_inputs(composition)
        order = sorted(named, key=lambda key: (key != self.read_key, key != "start", key in TrainingEntry.unplanned))
        inputs = {key: named[key] for key in order}
        config = self.checked(StageWork(composition.settings, inputs))
        if not inputs[self.read_key].stage:
            inputs[self.read_key] = replace(inputs[self.read_key], count=num_rows(config))
        return inputs

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        read_as = self.data_of(run) if run.inputs[self.read_key].source else {}
        return {**super().depends_on(run), "data": read_as}

    def per_step(self, config: Any) -> int:
        """Rows or prompts of one step."""
        return int(config.batch.prompts_per_step if isinstance(config, PolicyConfig) else config.batch.rows_per_step)

    def known_steps(self, config: Any, count: int) -> int:
        """How many steps, as far as this entry alone decides; 0: that depends on an earlier stage."""
        asked = self.steps or int(self.train.get("steps", 0))
        if asked or self.steps_of or self.cost_of:
            return asked
        if not self.epochs:
            return int(config.steps)
        return steps_for(count, self.epochs, self.per_step(config)) if count else 0

    def work(self, run: StageWork) -> Mapping[str, Any]:
        config = self.checked(run)
        step_cost = self.step_cost(run, config) if self.lengths else 0.0
        if self.steps_of:
            steps = int(run.result("steps of")["steps"])
        elif self.cost_of:
            most = steps_for(num_rows(config), self.most_epochs, self.per_step(config)) if self.most_epochs else 0
            steps = steps_within(run.result("cost of")["budget"], step_cost, most)
        else:
            steps = self.known_steps(config, 0) or self.known_steps(config, num_rows(config))
        metrics = train_run(run.folder, self.method_name(), self.config(run, steps))
        result = self.result(run, metrics)
        return {**result, **self.spending(run, config, result, steps, step_cost)} if self.lengths else result

    def result(self, run: StageWork, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """What the training came to; `metrics` are those of its own eval, before and after."""
        return trained_result(run.folder)

    def step_cost(self, run: StageWork, config: Any) -> float:
        """Forward tokens that one step is expected to cost."""
        lengths = run.result("lengths")
        if isinstance(config, PolicyConfig):
            return passes_of(config).cost * self.per_step(config) * config.batch.group_size * float(lengths["sequence"])
        return passes_of(config).cost * self.per_step(config) * float(lengths["pair_tokens"])

    def spending(
        self, run: StageWork, config: Any, result: Mapping[str, Any], steps: int, step_cost: float
    ) -> dict[str, Any]:
        """The budget, and what was spent of it: by the completions that were sampled, or by the pairs."""
        budget = float(run.result("cost of")["budget"]) if self.cost_of else steps * step_cost
        spent = steps * step_cost
        if isinstance(config, PolicyConfig):
            cost = training_cost(run.folder / RUN)
            tokens = cost["sampled_tokens"] + run.result("lengths")["prompt"] * cost["completions"]
            spent = passes_of(config).cost * tokens
        words = f"spent {percent(spent / budget)} of the budget ({passes_of(config)} per token)"
        return {"summary": f"{result['summary']}; {words}", "spent": spent, "budget": budget}

    def about(self, run: StageWork) -> str:
        return f"{self.method_name()} on {run.labels[self.read_key]}; starts from {run.labels['start']}"

    def cost(self, run: StageWork) -> StageCost:
        config, rows = self.checked(run), run.inputs[self.read_key]
        steps = self.known_steps(config, rows.count)
        note = ""
        if self.steps_of or self.cost_of:
            note = f"as many steps as {'cost what ' if self.cost_of else ''}{self.steps_of or self.cost_of} took"
        elif not steps:
            note = f"as many updates as {self.epochs:g} passes over the rows of {rows.stage} take"
        if self.lengths and (memory := memory_of(config)):
            note = "; ".join(filter(None, (note, f"weights, gradients and moments of {memory}")))
        seconds = training_seconds(config, steps)
        if not isinstance(config, PolicyConfig):
            return StageCost(steps, steps * self.per_step(config), seconds=seconds, note=note)
        batch = config.batch
        completions = steps * batch.prompts_per_step * batch.group_size
        updates = steps * batch.updates_per_step * batch.epochs_per_batch
        tokens = completions * config.sampling.max_new_tokens
        return StageCost(updates, completions, completions, tokens, seconds, note)


def training_seconds(config: Any, steps: int, room: Any = None) -> float | None:
    """Seconds of so many steps by the plan of `whet plan`; None on a CPU, whose rates nobody measured."""
    from whet.model.load import device_choice
    from whet.tools.planner.from_config import UNKNOWN_PROMPT, device_plan, this_device

    if room is None:
        device = device_choice(config.model.device)
        if device.type != "cuda":
            return None
        room = this_device(device)
    plan = device_plan(config, room, UNKNOWN_PROMPT, 1)
    return plan.time.step * steps if plan is not None and plan.time.phases and steps else None


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
    from whet.data.source import read_rows

    return len(read_rows(config.data.source, config.data.limit or None))


class RowTraining(TrainingEntry):
    """A training on rows that are there before it starts."""

    data: Annotated[str, takes.InputRule(("rows",), key="rows")] = Field(
        "", description="its rows: an earlier stage, a file, task:NAME or hub:owner/name"
    )
    rows: amounts.CountOrNone = Field(0, description="how many a task writes, or of a file only the first; 0: all")

    def data_of(self, run: StageWork) -> dict[str, Any]:
        return run.data("rows", self.rows)


class PairTraining(RowTraining):
    """A training on pairs of completions."""

    data: Annotated[str, takes.InputRule(("pairs",), key="rows")] = Field(
        "", description="its pairs: an earlier stage, a file, task:NAME or hub:owner/name"
    )


class SFTEntry(RowTraining, kind="sft"):
    """Imitation of demonstrations: rows with a prompt and a completion."""

    every_completion: bool = Field(False, description="also learn the earlier assistant turns of a conversation")

    def method_name(self) -> str:
        return SUPERVISED

    def data_of(self, run: StageWork) -> dict[str, Any]:
        return {**super().data_of(run), **({"every_completion": True} if self.every_completion else {})}


class PreferenceEntry(PairTraining, kind="preference"):
    """A policy learns from pairs of completions."""

    method: str = Field("dpo", description="a preference method of `whet algorithms`")

    def method_name(self) -> str:
        if config_class(self.method) is not PreferenceConfig:
            raise WhetError(
                f"stage {self.name!r}: method {self.method!r} does not learn from pairs; give one such as 'dpo', as "
                "`whet algorithms` lists them"
            )
        return self.method

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        from whet.training.assembly.preference import preference_objective

        inputs = super().find_inputs(composition)
        config = self.checked(StageWork(composition.settings, inputs))
        if config.preference.online or config.preference.labels:
            raise WhetError(f"stage {self.name!r}: train.preference: it learns from pairs; drop online and labels")
        is_soft = getattr(composition.entries.get(self.data), "soft_labels", False)
        if is_soft and "preference" not in preference_objective(config).curve.takes:
            raise WhetError(f"soft_labels: {self.method} cannot weight pairs by preference; set it to false")
        return inputs


class RewardModelEntry(PairTraining, kind="reward_model", gives=("reward_model",)):
    """A model learns to score completions, from pairs; measured on held-out ones where they are given."""

    held_out: takes.OptionalPairs = Field(
        "", description="pairs that it is measured on: an earlier stage or a file; empty: none"
    )
    seed_offset: amounts.Seed = Field(0, description="added to the pipeline's seed")

    def method_name(self) -> str:
        return "rm"

    def training_seed(self, settings: PipelineSettings) -> int:
        return settings.seed + self.seed_offset

    def more(self, run: StageWork) -> Mapping[str, Any]:
        file = Path(run.location("held out")) if self.held_out else None
        is_empty = file is None or (file.is_file() and not file.stat().st_size)
        return {} if is_empty else {"eval": {"source": str(file), "prompts": MOST_ROWS}}

    def result(self, run: StageWork, metrics: Mapping[str, Any]) -> dict[str, Any]:
        result, after = super().result(run, metrics), metrics["after"]
        if "accuracy" not in after:
            return result
        count = len(read_json_lines(Path(run.location("held out"))))
        low, high = share_interval(after["accuracy"], count)
        words = f"accuracy {percent(after['accuracy'])} ({100 * low:.1f} to {100 * high:.1f}) on {count} held-out pairs"
        names = ("accuracy", "accuracy_when_longer", "accuracy_when_shorter")
        return {
            **result,
            "summary": f"{result['summary']}; {words}",
            "metrics": {name: after[name] for name in names if name in after},
            "interval": [low, high],
        }


class RLEntry(TrainingEntry, kind="rl"):
    """Reinforcement learning: completions to prompts are sampled, scored and learned from."""

    read_key: ClassVar[str] = "prompts"

    method: str = Field("grpo", description="a policy method of `whet algorithms`")
    prompts: takes.Prompts = Field(
        "", description="an earlier stage, a file, task:NAME or hub:owner/name; empty: the pipeline's"
    )
    reward: RewardSection = Field(RewardSection(), description="what scores completions; empty: the pipeline's reward")
    reward_model: takes.OptionalRewardModel = Field(
        "", description="a stage or folder of a reward model; see reward_model_rows"
    )
    reward_model_weight: float = Field(1.0, ge=0, le=1e6, description="weight of its score")
    reward_model_rows: Literal["without_answer", "all"] = Field(
        "without_answer", description="prompts that it scores; all: also those with an answer, and no rule is needed"
    )

    def method_name(self) -> str:
        if config_class(self.method) is not PolicyConfig:
            raise WhetError(f"stage {self.name!r}: method {self.method!r} draws no completions; give a policy method")
        return self.method

    def data_of(self, run: StageWork) -> dict[str, Any]:
        if self.prompts and self.prompts != run.settings.data.source:
            return run.data("prompts")
        return own_data(run.settings)

    def more(self, run: StageWork) -> Mapping[str, Any]:
        settings = run.settings
        evals: dict[str, Any] = {"every": 0, "prompts": 0}
        evals |= {key: value for key in ("source", "by") if (value := getattr(settings.eval, key))}
        values = {"sampling": settings.sampling.model_dump(), "sandbox": settings.sandbox.model_dump(), "eval": evals}
        learned = run.located("reward model") if self.reward_model else ""
        if "reward" not in self.train:
            values["reward"] = self.scored_by(settings, learned)
        critic = self.train.get("critic") or {}
        has_critic = "value" in PRESETS[self.method_name()].objective.needs() and critic.get("trunk") != "shared"
        if learned and self.reward_model_rows == "all" and has_critic:
            # a critic that can tell good completions from the first step on (2203.02155)
            values["critic"] = {"start": learned}
        return values

    def scored_by(self, settings: PipelineSettings, learned: str) -> dict[str, Any]:
        """The reward section: rules, and where a reward model is given, that one for its rows."""
        section = self.reward if is_scored(self.reward) else settings.reward
        values = section.model_dump(mode="json", exclude_defaults=True)
        if not learned:
            return values
        is_alone = self.reward_model_rows == "all"
        if not section.parts and not is_alone:
            raise WhetError(f"stage {self.name!r}: with a reward model the rules must be named; give reward.parts")
        rules = [{**part, **({} if is_alone else {"rows": "with_answer"})} for part in values.get("parts", ())]
        model = RewardPartSection(
            reward="learned", weight=self.reward_model_weight, settings={"folder": learned}, rows=self.reward_model_rows
        )
        return {**values, "parts": [*rules, model.model_dump(mode="json", exclude_defaults=True)]}

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        shared = ("sampling",) if is_scored(self.reward) else ("sampling", "reward")
        values = {name: getattr(run.settings, name).model_dump(mode="json") for name in shared}
        return {**super().depends_on(run), "shared": values, "data": self.data_of(run)}

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        return [settings.reward, self.reward]

    def about(self, run: StageWork) -> str:
        text = super().about(run)
        if not self.reward_model:
            return text
        which = "completions" if self.reward_model_rows == "all" else "prompts without an answer"
        return f"{text}; {which} are scored by {run.labels['reward model']}"
