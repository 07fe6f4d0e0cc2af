"""Who answers a judge's questions: an OpenAI-compatible endpoint, an engine, or any callable.

All are asked the same way: `answers(questions)` yields (number of the question, answer or trouble) as they arrive.
A question that the other side cannot take (too long, filtered, answered with nothing) is trouble of that question
alone; what no question would survive (a wrong key, address or model) is an error.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Protocol

from whet.protocols import Engine
from whet.reward.failure import one_line
from whet.reward.judge.cache import JudgeBudget
from whet.types import Message, Request, Sampling, WhetError

RETRIED = frozenset((408, 409, 425, 429))  # and every 5xx
OF_ONE_QUESTION = frozenset((400, 413, 422))  # a context that is too long, a filter, a body that is too large
LONGEST_WAIT = 60.0  # seconds between two attempts, also when the server asks for more
LARGEST_ANSWER = 8 * 2**20  # bytes
CHARACTERS_PER_TOKEN = 4  # where the other side does not count


@dataclass(frozen=True)
class JudgeAnswer:
    text: str
    tokens: int


@dataclass(frozen=True)
class Trouble:
    """Why a question has no answer."""

    reason: str
    tokens: int = 0
    is_budget: bool = False
    is_unreadable: bool = False  # it was answered, without a verdict

    @property
    def is_failure(self) -> bool:
        """Nobody answered, though somebody was asked."""
        return not self.is_budget and not self.is_unreadable

    def __str__(self) -> str:
        return self.reason


Ask = Callable[[Sequence[Sequence[Message]]], Sequence[str | Trouble]]
"""Conversations in, one answer each, in order."""


class AnswerSource(Protocol):
    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]: ...


@dataclass(frozen=True)
class Callee:
    """Any callable that answers a list of conversations, an engine behind it for instance."""

    ask: Ask
    budget: JudgeBudget

    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]:
        paid = [number for number in range(len(questions)) if self.budget.take()]
        given = self.ask([questions[number] for number in paid]) if paid else []
        if len(given) != len(paid):
            raise WhetError(f"the judge's ask returned {len(given)} answers to {len(paid)} questions; return one each")
        for number, text in zip(paid, given, strict=True):
            if isinstance(text, Trouble):
                yield number, text
                continue
            if not isinstance(text, str):
                raise WhetError(f"the judge's ask returned a {type(text).__name__}; return one text a question")
            tokens = estimated_tokens(questions[number], text)
            self.budget.add_tokens(tokens)
            yield number, JudgeAnswer(text, tokens) if text.strip() else Trouble("an empty answer")
        for number in sorted(set(range(len(questions))) - set(paid)):
            yield number, Trouble("the budget is spent", is_budget=True)


def engine_ask(
    engine: Engine, encode: Callable[[Sequence[Message]], Sequence[int]], sampling: Sampling, seed: int = 0
) -> Ask:
    """An `Ask` of an engine: `encode` writes a conversation as tokens, the opening of the completion included."""

    def ask(questions: Sequence[Sequence[Message]]) -> list[str | Trouble]:
        requests = [Request(tuple(encode(question)), seed) for question in questions]
        try:
            return [sample.completion for sample in engine.generate(requests, sampling)]
        except WhetError as error:
            if len(requests) == 1:
                return [Trouble(one_line(str(error)))]
        # one question that exceeds the model's context must not cost the others their answers
        return [answer for question in questions for answer in ask([question])]

    return ask


@dataclass(frozen=True)
class Endpoint:
    """A server with POST /chat/completions. The key is read from the environment for each call, and kept nowhere."""

    base_url: str
    model: str
    budget: JudgeBudget
    key_variable: str = ""
    payload: Mapping[str, Any] = field(default_factory=dict)  # temperature, max_tokens and whatever else it takes
    timeout: float = 60.0  # seconds, of one attempt
    retries: int = 5
    concurrency: int = 8
    first_wait: float = 1.0  # seconds; doubled after each attempt

    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]:
        stop = threading.Event()
        pool = ThreadPoolExecutor(max(1, min(self.concurrency, len(questions))), "whet-judge")
        try:
            futures = {pool.submit(self._answer, question, stop): number for number, question in enumerate(questions)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # an interrupted run must not wait for a server that is slow to answer
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: Sequence[Message], stop: threading.Event) -> JudgeAnswer | Trouble:
        jitter = random.Random()
        reason = "stopped"
        for attempt in range(self.retries + 1):
            if stop.is_set():
                return Trouble("stopped")
            if not self.budget.take():
                return Trouble("the budget is spent", is_budget=True)
            try:
                answer = self._attempt(question)
            except _Retryable as trouble:
                reason = str(trouble)
                wait = min(LONGEST_WAIT, self.first_wait * 2**attempt) * (0.5 + jitter.random() / 2)
                if attempt < self.retries:
                    stop.wait(max(wait, min(LONGEST_WAIT, trouble.asked_wait)))
                continue
            self.budget.add_tokens(answer.tokens)
            return answer
        return Trouble(f"{reason} ({self.retries + 1} attempts)")

    def _attempt(self, question: Sequence[Message]) -> JudgeAnswer | Trouble:
        body = {"model": self.model, "messages": [dict(message) for message in question], **self.payload}
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with _OPENER.open(request, timeout=self.timeout) as response:
                content = _read(response, time.monotonic() + self.timeout)
        except urllib.error.HTTPError as error:
            return self._refused(error, key)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _Retryable(one_line(f"{type(error).__name__}: {reason}")) from None
        return _answer_of(content, question)

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}/chat/completions"

    def _key(self) -> str:
        if not self.key_variable:
            return ""
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise WhetError(
                f"the judge's key is to be in the environment variable {self.key_variable}, which is not set; "
                f"export {self.key_variable}=..., or set key_variable to another name"
            )
        return key

    def _refused(self, error: urllib.error.HTTPError, key: str) -> Trouble:
        """Why this one question was refused; raises what is to be tried again, and what no question would survive."""
        with error:
            try:
                body = error.read(2000).decode("utf-8", "replace")
            except (OSError, http.client.HTTPException):
                body = ""
        body = one_line(body.replace(key, "***") if key else body) or str(error.reason)
        reason = f"HTTP {error.code}: {body}"
        if error.code in RETRIED or error.code >= 500:
            raise _Retryable(reason, _seconds_of(error.headers.get("Retry-After"))) from None
        if error.code in OF_ONE_QUESTION:
            return Trouble(reason)
        key_fix = "set key_variable to the name of the environment variable that holds the key"
        if self.key_variable:
            key_fix = f"check the key in {self.key_variable}"
        fix = {
            401: key_fix,
            403: key_fix,
            404: "check base_url and model",
        }.get(error.code, "check base_url, model and the settings of reward 'judge'")
        raise WhetError(f"the judge at {self.url} refused with {reason}; {fix}") from None


class _Retryable(Exception):
    def __init__(self, reason: str, asked_wait: float = 0.0) -> None:
        super().__init__(reason)
        self.asked_wait = asked_wait


class _StayHere(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)


def check_url(base_url: str) -> None:
    """Refuse what is no plain http address; a key in it would end up in logs."""
    parts = urllib.parse.urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        url_text = base_url if "@" not in base_url else "(not shown: it holds a name or key)"
        raise WhetError(f"the judge's base_url is {url_text!r}; give an address such as http://localhost:8000/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise WhetError(
            f"the judge's base_url at {parts.hostname} holds a name, key or query, which would end up in logs; "
            "give the bare address, and the key in the environment variable named by key_variable"
        )


def estimated_tokens(question: Sequence[Message], answer: str) -> int:
    characters = sum(len(message["content"]) for message in question) + len(answer)
    return 1 + characters // CHARACTERS_PER_TOKEN


def _read(response: Any, deadline: float) -> bytes:
    """The whole body; a server that drips it, or never ends it, is one that did not answer."""
    pieces, size = [], 0
    while piece := response.read1(65536):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_ANSWER:
            raise _Retryable(f"an answer of more than {LARGEST_ANSWER} bytes")
        if time.monotonic() > deadline:
            raise _Retryable("the answer did not end in time")
    return b"".join(pieces)


def _answer_of(content: bytes, question: Sequence[Message]) -> JudgeAnswer | Trouble:
    try:
        table = json.loads(content)
        choice = table["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):  # a list of typed parts
            text = "".join(str(part.get("text", "")) for part in text)
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair fits into no file
        refusal, ending = choice["message"].get("refusal"), choice.get("finish_reason")
        used = (table.get("usage") or {}).get("total_tokens")
        tokens = int(used) if isinstance(used, int | float) else estimated_tokens(question, text)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        excerpt = one_line(content.decode("utf-8", "replace"))
        raise _Retryable(f"an answer that is no chat completion: {excerpt!r}") from None
    if refusal:
        return Trouble(f"the judge refused: {one_line(str(refusal))}", tokens)
    if ending == "content_filter":
        return Trouble("stopped by the server's content filter", tokens)
    if not text.strip():
        return Trouble("an empty answer" + (", cut at max_new_tokens" if ending == "length" else ""), tokens)
    return JudgeAnswer(text, tokens)


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
