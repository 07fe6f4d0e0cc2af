"""Finished runs that many tests read and none changes: made once per session, whichever worker needs one first."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import common_folder

MADE_HERE = "made by a test"


def made_once(temporary: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of this session; other workers wait while the first one makes it."""
    folder = common_folder(temporary) / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    done = folder.with_suffix(".done")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def read_builtin_models_once() -> None:
    """Runs get copies of a built-in model that was read once: reading its files is a tenth of a short run."""
    load = sys.modules.get("whet.model.load")
    if load is None:  # no test of this session loads a model
        return
    read, originals = load.read_pair, {}

    def read_pair(source: str, dtype: Any, **options: Any) -> Any:
        if options or Path(source).parent != load.BUILTIN:
            return read(source, dtype, **options)
        if (source, dtype) not in originals:
            originals[source, dtype] = read(source, dtype)
        return deepcopy(originals[source, dtype])

    load.read_pair = read_pair


def try_equal_models_once(is_patched: Callable[[], bool]) -> None:
    """Hundreds of tests make the same small models, and hundreds of runs train the built-in one a little: what one of
    them tried out holds for the others, as it does for copies of a checkpoint; not in a test that patches something."""
    trials = sys.modules.get("whet.model.trials")
    if trials is None:
        return
    signature, note = trials._signature, trials._note

    def of_any_model(lm: Any) -> Any:
        config = getattr(lm.model, "config", None)
        source = getattr(config, "_name_or_path", None)
        if source is None or is_patched():
            return signature(lm)
        config._name_or_path = MADE_HERE
        try:
            key = signature(lm)
        finally:
            config._name_or_path = source
        if key is None or not source:
            return key
        *shape, _weights = key
        shared = tuple(shape)
        is_built_in = {name: size for name, size, *_ in shape[3]} == _sizes_of_built_in()
        # weights that were ruined on purpose say nothing about those of the next test
        is_refused = any(said and known == shared for (_, known), said in trials._VERDICTS.items())
        return shared if is_built_in and not is_refused else (source, *key[1:])

    trials._signature = of_any_model
    trials._note = lambda name, key, model: Path(os.devnull, "no") if key[0] == MADE_HERE else note(name, key, model)


@cache
def _sizes_of_built_in() -> dict[str, tuple[int, ...]]:
    from whet.model.load import load_model

    return {name: tuple(tensor.shape) for name, tensor in load_model("whetstone").model.named_parameters()}


def draw_prompts_once(is_patched: Callable[[], bool]) -> None:
    """Most runs learn from the same thousand questions of a task: to draw and to tokenize them is a quarter of a short
    run. Not in a test that patches something."""
    tasks, runtime = sys.modules.get("whet.data.tasks"), sys.modules.get("whet.training.assembly.runtime")
    if tasks is None or runtime is None:
        return
    draw, tokenize = tasks.prompts, runtime.tokens_of_prompts
    drawn: dict[Any, list[Any]] = {}
    tokenized: dict[Any, list[Any]] = {}
    ours: set[int] = set()  # ids of prompts that are never let go

    def prompts(*asked: Any) -> list[Any]:
        if is_patched():
            return draw(*asked)
        if asked not in drawn:
            drawn[asked] = draw(*asked)
            ours.update(map(id, drawn[asked]))
        return [*drawn[asked]]

    def tokens_of_prompts(tokenizer: Any, values: Any) -> list[Any]:
        places, backend = tuple(map(id, values)), getattr(tokenizer, "backend_tokenizer", None)
        if is_patched() or backend is None or not ours.issuperset(places):
            return tokenize(tokenizer, values)
        key = (places, tokenizer.chat_template, backend.to_str())
        if key not in tokenized:
            tokenized[key] = tokenize(tokenizer, values)
        return [*tokenized[key]]

    tasks.prompts, runtime.tokens_of_prompts = prompts, tokens_of_prompts


def train_imitator(folder: Path) -> None:
    """SFT on the built-in task, until the model answers otherwise than the built-in one."""
    import whet

    settings = {"data": {"count": 256}, "eval": {"prompts": 0}, "model": {"threads": 1}, "batch": {"rows_per_step": 32}}
    whet.train("sft", steps=8, folder=str(folder), config=settings, console=False)
