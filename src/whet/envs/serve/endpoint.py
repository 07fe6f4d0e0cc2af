"""The HTTP side of the endpoint: routes, tokens and limits. FastAPI and uvicorn are imported here and nowhere else.

The server listens on this machine alone unless told otherwise, and every request carries a token: that of the server,
or that of an episode. Browsers are kept out: a page of somebody else's could otherwise reach a local server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import importlib.util
import ipaddress
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

from whet.envs.serve import wire
from whet.envs.serve.calls import CallRecord
from whet.envs.serve.desk import Desk, Job
from whet.envs.serve.wire import BadCall, CallRequest
from whet.types import WhetError

LOOPBACK = "127.0.0.1"
KEEP_ALIVE = 5.0  # seconds between the comments that keep a stream open
START_SECONDS = 30.0
BODY_SECONDS = 60.0  # for a request to arrive
MOST_CONNECTIONS = 1024


def require_server() -> None:
    """Raise where the packages are missing."""
    for name in ("fastapi", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise WhetError(f"{name} is not installed, and the endpoint needs it; pip install 'whet[serve]'")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class HttpEndpoint:
    """A server in a thread of its own, in front of a `Desk`."""

    def __init__(
        self,
        desk: Desk,
        model: str,
        *,
        context: int = 0,
        host: str = LOOPBACK,
        port: int = 0,
        any_model: bool = False,  # programs name the model they were written for
    ) -> None:
        require_server()
        self._desk, self._model, self._context, self._any_model = desk, model, context, any_model
        self._host, self._records = host, dict[bytes, CallRecord]()
        self._lock = threading.Lock()
        self._socket = _listen(host, port)
        self.port = int(self._socket.getsockname()[1])
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Without a path; clients of OpenAI's want /v1 behind it."""
        shown = LOOPBACK if self._host in ("0.0.0.0", "") else "::1" if self._host == "::" else self._host
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}"

    def allow(self, token: str, record: CallRecord) -> None:
        """Requests with this token belong to this record."""
        with self._lock:
            self._records[_digest(token)] = record

    def forget(self, token: str) -> None:
        with self._lock:
            self._records.pop(_digest(token), None)

    def start(self) -> None:
        import uvicorn

        config = uvicorn.Config(
            self._app(),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=30,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=2**16,
            lifespan="off",
            http="h11",
            ws="none",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="whet-endpoint", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise WhetError(f"the endpoint on {self.address} did not start; try another port")
            time.sleep(0.005)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._socket.close()

    def _app(self) -> Any:
        # the routes are closures, so that `Request` is a name of theirs
        from fastapi import FastAPI, Request
        from fastapi.responses import JSONResponse, StreamingResponse

        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

        def refused(error: BadCall) -> Any:
            headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
            return JSONResponse(error.body, error.status, headers)

        async def read(request: Request, parse: Callable[[Any], CallRequest]) -> tuple[CallRecord, CallRequest]:
            record = self._admitted(request)
            call = parse(wire.parse_body(await _body(request)))
            if not self._any_model and call.model not in ("", self._model):
                raise BadCall(
                    f"the model {call.model[:100]!r} is not served; there is {self._model!r}", status=404, param="model"
                )
            return record, call

        async def chat(request: Request) -> Any:
            try:
                record, call = await read(request, wire.parse_chat)
                job = self._desk.submit(record, call)
                name = call.model or self._model
                if call.stream:
                    return StreamingResponse(self._events(job, name), media_type="text/event-stream")
                result = await _awaited(request, job)
                return JSONResponse(wire.chat_json(call, result, name))
            except BadCall as error:
                return refused(error)

        async def generate(request: Request) -> Any:
            try:
                record, call = await read(request, wire.parse_generate)
                result = await _awaited(request, self._desk.submit(record, call))
                return JSONResponse(wire.generate_json(call, result, call.model or self._model))
            except BadCall as error:
                return refused(error)

        async def score(request: Request) -> Any:
            """Log-probabilities of given tokens: nothing is written."""
            try:
                self._admitted(request)
                asked = wire.parse_score(wire.parse_body(await _body(request)))
                if not self._any_model and asked.model not in ("", self._model):
                    raise BadCall(f"the model {asked.model[:100]!r} is not served", status=404, param="model")
                scores = await asyncio.wrap_future(self._desk.submit_score(asked).future)
                return JSONResponse(wire.score_json(asked, scores, asked.model or self._model))
            except BadCall as error:
                return refused(error)

        async def take_reward(request: Request) -> Any:
            """The reward of an episode."""
            try:
                record = self._admitted(request)
                if not record.name:
                    raise BadCall("this token belongs to no episode, so there is nothing to reward", status=404)
                body = wire.parse_body(await _body(request))
                problems: list[str] = []
                report = wire.reported_reward(body, problems.append)
                if report is None:
                    raise BadCall(problems[0], param="reward")
                record.score(*report)
                return JSONResponse({"episode": record.name, "reward": record.reward})
            except BadCall as error:
                return refused(error)

        async def models(request: Request) -> Any:
            try:
                self._admitted(request)
                return JSONResponse({"object": "list", "data": [self._card()]})
            except BadCall as error:
                return refused(error)

        async def model(request: Request) -> Any:
            try:
                self._admitted(request)
                asked = request.path_params["name"]
                if asked != self._model and not self._any_model:
                    raise BadCall(f"the model {asked[:100]!r} is not served; there is {self._model!r}", status=404)
                return JSONResponse({**self._card(), "id": asked})
            except BadCall as error:
                return refused(error)

        async def health(request: Request) -> Any:
            try:
                self._check_host(request)
                return JSONResponse({"status": "ok"})
            except BadCall as error:
                return refused(error)

        async def unknown(request: Request, error: Any = None) -> Any:
            there = "POST /v1/chat/completions, POST /inference/v1/generate, POST /v1/completions, GET /v1/models"
            return refused(
                BadCall(f"there is no {request.method} {request.url.path[:100]}; there is {there}", status=404)
            )

        for path, function, method in (
            ("/v1/chat/completions", chat, "POST"),
            ("/inference/v1/generate", generate, "POST"),
            ("/v1/completions", score, "POST"),
            ("/v1/episode/reward", take_reward, "POST"),
            ("/v1/models", models, "GET"),
            ("/v1/models/{name:path}", model, "GET"),
            ("/health", health, "GET"),
        ):
            app.add_route(path, function, methods=[method])
        app.add_exception_handler(404, unknown)
        app.add_exception_handler(405, unknown)
        return app

    def _card(self) -> dict[str, Any]:
        card: dict[str, Any] = {"id": self._model, "object": "model", "created": 0, "owned_by": "whet"}
        return {**card, **({"max_model_len": self._context} if self._context else {})}

    def _admitted(self, request: Any) -> CallRecord:
        """The record that a request's token belongs to."""
        self._check_host(request)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        given, found = _digest(token), None
        with self._lock:
            for known, record in self._records.items():
                if hmac.compare_digest(known, given):
                    found = record
        if found is None:
            raise BadCall(
                "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`",
                status=401,
                code="invalid_token",
            )
        return found

    def _check_host(self, request: Any) -> None:
        """Refuse what a browser sends on behalf of a page, under whatever name the page reached this machine."""
        headers = request.headers
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if is_loopback(self._host) and not is_loopback(host):
            raise BadCall(f"the host {host[:100]!r} is not this server's", status=403, code="wrong_host")
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise BadCall("requests of web pages are refused", status=403, code="cross_site")
        if request.method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise BadCall(f"the content type is {kind[:100]!r}; expected application/json", status=415)

    async def _events(self, job: Job, model: str) -> AsyncIterator[str]:
        """Server-sent events; a comment now and then while the completion is being written."""
        waiting = asyncio.wrap_future(job.future)
        is_whole = False
        try:
            while not waiting.done():
                await asyncio.wait((waiting,), timeout=KEEP_ALIVE)
                if not waiting.done():
                    yield ": still writing\n\n"
            try:
                events = wire.chat_events(job.request, waiting.result(), model)
            except BadCall as error:
                events = [json.dumps(error.body)]
            job.mark_delivered()
            for number, event in enumerate(events):
                is_whole = number == len(events) - 1
                yield f"data: {event}\n\n"
        finally:
            if not is_whole:
                _leave(job, waiting)
                job.mark_delivered(False)


async def _awaited(request: Any, job: Job) -> Any:
    """The job's result; a client that goes away meanwhile is noted."""
    waiting = asyncio.wrap_future(job.future)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            _leave(job, waiting)
            raise BadCall("the client went away", status=499, code="client_closed_request")
        result = waiting.result()
        job.mark_delivered()
        return result
    except asyncio.CancelledError:
        _leave(job, waiting)
        raise
    finally:
        leaving.cancel()


def _leave(job: Job, waiting: asyncio.Future[Any]) -> None:
    """Nobody waits for the job any more, and nobody will look at what becomes of it."""
    job.is_gone = True
    waiting.add_done_callback(lambda each: each.cancelled() or each.exception())


async def _disconnected(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Any) -> bytes:
    """The request's body, as long as it is no longer than allowed and arrives in time."""
    too_long = BadCall(f"the body has more than {wire.MOST_BYTES} bytes", status=413, code="too_large")
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length[:20]) > wire.MOST_BYTES:
        raise too_long

    async def read() -> bytes:
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > wire.MOST_BYTES:
                raise too_long
            parts.append(part)
        return b"".join(parts)

    try:
        return await asyncio.wait_for(read(), BODY_SECONDS)
    except TimeoutError:
        raise BadCall(f"the body did not arrive within {BODY_SECONDS:g} seconds", status=408) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


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
