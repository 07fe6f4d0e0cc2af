"""The endpoint, used by the packages it is made for: verifiers, OpenEnv's capture, and an agent framework.

Each package lives in a virtual environment of its own, made on the first run; `WHET_PEERS` says where they are kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

from tests.envs.test_agent import exact, prompts
from tests.envs.test_serve import adding
from tests.support.packages import needs
from tests.support.scripted import TOKEN, ScriptedEngine, serving, tool_tokenizer
from whet.envs.serve.agent import AgentLimits, AgentRunner
from whet.rollout.episode_runner import EpisodePlan
from whet.types import Sampling, StopReason

pytestmark = [pytest.mark.peers, needs("fastapi", "uvicorn")]
SIDES = Path(__file__).parent / "sides"
VERIFIERS = ("verifiers==0.4.0", "transformers", "jinja2")  # and renderers 0.1.12, which it needs


def python_with(*packages: str) -> str:
    """The interpreter of an environment with these packages; skips where pip cannot get them."""
    cache = Path(os.environ.get("WHET_PEERS") or Path.home() / ".cache" / "whet-peers")
    folder = cache / ("venv-" + "-".join(each.replace("==", "-") for each in packages))
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
            pytest.skip(f"{packages[0]} could not be installed: {lines[-1]}")
        (folder / "complete").touch()
    return str(python)


def run_side(python: str, script: str, *arguments: str) -> object:
    """What a script prints as its last line."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HTTP_PROXY", "http_proxy")}
    done = subprocess.run(
        [python, str(SIDES / script), *arguments],
        env={**kept, "WHET_TOKEN": TOKEN, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tokenizer():
    return tool_tokenizer()


def test_a_taskset_of_verifiers_is_played_with_exact_tokens(tokenizer, tmp_path):
    python = python_with(*VERIFIERS)
    tokenizer.save_pretrained(tmp_path)

    def doubled(prompt: str, request: object) -> str:
        first = int(prompt.split("<|user|>")[1][0])
        return f"turn {prompt.count('<|assistant|>')} is {2 * first}" if first else "no idea"

    engine = ScriptedEngine(tokenizer, doubled)
    with serving(engine) as address:
        traces = run_side(python, "verifiers_side.py", address, str(tmp_path))
    assert [trace["errors"] for trace in traces] == [[], [], []]
    assert [trace["rewards"]["is_right"] for trace in traces] == [0.0, 1.0, 1.0]
    assert [trace["metrics"]["turns"] for trace in traces] == [2.0] * 3
    written = [sample.tokens.tolist() for sample in engine.samples]
    for number, trace in enumerate(traces):
        first, second = engine.samples[2 * number : 2 * number + 2]
        # one conversation, and the trace's path is what the engine saw and wrote
        assert trace["paths"] == [written[2 * number + 1]]
        for call, sample in zip(trace["calls"], (first, second), strict=True):
            sampled = [token for token, is_sampled in zip(call["tokens"], call["mask"], strict=True) if is_sampled]
            assert sampled == sample.tokens[sample.action].tolist()
            assert call["logprobs"] == pytest.approx(sample.behavior_logp[sample.action].tolist())


def test_the_openenv_taskset_of_verifiers_is_played_with_exact_tokens(tokenizer, tmp_path):
    python = python_with("verifiers[openenv]==0.4.0", *VERIFIERS[1:])
    tokenizer.save_pretrained(tmp_path)
    engine = ScriptedEngine(tokenizer, lambda prompt, request: f"move {prompt.count('<|assistant|>')}")
    with serving(engine, context=8192) as address:
        episodes = run_side(python, "verifiers_openenv_side.py", address, str(tmp_path))
    assert [each["errors"] for each in episodes] == [[], []]
    assert [each["rewards"] for each in episodes] == [{"openenv_reward": 1.0 + 2.0 + 3.0}] * 2
    # one conversation of three turns each, and its last sample holds all of it
    assert [each["paths"] for each in episodes] == [[engine.samples[place].tokens.tolist()] for place in (2, 5)]
    assert len(engine.samples) == 6


def test_openenv_captures_a_trainable_trace(tokenizer):
    python = python_with("openenv==0.10.0")
    engine = ScriptedEngine(tokenizer, adding)
    with serving(engine) as address:
        got = run_side(python, "openenv_side.py", address)
    assert got["level"] == "tokens" and got["trainable"], got["summary"]
    assert got["validation"] == [] and got["sequences"] == 1
    assert [bool(answer.get("tool_calls")) for answer in got["answers"]] == [True, False]
    for turn, sample in zip(got["turns"], engine.samples[-2:], strict=True):
        assert [*turn["prompt"], *turn["completion"]] == sample.tokens.tolist()
        assert turn["logps"] == pytest.approx(sample.behavior_logp[sample.action].tolist())
        assert turn["mask"] == sample.action.int().tolist()


def test_a_program_of_an_agent_framework_is_one_sample_per_episode(tokenizer, monkeypatch):
    python = python_with("openai-agents==0.20.0")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    engine = ScriptedEngine(tokenizer, adding)
    command = f"{python} {SIDES / 'openai_agents_side.py'}"
    limits = AgentLimits(seconds=120)
    runner = AgentRunner(engine, tokenizer, command, limits, context=4096, end_tokens=(tokenizer.eos_token_id,))
    made, tokens = prompts(tokenizer, 2)
    try:
        groups = runner.play(EpisodePlan(made, tokens, 2, Sampling(200), (1,)))
    finally:
        runner.close()
    assert [len(group) for group in groups] == [2, 2], runner.take_notes()
    for sample in [sample for group in groups for sample in group]:
        exact(sample, engine)
        assert sample.returned == 1.0 and sample.stop is StopReason.END
        assert [turn.role for turn in sample.turns] == ["prompt", "assistant", "tool", "assistant"]
        assert sample.turns[1].counts == {"tool_calls": 1} and sample.turns[2].text == "5"
    assert len(engine.samples) == 8 and sys.executable != python and torch.is_tensor(engine.samples[0].tokens)
