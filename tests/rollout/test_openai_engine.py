"""A server as an engine: what is asked, what is made of its answers, and of servers that fail."""

import json
import math
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import whet
from tests.support.for_every import for_every
from whet import cli
from whet.data.chat import prompt_tokens
from whet.model.server_client import Retryable
from whet.rollout.openai_engine import OpenAIEngine, TextTokenizer, answer_of, cut
from whet.training.assembly.runtime import load_runtime
from whet.training.config import resolved_evaluation
from whet.types import Prompt, Request, Sampling, StopReason, WhetError

KEY = "WHET_TEST_SERVER_KEY"


def chat_answer(text, *, finish="stop", tokens=None, logprobs=None):
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    given = None if logprobs is None else {"content": [{"token": t, "logprob": p} for t, p in logprobs]}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish, "logprobs": given}
    return {"choices": [choice], **usage}


@contextmanager
def server(answer):
    """`answer(path, body, headers, number)` is (status, JSON or bytes, headers); what was asked is kept."""
    seen, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(seen)
                seen.append((self.path, body, dict(self.headers)))
            status, content, headers = answer(self.path, body, number)
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    there = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=there.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{there.server_port}/v1", seen
    finally:
        there.shutdown()
        there.server_close()


def engine_at(url, **settings):
    tokenizer = TextTokenizer()
    settings = {"model": "m", "first_wait": 0.01, **settings}
    return OpenAIEngine(None, tokenizer, (0,), context=2**30, base_url=url, **settings)


def question(engine, text="2 + 2?"):
    return Request(prompt_tokens(engine.tokenizer, Prompt("q", ({"role": "user", "content": text},))), 7)


def test_a_conversation_goes_out_as_messages_and_comes_back_as_the_servers_tokens():
    given = chat_answer("4.", logprobs=[("4", -0.5), (".", -0.25), ("<end>", -0.125)], tokens=3)
    with server(lambda *_: (200, given, {})) as (url, seen):
        engine = engine_at(url, extra={"reasoning_effort": "low"})
        (sample,) = engine.generate([question(engine)], Sampling(9, temperature=0.5, top_k=3, stop=("!",)))
    (path, body, headers) = seen[0]
    assert path == "/v1/chat/completions" and "Authorization" not in headers
    assert body["messages"] == [{"role": "user", "content": "2 + 2?"}]
    wanted = {"model": "m", "max_tokens": 9, "temperature": 0.5, "top_k": 3, "stop": ["!"], "seed": 7}
    assert {name: body[name] for name in wanted} == wanted
    assert body["reasoning_effort"] == "low" and body["logprobs"] is True
    assert sample.completion == "4." and sample.stop is StopReason.END and sample.num_actions == 3
    assert sample.behavior_logp.tolist() == [0.0, -0.5, -0.25, -0.125]
    assert engine.tokenizer.decode(sample.tokens[1:], skip_special_tokens=True) == "4."


def test_a_plain_prompt_goes_to_completions_and_a_begun_answer_is_continued():
    def answer(path, body, number):
        plain = {"choices": [{"text": "b", "finish_reason": "length"}]}
        return 200, plain if "prompt" in body else chat_answer("b"), {}

    with server(answer) as (url, seen):
        engine = engine_at(url, logprobs=False, concurrency=1)
        plain = Request(prompt_tokens(engine.tokenizer, Prompt("p", (), "once upon")), 1)
        begun = question(engine)
        begun = Request((*begun.tokens, engine.tokenizer.id_of("it is ")), 2)
        first, second = engine.generate([plain, begun], Sampling(3))
    assert seen[0][0] == "/v1/completions" and seen[0][1]["prompt"] == "once upon" and "logprobs" not in seen[0][1]
    assert first.stop is StopReason.LENGTH and first.completion == "b" and math.isnan(first.behavior_logp[-1])
    assert seen[1][1]["messages"][-1] == {"role": "assistant", "content": "it is "}
    assert seen[1][1]["continue_final_message"] is True and second.completion == "b"


def test_a_server_that_asks_to_wait_fails_or_writes_garbage_is_asked_again():
    answers = [(429, {"error": "slow down"}, {"Retry-After": "0"}), (503, b"", {}), (200, b"<html>", {})]
    answers += [(200, {"choices": []}, {}), (200, chat_answer("4"), {})]
    with server(lambda path, body, number: answers[number]) as (url, seen):
        engine = engine_at(url)
        (sample,) = engine.generate([question(engine)], Sampling(3))
    assert sample.completion == "4" and len(seen) == 5


def test_a_server_that_never_answers_is_one_line_with_the_reason(monkeypatch):
    with server(lambda *_: (500, b"out of memory", {})) as (url, seen):
        engine = engine_at(url, retries=2)
        with pytest.raises(WhetError, match=r"did not answer: HTTP 500: out of memory \(3 attempts\)"):
            engine.generate([question(engine)], Sampling(3))
    assert len(seen) == 3
    with pytest.raises(WhetError, match=r"did not answer: .* \(1 attempts\)"):  # nobody listens any more
        alone = engine_at(url, retries=0)
        alone.generate([question(alone)], Sampling(3))


def test_a_server_that_hangs_is_given_up_after_the_timeout():
    def late(*_):
        time.sleep(0.5)
        return 200, chat_answer("4"), {}

    with server(late) as (url, _):
        engine = engine_at(url, timeout=0.1, retries=1)
        with pytest.raises(WhetError, match=r"timed out.* \(2 attempts\)"):
            engine.generate([question(engine)], Sampling(3))


def test_a_key_is_read_from_the_environment_and_never_told(monkeypatch):
    def answer(path, body, number):
        return 401, {"error": "no secret-key here"}, {}

    with server(answer) as (url, seen):
        engine = engine_at(url, key_variable=KEY)
        monkeypatch.delenv(KEY, raising=False)
        with pytest.raises(WhetError, match=f"environment variable {KEY}, which is not set"):
            engine.generate([question(engine)], Sampling(3))
        monkeypatch.setenv(KEY, "secret-key")
        with pytest.raises(WhetError, match=rf"refused with HTTP 401.*check the key in {KEY}") as refused:
            engine.generate([question(engine)], Sampling(3))
    assert seen[0][2]["Authorization"] == "Bearer secret-key" and "secret-key" not in str(refused.value)


def test_a_server_without_log_probabilities_is_asked_without_from_then_on(caplog):
    def answer(path, body, number):
        if "logprobs" in body:
            return 400, {"error": "logprobs is not supported"}, {}
        return 200, chat_answer("forty two", tokens=3), {}

    with server(answer) as (url, seen):
        engine = engine_at(url, concurrency=1)
        samples = engine.generate([question(engine), question(engine, "again")], Sampling(8))
    assert [("logprobs" in body) for _, body, _ in seen] == [True, False, False]
    assert "is asked without" in caplog.text
    assert all(sample.num_actions == 3 and sample.completion == "forty two" for sample in samples)


def test_a_prompt_that_is_too_long_is_told_with_the_servers_words():
    with server(lambda *_: (400, {"error": "maximum context length is 8"}, {})) as (url, _):
        engine = engine_at(url)
        with pytest.raises(WhetError, match=r"refused a prompt with HTTP 400.*maximum context length"):
            engine.generate([question(engine)], Sampling(3))


def test_texts_are_cut_into_as_many_pieces_as_the_server_counted():
    assert cut("abcdefg", 3) == ("ab", "cd", "efg") and cut("ab", 9) == ("a", "b") and cut("", 4) == ()
    with pytest.raises(Retryable, match="no completion"):
        answer_of(b'{"choices": [{"message": {"content": 4}}]}', chat=True)


def test_it_takes_no_weights_and_is_refused_in_training(tmp_path):
    with pytest.raises(WhetError, match="takes no weights"):
        engine_at("http://127.0.0.1:9/v1").load({}, 1)
    values = {"sampling": {"engine": "openai", "engine_settings": {"base_url": "http://127.0.0.1:9/v1"}}}
    with pytest.raises(WhetError, match=r"sampling\.engine=openai asks a server, whose weights cannot be trained"):
        whet.train("grpo", config=values, folder=str(tmp_path / "run"), console=False)


@for_every(
    [
        ({}, "needs base_url"),
        ({"base_url": "localhost:8000"}, "the server's base_url is"),
        ({"base_url": "http://u:p@localhost/v1"}, "holds a name, key or query"),
        ({"base_url": "http://localhost/v1", "retires": 3}, "has no setting 'retires' .did you mean 'retries'"),
        (
            {"base_url": "http://localhost/v1", "retries": "many"},
            "retries of the engine 'openai' is 'many'; give a whole",
        ),
        ({"base_url": "http://localhost/v1", "concurrency": 0}, "concurrency of the engine openai is 0"),
    ]
)
def test_settings_that_cannot_be_are_one_line(settings, complaint):
    config = resolved_evaluation(
        {}, {"model": {"name": "m"}, "sampling": {"engine": "openai", "engine_settings": settings}}
    )
    with pytest.raises(WhetError, match=complaint):
        load_runtime(config)


def test_an_environment_is_refused():
    sampling = {"engine": "openai", "engine_settings": {"base_url": "http://localhost/v1"}}
    config = resolved_evaluation({}, {"model": {"name": "m"}, "sampling": sampling, "env": {"tools": ["calculator"]}})
    with pytest.raises(WhetError, match="takes no environment or tools"):
        load_runtime(config)


def solved(path, body, number):
    """Right about sums, and now and then cut off."""
    text = body["messages"][-1]["content"]
    numbers = [int(word) for word in "".join(c if c.isdigit() else " " for c in text).split()]
    return 200, chat_answer(f"<answer>{sum(numbers[:2])}</answer>", finish="length" if number == 1 else "stop"), {}


def command(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["whet", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0


def options(url):
    return ["--set", "sampling.engine=openai", "--set", f"sampling.engine_settings.base_url={url}"]


def test_eval_and_sample_ask_the_server(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with server(solved) as (url, seen):
        few = ["--json", "--set", "eval.prompts=4"]
        command(monkeypatch, "eval", "big", "--data", "task:arithmetic", *few, *options(url))
        metrics = json.loads(capsys.readouterr().out)
        assert metrics["prompts"] == 4 and "accuracy" in metrics and {body["model"] for _, body, _ in seen} == {"big"}
        command(monkeypatch, "sample", "big", "1 + 2", *options(url))
    assert "<answer>3</answer>" in capsys.readouterr().out


def test_label_completions_writes_what_sft_reads_and_leaves_out_what_was_cut_off(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with server(solved) as (url, seen):
        arguments = ["label", "completions", "big", "--data", "task:arithmetic", "--count", "20", "--out", "t.jsonl"]
        command(monkeypatch, *arguments, "--json", *options(url))
        report = json.loads(capsys.readouterr().out)
        assert report["completions"] == 19 and report["left_out"] == 1 and len(seen) == 20
        command(monkeypatch, *arguments, *options(url))  # the last chunk is written again, to the same bytes
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert all(row["completion"].startswith("<answer>") and row["labelled"]["model"] == "big" for row in rows)
    values = {"steps": 1, "model": {"device": "cpu", "threads": 1}, "data": {"source": str(tmp_path / "t.jsonl")}}
    run = whet.train("sft", config={**values, "batch": {"rows_per_step": 4}}, folder=str(tmp_path / "r"), console=False)
    assert run.folder


def test_whets_own_server_is_one_of_them(tmp_path):
    pytest.importorskip("uvicorn")
    from whet.training.assembly.serving import build_server

    config = resolved_evaluation({}, {"model": {"device": "cpu", "threads": 1}})
    there, _ = build_server(config, "token", host="127.0.0.1", port=0, rows=4)
    there.start()
    thread = threading.Thread(target=there.run, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(KEY, "token")
            url = there.address if there.address.endswith("/v1") else f"{there.address}/v1"
            engine = engine_at(url, key_variable=KEY, model="whetstone")
            samples = engine.generate([question(engine, "1 + 2 = ?")] * 2, Sampling(24, temperature=1.0))
    finally:
        there.stop()
        thread.join(10)
    assert all(sample.completion and sample.num_actions > 1 for sample in samples)
    assert all(math.isfinite(value) and value <= 0 for sample in samples for value in sample.behavior_logp.tolist())
