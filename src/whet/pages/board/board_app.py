"""The board and its routes: requests with their checks, pages from templates, assets by their digest.

A handler is a plain function from a `BoardRequest` to a `BoardResponse`, called in a thread. `app.get` and `app.post`
add one; whoever posts has been found to hold the token by then. What goes wrong is one line, as a page or as JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from whet import __version__
from whet.envs.serve import web
from whet.pages.board.access import HEADERS, BoardAccess, Refusal
from whet.pages.board.files import PIPELINE, RUN, SIGNS, FoundFolder, file_state, found_folders
from whet.pages.board.glance import RunGlance, RunGlances
from whet.pages.board.reader import RunReader
from whet.pages.board.sample_index import SampleIndex
from whet.pages.render import render
from whet.record.log import SAMPLES
from whet.record.text import json_values
from whet.threads import Thread
from whet.types import WhetError

TICK = 1.0  # seconds between two looks while somebody listens
IDLE = 5.0  # and while nobody does
SLICE = 0.03  # seconds of reading on at a time
KEEP_ALIVE = 15.0  # seconds between comments that keep a stream open
PATIENCE = 0.25  # seconds between two glances of a stream at the number
logger = logging.getLogger(__name__)
MOST_BODY = 1 << 20  # bytes
BODY_SECONDS = 20.0
MOST_OPENED = 16  # runs that are kept up with at a time, and runs whose samples are
Opened = TypeVar("Opened")
FIRST_PAGE = 0.7  # seconds that the first page of a run gets before its log is read whole
LIST_SECONDS = 0.7  # seconds that a list of runs may read those that it does not know yet
NOTICE_SECONDS = 0.2  # and a look for what changed
FRESH = 0.5  # seconds that a look at the folder stays true
CHANGING = {PIPELINE: "pipeline.json"}  # what is written anew as it goes on, where its sign is not
MOST_QUERY = 8192  # characters
ASSETS = (Path(__file__).parent / "assets", Path(__file__).parents[1] / "assets")
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".json": "application/json"}
NAVIGATION = (("Runs", "/"), ("Compare", "/compare"), ("Evaluations", "/evals"), ("Lab", "/lab"))


@dataclass(frozen=True)
class BoardChange:
    """`run`: one run has changed, or is gone. `runs`: some came or went."""

    number: int
    kind: str
    values: dict[str, Any]


class Watcher:
    """`look` returns what each run is like now, by id; `read_on` reads for a slice, and says whether more is left."""

    def __init__(self, look: Callable[[], dict[str, dict[str, Any]]], read_on: Callable[[float], bool]) -> None:
        self._look, self._read_on = look, read_on
        self._lock = threading.Lock()
        self._changes: dict[str, BoardChange] = {}  # the last of each run
        self._seen: dict[str, dict[str, Any]] | None = None
        self.number = 0
        self.num_listeners = 0
        self._stopping, self._wanted = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on, in a thread."""
        self._thread = Thread(target=self._run, name="whet-board-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more; streams end."""
        self._stopping.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def wake(self) -> None:
        """Tell the thread that there is something to read."""
        self._wanted.set()

    def notice(self) -> None:
        """Look once, and number what changed."""
        now = self._look()
        with self._lock:
            before, self._seen = self._seen, now
            if before is None:
                return
            if before.keys() != now.keys():
                self._note("runs", {"count": len(now)}, "")
                for gone in before.keys() - now.keys():
                    self._note("run", {"id": gone, "status": "deleted"}, gone)
            for run, values in now.items():
                if run in before and before[run] != values:
                    self._note("run", {"id": run, **values}, run)

    def _note(self, kind: str, values: dict[str, Any], key: str) -> None:
        self.number += 1
        self._changes[key] = BoardChange(self.number, kind, values)

    def since(self, number: int) -> list[BoardChange]:
        """What changed after a number, the oldest first; of each run only the last change."""
        with self._lock:
            return sorted(
                (change for change in self._changes.values() if change.number > number), key=lambda c: c.number
            )

    async def events(self, last: int | None = None) -> AsyncIterator[str]:
        """Server-sent events for one client: first the number it begins with, then every change."""
        number = self.number if last is None or last > self.number else last
        self.num_listeners += 1
        self.wake()
        try:
            yield f"retry: 2000\nevent: hello\nid: {number}\ndata: {{}}\n\n"
            quiet_since = time.monotonic()
            while not self._stopping.is_set():
                if self.number > number:
                    for change in self.since(number):
                        number = change.number
                        yield f"event: {change.kind}\nid: {change.number}\ndata: {json.dumps(change.values)}\n\n"
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > KEEP_ALIVE:
                    yield ": still here\n\n"
                    quiet_since = time.monotonic()
                await asyncio.sleep(PATIENCE)
        finally:
            self.num_listeners -= 1

    def _run(self) -> None:
        looked, took = -math.inf, 0.0
        while not self._stopping.is_set():
            # a folder that takes long to walk is walked less often
            pause = max(TICK, 2 * took) if self.num_listeners else max(IDLE, 5 * took)
            if time.monotonic() - looked >= pause:
                began = time.monotonic()
                self.notice()
                looked = time.monotonic()
                took = looked - began
            if self._read_on(SLICE):
                time.sleep(0.002)  # requests go first
                continue
            self._wanted.wait(max(0.05, min(looked + pause - time.monotonic(), TICK)))
            self._wanted.clear()


@dataclass(frozen=True)
class BoardRequest:
    """What a handler is given."""

    method: str
    address: str  # the path
    path: Mapping[str, str]  # its parts in braces
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number of the query, within bounds."""
        text = self.query.get(name, "")
        if not text:
            return default
        try:
            value = int(text[:20])
        except ValueError:
            raise Refusal(400, f"{name} is {text[:40]!r}; expected a whole number") from None
        return min(max(value, low), high)

    def real(self, name: str) -> float | None:
        """A finite number of the query; None where it is not given."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            value = float(text[:40])
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise Refusal(400, f"{name} is {text[:40]!r}; expected a number")
        return value

    def values(self) -> dict[str, Any]:
        """The body, a JSON object."""
        try:
            values = json.loads(self.body)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise Refusal(400, "the body is not a JSON object")
        return values


@dataclass(frozen=True)
class BoardResponse:
    """What a handler returns."""

    body: str | bytes
    kind: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(value: Any, status: int = 200) -> BoardResponse:
    """JSON has no NaN and no infinity: they are sent as null."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(json_values(value), ensure_ascii=False, allow_nan=False)
    return BoardResponse(text, "application/json", status)


Handler = Callable[[BoardRequest], BoardResponse]


class BoardApp:
    """The routes of the board."""

    def __init__(self, access: BoardAccess) -> None:
        self._access = access
        self._routes: list[web.Route] = []

    def get(self, path: str, handler: Handler) -> None:
        """`{run}` in the path is a part of it: `request.path["run"]`."""
        self._routes.append((path, self._guarded(handler, writes=False), "GET"))

    def post(self, path: str, handler: Handler) -> None:
        """Called only for who holds the token; the body is JSON."""
        self._routes.append((path, self._guarded(handler, writes=True), "POST"))

    def stream(self, path: str, events: Callable[[int | None], Any]) -> None:
        """Server-sent events of an asynchronous iterator, one for each client; it gets the number of the last one."""

        async def answer(request: Any) -> Any:
            try:
                self._access.check_read(request.headers, request.cookies)
            except Refusal as refusal:
                return _sent(refused(refusal, as_json=True))
            last = request.headers.get("last-event-id", "")
            return web.event_response(events(int(last) if last.isdecimal() and len(last) < 16 else None), HEADERS)

        self._routes.append((path, answer, "GET"))

    def made(self) -> Any:
        """The application that a server runs."""

        async def unknown(request: Any, error: Any = None) -> Any:
            as_json = request.url.path.startswith("/api/")
            return _sent(refused(Refusal(404, "there is no such page on this board"), as_json))

        return web.make_app(self._routes, unknown)

    def _guarded(self, handler: Handler, writes: bool) -> Callable[[Any], Any]:
        async def answer(request: Any) -> Any:
            address = request.url.path
            as_json = writes or address.startswith("/api/")
            try:
                query = dict(parse_qsl(request.url.query[:MOST_QUERY], keep_blank_values=True))
                let_in = self._let_in(request, query) if not as_json else None
                if let_in is not None:
                    return _sent(let_in)
                if writes:
                    self._access.check_write(request.headers)
                else:
                    self._access.check_read(request.headers, request.cookies)
                body = await self._body(request) if writes else b""
                asked = BoardRequest(request.method, address, dict(request.path_params), query, body)
                return _sent(await web.call_in_thread(lambda: handler(asked)))
            except Refusal as refusal:
                return _sent(refused(refusal, as_json))
            except WhetError as error:
                return _sent(refused(Refusal(422, str(error)), as_json))
            except Exception:
                logger.exception("the board could not answer %s", address[:200])
                return _sent(refused(Refusal(500, "the board failed at this; its terminal says how"), as_json))

        return answer

    def _let_in(self, request: Any, query: Mapping[str, str]) -> BoardResponse | None:
        """?token= once: a cookie takes its place, and the address is asked for again without it."""
        if "token" not in query:
            return None
        self._access.check_host(request.headers)
        if not self._access.is_token(query["token"]):
            raise Refusal(401, "the token in the address is not this board's; copy what `whet board` printed")
        rest = urlencode({name: value for name, value in query.items() if name != "token"})
        path = "/" + quote(request.url.path.lstrip("/"))  # never //elsewhere
        where = f"{path}{'?' + rest if rest else ''}#token={quote(query['token'])}"
        cookie = f"{self._access.cookie}={query['token']}; Path=/; HttpOnly; SameSite=Strict"
        return BoardResponse("", status=303, headers={"Location": where, "Set-Cookie": cookie})

    async def _body(self, request: Any) -> bytes:
        try:
            return await web.read_body(request, MOST_BODY, BODY_SECONDS)
        except web.TooLong:
            raise Refusal(413, f"the body has more than {MOST_BODY} bytes") from None
        except TimeoutError:
            raise Refusal(408, f"the body did not arrive within {BODY_SECONDS:g} seconds") from None


def _sent(answer: BoardResponse) -> Any:
    return web.response(answer.body, answer.kind, answer.status, {**HEADERS, **answer.headers})


def refused(refusal: Refusal, as_json: bool = False) -> BoardResponse:
    """A refusal as a page or as JSON."""
    if as_json:
        return json_response({"error": refusal.text}, refusal.status)
    title = {401: "The token is missing", 403: "Not from there", 404: "Not found"}.get(refusal.status, "Not possible")
    page = board_page("board_error.html", title=title, verdict=refusal.text)
    return BoardResponse(page, status=refusal.status)


def board_page(template: str, **values: Any) -> str:
    """A template of the board, filled in."""
    shell = {
        "shell": "board.html",
        "board": True,
        "eyebrow": "",
        "navigation": NAVIGATION,
        "here": "",
        "asset": asset_address,
        "version": __version__,
    }
    return render(template, **{**shell, **values})


class Board:
    """What is served: a folder, what was found below it, and what was read of it."""

    def __init__(self, folder: Path | str, token: str = "") -> None:
        self.folder = Path(folder).resolve()
        self.token = token or secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._found: dict[str, FoundFolder] = {}
        self._samples: dict[str, SampleIndex] = {}
        self._readers: dict[str, RunReader] = {}
        self._glances = RunGlances()
        self._looked = -math.inf
        self.watcher = Watcher(self._states, self._read_on)
        self.look()

    def look(self) -> dict[str, FoundFolder]:
        """Everything below the folder now, by id."""
        folders = found_folders(self.folder)
        with self._lock:
            self._found, self._looked = folders, time.monotonic()
            for opened in (self._samples, self._readers):
                for gone in opened.keys() - folders.keys():
                    del opened[gone]  # type: ignore[attr-defined]
        self._glances.update(folder for folder in folders.values() if folder.kind == RUN)
        return folders

    def found(self) -> dict[str, FoundFolder]:
        """Everything below the folder when it was last looked at."""
        with self._lock:
            return dict(self._found)

    def find(self, run: str, *kinds: str) -> FoundFolder:
        """What an id stands for; a refusal where nothing has that id, or something of another kind."""
        with self._lock:
            folder = self._found.get(run)
        if folder is None or not folder.path.is_dir():
            folder = self.look().get(run)  # it may be new, or gone
        if folder is None or (kinds and folder.kind not in kinds):
            raise Refusal(404, "there is no such run on this board; it may have been deleted or moved")
        return folder

    def reader(self, run: str) -> RunReader:
        """What is known of a run, found by its id; it is kept up while the run is looked at."""
        return self._opened(self._readers, run, RunReader, self.find(run, RUN).path)

    def samples(self, run: str) -> SampleIndex:
        """The samples of a run, found by its id; the index is kept while the run is looked at."""
        return self._opened(self._samples, run, SampleIndex, self.find(run, RUN).path / SAMPLES)

    def _opened(self, opened: dict[str, Opened], run: str, make: Callable[[Path], Opened], path: Path) -> Opened:
        with self._lock:
            newest = opened[run] = opened.pop(run) if run in opened else make(path)  # last
            while len(opened) > MOST_OPENED:
                del opened[next(iter(opened))]
        self.watcher.wake()
        return newest

    def glance(self, folder: FoundFolder) -> RunGlance:
        """A run in one line; it is read again only when its files changed, or when it may have been killed."""
        return self._glances.one(folder)

    def runs(self, seconds: float = math.inf) -> tuple[list[RunGlance], int]:
        """Every run that could be read within so many seconds, newest first, and how many are still to be read."""
        if time.monotonic() - self._looked > FRESH:
            self.look()
        left = self._glances.read(seconds)
        if left:
            self.watcher.wake()
        return self._glances.known(), left

    def page(self, template: str, **values: Any) -> BoardResponse:
        """A page from one of the board's templates, which extend board.html; `title` is needed."""
        return BoardResponse(board_page(template, **values))

    def _states(self) -> dict[str, dict[str, Any]]:
        """What each run is like, for the watcher."""
        others = [folder for folder in self.look().values() if folder.kind != RUN]
        self._glances.read(NOTICE_SECONDS)
        states: dict[str, dict[str, Any]] = {
            run.id: {"status": run.status, "step": run.step, "size": run.size, "tags": run.tags, "note": run.note[:80]}
            for run in self._glances.known()
        }
        for folder in others:
            changed = file_state(folder.path / CHANGING.get(folder.kind, SIGNS[folder.kind]))
            states[folder.id] = {"status": folder.kind, "size": changed.changed if changed else 0}
        return states

    def _read_on(self, seconds: float) -> bool:
        """Read on in whatever is looked at; False when nothing is left."""
        with self._lock:
            readers, indexes = list(self._readers.values()), list(self._samples.values())
        left = [reader for reader in reversed(readers) if not reader.is_complete or reader.is_behind]
        for reader in left[:1]:  # the newest first
            if time.monotonic() - reader.since < FIRST_PAGE:
                time.sleep(seconds)  # its first page is being made from a first look
            else:
                reader.catch_up(seconds)
        behind = [index for index in reversed(indexes) if not index.is_complete or index.is_behind]
        for index in behind[:1]:
            index.refresh(seconds)
        unread = 0 if left or behind else self._glances.read(seconds)
        return bool(left or behind or unread)


@cache
def _assets() -> dict[str, Path]:
    assets = {path.name: path for folder in ASSETS if folder.is_dir() for path in sorted(folder.iterdir())}
    sheets = (Path(__file__).parents[1] / "templates").glob("*.css")
    return {**assets, **{path.name: path for path in sorted(sheets)}}


@cache
def _digest_of(name: str) -> str:
    return hashlib.sha256(_assets()[name].read_bytes()).hexdigest()[:16]


def asset_address(name: str) -> str:
    """The URL of an asset: it changes with the content, so a browser may cache it for good."""
    return f"/static/{_digest_of(name)}/{name}"


def serve_asset(request: BoardRequest) -> BoardResponse:
    """A script, a style sheet or a picture of the board."""
    name = request.path["name"]
    if name not in _assets() or request.path["digest"] != _digest_of(name):
        raise Refusal(404, "there is no such file on this board")
    path = _assets()[name]
    kind = KINDS.get(path.suffix, "application/octet-stream")
    return BoardResponse(path.read_bytes(), f"{kind}; charset=utf-8", headers={"Cache-Control": "max-age=31536000"})
