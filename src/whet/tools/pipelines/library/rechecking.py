"""What reasoning looks like along a training: length, re-checks, and whether re-checking goes with being right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field

from whet.record.log import SAMPLES
from whet.record.text import percent
from whet.tools.pipelines.library.entry import Composition, Inputs, StageEntry, StageInput, StageWork
from whet.tools.pipelines.library.evaluation import RecheckStudy, recheck_study, rechecks
from whet.tools.pipelines.settings import PipelineSettings
from whet.tools.pipelines.stages import read_json_lines, stage_result

STRETCHES = 5  # of the training
FEWEST = 20  # completions on either side, below which two shares are not compared


class RecheckEntry(StageEntry, kind="recheck", gives=("metrics",)):
    """The completions that a stage of RL was trained on: their length and their re-checks, early and late."""

    training: str = Field("", description="the stage of kind rl whose completions are read")

    def find_inputs(self, composition: Composition) -> dict[str, StageInput]:
        return {"training": composition.model(self, "training", self.training)}

    def about(self, settings: PipelineSettings, inputs: Inputs) -> str:
        return f"length and re-checks of the completions that {inputs['training'].label} was trained on"

    def work(self, run: StageWork) -> Mapping[str, Any]:
        return recheck_result(read_json_lines(Path(run.model("training")) / SAMPLES))


def recheck_result(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A row per stretch of the training, and what can honestly be said of re-checking."""
    steps = sorted({int(line["step"]) for line in lines})
    if not steps:
        return stage_result("no completion was recorded; raise report.samples_per_step of the training")
    count = min(STRETCHES, len(steps))
    edges = [steps[len(steps) * at // count] for at in range(count)] + [steps[-1] + 1]
    table = [["steps", "completions", "tokens", "re-checks", "right", "right with", "right without"]]
    for start, stop in pairwise(edges):
        inside = [line for line in lines if start <= int(line["step"]) < stop]
        table.append(_row(f"{start} to {stop - 1}", inside))
    early, late = ([line for line in lines if edges[at] <= int(line["step"]) < edges[at + 1]] for at in (0, count - 1))
    study = _study(lines)
    metrics = {
        "first_tokens": fmean(int(line["tokens"]) for line in early),
        "last_tokens": fmean(int(line["tokens"]) for line in late),
        "first_rechecks": fmean(rechecks(line["completion"]) for line in early),
        "last_rechecks": fmean(rechecks(line["completion"]) for line in late),
    }
    findings = [
        f"length: {metrics['first_tokens']:.0f} tokens in the first stretch, {metrics['last_tokens']:.0f} in the last",
        _said(study, metrics),
    ]
    return stage_result("; ".join(findings), metrics, table=table, findings=findings)


def _right(line: Mapping[str, Any]) -> float | None:
    """Whether a recorded completion is right, by the first part of its reward."""
    value = next(iter(line.get("parts", {}).values()), None)
    return None if value is None or line.get("reward") is None else float(value)


def _study(lines: Sequence[Mapping[str, Any]]) -> RecheckStudy:
    return recheck_study([(rechecks(line["completion"]), _right(line)) for line in lines])


def _row(name: str, lines: Sequence[Mapping[str, Any]]) -> list[str]:
    study = _study(lines)
    rights = [right for line in lines if (right := _right(line)) is not None]
    return [
        name,
        str(len(lines)),
        f"{fmean(int(line['tokens']) for line in lines):.1f}",
        f"{fmean(rechecks(line['completion']) for line in lines):.3f}",
        percent(fmean(rights)) if rights else "",
        percent(study.right_with),
        percent(study.right_without),
    ]


def _said(study: RecheckStudy, metrics: Mapping[str, float]) -> str:
    if not study.with_rechecks:
        return f"re-checks: none in {study.completions} recorded completions, so nothing can be said of them"
    text = (
        f"re-checks: {metrics['first_rechecks']:.3f} per completion in the first stretch and "
        f"{metrics['last_rechecks']:.3f} in the last; {study.with_rechecks} of {study.completions} have one"
    )
    if min(study.with_rechecks, study.completions - study.with_rechecks) < FEWEST:
        return f"{text}, too few to compare"
    return (
        f"{text}; right in {percent(study.right_with)} with and {percent(study.right_without)} without one, "
        "which says what goes together and not what causes what"
    )
