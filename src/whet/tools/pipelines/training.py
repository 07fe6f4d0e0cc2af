"""Trainings inside a pipeline: a run folder that is started or resumed, and what came of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whet import api
from whet.record.log import is_finished, read_metrics, read_summary
from whet.record.run_folder import CONFIG
from whet.record.text import count_of, metric_text
from whet.settings.layers import read_toml
from whet.tools.pipelines.stages import FinishedStage, Interrupted, ProgressLine, stage_result
from whet.training.config import resolved
from whet.types import WhetError

RUN = "run"  # a training stage's run folder


def train_run(folder: Path, method: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Train in this stage's folder, or resume what is there; the eval metrics before and after, as JSON.

    A run that is there and has fewer steps than the config is extended.
    """
    run_folder = folder / RUN
    line = ProgressLine("      training", sys.stdout)
    try:
        if (run_folder / CONFIG).exists():
            wanted = int(config.get("steps", 0))
            longer = wanted if total_steps(run_folder) < wanted else None
            if is_finished(run_folder) and longer is None:
                summary = read_summary(run_folder)
                return {"before": summary.get("before") or {}, "after": summary.get("after") or {}}
            run = api.resume(run_folder, steps=longer, callbacks=[line], console=False)
        else:
            run = api.train(method, config={**config, "folder": str(run_folder)}, callbacks=[line], console=False)
    finally:
        line.clear()
    if run.status == "interrupted":
        raise Interrupted
    return {"before": dict(run.before), "after": dict(run.after)}


def total_steps(run_folder: Path) -> int:
    """How many steps a run was given."""
    return int(read_toml(run_folder / CONFIG)["steps"])


def trained_model(done: FinishedStage) -> str:
    """The model that a training stage left behind."""
    return str((done.folder / RUN).resolve())


def check_training(method: str, config: Mapping[str, Any], section: str = "train") -> Any:
    """Refuse a training that could not start, before the first stage."""
    try:
        return resolved(method, config)
    except WhetError as error:
        raise WhetError(f"{section}: {str(error).removeprefix('config: ')}") from error


def steps_for(num_rows: int, epochs: float, rows_per_step: int) -> int:
    """Updates that make `epochs` passes over the rows."""
    return max(1, math.ceil(epochs * num_rows / rows_per_step))


def trained_result(folder: Path) -> dict[str, Any]:
    """A finished training, slimmed: its steps and tokens, and nothing kept that only a resume would read."""
    from whet.model.checkpoint import drop_training_state

    for checkpoint in sorted((folder / RUN / "checkpoints").glob("step-*")):
        drop_training_state(checkpoint)
    steps = _steps(folder / RUN)  # fewer than given where it ended early
    last = steps[-1]["metrics"] if steps else {}
    shown = {"loss": "last loss", "accuracy": "pair accuracy"}
    words = [f"{text} {metric_text(name, last[name])}" for name, text in shown.items() if name in last]
    ended = read_summary(folder / RUN).get("ended")
    words += [f"ended early: {ended}"] if ended else []
    summary = ", ".join([count_of(len(steps), "update"), *words])
    return stage_result(summary, cost=training_cost(folder / RUN), steps=len(steps))


def _steps(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_metrics(run) if "metrics" in line]


def training_cost(run: Path) -> dict[str, int]:
    """Updates, and tokens that were sampled and trained on."""
    steps = _steps(run)

    def counted(name: str) -> int:
        return sum(int(line.get("counts", {}).get(name, 0)) for line in steps)

    samples, tokens = counted("samples"), counted("tokens")
    return {
        "updates": sum(int(line["metrics"].get("updates", 1)) for line in steps),
        "completions": samples,
        "sampled_tokens": tokens if samples else 0,
        "trained_tokens": tokens,
    }
