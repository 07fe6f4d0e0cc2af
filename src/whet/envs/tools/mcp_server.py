"""Tools of MCP servers: programs that speak the Model Context Protocol over their standard input and output.

`mcp:COMMAND` starts one process per episode, with the first call of the episode: what a server remembers cannot reach
another episode. `mcp-shared:COMMAND` is for servers that remember nothing: one process for the run, started anew when
it ends. A server gets the arguments as they are and only the common environment variables (PATH, HOME, ...).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TextIO, cast

from whet.envs.tools.tool import OpenTools, Tool, ToolFailed, ToolLimits, ToolSource, ToolTimedOut, tool_name
from whet.threads import Thread
from whet.types import WhetError

logger = logging.getLogger(__name__)

EPISODE, SHARED = "mcp:", "mcp-shared:"
START_SECONDS = 60.0  # that a server may take until it can be called
CLOSE_SECONDS = 10.0  # that it may take to end
MOST_PAGES = 100  # of a server's list of tools
GONE = "its server has ended"

_starting = threading.BoundedSemaphore(max(2, os.cpu_count() or 1))  # a batch of episodes must not start all at once
_loops: list[asyncio.AbstractEventLoop] = []
_loop_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all servers' connections, in a thread of its own."""
    with _loop_lock:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            Thread(target=_loops[0].run_forever, name="mcp", daemon=True).start()
        return _loops[0]


class ServerConnection:
    """One server process. Used from any thread."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._lock = threading.Lock()
        self._session: Any = None
        self._life: Future[None] | None = None
        self._stop: asyncio.Event | None = None
        self._has_started = self._is_closed = False

    @property
    def is_dead(self) -> bool:
        """Whether the server was started and no longer runs."""
        return self._has_started and (self._life is None or self._life.done())

    def start(self) -> None:
        """Start the process unless it runs; ToolFailed where it does not come up."""
        with self._lock:
            if self._has_started:
                return
            if self._is_closed:
                raise ToolFailed("the episode is over")
            with _starting, tempfile.TemporaryFile("w+") as errors:
                ready: Future[None] = Future()
                self._life = asyncio.run_coroutine_threadsafe(self._live(ready, cast(TextIO, errors)), _loop())
                try:
                    ready.result(START_SECONDS)
                except Exception as error:
                    self._life.cancel()
                    late = f"it did not answer within {START_SECONDS:g} s" if isinstance(error, TimeoutError) else ""
                    raise ToolFailed(
                        f"its server did not start: {late or _reason(error)}{_last_line(cast(TextIO, errors))}"
                    ) from None
            self._has_started = True

    async def _live(self, ready: Future[None], errors: TextIO) -> None:
        from mcp import ClientSession, StdioServerParameters, stdio_client

        # a line of the server that is no message would be a traceback in the run's log
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        self._stop = asyncio.Event()
        try:
            server = StdioServerParameters(command=self._command[0], args=self._command[1:], cwd=os.getcwd())
            async with stdio_client(server, errors) as (read, write), ClientSession(read, write) as session:
                await session.initialize()
                self._session = session
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error if isinstance(error, Exception) else RuntimeError(type(error).__name__))

    def schemas(self) -> list[Mapping[str, Any]]:
        """The server's tools as chat templates take them."""
        return self._asked(self._listed(), START_SECONDS)  # type: ignore[no-any-return]

    async def _listed(self) -> list[Mapping[str, Any]]:
        from mcp.types import PaginatedRequestParams

        schemas: list[Mapping[str, Any]] = []
        cursor = None
        for _ in range(MOST_PAGES):
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
            listed = page.model_dump(by_alias=True, mode="json")
            for tool in listed["tools"]:
                about = {"name": tool["name"], "description": tool.get("description") or ""}
                schemas.append({"type": "function", "function": {**about, "parameters": tool["inputSchema"]}})
            cursor = listed.get("nextCursor")
            if not cursor:
                break
        return schemas

    def call(self, name: str, arguments: Mapping[str, Any], seconds: float) -> str:
        """The text of a result; a failure of the tool is a failure here."""
        self.start()
        if self.is_dead:
            raise ToolFailed(GONE)
        result = self._asked(self._session.call_tool(name, dict(arguments)), seconds)
        answer = result.model_dump(by_alias=True, mode="json")
        text = "\n".join(_block_text(block) for block in answer.get("content") or ())
        if answer.get("isError"):
            raise ToolFailed(text or "it failed without a word")
        return text

    def _asked(self, question: Any, seconds: float) -> Any:
        from mcp import MCPError

        future = asyncio.run_coroutine_threadsafe(question, _loop())
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise ToolTimedOut(f"took longer than {seconds:g} s and was given up") from None
        except MCPError as error:
            if _is_closed(error):
                self._give_up()
                raise ToolFailed(GONE) from None
            raise ToolFailed(str(error)) from None
        except Exception as error:
            self._give_up()
            raise ToolFailed(f"{GONE} ({type(error).__name__})") from None

    def _give_up(self) -> None:
        """Let the process go: nothing more can be asked of it."""
        if self._life is not None:
            self._life.cancel()
        self._life = None

    def close(self, wait: bool = False) -> None:
        """Tell the server to end; what does not end by itself is killed, without anybody waiting for it."""
        self._is_closed = True
        if self._stop is not None:
            _loop().call_soon_threadsafe(self._stop.set)
        if wait and self._life is not None:
            with contextlib.suppress(Exception):
                self._life.result(CLOSE_SECONDS)


def _is_closed(error: Any) -> bool:
    from mcp.types import CONNECTION_CLOSED

    return getattr(getattr(error, "error", None), "code", None) == CONNECTION_CLOSED


def _block_text(block: Mapping[str, Any]) -> str:
    """A part of a result as text; pictures and sounds have none."""
    if block.get("type") == "text":
        return str(block.get("text", ""))
    inner = block.get("resource")
    if isinstance(inner, Mapping) and isinstance(inner.get("text"), str):
        return str(inner["text"])
    return f"({block.get('type', 'content')} without text)"


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    if isinstance(error, FileNotFoundError):
        return "there is no such program"
    return " ".join(str(error).split())[:200] or type(error).__name__


def _last_line(errors: TextIO) -> str:
    """What the server itself said last."""
    with contextlib.suppress(OSError, ValueError):
        errors.seek(0)
        lines = [line.strip() for line in errors.read()[-4000:].splitlines() if line.strip()]
        if lines:
            return f"; its last words: {lines[-1][:200]}"
    return ""


class SharedServer:
    """The run's own server, a new one where it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command, self._connection = command, ServerConnection(command)
        self._lock = threading.Lock()

    def running(self) -> ServerConnection:
        """The connection to a server that runs, started if necessary."""
        with self._lock:
            if self._connection.is_dead:
                logger.warning("the MCP server %s has ended; it is started again", shlex.join(self._command))
                self._connection = ServerConnection(self._command)
            return self._connection


def _server_tool(
    schema: Mapping[str, Any], limits: ToolLimits, running: Callable[[], ServerConnection], state: object
) -> Tool:
    def call(**arguments: Any) -> str:
        return running().call(tool_name(schema), arguments, limits.seconds)

    return Tool(tool_name(schema), schema, call, state=state, ends_itself=True)


def is_server(spec: str) -> bool:
    """Whether a tool's name is that of an MCP server, one per episode or one shared by all."""
    return spec.startswith((EPISODE, SHARED))


def server_source(spec: str) -> ToolSource:
    """The source of `mcp:COMMAND` or `mcp-shared:COMMAND`. The server is started once, to ask for its tools."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise WhetError(f"tool {spec!r} needs the package mcp; run pip install 'whet[mcp]'") from None
    is_shared = spec.startswith(SHARED)
    try:
        command = shlex.split(spec.removeprefix(SHARED).removeprefix(EPISODE))
    except ValueError as error:
        raise WhetError(f"tool {spec!r}: the command cannot be read ({error}); quote it as for a shell") from None
    if not command:
        raise WhetError(f"tool {spec!r} names no command; give one, as in mcp:'python my_server.py'")
    connection = ServerConnection(command)
    try:
        connection.start()
        schemas = connection.schemas()
    except ToolFailed as problem:
        raise WhetError(f"tool {spec!r} cannot be used: {problem}; run the command by hand to see why") from None
    finally:
        connection.close(wait=True)
    if not schemas:
        raise WhetError(f"tool {spec!r}: the server offers no tools; check the command")
    shared = SharedServer(command) if is_shared else None

    def open_server(limits: ToolLimits) -> OpenTools:
        if shared is not None:
            return OpenTools(tuple(_server_tool(schema, limits, shared.running, None) for schema in schemas))
        own = ServerConnection(command)
        return OpenTools(tuple(_server_tool(schema, limits, lambda: own, own) for schema in schemas), own.close)

    return ToolSource(f"{SHARED if is_shared else EPISODE}{shlex.join(command)}", schemas, open_server)
