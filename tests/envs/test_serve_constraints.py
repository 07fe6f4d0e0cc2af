"""The endpoint over a real model: completions of a form, likeliest tokens, pieces of a stream, stops per request."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from types import SimpleNamespace

import pytest
import torch

from tests.envs.test_agent import prompts
from tests.support.packages import needs
from tests.support.scripted import TOKEN, ScriptedEngine, ask, serving, tool_tokenizer
from whet.data.packing import token_batch
from whet.envs.serve import endpoint, web
from whet.envs.serve.agent import AgentLimits, AgentRunner
from whet.envs.serve.call_tree import CallRecord
from whet.envs.serve.constraints import Grammars
from whet.envs.serve.request_queue import RequestQueue
from whet.envs.serve.wire import parse_chat
from whet.envs.tools.formats import call_format_of
from whet.model.causal_lm import causal_lm
from whet.model.load import load_model
from whet.model.token_logp import token_logp
from whet.rollout import scheduler
from whet.rollout.episode_runner import EpisodePlan
from whet.rollout.sampling import draw
from whet.rollout.torch_engine import TorchEngine
from whet.training.assembly.serving import token_scorer
from whet.types import Group, Prompt, Request, Sampling, SessionShape, StopReason, TokenConstraint

pytestmark = needs("fastapi", "uvicorn")
CHAT = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}, "sure": {"type": "boolean"}},
    "required": ["digit", "sure"],
    "additionalProperties": False,
}
DIGIT = {
    "type": "object",
    "properties": {"digit": {"enum": [1, 2]}},
    "required": ["digit"],
    "additionalProperties": False,
}
PICK = {"type": "function", "function": {"name": "pick", "parameters": DIGIT}}
DROP = {**PICK, "function": {**PICK["function"], "name": "drop"}}


@pytest.fixture(scope="module")
def engine():
    loaded, tokenizer = load_model("whetstone", "float32", "cpu"), tool_tokenizer()
    lm = causal_lm(loaded.model)
    made = TorchEngine(lm, tokenizer, (tokenizer.eos_token_id,), context=loaded.context)
    made.tokenizer, made.lm = tokenizer, lm
    return made


@pytest.fixture(scope="module")
def address(engine):
    scorer = token_scorer(SimpleNamespace(policy=engine.lm))
    with serving(engine, sampling=Sampling(120), context=512, scorer=scorer) as where:
        yield where


def asked(address, **body):
    status, answer = ask(address, CHAT, {"messages": [{"role": "user", "content": "3+4"}], **body})
    assert status == 200, answer
    return answer["choices"]


@needs("llguidance")
def test_json_of_a_schema_is_enforced(address):
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    choices = asked(address, n=8, seed=1, response_format=form)
    for choice in choices:
        value = json.loads(choice["message"]["content"])
        assert set(value) == {"digit", "sure"} and 0 <= value["digit"] <= 9 and isinstance(value["sure"], bool)
        assert choice["finish_reason"] == "stop"
    assert len({choice["message"]["content"] for choice in choices}) > 1
    (choice,) = asked(address, response_format={"type": "json_object"}, max_tokens=2, temperature=0)
    assert choice["message"]["content"].startswith("{")
    status, answer = ask(address, "/v1/completions", {"prompt": "3+4", "seed": 1, "response_format": form})
    assert status == 200 and set(json.loads(answer["choices"][0]["text"])) == {"digit", "sure"}


@needs("llguidance")
@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"pick", "drop"}), ({"type": "function", "function": {"name": "drop"}}, {"drop"})],
)
def test_a_call_of_a_tool_is_enforced(address, choice, names):
    called = set()
    for given in asked(address, n=8, seed=2, tools=[PICK, DROP], tool_choice=choice):
        assert given["finish_reason"] == "tool_calls"
        (call,) = given["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["digit"] in (1, 2)
        called.add(call["function"]["name"])
    assert called == names


@needs("llguidance")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format 'xml' cannot be enforced"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "with a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "oddity"}}}},
            "holds a schema that cannot be enforced",
        ),
        ({"tools": [PICK], "tool_choice": {"type": "function", "function": {"name": "no"}}}, "no such function"),
        ({"tool_choice": "required"}, "no such function"),
        ({"tools": [PICK], "tool_choice": "maybe"}, "tool_choice is 'maybe'; expected auto"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs=true"),
    ],
)
def test_what_cannot_be_enforced_is_one_line(address, body, says):
    status, answer = ask(address, CHAT, {"messages": [{"role": "user", "content": "3+4"}], **body})
    assert status == 400 and says in answer["error"]["message"] and "\n" not in answer["error"]["message"]


class Only(TokenConstraint):
    """The same few tokens at every position."""

    def __init__(self, *tokens: int) -> None:
        self.mask = torch.zeros(max(tokens) + 1, dtype=torch.bool)
        self.mask[list(tokens)] = True
        self.accepted: list[int] = []

    def allowed(self):
        return self.mask

    def accept(self, token):
        self.accepted.append(token)


@pytest.mark.parametrize("fast", [True, False])
def test_constrained_tokens_have_the_log_probabilities_they_were_drawn_with(engine, fast):
    made = engine if fast else TorchEngine(engine.lm, engine.tokenizer, (1,), context=512, fast=False)
    tokens = tuple(engine.tokenizer.encode("3+4="))
    constraint, sampling = Only(40, 41, 42), Sampling(6, constrained=True)
    session = made.session(sampling, SessionShape(4, 32, 16))
    session.add(0, Request(tokens, seed=5, constraint=constraint))
    session.add(1, Request(tokens, seed=5))
    done = {}
    while not session.is_idle:
        done.update(session.advance())
    session.close()
    written = done[0].tokens[len(tokens) :].tolist()
    assert set(written) <= {40, 41, 42} and constraint.accepted == written and len(written) == 6
    with torch.no_grad():
        logits = engine.lm.logits(engine.lm.hidden(done[0].tokens[None]))[0, len(tokens) - 1 : -1].float()
    masked = torch.full_like(logits, float("-inf"))
    masked[:, 40:43] = logits[:, 40:43]
    exact = masked.log_softmax(-1).gather(-1, torch.tensor(written)[:, None])[:, 0]
    assert torch.allclose(done[0].behavior_logp[len(tokens) :], exact, atol=1e-4)
    # its neighbour in the batch is what it is without one
    (alone,) = engine.generate([Request(tokens, seed=5)], Sampling(6))
    assert torch.equal(done[1].tokens, alone.tokens)
    free = draw(torch.zeros(1, 4), torch.tensor([0.9]), sampling, allowed=torch.tensor([[True, False, True, False]]))
    assert free.token.item() == 2 and free.logp.item() == pytest.approx(-0.6931, abs=1e-3)


def through_a_grammar(engine, sampling):
    """An episode whose first completion is JSON and whose second is free, with the notes of its runner."""

    async def play(client, row):
        messages = [{"role": "user", "content": "3+4"}]
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
        first = await client.chat.completions.create(model="policy", messages=messages, response_format=form)
        json.loads(first.choices[0].message.content)
        messages += [first.choices[0].message, {"role": "user", "content": "sure?"}]
        await client.chat.completions.create(model="policy", messages=messages)
        return 1.0

    from whet.envs.serve.programs import GIVEN

    GIVEN["test:constrained"] = play
    ends = (engine.tokenizer.eos_token_id,)
    runner = AgentRunner(engine, engine.tokenizer, "test:constrained", AgentLimits(), context=512, end_tokens=ends)
    made, tokens = prompts(engine.tokenizer, 1)
    try:
        ((sample,),) = runner.play(EpisodePlan(made, tokens, 1, sampling, (1,)))
        return sample, runner.take_notes()
    finally:
        runner.close()
        del GIVEN["test:constrained"]


def masks_of(engine, sample, turn):
    """bool [tokens of the turn, V], as the grammar allows them, asked anew."""
    grammars = Grammars(engine.tokenizer, (engine.tokenizer.eos_token_id,))
    constraint, masks = grammars.constraint(grammars.of_answer(SCHEMA)), []
    for token in sample.tokens[turn.start : turn.stop].tolist():
        masks.append(torch.nn.functional.pad(constraint.allowed(), (0, engine.lm.vocabulary - len(engine.tokenizer))))
        constraint.accept(token)
    return torch.stack(masks)


@needs("llguidance")
@pytest.mark.parametrize("top_k", [0, 5])
def test_a_constrained_completion_is_trained_among_what_the_grammar_allowed(engine, top_k):
    sample, notes = through_a_grammar(engine, Sampling(60, top_k=top_k, keeps_support=True))
    assert notes.counts["constrained_calls"] == 1 and sample.returned == 1.0
    assert [turn.role for turn in sample.turns] == ["prompt", "assistant", "user", "assistant"]
    first, last = sample.turns[1], sample.turns[-1]
    masks = masks_of(engine, sample, first)
    # tokens that the grammar forced are nobody's choice
    choices = (masks.sum(-1) > 1).tolist()
    assert sample.action[first.start : first.stop].tolist() == choices and 0 < sum(choices) < len(choices)
    assert sample.action[last.start : last.stop].all()
    batch = token_batch([Group(Prompt("p", ()), (sample,))])
    rows = (batch.tokens, batch.action)
    allowed = torch.ones(len(sample.tokens), engine.lm.vocabulary, dtype=torch.bool)
    allowed[first.start : first.stop] = masks
    engine.lm.model.zero_grad(set_to_none=True)
    logits = engine.lm.logits(engine.lm.hidden(batch.tokens))[0, :-1].masked_fill(~allowed[1:], float("-inf"))
    if top_k:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], float("-inf"))
    chosen = sample.action[1:]
    exact = logits.log_softmax(-1).gather(-1, sample.tokens[1:, None])[:, 0][chosen]
    weight = torch.linspace(-1, 2, len(exact))
    (exact * weight).sum().backward()
    expected = torch.cat([each.grad.flatten() for each in engine.lm.model.parameters()])
    engine.lm.model.zero_grad(set_to_none=True)
    ours = token_logp(engine.lm, *rows, support=batch.support).logp[0][1:][chosen]
    (ours * weight).sum().backward()
    gradient = torch.cat([each.grad.flatten() for each in engine.lm.model.parameters()])
    assert torch.allclose(ours, exact, atol=1e-4) and (gradient - expected).norm() < 1e-4 * expected.norm()
    # on policy every ratio is 1; without the mask it is not
    assert torch.allclose(sample.behavior_logp[1:][chosen], exact.detach(), atol=1e-4)
    free = token_logp(engine.lm, *rows).logp[0][1:][chosen].detach()
    assert (free - sample.behavior_logp[1:][chosen]).abs().max() > 0.1
    engine.lm.model.zero_grad(set_to_none=True)


@needs("llguidance")
def test_programs_that_alternate_keep_their_session(engine):
    queue = RequestQueue(engine, engine.tokenizer, end_tokens=(engine.tokenizer.eos_token_id,), context=512)
    opened, opens = [], engine.session
    engine.session = lambda sampling, shape: opened.append(sampling.constrained) or opens(sampling, shape)
    record = CallRecord()
    asked = {"messages": [{"role": "user", "content": "3+4"}], "max_tokens": 6}
    queue.open(Sampling(12), fixed=True)
    try:
        for form in (None, {"type": "json_object"}, None, {"type": "json_object"}, None):
            job = queue.submit(record, parse_chat({**asked, **({"response_format": form} if form else {})}))
            while not job.future.done():
                queue.work()
            job.future.result()
    finally:
        queue.close()
        del engine.session
    assert opened == [False, True]


@needs("llguidance")
def test_what_cannot_be_noted_is_left_out(engine, monkeypatch):
    monkeypatch.setattr(scheduler, "LARGEST_SUPPORT", 1)
    sample, _ = through_a_grammar(engine, Sampling(60, keeps_support=True))
    first, last = sample.turns[1], sample.turns[-1]
    masks = masks_of(engine, sample, first)
    assert not sample.action[first.start : first.stop][(masks.sum(-1) > 1) & ((~masks).sum(-1) > 1)].any()
    assert sample.action[last.start : last.stop].all() and len(sample.support.counts) == int(sample.action.sum())


def test_the_likeliest_tokens_stand_beside_the_sampled(address):
    (choice,) = asked(address, logprobs=True, top_logprobs=3, temperature=0, max_tokens=4)
    for entry in choice["logprobs"]["content"]:
        others = entry["top_logprobs"]
        assert len(others) == 3 and others[0]["token"] == entry["token"]
        assert others[0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-4)
        assert others[0]["logprob"] >= others[1]["logprob"] >= others[2]["logprob"]
    body = {"prompt": "3+4=", "logprobs": 2, "temperature": 0, "max_tokens": 3}
    _, answer = ask(address, "/v1/completions", body)
    assert [len(table) for table in answer["choices"][0]["logprobs"]["top_logprobs"]] == [2, 2, 2]


def streamed(address, path, body):
    """The events of a stream."""
    request = urllib.request.Request(
        address + path,
        json.dumps({**body, "stream": True}).encode(),
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        lines = [line.decode().strip()[6:] for line in answer if line.startswith(b"data: ")]
    assert (lines[-1] == "[DONE]") == (path != "/v1/responses")
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    ("path", "prompt", "more"),
    [
        (CHAT, "messages", {"stop": ["zzzz"]}),
        (CHAT, "messages", {"tools": [PICK]}),
        ("/v1/completions", "prompt", {"stop": ["zzzz"]}),
    ],
)
def test_a_stream_comes_in_pieces_as_it_is_written(address, path, prompt, more):
    given = [{"role": "user", "content": "3+4"}] if prompt == "messages" else "3+4="
    body = {prompt: given, "temperature": 0, "max_tokens": 40, **more}
    _, whole = ask(address, path, body)
    events = streamed(address, path, body)
    assert len({event["id"] for event in events}) == 1
    choices = [event["choices"][0] for event in events]
    pieces = [choice.get("text", (choice.get("delta") or {}).get("content")) or "" for choice in choices]
    said = whole["choices"][0]
    assert "".join(pieces) == said.get("text", (said.get("message") or {}).get("content"))
    assert sum(bool(piece) for piece in pieces) > 1
    assert choices[-1]["finish_reason"] == said["finish_reason"]


def test_what_was_written_before_a_client_listens_still_comes_in_pieces(address, monkeypatch):
    async def late(*given):
        time.sleep(0.3)  # the completion is written meanwhile
        async for event in _streamed(*given):
            yield event

    _streamed = endpoint._streamed
    monkeypatch.setattr(endpoint, "_streamed", late)
    events = streamed(address, "/v1/completions", {"prompt": "3+4=", "temperature": 0, "max_tokens": 40})
    assert sum(bool(event["choices"][0]["text"]) for event in events) > 1


@pytest.mark.parametrize("tools", [[], [{"type": "function", **PICK["function"]}]])
def test_responses_come_in_pieces_as_they_are_written(address, tools):
    body = {"input": "3+4", "temperature": 0, "max_output_tokens": 40, "tools": tools}
    _, whole = ask(address, "/v1/responses", body)
    events = streamed(address, "/v1/responses", body)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    pieces = kinds.count("output_text.delta")
    begin, end = ["output_item.added", "content_part.added"], ["content_part.done", "output_item.done"]
    assert pieces > 1
    assert kinds[:-1] == ["created", *begin, *["output_text.delta"] * pieces, "output_text.done", *end]
    (item,) = whole["output"]
    assert "".join(event["delta"] for event in events if "delta" in event) == item["content"][0]["text"]
    assert events[-1]["response"]["status"] == whole["status"]
    assert events[-1]["response"]["usage"] == whole["usage"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I add ", "I add"),
        ("I add <b>", "I add <b>"),
        ("I add <", "I add"),
        ("I add <tool_c", "I add"),
        ("I add\n<tool_call>add(", "I add"),
        (" <tool", ""),
        (" I add", ""),  # whether the blank is part of the text depends on whether a call follows
    ],
)
def test_text_before_a_call_is_told_and_nothing_of_the_call(text, said):
    form = call_format_of("python", [PICK], tool_tokenizer())
    assert form.said(text) == said


def test_requests_with_other_stops_share_a_session(engine):
    tokens = tuple(engine.tokenizer.encode("3+4="))
    (free,) = engine.generate([Request(tokens, seed=3)], Sampling(20))
    text = free.completion
    session = engine.session(Sampling(20), SessionShape(4, 32, 24))
    for number, stop in enumerate(((), (text[2],), (text[0],))):
        session.add(number, Request(tokens, seed=3, stop=stop))
    done = {}
    while not session.is_idle:
        done.update(session.advance())
    session.close()
    assert torch.equal(done[0].tokens, free.tokens)
    assert [done[number].stop for number in (1, 2)] == [StopReason.TEXT] * 2
    assert done[1].completion == text[: text.index(text[2]) + 1] and done[2].completion == text[0]


def test_alternating_stops_of_a_program_are_one_batch():
    tokenizer = tool_tokenizer()
    opened: list[Sampling] = []

    class Session:
        def __init__(self, sampling):
            opened.append(sampling)
            self.waiting = {}

        def add(self, number, request):
            self.waiting[number] = request

        def advance(self):
            waiting, self.waiting = self.waiting, {}
            return list(zip(waiting, scripted.generate(list(waiting.values()), Sampling(8)), strict=True))

        @property
        def is_idle(self):
            return not self.waiting

        def release(self, number):
            pass

        def close(self):
            pass

    scripted = ScriptedEngine(tokenizer, lambda prompt, request: "yes")
    scripted.session = lambda sampling, shape: Session(sampling)
    queue = RequestQueue(scripted, tokenizer, context=512)
    queue.open(Sampling(8), fixed=True)
    message = {"role": "user", "content": "x"}
    jobs = [
        queue.submit(CallRecord(number=number), parse_chat({"messages": [message], "stop": [stop]}))
        for number, stop in enumerate(("a", "b", "a", "b"))
    ]
    while not all(job.future.done() for job in jobs):
        queue.work()
    assert len(opened) == 1 and scripted.batches == [4]


def test_connections_that_never_ask_are_closed(monkeypatch):
    monkeypatch.setattr(web, "HEAD_SECONDS", 0.3)
    engine = ScriptedEngine(tool_tokenizer(), lambda prompt, request: "fine")
    with serving(engine) as address:
        host, port = address.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(40)]
        for half_open in silent[::2]:
            half_open.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x")
        deadline = time.monotonic() + 10
        for half_open in silent:
            half_open.settimeout(max(0.1, deadline - time.monotonic()))
            assert half_open.recv(1) == b""
            half_open.close()
        status, _ = ask(address, CHAT, {"messages": [{"role": "user", "content": "x"}]})
        assert status == 200
