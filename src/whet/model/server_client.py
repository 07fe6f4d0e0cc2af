"""Asking a server that speaks HTTP and JSON: one attempt, what may be tried again, and what no attempt would survive.

The key is read from the environment for each call and kept nowhere; it never follows a redirect and never stands in an
error. Judges (`whet.reward.judge`) and the engine of a server (`whet.rollout.openai_engine`) ask through this.
"""

from __future__ import annotations

import email.utils
import http.client
import json
import os
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from whet.types import WhetError

RETRIED = frozenset((408, 409, 425, 429))  # and every 5xx
OF_ONE_QUESTION = frozenset((400, 413, 422))  # a context that is too long, a filter, a body that is too large
LONGEST_WAIT = 60.0  # seconds between two attempts, also when the server asks for more
LARGEST_ANSWER = 8 * 2**20  # bytes
EXCERPT = 200  # characters of a server's answer that an error repeats


class Retryable(Exception):
    """An attempt that failed and may succeed later."""

    def __init__(self, reason: str, asked_wait: float = 0.0) -> None:
        super().__init__(reason)
        self.asked_wait = asked_wait  # seconds, where the server named them


class RefusedQuestion(Exception):
    """The server cannot take this one question; others it may."""


@dataclass(frozen=True)
class RemoteServer:
    """Where it is, and how patiently it is asked. `who` and `settings` are the words of its errors."""

    base_url: str
    key_variable: str = ""  # the environment variable that holds the key; "" for a server that wants none
    timeout: float = 60.0  # seconds, of one attempt
    retries: int = 5
    first_wait: float = 1.0  # seconds; doubled after each attempt
    who: str = "the server"
    settings: str = "its settings"
    most_bytes: int = LARGEST_ANSWER  # of an answer

    def url(self, path: str) -> str:
        return f"{self.base_url.rstrip('/')}{path}"

    def attempt(self, path: str, body: Mapping[str, Any]) -> bytes:
        """The answer to one POST; `Retryable`, `RefusedQuestion`, or an error that no attempt would survive."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url(path), json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                return _read(response, time.monotonic() + self.timeout, self.most_bytes)
        except urllib.error.HTTPError as error:
            raise self._refused(error, key, path) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Retryable(one_line(f"{type(error).__name__}: {reason}")) from None

    def wait(self, attempt: int, trouble: Retryable, stop: threading.Event) -> None:
        """Between attempt number `attempt`, from 0, and the next: longer each time, and as long as the server asks."""
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

    def _refused(self, error: urllib.error.HTTPError, key: str, path: str) -> Exception:
        with error:
            try:
                body = error.read(2000).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                body = ""
        body = one_line(body.replace(key, "***") if key else body) or str(error.reason)
        reason = f"HTTP {error.code}: {body}"
        if error.code in RETRIED or error.code >= 500:
            return Retryable(reason, _seconds_of(error.headers.get("Retry-After")))
        if error.code in OF_ONE_QUESTION:
            return RefusedQuestion(reason)
        key_fix = "set key_variable to the name of the environment variable that holds the key"
        if self.key_variable:
            key_fix = f"check the key in {self.key_variable}"
        fix = {
            401: key_fix,
            403: key_fix,
            404: "check base_url and model",
        }.get(error.code, f"check base_url, model and {self.settings}")
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


class _StayHere(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)


def one_line(text: str) -> str:
    return " ".join(text[: 4 * EXCERPT].split())[:EXCERPT]


def asked(
    server: RemoteServer,
    path: str,
    body: Mapping[str, Any],
    read: Callable[[bytes], Any],
    stop: threading.Event,
) -> Any:
    """What `read` makes of the answer, after as many attempts as it takes; `Retryable` when they are spent."""
    trouble = Retryable("stopped")
    for attempt in range(server.retries + 1):
        if stop.is_set():
            break
        try:
            return read(server.attempt(path, body))
        except Retryable as failed:
            trouble = failed
            if attempt < server.retries:
                server.wait(attempt, failed, stop)
    raise trouble


def _read(response: Any, deadline: float, most_bytes: int = LARGEST_ANSWER) -> bytes:
    """The whole body; a server that drips it, or never ends it, is one that did not answer."""
    pieces, size = [], 0
    while piece := response.read1(65536):
        pieces.append(piece)
        size += len(piece)
        if size > most_bytes:
            raise Retryable(f"an answer of more than {most_bytes} bytes")
        if time.monotonic() > deadline:
            raise Retryable("the answer did not end in time")
    return b"".join(pieces)


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
