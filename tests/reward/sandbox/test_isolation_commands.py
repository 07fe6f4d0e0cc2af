"""Commands that would run model-written code are refused before they start where the machine isolates too little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trust._weaker import environment, interpreter

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="the protections are Linux ones")]

WEAKER = Path(__file__).parents[3] / "benchmarks/trust/_weaker.py"
ROWS = [{"prompt": "Write add(a, b).", "tests": ["assert add(1, 2) == 3"], "answer": "def add(a, b): return a + b"}] * 2
FEW = ["--set", "batch.prompts_per_step=1", "--set", "batch.group_size=2", "--set", "eval.prompts=0"]
SHORT = ["--set", "rounds=1", "--set", "prompts_per_round=1", "--set", "eval.prompts=1"]
COMMANDS = {
    "train": ["train", "grpo", "--reward", "code_tests", "--steps", "1", "--folder", "out", *FEW],
    "eval": ["eval", "whetstone", "--reward", "code_tests", "--out", "out"],
    "reward": ["reward", "test", "code_tests"],
    "label": ["label", "steps", "--reward", "code_tests", "--count", "1", "--rollouts", "1", "--out", "out.jsonl"],
    "pipeline": ["pipeline", "iterative_dpo", "--set", "reward.template=code", "--folder", "out", *SHORT],
}


def ran(missing: str, command: list[str], folder: Path) -> subprocess.CompletedProcess:
    program = interpreter()
    if program is None:
        pytest.skip("no interpreter that an unprivileged user can start")
    (folder / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for each in (folder, *folder.parents[:3]):
        if each.stat().st_uid == os.geteuid():
            each.chmod(0o777 if each == folder else each.stat().st_mode | 0o055)
    words = [sys.executable, "-P", str(WEAKER), missing, "--", program, "-m", "whet", *command, "--data", "code.jsonl"]
    return subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=180, cwd=folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_refused_and_leaves_nothing(name, tmp_path):
    refused = ran("namespaces,landlock", COMMANDS[name], tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.startswith("whet: the sandbox will not run code on this machine: no namespaces: ")
    assert refused.stderr.count("\n") == 1 and "sandbox.require=none" in refused.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["code.jsonl"]


@pytest.mark.parametrize("name", ["train", "reward"])
def test_a_command_that_is_told_so_runs_and_says_so(name, tmp_path):
    told = ran("namespaces,landlock", [*COMMANDS[name], "--set", "sandbox.require=none"], tmp_path)
    assert told.returncode in (0, 1), told.stderr  # 1: the trial found something
    assert "NO ISOLATION, as sandbox.require=none allows" in told.stderr
    assert "code under test can read, write and delete this user's files" in told.stderr
    if name == "train":
        assert "none: code can read, write and delete this user's files" in told.stdout


def test_landlock_alone_is_enough_unless_namespaces_are_required(tmp_path):
    command = COMMANDS["reward"]
    enough = ran("namespaces", command, tmp_path)
    assert enough.returncode in (0, 1) and enough.stderr.startswith("sandbox: no namespaces: "), enough.stderr
    refused = ran("namespaces", [*command, "--set", "sandbox.require=namespaces"], tmp_path)
    assert refused.returncode == 2 and "sandbox.require=landlock" in refused.stderr
