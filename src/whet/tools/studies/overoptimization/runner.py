"""Runs the study: from its settings to a folder, a console and a page; continues it where it was interrupted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from whet.pages.overoptimization import PANELS, figure_svg, result_values, sentence, study_page, table_text
from whet.record.metrics.overoptimization import LAWS, ProxyResult, proxy_results
from whet.record.run_folder import LOCK, locked, next_free_folder
from whet.settings.layers import read_toml
from whet.tools.pipelines.progress import ProgressPrinter, print_line, run_with_progress
from whet.tools.pipelines.stages import FinishedStage, write_atomically
from whet.tools.studies.overoptimization.settings import StudySettings, study_settings
from whet.tools.studies.overoptimization.stages import Condition, condition_name, read_curves, study_stages
from whet.types import WhetError

SETTINGS, PAGE, VALUES, FIGURE = "study.toml", "overoptimization.html", "overoptimization.json", "overoptimization.svg"


@dataclass(frozen=True)
class StudyRun:
    """A study's folder after (or during) its stages."""

    folder: Path
    status: str  # finished or interrupted
    findings: tuple[ProxyResult, ...]
    page: Path


def study_overoptimization(*layers: Mapping[str, Any], folder: str | Path | None = None, command: str = "") -> StudyRun:
    """Run the study, or continue it where its folder is given again; later layers of settings win."""
    study_folder = Path(folder) if folder else next_free_folder("overoptimization")
    settings = _settled(study_settings(*layers), layers, study_folder)
    stages = study_stages(settings)
    try:
        study_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WhetError(f"{study_folder}: cannot write there ({error.strerror}); give another --folder") from error
    with locked(study_folder):
        write_atomically(study_folder / SETTINGS, tomli_w.dumps(settings.model_dump(mode="json")))
        shown_command = command or f"whet study overoptimization --folder {study_folder}"

        def draw(finished: Mapping[str, FinishedStage]) -> list[ProxyResult]:
            return _draw(study_folder, settings, finished, shown_command, len(finished) == len(stages))

        printer = ProgressPrinter(f"whet study overoptimization: {len(stages)} stages in {study_folder}", draw)
        status = run_with_progress(stages, study_folder, printer)
        findings = draw(printer.finished)
        _print_findings(findings, _base_name(settings))
        print_line(f"\n{status}")
        print_line(f"page  {study_folder / PAGE}")
        if status != "finished":
            print_line(f"next  whet study overoptimization --folder {study_folder}")
    return StudyRun(study_folder, status, tuple(findings), study_folder / PAGE)


def _settled(given: StudySettings, layers: tuple[Mapping[str, Any], ...], place: Path) -> StudySettings:
    """The settings of the folder where it holds a study and none are given; other ones are refused."""
    if not (place / SETTINGS).exists():
        if place.exists() and (not place.is_dir() or any(entry.name != LOCK for entry in place.iterdir())):
            raise WhetError(f"{place} already exists and is not a study; give an empty or new --folder")
        return given
    before = study_settings(read_toml(place / SETTINGS))
    if not any(layers):
        return before
    # more seeds continue with what is there
    differing = [name for name in type(given).model_fields if getattr(given, name) != getattr(before, name)]
    if differing and differing != ["seeds"]:
        raise WhetError(
            f"{place} holds a study with other settings ({', '.join(differing[:3])} differ); drop the settings "
            "to continue it, or give another --folder"
        )
    return given


def _base_name(settings: StudySettings) -> str:
    return condition_name(Condition(0, settings.size))


def _draw(
    folder: Path, settings: StudySettings, finished: Mapping[str, FinishedStage], command: str, is_whole: bool
) -> list[ProxyResult]:
    """The page, its numbers and its figure, from the stages finished so far."""
    fitted_from = {"best_of_n": settings.least_d_best_of, "rl": settings.least_d}
    findings = proxy_results(read_curves(finished), fitted_from)  # type: ignore[arg-type]
    dumped = settings.model_dump(mode="json")
    values = {"settings": dumped, "findings": [result_values(finding) for finding in findings]}
    facts = {name: _shown(value) for name, value in dumped.items()}
    base = _base_name(settings)
    write_atomically(folder / VALUES, json.dumps(values, indent=1) + "\n")
    write_atomically(folder / PAGE, study_page(findings, base, facts, command, is_whole))
    if findings:
        write_atomically(folder / FIGURE, figure_svg(findings, base))
    return findings


def _print_findings(found: Sequence[ProxyResult], base: str) -> None:
    for group, (title, about) in PANELS.items():
        mine = [finding for finding in found if finding.group == group]
        if mine:
            print_line(f"\n{title}: {about.format(base=base)}; {LAWS[mine[0].kind]}\n{table_text(mine)}")
    print_line("")
    for finding in found:
        if finding.group == "rl":
            print_line(sentence(finding))


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
