"""What a stage of the library is before it runs, and how a list of such entries becomes the stages of a pipeline.

An entry names its inputs: an earlier stage, or what the user has (a file, a task, a model). `Composition` finds them
and refuses what is missing in one line, before anything runs. From its inputs, its own fields and the shared settings
that it uses follows all the rest: which stages it reads, its fingerprint and its line in the plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from whet.data.contamination import require_clean
from whet.data.source import parse_source
from whet.reward.sections import RewardSection
from whet.settings.sections import Section
from whet.tools.pipelines.settings import PipelineSettings, sampling_config, shared_values
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

# what a stage leaves behind for others, and the file that it lies in; a model is a run folder
Output = Literal["model", "reward_model", "rows", "completions", "pairs", "metrics"]
OUTPUT_FILES: Mapping[str, str] = {"rows": "rows.jsonl", "completions": "completions.jsonl", "pairs": "pairs.jsonl"}
REWARD_MODEL = "reward model"  # the input of that name is read from its newest checkpoint
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
        if not os.path.isabs(self.source):
            return self.source
        path = Path(self.source)
        return path.name if path.is_file() else "/".join(path.parts[-2:])

    @property
    def planned(self) -> str:
        """Its label in the plan, with the number of its rows."""
        return f"{self.label} ({self.count:,} rows)" if self.count else self.label

    def location(self, done: Done) -> str:
        """Where its rows are, once the stage is done."""
        return str((done[self.stage].folder / self.file).resolve()) if self.stage else self.source

    def model(self, done: Done) -> str:
        """The model, once the stage is done."""
        return trained_model(done[self.stage]) if self.stage else self.source


Inputs = Mapping[str, StageInput]


@dataclass(frozen=True)
class StageWork:
    """What an entry works with: the shared settings, its folder, and its inputs once the earlier stages are done."""

    settings: PipelineSettings
    inputs: Inputs
    folder: Path
    done: Done

    def model(self, key: str) -> str:
        """The model that an input names; empty where the entry has no such input."""
        return self.inputs[key].model(self.done) if key in self.inputs else ""

    def weights(self, key: str) -> str:
        """The newest weights of an input that is a run, or the folder itself: what a reward model is read from."""
        from whet.model.run_models import run_model

        run = self.model(key)
        return str(run_model(Path(run)) or run) if run else ""

    def location(self, key: str) -> str:
        """The file or source of an input."""
        return self.inputs[key].location(self.done)

    def located(self, key: str) -> str:
        """The model, reward model, file or source behind an input, as a training's config takes it."""
        if not self.inputs[key].is_model:
            return self.location(key)
        return self.weights(key) if key == REWARD_MODEL else self.model(key)

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The rows of an input that an earlier stage wrote."""
        return read_json_lines(Path(self.location(key)))

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
        """Its inputs by what they are to it; WhetError where one is missing or could not be used."""
        return {}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        """One line for the user."""
        raise NotImplementedError

    def work(self, run: StageWork) -> Mapping[str, Any]:
        """Do it; the result as `stage_result` makes it."""
        raise NotImplementedError

    def depends_on(self, settings: PipelineSettings, inputs: Inputs) -> dict[str, Any]:
        """All that its outcome depends on beside its inputs, as JSON."""
        own = self.model_dump(mode="json", exclude=set(self.cosmetic))
        return {"kind": self.kind, **own, **shared_values(settings, self.uses)}

    def rewards(self, settings: PipelineSettings) -> Sequence[RewardSection]:
        """The rewards that score in it; their files are among its inputs."""
        return ()

    def cost(self, settings: PipelineSettings, inputs: Inputs) -> StageCost:
        """What it is expected to take."""
        return StageCost()

    def measures(self, composition: Composition) -> tuple[str, int] | None:
        """Whose metrics an eval measures and after which round; None where the stage is not an eval."""
        return None

    def stage(self, composition: Composition) -> Stage:
        """The stage to run, its inputs found among the earlier ones; WhetError where one is missing."""
        settings, inputs = composition.settings, self.find_inputs(composition)
        if self.learns:
            for learnt in inputs.values():
                if learnt.source and not learnt.is_model:
                    composition.trained_on.setdefault(learnt.source, self.name)

        def work(folder: Path, done: Done) -> Mapping[str, Any]:
            return self.work(StageWork(settings, inputs, folder, done))

        def digests() -> Mapping[str, str]:
            from whet.training.assembly.fingerprints import data_digest, model_digest, reward_file_digests

            own = [stage_input for stage_input in inputs.values() if stage_input.source]
            models = {
                f"model {stage_input.source}": model_digest(stage_input.source)
                for stage_input in own
                if stage_input.is_model
            }
            rows = {
                f"rows {stage_input.source}": data_digest(stage_input.source)
                for stage_input in own
                if not stage_input.is_model
            }
            return {**rows, **models, **reward_file_digests(list(self.rewards(settings)))}

        return Stage(
            self.name,
            self.about(settings, inputs),
            work,
            self.depends_on(settings, inputs),
            measures=self.measures(composition),
            reads=tuple(dict.fromkeys(stage_input.stage for stage_input in inputs.values() if stage_input.stage)),
            inputs=digests,
            plan=StagePlan(
                {key: stage_input.planned for key, stage_input in inputs.items() if key not in self.unplanned},
                OUTPUT_FILES.get(self.gives[0], self.gives[0]),
                self.cost(settings, inputs),
            ),
        )


@dataclass
class Composition:
    """The entries of a pipeline so far, and the settings that all of them share."""

    settings: PipelineSettings
    entries: dict[str, StageEntry] = field(default_factory=dict)
    later: frozenset[str] = frozenset()  # names of the entries to come
    trained_on: dict[str, str] = field(default_factory=dict)  # a source of the user's -> the stage that learns from it

    def model(self, entry: StageEntry, key: str, named: str) -> StageInput:
        """A model: of an earlier stage, by name or folder; empty: the pipeline's own."""
        from_stage = self.stage(entry, key, named, ("model",))
        return replace(from_stage or StageInput(source=named or self.settings.model.name), is_model=True)

    def reward_model(self, entry: StageEntry, key: str, named: str) -> StageInput:
        """A reward model: of an earlier stage, or a folder."""
        from_stage = self.stage(entry, key, named, ("reward_model",))
        if from_stage is None and not Path(named).is_dir():
            raise self._missing(entry, key, named, "the folder of a reward model")
        return replace(from_stage or StageInput(source=named), is_model=True)

    def rows(self, entry: StageEntry, key: str, named: str, wanted: tuple[Output, ...] = ("rows",)) -> StageInput:
        """Rows: of an earlier stage (or STAGE/FILE, one of its files), of a file, of a task or of the hub."""
        if not named:
            raise WhetError(
                f"stage {entry.name!r} ({entry.kind}) has no {key}; give the name of an earlier stage or a file"
            )
        from_stage = self.stage(entry, key, named, wanted)
        if from_stage is None:
            source = parse_source(named)
            if source.kind == "file" and not Path(named).expanduser().is_file():
                raise self._missing(entry, key, named, "a file, task:NAME or hub:owner/name")
        return from_stage or StageInput(source=named)

    def prompts(self, entry: StageEntry, key: str, named: str) -> StageInput:
        """Prompts: rows, or those that an earlier stage was asked; empty: the pipeline's own."""
        if not named:
            return StageInput(source=self.settings.data.source)
        return self.rows(entry, key, named, ("rows", "completions"))

    def known_stage(self, entry: StageEntry, key: str, named: str) -> StageInput:
        """An earlier stage whose result is read, whatever it leaves."""
        from_stage = self.stage(entry, key, named, ("metrics", "model", "completions", "rows", "pairs"))
        if from_stage is None:
            raise self._missing(entry, key, named, "anything else that has a result")
        return from_stage

    def stage(self, entry: StageEntry, key: str, named: str, wanted: tuple[Output, ...]) -> StageInput | None:
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
        output = next((output_name for output_name in wanted if output_name in source.gives), None)
        if output is None:
            raise WhetError(
                f"stage {entry.name!r}: {key}={named!r} is a stage of kind {source.kind}, which leaves "
                f"{' and '.join(source.gives)} and no {' or '.join(wanted)}; name another"
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
