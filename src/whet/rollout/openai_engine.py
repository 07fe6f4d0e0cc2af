"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama.cpp, `whet serve`, a paid service.

For evaluation, judging, labelling, and completions to imitate. A server keeps its weights: nothing here updates them,
and training with it is refused. Conversations are sent as messages to `/chat/completions` and plain prompts to
`/completions`, so no model and no tokenizer is read here: whatever is sent or came back is a token of
`TextTokenizer`, whose vocabulary grows with what it is given.

A completion's tokens are the server's where it gives log-probabilities; else its text, cut into as many pieces as it
says it wrote, with log-probability NaN.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from whet.model.fast_path import FastPath
from whet.model.server_client import RefusedQuestion, RemoteServer, Retryable, ask_with_retries, check_url, one_line
from whet.threads import in_threads
from whet.types import Message, Request, Sample, Sampling, StopReason, WhetError

logger = logging.getLogger(__name__)

WHO = "the server"
CHARACTERS_PER_TOKEN = 4  # where the server does not count
MOST_AT_ONCE = 1000
DAY = 86_400.0  # seconds
MOST_SEED = 2**31  # some servers read 32 bits
END = "\x00end"  # what closes a completion that was not cut off; no text has it


class TextTokenizer:
    """A vocabulary of texts: a conversation, a prompt or a piece of a completion is one token each.

    It has what whet asks of a tokenizer, and can be read back without loss; no model has ever seen its tokens.
    """

    chat_template = "messages, as they are"
    eos_token = END
    eos_token_id = 0

    def __init__(self) -> None:
        self._texts, self._ids = [END], {END: 0}
        self._conversations: dict[int, tuple[list[Message], list[Mapping[str, Any]]]] = {}
        self._lock = threading.Lock()

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [self.id_of(text)] if text else []}

    def id_of(self, text: str) -> int:
        """The id of a text, which joins the vocabulary when it is first seen; safe to call from several threads."""
        with self._lock:
            if text not in self._ids:
                self._ids[text] = len(self._texts)
                self._texts.append(text)
            return self._ids[text]

    def apply_chat_template(
        self, messages: Sequence[Message], *, tokenize: bool = True, tools: Any = None, **_: Any
    ) -> Any:
        """The whole conversation as one token, or as JSON text: the server applies the real template."""
        conversation: list[Message] = [dict(message) for message in messages]
        text = json.dumps([conversation, list(tools or ())], ensure_ascii=False, default=str)
        if not tokenize:
            return text
        number = self.id_of(f"\x00{text}")  # a plain prompt of the same letters is another
        self._conversations[number] = (conversation, list(tools or ()))
        return [number]

    def conversation(self, number: int) -> tuple[list[Message], list[Mapping[str, Any]]] | None:
        """The messages and tools of a numbered conversation; None for a plain text."""
        return self._conversations.get(number)

    def decode(self, tokens: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        """The tokens' texts joined; `skip_special_tokens` leaves out whole conversations too."""
        numbers = [int(token) for token in (tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens)]
        special = skip_special_tokens and {self.eos_token_id, *self._conversations}
        return "".join(self._texts[number] for number in numbers if not special or number not in special)


@dataclass(frozen=True)
class _ServerText:
    """A server's answer to one request."""

    pieces: tuple[str, ...]
    logp: tuple[float, ...]
    ended: bool  # by itself, not by the token budget
    end_logp: float = math.nan


class OpenAIEngine:
    """Asks a server for completions. It takes no weights: `load` is refused."""

    shares_weights = False
    updates = False

    def __init__(
        self,
        policy: Any,
        tokenizer: Any,
        end_tokens: Sequence[int],
        *,
        context: int,
        base_url: str = "",  # http://localhost:8000/v1
        model: str = "",  # as the server calls it
        key_variable: str = "",  # the environment variable that holds the key
        timeout: float = 600.0,  # seconds, of one attempt
        retries: int = 5,  # of a call that fails or is told to wait
        first_wait: float = 1.0,  # seconds before the first retry; doubled each time
        concurrency: int = 16,  # calls at once
        logprobs: bool = True,  # ask for them; a server that refuses is asked without
        extra: dict[str, Any] = {},  # noqa: B006  further fields of each call; read, never written
    ) -> None:
        if not isinstance(tokenizer, TextTokenizer):
            raise WhetError(
                "sampling.engine=openai asks a server, whose weights cannot be trained: use it with whet eval, sample "
                "and label, and train with sampling.engine=torch or vllm"
            )
        check_url(base_url, WHO) if base_url else _missing("base_url", "http://localhost:8000/v1")
        if not model:
            _missing("model", "NAME")
        for name, value, least, most in (
            ("timeout", timeout, 0.001, DAY),
            ("retries", retries, 0, 1000),
            ("first_wait", first_wait, 0, DAY),
            ("concurrency", concurrency, 1, MOST_AT_ONCE),
        ):
            if not least <= value <= most:
                raise WhetError(f"{name} of the engine openai is {value}; give a number from {least:g} to {most:g}")
        self.tokenizer, self.model = tokenizer, model
        self.server = RemoteServer(base_url, key_variable, timeout, retries, first_wait, WHO, "engine_settings")
        self._concurrency, self._extra = concurrency, dict(extra)
        self._logprobs = logprobs

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        """Refuse: a server takes no weights from whet."""
        raise WhetError(
            f"the server at {self.server.base_url} takes no weights from whet; train with sampling.engine=torch or vllm"
        )

    def path_for(self, sampling: Sampling, longest_prompt: int) -> FastPath:
        """The server and its model; the same for all settings and prompts."""
        return FastPath(f"{self.model} at {self.server.base_url}; no weights are sent to it")

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        """Complete all requests, several at a time."""
        if sampling.stop_tokens:
            raise WhetError("sampling.stop_tokens are tokens of a model that runs here; give a server sampling.stop")
        stop = threading.Event()
        jobs = [functools.partial(self._written, request, sampling, stop) for request in requests]
        futures = in_threads(jobs, self._concurrency, "whet-server")
        try:
            written = [future.result() for future in futures]
        except Retryable as trouble:
            raise WhetError(
                f"{WHO} at {self.server.base_url} did not answer: {trouble}; "
                "see whether it runs, or raise retries or timeout in sampling.engine_settings"
            ) from None
        except RefusedQuestion as refusal:
            raise WhetError(
                f"{WHO} at {self.server.base_url} refused a prompt with {refusal}; shorten it, or lower "
                "sampling.max_new_tokens"
            ) from None
        finally:
            # an interrupted command must not wait for a server that is slow to answer
            stop.set()
            for future in futures:
                future.cancel()
        return [self._sample(request, server_text) for request, server_text in zip(requests, written, strict=True)]

    def _written(self, request: Request, sampling: Sampling, stop: threading.Event) -> _ServerText:
        path, body = self._question(request, sampling)
        chat = path == "/chat/completions"

        def read(content: bytes) -> _ServerText:
            return answer_of(content, chat)

        asks = {"logprobs": True if chat else 0} if self._logprobs else {}
        try:
            server_text = ask_with_retries(self.server, path, {**body, **asks}, read, stop)
        except RefusedQuestion as refusal:
            if not asks or "logprob" not in str(refusal):
                raise
            logger.warning("%s gives no log-probabilities (%s); it is asked without", self.server.base_url, refusal)
            self._logprobs = False
            server_text = ask_with_retries(self.server, path, body, read, stop)
        return server_text  # type: ignore[no-any-return]

    def _question(self, request: Request, sampling: Sampling) -> tuple[str, dict[str, Any]]:
        """The route and the body of a request: messages for a conversation, the text itself for a plain prompt."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_new_tokens or sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % MOST_SEED,
            **({"top_k": sampling.top_k} if sampling.top_k else {}),
            **({"min_p": sampling.min_p} if sampling.min_p else {}),
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **self._extra,
        }
        opening = self.tokenizer.conversation(request.tokens[0])
        if opening is None:
            return "/completions", {**body, "prompt": self.tokenizer.decode(request.tokens)}
        messages, tools = opening
        body |= {"tools": tools} if tools else {}
        begun = self.tokenizer.decode(request.tokens[1:])
        if begun:  # the answer has been begun, and is to be continued
            messages = [*messages, {"role": "assistant", "content": begun}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return "/chat/completions", {**body, "messages": messages}

    def _sample(self, request: Request, written: _ServerText) -> Sample:
        pieces = [self.tokenizer.id_of(piece) for piece in written.pieces]
        logp = list(written.logp)
        if written.ended or not pieces:  # a sample has an action, also where nothing was written
            pieces.append(self.tokenizer.eos_token_id)
            logp.append(written.end_logp)
        start = len(request.tokens)
        return Sample(
            tokens=torch.tensor([*request.tokens, *pieces]),
            action=torch.arange(start + len(pieces)) >= start,
            behavior_logp=torch.tensor([0.0] * start + logp, dtype=torch.float32),
            versions=(0, 0),
            stop=StopReason.END if written.ended else StopReason.LENGTH,
            completion="".join(written.pieces),
        )


def answer_of(content: bytes, chat: bool) -> _ServerText:
    """A server's JSON as a completion; what is none may be tried again."""
    try:
        table = json.loads(content)
        choice = table["choices"][0]
        text = (choice["message"].get("content") or "") if chat else choice["text"]
        if isinstance(text, list):  # typed parts
            text = "".join(str(part.get("text", "")) for part in text)
        if not isinstance(text, str):
            raise TypeError(text)
        text = text.encode("utf-8", "replace").decode()  # half a surrogate pair fits into no file
        ended = choice.get("finish_reason") != "length"
        count = (table.get("usage") or {}).get("completion_tokens")
        tokens = _tokens_of(choice.get("logprobs"), chat)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        excerpt = one_line(content.decode("utf-8", "replace"))
        raise Retryable(f"an answer that is no completion: {excerpt!r}") from None
    if tokens and "".join(piece for piece, _ in tokens) == text:
        return _ServerText(tuple(piece for piece, _ in tokens), tuple(logp for _, logp in tokens), ended)
    if ended and tokens and "".join(piece for piece, _ in tokens[:-1]) == text:  # the last one is its end
        pieces, logp = tuple(piece for piece, _ in tokens[:-1]), tuple(logp for _, logp in tokens[:-1])
        return _ServerText(pieces, logp, ended, tokens[-1][1])
    # a server counts the token that ends a completion
    pieces = cut(text, count - ended if isinstance(count, int) else -(-len(text) // CHARACTERS_PER_TOKEN))
    return _ServerText(pieces, (math.nan,) * len(pieces), ended)


def _tokens_of(table: Any, chat: bool) -> list[tuple[str, float]]:
    """The text and log-probability of each token, where the server gives them."""
    if not isinstance(table, Mapping):
        return []
    if chat:
        return [(str(entry["token"]), float(entry["logprob"])) for entry in table.get("content") or ()]
    pairs = zip(table.get("tokens") or (), table.get("token_logprobs") or (), strict=True)
    return [(str(token), float(logp)) for token, logp in pairs]


def cut(text: str, count: int) -> tuple[str, ...]:
    """A text in `count` pieces of about equal length, at most one per character."""
    count = max(1, min(count, len(text))) if text else 0
    ends = [len(text) * (number + 1) // count for number in range(count)]
    return tuple(text[start:end] for start, end in zip([0, *ends], ends, strict=False))


def _missing(name: str, example: str) -> None:
    raise WhetError(f"sampling.engine=openai needs {name}; give sampling.engine_settings.{name}={example}")
