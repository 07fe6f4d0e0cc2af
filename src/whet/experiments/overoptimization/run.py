"""A study from its settings to its folder: begun, gone on with, told on the console and on its page."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from whet.config.config import read_toml
from whet.config.run_folder import locked, next_free_folder
from whet.experiments.overoptimization.settings import StudySettings, study_settings
from whet.experiments.overoptimization.study import Plan, courses_of, plan_name, study_stages
from whet.pipeline import Done, Interrupted, Stage, run_stages, written_whole
from whet.report.overoptimization import LAWS, ProxyResult, proxy_results, result_values, sentence, table_text
from whet.report.overoptimization_page import PANELS, figure_svg, study_page
from whet.report.text import duration
from whet.types import WhetError

SETTINGS, PAGE, VALUES, FIGURE = "study.toml", "overoptimization.html", "overoptimization.json", "overoptimization.svg"


@dataclass(frozen=True)
class Studied:
    """A study's folder after (or during) its stages."""

    folder: Path
    status: str  # finished or interrupted
    findings: tuple[ProxyResult, ...]
    page: Path


def study_overoptimization(*layers: Mapping[str, Any], folder: str | Path | None = None, command: str = "") -> Studied:
    """Run the study, or go on with it where its folder is given again; later layers of settings win."""
    place = Path(folder) if folder else next_free_folder("overoptimization")
    settings = _settled(study_settings(*layers), layers, place)
    stages = study_stages(settings)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhetError(f"{place}: cannot write there ({error.strerror}); give another --folder") from error
    written_whole(place / SETTINGS, tomli_w.dumps(settings.model_dump(mode="json")))
    teller = ProgressPrinter(settings, stages, place, command or f"whet study overoptimization --folder {place}")
    status = "finished"
    with locked(place):
        try:
            run_stages(stages, place, teller)
        except (Interrupted, KeyboardInterrupt):
            status = "interrupted"
    return teller.close(status)


def _settled(given: StudySettings, layers: tuple[Mapping[str, Any], ...], place: Path) -> StudySettings:
    """The settings of the folder where it holds a study and none are given; other ones are refused."""
    if not (place / SETTINGS).exists():
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise WhetError(f"{place} is there already and is no study; give an empty or new --folder")
        return given
    before = study_settings(read_toml(place / SETTINGS))
    if not any(layers):
        return before
    # more seeds go on with what is there
    differing = [name for name in type(given).model_fields if getattr(given, name) != getattr(before, name)]
    if differing and differing != ["seeds"]:
        raise WhetError(
            f"{place} holds a study with other settings ({', '.join(differing[:3])} differ); leave the settings away "
            "to go on with it, or give another --folder"
        )
    return given


class ProgressPrinter:
    """Says what each stage does and what came out, and draws the page whenever there is more to draw."""

    def __init__(self, settings: StudySettings, stages: list[Stage], folder: Path, command: str) -> None:
        self._settings, self._folder, self._command = settings, folder, command
        self._total, self._finished = len(stages), dict[str, Done]()
        self._base = plan_name(Plan(0, settings.size))
        _say(f"whet study overoptimization: {len(stages)} stages in {folder}\n")

    def begun(self, number: int, total: int, stage: Stage) -> None:
        _say(f"[{number}/{total}] {stage.about}")

    def done(self, number: int, total: int, stage: Stage, done: Done, is_old: bool) -> None:
        self._finished[stage.name] = done
        if is_old:
            _say(f"[{number}/{total}] {stage.about}")
        _say(f"      {done.result.get('said', 'done')}  ({'done before' if is_old else duration(done.seconds)})")
        if not is_old and done.result.get("courses"):
            self._draw()

    def _found(self) -> list[ProxyResult]:
        least = {"best_of_n": self._settings.least_d_best_of, "rl": self._settings.least_d}
        return proxy_results(courses_of(self._finished), least)  # type: ignore[arg-type]

    def _draw(self) -> list[ProxyResult]:
        found = self._found()
        values = {
            "settings": self._settings.model_dump(mode="json"),
            "findings": [result_values(finding) for finding in found],
        }
        whole = len(self._finished) == self._total
        facts = {name: _shown(value) for name, value in self._settings.model_dump(mode="json").items()}
        written_whole(self._folder / VALUES, json.dumps(values, indent=1) + "\n")
        written_whole(self._folder / PAGE, study_page(found, self._base, facts, self._command, whole))
        if found:
            written_whole(self._folder / FIGURE, figure_svg(found, self._base))
        return found

    def close(self, status: str) -> Studied:
        found = self._draw()
        for group, (title, about) in PANELS.items():
            mine = [finding for finding in found if finding.group == group]
            if mine:
                _say(f"\n{title}: {about.format(base=self._base)}; {LAWS[mine[0].kind]}\n{table_text(mine)}")
        _say("")
        for finding in found:
            if finding.group == "rl":
                _say(sentence(finding))
        _say(f"\n{status}")
        _say(f"page  {self._folder / PAGE}")
        if status != "finished":
            _say(f"next  whet study overoptimization --folder {self._folder}")
        return Studied(self._folder, status, tuple(found), self._folder / PAGE)


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
