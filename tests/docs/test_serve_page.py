"""docs/serve.md: its commands and programs are run, and do what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
from tests.envs.test_agent import exact, prompts
from tests.support.commands import finished, started
from tests.support.scripted import ScriptedEngine, tool_tokenizer
from whet.envs.serve.agent import AgentLimits, AgentRunner
from whet.rollout.episode_runner import EpisodePlan
from whet.types import Sampling

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "serve.md").read_text()
SHELL = re.findall(r"```bash\n(.*?)```", PAGE, re.S)
PYTHON, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SMALL = {"train": "--steps 1 --set batch.prompts_per_step=2 --set eval.prompts=2", "eval": "--set eval.prompts=2"}


def run(command: str, folder: Path) -> str:
    """A command of the page; `whet` and `python` are those of this interpreter."""
    words = re.sub(r"^whet\b", f"{sys.executable} -m whet", command)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        words, shell=True, cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_commands_train_the_example(tmp_path):
    shutil.copy(ROOT / "examples" / "agent.py", tmp_path)
    commands = [line for line in SHELL[0].splitlines() if line]
    assert [line.split()[1] for line in commands] == ["sample", "train", "eval"]
    said = []
    for line in commands:
        words = shlex.split(f"{line} {SMALL.get(line.split()[1], '')}")
        done = finished(
            *words[1:], folder=tmp_path, PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert "assistant: " in said[0] and "accuracy" in said[2]
    metrics = [json.loads(line) for line in (tmp_path / "runs/grpo-001/metrics.jsonl").read_text().splitlines()]
    assert metrics[1]["counts"]["agent_calls"] >= 16 and "calls" in metrics[0]["result"]


def test_the_program_with_the_official_client_is_an_episode(tmp_path):
    pytest.importorskip("openai")
    (tmp_path / "program.py").write_text(PYTHON)
    tokenizer = tool_tokenizer()
    engine = ScriptedEngine(tokenizer, lambda prompt, request: f"<answer>{request.seed % 2}</answer>")
    command = f"{sys.executable} {tmp_path / 'program.py'}"
    end = (tokenizer.eos_token_id,)
    runner = AgentRunner(engine, tokenizer, command, AgentLimits(seconds=120), context=2048, end_tokens=end)
    (prompt,), tokens = prompts(tokenizer, 1)
    try:
        (samples,) = runner.play(EpisodePlan([prompt], tokens, 2, Sampling(40), (1,)))
    finally:
        runner.close()
    for sample in samples:
        exact(sample, engine)
        assert sample.returned == float(sample.completion == f"<answer>{prompt.answer}</answer>")
    assert sorted(sample.returned for sample in samples) == [0.0, 1.0]


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_server_answers_curl_with_its_tokens(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    serve, ask = (block.replace("8000", port) for block in SHELL[1:])
    words = serve.split()
    server, deadline = started(*words[1:], folder=tmp_path), time.monotonic() + 120
    try:
        told = f"export OPENAI_BASE_URL=http://127.0.0.1:{port}/v1 OPENAI_API_KEY=my-token\n"
        while told not in server.stdout and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert told in server.stdout, server.stdout + server.stderr
        answer = json.loads(run(ask, tmp_path))
        refused = json.loads(run(ask.replace("my-token", "another"), tmp_path))
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(30)
    assert code == 130 and refused["error"]["code"] == "invalid_token"
    (choice,) = answer["choices"]
    assert torch.tensor(answer["prompt_token_ids"] + choice["token_ids"]).min() >= 0
    assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) > 0
