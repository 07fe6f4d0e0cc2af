"""A run's folder: made, locked against a second process, and given back where the run does not begin."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO

from whet.types import WhetError

CONFIG = "config.toml"
LOCK = "lock"
ERROR_LOG = "error.log"  # the traceback of an error that nobody expected
JOURNAL = "scoring.txt"  # which sample a reward is judging; left behind by a process that was killed there
WAS_EMPTY = "this folder was empty when whet began to write a run into it\n"
PATIENCE = 0.5  # seconds until a lock counts as held
NO_LOCKS = "WHET_NO_LOCKS"  # in the environment

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def claimed_place(
    path: str, name: str, config: str, before_config: Sequence[str], refuse_used: Callable[[Path], None]
) -> Iterator[Path]:
    """The folder `path`, or the next free one for `name`, made and locked; `refuse_used` raises where it is not free.

    What is made there has begun when the file `config` is there. What a killed process left before that,
    `before_config`, is cleared away, but only where the folder was empty when whet came.
    """
    folder, made = _new_folder(Path(path)) if path else _next_folder(name)
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
            _remove_empty(made)
        raise


def _new_folder(folder: Path) -> tuple[Path, list[Path]]:
    """The folder, made where it is not there, and those of its path that are new, the innermost first."""
    made: list[Path] = []
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            for path in reversed((folder, *folder.parents)):
                if not path.is_dir():
                    with contextlib.suppress(FileExistsError):  # made by somebody else in the meantime
                        path.mkdir()
                        made.insert(0, path)
            if folder.is_dir():
                return folder, made
            number = errno.ENOTDIR if os.path.lexists(folder) and not folder.is_dir() else errno.ENOENT
            raise OSError(number, os.strerror(number))
        except OSError as error:
            if isinstance(error, FileNotFoundError) and time.monotonic() < patience:
                continue  # another process, whose run does not begin, has just taken back what it made
            _remove_empty(made)
            raise WhetError(f"{folder}: cannot write the run there ({error.strerror}); give another folder") from error


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove folders, the innermost first, up to one in which there is something."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _next_folder(name: str) -> tuple[Path, list[Path]]:
    """The next free folder for `name`; of several processes that start together each gets its own."""
    earlier: list[Path] = []
    while True:
        folder, made = _new_folder(next_free_folder(name))
        if folder in made:
            return folder, made + earlier
        earlier = made + earlier


def discard(folder: Path) -> None:
    """Remove what a run wrote before its first step, so that the folder can be used again."""
    for path in folder.iterdir():
        if path.name != LOCK:
            remove(path)


def remove_run(folder: Path) -> None:
    """Delete a run that nobody is training, its config last: what a kill leaves is still a run to delete."""
    with locked(folder):
        for path in sorted(folder.iterdir(), key=lambda path: path.name == CONFIG):
            if path.name != LOCK:
                remove(path)


def was_cut_off(folder: Path, before_config: Sequence[str]) -> bool:
    """Whether all that a folder holds was made by a process that was killed before its config was there."""
    with contextlib.suppress(OSError, ValueError):  # a name that is no text is no folder
        names = {path.name for path in folder.iterdir()}
        return names <= {LOCK, *before_config} and (folder / LOCK).read_text(errors="replace") == WAS_EMPTY
    return False


def remove_all(folder: Path, names: Sequence[str]) -> None:
    """Delete these files and folders inside `folder`; those that are missing are passed over."""
    for name in names:
        remove(folder / name)


def remove(path: Path) -> None:
    """Delete a file or a whole folder; of a symbolic link, only the link."""
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
        """Replace the content of the lock file; the lock itself is the kernel's and does not depend on it."""
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
            raise WhetError(f"{folder}: cannot write there ({error.strerror}); give another folder") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            if is_late:
                raise WhetError(
                    f"{folder}: another process is training there; wait for it, or give another folder"
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
    """Warn or refuse where the file system has no locks: training needs them unless the user opts out."""
    if os.environ.get(NO_LOCKS) != "1":
        raise WhetError(
            f"{folder}: its file system has no file locks ({error.strerror}), so a second process could train into the "
            f"same folder; give a folder elsewhere, or set {NO_LOCKS}=1 and start only one"
        ) from error
    logger.warning("%s: not locked (%s): start no second process there", folder, error.strerror)


def is_same_file(file: IO[Any], path: Path) -> bool:
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


def status_of(folder: Path, summary: Mapping[str, Any]) -> str:
    """finished, failed, interrupted or running: a run that says it is running and whose lock is free was killed."""
    status = str(summary.get("status") or "running")
    return "interrupted" if status == "running" and not is_locked(folder) else status


def next_free_folder(name: str) -> Path:
    """The first of runs/NAME-001, runs/NAME-002, ... that does not exist yet."""
    number = 1
    while (folder := Path("runs") / f"{name}-{number:03d}").exists():
        number += 1
    return folder


def write_atomically(path: Path | str, text: str, durable: bool = False) -> Path:
    """Write a file so that a reader finds the old one or the new one; `durable`: also after the power went.

    Of several writers each writes a file of its own, and the last one to end is read.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    file, partial = _own_partial(path)
    try:
        with file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()  # before it has its name: the disk may be full, the process may end
            if durable:
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    return path


def _own_partial(path: Path) -> tuple[IO[bytes], Path]:
    """An empty file beside `path`, open, and where it is.

    It always has the same name, so that what a killed process left is written over; its lock is held while it is open.
    Whoever comes meanwhile writes another one.
    """
    partial = path.with_name(f".{path.name}")
    while True:
        file = partial.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            own = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
            return own.open("wb"), own
        except OSError:  # a file system without locks
            pass
        if is_same_file(file, partial):
            file.truncate(0)
            return file, partial
        file.close()  # another writer has just moved it to its place
