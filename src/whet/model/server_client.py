"""Asking a server that speaks HTTP and JSON: one attempt, what may be tried again, and what no attempt would survive.

The key is read from the environment for each call and kept nowhere; it never follows a redirect and never stands in an
error. Once a call has spent its attempts and nobody was answered meanwhile, the others have one each until the server
answers again: one that has died is waited for once, not once for each question. Judges (`whet.reward.judge`) and the
engine of a server (`whet.rollout.openai_engine`) ask through this.
"""

from __future__ import annotations

import email.utils
import itertools
import json
import logging
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from whet.types import WhetError

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")

RETRIED = frozenset((408, 409, 425, 429))  # and every 5xx
OF_ONE_QUESTION = frozenset((400, 413, 422))  # a context that is too long, a filter, a body that is too large
LONGEST_WAIT = 60.0  # seconds between two attempts, also when the server asks for more
LARGEST_ANSWER = 8 * 2**20  # bytes
EXCERPT = 200  # characters of a server's answer that an error repeats

_ANSWERED: dict[str, float] = {}  # when a server last answered, by the monotonic clock
_FAILING: dict[str, bool] = {}  # servers that failed since they last answered, and whether they are taken for dead


class Retryable(Exception):
    """An attempt that failed and may succeed later."""

    def __init__(self, reason: str, asked_wait: float = 0.0) -> None:
        super().__init__(reason)
        self.asked_wait = asked_wait  # seconds, where the server named them


class RefusedQuestion(Exception):
    """The server cannot take this one question; others it may."""


@dataclass(frozen=True)
class RemoteServer:
    """The address of a server and how patiently it is asked. `who` and `settings` are the words of its errors."""

    base_url: str
    key_variable: str = ""  # the environment variable that holds the key; "" for a server that wants none
    timeout: float = 60.0  # seconds, of one attempt
    retries: int = 5
    first_wait: float = 1.0  # seconds; doubled after each attempt
    who: str = "the server"
    settings: str = "its settings"
    most_bytes: int = LARGEST_ANSWER  # of an answer

    def url(self, path: str) -> str:
        """The address of a path on the server."""
        return f"{self.base_url.rstrip('/')}{path}"

    def attempt(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer to one POST; `Retryable`, `RefusedQuestion`, or an error that no attempt would survive."""
        import httpx

        key = self._key()
        headers = {"Content-Type": "application/json", "Accept": "application/json"} | (
            {"Authorization": f"Bearer {key}"} if key else {}
        )
        deadline = time.monotonic() + self.timeout
        try:
            with _client(os.getpid()).stream(
                "POST", self.url(path), content=json.dumps(body).encode(), headers=headers, timeout=self.timeout
            ) as response:
                answer = _read(response, deadline, self.most_bytes)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, Retryable) as error:
            reason = one_line(str(error) if isinstance(error, Retryable) else f"{type(error).__name__}: {error}")
            self._note_failure(reason)
            raise Retryable(reason) from None
        if response.status_code >= 500:
            self._note_failure(f"HTTP {response.status_code}")
        else:
            _ANSWERED[self.base_url] = time.monotonic()
            _FAILING.pop(self.base_url, None)
        if response.is_success:
            return answer
        raise self._refused(response, answer.decode("utf-8", "replace"), key, path)

    def _note_failure(self, reason: str) -> None:
        if self.base_url not in _FAILING:
            _FAILING[self.base_url] = False
            words = (self.who, self.base_url, reason, self.retries)
            logger.warning("%s at %s does not answer (%s); a question is asked again %d times", *words)

    def has_another(self, attempt: int, began: float) -> bool:
        """Whether a call that began then is tried again after this attempt, which counts from 0."""
        given_up = attempt >= self.retries
        # a server that answers others meanwhile is not dead: it cannot take this one question
        if given_up and _ANSWERED.get(self.base_url, 0.0) < began:
            _FAILING[self.base_url] = True
        return not given_up and not _FAILING.get(self.base_url, False)

    def wait(self, attempt: int, trouble: Retryable, stop: threading.Event) -> None:
        """Wait before the next attempt, longer each time; the server may ask for more."""
        wait = min(LONGEST_WAIT, self.first_wait * 2**attempt) * (0.5 + random.random() / 2)
        stop.wait(max(wait, min(LONGEST_WAIT, trouble.asked_wait)))

    def _key(self) -> str:
        if not self.key_variable:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise WhetError(
                f"{self.who}'s key is to be in the environment variable {self.key_variable}, which is not set; "
                f"export {self.key_variable}=..., or set key_variable to another name"
            )
        return key

    def _refused(self, response: httpx.Response, body: str, key: str, path: str) -> Exception:
        status = response.status_code
        body = one_line(body.replace(key, "***") if key else body) or response.reason_phrase
        reason = f"HTTP {status}: {body}"
        if status in RETRIED or status >= 500:
            return Retryable(reason, _seconds_of(response.headers.get("Retry-After")))
        if status in OF_ONE_QUESTION:
            return RefusedQuestion(reason)
        key_fix = "set key_variable to the name of the environment variable that holds the key"
        if self.key_variable:
            key_fix = f"check the key in {self.key_variable}"
        fix = {
            401: key_fix,
            403: key_fix,
            404: "check base_url and model",
        }.get(status, f"check base_url, model and {self.settings}")
        return WhetError(f"{self.who} at {self.url(path)} refused with {reason}; {fix}")


def check_url(base_url: str, who: str) -> None:
    """Refuse what is no plain http address; a key in it would end up in logs."""
    parts = urllib.parse.urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        url_text = base_url if "@" not in base_url else "(not shown: it holds a name or key)"
        raise WhetError(f"{who}'s base_url is {url_text!r}; give an address such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise WhetError(
            f"{who}'s base_url at {parts.hostname} holds a name, key or query, which would end up in logs; "
            "give the bare address, and the key in the environment variable named by key_variable"
        )


@cache
def _client(process: int) -> httpx.Client:
    """One pool of connections per process: sockets do not outlive a fork. A redirect would carry the key elsewhere."""
    import httpx

    return httpx.Client(follow_redirects=False, limits=httpx.Limits(max_connections=None))


def one_line(text: str) -> str:
    """An excerpt of a server's answer, for a message."""
    return " ".join(text[: 4 * EXCERPT].split())[:EXCERPT]


def ask_with_retries(
    server: RemoteServer,
    path: str,
    body: Mapping[str, Any],
    read: Callable[[bytes], Answer],
    stop: threading.Event,
    pay: Callable[[], None] = lambda: None,
) -> Answer:
    """What `read` makes of the answer, after as many attempts as it takes; `Retryable` when they are spent.

    `pay` is called before each attempt; what it raises ends the call.
    """
    began = time.monotonic()
    for attempt in itertools.count():
        if stop.is_set():
            break
        pay()
        try:
            return read(server.attempt(path, body))
        except Retryable as trouble:
            if not server.has_another(attempt, began):
                raise Retryable(f"{trouble} ({attempt + 1} attempts)") from None
            server.wait(attempt, trouble, stop)
    raise Retryable("stopped")


def _read(response: httpx.Response, deadline: float, most_bytes: int) -> bytes:
    """The whole body; a server that drips it, or never ends it, is one that did not answer."""
    answer = bytearray()
    for piece in response.iter_bytes():
        answer += piece
        if len(answer) > most_bytes:
            raise Retryable(f"an answer of more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise Retryable("the answer did not end in time")
    return bytes(answer)


def _seconds_of(header: str | None) -> float:
    """A Retry-After header, in seconds or as a date."""
    if not header:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0
