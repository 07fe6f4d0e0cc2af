"""The JSON of the endpoint: requests read and checked, completions written. Nothing here knows an engine.

A request that cannot be served as it stands raises `BadCall`, one line for the client. Fields that change nothing
(`user`, `store`, ...) are left unread; of `metadata` the `role` is read, whom the policy plays in self-play.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from whet.data.rows import DEEPEST, require_shallow
from whet.settings.hostile import shown
from whet.types import Message, is_finite_number

MOST_BYTES = 8 * 2**20  # of a request's body
MOST_CHOICES = 16
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
MOST_TOOLS = 512
MOST_ALTERNATIVES = 20  # likeliest tokens beside a sampled one
LONGEST_ROLE = 64  # characters
NOTHING: Mapping[str, Any] = {}
ROLES = ("system", "developer", "user", "assistant", "tool")


class BadCall(Exception):
    """A request that is answered with an error: a line for the client, and the status and code it comes with."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None):
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The response body that OpenAI's clients expect."""
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class SamplingWishes:
    """The sampling settings of a request; None for what it does not set."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    penalties: tuple[str, ...] = ()  # names of settings that reshape the distribution, which no engine here does


@dataclass(frozen=True)
class CallRequest:
    """One request for completions: of a conversation, of tokens or of a plain text."""

    messages: tuple[Message, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    tokens: tuple[int, ...] | None = None  # given: there are no messages
    text: str | None = None  # the same
    wishes: SamplingWishes = field(default_factory=SamplingWishes)
    count: int = 1
    model: str = ""
    logprobs: bool = False
    token_ids: bool = False  # hand out the ids of prompt and completion
    tokens_as_ids: bool = False  # log-probabilities name their token by its id
    stream: bool = False
    stream_usage: bool = False
    role: str = ""  # whom the policy plays in this conversation; empty: as before in it
    form: Mapping[str, Any] | None = None  # the completion must be JSON of this schema; empty: any object
    called: tuple[str, ...] = ()  # it must be a call of one of these tools
    top_logprobs: int = 0  # likeliest tokens beside each one that was sampled


@dataclass(frozen=True)
class CalledTool:
    """A call that the policy wrote."""

    id: str
    name: str
    arguments: str  # JSON


@dataclass(frozen=True)
class Choice:
    """One completion, ready to be written."""

    tokens: tuple[int, ...]
    logp: tuple[float, ...]
    pieces: tuple[str, ...]  # the text of each token; empty where nobody asked
    content: str
    tool_calls: tuple[CalledTool, ...]
    finish: str  # stop, length or tool_calls
    likeliest: tuple[tuple[tuple[str, float], ...], ...] = ()  # (text, log-probability) at each token, the most first


@dataclass(frozen=True)
class ServedCompletions:
    """What a request gets back."""

    id: str
    created: int
    prompt: tuple[int, ...]
    choices: tuple[Choice, ...]


def parse_body(body: bytes) -> dict[str, Any]:
    """The object in a request's body."""

    def refuse(constant: str) -> Any:
        raise BadCall(f"the body holds {constant}, which is no JSON; give a finite number")

    try:
        value = json.loads(body.decode(), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise BadCall(f"the body is no JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise BadCall('the body is no JSON object; expected one, such as {"messages": [...]}')
    _check_tree(value)
    return value


def _check_tree(value: Any) -> None:
    """Nesting that others' code may walk recursively, and text that can be encoded."""
    try:
        require_shallow(value)
    except ValueError:
        raise BadCall(f"the body is nested deeper than {DEEPEST} levels") from None
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise BadCall("a text of the body holds half a surrogate pair; give valid Unicode") from None
    except ValueError:
        raise BadCall("a number of the body is not finite") from None


def parse_chat(body: Mapping[str, Any]) -> CallRequest:
    """A request to /v1/chat/completions."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadCall("messages is missing or empty; expected a list of messages", param="messages")
    if body.get("functions") or body.get("function_call"):
        raise BadCall("functions and function_call are the old form of tools; give tools", param="functions")
    if body.get("modalities") not in (None, [], ["text"]):
        raise BadCall("modalities other than text are not served; leave them away", param="modalities")
    if body.get("prediction"):
        raise BadCall("prediction is not served; leave it away", param="prediction")
    tools = _tools(body)
    choice = body.get("tool_choice") or "auto"
    called = _called(choice, tools)
    if choice == "none":
        tools = ()
    form = _form(body)
    if form is not None and called:
        raise BadCall("response_format and a tool_choice that forces a call exclude each other", param="tool_choice")
    top = _whole(body, "top_logprobs", 0, MOST_ALTERNATIVES) or 0
    if top and not body.get("logprobs"):
        raise BadCall("top_logprobs needs logprobs=true", param="top_logprobs")
    stream = _flag(body, "stream")
    return CallRequest(
        messages=_named([_message(message, number) for number, message in enumerate(messages)]),
        tools=tools,
        wishes=_wishes(body),
        count=_whole(body, "n", 1, MOST_CHOICES) or 1,
        model=_text(body, "model"),
        logprobs=_flag(body, "logprobs"),
        token_ids=_flag(body, "return_token_ids"),
        tokens_as_ids=_flag(body, "return_tokens_as_token_ids"),
        stream=stream,
        stream_usage=stream and _flag(_table(body, "stream_options"), "include_usage"),
        role=_role(body),
        form=form,
        called=called,
        top_logprobs=top,
    )


def _called(choice: Any, tools: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the tools one of which must be called; empty: the model may do as it likes."""
    known = tuple(str(tool["function"]["name"]) for tool in tools)
    if choice in ("auto", "none"):
        return ()
    if choice == "required":
        names: tuple[str, ...] = known
    else:
        function = choice.get("function", choice) if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str):
            raise BadCall(
                f"tool_choice is {shown(choice)}; expected auto, none, required or the name of a function",
                param="tool_choice",
            )
        names = (name,) if name in known else ()
    if not names:
        raise BadCall(f"tool_choice is {shown(choice)}, and tools has no such function", param="tool_choice")
    return names


def _form(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The JSON schema that `response_format` asks for; None: any text."""
    form = _table(body, "response_format")
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return NOTHING
    named = form.get("json_schema", form)  # the Responses API has name and schema beside the type
    schema = named.get("schema") if isinstance(named, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise BadCall(
            f"response_format {shown(kind)} cannot be enforced; give text, json_object, or json_schema with a schema",
            param="response_format",
        )
    return schema


def _role(body: Mapping[str, Any]) -> str:
    """`metadata.role`; other metadata is the client's own affair."""
    metadata = body.get("metadata")
    role = metadata.get("role") if isinstance(metadata, dict) else None
    if role is not None and (not isinstance(role, str) or len(role) > LONGEST_ROLE):
        raise BadCall(f"metadata.role is no text of at most {LONGEST_ROLE} characters", param="metadata")
    return role or ""


def parse_generate(body: Mapping[str, Any]) -> CallRequest:
    """A request to /inference/v1/generate: tokens in, tokens out."""
    tokens = body.get("token_ids")
    if not isinstance(tokens, list) or not tokens:
        raise BadCall("token_ids is missing or empty; expected a list of token ids", param="token_ids")
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise BadCall("token_ids holds something that is no token id; expected whole numbers", param="token_ids")
    if body.get("features") or body.get("content_parts"):
        raise BadCall("images, audio and video are not served", param="features")
    settings = _table(body, "sampling_params")
    wishes = _wishes(settings)
    ends = settings.get("stop_token_ids") or []
    if not isinstance(ends, list) or not all(type(token) is int for token in ends) or len(ends) > 64:
        raise BadCall("stop_token_ids is no list of at most 64 token ids", param="stop_token_ids")
    if settings.get("prompt_logprobs"):
        raise BadCall("prompt_logprobs is not served; leave it away", param="prompt_logprobs")
    return CallRequest(
        tokens=tuple(tokens),
        wishes=SamplingWishes(**{**vars(wishes), "stop_tokens": tuple(dict.fromkeys(ends))}),
        count=_whole(settings, "n", 1, MOST_CHOICES) or 1,
        model=_text(body, "model"),
        logprobs=True,
        token_ids=True,
        tokens_as_ids=True,
    )


@dataclass(frozen=True)
class ScoreRequest:
    """A request for the log-probabilities of given tokens."""

    tokens: tuple[int, ...]
    top: int  # likeliest tokens beside each one's own
    model: str = ""


MOST_TOP = 1024


def parse_completion(body: Mapping[str, Any]) -> CallRequest:
    """A request to /v1/completions: what follows a text, or tokens."""
    prompt: Any = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        (prompt,) = prompt
    is_text = isinstance(prompt, str) and bool(prompt)
    is_tokens = isinstance(prompt, list) and prompt and all(type(token) is int and token >= 0 for token in prompt)
    if not is_text and not is_tokens:
        raise BadCall("prompt is no text and no list of token ids; expected one of them", param="prompt")
    if body.get("echo") or body.get("suffix") or body.get("best_of") not in (None, body.get("n") or 1):
        raise BadCall("echo, suffix and best_of are not served; leave them away", param="echo")
    top = _whole(body, "logprobs", 0, MOST_ALTERNATIVES) or 0
    stream = _flag(body, "stream")
    return CallRequest(
        tokens=tuple(prompt) if is_tokens else None,
        text=prompt if is_text else None,
        wishes=_wishes(body),
        count=_whole(body, "n", 1, MOST_CHOICES) or 1,
        model=_text(body, "model"),
        logprobs=body.get("logprobs") is not None,
        token_ids=_flag(body, "return_token_ids"),
        stream=stream,
        stream_usage=stream and _flag(_table(body, "stream_options"), "include_usage"),
        form=_form(body),
        top_logprobs=top if top > 1 else 0,
    )


def completion_json(request: CallRequest, result: ServedCompletions, model: str) -> dict[str, Any]:
    """The completions of a text."""
    choices = []
    for number, choice in enumerate(result.choices):
        finish = "stop" if choice.finish == "tool_calls" else choice.finish
        answer: dict[str, Any] = {"index": number, "text": choice.content, "finish_reason": finish, "logprobs": None}
        if request.logprobs:
            answer["logprobs"] = {"tokens": list(choice.pieces), "token_logprobs": list(choice.logp)}
            if choice.likeliest:
                answer["logprobs"]["top_logprobs"] = [dict(table) for table in choice.likeliest]
        choices.append({**answer, **({"token_ids": list(choice.tokens)} if request.token_ids else {})})
    head = {"id": f"cmpl-{result.id}", "object": "text_completion", "created": result.created, "model": model}
    return {**head, "choices": choices, "usage": usage(result)}


class CompletionEvents:
    """The completions of a text as server-sent events."""

    def __init__(self, request: CallRequest) -> None:
        self._request = request

    def piece(self, result: ServedCompletions, model: str, choice: int, text: str) -> list[str]:
        """A part of a completion that is being written; `result` has no choices yet."""
        head = {"id": f"cmpl-{result.id}", "object": "text_completion", "created": result.created, "model": model}
        part = {"index": choice, "text": text, "finish_reason": None, "logprobs": None}
        return [json.dumps({**head, "choices": [part]})]

    def end(self, result: ServedCompletions, model: str, streamed: Mapping[int, int]) -> list[str]:
        """The rest; `streamed` characters of each completion were sent before."""
        whole = completion_json(self._request, result, model)
        rests = [{**choice, "text": choice["text"][streamed.get(choice["index"], 0) :]} for choice in whole["choices"]]
        events = [{**whole, "choices": [rest], "usage": None} for rest in rests]
        if self._request.stream_usage:
            events.append({**whole, "choices": []})
        return [*(json.dumps(event) for event in events), "[DONE]"]


def parse_score(body: Mapping[str, Any]) -> ScoreRequest:
    """A request to /v1/completions with `prompt_logprobs`: as vLLM takes it, and nothing is written."""
    tokens = body.get("prompt")
    if (
        not isinstance(tokens, list)
        or len(tokens) < 2
        or not all(type(token) is int and token >= 0 for token in tokens)
    ):
        raise BadCall("prompt is no list of at least two token ids, which are what is scored", param="prompt")
    top = _whole(body, "prompt_logprobs", 0, MOST_TOP)
    if top is None:
        raise BadCall("only tokens are scored here: give prompt_logprobs, 0 for their own", param="prompt_logprobs")
    if (_whole(body, "max_tokens", 0, 10**9) or 0) > 1:
        raise BadCall("with prompt_logprobs nothing is written: leave max_tokens away", param="max_tokens")
    return ScoreRequest(tuple(tokens), top, _text(body, "model"))


def score_json(request: ScoreRequest, scores: Sequence[Mapping[int, tuple[float, str]]], model: str) -> dict[str, Any]:
    """The scores of a request's tokens, the first of which has none, in vLLM's places."""
    entries = [
        {str(token): {"logprob": logp, "decoded_token": text} for token, (logp, text) in table.items()}
        for table in scores
    ]
    choice = {"index": 0, "text": "", "finish_reason": "length", "logprobs": None, "prompt_logprobs": [None, *entries]}
    count = len(request.tokens)
    tokens = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
    return {"id": "score", "object": "text_completion", "model": model, "choices": [choice], "usage": tokens}


def _message(value: Any, number: int) -> dict[str, Any]:
    """A message as the chat templates want it: text contents, arguments of calls as objects."""
    where = f"messages[{number}]"
    if not isinstance(value, dict):
        raise BadCall(f"{where} is no object; expected role and content", param=where)
    role = value.get("role")
    if role not in ROLES:
        raise BadCall(f"{where}.role is {role!r}; expected one of {', '.join(ROLES)}", param=where)
    message: dict[str, Any] = {"role": "system" if role == "developer" else role}
    message["content"] = _content(value.get("content"), where)
    for key in ("reasoning_content", "reasoning"):
        if isinstance(value.get(key), str) and role == "assistant":
            message["reasoning_content"] = value[key]
    calls = value.get("tool_calls")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise BadCall(f"{where}.tool_calls belongs to an assistant's message, as a list", param=where)
        message["tool_calls"] = [_tool_call(call, where) for call in calls]
    for key in ("tool_call_id", "name"):
        if isinstance(value.get(key), str):
            message[key] = value[key]
    return message


def _named(messages: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """Tool results with the name of their tool, which OpenAI's messages leave to the call, and some templates write."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ()) if "id" in call}
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])
    return tuple(messages)


def _content(value: Any, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadCall(f"{where}.content is no text and no list of parts", param=where)
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise BadCall(f"{where}.content holds a part of type {kind!r}; only text is served", param=where)
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(value: Any, where: str) -> dict[str, Any]:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadCall(f"{where}.tool_calls holds a call without function.name", param=where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        with suppress(BadCall):  # what the policy wrote need not be JSON: the template gets the text
            arguments = parse_body(arguments.encode()) if arguments.strip() else {}
    return {
        **({"id": value["id"]} if isinstance(value.get("id"), str) else {}),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _tools(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    tools = body.get("tools") or []
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise BadCall(f"tools is no list of at most {MOST_TOOLS}", param="tools")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadCall("a tool has no function.name; only tools of type function are served", param="tools")
    # `strict` asks for constrained decoding and means nothing to a template
    return tuple(
        {**checked, "function": {key: value for key, value in checked["function"].items() if key != "strict"}}
        for checked in tools
    )


def _wishes(body: Mapping[str, Any]) -> SamplingWishes:
    budgets = [
        limit for key in ("max_completion_tokens", "max_tokens") if (limit := _whole(body, key, 1, 10**9)) is not None
    ]
    stop = body.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple) or not all(isinstance(text, str) and text for text in stops):
        raise BadCall("stop is no text and no list of texts", param="stop")
    if len(stops) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in stops):
        raise BadCall(f"stop has more than {MOST_STOPS} texts or {LONGEST_STOP} characters in one", param="stop")
    top_k = _whole(body, "top_k", -1, 10**9)
    neutral = {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "length_penalty": 1}
    reshaped = [name for name, off in neutral.items() if body.get(name) not in (None, off)]
    reshaped += [name for name in ("logit_bias", "bad_words", "min_tokens") if body.get(name)]
    return SamplingWishes(
        temperature=_number(body, "temperature", 0, 100),
        top_p=_number(body, "top_p", 0, 1, above=True),
        top_k=None if top_k is None else max(top_k, 0),
        min_p=_number(body, "min_p", 0, 1),
        max_tokens=min(budgets, default=None),
        seed=_whole(body, "seed", -(2**63), 2**64),
        stop=tuple(dict.fromkeys(stops)),
        penalties=tuple(reshaped),
    )


def _number(body: Mapping[str, Any], key: str, low: float, high: float, above: bool = False) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or (above and value == low):
        raise BadCall(f"{key} is {shown(value)}; expected a number from {low:g} to {high:g}", param=key)
    return float(value)


def _whole(body: Mapping[str, Any], key: str, low: int, high: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadCall(f"{key} is {shown(value)}; expected a whole number from {low} to {high}", param=key)
    return value


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadCall(f"{key} is {shown(value)}; expected true or false", param=key)
    return bool(value)


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise BadCall(f"{key} is {shown(value)}; expected a text", param=key)
    return value or ""


def _table(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise BadCall(f"{key} is {shown(value)}; expected an object", param=key)
    return value or {}


def chat_json(request: CallRequest, result: ServedCompletions, model: str) -> dict[str, Any]:
    """The completion of a conversation; ids in vLLM's places where they were asked for."""
    answer: dict[str, Any] = {
        "id": f"chatcmpl-{result.id}",
        "object": "chat.completion",
        "created": result.created,
        "model": model,
        "choices": [_chat_choice(request, number, choice) for number, choice in enumerate(result.choices)],
        "usage": usage(result),
    }
    if request.token_ids:
        answer["prompt_token_ids"] = list(result.prompt)
    return answer


def _chat_choice(request: CallRequest, number: int, choice: Choice) -> dict[str, Any]:
    # clients take an assistant's message without content for one that only calls tools
    message: dict[str, Any] = {"role": "assistant", "content": choice.content or (None if choice.tool_calls else "")}
    if choice.tool_calls:
        message["tool_calls"] = [_call_json(call) for call in choice.tool_calls]
    return {
        "index": number,
        "message": message,
        "finish_reason": choice.finish,
        "logprobs": _logprobs(request, choice) if request.logprobs else None,
        **({"token_ids": list(choice.tokens)} if request.token_ids else {}),
    }


def _call_json(call: CalledTool) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _logprobs(request: CallRequest, choice: Choice) -> dict[str, Any]:
    names = [f"token_id:{token}" for token in choice.tokens] if request.tokens_as_ids else choice.pieces
    tables = choice.likeliest or ((),) * len(names)
    return {
        "content": [
            {**_entry(name, logp), "top_logprobs": [_entry(*other) for other in table]}
            for name, logp, table in zip(names, choice.logp, tables, strict=True)
        ]
    }


def _entry(text: str, logp: float) -> dict[str, Any]:
    return {"token": text, "logprob": logp, "bytes": list(text.encode())}


def generate_json(request: CallRequest, result: ServedCompletions, model: str) -> dict[str, Any]:
    """Tokens for tokens, as vLLM's endpoint answers."""
    return {
        "request_id": result.id,
        "model": model,
        "prompt_token_ids": list(result.prompt),
        "choices": [
            {
                "index": number,
                "token_ids": list(choice.tokens),
                "logprobs": _logprobs(request, choice),
                # a chat client reads calls out of the tokens by itself
                "finish_reason": "stop" if choice.finish == "tool_calls" else choice.finish,
            }
            for number, choice in enumerate(result.choices)
        ],
        "usage": usage(result),
    }


def usage(result: ServedCompletions) -> dict[str, int]:
    """OpenAI's `usage` field; the prompt is counted once, however many choices there are."""
    written = sum(len(choice.tokens) for choice in result.choices)
    return {
        "prompt_tokens": len(result.prompt),
        "completion_tokens": written,
        "total_tokens": len(result.prompt) + written,
    }


def _chunk(result: ServedCompletions, model: str) -> dict[str, Any]:
    kind = "chat.completion.chunk"
    return {"id": f"chatcmpl-{result.id}", "object": kind, "created": result.created, "model": model}


class ChatEvents:
    """The completions of a chat as server-sent events: text as it is written, calls at the end."""

    def __init__(self, request: CallRequest) -> None:
        self._request = request

    def piece(self, result: ServedCompletions, model: str, choice: int, text: str) -> list[str]:
        """A part of a completion that is being written; `result` has no choices yet."""
        delta = {"role": "assistant", "content": text}
        part = {"index": choice, "delta": delta, "finish_reason": None, "logprobs": None}
        return [json.dumps({**_chunk(result, model), "choices": [part]})]

    def end(self, result: ServedCompletions, model: str, streamed: Mapping[int, int]) -> list[str]:
        """The rest; `streamed` characters of each choice were sent before."""
        head = _chunk(result, model)
        events: list[dict[str, Any]] = []

        def add(
            number: int, delta: Mapping[str, Any], finish: str | None = None, more: Mapping[str, Any] = NOTHING
        ) -> None:
            choice = {"index": number, "delta": dict(delta), "finish_reason": finish, "logprobs": None, **more}
            events.append({**head, "choices": [choice]})

        for number, choice in enumerate(result.choices):
            if number not in streamed:
                add(number, {"role": "assistant", "content": ""})
            rest = choice.content[streamed.get(number, 0) :]
            logprobs = {"logprobs": _logprobs(self._request, choice)} if self._request.logprobs else {}
            ids = {"token_ids": list(choice.tokens)} if self._request.token_ids else {}
            if rest or logprobs or ids:
                add(number, {"content": rest}, more={**logprobs, **ids})
            for index, call in enumerate(choice.tool_calls):
                add(number, {"tool_calls": [{"index": index, **_call_json(call)}]})
            add(number, {}, choice.finish)
        if self._request.token_ids and events:
            events[0]["prompt_token_ids"] = list(result.prompt)
        if self._request.stream_usage:
            events = [{**event, "usage": None} for event in events]
            events.append({**head, "choices": [], "usage": usage(result)})
        return [*(json.dumps(event) for event in events), "[DONE]"]


ReportedReward = float | dict[str, float] | None  # of the episode, or of each role in it; None: unscored


def reported_reward(value: Any, note: Callable[[str], None]) -> tuple[ReportedReward, dict[str, float]] | None:
    """(reward, metrics) of a report `{"reward": 0.5, "metrics": {...}}`; None, and a note, where it is none.

    In self-play the reward may be one of each role: `{"reward": {"first": 1, "second": -1}}`.
    """
    if not isinstance(value, dict) or "reward" not in value:
        note("its report has no reward")
        return None
    reward = value["reward"]
    if isinstance(reward, bool):
        reward = float(reward)
    by_role = isinstance(reward, dict) and 0 < len(reward) <= 100 and all(map(is_finite_number, reward.values()))
    if reward is not None and not is_finite_number(reward) and not by_role:
        note(f"its reward is {shown(reward)}; expected a finite number, one of each role, or null for unscored")
        return None
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, dict) or len(metrics) > 100 or not all(map(is_finite_number, metrics.values())):
        note("its metrics are no object of at most 100 finite numbers")
        return None
    measured = {str(key): float(metric) for key, metric in metrics.items()}
    if by_role:
        return {str(role): float(role_reward) for role, role_reward in reward.items()}, measured
    return None if reward is None else float(reward), measured


def message_key(message: Message) -> str:
    """Equal for messages that say the same: blanks around a text and the ids of calls say nothing."""
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    parts = (message["role"], str(message.get("content") or "").strip(), message.get("reasoning_content"), calls)
    return json.dumps(parts, sort_keys=True)
