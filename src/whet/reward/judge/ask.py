"""Who answers a judge's questions: an OpenAI-compatible endpoint, an engine, or any callable.

All are asked the same way: (number of the question, answer or trouble) are given as they arrive.
A question that the other side cannot take (too long, filtered, answered with nothing) is trouble of that question
alone; what no question would survive (a wrong key, address or model) is an error.

A judge's answers on disk, by the content of the question; and what they cost.

One SQLite file. Every answer is committed as it arrives, so a killed run loses none, and several runs may share it.

The settings of the judge, checked.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from whet.model.server_client import RefusedQuestion, RemoteServer, Retryable, ask_with_retries, check_url, one_line
from whet.protocols import Engine
from whet.threads import in_threads
from whet.types import Message, Request, Sampling, WhetError

AtBudgetEnd = Literal["stop", "unscorable"]

WAIT_SECONDS = 60.0  # for another process that is writing
TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL, tokens INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS spent (one INTEGER PRIMARY KEY CHECK (one = 1), calls INTEGER, tokens INTEGER)",
    "INSERT OR IGNORE INTO spent VALUES (1, 0, 0)",
)


def question_key(request: Mapping[str, Any], messages: Iterable[Mapping[str, str]]) -> str:
    """The digest of a question, and of the model and settings that answer it. `request` must hold no secret."""
    content = json.dumps([dict(request), [dict(message) for message in messages]], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(content.encode()).hexdigest()


class AnswerCache:
    """Answers by key. A connection a call: rewards may be called from any thread."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WhetError(f"the judge's cache {path} cannot be made ({error.strerror}); give another path") from None
        with self._connection() as connection:
            for statement in TABLES:
                connection.execute(statement)

    def lookup(self, keys: Iterable[str]) -> dict[str, str]:
        """The known answers among these."""
        with self._connection() as connection:
            rows = [
                connection.execute("SELECT key, answer FROM answers WHERE key = ?", (key,)).fetchone()
                for key in dict.fromkeys(keys)
            ]
        return {row[0]: row[1] for row in rows if row is not None}

    def store(self, key: str, answer: str, tokens: int) -> None:
        """Keep an answer and the tokens it cost."""
        with self._connection() as connection:
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (key, answer, tokens))

    def charge(self, calls: int, tokens: int) -> None:
        """Add to what has been spent."""
        with self._connection() as connection:
            connection.execute("UPDATE spent SET calls = calls + ?, tokens = tokens + ?", (calls, tokens))

    def spent(self) -> tuple[int, int]:
        """Calls and tokens of all runs that used the file."""
        with self._connection() as connection:
            calls, tokens = connection.execute("SELECT calls, tokens FROM spent").fetchone()
        return int(calls), int(tokens)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.path, timeout=WAIT_SECONDS)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise WhetError(
                f"the judge's cache {self.path} cannot be used ({error}); give another path, or delete the file"
            ) from None


class BudgetSpent(Exception):
    """No call can be paid for."""


class JudgeBudget:
    """What may be spent: calls and tokens, 0 for no limit. With a cache, what earlier runs spent counts too.

    Tokens are known only afterwards: the calls under way when they run out may overspend.
    """

    def __init__(self, max_calls: int, max_tokens: int, cache: AnswerCache | None) -> None:
        self.max_calls, self.max_tokens, self._cache = max_calls, max_tokens, cache
        self.calls, self.tokens = cache.spent() if cache is not None else (0, 0)
        self._unsaved = [0, 0]
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Pay for one call; False when nothing is left."""
        with self._lock:
            if (self.max_calls and self.calls >= self.max_calls) or (
                self.max_tokens and self.tokens >= self.max_tokens
            ):
                return False
            self.calls += 1
            self._unsaved[0] += 1
            return True

    def pay(self) -> None:
        """Pay for one call; `BudgetSpent` when nothing is left."""
        if not self.take():
            raise BudgetSpent("the budget is spent")

    def add_tokens(self, tokens: int) -> None:
        """Count what a call has used."""
        with self._lock:
            self.tokens += tokens
            self._unsaved[1] += tokens

    def save(self) -> None:
        """Write what was spent since the last time into the cache file."""
        with self._lock:
            calls, tokens = self._unsaved
            self._unsaved = [0, 0]
        if self._cache is not None and (calls or tokens):
            self._cache.charge(calls, tokens)

    def complaint(self, name: str) -> str:
        """The error of a run that stops at the end of its budget."""
        limits = [f"max_calls={self.max_calls}"] if self.max_calls else []
        limits += [f"max_tokens={self.max_tokens}"] if self.max_tokens else []
        where = f" (counted in {self._cache.path})" if self._cache is not None else ""
        return (
            f"the budget of reward {name!r} is spent: {self.calls} calls and {self.tokens} tokens of "
            f"{' and '.join(limits)}{where}; raise it, or set at_budget_end=unscorable to go on without it"
        )


Compare = Literal["none", "reference", "group"]
Asides = Literal["lower", "unscorable", "keep"]

DAY = 86_400.0  # seconds
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("attempts", "concurrency"), (1, 1000)),
    **dict.fromkeys(("retries", "temperature"), (0, 1000)),
    **dict.fromkeys(("opponents", "max_new_tokens", "max_calls", "max_tokens"), (0, 10**15)),
    **{"longest_completion": (1, 10**9), "first_wait": (0, DAY), "timeout": (0.001, DAY)},
}


@dataclass(frozen=True, kw_only=True)
class JudgeSettings:
    """How a judge is called. Without `base_url` the engine it is given answers."""

    name: str = "judge"
    base_url: str = ""  # http://localhost:8000/v1
    model: str = ""
    key_variable: str = ""  # the environment variable that holds the key; "" for a server that wants none
    rubric: str | Mapping[str, Any] = ""  # text, a file, or a table with criteria
    compare: Compare = "none"  # marks; or better than the reference answer; or better than the rest of the group
    opponents: int = 0  # in a group: how many of the others each completion meets; 0 for all
    reference: str = ""  # the column with the reference answer; "" for the gold answer
    show_reference: bool = False  # to the judge, beside what it judges
    show_thinking: bool = False
    asides: Asides = "lower"  # of a mark that falls when words beside the question are cut; "keep": never look
    longest_completion: int = 40_000  # characters shown; the rest is cut, and the judge is told so
    temperature: float = 0.0
    max_new_tokens: int = 1024  # 0 leaves it to the server
    structured: bool = False  # ask the server for JSON by a schema (response_format), where it offers that
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request
    attempts: int = 3  # at a readable answer
    retries: int = 5  # of a call that fails
    first_wait: float = 1.0  # seconds before the first retry; doubled each time
    timeout: float = 60.0  # seconds, of one call
    concurrency: int = 8
    cache: str = ""  # a file; "" for none
    max_calls: int = 0  # 0: no limit
    max_tokens: int = 0  # 0: no limit
    at_budget_end: AtBudgetEnd = "stop"
    alone: bool = False  # may be the only reward

    def __post_init__(self) -> None:
        literals = {"compare": Compare, "at_budget_end": AtBudgetEnd, "asides": Asides}
        for key, choices in ((key, get_args(literal)) for key, literal in literals.items()):
            value = getattr(self, key)
            if value not in choices:
                raise WhetError(f"{key} of reward 'judge' is {value!r}; give one of {', '.join(choices)}")
        for key, (least, most) in BOUNDS.items():
            value = getattr(self, key)
            if isinstance(value, bool) or not least <= value <= most:
                raise WhetError(f"{key} of reward 'judge' is {value}; give a number from {least:g} to {most:g}")
        if self.opponents and self.compare != "group":
            raise WhetError("opponents of reward 'judge' has no effect without compare=group; set that, or drop it")
        if self.structured and not self.base_url:
            raise WhetError("structured of reward 'judge' has no effect without base_url; set that, or drop it")
        if self.base_url:
            check_url(self.base_url, "the judge")
            if not self.model:
                raise WhetError(f"reward 'judge' asks {self.base_url} for no model; give model=NAME")

    @property
    def request(self) -> dict[str, Any]:
        """The model and its settings: with the question itself, all that an answer depends on. No secret."""
        extra = dict(self.extra)
        structured = {"structured": True} if self.structured else {}
        return {"base_url": self.base_url, "model": self.model, "extra": extra, **structured, **self.drawn}

    @property
    def drawn(self) -> dict[str, Any]:
        """How the answer is sampled."""
        return {"temperature": self.temperature, "max_tokens": self.max_new_tokens}

    def payload(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request beside the model and the messages."""
        drawn = self.drawn if self.max_new_tokens else {"temperature": self.temperature}
        structured = {"response_format": schema} if self.structured else {}
        return {**drawn, **structured, **self.extra}


CHARACTERS_PER_TOKEN = 4  # where the other side does not count


@dataclass(frozen=True)
class JudgeAnswer:
    """The judge's answer, and the tokens it took."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Trouble:
    """Why a question has no answer."""

    reason: str
    tokens: int = 0
    is_budget: bool = False
    is_unreadable: bool = False  # it was answered, without a verdict
    is_doubtful: bool = False  # two verdicts differ

    @property
    def is_failure(self) -> bool:
        """Whether a question was sent and nobody answered."""
        return not self.is_budget and not self.is_unreadable and not self.is_doubtful

    def __str__(self) -> str:
        return self.reason


Ask = Callable[[Sequence[Sequence[Message]]], Sequence[str | Trouble]]
"""Conversations in, one answer each, in order."""


Answers = Iterator[tuple[int, JudgeAnswer | Trouble]]
"""(the question's index, its answer or what went wrong) in any order, exactly one per question."""


def callee_answers(ask: Ask, budget: JudgeBudget, questions: Sequence[Sequence[Message]]) -> Answers:
    """The answers of any callable, such as an engine: all questions that the budget pays for, in one call."""
    paid = [number for number in range(len(questions)) if budget.take()]
    texts = ask([questions[number] for number in paid]) if paid else []
    if len(texts) != len(paid):
        raise WhetError(f"the judge's ask returned {len(texts)} answers to {len(paid)} questions; return one each")
    for number, text in zip(paid, texts, strict=True):
        if isinstance(text, Trouble):
            yield number, text
            continue
        if not isinstance(text, str):
            raise WhetError(f"the judge's ask returned a {type(text).__name__}; return one text a question")
        tokens = estimated_tokens(questions[number], text)
        budget.add_tokens(tokens)
        yield number, JudgeAnswer(text, tokens) if text.strip() else Trouble("an empty answer")
    for number in sorted(set(range(len(questions))) - set(paid)):
        yield number, Trouble("the budget is spent", is_budget=True)


def engine_ask(engine: Engine, encode: Callable[[Sequence[Message]], Sequence[int]], sampling: Sampling) -> Ask:
    """An `Ask` of an engine: `encode` writes a conversation as tokens, the opening of the completion included."""

    def ask(questions: Sequence[Sequence[Message]]) -> list[str | Trouble]:
        requests = [Request(tuple(encode(question)), 0) for question in questions]
        try:
            return [sample.completion for sample in engine.generate(requests, sampling)]
        except WhetError as error:
            if len(requests) == 1:
                return [Trouble(one_line(str(error)))]
        # one question that exceeds the model's context must not cost the others their answers
        return [answer for question in questions for answer in ask([question])]

    return ask


def server_answers(
    settings: JudgeSettings, budget: JudgeBudget, schema: Mapping[str, Any], questions: Sequence[Sequence[Message]]
) -> Answers:
    """The answers of a server with POST /chat/completions: sent side by side, yielded as they arrive.

    The key is read from the environment for each call, and kept nowhere. `schema`: of a verdict, where it takes one.
    """
    stop, words = threading.Event(), ("the judge", "the settings of reward 'judge'")
    server = RemoteServer(
        *(settings.base_url, settings.key_variable, settings.timeout, settings.retries, settings.first_wait, *words)
    )

    def answer_to(question: Sequence[Message]) -> JudgeAnswer | Trouble:
        messages = [dict(message) for message in question]
        body = {"model": settings.model, "messages": messages, **settings.payload(schema)}
        read = functools.partial(_answer_of, question=question)
        try:
            answer = ask_with_retries(server, "/chat/completions", body, read, stop, budget.pay)
        except BudgetSpent as spent:
            return Trouble(str(spent), is_budget=True)
        except (RefusedQuestion, Retryable) as trouble:
            return Trouble(str(trouble))
        budget.add_tokens(answer.tokens)
        return answer

    jobs = [functools.partial(answer_to, question) for question in questions]
    numbers = {future: number for number, future in enumerate(in_threads(jobs, settings.concurrency, "judge"))}
    try:
        for future in as_completed(numbers):
            yield numbers[future], future.result()
    finally:
        # an interrupted run must not wait for a server that is slow to answer
        stop.set()
        for future in numbers:
            future.cancel()


def estimated_tokens(question: Sequence[Message], answer: str) -> int:
    """The tokens that a question and its answer usually have."""
    characters = sum(len(message["content"]) for message in question) + len(answer)
    return 1 + characters // CHARACTERS_PER_TOKEN


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
        raise Retryable(f"an answer that is no chat completion: {excerpt!r}") from None
    if refusal:
        return Trouble(f"the judge refused: {one_line(str(refusal))}", tokens)
    if ending == "content_filter":
        return Trouble("stopped by the server's content filter", tokens)
    if not text.strip():
        return Trouble("an empty answer" + (", cut at max_new_tokens" if ending == "length" else ""), tokens)
    return JudgeAnswer(text, tokens)
