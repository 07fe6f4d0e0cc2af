"""Digests of what a run reads: rows, eval rows and the model. The reward has its own, `whet.reward.version`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from whet.data.source import SourceKind, parse_source
from whet.model.checkpoint import STATE
from whet.model.load import local_folder
from whet.model.run_models import ABOUT, MANIFEST
from whet.reward.sections import RewardSection
from whet.reward.version import file_digest, files_digest
from whet.training.assembly.rows import prompt_words
from whet.types import Prompt, WhetError

MODEL_FILES = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja")


def input_digests(config: Any) -> dict[str, str]:
    """By what they are of: `#` and a digest for what lies on this machine, else the name. Any config will do whose
    sections `data`, `model` and `eval` name theirs."""
    digests = {"data": data_digest(config.data.source), "model": model_digest(config.model.name)}
    if teacher := getattr(getattr(config, "teacher", None), "name", ""):
        digests["teacher"] = teacher if teacher == "self" else model_digest(teacher)
    files = [Path(name).expanduser() for name in getattr(config, "imports", ()) if name.endswith(".py")]
    if files:
        digests["imports"] = "#" + "".join(file_digest(file)[:16] for file in files if file.is_file())
    if reference := config.model.reference_model:
        digests["reference"] = model_digest(reference)
    return {**digests, "eval data": data_digest(config.eval.source)} if config.eval.source else digests


def questions_digest(prompts: Sequence[Prompt]) -> str:
    """Equal where the same questions were asked in the same order, whatever file they come from; empty for none."""
    asked = [[*prompt_words(prompt), str(prompt.answer)] for prompt in prompts]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16] if asked else ""


def data_digest(source: str) -> str:
    """A digest of a data file's bytes; tasks, gym datasets and datasets of the hub are identified by name."""
    parsed = parse_source(source)
    if parsed.parts:
        return "mix:" + ",".join(f"{data_digest(part)}={weight:g}" for part, weight in parsed.parts)
    path = Path(parsed.name).expanduser()
    if parsed.kind is not SourceKind.FILE or not path.is_file():
        return source
    try:
        form = f"{parsed.benchmark.name}:" if parsed.benchmark else ""
        return f"{form}#{file_digest(path)}"
    except OSError as error:
        raise WhetError(f"{source}: cannot be read ({error.strerror}); correct its permissions") from error


def model_digest(name: str) -> str:
    """A digest of the files that transformers reads from a model folder; a model of the hub is identified by its id."""
    folder = local_folder(name)
    if folder is None:
        return name
    own = (MANIFEST, STATE, ABOUT)  # of a checkpoint or a run's model: not part of what transformers reads
    files = sorted(file for file in folder.iterdir() if file.suffix in MODEL_FILES and file.name not in own)
    try:
        return f"#{files_digest([file for file in files if file.is_file()], folder)}"
    except OSError as error:
        raise WhetError(f"model {name}: {folder} cannot be read ({error.strerror}); correct its permissions") from error


def reward_file_digests(sections: Sequence[RewardSection]) -> dict[str, str]:
    """Digests of the files that define rewards and of the models that rewards load."""
    parts = [part for section in sections for part in section.parts]
    files = [name for part in parts if (name := part.reward.partition(":")[0]).endswith(".py")]
    folders = [str(part.settings["folder"]) for part in parts if "folder" in part.settings]
    return {f"reward {name}": f"#{file_digest(Path(name))}" for name in [*files, *folders] if Path(name).exists()}
