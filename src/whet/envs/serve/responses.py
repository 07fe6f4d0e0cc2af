"""The JSON of OpenAI's Responses API, in which its own agents speak: the same conversation as a list of items.

A request becomes the `CallRequest` of a chat, so that what was sampled is found again whichever API a program uses. An
answer's text and its calls are items of their own here, and one message there: they are joined again on the way back.
Nothing is stored: `previous_response_id` is refused, and a client sends the whole input, as openai-agents does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from whet.envs.serve import wire
from whet.envs.serve.wire import BadCall, CallRequest, Choice, ServedCompletions

UNREAD = ("reasoning", "item_reference")  # items that say nothing to a template


def parse_responses(body: Mapping[str, Any]) -> CallRequest:
    """A request to /v1/responses."""
    if body.get("previous_response_id") or body.get("conversation"):
        text = "responses are not stored here; send the whole conversation as input"
        raise BadCall(text, param="previous_response_id")
    if body.get("background"):
        raise BadCall("background responses are not served; leave background away", param="background")
    form = (body.get("text") or {}).get("format") if isinstance(body.get("text") or {}, dict) else None
    tools = body.get("tools") or []
    settings = {
        "response_format": form,
        "max_tokens": body.get("max_output_tokens"),
        **{name: body[name] for name in ("temperature", "top_p", "stream", "model", "metadata") if name in body},
        **({"tool_choice": body["tool_choice"]} if body.get("tool_choice") is not None else {}),
        "messages": _messages(body),
        "tools": [_tool(tool) for tool in tools] if isinstance(tools, list) else tools,
    }
    return wire.parse_chat(settings)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of the input as messages: a text and the calls after it are one."""
    content = body.get("input")
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if not isinstance(items, list) or not items:
        raise BadCall("input is missing or empty; expected a text or a list of items", param="input")
    messages: list[dict[str, Any]] = []
    if isinstance(body.get("instructions"), str):
        messages.append({"role": "system", "content": body["instructions"]})
    for number, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            call = {"id": item.get("call_id"), "function": {key: item.get(key) for key in ("name", "arguments")}}
            messages[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str | list) else json.dumps(output)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind not in UNREAD:
            raise BadCall(f"input[{number}] is of type {kind!r}, which is not served", param=f"input[{number}]")
    return messages


def _tool(tool: Any) -> Any:
    """A tool as a chat request has it; one of another kind is refused there."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def response_json(request: CallRequest, result: ServedCompletions, model: str) -> dict[str, Any]:
    """The whole answer of a request to /v1/responses, as JSON."""
    (choice,) = result.choices
    counts = wire.usage(result)
    cut = choice.finish == "length"
    return {
        **_begun(request, result, model),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(result.id, choice),
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        },
    }


def _begun(request: CallRequest, result: ServedCompletions, model: str) -> dict[str, Any]:
    """The answer before anything is written."""
    return {
        "id": f"resp_{result.id}",
        "object": "response",
        "created_at": result.created,
        "status": "in_progress",
        "incomplete_details": None,
        "error": None,
        "model": model,
        "output": [],
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [{"type": "function", "strict": False, **tool["function"]} for tool in request.tools],
        "temperature": request.wishes.temperature,
        "top_p": request.wishes.top_p,
        "text": {"format": {"type": "text"}},
        "usage": None,
    }


def _items(name: str, choice: Choice) -> list[dict[str, Any]]:
    """The text, unless there is none beside calls, and the calls."""
    items: list[dict[str, Any]] = []
    if choice.content or not choice.tool_calls:
        items.append(_message(name, choice.content))
    for call in choice.tool_calls:
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{call.id}", "status": "completed", **fields})
    return items


def _message(name: str, text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": f"msg_{name}", "status": "completed", "role": "assistant", "content": [part]}


class ResponseEvents:
    """The answer as server-sent events: text as it is written, each call in one piece at the end."""

    def __init__(self, request: CallRequest) -> None:
        self._request, self._number, self._sent = request, 0, ""

    def piece(self, result: ServedCompletions, model: str, choice: int, text: str) -> list[str]:
        """More of the text; `result` has no choices yet."""
        events = [] if self._sent else [*self._created(result, model), *_opening(_message(result.id, ""), 0)]
        self._sent += text
        return self._numbered([*events, _text_delta(_message(result.id, ""), 0, text)])

    def end(self, result: ServedCompletions, model: str, streamed: Mapping[int, int]) -> list[str]:
        """The last events, sent when everything is written."""
        whole = response_json(self._request, result, model)
        events = [] if self._sent else self._created(result, model)
        for index, item in enumerate(whole["output"]):
            sent = self._sent if index == 0 else ""
            events += [*([] if sent else _opening(item, index)), *_closing(item, index, sent)]
        last = "response.incomplete" if whole["status"] == "incomplete" else "response.completed"
        return self._numbered([*events, {"type": last, "response": whole}])

    def _created(self, result: ServedCompletions, model: str) -> list[dict[str, Any]]:
        return [{"type": "response.created", "response": _begun(self._request, result, model)}]

    def _numbered(self, events: list[dict[str, Any]]) -> list[str]:
        first, self._number = self._number, self._number + len(events)
        return [json.dumps({**event, "sequence_number": number}) for number, event in enumerate(events, first)]


def _opening(item: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    started = {**item, "status": "in_progress", **({"content": []} if "content" in item else {"arguments": ""})}
    events: list[dict[str, Any]] = [{"type": "response.output_item.added", "output_index": index, "item": started}]
    if "content" in item:
        part = {**item["content"][0], "text": ""}
        events.append({"type": "response.content_part.added", **_place(item, index), "part": part})
    return events


def _closing(item: Mapping[str, Any], index: int, sent: str) -> list[dict[str, Any]]:
    """What is left of an item, and its end; `sent` of its text is out already."""
    where = _place(item, index)
    if "content" in item:
        (part,) = item["content"]
        rest = part["text"][len(sent) :]
        events = [] if sent and not rest else [_text_delta(item, index, rest)]
        events += [
            {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []},
            {"type": "response.content_part.done", **where, "part": part},
        ]
    else:
        arguments = item["arguments"]
        done = {"arguments": arguments, "name": item["name"]}
        events = [
            {"type": "response.function_call_arguments.delta", **where, "delta": arguments},
            {"type": "response.function_call_arguments.done", **where, **done},
        ]
    return [*events, {"type": "response.output_item.done", "output_index": index, "item": item}]


def _text_delta(item: Mapping[str, Any], index: int, text: str) -> dict[str, Any]:
    return {"type": "response.output_text.delta", **_place(item, index), "delta": text, "logprobs": []}


def _place(item: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {"item_id": item["id"], "output_index": index, **({"content_index": 0} if "content" in item else {})}
