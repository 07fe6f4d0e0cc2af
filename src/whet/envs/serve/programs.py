"""Programs of the user's, one process group each: bounded output, and an end for all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from whet.types import WhetError

KEPT_OUTPUT = 64 * 1024  # bytes of stdout and of stderr that are kept, the last ones
PATIENCE = 2.0  # seconds between the request to end and the end


def program_arguments(command: str) -> list[str]:
    """The words of a command; raises where there is no such program, or no such script."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise WhetError(f"env.agent {command!r} cannot be read as a command: {error}; check its quotes") from None
    if not words:
        raise WhetError("env.agent is empty; give a command, such as 'python my_agent.py'")
    if shutil.which(words[0]) is None:
        there = Path(words[0])
        why = "it is not executable" if there.is_file() else "there is no such program"
        raise WhetError(
            f"env.agent {command!r}: {why}: {words[0]!r}; give a command that runs, such as 'python my_agent.py'"
        )
    scripts = [each for each in words[1:] if each.endswith((".py", ".sh", ".js", ".ts")) and not each.startswith("-")]
    if scripts and not words[1].startswith("-") and not Path(scripts[0]).is_file():
        raise WhetError(f"env.agent {command!r}: there is no file {scripts[0]!r} in {Path.cwd()}; correct the path")
    return words


class AgentProgram:
    """A running program. Its group is killed when it ends, so that nothing of it stays behind."""

    def __init__(
        self, arguments: list[str], environment: Mapping[str, str], given: str, on_end: Callable[[], None]
    ) -> None:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            self._process = subprocess.Popen(
                arguments,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._tails = (bytearray(), bytearray())
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [
            threading.Thread(target=_keep_tail, args=(stream, tail), name="whet-agent-output", daemon=True)
            for stream, tail in zip(streams, self._tails, strict=True)
        ]
        for each in self._readers:
            each.start()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, args=(on_end,), name="whet-agent-end", daemon=True).start()

    def _watch(self, on_end: Callable[[], None]) -> None:
        if hasattr(os, "waitid"):
            # not reaped yet: its number, and that of its group, cannot belong to anybody else
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self._signal(signal.SIGKILL)
        self._process.wait()
        for each in self._readers:
            each.join(timeout=PATIENCE)
        self._ended.set()
        on_end()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def exit_code(self) -> int:
        code = self._process.returncode
        return -1 if code is None else code

    def end(self) -> None:
        """Ask it to end, then make it."""
        self._signal(signal.SIGTERM)
        if not self._ended.wait(PATIENCE):
            self._signal(signal.SIGKILL)
            self._ended.wait(PATIENCE)

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    @property
    def output(self) -> str:
        """The end of what it printed."""
        return bytes(self._tails[0]).decode("utf-8", "replace")

    @property
    def complaint(self) -> str:
        """The last line of its stderr."""
        lines = bytes(self._tails[1]).decode("utf-8", "replace").strip().splitlines()
        return " ".join(lines[-1].split())[:200] if lines else ""


def _keep_tail(stream: IO[bytes] | None, tail: bytearray) -> None:
    """Read to the end, so that the program never waits for a reader, and keep the last bytes."""
    assert stream is not None
    with contextlib.suppress(OSError, ValueError), stream:
        while part := os.read(stream.fileno(), 65536):
            tail += part
            if len(tail) > 2 * KEPT_OUTPUT:
                del tail[:-KEPT_OUTPUT]
