"""Runs a pipeline: from its settings to a folder, a console and a page; resumes it where it was broken off."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whet.api.ranks import refuse_ranks
from whet.pages.pipeline_page import (
    MeasuredPolicy,
    PipelineSummary,
    StageSummary,
    comparison_lines,
    rounds_table,
    verdict,
    write_pipeline_page,
)
from whet.pages.run_report import REPORT
from whet.record.run_folder import LOCK, claimed_place, discard, locked, write_atomically
from whet.record.text import aligned, duration, quantity
from whet.reward.sections import RewardSection
from whet.settings.layers import flattened, read_toml
from whet.tools.pipelines.library.entry import compose
from whet.tools.pipelines.registry import find_pipeline
from whet.tools.pipelines.settings import Pipeline, PipelineSettings, resolve_settings, settings_toml
from whet.tools.pipelines.stages import (
    FinishedStage,
    Interrupted,
    ProgressPrinter,
    Stage,
    StageCost,
    print_line,
    read_json_lines,
    run_stages,
    unchanged_stages,
)
from whet.tools.pipelines.training import RUN
from whet.training.run_inputs import INPUTS, RunInputs, accepted_inputs, read_inputs, started_in, write_inputs
from whet.types import RunFailed, WhetError

HEAD = ["stage", "reads", "writes", "updates", "completions", "tokens sampled"]
SETTINGS, COMMAND = "pipeline.toml", "command.txt"
# of an eval stage: a row per held-out prompt, and per prompt that several completions were drawn for
EVAL_ROWS, DRAWN_ROWS = "completions.jsonl", "samples.jsonl"
CODE_TESTS = "code_tests"


def plan_lines(stages: Sequence[Stage], unchanged: Collection[str] = ()) -> list[str]:
    """A line per stage, the sum, and what the numbers mean."""
    costs = [stage.plan.cost for stage in stages]
    total = StageCost(
        updates=sum(cost.updates for cost in costs),
        completions=sum(cost.completions for cost in costs),
        sampled_tokens=sum(cost.sampled_tokens for cost in costs),
        seconds=sum(cost.seconds or 0.0 for cost in costs),
    )
    timed = bool(total.seconds)
    rows = [[*HEAD, "time"]]
    for number, stage in enumerate(stages, 1):
        named = (where if where == what else f"{what}: {where}" for what, where in stage.plan.inputs.items())
        mark = " (done)" if stage.name in unchanged else ""
        name = f"{number}. {stage.name}{mark}"
        rows.append([name, "; ".join(named) or stage.about, stage.plan.writes, *_amounts(stage.plan.cost)])
    rows.append(["in all", "", "", *_amounts(total)])
    lines = aligned(rows if timed else [row[:-1] for row in rows], left=3)
    lines += [f"{stage.name}: {stage.plan.cost.note}" for stage in stages if stage.plan.cost.note]
    if any(cost.sampled_tokens for cost in costs):
        lines.append("tokens sampled are at most: every completion as long as its budget")
    if timed:
        lines.append("time: of the trainings alone, by the rates of `whet plan`; sampling and evals come on top")
    else:
        lines.append("no time is given: nothing was measured on a device like this one that it could be told by")
    if unchanged:
        lines.append("(done): finished in the folder with these settings and inputs; it is skipped")
    return lines


def _amounts(cost: StageCost) -> list[str]:
    numbers = (cost.updates, cost.completions, cost.sampled_tokens)
    return [*(quantity(number) if number else "" for number in numbers), duration(cost.seconds) if cost.seconds else ""]


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline's folder after its stages have run."""

    folder: Path
    status: str  # finished or interrupted
    stages: Mapping[str, FinishedStage]
    page: Path


def run_pipeline(name: str, *layers: Mapping[str, Any], command: str = "") -> PipelineRun:
    """Run a pipeline in a new folder, or in one that holds it already: stages whose inputs are the same are skipped.

    Later layers of settings win.
    """
    refuse_ranks("a pipeline")
    pipeline, settings, stages = _planned(name, *layers)
    start_pipeline_sandbox(settings)
    folder = Path(settings.folder)
    if settings.folder and (folder / SETTINGS).is_file():
        with locked(folder):
            before = read_toml(folder / SETTINGS)
            if before.get("pipeline") != pipeline.name:
                raise WhetError(
                    f"{folder} already holds a pipeline {before.get('pipeline')!r}; "
                    f"`whet resume {folder}`, or give another --folder"
                )
            _write_start(folder, settings, command)
            return _run(pipeline, stages, folder)
    before_config = (INPUTS, f".{INPUTS}", COMMAND, f".{COMMAND}", f".{SETTINGS}")
    with claimed_place(settings.folder, pipeline.name, SETTINGS, before_config, _refuse_used) as folder:
        _write_start(folder, settings.model_copy(update={"folder": str(folder)}), command)
        return _run(pipeline, stages, folder, is_new=True)


def _planned(name: str, *layers: Mapping[str, Any]) -> tuple[Pipeline, PipelineSettings, list[Stage]]:
    pipeline = find_pipeline(name)
    settings = resolve_settings(pipeline, *layers)
    return pipeline, settings, compose(settings, pipeline.stages(settings))


def _write_start(folder: Path, settings: PipelineSettings, command: str) -> None:
    """What a pipeline begins with; its settings come last: with them it has begun."""
    write_inputs(folder, pipeline_inputs(settings, RunInputs(os.getcwd(), command)))
    write_atomically(folder / COMMAND, f"{command}\n")
    write_atomically(folder / SETTINGS, settings_toml(settings))


def planned_text(name: str, *layers: Mapping[str, Any]) -> str:
    """What a pipeline would do, in lines that TOML skips, and its settings as TOML: a file for `--config`."""
    pipeline, settings, stages = _planned(name, *layers)
    done = unchanged_stages(stages, Path(settings.folder)) if settings.folder else []
    lines = [f"# {line}".rstrip() for line in (f"{pipeline.name}: {pipeline.about}", *plan_lines(stages, done))]
    return "\n".join(lines) + f"\n\n{settings_toml(settings)}"


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
    hours: float | None = None,
) -> PipelineRun:
    """Continue a pipeline; stages that are finished are not run again."""
    refuse_ranks("a pipeline")
    path, start = Path(folder), started_in(Path(folder))
    if start is not None and not start.samefile(Path.cwd()):  # relative paths in its settings start there
        path = Path(os.path.relpath(path.resolve(), start))
        with contextlib.chdir(start):
            return resume_pipeline(path, steps, checkpoint, settings, accept_changes, hours)
    for flag, value in (("--steps", steps), ("--hours", hours), ("--from", checkpoint), ("--set", settings)):
        if value is not None and value != []:
            raise WhetError(f"{flag} has no effect on a pipeline, which continues where it stopped; drop it")
    values = read_toml(path / SETTINGS)
    pipeline, resolved, stages = _planned(str(values.get("pipeline")), {**values, "folder": str(path)})
    start_pipeline_sandbox(resolved)
    with locked(path):
        settle_inputs(path, resolved, accept_changes)
        return _run(pipeline, stages, path)


def pipeline_inputs(settings: PipelineSettings, before: RunInputs) -> RunInputs:
    """What the stages read: the config, and digests of data, model and reward files."""
    from whet.training.assembly.fingerprints import input_digests, reward_file_digests

    rewards = reward_file_digests(_reward_sections(settings))
    values = json.loads(json.dumps(flattened(settings.model_dump(mode="json"))))
    return replace(before, config=values, digests={**input_digests(settings), **rewards})


def _reward_sections(settings: PipelineSettings) -> list[RewardSection]:
    sections = [getattr(settings, name) for name in type(settings).model_fields] + [settings.eval.reward]
    return [section for section in sections if isinstance(section, RewardSection)]


def settle_inputs(folder: Path, settings: PipelineSettings, accept_changes: bool) -> None:
    """Refuse data, a model or a reward that changed since the pipeline began, or note that it did."""
    before = read_inputs(folder)
    if before is None:
        return
    now = pipeline_inputs(settings, before)
    names = sorted(before.digests.keys() | now.digests.keys())
    changed = [f"{name} changed" for name in names if before.digests.get(name) != now.digests.get(name)]
    if changed and not accept_changes:
        raise WhetError(
            f"{folder}: not what the pipeline began with: {'; '.join(changed)}; undo that, or continue with it: "
            f"`whet resume {folder} --accept-changes`"
        )
    if changed:
        write_inputs(folder, accepted_inputs(before, now, changed, 0))


def start_pipeline_sandbox(settings: PipelineSettings) -> None:
    """Refuse a machine that isolates too little now, and not in the stage whose reward runs code."""
    from whet.reward.combine import RewardPart
    from whet.reward.find import find_reward
    from whet.reward.templates import template
    from whet.training.assembly.rewards import start_sandbox

    rewards = _reward_sections(settings)
    named = [(part.reward, part.settings) for reward in rewards for part in reward.parts]
    ready_made = [template(reward.template) for reward in rewards if reward.template]
    named += [(str(part.reward), dict(part.settings)) for parts in ready_made for part in parts]
    built_in = [RewardPart(find_reward(name, options)) for name, options in named if name == CODE_TESTS]
    start_sandbox(built_in, settings.sandbox.require)


def is_pipeline(folder: str | Path) -> bool:
    """True for the folder of a pipeline."""
    return (Path(folder) / SETTINGS).is_file()


def _run(pipeline: Pipeline, stages: Sequence[Stage], folder: Path, is_new: bool = False) -> PipelineRun:
    def draw(finished: Mapping[str, FinishedStage], status: str = "running") -> Path:
        return write_pipeline_page(folder, _story(pipeline, stages, folder, finished, status))

    printer = ProgressPrinter(
        f"whet pipeline {pipeline.name}: {pipeline.about}\n{len(stages)} stages in {folder}", draw
    )
    printer.current = pipeline.name
    status = "failed"
    try:
        run_stages(stages, folder, printer)
        status = "finished"
    except (Interrupted, KeyboardInterrupt):
        status = "interrupted"
    except WhetError as error:
        kind, words = RunFailed if isinstance(error, RunFailed) else WhetError, f"{printer.current}: {error}"
        if is_new and not _has_results(folder):  # an error found before anything was done leaves no folder behind
            discard(folder)
            raise kind(words) from error
        raise kind(f"{words}; after fixing that, continue with `whet resume {folder}`") from error
    finally:
        page = draw(printer.finished, status) if folder.is_dir() else folder
    summary = _story(pipeline, stages, folder, printer.finished, status)
    print_line("")
    for line in [*aligned(rounds_table(summary)), *comparison_lines(summary)]:
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
    if not (folder / SETTINGS).is_file():
        raise RunFailed(
            f"{folder / SETTINGS} was deleted, moved or replaced while the run was writing there, and what it held is "
            "lost; start the pipeline again in a folder of its own"
        )
    return PipelineSummary(
        pipeline.name,
        pipeline.about,
        status,
        tuple(_stage_line(folder, stage, finished.get(stage.name)) for stage in stages),
        command.read_text(encoding="utf-8").strip() if command.is_file() else "",
        (folder / SETTINGS).read_text(encoding="utf-8"),
        _policies(stages, finished),
    )


def _policies(stages: Sequence[Stage], finished: Mapping[str, FinishedStage]) -> tuple[MeasuredPolicy, ...]:
    """What the evals found prompt by prompt, where they kept it."""
    policies = []
    for stage in stages:
        done = finished.get(stage.name)
        if done is None or not done.result.get("sets") or not (done.folder / EVAL_ROWS).is_file():
            continue
        rows = {str(row["id"]): row for row in read_json_lines(done.folder / EVAL_ROWS)}
        drawn = done.folder / DRAWN_ROWS
        for row in read_json_lines(drawn) if drawn.is_file() else ():
            rows[str(row["id"])] |= row
        policies.append(MeasuredPolicy(_label(stage), rows, stage.name, stage.against))
    return tuple(policies)


def _label(stage: Stage) -> str:
    """Whom an eval measures, by the stage that left it."""
    return stage.plan.inputs.get("model", "") if stage.measures else ""


def _stage_line(folder: Path, stage: Stage, done: FinishedStage | None) -> StageSummary:
    if done is None:
        return StageSummary(stage.name, stage.about)
    result, report = done.result, done.folder / RUN / REPORT
    return StageSummary(
        name=stage.name,
        about=stage.about,
        outcome=str(result.get("summary", "")),
        seconds=done.seconds,
        metrics=result.get("metrics", {}),
        counts=result.get("counts", {}),
        measures=stage.measures,
        num_prompts=int(result.get("eval_prompts", 0)),
        over=str(result.get("stop_reason", "")),
        report=report.relative_to(folder).as_posix() if report.is_file() else "",
        table=tuple(tuple(map(str, row)) for row in result.get("table", ())),
        findings=tuple(result.get("findings", ())),
        samples=tuple(result.get("samples", ())),
        label=_label(stage),
        sets=result.get("sets", {}),
        cost=result.get("cost", {}),
    )


def _has_results(folder: Path) -> bool:
    own = {SETTINGS, COMMAND, LOCK, "pipeline.html", "pipeline.json"}
    return any(path.is_file() and path.name not in own for path in folder.rglob("*"))
