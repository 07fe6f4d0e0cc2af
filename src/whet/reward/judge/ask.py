"""Who answers a judge's questions: an OpenAI-compatible endpoint, an engine, or any callable.

All are asked the same way: `answers(questions)` yields (number of the question, answer or trouble) as they arrive.
A question that the other side cannot take (too long, filtered, answered with nothing) is trouble of that question
alone; what no question would survive (a wrong key, address or model) is an error.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

from whet.model.server_client import RefusedQuestion, RemoteServer, Retryable
from whet.protocols import Engine
from whet.reward.failure import one_line
from whet.reward.judge.cache import JudgeBudget
from whet.reward.judge.judge_settings import JudgeSettings
from whet.types import Message, Request, Sampling, WhetError

CHARACTERS_PER_TOKEN = 4  # where the other side does not count


@dataclass(frozen=True)
class JudgeAnswer:
    """What the judge said, and the tokens it took."""

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
        """Nobody answered, though somebody was asked."""
        return not self.is_budget and not self.is_unreadable and not self.is_doubtful

    def __str__(self) -> str:
        return self.reason


Ask = Callable[[Sequence[Sequence[Message]]], Sequence[str | Trouble]]
"""Conversations in, one answer each, in order."""


class AnswerSource(Protocol):
    """Whoever answers questions."""

    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]:
        """Yield (the question's index, its answer or what went wrong) in any order, exactly one per question."""
        ...


@dataclass(frozen=True)
class Callee:
    """Any callable that answers a list of conversations, an engine behind it for instance."""

    ask: Ask
    budget: JudgeBudget

    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]:
        """All that the budget pays for, in one call."""
        paid = [number for number in range(len(questions)) if self.budget.take()]
        texts = self.ask([questions[number] for number in paid]) if paid else []
        if len(texts) != len(paid):
            raise WhetError(f"the judge's ask returned {len(texts)} answers to {len(paid)} questions; return one each")
        for number, text in zip(paid, texts, strict=True):
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

    settings: JudgeSettings
    budget: JudgeBudget
    schema: Mapping[str, Any]  # of a verdict, for a server that takes one

    def answers(self, questions: Sequence[Sequence[Message]]) -> Iterator[tuple[int, JudgeAnswer | Trouble]]:
        """Questions are sent side by side; answers come as they arrive."""
        stop = threading.Event()
        pool = ThreadPoolExecutor(max(1, min(self.settings.concurrency, len(questions))), "whet-judge")
        try:
            futures = {pool.submit(self._answer, question, stop): number for number, question in enumerate(questions)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # an interrupted run must not wait for a server that is slow to answer
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: Sequence[Message], stop: threading.Event) -> JudgeAnswer | Trouble:
        reason, server, retries = "stopped", self._server, self.settings.retries
        for attempt in range(retries + 1):
            if stop.is_set():
                return Trouble("stopped")
            if not self.budget.take():
                return Trouble("the budget is spent", is_budget=True)
            try:
                answer = self._attempt(question)
            except RefusedQuestion as refusal:
                return Trouble(str(refusal))
            except Retryable as trouble:
                reason = str(trouble)
                if attempt < retries:
                    server.wait(attempt, trouble, stop)
                continue
            self.budget.add_tokens(answer.tokens)
            return answer
        return Trouble(f"{reason} ({retries + 1} attempts)")

    def _attempt(self, question: Sequence[Message]) -> JudgeAnswer | Trouble:
        messages = [dict(message) for message in question]
        body = {"model": self.settings.model, "messages": messages, **self.settings.payload(self.schema)}
        return _answer_of(self._server.attempt("/chat/completions", body), question)

    @property
    def _server(self) -> RemoteServer:
        asked, words = self.settings, ("the judge", "the settings of reward 'judge'")
        return RemoteServer(asked.base_url, asked.key_variable, asked.timeout, asked.retries, asked.first_wait, *words)


def estimated_tokens(question: Sequence[Message], answer: str) -> int:
    """As many tokens as a question and its answer usually have."""
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
