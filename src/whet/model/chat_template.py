"""Whether a model has a chat template, read without loading it: prompts are written before a weight is read."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

from whet.model.hub import hub_file
from whet.model.run_models import run_model
from whet.model.width import gguf_fields

BUILTIN = Path(__file__).parent / "builtin"
KNOWN = {"smollm2": True}
GGUF_KEY = "tokenizer.chat_template"
TEMPLATE, SETTINGS = "chat_template.jinja", "tokenizer_config.json"


def has_chat_template(name: str) -> bool | None:
    """Whether a model has a chat template; `name` is whatever model.name takes. None where it cannot be read."""
    if name in KNOWN:
        return KNOWN[name]
    path = Path(os.path.expanduser(name))
    if path.suffix == ".gguf" and os.path.isfile(path):  # False for a name that is too long, too
        about = path.stat()
        return _in_gguf(path, about.st_size, about.st_mtime_ns)
    if name in os.listdir(BUILTIN):  # not joined: a run's absolute path would be taken for a plain model folder
        return _in_folder(BUILTIN / name)
    if name and os.path.isdir(path):
        return _in_folder(run_model(path) or path)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    settings = hub_file(name, SETTINGS)
    if settings is not None and _stated(settings):
        return True
    return hub_file(name, TEMPLATE) is not None if settings is not None else None


@functools.lru_cache(maxsize=8)  # a run asks several times, and the template stands behind the whole vocabulary
def _in_gguf(file: Path, size: int, changed: int) -> bool:
    return any(key == GGUF_KEY and value.strip() for key, _, value in gguf_fields(file))


def _in_folder(folder: Path) -> bool:
    return (folder / TEMPLATE).is_file() or bool(_stated(folder / SETTINGS))


def _stated(settings: Path) -> Any:
    try:
        return json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError, RecursionError):  # what is wrong with it is told when it is loaded
        return None
