"""SkyRL-Gym's environments, and classes with its interface."""

from __future__ import annotations

import json
import threading

import pytest

from tests.support.for_every import for_every
from tests.support.packages import needs
from whet.envs.adapters.skyrl import of_skyrl_class, skyrl_environment
from whet.types import Completion, Prompt, WhetError

MULTIPLY = Prompt("row", ({"role": "user", "content": "7 * 6?"},), answer="42", meta={"level": 2})


class Echo:
    """Answers with what it was told, twice."""

    def __init__(self, extras=None):
        self.extras, self.turns, self.closed = extras, 0, False

    def init(self, prompt):
        return [{"role": "system", "content": f"level {self.extras['level']}"}, *prompt], {}

    def step(self, action):
        self.turns += 1
        told = {"role": "user", "content": f"You said {action}."}
        return {"observations": [told], "reward": 0.25, "done": self.turns == 2, "metadata": {}}

    def get_metrics(self):
        return {"turns": self.turns, "note": "a text"}


@needs("skyrl_gym")
class TestPackage:
    def test_gsm8k_judges_the_answer(self):
        for text, reward in (("So it is #### 42", 1.0), ("So it is #### 41", 0.0)):
            env = skyrl_environment("gsm8k")
            assert env.start(MULTIPLY).messages == MULTIPLY.messages
            answer = env.step(Completion(text))
            assert (answer.reward, answer.done, answer.messages) == (reward, True, ())
            env.close()

    def test_gsm8k_over_several_turns(self):
        row = Prompt(
            "row", MULTIPLY.messages, meta={"reward_spec": {"ground_truth": "42"}, "extra_info": {"max_turns": 3}}
        )
        env = skyrl_environment("gsm8k_multi_turn")
        env.start(row)
        answers = [env.step(Completion(text)) for text in ("hm", "#### 40", "#### 42")]
        assert [answer.done for answer in answers] == [False, False, True]
        assert answers[0].messages[0]["role"] == "user" and answers[0].messages[0]["content"]
        assert answers[-1].reward == 1.0

    def test_a_row_without_what_it_needs_is_one_line(self):
        env = skyrl_environment("gsm8k")
        with pytest.raises(
            WhetError, match="skyrl_gym's 'gsm8k' cannot be made: AssertionError: reward_spec field is req"
        ):
            env.start(Prompt("row", MULTIPLY.messages))

    def test_an_unknown_one_is_one_line(self):
        with pytest.raises(WhetError, match=r"no environment 'gsm8'.*did you mean 'gsm8k'"):
            skyrl_environment("gsm8")

    def test_a_class_of_the_base_class(self):
        from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

        class Once(BaseTextEnv):
            def __init__(self, env_config=None, extras=None):
                super().__init__()
                self.max_turns = extras["max_turns"]

            def step(self, action):
                return BaseTextEnvStepOutput(observations=[], reward=float(self.max_turns), done=True, metadata={})

        env = of_skyrl_class(Once, max_turns=4)
        env.start(MULTIPLY)
        assert env.step(Completion("x")).reward == 4.0


@needs("skyrl_gym")
@needs("omegaconf")
class TestEveryRegisteredOne:
    """All seven of the package without the network; those with data of their own get a small one."""

    def run(self, id, turns, meta=None, answer=None, **settings):
        env = skyrl_environment(id, **settings)
        env.start(Prompt("row", ({"role": "user", "content": "Go."},), answer=answer, meta=meta or {}))
        answers = [env.step(Completion(text)) for text in turns]
        env.close()
        assert [answer.done for answer in answers] == [False] * (len(turns) - 1) + [True]
        return answers

    def test_they_are_seven(self):
        import skyrl_gym

        assert list(skyrl_gym.registry) == [
            "aime", "gsm8k", "gsm8k_multi_turn", "text2sql", "search", "lcb", "searchcode"
        ]  # fmt: skip

    def test_aime(self):
        assert self.run("aime", ["Answer: 42"], answer="42")[-1].reward == 1.0
        assert self.run("aime", ["Answer: 41"], answer="42")[-1].reward == -1.0

    def test_text2sql_on_a_database(self, tmp_path):
        import sqlite3

        folder = tmp_path / "spider" / "database" / "pets"
        folder.mkdir(parents=True)
        with sqlite3.connect(folder / "pets.sqlite") as database:
            database.execute("create table pets (name text)")
            database.execute("insert into pets values ('Ada')")
        row = {"db_id": "pets", "data": "spider", "reward_spec": {"ground_truth": "select name from pets"}}
        looked, answered = self.run(
            "text2sql",
            [
                "<think>Look.</think><sql>select * from pets</sql>",
                "<think>So.</think><solution>select name from pets</solution>",
            ],
            row,
            env_config={"db_path": str(tmp_path)},
        )
        assert "Ada" in looked.messages[0]["content"] and answered.reward == 1.0
        with pytest.raises(WhetError, match=r"env_config has 'dbpath' .did you mean 'db_path'"):
            self.run("text2sql", ["x"], row, env_config={"dbpath": "x"})

    def test_search_asks_its_server(self):
        from http.server import BaseHTTPRequestHandler, HTTPServer

        class Retriever(BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                body = json.dumps({"result": [[{"document": {"contents": "Paris\nis the capital"}}]]}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Retriever)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            found, answered = self.run(
                "search",
                ["<search>capital of France</search>", "<answer>Paris</answer>"],
                {"reward_spec": {"ground_truth": {"target": ["Paris"]}}},
                env_config={"search_url": f"http://127.0.0.1:{server.server_port}/retrieve"},
            )
        finally:
            server.shutdown()
            server.server_close()
        assert "is the capital" in found.messages[0]["content"] and answered.reward == 1.0

    def test_code(self):
        tests = json.dumps([{"input": "3\n", "output": "6\n", "testtype": "stdin", "metadata": {}}])
        for factor, reward in ((2, 1.0), (3, 0.0)):
            text = f"```python\nprint({factor} * int(input()))\n```"
            assert self.run("lcb", [text], {"reward_spec": {"ground_truth": tests}})[-1].reward == reward
        printed, silent, answered = self.run(
            "searchcode",
            ["<tool><python>print(6 * 7)</python></tool>", "<tool><python>x = 1</python></tool>", "#### 42"],
            answer="42",
            max_turns=3,
        )
        assert "42" in printed.messages[0]["content"]
        assert silent.messages == ({"role": "user", "content": ""},)  # it went on and said nothing
        assert answered.reward == 1.0


def test_a_class_with_the_interface():
    env = of_skyrl_class(Echo)
    assert [message["role"] for message in env.start(MULTIPLY).messages] == ["system", "user"]
    first, second = env.step(Completion("a")), env.step(Completion("b"))
    assert first.messages == ({"role": "user", "content": "You said a."},) and not first.done
    assert second.done and second.messages[0]["content"] == "You said b." and second.metrics == {"turns": 2.0}
    assert first.reward + second.reward == 0.5


def test_a_rewritten_completion_is_counted_and_never_used():
    class Shortening(Echo):
        def step(self, action):
            return super().step(action) | {"postprocessed_action": action[:3]}

    env = of_skyrl_class(Shortening)
    env.start(MULTIPLY)
    assert env.step(Completion("abcdef")).counts == {"ignored_rewrites": 1}
    assert env.step(Completion("abc")).counts == {}


@for_every(
    [
        (None, "Wrong.step gave a NoneType; expected a dictionary with reward and done"),
        ({"observations": [], "reward": 1.0}, "Wrong.step gave no 'done'; it gave observations, reward"),
        ({"observations": [], "reward": float("nan"), "done": True}, "a reward of nan; expected a finite number"),
        (
            {"observations": "hello", "reward": 1.0, "done": False},
            "gave a value of type str; expected a list of messages",
        ),
        ({"observations": [{"text": 1}], "reward": 1.0, "done": False}, "expected a role and a content"),
        ({"observations": [], "reward": 1.0, "done": None}, "gave None; expected True or False"),
    ]
)
def test_a_wrong_answer_is_named(answer, complaint):
    class Wrong(Echo):
        def step(self, action):
            return answer

    env = of_skyrl_class(Wrong)
    env.start(MULTIPLY)
    with pytest.raises((TypeError, ValueError), match=complaint):
        env.step(Completion("x"))
