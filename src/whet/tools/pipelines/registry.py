"""The pipelines by name, and one that a TOML file composes of library stages: `whet pipeline my.toml`.

A new one is a `Pipeline`: an entry here, or your own by `whet.register("pipeline", ...)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from whet.registry import load_plugins, register_builtins
from whet.settings.layers import read_toml, validated
from whet.settings.sections import Table
from whet.tools.pipelines.constitutional import CONSTITUTIONAL
from whet.tools.pipelines.distill import DISTILL
from whet.tools.pipelines.iterative_dpo import ITERATIVE_DPO
from whet.tools.pipelines.library import STAGE_KINDS
from whet.tools.pipelines.library.entry import StageEntry
from whet.tools.pipelines.overoptimization import OVEROPTIMIZATION
from whet.tools.pipelines.phased import PHASED
from whet.tools.pipelines.r1 import R1, R1_ZERO
from whet.tools.pipelines.rejection_sampling import REJECTION
from whet.tools.pipelines.rlaif import RLAIF
from whet.tools.pipelines.rlhf import RLHF
from whet.tools.pipelines.self_play import SELF_PLAY
from whet.tools.pipelines.self_rewarding import SELF_REWARDING
from whet.tools.pipelines.settings import Pipeline, PipelineSettings
from whet.tools.pipelines.ttrl import TTRL
from whet.types import WhetError, did_you_mean

NAME = "file"


class FilePipelineSettings(PipelineSettings):
    """Settings and stages of a pipeline file."""

    stages: tuple[Table, ...] = Field(
        (), max_length=1000, description="its stages in order: kind, name, inputs and settings of each"
    )

    small_run: ClassVar[Mapping[str, Any]] = {"sampling": {"max_new_tokens": 64}}


def entry_of(number: int, values: Mapping[str, Any]) -> StageEntry:
    """One `[[stages]]` of a file."""
    kind = values.get("kind")
    name = values.get("name") or f"number {number}"
    known = ", ".join(STAGE_KINDS)
    if not isinstance(kind, str):
        raise WhetError(f"stage {name!r} has no kind; give one of {known}")
    if kind not in STAGE_KINDS:
        raise WhetError(
            f"stage {name!r}: there is no stage of kind {kind!r}{did_you_mean(kind, STAGE_KINDS)}; there are {known}"
        )
    try:
        return validated(STAGE_KINDS[kind], {key: value for key, value in values.items() if key != "kind"})
    except WhetError as error:
        raise WhetError(f"stage {name!r} ({kind}): {str(error).removeprefix('config: ')}") from error


def file_entries(settings: FilePipelineSettings) -> list[StageEntry]:
    """The stages that a file lists."""
    if not settings.stages:
        raise WhetError("the pipeline file has no stages; add some: [[stages]] with kind and name")
    return [entry_of(number, values) for number, values in enumerate(settings.stages, 1)]


def is_pipeline_file(name: str) -> bool:
    """True for the name of a TOML file."""
    return name.endswith(".toml")


def read_pipeline_file(path: str) -> dict[str, Any]:
    """The settings of a pipeline file; one that names another pipeline belongs to --config."""
    values = read_toml(Path(path))
    if values.get("pipeline", NAME) != NAME:
        raise WhetError(
            f"{path}: holds settings of the pipeline {values['pipeline']!r}; "
            f"run `whet pipeline {values['pipeline']} --config {path}`"
        )
    return values


FROM_FILE = Pipeline(
    NAME, "the stages that a TOML file lists: `whet pipeline my.toml`", FilePipelineSettings, file_entries
)


PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        R1,
        R1_ZERO,
        REJECTION,
        TTRL,
        DISTILL,
        RLHF,
        PHASED,
        ITERATIVE_DPO,
        SELF_PLAY,
        RLAIF,
        SELF_REWARDING,
        CONSTITUTIONAL,
        OVEROPTIMIZATION,
        FROM_FILE,
    )
}


def find_pipeline(name: str) -> Pipeline:
    """The pipeline of that name; an unknown one is an error with the nearest name."""
    if name not in PIPELINES:
        load_plugins()
    if name not in PIPELINES:
        hint = did_you_mean(name, PIPELINES, cutoff=0.4)
        raise WhetError(f"no pipeline is called {name!r}{hint}; `whet pipeline` lists them: {', '.join(PIPELINES)}")
    return PIPELINES[name]


def _refusal(thing: Any) -> str:
    if not isinstance(thing, Pipeline):
        return "it is no Pipeline; give Pipeline(name, about, settings, stages) of whet.tools.pipelines.settings"
    is_fine = isinstance(thing.settings, type) and issubclass(thing.settings, PipelineSettings)
    return "" if is_fine else "its settings are no subclass of PipelineSettings; derive them from that class"


register_builtins("pipeline", PIPELINES, _refusal)
