"""The HTTP side of the endpoint: routes, tokens and limits.

The server listens on this machine alone unless told otherwise, and every request carries a token: that of the server,
or that of an episode. Browsers are kept out: a page of somebody else's could otherwise reach a local server.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from whet.envs.serve import responses, web, wire
from whet.envs.serve.call_tree import CallRecord
from whet.envs.serve.request_queue import Job, RequestQueue
from whet.envs.serve.web import LOOPBACK, is_loopback
from whet.envs.serve.wire import BadCall, CallRequest, ServedCompletions

KEEP_ALIVE = 5.0  # seconds between the comments that keep a stream open
BODY_SECONDS = 60.0  # for a request to arrive


def require_server() -> None:
    """Raise where the packages are missing."""
    web.require_server("the endpoint", "serve")


class HttpEndpoint:
    """A server in a thread of its own, in front of a `RequestQueue`."""

    def __init__(
        self,
        queue: RequestQueue,
        model: str,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        any_model: bool = False,  # programs name the model they were written for
    ) -> None:
        require_server()
        self._queue, self._model, self._any_model = queue, model, any_model
        self._host, self._records = host, dict[bytes, CallRecord]()
        self._lock = threading.Lock()
        self._server = web.HttpServer(host, port, "whet-endpoint")

    @property
    def address(self) -> str:
        """The server's URL without a path; OpenAI clients need /v1 appended."""
        return self._server.address

    def allow(self, token: str, record: CallRecord) -> None:
        """Requests with this token belong to this record."""
        with self._lock:
            self._records[_digest(token)] = record

    def forget(self, token: str) -> None:
        """Refuse requests with this token from now on; an unknown token is ignored."""
        with self._lock:
            self._records.pop(_digest(token), None)

    def start(self) -> None:
        """Answer requests from a background thread; returns once the server accepts connections."""
        self._server.start(self._app())

    def stop(self) -> None:
        """Cut off open requests and free the port."""
        self._server.stop()

    def _app(self) -> Any:
        def refused(error: BadCall) -> Any:
            headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
            return web.json_response(error.body, error.status, headers)

        def route(path: str, method: str, respond: Callable[[Any], Awaitable[Any]]) -> web.Route:
            async def handle(request: Any) -> Any:
                try:
                    return await respond(request)
                except BadCall as error:
                    return refused(error)

            return path, handle, method

        async def unknown(request: Any, error: Any = None) -> Any:
            there = ", ".join(f"{method} {path}" for path, _, method in routes[:5])
            return refused(
                BadCall(f"there is no {request.method} {request.url.path[:100]}; there is {there}", status=404)
            )

        routes = (
            route("/v1/chat/completions", "POST", partial(self._written, CHAT)),
            route("/inference/v1/generate", "POST", partial(self._written, GENERATE)),
            route("/v1/completions", "POST", self._complete),
            route("/v1/responses", "POST", partial(self._written, RESPONSES)),
            route("/v1/episode/reward", "POST", self._take_reward),
            route("/v1/models", "GET", self._models),
            route("/v1/models/{name:path}", "GET", self._model_card),
            route("/health", "GET", self._health),
        )
        return web.make_app(routes, unknown)

    async def _written(self, api: Api, request: Any, body: Any = None) -> Any:
        """Completions, as an API asks for them and is told of them."""
        record = self._admitted(request)
        call = api.parse(wire.parse_body(await _body(request)) if body is None else body)
        self._check_model(call.model)
        name = call.model or self._model
        if not call.stream:
            job = self._queue.submit(record, call)
            return web.json_response(api.whole(call, await _awaited(request, job), name))
        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[tuple[int, str]]()

        def hear(choice: int, text: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, (choice, text))

        # followed from its first token on, however soon the engine begins
        job = self._queue.submit(record, call, hear)
        events = _streamed(job, pieces, name, api.events(call))
        return web.event_response(_begun(await anext(events), events))

    async def _complete(self, request: Any) -> Any:
        """What follows a text; or, with `prompt_logprobs`, the log-probabilities of given tokens."""
        self._admitted(request)
        body = wire.parse_body(await _body(request))
        if body.get("prompt_logprobs") is None:
            return await self._written(COMPLETIONS, request, body)
        asked = wire.parse_score(body)
        self._check_model(asked.model)
        scores = await asyncio.wrap_future(self._queue.submit_score(asked).future)
        return web.json_response(wire.score_json(asked, scores, asked.model or self._model))

    async def _take_reward(self, request: Any) -> Any:
        """The reward of an episode."""
        record = self._admitted(request)
        if not record.name:
            raise BadCall("this token belongs to no episode, so there is nothing to reward", status=404)
        problems: list[str] = []
        report = wire.reported_reward(wire.parse_body(await _body(request)), problems.append)
        if report is None:
            raise BadCall(problems[0], param="reward")
        record.score(*report)
        return web.json_response({"episode": record.name, "reward": record.reward})

    async def _models(self, request: Any) -> Any:
        self._admitted(request)
        return web.json_response({"object": "list", "data": [self._card()]})

    async def _model_card(self, request: Any) -> Any:
        self._admitted(request)
        asked = request.path_params["name"]
        self._check_model(asked)
        return web.json_response({**self._card(), "id": asked})

    async def _health(self, request: Any) -> Any:
        self._check_host(request)
        return web.json_response({"status": "ok"})

    def _check_model(self, asked: str) -> None:
        if not self._any_model and asked not in ("", self._model):
            raise BadCall(
                f"the model {asked[:100]!r} is not served; there is {self._model!r}", status=404, param="model"
            )

    def _card(self) -> dict[str, Any]:
        card: dict[str, Any] = {"id": self._model, "object": "model", "created": 0, "owned_by": "whet"}
        return {**card, **({"max_model_len": self._queue.context} if self._queue.context else {})}

    def _admitted(self, request: Any) -> CallRecord:
        """The record that a request's token belongs to."""
        self._check_host(request)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        token = token.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")
        digest, admitted = _digest(token), None
        with self._lock:
            for known, record in self._records.items():
                if hmac.compare_digest(known, digest):
                    admitted = record
        if admitted is None:
            raise BadCall(
                "the token is missing or wrong; send it as `Authorization: Bearer TOKEN`",
                status=401,
                code="invalid_token",
            )
        return admitted

    def _check_host(self, request: Any) -> None:
        """Refuse what a browser sends on behalf of a page, under whatever name the page reached this machine."""
        headers = request.headers
        host = web.host_of(headers.get("host", ""))
        if is_loopback(self._host) and not is_loopback(host):
            raise BadCall(f"the host {host[:100]!r} is not this server's", status=403, code="wrong_host")
        if "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise BadCall("requests of web pages are refused", status=403, code="cross_site")
        if request.method == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise BadCall(f"the content type is {kind[:100]!r}; expected application/json", status=415)


Events = wire.ChatEvents | wire.CompletionEvents | responses.ResponseEvents  # an answer as server-sent events


class Api(NamedTuple):
    """How one API asks for completions, and is told of them."""

    parse: Callable[[Any], CallRequest]
    whole: Callable[[CallRequest, ServedCompletions, str], dict[str, Any]]
    events: Callable[[CallRequest], Events]  # of a stream


CHAT = Api(wire.parse_chat, wire.chat_json, wire.ChatEvents)
COMPLETIONS = Api(wire.parse_completion, wire.completion_json, wire.CompletionEvents)
GENERATE = Api(wire.parse_generate, wire.generate_json, wire.ChatEvents)  # which never streams
RESPONSES = Api(responses.parse_responses, responses.response_json, responses.ResponseEvents)


async def _begun(first: str, rest: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """A stream whose first event was waited for: a request that is refused gets a status, as without a stream."""
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


async def _streamed(
    job: Job, pieces: asyncio.Queue[tuple[int, str]], model: str, events: Events
) -> AsyncGenerator[str, None]:
    """Server-sent events: pieces while the completion is written, or a comment now and then, and its end."""
    waiting = asyncio.wrap_future(job.future)
    head = ServedCompletions(job.id, job.created, (), ())
    has_begun = is_whole = False

    try:
        while not waiting.done() or not pieces.empty():
            fresh = [] if pieces.empty() else [pieces.get_nowait()]
            if not fresh:
                more = asyncio.ensure_future(pieces.get())
                try:
                    done, _ = await asyncio.wait((waiting, more), timeout=KEEP_ALIVE, return_when=FIRST_COMPLETED)
                finally:
                    more.cancel()  # also where the client goes away meanwhile
                fresh = [more.result()] if more in done else []
                if not done:
                    has_begun = True
                    yield ": still writing\n\n"
            for event in (event for choice, text in fresh for event in events.piece(head, model, choice, text)):
                has_begun = True
                yield f"data: {event}\n\n"
        try:
            written = events.end(waiting.result(), model, job.streamed)
        except BadCall as error:
            if not has_begun:
                raise
            written = [json.dumps(error.body)]
        job.mark_delivered()
        for number, event in enumerate(written):
            is_whole = number == len(written) - 1
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
        await asyncio.wait((waiting, leaving), return_when=FIRST_COMPLETED)
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
    waiting.add_done_callback(lambda future: future.cancelled() or future.exception())


async def _disconnected(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: Any) -> bytes:
    """The request's body, as long as it is no longer than allowed and arrives in time."""
    try:
        return await web.read_body(request, wire.MOST_BYTES, BODY_SECONDS)
    except web.TooLong:
        text = f"the body has more than {wire.MOST_BYTES} bytes"
        raise BadCall(text, status=413, code="too_large") from None
    except TimeoutError:
        raise BadCall(f"the body did not arrive within {BODY_SECONDS:g} seconds", status=408) from None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
