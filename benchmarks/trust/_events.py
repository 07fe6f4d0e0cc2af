"""Kills a whet command before one of its file-system events, many commands from one process that has imported whet.

    server = CommandServer()
    result = server.run(["train", "grpo", ...], folder)            # result.events: what it did to files below `folder`
    killed = server.run(["train", "grpo", ...], folder, kill_at=7)  # the same, and kill -9 before the seventh

An event is whatever changes a file, or would if it were not the last: opening for writing, a write that reaches the
operating system (and once more with half of it written), truncating, flushing to the disk, renaming, making and
removing. Weights are written by compiled code, so their file is one event, and one more with half of the file there.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class CommandResult:
    code: int  # negative: the signal it died of
    output: str
    events: tuple[str, ...]


class CommandServer:
    """A process that has imported whet and runs each command in a fork of itself: half a second instead of five."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "300"}
        environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.trust._events"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=REPOSITORY,
            text=True,
        )

    def run(
        self, words: list[str], folder: Path, kill_at: int = 0, watch: Path | None = None, setup: str = ""
    ) -> CommandResult:
        """Run `whet WORDS` with `folder` as working directory; events are those below `watch`, or `folder`.

        `setup` is Python that the forked process runs first, to bring about a fault.
        """
        with tempfile.TemporaryDirectory() as notes:
            order = {"words": words, "cwd": str(folder), "kill_at": kill_at, "notes": notes, "setup": setup}
            order["watch"] = str(watch or folder)
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            events = (Path(notes) / "events").read_text(errors="replace").split("\n")[:-1]
            output = (Path(notes) / "output").read_text(errors="replace")
        return CommandResult(answer["code"], output, tuple(events))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)

    def __enter__(self) -> CommandServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Interposer:
    """Stands between whet and the file system: notes each event below a folder, and dies before the chosen one."""

    def __init__(self, watch: str, kill_at: int, log: int) -> None:
        self.watch, self.kill_at, self.log, self.count = watch, kill_at, log, 0

    def is_inside(self, path: Any, dir_fd: int | None = None) -> bool:
        return self.place(path, dir_fd).startswith(self.watch)

    def place(self, path: Any, dir_fd: int | None = None) -> str:
        if isinstance(path, int):
            return os.readlink(f"/proc/self/fd/{path}")
        name = os.fsdecode(path)
        base = os.readlink(f"/proc/self/fd/{dir_fd}") if dir_fd is not None else os.getcwd()
        return os.path.normpath(os.path.join(base, name))

    def event(self, what: str, path: str) -> bool:
        """Note it; True where half of it is to be done before the end. Does not return where this is the end."""
        self.count += 1
        if self.count == self.kill_at:
            if what.startswith("half"):
                return True
            self.die()
        os.write(self.log, f"{what} {os.path.relpath(path, self.watch)}\n".encode())
        return False

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        self._patch(os, "mkdir", "mkdir")
        self._patch(os, "unlink", "unlink")
        self._patch(os, "remove", "unlink")
        self._patch(os, "rmdir", "rmdir")
        self._patch(os, "rename", "rename", target=1)
        self._patch(os, "replace", "rename", target=1)
        self._patch(os, "truncate", "truncate")
        self._patch(os, "ftruncate", "truncate")
        self._patch(os, "fsync", "fsync")
        self._patch(os, "link", "link", target=1)
        self._patch(os, "symlink", "link", target=1)
        self._patch(os, "chmod", "chmod")
        plain_flock = fcntl.flock

        def flock(file: Any, operation: int) -> None:
            number = file if isinstance(file, int) else file.fileno()
            if self.is_inside(number):
                self.event("lock", self.place(number))
            plain_flock(file, operation)

        fcntl.flock = flock
        self._patch_open()
        self._patch_safetensors()

    def _patch(self, module: Any, name: str, what: str, target: int = 0) -> None:
        plain = getattr(module, name)

        def patched(*arguments: Any, **options: Any) -> Any:
            dir_fd = options.get("dir_fd") if target == 0 else options.get("dst_dir_fd")
            if self.is_inside(arguments[target], dir_fd):
                self.event(what, self.place(arguments[target], dir_fd))
            return plain(*arguments, **options)

        setattr(module, name, patched)

    def _patch_open(self) -> None:
        plain_open, plain_os_open, interposer = io.open, os.open, self

        class Raw(io.FileIO):
            """Every write that reaches the operating system."""

            def write(self, data: Any) -> Any:
                place = interposer.place(self.fileno())
                interposer.event("write", place)
                if len(memoryview(data)) > 1 and interposer.event("half", place):
                    super().write(memoryview(data).cast("B")[: len(memoryview(data).cast("B")) // 2])
                    interposer.die()
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                interposer.event("truncate", interposer.place(self.fileno()))
                return super().truncate(size)

        def os_open(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            if writes and self.is_inside(path, options.get("dir_fd")):
                self.event("open", self.place(path, options.get("dir_fd")))
            return plain_os_open(path, flags, *arguments, **options)

        def watched_open(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            if not set(mode) & set("wxa+") or isinstance(file, int) or not self.is_inside(file):
                return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            self.event("open", self.place(file))
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered: Any = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline)

        os.open, io.open, builtins.open = os_open, watched_open, watched_open  # type: ignore[assignment]

    def _patch_safetensors(self) -> None:
        import safetensors.torch

        plain = safetensors.torch.save_file

        def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
            if not self.is_inside(filename):
                return plain(tensors, filename, metadata)
            self.event("write", self.place(filename))
            half = self.event("half", self.place(filename))
            plain(tensors, filename, metadata)
            if half:
                with io.FileIO(filename, "r+") as file:
                    file.truncate(os.path.getsize(filename) // 2)
                self.die()

        safetensors.torch.save_file = save_file
        # transformers took the function by name when it was imported
        for module in list(sys.modules.values()):
            for name in ("save_file", "safe_save_file"):
                if getattr(module, name, None) is plain:
                    setattr(module, name, save_file)


def _serve() -> None:
    from whet.model.load import load_model

    load_model("whetstone")  # what transformers imports at its first model
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _obey(order)
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


def _obey(order: dict[str, Any]) -> None:
    """Run one command and end; never returns."""
    code = 70
    try:
        output = os.open(os.path.join(order["notes"], "output"), os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(os.path.join(order["notes"], "events"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.chdir(order["cwd"])
        sys.argv = ["whet", *order["words"]]
        from whet.cli import main

        exec(order["setup"], {})
        _Interposer(os.path.realpath(order["watch"]), order["kill_at"], log).install()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
