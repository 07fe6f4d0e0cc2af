"""A pipeline from its settings to its folder: begun, gone on with, told on the console and on its page."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whet.config.config import read_toml
from whet.config.run_folder import locked, next_free_folder
from whet.pipeline import Done, Interrupted, Recipe, Stage, run_stages, written_whole
from whet.pipeline.parts import RUN
from whet.pipeline.recipes import recipe_named
from whet.pipeline.sections import PipelineSettings, pipeline_toml, resolved_pipeline
from whet.report.pipeline_page import write_pipeline_page
from whet.report.run_page import REPORT
from whet.report.story import StageLine, Story, aligned, rounds_table, verdict
from whet.report.text import duration
from whet.types import WhetError

SETTINGS, COMMAND = "pipeline.toml", "command.txt"


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline's folder after its stages were worked off."""

    folder: Path
    status: str  # finished or interrupted
    stages: Mapping[str, Done]
    page: Path


def run_pipeline(name: str, *layers: Mapping[str, Any], command: str = "") -> PipelineRun:
    """Run a pipeline in a new folder; later layers of settings win."""
    recipe = recipe_named(name)
    settings = resolved_pipeline(recipe, *layers)
    stages = recipe.stages(settings)
    folder = Path(settings.folder) if settings.folder else next_free_folder(recipe.name)
    if (folder / SETTINGS).exists():
        raise WhetError(f"{folder} already holds a pipeline; `whet resume {folder}`, or give another --folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise WhetError(f"{folder} is there already and is no pipeline; give an empty or new --folder")
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhetError(f"{folder}: cannot write there ({error.strerror}); give another --folder") from error
    written_whole(folder / COMMAND, f"{command}\n")
    written_whole(folder / SETTINGS, pipeline_toml(settings.model_copy(update={"folder": str(folder)})))
    try:
        return _worked(recipe, settings, stages, folder)
    except WhetError as error:
        raise _told(error, folder, is_new) from error


def resume_pipeline(folder: str | Path, steps: int | None = None, checkpoint: str | None = None) -> PipelineRun:
    """Go on with a pipeline: what is finished is not done again."""
    place = Path(folder)
    for flag, given in (("--steps", steps), ("--from", checkpoint)):
        if given is not None:
            raise WhetError(f"{flag} has no effect on a pipeline, whose stages go on by themselves; drop it")
    values = read_toml(place / SETTINGS)
    recipe = recipe_named(str(values.get("recipe")))
    settings = resolved_pipeline(recipe, {**values, "folder": str(place)})
    try:
        return _worked(recipe, settings, recipe.stages(settings), place)
    except WhetError as error:
        raise _told(error, place, False) from error


def is_pipeline(folder: str | Path) -> bool:
    return (Path(folder) / SETTINGS).is_file()


def _worked(recipe: Recipe, settings: PipelineSettings, stages: Sequence[Stage], folder: Path) -> PipelineRun:
    teller = ProgressPrinter(recipe, stages, folder)
    status = "failed"
    with locked(folder):
        try:
            run_stages(stages, folder, teller)
            status = "finished"
        except (Interrupted, KeyboardInterrupt):
            status = "interrupted"
        except WhetError as error:
            raise WhetError(f"{teller.current}: {error}") from error
        finally:
            page = write_pipeline_page(folder, teller.story(status))
    teller.close(status, page)
    return PipelineRun(folder, status, teller.finished, page)


class ProgressPrinter:
    """Says what each stage does and what came out; keeps what the page is drawn from."""

    def __init__(self, recipe: Recipe, stages: Sequence[Stage], folder: Path) -> None:
        self._recipe, self._stages, self._folder = recipe, stages, folder
        self.finished: dict[str, Done] = {}
        self.current = recipe.name
        _say(f"whet pipeline {recipe.name}: {recipe.about}")
        _say(f"{len(stages)} stages in {folder}\n")

    def begun(self, number: int, total: int, stage: Stage) -> None:
        self.current = stage.name
        _say(f"[{number}/{total}] {stage.name}: {stage.about}")

    def done(self, number: int, total: int, stage: Stage, done: Done, is_old: bool) -> None:
        self.finished[stage.name] = done
        if is_old:
            _say(f"[{number}/{total}] {stage.name}: {stage.about}")
        took = "done before" if is_old else duration(done.seconds)
        _say(f"      {done.result.get('said', 'done')}  ({took})")
        if done.result.get("over"):
            _say(f"      the pipeline ends here: {done.result['over']}")
        if not is_old:
            write_pipeline_page(self._folder, self.story("running"))

    def close(self, status: str, page: Path) -> None:
        story = self.story(status)
        _say("")
        for line in aligned(rounds_table(story)):
            _say(line)
        _say(f"\n{status}: {verdict(story)}")
        _say(f"page  {page}")
        if status != "finished":
            _say(f"next  whet resume {self._folder}")

    def story(self, status: str) -> Story:
        lines = tuple(self._line(number, stage) for number, stage in enumerate(self._stages, 1))
        command = self._folder / COMMAND
        return Story(
            self._recipe.name,
            self._recipe.about,
            status,
            lines,
            command.read_text(encoding="utf-8").strip() if command.is_file() else "",
            (self._folder / SETTINGS).read_text(encoding="utf-8"),
        )

    def _line(self, number: int, stage: Stage) -> StageLine:
        done = self.finished.get(stage.name)
        if done is None:
            return StageLine(stage.name, stage.about)
        result, report = done.result, done.folder / RUN / REPORT
        return StageLine(
            stage.name,
            stage.about,
            str(result.get("said", "")),
            done.seconds,
            result.get("marks", {}),
            result.get("counts", {}),
            stage.measures,
            int(result.get("asked", 0)),
            str(result.get("over", "")),
            report.relative_to(self._folder).as_posix() if report.is_file() else "",
        )


def _told(error: WhetError, folder: Path, is_new: bool) -> WhetError:
    """The mistake with how to go on. One found before anything was done leaves no folder behind."""
    own = {SETTINGS, COMMAND, "lock", "pipeline.html"}
    if is_new and not any(path.is_file() and path.name not in own for path in folder.rglob("*")):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return error
    return WhetError(f"{error}; fixed, `whet resume {folder}` goes on")


def _say(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)
