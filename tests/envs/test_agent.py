"""An agent program per episode: its calls become samples, token for token, with the reward that it reports."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.packages import needs
from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.data.chat import prompt_tokens
from whet.data.packing import token_batch
from whet.envs.serve import agent
from whet.envs.serve.agent import PATIENCE, AgentLimits, AgentRunner, check_agent
from whet.objective import PRESETS
from whet.objective.statistics import compared_apart
from whet.rollout.episode_runner import EpisodePlan
from whet.types import Group, Prompt, Sampling, StopReason, WhetError

pytestmark = needs("fastapi", "uvicorn")
# what every program of these tests begins with: a client in a few lines, which starts faster than a real one
CLIENT = """
import json, os, sys, threading, time, urllib.error, urllib.request

row = json.loads(os.environ["WHET_PROMPT"])

def post(path, body):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=float(os.environ.get("OPENAI_TIMEOUT", 30))) as answer:
        return json.loads(answer.read())

def chat(messages, **settings):
    return post("/chat/completions", {"model": "gpt-4o", "messages": messages, **settings})["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}
"""


@pytest.fixture(scope="module")
def tokenizer():
    return tool_tokenizer()


def prompts(tokenizer, count: int = 2) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    made = [
        Prompt(f"p{number}", ({"role": "user", "content": f"question {number}"},), answer=str(number))
        for number in range(count)
    ]
    return made, [prompt_tokens(tokenizer, each) for each in made]


def numbered(prompt: str, request: object) -> str:
    """Says how many turns it has had, and a little of its seed: another seed, another completion."""
    return f" turn {prompt.count('<|assistant|>')} {request.seed % 1000} "


class Play:
    """A program played for two prompts, two episodes each."""

    def __init__(self, folder: Path, tokenizer, program: str, script=numbered, *, rows=2, count=2, limits=None, **more):
        path = folder / "program.py"
        path.write_text(CLIENT + textwrap.dedent(program))
        self.engine = ScriptedEngine(tokenizer, script)
        self.runner = AgentRunner(
            self.engine,
            tokenizer,
            f"{sys.executable} {path}",
            limits or AgentLimits(seconds=30),
            context=2048,
            end_tokens=(tokenizer.eos_token_id,),
            **more,
        )
        made, tokens = prompts(tokenizer, rows)
        try:
            self.groups = self.runner.play(EpisodePlan(made, tokens, count, Sampling(40), (7, 1)))
        finally:
            self.runner.close()
        self.notes = self.runner.take_notes()

    @property
    def samples(self):
        return [sample for group in self.groups for sample in group]


def exact(sample, engine) -> None:
    """Every action of a sample was sampled by the engine, behind exactly the tokens that stand before it."""
    runs, start = [], None
    flags = [*sample.action.tolist(), False]
    for place, flag in enumerate(flags):
        if flag and start is None:
            start = place
        if not flag and start is not None:
            runs.append((start, place))
            start = None
    assert runs
    for start, stop in runs:
        whole = sample.tokens[:stop]
        made = [each for each in engine.samples if torch.equal(each.tokens, whole) and not each.action[start - 1]]
        assert any(torch.allclose(each.behavior_logp[start:], sample.behavior_logp[start:stop]) for each in made)
    assert not sample.behavior_logp[~sample.action].any()


TWO_TURNS = """
messages = [user(row["messages"][0]["content"])]
messages.append(chat(messages, temperature=0.2))
messages.append(user("go on"))
last = chat(messages)
print("thinking aloud")
print(json.dumps({"reward": len(last["content"]) / 10, "metrics": {"turns": 2}}))
"""


def test_a_conversation_is_one_sample_with_the_exact_tokens(tmp_path, tokenizer):
    play = Play(tmp_path, tokenizer, TWO_TURNS)
    assert [len(group) for group in play.groups] == [2, 2]
    for sample in play.samples:
        exact(sample, play.engine)
        assert sample.stop is StopReason.END and sample.versions == (3, 3) and sample.metrics == {"turns": 2.0}
        assert sample.returned == pytest.approx(len(sample.completion) / 10)
        roles = [turn.role for turn in sample.turns]
        assert roles == ["prompt", "assistant", "user", "assistant"]
        assert sample.turns[2].text == "go on" and sample.turns[-1].stop == len(sample.tokens)
        for turn in sample.turns:
            assert sample.action[turn.start : turn.stop].all() == (turn.role == "assistant")
        between = tokenizer.decode(sample.tokens[sample.turns[1].stop : sample.turns[3].start])
        assert between == "<|user|>go on<|end|><|assistant|>"
    assert [sample.episode for sample in play.samples] == ["p0#0", "p0#1", "p1#0", "p1#1"]
    first, second = play.groups[0]
    assert not torch.equal(first.tokens, second.tokens), "episodes of a group have seeds of their own"
    assert play.notes.counts == {"agent_calls": 8, "overridden_samplings": 4}
    assert {sampling.temperature for sampling in play.engine.samplings} == {1.0}
    # all programs are waited for: the engine writes the same batches in every run
    assert play.engine.batches == [4, 4]


def test_the_same_seed_gives_the_same_samples(tmp_path, tokenizer):
    parallel = """
    answers = {}
    def ask(number):
        time.sleep(0.05 * ((number + int(row["id"][1:]) + len(os.environ["OPENAI_API_KEY"]) + os.getpid()) % 3))
        answers[number] = chat([user(f"part {number}")])
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    print(json.dumps({"reward": 1}))
    """
    first, second = (Play(tmp_path, tokenizer, parallel) for _ in range(2))
    assert [len(group) for group in first.groups] == [6, 6]
    for one, other in zip(first.samples, second.samples, strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.behavior_logp, other.behavior_logp)
        assert one.episode == other.episode and one.turns == other.turns
    assert first.notes.counts["branches"] == 12


def test_branches_share_a_prefix_and_an_episode(tmp_path, tokenizer):
    program = """
    root = [user("plan")]
    root.append(chat(root))
    left = chat([*root, user("left")])
    right = chat([*root, user("right")])
    other = chat([{"role": "system", "content": "You are a helper."}, user("help")])
    print(json.dumps({"reward": 0.25}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1)
    for episode in ("p0#0", "p0#1"):
        branches = [each for each in play.samples if each.episode == episode]
        assert [each.returned for each in branches] == [0.25] * 3
        for each in branches:
            exact(each, play.engine)
        plans = {tuple(each.tokens[: each.turns[1].stop].tolist()) for each in branches if len(each.turns) == 4}
        assert len(plans) == 1 and sorted(len(each.turns) for each in branches) == [2, 4, 4]
    # the engine wrote each turn once
    assert len(play.engine.samples) == 8


def test_token_calls_that_go_on_from_each_other_are_one_sample(tmp_path, tokenizer):
    program = """
    def generate(tokens):
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/inference/v1/generate",
            data=json.dumps({"token_ids": tokens}).encode(),
            headers={"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["choices"][0]["token_ids"]
    tokens = [3, 50, 1, 4]
    tokens += generate(tokens)
    tokens += [3, 51, 1, 4]
    generate(tokens)
    print(json.dumps({"reward": 1}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    (sample,) = play.samples
    exact(sample, play.engine)
    assert [turn.role for turn in sample.turns] == ["prompt", "assistant", "context", "assistant"]


def test_an_edited_history_is_context_without_loss(tmp_path, tokenizer):
    program = """
    said = chat([user("a")])["content"]
    chat([user("a"), {"role": "assistant", "content": said + "!"}, user("b")])
    print(json.dumps({"reward": 1.0}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    edited, first = sorted(play.samples, key=lambda each: -len(each.tokens))
    exact(edited, play.engine)
    assert [turn.role for turn in edited.turns] == ["prompt", "assistant"] and "!<|end|>" in edited.turns[0].text
    assert [turn.role for turn in first.turns] == ["prompt", "assistant"]


@pytest.mark.parametrize(
    ("program", "returned", "stop", "counts", "failure"),
    [
        ('chat([user("x")]); print(json.dumps({"reward": None}))', None, StopReason.END, {}, ""),
        (
            'chat([user("x")]); print("done")',
            None, StopReason.END, {"unreported_rewards": 1}, 'reported no reward; print {"reward": 0.5} as the last',
        ),
        ('chat([user("x")]); print(json.dumps({"reward": 0}))', 0.0, StopReason.END, {}, ""),
        ('chat([user("x")]); post("/episode/reward", {"reward": 0.5})', 0.5, StopReason.END, {}, ""),
        ('chat([user("x")]); print(json.dumps({"reward": 2 > 1}))', 1.0, StopReason.END, {}, ""),
        (
            'chat([user("x")]); post("/episode/reward", {"reward": 0.5}); print(json.dumps({"reward": 9}))',
            0.5, StopReason.END, {}, "",
        ),
        (
            'chat([user("x")]); print(\'{"reward": NaN}\')',
            None, StopReason.END, {"bad_reports": 1, "unreported_rewards": 1}, "holds NaN, which is no JSON",
        ),
        (
            'chat([user("x")]); print(json.dumps({"reward": "high"}))',
            None, StopReason.END, {"bad_reports": 1, "unreported_rewards": 1}, "its reward is 'high'",
        ),
        (
            'chat([user("x")]); print(json.dumps({"reward": 1})); raise SystemExit("no luck")',
            None, StopReason.FAILED, {"failed_episodes": 1, "failed_programs": 1}, "exit code 1: no luck",
        ),
        (
            'chat([user("x")]); print(json.dumps({"reward": 1}), flush=True); os.kill(os.getpid(), 9)',
            None, StopReason.FAILED, {"failed_episodes": 1, "failed_programs": 1}, "was ended by signal 9",
        ),
        (
            'print(json.dumps({"reward": 1}))',
            None, StopReason.FAILED, {"failed_episodes": 1, "silent_programs": 1}, "made no call",
        ),
    ],
)  # fmt: skip
def test_none_is_unscored_and_never_zero(tmp_path, tokenizer, program, returned, stop, counts, failure):
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    (sample,) = play.samples
    assert (sample.returned, sample.stop) == (returned, stop)
    assert {key: value for key, value in play.notes.counts.items() if key != "agent_calls"} == counts
    assert [failure in line and line.startswith("episode p0#0: ") for line in play.notes.failures] == [True] * bool(
        failure
    )
    assert (sample.num_actions > 0) == ("chat(" in program)


def test_a_program_that_never_ends_is_killed_with_its_children(tmp_path, tokenizer):
    program = f"""
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    open({str(tmp_path / "pids")!r}, "a").write(f"{{os.getpid()}} {{child.pid}} ")
    chat([user("x")])
    time.sleep(100)
    """
    began = time.monotonic()
    play = Play(tmp_path, tokenizer, program, rows=1, count=1, limits=AgentLimits(seconds=2))
    assert time.monotonic() - began < 10
    (sample,) = play.samples
    exact(sample, play.engine)
    assert sample.stop is StopReason.SECONDS and sample.returned is None
    for pid in (tmp_path / "pids").read_text().split():
        assert not alive(int(pid))


def alive(pid: int) -> bool:
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


def test_what_a_program_leaves_behind_ends_with_it(tmp_path, tokenizer):
    program = f"""
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    open({str(tmp_path / "pids")!r}, "a").write(f"{{child.pid}}")
    chat([user("x")])
    print(json.dumps({{"reward": 1}}))
    """
    began = time.monotonic()
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    assert play.samples[0].returned == 1.0 and time.monotonic() - began < 10
    assert not alive(int((tmp_path / "pids").read_text()))


def test_calls_and_tokens_of_an_episode_are_limited(tmp_path, tokenizer):
    program = """
    messages = [user("x")]
    try:
        while True:
            messages.append(chat(messages))
            messages.append(user("more"))
    except urllib.error.HTTPError as error:
        assert error.code == 400, error.code
        print(json.loads(error.read())["error"]["code"])
        print(json.dumps({"reward": 0.5}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1, limits=AgentLimits(calls=3, seconds=30))
    (sample,) = play.samples
    assert sample.stop is StopReason.TURNS and sample.returned == 0.5
    assert [turn.role for turn in sample.turns].count("assistant") == 3
    play = Play(tmp_path, tokenizer, program, rows=1, count=1, limits=AgentLimits(tokens=60, seconds=30))
    (sample,) = play.samples
    assert sample.stop is StopReason.TOKENS and len(sample.tokens) - sample.turns[0].stop <= 60
    exact(sample, play.engine)


def test_a_disconnected_call_is_counted_and_not_trained(tmp_path, tokenizer):
    program = """
    import socket
    def abandon():
        host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
        body = json.dumps({"messages": [user("slow")]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {host}\\r\\nContent-Type: application/json\\r\\n"
        head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        raw = socket.create_connection((host, int(port)))
        raw.sendall(head.encode() + body)
        time.sleep(0.3)
        raw.close()
    abandon()
    chat([user("quick")])
    print(json.dumps({"reward": 1}))
    """

    def slowly(prompt: str, request: object) -> str:
        time.sleep(0.8 if "slow" in prompt else 0)
        return "said"

    play = Play(tmp_path, tokenizer, program, slowly, rows=1, count=1)
    (sample,) = play.samples
    assert "quick" in sample.turns[0].text and sample.returned == 1.0
    assert play.notes.counts["disconnected_calls"] == 1 and play.notes.counts["undelivered_calls"] == 1
    assert len(play.engine.samples) == 2


def test_what_an_abandoned_call_went_on_from_is_kept(tmp_path, tokenizer):
    program = """
    messages = [user("x")]
    messages.append(chat(messages))
    os.environ["OPENAI_TIMEOUT"] = "0.3"
    try:
        chat([*messages, user("slow")])
    except OSError:
        pass
    print(json.dumps({"reward": 0.5}))
    """

    def slowly(prompt: str, request: object) -> str:
        time.sleep(1.0 if "slow" in prompt else 0)
        return "said"

    play = Play(tmp_path, tokenizer, program, slowly, rows=1, count=1)
    (sample,) = play.samples
    assert [turn.role for turn in sample.turns] == ["prompt", "assistant"] and sample.returned == 0.5
    assert sample.stop is StopReason.END
    exact(sample, play.engine)


def test_a_retry_trains_on_what_the_program_got(tmp_path, tokenizer):
    program = """
    for seconds in ("0.3", "30"):
        os.environ["OPENAI_TIMEOUT"] = seconds
        try:
            got = chat([user("x")])
            break
        except OSError:
            time.sleep(1)
    print(json.dumps({"reward": 1, "metrics": {"seed": float(got["content"])}}))
    """
    calls = []

    def slow_once(prompt: str, request: object) -> str:
        calls.append(request)
        time.sleep(1.0 if len(calls) == 1 else 0)
        return str(request.seed % 1000)

    play = Play(tmp_path, tokenizer, program, slow_once, rows=1, count=1)
    (sample,) = play.samples
    assert len(calls) == 2 and calls[0].seed != calls[1].seed
    assert sample.completion == str(int(sample.metrics["seed"])) == str(calls[1].seed % 1000)
    assert play.notes.counts["undelivered_calls"] == 1


def test_a_program_that_hangs_before_its_first_call_costs_its_time_and_no_more(tmp_path, tokenizer):
    program = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if row["id"] == "p0":
        time.sleep(100)
    chat([user("x")])
    print(json.dumps({"reward": 1}))
    """
    began = time.monotonic()
    play = Play(tmp_path, tokenizer, program, count=4, limits=AgentLimits(seconds=2))
    assert time.monotonic() - began < 15  # four that ignore the request to end are ended together
    hung, fine = play.groups
    assert [(each.stop, each.returned, each.num_actions) for each in hung] == [(StopReason.SECONDS, None, 0)] * 4
    assert [each.returned for each in fine] == [1.0] * 4


def test_a_command_that_never_works_is_said_at_once(tmp_path, tokenizer):
    with pytest.raises(WhetError, match=r"8 programs of env.agent all failed; episode p\d+#\d+: .*: no luck") as e:
        Play(tmp_path, tokenizer, 'raise SystemExit("no luck")', count=12)
    assert "\n" not in str(e.value)


def test_a_program_that_is_slow_holds_up_nobody_for_long(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("whet.envs.serve.agent.GRACE", 0.2)
    program = """
    messages = [user("x")]
    messages.append(chat(messages))
    if os.environ["WHET_EPISODE"].endswith("#0"):
        time.sleep(1.5)
    chat([*messages, user("y")])
    print(json.dumps({"reward": 1}))
    """
    play = Play(tmp_path, tokenizer, program)
    assert play.notes.counts["slow_programs"] == 1 and play.engine.batches[:2] == [4, 2]


def test_programs_run_side_by_side_within_the_limit(tmp_path, tokenizer):
    program = f"""
    chat([user("x")])
    open({str(tmp_path / "log")!r}, "a").write(f"+{{os.getpid()}}\\n")
    chat([user("y")])
    open({str(tmp_path / "log")!r}, "a").write(f"-{{os.getpid()}}\\n")
    print(json.dumps({{"reward": 1}}))
    """
    Play(tmp_path, tokenizer, program, rows=3, limits=AgentLimits(at_once=2, seconds=30))
    running, most = 0, 0
    for line in (tmp_path / "log").read_text().splitlines():
        running += 1 if line[0] == "+" else -1
        most = max(most, running)
    assert most == 2


def test_floods_of_output_are_bounded(tmp_path, tokenizer):
    program = """
    chat([user("x")])
    for _ in range(300):
        sys.stdout.write("x" * 10_000); sys.stderr.write("y" * 10_000)
    print(); print(json.dumps({"reward": 0.75}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    assert play.samples[0].returned == 0.75


def test_the_row_is_told_on_standard_input_too(tmp_path, tokenizer):
    program = """
    assert json.loads(sys.stdin.read()) == row and row["answer"] == "0"
    chat(row["messages"])
    print(json.dumps({"reward": 1}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    (sample,) = play.samples
    _, tokens = prompts(tokenizer, 1)
    assert tuple(sample.tokens[: len(tokens[0])].tolist()) == tokens[0] and sample.returned == 1.0


def test_several_choices_are_branches(tmp_path, tokenizer):
    program = """
    post("/chat/completions", {"messages": [user("x")], "n": 3})
    print(json.dumps({"reward": 1}))
    """
    play = Play(tmp_path, tokenizer, program, rows=1, count=1)
    assert len(play.samples) == 3 and len({tuple(each.tokens.tolist()) for each in play.samples}) == 3


def test_an_old_token_opens_nothing(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("whet.envs.serve.agent.FIRST_GRACE", 0.2)  # the second program waits for the first
    program = f"""
    path = {str(tmp_path / "token")!r}
    if row["id"] == "p1":
        while not os.path.exists(path):
            time.sleep(0.05)
        time.sleep(0.5)
        mine, os.environ["OPENAI_API_KEY"] = os.environ["OPENAI_API_KEY"], open(path).read()
        try:
            chat([user("as somebody else")])
        except urllib.error.HTTPError as error:
            assert error.code == 401
        os.environ["OPENAI_API_KEY"] = mine
    chat([user("x")])
    if row["id"] == "p0":
        open(path, "w").write(os.environ["OPENAI_API_KEY"])
    print(json.dumps({{"reward": 1}}))
    """
    play = Play(tmp_path, tokenizer, program, rows=2, count=1)
    assert [sample.returned for sample in play.samples] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("no-such-program-here --fast", "there is no such program: 'no-such-program-here'"),
        (f"{sys.executable} no_such_agent.py", "there is no file 'no_such_agent.py'"),
        ("", "env.agent is empty"),
        ("cd agents && python a.py", "no shell reads it; give \"bash -c 'cd agents && python a.py'\""),
        ("MODE=fast python a.py", "no shell reads it; give"),
        ("python 'unclosed", "cannot be read as a command"),
    ],
)
def test_a_command_that_cannot_run_is_refused_before_training(command, says):
    with pytest.raises(WhetError, match="agent") as error:
        check_agent(command)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_not_executable_is_refused(tmp_path):
    path = tmp_path / "agent"
    path.write_text("x")
    with pytest.raises(WhetError, match="it is not executable"):
        check_agent(str(path))


def test_the_environment_of_the_user_stays(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.setenv("MY_SETTING", "kept")
    program = 'chat([user("x")]); print(json.dumps({"reward": float(os.environ["MY_SETTING"] == "kept")}))'
    assert Play(tmp_path, tokenizer, program, rows=1, count=1).samples[0].returned == 1.0
    assert "WHET_EPISODE" not in os.environ


def test_on_the_real_engine_the_log_probabilities_are_the_models(tmp_path):
    from whet.model.causal_lm import causal_lm
    from whet.model.load import load_model
    from whet.rollout.engines import build_engine

    loaded = load_model("whetstone", torch.float32, "cpu")
    policy = causal_lm(loaded.model, torch.float32)
    engine = build_engine("torch", policy, loaded.tokenizer, loaded.end_tokens, loaded.context)
    path = tmp_path / "program.py"
    path.write_text(CLIENT + TWO_TURNS + '\nchat([user("another")])\nprint(json.dumps({"reward": 1}))\n')
    runner = AgentRunner(
        engine,
        loaded.tokenizer,
        f"{sys.executable} {path}",
        AgentLimits(calls=8, tokens=200, seconds=60),
        context=loaded.context,
        end_tokens=loaded.end_tokens,
    )
    made, tokens = prompts(loaded.tokenizer)
    try:
        groups = runner.play(EpisodePlan(made, tokens, 2, Sampling(20), (7, 1)))
        again = runner.play(EpisodePlan(made, tokens, 2, Sampling(20), (7, 1)))
    finally:
        runner.close()
    samples = [sample for group in groups for sample in group]
    assert [len(group) for group in groups] == [4, 4] and all(sample.returned == 1.0 for sample in samples)
    for sample in samples:
        with torch.no_grad():
            logits = policy.logits(policy.hidden(sample.tokens[None]))[0].float()
        logp = logits[:-1].log_softmax(-1).gather(1, sample.tokens[1:, None])[:, 0]
        chosen = sample.action[1:]
        assert (logp[chosen] - sample.behavior_logp[1:][chosen]).abs().max() < 1e-4
    for one, other in zip(samples, [sample for group in again for sample in group], strict=True):
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.behavior_logp, other.behavior_logp)


SELF_PLAY = """
seats = {seat: [user(f"you are {seat}")] for seat in ("first", "second")}
for turn in range(2):
    for seat, messages in seats.items():
        messages.append(chat(messages, metadata={"role": seat} if turn == 0 else {"note": "mine"}))
        messages.append(user("go on"))
print(json.dumps({"reward": REWARD}))
"""


def test_in_self_play_each_role_is_a_sample_with_a_reward_of_its_own(tmp_path, tokenizer):
    play = Play(tmp_path, tokenizer, SELF_PLAY.replace("REWARD", '{"first": 1, "second": -0.5}'), rows=1)
    assert [len(group) for group in play.groups] == [4]  # two episodes of two roles
    for sample in play.samples:
        exact(sample, play.engine)
        assert f"you are {sample.role}" in tokenizer.decode(sample.tokens)
        assert sample.returned == {"first": 1.0, "second": -0.5}[sample.role]
        assert sum(turn.role == "assistant" for turn in sample.turns) == 2
    assert sorted(sample.role for sample in play.samples) == ["first", "first", "second", "second"]
    assert len({sample.episode for sample in play.samples}) == 2
    # a role's rewards are compared with the same role's, and no role is a branch of the other
    scored = [replace(sample, reward=sample.returned) for sample in play.samples]
    batch = token_batch([Group(Prompt("p", ()), tuple(scored))])
    assert batch.episode is None and len(batch.role.unique()) == 2
    assert not PRESETS["grpo"].objective.baseline.centred(compared_apart(batch), {}).any()


def test_a_reward_may_be_shared_by_the_roles_and_a_role_without_one_is_unscored(tmp_path, tokenizer):
    shared = Play(tmp_path, tokenizer, SELF_PLAY.replace("REWARD", "0.25"), rows=1, count=1)
    assert {sample.role: sample.returned for sample in shared.samples} == {"first": 0.25, "second": 0.25}
    partly = Play(tmp_path, tokenizer, SELF_PLAY.replace("REWARD", '{"second": 2}'), rows=1, count=1)
    assert {sample.role: sample.returned for sample in partly.samples} == {"first": None, "second": 2.0}
    wrong = Play(tmp_path, tokenizer, SELF_PLAY.replace("REWARD", '{"second": "much"}'), rows=1, count=1)
    assert wrong.notes.counts["bad_reports"] == 1 and all(each.returned is None for each in wrong.samples)
    assert "one of each role" in wrong.notes.failures[0]


FUNCTIONS = """
import asyncio

together, most = 0, 0

async def play(client, row):
    global together, most
    together, most = together + 1, max(most, together + 1)
    messages = list(row["messages"])
    for turn in range(2):
        answer = await client.chat.completions.create(model="gpt-4o", messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": f"again {turn}"}]
    together -= 1
    return {"reward": float(row["answer"]), "metrics": {"turns": 2}}

async def fails(client, row):
    await client.chat.completions.create(model="gpt-4o", messages=row["messages"])
    if row["id"] == "p1":
        raise RuntimeError("no luck")
    return None

async def hangs(client, row):
    await client.chat.completions.create(model="gpt-4o", messages=row["messages"])
    await asyncio.sleep(60)

async def silent(client, row):
    if row["id"] != "p1":
        await client.chat.completions.create(model="gpt-4o", messages=row["messages"])
    return 1.0

def blocking(client, row):
    return 1.0
"""


@pytest.fixture
def play_function(tmp_path, tokenizer):
    """Plays a function of FUNCTIONS for two prompts, two episodes each: the engine, the samples, the notes."""
    pytest.importorskip("openai")
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)

    def play(name: str, **limits: float):
        engine = ScriptedEngine(tokenizer, numbered)
        rows, tokens = prompts(tokenizer)
        ends = (tokenizer.eos_token_id,)
        bounds = AgentLimits(**{"seconds": 30, **limits})
        runner = AgentRunner(engine, tokenizer, f"{file}:{name}", bounds, context=2048, end_tokens=ends)
        try:
            return engine, runner.play(EpisodePlan(rows, tokens, 2, Sampling(20), (3,))), runner.take_notes(), runner
        finally:
            runner.close()

    return play


def test_a_function_plays_many_episodes_at_once_token_for_token(play_function):
    engine, groups, notes, runner = play_function("play")
    assert [[sample.returned for sample in samples] for samples in groups] == [[0.0, 0.0], [1.0, 1.0]]
    assert runner._agents.play.__globals__["most"] == 4  # they were in one batch
    assert notes.counts["agent_calls"] == 8 and not notes.failures
    sampled = {tuple(sample.tokens.tolist()) for sample in engine.samples}
    for sample in (each for samples in groups for each in samples):
        assert [turn.role for turn in sample.turns] == ["prompt", "assistant", "user", "assistant"]
        assert tuple(sample.tokens.tolist()) in sampled  # what its last call was given and wrote


def test_a_function_that_raises_or_hangs_fails_or_ends_alone(play_function):
    _, groups, notes, _ = play_function("fails")
    assert {sample.stop for sample in groups[1]} == {StopReason.FAILED} and groups[0][0].stop is not StopReason.FAILED
    assert any("RuntimeError: no luck" in line and "p1#" in line for line in notes.failures)
    assert notes.counts["failed_episodes"] == 2 and notes.counts["unreported_rewards"] == 2
    _, _, notes, _ = play_function("silent")
    assert all("its function made no call with its client" in line and "p1#" in line for line in notes.failures)
    assert notes.counts["silent_programs"] == len(notes.failures) == 2
    began = time.monotonic()
    _, groups, _, _ = play_function("hangs", seconds=1.0)
    assert {sample.stop for samples in groups for sample in samples} == {StopReason.SECONDS}
    assert time.monotonic() - began < 20


def test_what_is_no_async_function_is_one_line(tmp_path):
    pytest.importorskip("openai")
    file = tmp_path / "functions.py"
    file.write_text(FUNCTIONS)
    with pytest.raises(WhetError, match=r"is no async function; write `async def blocking\(client, row\)`"):
        check_agent(f"{file}:blocking")
    with pytest.raises(WhetError, match=r"has no 'plya' \(did you mean 'play'\?\)"):
        check_agent(f"{file}:plya")
    check_agent(f"{file}:play")


def test_waiting_for_programs_costs_no_more_than_a_share_of_the_writing(tokenizer):
    runner = AgentRunner(ScriptedEngine(tokenizer, lambda prompt, request: "x"), tokenizer, f"{sys.executable} -c pass")
    try:
        quiet = SimpleNamespace(record=object(), has_called=True, was_pending=False, quiet_since=time.monotonic())
        assert 0 < runner._patience([quiet]) <= 1.0
        runner._held_up, runner._wrote = 2.4, 5.0
        assert runner._patience([quiet]) <= 1.0 and not runner.take_notes().counts.get("slow_programs")
        runner._held_up = 2.6
        assert runner._patience([quiet]) == 60.0  # nothing to write: until somebody asks
        assert runner.take_notes().counts == {"slow_programs": 1}
    finally:
        runner.close()


def test_a_program_is_asked_to_end_then_killed_then_given_up(monkeypatch):
    done = []
    program = SimpleNamespace(
        has_ended=False, ask_to_end=lambda: done.append("asked"), kill=lambda: done.append("killed")
    )
    episode = SimpleNamespace(program=program, began=100.0, late_since=None)
    runner = SimpleNamespace(_limits=AgentLimits(seconds=10))
    for now, is_over, said in (
        (109.0, False, []),
        (110.0, False, ["asked"]),
        (110.0 + 0.9 * PATIENCE, False, ["asked"]),
        (110.0 + PATIENCE, False, ["asked", "killed"]),
        (110.0 + 1.9 * PATIENCE, False, ["asked", "killed", "killed"]),
        (110.0 + 2 * PATIENCE, True, ["asked", "killed", "killed", "killed"]),
    ):
        monkeypatch.setattr(agent, "time", SimpleNamespace(monotonic=lambda now=now: now))
        assert AgentRunner._is_over(runner, episode) is is_over and done == said
