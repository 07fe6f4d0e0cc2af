"""An engine that says what a test wants, on the built-in model's tokenizer, and remembers every request."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from whet.envs.serve.request_queue import RequestQueue
from whet.envs.serve.server import ModelServer
from whet.types import Request, Sample, Sampling, StopReason

TEMPLATE = (
    "{% if tools %}<|system|>Tools: {{ tools | tojson }}<|end|>{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    '<tool_call>{"name": "{{ call["function"]["name"] }}", "arguments": {{ call["function"]["arguments"] | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TOKEN = "test-token"


def tool_tokenizer() -> Any:
    """The built-in tokenizer, a token per character, with a template that writes tools, calls and results."""
    from transformers import AutoTokenizer

    from whet.model.load import BUILTIN

    tokenizer = AutoTokenizer.from_pretrained(BUILTIN / "whetstone")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


Script = Callable[[str, Request], str]


class ScriptedEngine:
    """Completions by `script(prompt as text, request)`. One that ends with ... runs out of tokens, another ends."""

    def __init__(self, tokenizer: Any, script: Script, version: int = 3) -> None:
        self.tokenizer, self.script, self.version = tokenizer, script, version
        self.requests: list[Request] = []
        self.samplings: list[Sampling] = []
        self.batches: list[int] = []
        self.samples: list[Sample] = []

    def load(self, weights: Mapping[str, Any], version: int) -> None:
        self.version = version

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Sample]:
        self.batches.append(len(requests))
        made = [self._sample(request, sampling) for request in requests]
        self.requests += requests
        self.samplings += [sampling] * len(requests)
        self.samples += made
        return made

    def _sample(self, request: Request, sampling: Sampling) -> Sample:
        prompt = self.tokenizer.decode(list(request.tokens), skip_special_tokens=False)
        said = self.script(prompt, request)
        written = self.tokenizer(said, add_special_tokens=False)["input_ids"] + [self.tokenizer.eos_token_id]
        stop = StopReason.END
        for text in sampling.stop:
            if text in said:
                cut = said.index(text) + len(text)
                written, stop = self.tokenizer(said[:cut], add_special_tokens=False)["input_ids"], StopReason.TEXT
        if len(written) > sampling.max_new_tokens:
            written, stop = written[: sampling.max_new_tokens], StopReason.LENGTH
        start = len(request.tokens)
        generator = torch.Generator().manual_seed(request.seed % 2**63)
        logp = -torch.rand(len(written), generator=generator) - 0.01
        return Sample(
            tokens=torch.tensor([*request.tokens, *written]),
            action=torch.arange(start + len(written)) >= start,
            behavior_logp=torch.cat([torch.zeros(start), logp]),
            versions=(self.version, self.version),
            stop=stop,
            completion=self.tokenizer.decode(written, skip_special_tokens=True),
        )


@contextmanager
def serving(engine: ScriptedEngine, **settings: Any) -> Iterator[str]:
    """A server over an engine; its address."""
    sampling = settings.pop("sampling", Sampling(200))
    of_server = {key: settings.pop(key) for key in ("host", "port") if key in settings}
    settings = {"context": 4096, "end_tokens": (engine.tokenizer.eos_token_id,), **settings}
    queue = RequestQueue(engine, engine.tokenizer, **settings)
    server = ModelServer(queue, sampling, TOKEN, model="scripted", **of_server)
    server.start()
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive()


def ask(
    address: str, path: str, body: Any = None, token: str = TOKEN, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """(status, JSON) of a request made by hand; bytes are sent as they are."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        address + path,
        data=data,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
