"""Runs made of stages: each stage does one thing in a folder of its own, once."""

from whet.tools.pipelines.stages import (
    FinishedStage,
    Interrupted,
    Stage,
    StageObserver,
    json_lines,
    read_json_lines,
    run_stages,
    stage_folder,
    stage_result,
    write_atomically,
    write_in_chunks,
)

__all__ = [
    "FinishedStage",
    "Interrupted",
    "Stage",
    "StageObserver",
    "json_lines",
    "read_json_lines",
    "run_stages",
    "stage_folder",
    "stage_result",
    "write_atomically",
    "write_in_chunks",
]
