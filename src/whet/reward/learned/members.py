"""Who the members of an ensemble are: folders, runs with their checkpoints, and the heads of one model."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from whet.model.run_models import ABOUT, CHECKPOINTS, MODELS, run_model, run_of
from whet.types import WhetError

logger = logging.getLogger(__name__)

HEADS = "score_members"  # in a model's config: [centre, scale] of each head, or None where they were not measured
APART = 2.0  # times one member's scores may be spread wider than another's before that is worth a warning

KINDS = {"ForSequenceClassification": "learned", "ForTokenClassification": "learned_steps"}

Scale = tuple[float, float]  # centre, scale


def folders_of(folder: str | Sequence[str]) -> list[str]:
    """The folders as a list, also where only one is given."""
    return [folder] if isinstance(folder, str) else list(folder)


def model_folders(folder: str | Sequence[str]) -> list[str]:
    """The folders of the models: a run stands for its newest weights, a folder of runs by seed for all of them."""
    return [model for member in folders_of(folder) for model in _models_in(member)]


def _models_in(folder: str) -> list[str]:
    path = Path(folder)
    if (path / "config.json").is_file():
        return [folder]
    newest = run_model(path)
    if newest is not None:
        return [str(newest)]
    runs = sorted((run for run in path.glob("seed-*") if run.is_dir()), key=_number)
    folders = [(run, run_model(run)) for run in runs]
    unfinished = [run for run, model in folders if model is None]
    if unfinished:
        raise WhetError(f"{unfinished[0]}: this member has no checkpoint yet; train it to its end, or name the others")
    return [str(model) for _, model in folders if model is not None] or [folder]


def _number(path: Path) -> int:
    last = path.name.rpartition("-")[2]
    return int(last) if last.isdigit() else -1


def reward_model_kind(folder: str) -> str:
    """The built-in reward that reads the model of a folder: a run's, a checkpoint's, or the first of an ensemble."""
    saved = saved_config(folder)
    advice = "give the folder of a run of `whet train rm`, orm or prm"
    if saved is None:
        there = sorted(entry.name for entry in Path(folder).iterdir())
        content = f"it has {', '.join(there[:6])}" + (", ..." if len(there) > 6 else "") if there else "it is empty"
        if (Path(folder) / "checkpoints").is_dir():
            content = "its run has no complete checkpoint yet"
        raise WhetError(f"{folder} holds no model that can be a reward: {content}; {advice}")
    names = [str(name) for name in saved.get("architectures") or []]
    for name in names:
        for ending, kind in KINDS.items():
            if name.endswith(ending):
                return kind
    holds = ", ".join(names) or "a model of no stated architecture"
    raise WhetError(f"{folder} holds {holds}, which is no reward model; {advice}")


def saved_config(folder: str | Sequence[str]) -> dict[str, Any] | None:
    """The config.json of the first model of these folders; None where none can be read."""
    try:
        config = json.loads((Path(model_folders(folder)[0]) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def run_name(folder: str) -> str:
    """What the scores of a folder's model are reported under: the name of its run."""
    path = Path(folder).resolve()
    is_of_run = path.parent.name == CHECKPOINTS or (path.name in MODELS and (path / ABOUT).is_file())
    return run_of(path).name if is_of_run else path.name


def head_scales(config: Any) -> list[Scale | None] | None:
    """Each head's centre and scale; None for a model whose labels are classes and not members."""
    noted = getattr(config, HEADS, None)
    if not isinstance(noted, list) or len(noted) != int(config.num_labels):
        return None
    return [_scale(pair) for pair in noted]


def _scale(noted: Any) -> Scale | None:
    if not isinstance(noted, list | tuple) or len(noted) != 2:
        return None
    centre, scale = (float(number) for number in noted)
    return (centre, scale) if math.isfinite(centre) and math.isfinite(scale) and scale > 0 else None


def warn_of_scales(scores: Sequence[Sequence[float]], name: str) -> bool:
    """Say so where members without a known scale differ in theirs; True once there were enough completions to tell."""
    if len(scores) < 8:
        return False
    spreads = [pstdev(column) for column in zip(*scores, strict=True)]
    centres = [fmean(column) for column in zip(*scores, strict=True)]
    low, high = min(spreads), max(spreads)
    if high > APART * low or max(centres) - min(centres) > APART * high:
        listed = ", ".join(f"{centre:.2g} +- {spread:.2g}" for centre, spread in zip(centres, spreads, strict=True))
        logger.warning(
            "reward %r: its members score on different scales (%s), so the widest decides; train them with held-out "
            "rows, which measures their scales, or give output=probability",
            name,
            listed,
        )
    return True
