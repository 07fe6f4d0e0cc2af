"""A judge's answers on disk, by the content of the question; and what they cost.

One SQLite file. Every answer is committed as it arrives, so a killed run loses none, and several runs may share it.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from whet.types import WhetError

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
        """Keep an answer."""
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
