"""Which rewards a run was trained with, in its folder and in the ledger, and what came of them.

A run calls `write_version`, `note_version` and `record_effect`, so that each sample's reward can be told later.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from whet.record.log import eval_records, read_metrics, step_reports
from whet.reward.combine import RewardPart, Schedule
from whet.reward.ledger import Effect, ledger_path, note_effect, note_run
from whet.reward.version import RewardVersion, parts_version, reward_version
from whet.types import StepReport, WhetError

logger = logging.getLogger(__name__)

TABLE = "rewards.json"  # of a run: every reward its samples were scored by, by hash
ENDS = 0.1  # share of a run's steps that its first and last means are taken over


def note_version(folder: str | Path, version: RewardVersion, ledger: str | Path | None = None) -> None:
    """A line in the ledger, where the reward is new."""
    note_run(Path(ledger) if ledger else ledger_path(folder), version)


def write_version(folder: str | Path, parts: Sequence[RewardPart]) -> RewardVersion:
    """The reward's entry in the run's table of rewards."""
    folder = Path(folder)
    version = parts_version(parts)
    table = reward_table(folder)
    table[version.hash] = {
        "title": title_of(parts),
        "weights": {part.name: weight_text(part) for part in parts},
        "parts": {part.name: reward_version(part.resolved_reward).hash for part in parts},
        "pieces": dict(version.pieces),
    }
    partial = folder / f".{TABLE}"
    partial.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, folder / TABLE)
    return version


def record_effect(folder: str | Path, reward_hash: str, ledger: str | Path | None = None) -> Effect:
    """Add a line to the ledger at the end of a run: what came of its reward."""
    effect = run_effect(folder)
    try:
        note_effect(Path(ledger) if ledger else ledger_path(folder), reward_hash, effect)
    except WhetError as error:  # the ledger was moved: no reason to lose a finished run
        logger.warning("the effect of the reward was not noted: %s", error)
    return effect


def run_effect(folder: str | Path) -> Effect:
    """Means of each part over the first and the last tenth of the steps, and the held-out metrics before and after."""
    lines = read_metrics(folder)
    steps, evals = step_reports(lines), eval_records(lines)
    count = max(1, math.ceil(ENDS * len(steps)))
    names = dict.fromkeys(name for step in steps for name in step.reward)
    metrics = dict.fromkeys(name for evaluation in evals for name in evaluation.result)
    return Effect(
        run=Path(folder).name,
        steps=steps[-1].step if steps else 0,
        parts={name: (_mean_of(steps[:count], name), _mean_of(steps[-count:], name)) for name in names},
        evaluation={name: (_finite(evals[0].result, name), _finite(evals[-1].result, name)) for name in metrics},
    )


def reward_table(folder: str | Path) -> dict[str, dict[str, Any]]:
    """hash -> what it stands for, of a run folder; {} where none was written."""
    path = Path(folder) / TABLE
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise WhetError(f"{path}: not the table of a run's rewards ({error}); restore it or delete it") from None


def title_of(parts: Sequence[RewardPart]) -> str:
    """The reward as a sum of weighted parts, such as `1 x answer + 0.1 x format`."""
    return " + ".join(f"{weight_text(part)} x {part.name}" for part in parts)


def weight_text(part: RewardPart) -> str:
    """The weight for display; a schedule shows all its values, joined by "to"."""
    if isinstance(part.weight, Schedule):
        return " to ".join(f"{weight:g}" for weight in part.weights)
    return f"{part.weights[0]:g}"


def _mean_of(steps: Sequence[StepReport], name: str) -> float | None:
    values = [value for step in steps if (value := _finite(step.reward, name)) is not None]
    return fmean(values) if values else None


def _finite(values: Mapping[str, float], name: str) -> float | None:
    value = values.get(name, math.nan)
    return value if math.isfinite(value) else None
