"""Log-probabilities of given tokens, from an OpenAI-compatible server: a teacher, or any model that lives elsewhere.

Tokens are sent as ids to `/completions`, so nothing is tokenised again. Two dialects are known: `prompt_logprobs`
(vLLM, `whet serve`), and `echo` with `logprobs` (the older form of OpenAI's, SGLang). Which one a server speaks is
found out before the first step; one that speaks neither is refused.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from whet.model.server_client import RefusedQuestion, RemoteServer, Retryable, ask_with_retries, check_url, one_line
from whet.threads import side_by_side
from whet.types import RunFailed, WhetError

Dialect = Literal["prompt_logprobs", "echo"]
DIALECTS: tuple[Dialect, ...] = ("prompt_logprobs", "echo")
PROBED = 48  # tokens whose text is compared
LARGEST_SCORES = 256 * 2**20  # bytes of an answer
ID_PREFIX = "token_id:"  # vLLM's name of a token by its id


class NoLogp(Exception):
    """An answer without the log-probabilities that were asked for."""


@dataclass(frozen=True)
class TokenTable:
    """A server's scores of one row of tokens; it cannot score the first."""

    logp: tuple[float, ...]  # [L], 0 for the first
    likeliest: tuple[Mapping[int, float], ...] = ()  # [L], log-probabilities by token id, where they were asked for
    texts: tuple[str | None, ...] = ()  # [L], what the server calls the tokens


@dataclass(frozen=True)
class LogpServer:
    """A server, the name of its model, and the dialect it was found to speak."""

    server: RemoteServer
    model: str
    concurrency: int = 16
    dialect: Dialect = "prompt_logprobs"

    def tables(self, rows: Sequence[Sequence[int]], top: int = 0) -> list[TokenTable]:
        """Every row scored, several calls at a time; a row of fewer than two tokens has nothing to score."""
        stop = threading.Event()
        calls = [functools.partial(self._table, list(row), top, stop) for row in rows]
        return side_by_side(calls, self.concurrency, stop.set)

    def logp(self, rows: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        """Log-probabilities of each row's tokens; 0 for the first token, which no server scores."""
        return [table.logp for table in self.tables(rows)]

    def _table(self, tokens: list[int], top: int, stop: threading.Event) -> TokenTable:
        if len(tokens) < 2:
            return TokenTable((0.0,) * len(tokens), ({},) * len(tokens), (None,) * len(tokens))
        where = f"the teacher at {self.server.base_url}"
        try:
            table: TokenTable = ask_with_retries(
                self.server,
                "/completions",
                question(self.model, tokens, top, self.dialect),
                lambda answer: read_table(answer, tokens, top, self.dialect),
                stop,
            )
        except NoLogp as error:
            raise RunFailed(f"{where}: {error}; look at the server, then resume") from None
        except RefusedQuestion as error:
            raise RunFailed(
                f"{where} refused a row of {len(tokens)} tokens ({error}); is its context long enough?"
            ) from None
        except Retryable as error:
            raise RunFailed(f"{where} does not answer ({error}); start it again, then resume") from None
        return table


def question(model: str, tokens: Sequence[int], top: int, dialect: Dialect) -> dict[str, Any]:
    """The body of a call: one token is generated, because some servers refuse to write none."""
    body: dict[str, Any] = {"model": model, "prompt": list(tokens), "max_tokens": 1, "temperature": 0}
    if dialect == "prompt_logprobs":
        return {**body, "prompt_logprobs": top}
    return {**body, "echo": True, "logprobs": max(top, 1), "return_tokens_as_token_ids": True}


def read_table(answer: bytes, tokens: Sequence[int], top: int, dialect: Dialect) -> TokenTable:
    """The scores in an answer; `NoLogp` where it has none, or others than those of these tokens."""
    try:
        choice = json.loads(answer)["choices"][0]
    except (ValueError, KeyError, IndexError, TypeError):
        raise NoLogp(f"its answer is no completion: {one_line(answer.decode('utf-8', 'replace'))}") from None
    read = _prompt_logprobs if dialect == "prompt_logprobs" else _echoed
    try:
        table = read(choice, tokens, top)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise NoLogp(f"its answer has no log-probabilities of the prompt's tokens ({dialect})") from None
    if len(table.logp) != len(tokens) or not all(map(math.isfinite, table.logp)):
        raise NoLogp(f"it scored {len(table.logp)} tokens of {len(tokens)}, or not with finite numbers")
    return table


def _prompt_logprobs(choice: Mapping[str, Any], tokens: Sequence[int], top: int) -> TokenTable:
    """[null, {"5": {"logprob": -0.1, "decoded_token": "a", "rank": 1}, ...}, ...]: its own and the top ones."""
    entries = choice["prompt_logprobs"]
    logp, likeliest, texts = [0.0], [dict[int, float]()], list[str | None]([None])
    for token, entry in zip(tokens[1:], entries[1:], strict=True):
        own = entry[str(token)]
        logp.append(float(own["logprob"]))
        texts.append(own.get("decoded_token"))
        likeliest.append(_ranked({int(key): scored["logprob"] for key, scored in entry.items()}, top))
    return TokenTable(tuple(logp), tuple(likeliest), tuple(texts))


def _ranked(scores: Mapping[int, Any], top: int) -> dict[int, float]:
    """The `top` likeliest: a server adds the row's own token where it is none of them."""
    ranked = sorted(((float(value), token) for token, value in scores.items()), reverse=True)
    return {token: value for value, token in ranked[:top]}


def _echoed(choice: Mapping[str, Any], tokens: Sequence[int], top: int) -> TokenTable:
    """Parallel lists over prompt and completion: tokens, token_logprobs (the first null), top_logprobs."""
    logprobs = choice["logprobs"]
    values, names = logprobs["token_logprobs"][: len(tokens)], logprobs["tokens"][: len(tokens)]
    logp = (0.0, *(float(value) for value in values[1:]))
    likeliest: list[Mapping[int, float]] = [{}]
    for entry in (logprobs.get("top_logprobs") or [])[1 : len(tokens)] if top else ():
        likeliest.append(_ranked({int(key.removeprefix(ID_PREFIX)): value for key, value in entry.items()}, top))
    if top and len(likeliest) != len(tokens):
        raise ValueError("top_logprobs do not cover the tokens")
    texts = tuple(None if str(name).startswith(ID_PREFIX) else str(name) for name in names)
    ids = [int(str(name).removeprefix(ID_PREFIX)) for name in names if str(name).startswith(ID_PREFIX)]
    if ids and ids != list(tokens):
        raise ValueError("other tokens came back than were sent")
    return TokenTable(logp, tuple(likeliest), texts)


def logp_server(base_url: str, model: str, key_variable: str, timeout: float, concurrency: int) -> LogpServer:
    """A client of the teacher's server; `key_variable` names the environment variable with the key, not the key."""
    check_url(base_url, "the teacher")
    server = RemoteServer(
        *(base_url, key_variable, timeout), who="the teacher", settings="the section teacher", most_bytes=LARGEST_SCORES
    )
    return LogpServer(server, model, concurrency)


def probed(server: LogpServer, tokenizer: Any, top: int) -> tuple[LogpServer, str]:
    """The server with the dialect it speaks, and a phrase about its vocabulary.

    Refuses, in one line, a server that gives no log-probabilities of given tokens, or whose tokens are others.
    """
    where = f"teacher.base_url={server.server.base_url}"
    tokens = probe_tokens(tokenizer)
    patient = replace(server.server, retries=1)
    refusals = []
    for dialect in DIALECTS:
        try:
            table: TokenTable = ask_with_retries(
                patient,
                "/completions",
                question(server.model, tokens, top, dialect),
                lambda answer, spoken=dialect: read_table(answer, tokens, top, spoken),  # type: ignore[misc]
                threading.Event(),
            )
        except Retryable as error:
            raise WhetError(f"{where} does not answer ({error}); start the server, or correct the address") from None
        except (NoLogp, RefusedQuestion) as error:
            refusals.append(f"{dialect}: {error}")
            continue
        if top and len(table.likeliest[-1]) < min(top, len(tokenizer)):
            raise WhetError(
                f"{where} gives {len(table.likeliest[-1])} of the {top} likeliest tokens that teacher.top_k asks for; "
                "lower teacher.top_k, or raise the server's limit (vLLM: --max-logprobs)"
            )
        compared, apart = _compared(table, tokens, tokenizer)
        if apart:
            raise WhetError(
                f"{where} has another vocabulary: {apart}; a token-level loss needs the policy's own: serve a teacher "
                "with the same tokenizer, or distil through text (whet label completions, then whet train sft)"
            )
        comparison = (
            f"{compared} tokens compared" if compared else "its vocabulary could not be compared: it names no tokens"
        )
        return replace(server, dialect=dialect), f"{dialect}, {comparison}"
    raise WhetError(
        f"{where} gives no log-probabilities of given tokens, which this method needs ({'; '.join(refusals)}); serve "
        "the teacher with vLLM or whet serve, or give it as teacher.name"
    )


def probe_tokens(tokenizer: Any) -> list[int]:
    """Ids spread over the vocabulary."""
    size = len(tokenizer)
    rows = getattr(tokenizer, "embedding_rows", size)
    return sorted({number * (min(size, rows) - 1) // PROBED for number in range(PROBED + 1)})


def _compared(table: TokenTable, tokens: Sequence[int], tokenizer: Any) -> tuple[int, str]:
    """How many tokens could be compared by their text, and the first that differ, in words."""
    special = set(tokenizer.all_special_ids)
    compared, apart = 0, []
    for token, theirs in list(zip(tokens, table.texts, strict=True))[1:]:
        ours = tokenizer.decode([token])
        if theirs is None or token in special or "\ufffd" in ours + theirs:
            continue
        compared += 1
        if _plain(ours) != _plain(theirs) and _plain(str(tokenizer.convert_ids_to_tokens(token))) != _plain(theirs):
            apart.append(f"{token} is {ours!r} here and {theirs!r} there")
    return compared, f"{len(apart)} of {compared} tokens differ ({', '.join(apart[:2])})" if apart else ""


def _plain(text: str) -> str:
    """A token's text without the blank markers, which differ between tokenizers."""
    return text.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\n").strip()
