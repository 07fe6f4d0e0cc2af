"""Runs made of stages: each stage does one thing in a folder of its own, once."""

from whet.pipeline.stages import Done, Interrupted, Stage, Watcher, run_stages, stage_folder, written_whole

__all__ = ["Done", "Interrupted", "Stage", "Watcher", "run_stages", "stage_folder", "written_whole"]
