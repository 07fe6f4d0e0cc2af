"""Digests of what a run reads: rows, eval rows and the model. The reward has its own, `whet.reward.version`."""

from __future__ import annotations

from pathlib import Path

from whet.config.config import Config, EvaluationConfig
from whet.data.source import parse_source
from whet.model.checkpoint import MANIFEST, STATE
from whet.model.load import local_folder
from whet.reward.version import file_digest, files_digest
from whet.types import WhetError

MODEL_FILES = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja")


def input_digests(config: Config | EvaluationConfig) -> dict[str, str]:
    """By what they are of: `#` and a digest for what lies on this machine, else the name."""
    digests = {"data": data_digest(config.data.source), "model": model_digest(config.model.name)}
    return {**digests, "eval data": data_digest(config.eval.source)} if config.eval.source else digests


def data_digest(source: str) -> str:
    """Of a file's bytes; a task, a gym dataset and a dataset of the hub count by their names."""
    path = Path(source).expanduser()
    if not parse_source(source).is_stored or not path.is_file():
        return source
    try:
        return f"#{file_digest(path)}"
    except OSError as error:
        raise WhetError(f"{source}: cannot be read ({error.strerror}); correct its permissions") from error


def model_digest(name: str) -> str:
    """Of the files that transformers reads of a folder; an id of the hub counts by its name."""
    folder = local_folder(name)
    if folder is None:
        return name
    own = (MANIFEST, STATE)  # of a checkpoint: what a resume reads, not a model
    files = sorted(each for each in folder.iterdir() if each.suffix in MODEL_FILES and each.name not in own)
    try:
        return f"#{files_digest([each for each in files if each.is_file()], folder)}"
    except OSError as error:
        raise WhetError(f"model {name}: {folder} cannot be read ({error.strerror}); correct its permissions") from error
