"""A run's folder: made, locked against a second process, and the config in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from whet.data.benchmarks import BENCHMARKS
from whet.settings.config import Config, differing_keys, read_toml, resolved, toml_text
from whet.settings.names import translated
from whet.settings.run_inputs import INPUTS, started_in
from whet.types import WhetError

CONFIG, ROWS, EVAL_ROWS = "config.toml", "data.jsonl", "eval.jsonl"
START = "start"  # the weights of a model that was given as an object
LOCK = "lock"
WAS_EMPTY = "this folder was empty when whet began to write a run into it\n"
BEFORE_CONFIG = (ROWS, EVAL_ROWS, START, f".{CONFIG}", INPUTS, f".{INPUTS}")  # all that is written before the config
# settings that may be paths, beside those of rewards
PATHS = (("data", "source"), ("eval", "source"), ("model", "name"), ("reward", "ledger"), ("preference", "store"))
PATIENCE = 0.5  # seconds until a lock counts as held
NO_LOCKS = "WHET_NO_LOCKS"  # in the environment

logger = logging.getLogger(__name__)


def read_config(folder: Path) -> Config:
    """The config a run was started with."""
    if not (folder / CONFIG).is_file():
        if was_cut_off(folder, BEFORE_CONFIG):
            raise WhetError(f"{folder}: the run was killed before it began; start it again with the same command")
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

    What the run keeps in its own folder is found there, also after a move. Relative paths start where the run was
    started, also from another working directory.
    """
    if not (folder / CONFIG).is_file():
        return {}
    values = translated(read_toml(folder / CONFIG))
    for section, key, name in (("data", "source", ROWS), ("eval", "source", EVAL_ROWS), ("model", "name", START)):
        own = str(Path(str(values.get("folder", ""))) / name)
        if _table(values, section).get(key) == own and (folder / name).exists():
            values[section][key] = str(folder / name)
    start = started_in(folder)
    if start is not None and start != Path.cwd():
        _find_paths(values, start)
    return values


def _table(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    found = values.get(section)
    return found if isinstance(found, dict) else {}


def _find_paths(values: dict[str, Any], start: Path) -> None:
    """Make paths absolute that are relative and lead somewhere from `start`."""

    def found(text: Any) -> Any:
        path, colon, function = text.partition(":") if isinstance(text, str) else ("", "", "")
        if path in BENCHMARKS and colon:  # gsm8k:PATH
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
            if isinstance(part.get("settings"), dict):
                part["settings"] = {name: found(value) for name, value in part["settings"].items()}


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
    """The run's own folder, made and locked, with the rows given from Python; never one that already holds a run.

    Whoever does not get the lock removes nothing. Whoever has it removes what it made if the run does not begin.
    """
    with claimed_place(config.folder, config.method, CONFIG, BEFORE_CONFIG, _refuse_run(config)) as folder:
        values: dict[str, Any] = {"folder": str(folder)}
        for name, section, given in ((ROWS, "data", rows), (EVAL_ROWS, "eval", eval_rows)):
            if given is not None:
                write_rows(folder / name, given)
                values[section] = getattr(config, section).model_copy(update={"source": str(folder / name)})
        yield folder, config.model_copy(update=values)


def _refuse_run(config: Config) -> Callable[[Path], None]:
    def refuse_run(folder: Path) -> None:
        if (folder / CONFIG).exists():
            there = read_config(folder)
            differing = differing_keys(config, there)
            about = f"with another config ({', '.join(differing[:3])} differ)" if differing else "with this very config"
            raise WhetError(f"{folder} already holds a run {about}; `whet resume {folder}`, or give another --folder")
        if any(path.name != LOCK for path in folder.iterdir()):
            raise WhetError(f"{folder} is not empty and not a run; give an empty or new --folder")

    return refuse_run


@contextlib.contextmanager
def claimed_place(
    given: str, name: str, config: str, before_config: Sequence[str], refuse_used: Callable[[Path], None]
) -> Iterator[Path]:
    """The folder `given`, or the next free one for `name`, made and locked; `refuse_used` raises where it is not free.

    What is made there has begun when the file `config` is there. What a killed process left before that,
    `before_config`, is cleared away, but only where the folder was empty when whet came.
    """
    folder, made = _new_folder(Path(given)) if given else _next_folder(name)
    is_ours = False
    try:
        with locked(folder, new=True) as lock:
            try:
                if was_cut_off(folder, before_config):
                    remove_all(folder, before_config)
                refuse_used(folder)
                is_ours = True
                lock.mark(WAS_EMPTY)
                yield folder
            except BaseException:
                if not (folder / config).exists():  # a mistake found before the run began leaves nothing behind
                    if is_ours:
                        remove_all(folder, before_config)
                    if is_ours or lock.is_new:
                        (folder / LOCK).unlink(missing_ok=True)
                raise
    except BaseException:
        if not (folder / config).exists():
            with contextlib.suppress(OSError):  # something stands there that is not ours
                for place in made:
                    place.rmdir()
        raise


def _new_folder(folder: Path) -> tuple[Path, list[Path]]:
    """The folder, made where it is not there, and those of its path that are new, the innermost first."""
    made: list[Path] = []
    try:
        for place in reversed((folder, *folder.parents)):
            if not place.is_dir():
                with contextlib.suppress(FileExistsError):  # made by somebody else in the meantime
                    place.mkdir()
                    made.insert(0, place)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except OSError as error:
        for place in made:
            place.rmdir()
        raise WhetError(f"{folder}: cannot write the run there ({error.strerror}); give another --folder") from error
    return folder, made


def _next_folder(name: str) -> tuple[Path, list[Path]]:
    """The next free folder for `name`; of several processes that start together each gets its own."""
    while True:
        folder, made = _new_folder(next_free_folder(name))
        if folder in made:
            return folder, made


def discard(folder: Path) -> None:
    """Remove what a run wrote that has not done a step: whoever holds the lock gives the folder back."""
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)


def was_cut_off(folder: Path, before_config: Sequence[str]) -> bool:
    """Whether all that a folder holds was made by a process that was killed before its config was there."""
    with contextlib.suppress(OSError):
        names = {path.name for path in folder.iterdir()}
        return names <= {LOCK, *before_config} and (folder / LOCK).read_text(errors="replace") == WAS_EMPTY
    return False


def remove_all(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        remove(folder / name)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class FolderLock:
    """The lock of a run folder, held by this process."""

    file: TextIO
    is_new: bool  # its file was made by this process

    def mark(self, text: str) -> None:
        self.file.truncate(0)
        self.file.write(text)
        self.file.flush()


@contextlib.contextmanager
def locked(folder: Path, new: bool = False) -> Iterator[FolderLock]:
    """Keep a second process out of a run folder.

    The kernel holds the lock for this process alone: it ends with the process, however that ends, and children do not
    keep it. `new`: the folder may vanish before it is locked, where another process gives it back.
    """
    lock = _taken_lock(folder, new)
    _held.append(lock.file)
    try:
        yield lock
    finally:
        _held.remove(lock.file)
        with contextlib.suppress(OSError):
            fcntl.flock(lock.file, fcntl.LOCK_UN)  # for a child that is being forked, too
        lock.file.close()


_held: list[TextIO] = []


def _release_in_child() -> None:
    """A lock lasts until its last descriptor is closed: one that a child kept would outlive the run."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _held:
        os.dup2(nothing, file.fileno(), inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_release_in_child)


def _taken_lock(folder: Path, new: bool) -> FolderLock:
    patience = time.monotonic() + PATIENCE
    while True:
        is_late = time.monotonic() > patience
        is_new = not (folder / LOCK).exists()
        try:
            file = (folder / LOCK).open("a+", encoding="utf-8")
        except FileNotFoundError as error:
            if not new or is_late:
                raise WhetError(f"{folder}: no such folder; `whet runs` lists yours") from error
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True)
            continue
        except OSError as error:
            raise WhetError(f"{folder}: cannot write there ({error.strerror}); give another --folder") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            if is_late:
                raise WhetError(
                    f"{folder}: another process is training there; wait for it, or give another --folder"
                ) from error
            time.sleep(0.02)  # it may only be looking whether somebody trains there
            continue
        except OSError as error:
            file.close()
            _go_on_unlocked(folder, error)
            file = (folder / LOCK).open("a+", encoding="utf-8")
        if is_same_file(file, folder / LOCK):
            return FolderLock(file, is_new)
        file.close()  # the one who held it gave the folder back, and the lock's file went with it


def _go_on_unlocked(folder: Path, error: OSError) -> None:
    """Where the file system has no locks, training is refused, unless the user takes care of it himself."""
    if os.environ.get(NO_LOCKS) != "1":
        raise WhetError(
            f"{folder}: its file system has no file locks ({error.strerror}), so a second process could train into the "
            f"same folder; give a --folder elsewhere, or set {NO_LOCKS}=1 and start only one"
        ) from error
    logger.warning("%s: not locked (%s): start no second process there", folder, error.strerror)


def is_same_file(file: TextIO, path: Path) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def is_locked(folder: Path) -> bool:
    """Whether a process is training in the folder now; False where nobody can tell."""
    try:
        with (folder / LOCK).open(encoding="utf-8") as lock:  # also in a folder that may only be read
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


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
