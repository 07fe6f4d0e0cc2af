"""Programs of the user's, one process group each: bounded output, and an end for all of them.

A guard, a small process beside the trainer's, ends what is left of them when the trainer is killed.

Agents that are functions of this process: `async def play(client, row)`, many episodes on one event loop.

A process per episode costs seconds where an agent's packages are large. A function is given a client of the package
`openai` that speaks to the endpoint with the episode's own token, and returns its reward, a number or
`{"reward": ..., "metrics": {...}}`; None leaves the episode unscored. What it raises fails its episode alone. It must
not block: other episodes run on the same loop, and a time limit can only interrupt it where it awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from whet.envs.adapters.verifiers import verifiers_play
from whet.envs.sections import VERIFIERS
from whet.registry import error_text, imported
from whet.threads import Thread
from whet.types import WhetError

AgentPlay = Callable[[Any, Mapping[str, Any]], Awaitable[Any]]
CLOSE_SECONDS = 15.0
FUNCTION = re.compile(r"\S+:[A-Za-z_]\w*")
GIVEN: dict[str, AgentPlay] = {}  # that only the calling program has, by the name its config has


def is_function(agent: str) -> bool:
    """Whether `env.agent` names a function, `file.py:name` or `module:name`, and no command."""
    return agent in GIVEN or agent.startswith(VERIFIERS) or FUNCTION.fullmatch(agent) is not None


def agent_function(name: str, settings: Mapping[str, Any] | None = None) -> AgentPlay:
    """The function of that name, or the environment of verifiers; one line where it cannot play."""
    if importlib.util.find_spec("openai") is None:
        raise WhetError(f"env.agent {name!r} is given a client of the package openai; pip install openai")
    if name.startswith(VERIFIERS):
        return verifiers_play(name, settings or {})
    function: AgentPlay = GIVEN[name] if name in GIVEN else imported(name, "agent")
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if not inspect.iscoroutinefunction(called):
        raise WhetError(
            f"env.agent {name!r} is no async function; write `async def {name.rpartition(':')[2]}(client, row)`"
        )
    return function


class FunctionLoop:
    """An event loop in a thread of its own, and the connections that all episodes share."""

    def __init__(self, play: AgentPlay) -> None:
        from openai import DefaultAsyncHttpxClient

        self.play = play
        self.loop = asyncio.new_event_loop()
        self.http = DefaultAsyncHttpxClient(timeout=None, trust_env=False)  # no proxy carries what stays here
        Thread(target=self.loop.run_forever, name="whet-agents", daemon=True).start()

    def close(self) -> None:
        """End the loop; episodes have ended before. What plays is told, where it has a `close`."""
        closing = getattr(self.play, "close", None)
        if closing is not None:
            with contextlib.suppress(Exception):
                asyncio.run_coroutine_threadsafe(closing(), self.loop).result(CLOSE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)


class FunctionEpisode:
    """An episode that a function plays, to its runner like one of a program's (`whet.envs.serve.programs`)."""

    def __init__(
        self, agents: FunctionLoop, address: str, token: str, row: Mapping[str, Any], on_end: Callable[[], None]
    ) -> None:
        self.exit_code, self.output, self.complaint = 0, "", ""
        self._ended, self._on_end = threading.Event(), on_end
        self._task: asyncio.Task[None] | None = None
        self._loop = agents.loop

        def start() -> None:
            self._task = agents.loop.create_task(self._play(agents, address, token, row))

        agents.loop.call_soon_threadsafe(start)

    async def _play(self, agents: FunctionLoop, address: str, token: str, row: Mapping[str, Any]) -> None:
        from openai import AsyncOpenAI

        try:
            client = AsyncOpenAI(base_url=address, api_key=token, http_client=agents.http, max_retries=0)
            reward = await agents.play(client, row)
            if reward is not None:
                report = reward if isinstance(reward, Mapping) else {"reward": reward}
                self.output = json.dumps(report, default=_plain)
        except asyncio.CancelledError:
            self.exit_code = 1
        except Exception as error:
            self.exit_code, self.complaint = 1, error_text(error)
        finally:
            self._ended.set()
            self._on_end()

    @property
    def has_ended(self) -> bool:
        """Whether the function has returned or raised."""
        return self._ended.is_set()

    def ask_to_end(self) -> None:
        """Cancel it where it awaits."""
        self._loop.call_soon_threadsafe(lambda: self._task.cancel() if self._task is not None else None)

    kill = ask_to_end

    def wait(self, seconds: float) -> bool:
        """True when it has ended by then."""
        return self._ended.wait(max(seconds, 0.0))


def _plain(value: Any) -> Any:
    """A number of numpy's or torch's as Python's own."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


KEPT_OUTPUT = 64 * 1024  # bytes of stdout and of stderr that are kept, the last ones
SHELL_WORDS = ("&&", "||", "|", ";", ">", "<", "&")
PATIENCE = 2.0  # seconds between the request to end and the end
# groups to end come in as +NUMBER, and leave as -NUMBER; a forked process may hold the pipe open for longer than its
# parent lives, so the parent is looked for too
GUARD = """
import os, select, signal
parent, groups, kept = os.getppid(), set(), b""
while os.getppid() == parent:
    if select.select([0], [], [], 0.5)[0]:
        part = os.read(0, 65536)
        if not part:
            break
        *lines, kept = (kept + part).split(b"\\n")
        for line in lines:
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


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
        fix = "give a command that runs, such as 'python my_agent.py'"
        if "=" in words[0] or any(word in SHELL_WORDS or word.endswith(";") for word in words):
            fix = f"no shell reads it; give {shlex.join(['bash', '-c', command])!r}"
        raise WhetError(f"env.agent {command!r}: {why}: {words[0]!r}; {fix}")
    scripts = [word for word in words[1:] if word.endswith((".py", ".sh", ".js", ".ts")) and not word.startswith("-")]
    if scripts and not words[1].startswith("-") and not Path(scripts[0]).is_file():
        raise WhetError(f"env.agent {command!r}: there is no file {scripts[0]!r} in {Path.cwd()}; correct the path")
    return words


class ProgramGuard:
    """Kills the process groups it guards when this process ends, even by kill -9."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing: weakref.finalize[..., ProgramGuard] | None = None

    def add(self, group: int) -> None:
        """Guard a process group; the first one starts the guard's own process."""
        with self._lock:
            self._groups.add(group)
            self._tell(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Stop guarding a process group that has ended: its number may be given to another."""
        with self._lock:
            self._groups.discard(group)
            self._tell(b"-%d\n" % group)

    def close(self) -> None:
        """End the guard's process, which kills the groups that are still guarded."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._process = self._closing = None

    def _tell(self, line: bytes) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(line)
                return
        if self._groups:  # somebody has ended it, or there was none yet
            self._start()

    def _start(self) -> None:
        if self._closing is not None:
            self._closing()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        self._closing = weakref.finalize(self, _end_guard, self._process)
        assert self._process.stdin is not None
        self._process.stdin.write(b"".join(b"+%d\n" % group for group in sorted(self._groups)))


def _end_guard(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)


class AgentProgram:
    """A running program. Its group is killed when it ends, so that nothing of it stays behind."""

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        text: str,
        on_end: Callable[[], None],
        guard: ProgramGuard,
    ) -> None:
        with tempfile.TemporaryFile() as stdin:
            stdin.write(text.encode())
            stdin.seek(0)
            self._process = subprocess.Popen(
                arguments,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._guard = guard
        guard.add(self._process.pid)
        self._tails = (bytearray(), bytearray())
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [
            Thread(target=_keep_tail, args=(stream, tail), name="whet-agent-output", daemon=True)
            for stream, tail in zip(streams, self._tails, strict=True)
        ]
        for reader in self._readers:
            reader.start()
        self._ended = threading.Event()
        Thread(target=self._watch, args=(on_end,), name="whet-agent-end", daemon=True).start()

    def _watch(self, on_end: Callable[[], None]) -> None:
        if hasattr(os, "waitid"):
            # not reaped yet: its number, and that of its group, cannot belong to anybody else
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        self._guard.remove(self._process.pid)
        self._process.wait()
        for reader in self._readers:
            reader.join(timeout=PATIENCE)
        self._ended.set()
        on_end()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._ended.is_set()

    @property
    def exit_code(self) -> int:
        """What the process ended with; -1 while it runs."""
        code = self._process.returncode
        return -1 if code is None else code

    def ask_to_end(self) -> None:
        """Send SIGTERM to the program and its children, without waiting for them."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the program and its children; `wait` says when it has ended."""
        self._signal(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """True when it has ended by then."""
        return self._ended.wait(max(seconds, 0.0))

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


def end_all(programs: Sequence[AgentProgram | FunctionEpisode]) -> None:
    """Ask them all to end, then make them."""
    for program in programs:
        program.ask_to_end()
    deadline = time.monotonic() + PATIENCE
    left = [asked for asked in programs if not asked.wait(deadline - time.monotonic())]
    for program in left:
        program.kill()
    deadline = time.monotonic() + PATIENCE
    for program in left:
        program.wait(deadline - time.monotonic())


def _keep_tail(stream: IO[bytes] | None, tail: bytearray) -> None:
    """Read to the end, so that the program never waits for a reader, and keep the last bytes."""
    assert stream is not None
    with contextlib.suppress(OSError, ValueError), stream:
        while part := os.read(stream.fileno(), 65536):
            tail += part
            if len(tail) > 2 * KEPT_OUTPUT:
                del tail[:-KEPT_OUTPUT]
