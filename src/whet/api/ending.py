"""How a run ends that does not come to its end: in one line, with what was saved and how to go on.

An error that nobody expected leaves its traceback in the run folder's error.log. A process that is gone (a crash in C
code, a kill, a full memory) cannot say anything: a small second process watches for that and says it instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from whet.record.run_folder import JOURNAL
from whet.registry import error_text
from whet.reward.journal import journal

FIXES = {
    errno.ENOSPC: "free space on that disk (df -h; df -i shows whether only the file numbers are used up)",
    errno.EDQUOT: "free space: your quota is used up",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs: the machine has no file handles left",
    errno.EACCES: "let this user read and write it",
    errno.EPERM: "let this user read and write it",
    errno.EROFS: "its disk is read-only: give a folder on another one",
    errno.EIO: "look at the disk: it could not be read or written",
    errno.ENOMEM: "free memory",
}


def one_line_of(error: BaseException) -> str:
    """An error nobody expected in one line: what, where, and the fix where the operating system gave the reason."""
    if isinstance(error, OSError) and error.errno is not None:
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_working_folder():
            return "the folder that this command was started in is gone; `cd` into another one"
        file_prefix = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        fix = FIXES.get(error.errno)
        return f"{file_prefix}{error.strerror}" + (
            f"; {fix}" if fix else f" ({type(error).__name__} at {_place(error)})"
        )
    if isinstance(error, MemoryError):
        return f"out of memory at {_place(error)}; free memory, or lower batch.micro_batch_tokens"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return f"no more threads at {_place(error)}; raise the limit (ulimit -u, or the container's number of pids)"
    return f"unexpected {error_text(error)} at {_place(error)}"


def _has_working_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _place(error: BaseException) -> str:
    """file:line of the innermost frame of the package or the user; libraries in between say little."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    telling = [frame for frame in frames if "site-packages" not in frame[0] and not frame[0].startswith("<")] or frames
    return f"{telling[-1][0]}:{telling[-1][1]}" if telling else "an unknown place"


def write_traceback(path: Path, error: BaseException) -> bool:
    """Append the traceback to a file; whether that was possible."""
    text = "".join(traceback.format_exception(error))
    try:
        with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}\n{text}\n")
    except OSError:
        return False
    return True


def going_on(folder: Path) -> str:
    """How to go on, with the last checkpoint by name."""
    from whet.model.run_models import FINAL, about_model, complete_checkpoints

    try:
        checkpoints = complete_checkpoints(folder / "checkpoints")
    except OSError:
        checkpoints = []
    if not checkpoints and about_model(folder / FINAL) is not None:
        return f"its last weights are in {folder / FINAL} (report.save=weights: there is nothing to resume)"
    if not checkpoints:
        return f"`whet resume {folder}` begins again: no checkpoint was saved yet"
    return f"`whet resume {folder}` continues from {checkpoints[-1].name}"


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Let the last writes of a run come to their end: a signal meanwhile changes nothing, a second one interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    heeded = [
        signal_number
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(signal_number) is not None
    ]
    before = {number: signal.signal(number, note) for number in heeded if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Runs alone with the standard library. Whoever is watched writes a byte before it goes; without it, it was ended.
WATCHER = r"""
import os, select, signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
    signal.signal(number, signal.SIG_IGN)
folder, journal, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])
waits = [0]
try:
    waits.append(os.pidfd_open(parent))
except (AttributeError, OSError):
    pass
while not select.select(waits, [], [], None if len(waits) > 1 else 1.0)[0] and os.getppid() == parent:
    pass
os.set_blocking(0, False)
try:
    said = os.read(0, 1)
except OSError:
    said = b""
if not said:
    import re
    try:
        with open(journal, "rb") as file:
            call = file.read().decode("utf-8", "replace").strip("\0 \n")
    except OSError:
        call = ""
    try:
        saved = sorted((int(n[5:]), n) for n in os.listdir(folder + "/checkpoints") if re.fullmatch(r"step-\d{6,}", n))
    except OSError:
        saved = []
    on = "continues from " + saved[-1][1] if saved else "begins again: no checkpoint was saved yet"
    if not saved and os.path.exists(folder + "/final/manifest.json"):
        on = "cannot go on (report.save=weights); its last weights are in " + folder + "/final"
    why = "killed, crashed in C code, or out of memory"
    print("whet: the process is gone without a word (%s)%s; `whet resume %s` %s"
          % (why, ": " + call if call else "", folder, on), file=sys.stderr, flush=True)
"""


@contextlib.contextmanager
def crash_reporter(folder: Path) -> Iterator[Callable[[], None]]:
    """Report, from a second process, that this one was killed inside the block; calling what is yielded ends the watch.

    It names the call of a reward that was under way.
    """
    try:
        reading, writing = os.pipe()
    except OSError:
        yield lambda: None
        return

    def let_go() -> None:
        with contextlib.suppress(OSError):
            os.write(writing, b".")

    watcher = None
    try:
        command = [sys.executable, "-I", "-S", "-c", WATCHER, str(folder), str(folder / JOURNAL), str(os.getpid())]
        with contextlib.suppress(OSError):  # no process to spare: then nobody watches
            watcher = subprocess.Popen(command, stdin=reading, stdout=subprocess.DEVNULL)
        os.close(reading)
        with journal(folder):
            yield let_go
    finally:
        let_go()
        os.close(writing)
        if watcher is not None:
            watcher.wait()
