"""Log-probabilities of given tokens over HTTP: two dialects, and what is refused before a run begins."""

import json
import math
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest

from whet.rollout.logp_server import PROBED, logp_server, probe_tokens, probed, question
from whet.types import RunFailed, WhetError

SIZE = 60


class Letters:
    """A tokenizer whose tokens are letters from `first` on."""

    all_special_ids = (0,)

    def __init__(self, first=64):
        self._first = first

    def __len__(self):
        return SIZE

    def decode(self, tokens):
        return "".join(chr(self._first + token) for token in tokens)

    def convert_ids_to_tokens(self, token):
        return self.decode([token])


def logp_of(before, token):
    """Any function of both: what comes back must belong to the right place."""
    return -0.01 * (1 + (7 * before + token) % 50)


def vllm(body, top_most):
    tokens = body["prompt"]
    if "prompt_logprobs" not in body:
        return {"choices": [{"text": "x"}]}
    entries = [None]
    for before, token in pairwise(tokens):
        ids = {token, *range(min(body["prompt_logprobs"], top_most))}
        entries.append(
            {str(each): {"logprob": logp_of(before, each), "decoded_token": Letters().decode([each])} for each in ids}
        )
    return {"choices": [{"text": "x", "prompt_logprobs": entries}]}


def echo(body, top_most):
    tokens = body["prompt"]
    if not body.get("echo"):
        return {"choices": [{"text": "x"}]}
    pairs = list(pairwise(tokens))
    top = [
        None,
        # the row's own token comes too where it is none of the likeliest
        *(
            {f"token_id:{each}": logp_of(before, each) for each in {token, *range(body["logprobs"])}}
            for before, token in pairs
        ),
    ]
    logp = [None, *(logp_of(before, token) for before, token in pairs)]
    names = [f"token_id:{each}" for each in [*tokens, 5]]
    return {"choices": [{"logprobs": {"tokens": names, "token_logprobs": [*logp, -1.0], "top_logprobs": [*top, {}]}}]}


def text_only(body, top_most):
    return {"choices": [{"text": "x", "logprobs": None}]}


@contextmanager
def serving(answer, top_most=20):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            sent = json.dumps(answer(body, top_most)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_):
            pass

    there = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=there.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{there.server_port}/v1", asked
    finally:
        there.shutdown()
        there.server_close()


def client(address):
    return logp_server(address, "big", "", 10.0, 4)


@pytest.mark.parametrize(("answer", "dialect"), [(vllm, "prompt_logprobs"), (echo, "echo")])
def test_tokens_are_scored_in_their_places(answer, dialect):
    rows = [[3, 9, 4], [7], [], [5, 5, 8, 2, 1]]
    with serving(answer) as (address, asked):
        server, said = probed(client(address), Letters(), 0)
        tables = server.tables(rows, top=4)
        assert server.dialect == dialect and said.startswith(dialect)
    for row, table in zip(rows, tables, strict=True):
        expected = [0.0, *(logp_of(*pair) for pair in pairwise(row))][: len(row)]
        assert table.logp == pytest.approx(expected)
        for before, likeliest in zip(row, table.likeliest[1:], strict=False):
            assert len(likeliest) == 4
            assert likeliest == pytest.approx({each: logp_of(before, each) for each in likeliest})
    path, body = asked[-1]
    assert path == "/v1/completions" and body["model"] == "big" and all(type(each) is int for each in body["prompt"])


def test_a_server_without_log_probabilities_is_one_line():
    with serving(text_only) as (address, _), pytest.raises(WhetError, match="gives no log-probabilities") as refused:
        probed(client(address), Letters(), 0)
    assert "\n" not in str(refused.value) and "teacher.name" in str(refused.value)


def test_a_server_that_gives_too_few_of_the_likeliest_is_refused():
    with serving(vllm, top_most=5) as (address, _), pytest.raises(WhetError, match=r"of the 8 likeliest.*max-logprobs"):
        probed(client(address), Letters(), 8)


def test_another_vocabulary_is_refused_by_the_text_of_its_tokens():
    with serving(vllm) as (address, _), pytest.raises(WhetError, match=r"another vocabulary.*whet label completions"):
        probed(client(address), Letters(first=65), 0)


def test_nobody_there_is_one_line():
    with serving(vllm) as (address, _):
        pass
    with pytest.raises(WhetError, match="does not answer"):
        probed(client(address), Letters(), 0)


def test_scores_that_are_no_numbers_end_the_run():
    def broken(body, top_most):
        answer = vllm(body, top_most)
        answer["choices"][0]["prompt_logprobs"][1] = {str(body["prompt"][1]): {"logprob": -math.inf}}
        return answer

    with serving(vllm) as (address, _):
        server, _ = probed(client(address), Letters(), 0)
    with serving(broken) as (address, _), pytest.raises(RunFailed, match="finite"):
        logp_server(address, "big", "", 10.0, 4).logp([[1, 2, 3]])
    assert server.model == "big"


def test_a_server_is_asked_for_no_more_than_is_read():
    assert [question("m", (5, 9), top, "echo")["logprobs"] for top in (0, 1, 5)] == [1, 1, 5]
    assert [question("m", (5, 9), top, "prompt_logprobs")["prompt_logprobs"] for top in (0, 5)] == [0, 5]


def test_probes_are_spread_over_the_vocabulary_and_never_behind_it():
    probes = probe_tokens(range(1000))
    assert (probes[0], probes[-1], len(probes)) == (0, 999, PROBED + 1)
    assert probe_tokens(range(3)) == [0, 1, 2]
