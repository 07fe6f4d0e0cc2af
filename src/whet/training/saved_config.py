"""The config in a run's folder, with rows and weights that were given from Python; read back wherever the folder is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.data.benchmarks import BENCHMARKS
from whet.data.multiple_choice import CHOICES
from whet.data.source import MIX
from whet.record.run_folder import CONFIG, LOCK, claimed_place, was_cut_off, write_atomically
from whet.settings.layers import read_toml
from whet.training.config import Config, differing_keys, resolved, toml_text
from whet.training.run_inputs import INPUTS, started_in
from whet.types import WhetError

ROWS, EVAL_ROWS = "data.jsonl", "eval.jsonl"
START = "start"  # the weights of a model that was given as an object
BEFORE_CONFIG = (ROWS, EVAL_ROWS, START, f".{CONFIG}", INPUTS, f".{INPUTS}")  # all that is written before the config
# settings that may be paths, beside those of rewards
PATHS = (
    *(("data", "source"), ("eval", "source"), ("reward", "ledger"), ("preference", "store")),
    *(("model", "name"), ("model", "reference_model"), ("critic", "start"), ("teacher", "name")),
)


def read_config(folder: Path) -> Config:
    """The config a run was started with."""
    if not (folder / CONFIG).is_file():
        if was_cut_off(folder, BEFORE_CONFIG):
            raise WhetError(f"{folder}: the run was killed before it began; start it again with the same command")
        raise WhetError(f"{folder}: not a run folder (no {CONFIG}); `whet train` makes one, `whet runs` lists yours")
    values = read_values(folder)
    return resolved(str(values.get("method")), values)


def read_values(folder: Path) -> dict[str, Any]:
    """The nested values of a run folder's config.toml; nothing where there is no such file.

    What the run keeps in its own folder is found there, also after a move. Relative paths start where the run was
    started, also from another working directory.
    """
    if not (folder / CONFIG).is_file():
        return {}
    values = read_toml(folder / CONFIG)
    for section, key, name in (("data", "source", ROWS), ("eval", "source", EVAL_ROWS), ("model", "name", START)):
        own = str(Path(str(values.get("folder", ""))) / name)
        if _table(values, section).get(key) == own and (folder / name).exists():
            values[section][key] = str(folder / name)
    start = started_in(folder)
    if start is not None and start != Path.cwd():
        _find_paths(values, start)
    return values


def _table(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    table = values.get(section)
    return table if isinstance(table, dict) else {}


def _find_paths(values: dict[str, Any], start: Path) -> None:
    """Make paths absolute that are relative and lead somewhere from `start`."""

    def found(text: Any) -> Any:
        if isinstance(text, str) and text.startswith(MIX):
            return MIX + ",".join(map(found, text.removeprefix(MIX).split(",")))
        if isinstance(text, str) and "=" in text and not (start / text).exists():  # of a mixture: PATH=WEIGHT
            source, _, weight = text.rpartition("=")
            return f"{found(source)}={weight}"
        path, colon, function = text.partition(":") if isinstance(text, str) else ("", "", "")
        if path in (*BENCHMARKS, *CHOICES) and colon:  # gsm8k:PATH
            return f"{path}:{found(function)}"
        if not path or Path(path).expanduser().is_absolute() or not (start / path).exists():
            return text
        return f"{start / path}{colon}{function}"

    for section, key in PATHS:
        table = _table(values, section)
        if key in table:
            table[key] = found(table[key])
    parts = _table(values, "reward").get("parts")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict) and "reward" in part:
            part["reward"] = found(part["reward"])
            if "rows" in part:
                part["rows"] = found(part["rows"])
            if isinstance(part.get("settings"), dict):
                part["settings"] = {name: found(value) for name, value in part["settings"].items()}


def write_config(folder: Path, config: Config) -> None:
    """Write the config into a run folder, replacing the file in one move."""
    write_atomically(folder / CONFIG, toml_text(config))


@contextlib.contextmanager
def claimed_folder(
    config: Config,
    rows: Sequence[Mapping[str, Any]] | None = None,
    eval_rows: Sequence[Mapping[str, Any]] | None = None,
) -> Iterator[tuple[Path, Config]]:
    """The run's own folder, made and locked, with the rows given from Python; never one that already holds a run.

    Whoever does not get the lock removes nothing. Whoever has it removes what it made if the run does not begin.
    """
    with claimed_place(config.folder, config.method, CONFIG, BEFORE_CONFIG, _refuse_run(config)) as folder:
        for name, section_rows in ((ROWS, rows), (EVAL_ROWS, eval_rows)):
            if section_rows is not None:
                write_rows(folder / name, section_rows)
        yield folder, placed(config, folder, rows, eval_rows)


def placed(config: Config, folder: Path, rows: Any, eval_rows: Any) -> Config:
    """The config with its folder, and in it the rows that were given from Python."""
    values: dict[str, Any] = {"folder": str(folder)}
    for name, section, section_rows in ((ROWS, "data", rows), (EVAL_ROWS, "eval", eval_rows)):
        if section_rows is not None:
            values[section] = getattr(config, section).model_copy(update={"source": str(folder / name)})
    return config.model_copy(update=values)


def _refuse_run(config: Config) -> Callable[[Path], None]:
    def refuse_run(folder: Path) -> None:
        if (folder / CONFIG).exists():
            there = read_config(folder)
            differing = differing_keys(config, there)
            others = f"another config: {', '.join(differing[:3])}" if differing else "this very config"
            raise WhetError(
                f"{folder} already holds a run ({others}); `whet resume {folder}`, or give exist=replace or another "
                "folder"
            )
        if any(path.name != LOCK for path in folder.iterdir()):
            raise WhetError(f"{folder} is not empty and not a run; give an empty or new folder")

    return refuse_run


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows given from Python as a JSONL file."""
    path.write_text(rows_text(rows), encoding="utf-8")


def rows_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as JSON Lines."""
    return "".join(_row_line(*numbered) for numbered in enumerate(rows))


def _row_line(number: int, row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(row)) + "\n"
    except (TypeError, ValueError) as error:
        raise WhetError(
            f"data: row {number} is not a dictionary that JSON can hold ({error}); give text, numbers, lists and None"
        ) from error
