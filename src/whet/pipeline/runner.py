"""Runs a pipeline: from its settings to a folder, a console and a page; resumes it where it was broken off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config.config import read_toml
from whet.config.run_folder import LOCK, claimed_place, discard, locked
from whet.config.sections import RewardSection
from whet.pipeline import FinishedStage, Stage, write_atomically
from whet.pipeline.progress import ProgressPrinter, print_line, run_with_progress
from whet.pipeline.registry import find_pipeline
from whet.pipeline.settings import Pipeline, PipelineSettings, resolve_settings, settings_toml
from whet.pipeline.training import RUN
from whet.report.pipeline_page import write_pipeline_page
from whet.report.pipeline_summary import PipelineSummary, StageSummary, aligned, rounds_table, verdict
from whet.report.run_page import REPORT
from whet.types import WhetError

SETTINGS, COMMAND = "pipeline.toml", "command.txt"
CODE_TESTS = "code_tests"


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline's folder after its stages have run."""

    folder: Path
    status: str  # finished or interrupted
    stages: Mapping[str, FinishedStage]
    page: Path


def run_pipeline(name: str, *layers: Mapping[str, Any], command: str = "") -> PipelineRun:
    """Run a pipeline in a new folder; later layers of settings win."""
    pipeline = find_pipeline(name)
    settings = resolve_settings(pipeline, *layers)
    stages = pipeline.stages(settings)
    start_pipeline_sandbox(settings)
    before = (COMMAND, f".{COMMAND}", f".{SETTINGS}")
    with claimed_place(settings.folder, pipeline.name, SETTINGS, before, _refuse_used) as folder:
        write_atomically(folder / COMMAND, f"{command}\n")
        write_atomically(folder / SETTINGS, settings_toml(settings.model_copy(update={"folder": str(folder)})))
        try:
            return _run(pipeline, stages, folder)
        except WhetError as error:
            if not _has_results(folder):  # an error found before anything was done leaves no folder behind
                discard(folder)
                raise
            raise _with_next_step(error, folder) from error


def _refuse_used(folder: Path) -> None:
    if (folder / SETTINGS).exists():
        raise WhetError(f"{folder} already holds a pipeline; `whet resume {folder}`, or give another --folder")
    if any(path.name != LOCK for path in folder.iterdir()):
        raise WhetError(f"{folder} already exists and is not a pipeline; give an empty or new --folder")


def resume_pipeline(
    folder: str | Path,
    steps: int | None = None,
    checkpoint: str | None = None,
    settings: Sequence[str] | None = None,
    accept_changes: bool = False,
) -> PipelineRun:
    """Continue a pipeline; stages that are finished are not run again."""
    place = Path(folder)
    for flag, given in (("--steps", steps), ("--from", checkpoint), ("--set", settings)):
        if given is not None and given != []:
            raise WhetError(f"{flag} has no effect on a pipeline, which continues where it stopped; drop it")
    values = read_toml(place / SETTINGS)
    if "recipe" in values:
        raise WhetError(f"{place} was made by whet 0.1, whose pipelines 0.2 cannot continue; start it again")
    pipeline = find_pipeline(str(values.get("pipeline")))
    resolved = resolve_settings(pipeline, {**values, "folder": str(place)})
    start_pipeline_sandbox(resolved)
    stages = pipeline.stages(resolved)
    with locked(place):
        try:
            return _run(pipeline, stages, place)
        except WhetError as error:
            raise _with_next_step(error, place) from error


def start_pipeline_sandbox(settings: PipelineSettings) -> None:
    """Refuse a machine that isolates too little now, and not in the stage whose reward runs code."""
    from whet.build.rewards import start_sandbox
    from whet.reward import RewardPart, find_reward, template

    sections = [getattr(settings, name) for name in type(settings).model_fields] + [settings.eval.reward]
    rewards = [section for section in sections if isinstance(section, RewardSection)]
    named = [(part.reward, part.settings) for reward in rewards for part in reward.parts]
    ready_made = [template(reward.template) for reward in rewards if reward.template]
    named += [(str(part.reward), dict(part.settings)) for parts in ready_made for part in parts]
    built_in = [RewardPart(find_reward(name, given)) for name, given in named if name == CODE_TESTS]
    start_sandbox(built_in, settings.sandbox.require)


def is_pipeline(folder: str | Path) -> bool:
    return (Path(folder) / SETTINGS).is_file()


def _run(pipeline: Pipeline, stages: Sequence[Stage], folder: Path) -> PipelineRun:
    def draw(finished: Mapping[str, FinishedStage], status: str = "running") -> Path:
        return write_pipeline_page(folder, _story(pipeline, stages, folder, finished, status))

    printer = ProgressPrinter(
        f"whet pipeline {pipeline.name}: {pipeline.about}\n{len(stages)} stages in {folder}", draw
    )
    printer.current = pipeline.name
    status = "failed"
    try:
        status = run_with_progress(stages, folder, printer)
    finally:
        page = draw(printer.finished, status)
    summary = _story(pipeline, stages, folder, printer.finished, status)
    print_line("")
    for line in aligned(rounds_table(summary)):
        print_line(line)
    print_line(f"\n{status}: {verdict(summary)}")
    print_line(f"page  {page}")
    if status != "finished":
        print_line(f"next  whet resume {folder}")
    return PipelineRun(folder, status, printer.finished, page)


def _story(
    pipeline: Pipeline, stages: Sequence[Stage], folder: Path, finished: Mapping[str, FinishedStage], status: str
) -> PipelineSummary:
    """What the page is drawn from."""
    command = folder / COMMAND
    return PipelineSummary(
        pipeline.name,
        pipeline.about,
        status,
        tuple(_stage_line(folder, stage, finished.get(stage.name)) for stage in stages),
        command.read_text(encoding="utf-8").strip() if command.is_file() else "",
        (folder / SETTINGS).read_text(encoding="utf-8"),
    )


def _stage_line(folder: Path, stage: Stage, done: FinishedStage | None) -> StageSummary:
    if done is None:
        return StageSummary(stage.name, stage.about)
    result, report = done.result, done.folder / RUN / REPORT
    return StageSummary(
        stage.name,
        stage.about,
        str(result.get("summary", "")),
        done.seconds,
        result.get("metrics", {}),
        result.get("counts", {}),
        stage.measures,
        int(result.get("eval_prompts", 0)),
        str(result.get("stop_reason", "")),
        report.relative_to(folder).as_posix() if report.is_file() else "",
    )


def _has_results(folder: Path) -> bool:
    own = {SETTINGS, COMMAND, LOCK, "pipeline.html"}
    return any(path.is_file() and path.name not in own for path in folder.rglob("*"))


def _with_next_step(error: WhetError, folder: Path) -> WhetError:
    """The error with how to continue."""
    return WhetError(f"{error}; after fixing that, continue with `whet resume {folder}`")
