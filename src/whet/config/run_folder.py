"""A run's folder: made, locked against a second process, and the config in it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.config.config import Config, differing_keys, read_toml, resolved, toml_text
from whet.config.names import translated
from whet.types import WhetError

CONFIG, ROWS, EVAL_ROWS = "config.toml", "data.jsonl", "eval.jsonl"
START = "start"  # the weights of a model that was given as an object


def read_config(folder: Path) -> Config:
    """The config a run was started with."""
    if not (folder / CONFIG).is_file():
        raise WhetError(f"{folder}: not a run folder (no {CONFIG}); `whet train` makes one, `whet runs` lists yours")
    values = read_values(folder)
    return resolved(str(values.get("method")), values)


def refuse_resume_of_0_1(folder: Path) -> None:
    """Raise where whet 0.1 wrote the run: its weights and records can be read, its training state cannot."""
    values = read_toml(folder / CONFIG)
    if translated(values) != values:
        raise WhetError(
            f"{folder}: whet 0.1 wrote this run, which this version cannot resume exactly; go on from its weights with "
            f"`whet train {values.get('method')} --model {folder}`, or resume it with whet 0.1"
        )


def read_values(folder: Path) -> dict[str, Any]:
    """The nested values of a run folder's config.toml, in today's keys; nothing where there is no such file.

    What the run keeps in its own folder is found there, also from another working directory and after a move.
    """
    if not (folder / CONFIG).is_file():
        return {}
    values = translated(read_toml(folder / CONFIG))
    for section, key, name in (("data", "source", ROWS), ("eval", "source", EVAL_ROWS), ("model", "name", START)):
        own = str(Path(str(values.get("folder", ""))) / name)
        if values.get(section, {}).get(key) == own and (folder / name).exists():
            values[section][key] = str(folder / name)
    return values


def write_config(folder: Path, config: Config) -> None:
    partial = folder / f".{CONFIG}"
    partial.write_text(toml_text(config), encoding="utf-8")
    os.replace(partial, folder / CONFIG)


@contextlib.contextmanager
def claimed_folder(
    config: Config,
    rows: Sequence[Mapping[str, Any]] | None = None,
    eval_rows: Sequence[Mapping[str, Any]] | None = None,
) -> Iterator[tuple[Path, Config]]:
    """The run's own folder, made and locked, with the rows given from Python; never one that already holds a run."""
    folder = Path(config.folder) if config.folder else next_free_folder(config.method)
    if (folder / CONFIG).exists():
        there = read_config(folder)
        differing = differing_keys(config, there)
        about = f"with another config ({', '.join(differing[:3])} differ)" if differing else "with this very config"
        raise WhetError(f"{folder} already holds a run {about}; `whet resume {folder}`, or give another --folder")
    if folder.is_dir() and any(path.name != "lock" for path in folder.iterdir()):
        raise WhetError(f"{folder} is not empty and not a run; give an empty or new --folder")
    made = [place for place in (folder, *folder.parents) if not place.exists()]  # the innermost first
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise WhetError(f"{folder}: cannot write the run there ({error.strerror}); give another --folder") from error
    try:
        with locked(folder):
            values: dict[str, Any] = {"folder": str(folder)}
            for name, section, given in ((ROWS, "data", rows), (EVAL_ROWS, "eval", eval_rows)):
                if given is not None:
                    write_rows(folder / name, given)
                    values[section] = getattr(config, section).model_copy(update={"source": str(folder / name)})
            yield folder, config.model_copy(update=values)
    except BaseException:
        if not (folder / CONFIG).exists():  # a mistake found before the run began leaves nothing behind
            for name in ("lock", ROWS, EVAL_ROWS):
                (folder / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody else's run came to stand there meanwhile
                for place in made:
                    place.rmdir()
        raise


def discard(folder: Path) -> None:
    """Remove what a run wrote that has not done a step: whoever holds the lock gives the folder back."""
    for path in folder.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process out of a run folder."""
    with open(folder / "lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WhetError(
                f"{folder}: another process is training there; wait for it, or give another --folder"
            ) from error
        yield


def is_locked(folder: Path) -> bool:
    """Whether a process is training in the folder now."""
    if not (folder / "lock").is_file():
        return False
    try:
        with locked(folder):
            return False
    except WhetError:
        return True


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows given from Python as a JSONL file."""
    path.write_text("".join(_row_line(*numbered) for numbered in enumerate(rows)), encoding="utf-8")


def _row_line(number: int, row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(row)) + "\n"
    except (TypeError, ValueError) as error:
        raise WhetError(
            f"data: row {number} is not a dictionary that JSON can hold ({error}); give text, numbers, lists and None"
        ) from error


def next_free_folder(name: str, under: Path | str = "runs") -> Path:
    """The first of runs/NAME-001, runs/NAME-002, ... that does not exist yet."""
    number = 1
    while (folder := Path(under) / f"{name}-{number:03d}").exists():
        number += 1
    return folder
