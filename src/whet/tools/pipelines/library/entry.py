"""What a stage of the library is before it runs, and how a list of such entries becomes the stages of a pipeline.

An entry names its inputs: an earlier stage, or what the user has (a file, a task, a model). The type of a field says
what it may name (`Model`, `Rows`, `Pairs`, ...); `Composition` finds it and refuses what is missing in one line, before
anything runs. From its inputs, its own fields and the shared settings that it uses follows all the rest: which stages
it reads, its fingerprint and its line in the plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.data.contamination import require_clean
from whet.data.source import parse_source
from whet.reward.sections import RewardSection
from whet.settings.sections import Section
from whet.tools.pipelines.library.takes import RESULT, InputRule, Output
from whet.tools.pipelines.settings import PipelineSettings, answer_reward, sampling_config, shared_values
from whet.tools.pipelines.stages import (
    FinishedStage,
    Stage,
    StageCost,
    StagePlan,
    check_stages,
    read_json_lines,
    write_rows,
)
from whet.tools.pipelines.training import trained_model
from whet.types import WhetError, did_you_mean

# the file that an output lies in; a model is a run folder
OUTPUT_FILES: Mapping[str, str] = {"rows": "rows.jsonl", "completions": "completions.jsonl", "pairs": "pairs.jsonl"}
NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
Done = Mapping[str, FinishedStage]


@dataclass(frozen=True)
class StageInput:
    """One input of a stage: what an earlier stage leaves, or something of the user's."""

    stage: str = ""
    source: str = ""
    file: str = ""  # of that stage
    is_model: bool = False
    count: int = 0  # of its rows, where they are known before anything runs

    @property
    def label(self) -> str:
        """The stage, with the file where it has several, or the source without the folders it lies in."""
        if self.stage:
            return f"{self.stage}/{self.file}" if self.file and self.file not in OUTPUT_FILES.values() else self.stage
        form = parse_source(self.source).benchmark
        opening = f"{form.name}:" if form else ""
        if not os.path.isabs(self.source.removeprefix(opening)):
            return self.source
        path = Path(self.source.removeprefix(opening))
        return opening + (path.name if path.is_file() else "/".join(path.parts[-2:]))

    @property
    def planned(self) -> str:
        """Its label in the plan, with the number of its rows."""
        return f"{self.label} ({self.count:,} rows)" if self.count else self.label


@dataclass(frozen=True)
class StageWork:
    """What an entry works with: the shared settings and its inputs; its folder, once the earlier stages are done."""

    settings: PipelineSettings
    inputs: Mapping[str, StageInput]
    folder: Path = Path()
    done: Done = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The label of each input."""
        return {key: stage_input.label for key, stage_input in self.inputs.items()}

    def model(self, key: str) -> str:
        """The model that an input names; empty where the entry has no such input."""
        if key not in self.inputs:
            return ""
        stage_input = self.inputs[key]
        return trained_model(self.done[stage_input.stage]) if stage_input.stage else stage_input.source

    def weights(self, key: str) -> str:
        """The newest weights of an input that is a run, or the folder itself: what a reward model is read from."""
        from whet.model.run_models import run_model

        run = self.model(key)
        return str(run_model(Path(run)) or run) if run else ""

    def location(self, key: str) -> str:
        """The file or source of an input; a name for a file that an earlier stage is still to write."""
        stage_input = self.inputs[key]
        if not stage_input.stage:
            return stage_input.source
        if stage_input.stage not in self.done:
            return "rows.jsonl"
        return str((self.done[stage_input.stage].folder / stage_input.file).resolve())

    def located(self, key: str) -> str:
        """The model, reward model, file or source behind an input, as a training's config takes it.

        A model that is still to be trained has the shape of the pipeline's.
        """
        stage_input = self.inputs[key]
        if not stage_input.is_model:
            return self.location(key)
        if stage_input.stage and stage_input.stage not in self.done:
            return self.settings.model.name
        return self.weights(key) if key == "reward model" else self.model(key)

    def data(self, key: str, count: int = 0) -> dict[str, Any]:
        """The data section that reads the rows of an input; of a task so many, of others only the first; 0: all."""
        location = self.location(key)
        source, own = parse_source(location), self.settings.data
        data: dict[str, Any] = {"source": location}
        if source.is_task:
            data["difficulty"] = list(own.difficulty)
        if count:
            data["count" if source.is_generated else "limit"] = count
        if not self.inputs[key].stage and not source.is_generated:
            data |= {"columns": own.columns, "as_chat": own.as_chat, "unusable": own.unusable}
        return data

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The rows of an input that an earlier stage wrote."""
        return read_json_lines(Path(self.location(key)))

    def file_rows(self, stage: str, file: str) -> list[dict[str, Any]]:
        """The rows of a file of an earlier stage."""
        return read_json_lines(self.done[stage].folder / file)

    def result(self, key: str) -> Mapping[str, Any]:
        """What the stage behind an input returned."""
        return self.done[self.inputs[key].stage].result

    def write(self, output: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Leave rows for later stages: an output by its name, or a file."""
        write_rows(self.folder / OUTPUT_FILES.get(output, output), rows)


class StageEntry(Section):
    """One stage of a pipeline, as Python and a pipeline file write it."""

    kind: ClassVar[str]  # how a pipeline file calls it; this and the next two are keywords of a class
    gives: ClassVar[tuple[Output, ...]]  # what it leaves for other stages
    uses: ClassVar[tuple[str, ...]] = ()  # shared settings that its outcome depends on
    says: ClassVar[str] = ""  # one line for the user, with fields and labels of inputs in braces
    learns: ClassVar[bool] = False  # from the rows it reads, which must not hold eval prompts
    unplanned: ClassVar[frozenset[str]] = frozenset()  # inputs that the plan does not name
    cosmetic: ClassVar[frozenset[str]] = frozenset({"name"})  # fields that its outcome does not depend on

    name: str = Field(pattern=NAMES, max_length=60, description="name of the stage; others refer to it")

    def __init_subclass__(
        cls, kind: str = "", gives: tuple[Output, ...] = (), uses: tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        for name, value in (("kind", kind), ("gives", gives), ("uses", uses)):
            if value:  # else that of the class it derives from
                setattr(cls, name, value)

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        """What its fields name, by what it is to the stage; WhetError where one is missing or could not be used."""
        inputs: dict[str, StageInput] = {}
        fields = type(self).model_fields.items()
        named = [(name, part) for name, info in fields for part in info.metadata if isinstance(part, InputRule)]
        for name, wanted in sorted(named, key=lambda field: not field[1].is_needed):
            value = getattr(self, name)
            if not isinstance(value, str):  # several stages, each an input of its own
                names = value.values() if isinstance(value, dict) else value
                inputs |= {stage: composition.find(self, name, stage, wanted) for stage in names}
            elif value or wanted.is_needed:
                key = wanted.key or name.replace("_", " ")
                inputs[key] = composition.find(self, name, value, wanted)
        return inputs

    def about(self, run: StageWork) -> str:
        """One line for the user."""
        labels = {key.replace(" ", "_"): label for key, label in run.labels.items()}
        return self.says.format(**{**dict(self), **labels})

    def work(self, run: StageWork) -> Mapping[str, Any]:
        """Do it; the result as `stage_result` makes it."""
        raise NotImplementedError

    def depends_on(self, run: StageWork) -> dict[str, Any]:
        """All that its outcome depends on beside its inputs, as JSON."""
        own = self.model_dump(mode="json", exclude=set(self.cosmetic))
        return {"kind": self.kind, **own, **shared_values(run.settings, self.uses)}

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        """The rewards that score in it, its own and where it evaluates that of the eval: their files are its inputs."""
        own = [value for _, value in self if isinstance(value, RewardSection)]
        return [*own, answer_reward(settings)] if "eval" in self.uses else own

    def cost(self, run: StageWork) -> StageCost:
        """What it is expected to take."""
        return StageCost()

    def measures(self, composition: Composition) -> tuple[str, int] | None:
        """Whose metrics an eval measures and after which round; None where the stage is not an eval."""
        return None

    def stage(self, composition: Composition) -> Stage:
        """The stage to run, its inputs found among the earlier ones; WhetError where one is missing."""
        settings, inputs = composition.settings, self.find_inputs(composition)
        plan, sources = StageWork(settings, inputs), [named for named in inputs.values() if named.source]
        if self.learns:
            for rows in sources:
                if not rows.is_model:
                    composition.trained_on.setdefault(rows.source, self.name)

        def digests() -> Mapping[str, str]:
            from whet.training.assembly.fingerprints import data_digest, model_digest, reward_file_digests

            own = {
                f"{'model' if named.is_model else 'rows'} {named.source}": (
                    model_digest(named.source) if named.is_model else data_digest(named.source)
                )
                for named in sources
            }
            return {**own, **reward_file_digests(list(self.rewards(settings)))}

        return Stage(
            self.name,
            self.about(plan),
            lambda folder, done: self.work(StageWork(settings, inputs, folder, done)),
            self.depends_on(plan),
            measures=self.measures(composition),
            reads=tuple(dict.fromkeys(named.stage for named in inputs.values() if named.stage)),
            inputs=digests,
            plan=StagePlan(
                {key: named.planned for key, named in inputs.items() if key not in self.unplanned},
                OUTPUT_FILES.get(self.gives[0], self.gives[0]),
                self.cost(plan),
            ),
        )


@dataclass
class Composition:
    """The entries of a pipeline so far, and the settings that all of them share."""

    settings: PipelineSettings
    entries: dict[str, StageEntry] = field(default_factory=dict)
    later: frozenset[str] = frozenset()  # names of the entries to come
    trained_on: dict[str, str] = field(default_factory=dict)  # a source of the user's -> the stage that learns from it

    def find(self, entry: StageEntry, key: str, named: str, wanted: InputRule) -> StageInput:
        """What a field of an entry names: an output of an earlier stage (or STAGE/FILE, one of its files), else the
        user's model, reward model or rows."""
        is_model = bool({"model", "reward_model"} & {*wanted.outputs}) and wanted.outputs != RESULT.outputs
        own = {"model": self.settings.model.name, "data": self.settings.data.source}
        if not named and wanted.own:
            return StageInput(source=own[wanted.own], is_model=is_model)
        if not named:
            raise WhetError(
                f"stage {entry.name!r} ({entry.kind}) has no {key}; give the name of an earlier stage or a file"
            )
        from_stage = self._stage(entry, key, named, wanted)
        if from_stage is not None:
            return replace(from_stage, is_model=is_model)
        if wanted.outputs == RESULT.outputs:
            raise self._missing(entry, key, named, "anything else that has a result")
        if wanted.outputs == ("reward_model",) and not Path(named).is_dir():
            raise self._missing(entry, key, named, "the folder of a reward model")
        if not is_model and any(not path.is_file() for path in parse_source(named).files()):
            raise self._missing(entry, key, named, "a file, BENCHMARK:FILE, task:NAME or hub:owner/name")
        return StageInput(source=named, is_model=is_model)

    def _stage(self, entry: StageEntry, key: str, named: str, wanted: InputRule) -> StageInput | None:
        """What an earlier stage leaves; None where no stage is called that."""
        name, _, file = named.partition("/")
        if name in self.later:
            raise WhetError(
                f"stage {entry.name!r}: {key}={named!r} comes later in the pipeline; put it before this one"
            )
        if name not in self.entries:
            return None
        if file:
            return StageInput(stage=name, file=file)
        source = self.entries[name]
        output = next((output_name for output_name in wanted.outputs if output_name in source.gives), None)
        if output is None:
            raise WhetError(
                f"stage {entry.name!r}: {key}={named!r} is a stage of kind {source.kind}, which leaves "
                f"{' and '.join(source.gives)} and no {' or '.join(wanted.outputs)}; name another"
            )
        return StageInput(stage=name, file=OUTPUT_FILES.get(output, ""))

    def _missing(self, entry: StageEntry, key: str, named: str, expected: str) -> WhetError:
        known = ", ".join(self.entries) or "none"
        hint = did_you_mean(named, self.entries)
        return WhetError(
            f"stage {entry.name!r}: {key}={named!r} is no earlier stage{hint} and not {expected}; "
            f"earlier stages: {known}"
        )


def compose(settings: PipelineSettings, entries: Sequence[StageEntry | Stage]) -> list[Stage]:
    """The stages of a pipeline of library entries and stages of its own; the first one that cannot work is an error."""
    names = [entry.name for entry in entries]
    composition = Composition(settings)
    stages = []
    for index, entry in enumerate(entries):
        composition.later = frozenset(names[index:]) - composition.entries.keys()
        if isinstance(entry, Stage):
            stages.append(entry)
            continue
        stages.append(entry.stage(composition))
        composition.entries[entry.name] = entry
    check_stages(stages)
    refuse_contamination(settings, composition.trained_on)
    return stages


CLEAN = "leave them out (`whet data contamination` lists them), or give --set allow_contamination=true"


def refuse_contamination(settings: PipelineSettings, trained_on: Mapping[str, str]) -> None:
    """Raise where a file that a stage learns from holds prompts of the eval set. Tasks keep their splits apart."""
    source = settings.eval.source
    if settings.allow_contamination or not source or not settings.eval.prompts:
        return
    tests = _questions(settings, source)
    for trained, stage in trained_on.items():
        if parse_source(trained).is_stored:
            require_clean((f"stage {stage!r}: {trained}", _questions(settings, trained)), (source, tests), CLEAN)


def _questions(settings: PipelineSettings, source: str) -> list[str]:
    from whet.training.assembly.prompts import load_prompts

    config = sampling_config(
        settings, "", {**settings.data.model_dump(), "source": source, "limit": 0, "as_chat": False}
    )
    return [prompt.question() for prompt in load_prompts(config, evaluation=False)]
