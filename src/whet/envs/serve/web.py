"""HTTP servers of the package: FastAPI and uvicorn are imported here and nowhere else.

`HttpServer` answers in a thread of its own. Handlers are given the request and return one of the responses made here;
plain functions run in a pool of threads, coroutines on the server's loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from whet.threads import Thread
from whet.types import WhetError

LOOPBACK = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 5.0
MOST_CONNECTIONS = 1024
HEAD_SECONDS = 20.0  # for the head of a request to arrive
Route = tuple[str, Callable[[Any], Any], str]  # path, handler, method


class TooLong(Exception):
    """A body has more bytes than are taken."""


def require_server(what: str, extra: str) -> None:
    """Raise where the packages are missing."""
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise WhetError(f"{name} is not installed, and {what} needs it; pip install 'whet[{extra}]'")


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine alone; no name but `localhost` is looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The name or address in a Host header, without its port; empty where it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


class HttpServer:
    """A server in a thread of its own. The port is taken when it is made, so that the address is known before."""

    def __init__(self, host: str = LOOPBACK, port: int = 0, name: str = "whet-server") -> None:
        self._host, self._name = host, name
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The server's URL without a path."""
        shown = LOOPBACK if self._host in ("0.0.0.0", "") else "::1" if self._host == "::" else self._host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"

    def start(self, app: Any) -> None:
        """Serve from a background thread; returns once it accepts connections, or raises `WhetError`."""
        import uvicorn

        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=30,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=2**16,
            server_header=False,
            lifespan="off",
            http=_impatient_protocol(),
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, name=self._name, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise WhetError(f"the server on {self.address} did not start; try another port")
            time.sleep(0.005)

    def stop(self) -> None:
        """Cut off open connections and free the port; waits at most `STOP_SECONDS` for the thread."""
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
        if self._thread is not None:
            self._thread.join(timeout=STOP_SECONDS)
        self._socket.close()


def _impatient_protocol() -> type:
    """uvicorn's HTTP/1.1, which also closes a connection that opens and never sends a whole request head."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            answers = self.cycle is not None and not self.cycle.response_complete
            if answers and self._patience is not None:
                self._patience.cancel()
                self._patience = None
            elif not answers and self._patience is None:
                self._patience = self.loop.call_later(HEAD_SECONDS, self._give_up)

        def _give_up(self) -> None:
            self._patience = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return ImpatientProtocol


def make_app(routes: Sequence[Route], unknown: Callable[..., Any]) -> Any:
    """`unknown` answers what no route does."""
    from fastapi import FastAPI

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for path, handler, method in routes:
        app.add_route(path, handler, methods=[method])
    for status in (404, 405):
        app.add_exception_handler(status, unknown)
    return app


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """A JSON response for a handler to return, made without importing FastAPI at start-up."""
    from fastapi.responses import JSONResponse

    return JSONResponse(value, status, dict(headers or {}))


def response(body: str | bytes, kind: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """`kind` is the media type; text is sent as UTF-8, what that cannot hold as a question mark."""
    from fastapi.responses import Response

    content = body.encode("utf-8", "replace") if isinstance(body, str) else body
    return Response(content, status, dict(headers or {}), kind)


def event_response(events: AsyncIterator[str], headers: Mapping[str, str] | None = None) -> Any:
    """A stream of server-sent events; the iterator is closed when the client goes away."""
    from fastapi.responses import StreamingResponse

    return StreamingResponse(events, headers=dict(headers or {}), media_type="text/event-stream")


async def call_in_thread(function: Callable[[], Any]) -> Any:
    """A function that may block, beside the loop; the number of threads is bounded."""
    from fastapi.concurrency import run_in_threadpool

    return await run_in_threadpool(function)


async def read_body(request: Any, most_bytes: int, seconds: float) -> bytes:
    """The request's body; `TooLong` or `TimeoutError` where it is not as small or as quick as this, or never whole."""
    from starlette.requests import ClientDisconnect

    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > most_bytes:
        raise TooLong

    async def read() -> bytes:
        parts, size = [], 0
        try:
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise TooLong
                parts.append(part)
        except ClientDisconnect:
            raise TimeoutError from None
        return b"".join(parts)

    return await asyncio.wait_for(read(), seconds)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        raise WhetError(f"cannot listen on {host}, port {port}: {error}; give another --host or --port") from error
    return listening
