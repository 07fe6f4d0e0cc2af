"""Runs made of stages: each stage does one thing in a folder of its own, once."""

from whet.pipeline.recipe import Recipe
from whet.pipeline.stages import (
    Done,
    Interrupted,
    Stage,
    Watcher,
    found,
    json_lines,
    read_json_lines,
    run_stages,
    stage_folder,
    written_in_chunks,
    written_whole,
)

__all__ = [
    "Done",
    "Interrupted",
    "Recipe",
    "Stage",
    "Watcher",
    "found",
    "json_lines",
    "read_json_lines",
    "run_stages",
    "stage_folder",
    "written_in_chunks",
    "written_whole",
]
