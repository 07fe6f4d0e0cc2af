"""What a stage of the library is before it runs: an entry of a pipeline file, its inputs found and its cost known.

An entry names its inputs: an earlier stage, or what the user has (a file, a task, a model). `Composition` finds them
and refuses what is missing in one line, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from whet.data.source import parse_source
from whet.settings.sections import Section
from whet.tools.pipelines.stages import FinishedStage, Stage
from whet.tools.pipelines.training import trained_model
from whet.types import WhetError, did_you_mean

if TYPE_CHECKING:
    from whet.tools.pipelines.library.settings import ComposedSettings

# what a stage leaves behind for others, and the file that it lies in; a model is a run folder
Output = Literal["model", "reward_model", "rows", "completions", "pairs", "metrics"]
OUTPUT_FILES: Mapping[Output, str] = {"rows": "rows.jsonl", "completions": "completions.jsonl", "pairs": "pairs.jsonl"}
NAMES = r"[A-Za-z0-9][A-Za-z0-9_.-]*"


@dataclass(frozen=True)
class StageInput:
    """One input of a stage: what an earlier stage leaves, or something of the user's."""

    stage: str = ""
    source: str = ""
    file: str = ""  # of that stage

    @property
    def label(self) -> str:
        """The stage, or the source without the folders it lies in."""
        if self.stage or not os.path.isabs(self.source):
            return self.stage or self.source
        path = Path(self.source)
        return path.name if path.is_file() else "/".join(path.parts[-2:])

    def location(self, done: Mapping[str, FinishedStage]) -> str:
        """Where its rows are, once the stage is done."""
        return str((done[self.stage].folder / self.file).resolve()) if self.stage else self.source

    def model(self, done: Mapping[str, FinishedStage]) -> str:
        """The model, once the stage is done."""
        return trained_model(done[self.stage]) if self.stage else self.source

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.stage,) if self.stage else ()


class StageEntry(Section):
    """One stage of a pipeline, as Python and a pipeline file write it."""

    kind: ClassVar[str]
    gives: ClassVar[tuple[Output, ...]]

    name: str = Field(pattern=NAMES, max_length=60, description="of the stage; others refer to it")

    def stage(self, composition: Composition) -> Stage:
        """The stage to run, its inputs found among the earlier ones; WhetError where one is missing."""
        raise NotImplementedError


@dataclass
class Composition:
    """The entries of a pipeline so far, and the settings that all of them share."""

    settings: ComposedSettings
    entries: dict[str, StageEntry] = field(default_factory=dict)
    later: frozenset[str] = frozenset()  # names of the entries to come
    trained_on: dict[str, str] = field(default_factory=dict)  # a source of the user's -> the stage that learns from it

    def model(self, entry: StageEntry, key: str, named: str) -> StageInput:
        """A model: of an earlier stage, by name or folder; empty: the pipeline's own."""
        found = self._stage(entry, key, named, ("model",))
        return found or StageInput(source=named or self.settings.model.name)

    def reward_model(self, entry: StageEntry, key: str, named: str) -> StageInput:
        found = self._stage(entry, key, named, ("reward_model",))
        if found is None and not Path(named).is_dir():
            raise self._missing(entry, key, named, "the folder of a reward model")
        return found or StageInput(source=named)

    def rows(self, entry: StageEntry, key: str, named: str, wanted: tuple[Output, ...] = ("rows",)) -> StageInput:
        """Rows: of an earlier stage, of a file, of a task or of the hub."""
        if not named:
            raise WhetError(
                f"stage {entry.name!r} ({entry.kind}) has no {key}; give the name of an earlier stage or a file"
            )
        found = self._stage(entry, key, named, wanted)
        if found is None:
            source = parse_source(named)
            if source.kind == "file" and not Path(named).expanduser().is_file():
                raise self._missing(entry, key, named, "a file, task:NAME or hub:owner/name")
        return found or StageInput(source=named)

    def _stage(self, entry: StageEntry, key: str, named: str, wanted: tuple[Output, ...]) -> StageInput | None:
        if named in self.later:
            raise WhetError(
                f"stage {entry.name!r}: {key}={named!r} comes later in the pipeline; put it before this one"
            )
        if named not in self.entries:
            return None
        source = self.entries[named]
        given = next((each for each in wanted if each in source.gives), None)
        if given is None:
            raise WhetError(
                f"stage {entry.name!r}: {key}={named!r} is a stage of kind {source.kind}, which leaves "
                f"{' and '.join(source.gives)} and no {' or '.join(wanted)}; name another"
            )
        return StageInput(stage=named, file=OUTPUT_FILES.get(given, ""))

    def _missing(self, entry: StageEntry, key: str, named: str, expected: str) -> WhetError:
        known = ", ".join(self.entries) or "none"
        hint = did_you_mean(named, self.entries)
        return WhetError(
            f"stage {entry.name!r}: {key}={named!r} is no earlier stage{hint} and not {expected}; "
            f"earlier stages: {known}"
        )


def entry_values(entry: StageEntry) -> dict[str, Any]:
    """What the outcome of a stage depends on of its own settings."""
    return {"kind": entry.kind, **entry.model_dump(mode="json", exclude={"name"})}


def input_digests_of(
    inputs: Sequence[StageInput], models: Sequence[StageInput] = ()
) -> Callable[[], Mapping[str, str]]:
    """Digests of what is the user's own among these inputs; earlier stages have fingerprints."""

    def digests() -> Mapping[str, str]:
        from whet.training.assembly.fingerprints import data_digest, model_digest

        found = {f"rows {each.source}": data_digest(each.source) for each in inputs if each.source}
        return found | {f"model {each.source}": model_digest(each.source) for each in models if each.source}

    return digests
